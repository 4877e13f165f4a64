"""Compute the SHA-256 sums of an artefact's files, and compare the sums with the manifest."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from quickstart.artefact.manifest import MANIFEST, REBUILD, START_SET, read_manifest
from quickstart.errors import ArtefactError
from quickstart.host.beneath import opened_regular
from quickstart.host.unchanged import digest_of

# The user may change this script, so its sum is not checked.
RUN_SCRIPT = "run.sh"


def file_facts(path: Path) -> Mapping[str, int | str]:
    """The size and the SHA-256 of a regular file, under the keys that the manifest uses."""
    with opened_regular(path) as fd:
        return {"size_bytes": os.fstat(fd).st_size, "sha256": digest_of(fd, path)}


def check_sums(directory: Path) -> None:
    """Raise ArtefactError when the kernel or an initramfs has changed since the build. Also raise ArtefactError when
    start-set.json is missing.
    """
    for name, fact in read_manifest(directory).facts.items():
        if name != RUN_SCRIPT and file_facts(directory / name) != fact.model_dump():
            raise ArtefactError(f"{name} is not what was built", hint=REBUILD)
    with opened_file(directory / START_SET):
        pass


def made_digests(directory: Path) -> Mapping[str, str]:
    """The SHA-256 of each file of the artefact in ``directory``, except the root disk and run.sh. A rebuild makes all
    these files anew. Raises ArtefactError when one of these files is missing, and BadInputError when one of these files
    is not a regular file.
    """
    names = {MANIFEST, START_SET, *read_manifest(directory).facts} - {RUN_SCRIPT}
    found: dict[str, str] = {}
    for name in sorted(names):
        with opened_file(directory / name) as fd:
            found[name] = digest_of(fd, directory / name)
    return found


@contextmanager
def opened_file(path: Path) -> Iterator[int]:
    """A context manager that opens the file ``path`` of an artefact and returns the descriptor. Raises ArtefactError
    when the file is missing, and BadInputError when the file is not a regular file.
    """
    try:
        with opened_regular(path) as fd:
            yield fd
    except FileNotFoundError as error:
        raise ArtefactError(f"{path} is missing", hint=REBUILD) from error
