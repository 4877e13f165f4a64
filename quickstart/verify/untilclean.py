"""`verify --until-clean`: build and verify until the root volume is read for nothing that could be packed.

The files that the ledger misses in the start set go into a list beside OUT, which `build --include FILE`
takes. The same list, profile and image give the same OUT.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from quickstart.errors import BadInputError
from quickstart.inspect.globs import matches
from quickstart.model import Profile
from quickstart.verify.boot import Verified
from quickstart.verify.ledger import lacking

ROUNDS = 4
_HEAD = "# What `quickstart verify --until-clean` found lacking, one path a line: quickstart build --include takes it.\n"


@dataclass(frozen=True)
class Round:
    """One build and verify. ``added`` are the files that this build packed and the one before did not; none
    in the first.
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
    """Build and verify, and repeat with the files that the ledger named until there are no new ones; at
    most ROUNDS times.

    ``included`` are the files of earlier calls. ``keep`` writes the list before each build with it.
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
    """The files that were read from the root volume, are not packed, and are neither data nor excluded by
    ``profile``.
    """
    rules = (*profile.files.exclude, *profile.files.data)
    found = lacking(verified.ledger, verified.packed)
    return tuple(path for path in found if not any(matches(path, rule) for rule in rules))


def with_includes(profile: Profile, files: Iterable[PurePosixPath]) -> Profile:
    """``profile`` that also packs ``files``."""
    globs = tuple(glob.escape(str(path)) for path in files)
    include = tuple(dict.fromkeys((*profile.files.include, *globs)))
    return replace(profile, files=replace(profile.files, include=include))


def include_list(out: Path) -> Path:
    """The list's path: beside OUT, because a build replaces OUT."""
    return out.with_name(f"{out.name}.include")


def read_includes(path: Path) -> tuple[PurePosixPath, ...]:
    """The paths of a list, in its order. Empty lines and those that begin with # are ignored.

    Raises BadInputError for a list that cannot be read, or a line that is no absolute path.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError as error:
        raise BadInputError(f"{path} cannot be read: {error.strerror}") from error
    found = []
    for number, line in enumerate(lines, 1):
        if line and not line.startswith("#"):
            if not line.startswith("/"):
                raise BadInputError(f"{path}:{number}: {line!r} is no absolute path")
            found.append(PurePosixPath(line))
    return tuple(found)


def write_includes(path: Path, files: Iterable[PurePosixPath]) -> None:
    """Write a list that `read_includes` reads. Raises BadInputError for a name with a newline."""
    names = [str(file) for file in files]
    if odd := [name for name in names if len(name.splitlines()) != 1]:
        raise BadInputError(f"{odd[0]!r} has a line's end in its name", hint="name it in files.include")
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(
        _HEAD + "".join(f"{name}\n" for name in names), encoding="utf-8", errors="surrogateescape"
    )
    partial.replace(path)
