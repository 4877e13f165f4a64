"""Compute the sums of OUT's files, and compare them with what the manifest says."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from quickstart.artefact.manifest import MANIFEST, REBUILD, START_SET, read_manifest
from quickstart.errors import ArtefactError
from quickstart.host.beneath import opened_regular
from quickstart.host.unchanged import digest_of

# The user may change it as he likes.
RUN_SCRIPT = "run.sh"


def file_facts(path: Path) -> Mapping[str, int | str]:
    """The size and the SHA-256 of a regular file, as the manifest has them."""
    with opened_regular(path) as fd:
        return {"size_bytes": os.fstat(fd).st_size, "sha256": digest_of(fd, path)}


def check_sums(directory: Path) -> None:
    """Raise ArtefactError when the kernel or an initramfs has changed since the build, or start-set.json is missing."""
    for name, fact in read_manifest(directory).facts.items():
        if name != RUN_SCRIPT and file_facts(directory / name) != fact.model_dump():
            raise ArtefactError(f"{name} is not what was built", hint=REBUILD)
    with opened_file(directory / START_SET):
        pass


def made_digests(directory: Path) -> Mapping[str, str]:
    """The SHA-256 of each file of OUT that a rebuild makes, and of manifest.json, which has all other facts. run.sh is
    not among them. Raises BadInputError as `check_sums` does, and when a file is missing.
    """
    names = {MANIFEST, START_SET, *read_manifest(directory).facts} - {RUN_SCRIPT}
    found: dict[str, str] = {}
    for name in sorted(names):
        with opened_file(directory / name) as fd:
            found[name] = digest_of(fd, directory / name)
    return found


@contextmanager
def opened_file(path: Path) -> Iterator[int]:
    """The open file of OUT at ``path``. Raises ArtefactError when it is missing, and BadInputError when it is not a
    regular file.
    """
    try:
        with opened_regular(path) as fd:
            yield fd
    except FileNotFoundError as error:
        raise ArtefactError(f"{path} is missing", hint=REBUILD) from error
