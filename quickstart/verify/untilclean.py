"""Implement `verify --until-clean`: build and verify repeatedly, until no file that could be packed is read from the
root volume.

The module writes each file that was read but is not in the start set into a list. The list is in the directory that
contains OUT, the artefact. `build --include FILE` reads this list. Builds with the same list, profile and image give
the same OUT.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from quickstart.errors import BadInputError
from quickstart.host.beneath import content_of, opened_regular, read_bounded
from quickstart.inspect.globs import matches
from quickstart.model import Profile
from quickstart.parse.printable import brief
from quickstart.verify.boot import Verified
from quickstart.verify.ledger import lacking

ROUNDS = 4
# Ten thousand paths have less than 1 MiB. The list may have come with somebody else's OUT.
_LIST_BYTES = 16 << 20
_HEAD = "# What `quickstart verify --until-clean` found lacking, one path a line: quickstart build --include takes it.\n"


@dataclass(frozen=True)
class Round:
    """One build and its verification. ``added`` are the files that this build packed in addition to the files
    of the previous build, or empty in the first round.
    """

    added: tuple[PurePosixPath, ...]
    verified: Verified


def until_clean(
    profile: Profile,
    included: Sequence[PurePosixPath],
    build: Callable[[Profile], None],
    verify: Callable[[], Verified],
    keep: Callable[[Sequence[PurePosixPath]], None],
) -> tuple[Round, ...]:
    """Build and verify in rounds. Each round also packs the files that the function `missing` has found in the previous
    round. The rounds end as soon as no further file is missing. There are at most ROUNDS rounds.

    ``included`` are the files from earlier calls, which the first round packs. Before each later round, this function
    calls ``keep`` with all files that the round packs in addition to the profile's files. ``keep`` writes these files
    into the list.
    """
    files: tuple[PurePosixPath, ...] = tuple(included)
    added: tuple[PurePosixPath, ...] = ()
    rounds: list[Round] = []
    while True:
        build(with_includes(profile, files))
        rounds.append(Round(added, verify()))
        last = rounds[-1].verified
        added = tuple(path for path in missing(last, profile) if path not in files)
        if not added or len(rounds) == ROUNDS:
            return tuple(rounds)
        files = (*files, *added)
        keep(files)


def missing(verified: Verified, profile: Profile) -> tuple[PurePosixPath, ...]:
    """The files that were read from the root volume but are not packed. The result has no data files of the profile,
    and no files that the profile excludes.
    """
    rules = (*profile.files.exclude, *profile.files.data)
    found = lacking(verified.ledger, verified.packed)
    return tuple(path for path in found if not any(matches(path, rule) for rule in rules))


def with_includes(profile: Profile, files: Iterable[PurePosixPath]) -> Profile:
    """A copy of ``profile`` that also packs ``files``."""
    globs = tuple(glob.escape(str(path)) for path in files)
    include = tuple(dict.fromkeys((*profile.files.include, *globs)))
    return replace(profile, files=replace(profile.files, include=include))


def include_list(out: Path) -> Path:
    """The path of the list of files that `build --include` reads, for the artefact ``out``. The list is next to OUT,
    not in it, because a build replaces OUT.
    """
    return out.with_name(f"{out.name}.include")


def read_includes(path: Path) -> tuple[PurePosixPath, ...]:
    """The paths in a list of files, in order. Empty lines and lines that begin with # are ignored.

    Raises BadInputError when the list cannot be read, and when a line is not an absolute path.
    """
    try:
        return _includes(path, read_bounded(path, _LIST_BYTES))
    except OSError as error:
        raise BadInputError(f"{path} cannot be read: {error.strerror}") from error


def _includes(path: Path, content: bytes) -> tuple[PurePosixPath, ...]:
    found = []
    for number, line in enumerate(content.decode(errors="surrogateescape").splitlines(), 1):
        if line and not line.startswith("#"):
            if not line.startswith("/"):
                raise BadInputError(f"{path}:{number}: {brief(line)} is no absolute path")
            found.append(PurePosixPath(line))
    return tuple(found)


def read_own_includes(path: Path) -> tuple[PurePosixPath, ...]:
    """The paths in the list that an earlier `verify --until-clean` of this user wrote. The result is empty when there
    is no list.

    In a directory such as /tmp, another user may have written the list. This user could thereby choose which files
    become readable in the initramfs of the artefact. So this function raises BadInputError for a list that belongs to
    another user or is not a regular file. This function also raises BadInputError in the same cases as `read_includes`.
    """
    try:
        with opened_regular(path) as fd:
            if os.fstat(fd).st_uid != os.geteuid():
                raise BadInputError(
                    f"{path} belongs to another user, who would decide what is packed",
                    hint="remove it, or move OUT to a directory of yours",
                )
            return _includes(path, content_of(fd, path, _LIST_BYTES))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise BadInputError(f"{path} cannot be read: {error.strerror}") from error


def write_includes(path: Path, files: Iterable[PurePosixPath]) -> None:
    """Write the list of ``files`` that `read_includes` reads. Raises BadInputError when a name has a newline, and when
    the list cannot be written.
    """
    names = [str(file) for file in files]
    if odd := [name for name in names if len(name.splitlines()) != 1]:
        raise BadInputError(f"{odd[0]!r} has a line's end in its name", hint="name it in files.include")
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        # A new file is made, because another user may have put a link there, which would be followed.
        with partial.open("x", encoding="utf-8", errors="surrogateescape") as file:
            file.write(_HEAD + "".join(f"{name}\n" for name in names))
        partial.replace(path)
    except OSError as error:
        raise BadInputError(f"{path} cannot be written: {error.strerror}") from error
