"""The root of a machine as it is now, taken out of its disk without mounting it: the reference image of a rebuild.

debugfs(8) copies the tree. What it leaves out is asked for afterwards: the times of links and inodes, and the attributes that
decide whether a program may be served from memory. Device nodes, FIFOs and sockets stay on the disk.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from quickstart.errors import BadInputError, CommandError
from quickstart.host import door
from quickstart.image.artefact import USED_DISK
from quickstart.imageroot import ImageRoot
from quickstart.model import ReferenceImage, StartSet, Superblock
from quickstart.progress import Progress
from quickstart.reference import entry
from quickstart.store import Store, source_digest

_ECHO = re.compile(r"^debugfs: (?:stat|ea_list) \"(.*)\"\n", re.MULTILINE)
_TIME = re.compile(r"^ *(c|m)time: 0x([0-9a-f]{8})", re.MULTILINE)
_ATTRIBUTE = re.compile(r"^  (security\.\S+) \(\d+\) = ((?:[0-9a-f]{2} ?)+)$", re.MULTILINE)
_LIMIT_S = 1800


@dataclass(frozen=True)
class UsedDisk:
    """A raw root disk whose machine is off; ``digest`` is the SHA-256 of its bytes, ``superblock`` what it says of itself."""

    path: Path
    digest: str
    superblock: Superblock


def examine_disk(path: Path, superblock: Superblock) -> UsedDisk:
    """The disk at ``path``; raises BadInputError for one whose machine was not shut down in order."""
    if superblock.needs_recovery or superblock.has_errors or not superblock.clean:
        raise BadInputError(
            f"{path} was not shut down in order",
            hint="boot the machine once (quickstart run OUT) and end it with Ctrl-C",
        )
    with path.open("rb") as file:
        return UsedDisk(path, hashlib.file_digest(file, "sha256").hexdigest(), superblock)


def reference_of_disk(disk: UsedDisk, label: str, store: Store, progress: Progress) -> ReferenceImage:
    """What is on ``disk`` as a reference image, out of the store or copied now (as root, for the owners)."""
    inputs = {
        "kind": USED_DISK,
        "digest": disk.digest,
        "recipe": source_digest("quickstart.useddisk", "quickstart.treehash"),
    }

    def make(directory: Path) -> None:
        tree = directory / "root"
        tree.mkdir()
        tree.chmod(0o755)
        with progress.step(f"reference: copy what is on {disk.path.name}"):
            # By a name without blanks, whatever the path has.
            (directory / "disk").symlink_to(disk.path)
            done = door.run(["debugfs", "-R", "rdump / root", "disk"], timeout_s=_LIMIT_S, cwd=directory)
            (directory / "disk").unlink()
            if faults := done.stderr.decode(errors="replace").splitlines()[1:]:
                raise CommandError(done.argv, done.returncode, "\n".join(faults[:5]))
            _restore_attributes(disk.path, tree)
        with progress.step("reference: hash the image"):
            entry.write_facts(directory, disk.superblock.uuid, label)

    made = store.get_or_make("reference", inputs, make)
    return entry.load(made.path, (USED_DISK, disk.digest))


def _restore_attributes(disk: Path, tree: Path) -> None:
    """Give programs their security.* attributes (capabilities): with one they are not served from memory."""
    programs = [
        path
        for path in ImageRoot(tree).below(PurePosixPath("/"))
        if stat.S_ISREG((status := ImageRoot(tree).host(path).lstat()).st_mode) and status.st_mode & 0o111
    ]
    for path, said in _asked(disk, "ea_list", programs):
        for name, value in _ATTRIBUTE.findall(said):
            os.setxattr(ImageRoot(tree).host(path), name, bytes.fromhex(value), follow_symlinks=False)


def with_times_of(start_set: StartSet, disk: Path) -> StartSet:
    """The start set with the times of modification and change that the volume has, which init compares."""
    times: dict[PurePosixPath, Mapping[str, int]] = {}
    for path, said in _asked(disk, "stat", [file.path for file in start_set.files]):
        times[path] = {which: int(value, 16) for which, value in _TIME.findall(said)}
        if times[path].keys() != {"m", "c"}:
            raise BadInputError(f"{path} is not on {disk}", hint="was the disk used meanwhile?")
    files = (
        replace(file, mtime_s=times[file.path]["m"], ctime_s=times[file.path]["c"])
        for file in start_set.files
    )
    return replace(start_set, files=tuple(files))


def _asked(disk: Path, command: str, paths: Sequence[PurePosixPath]) -> Iterator[tuple[PurePosixPath, str]]:
    """What debugfs answers for each path, in order; BadInputError for a name that its command line cannot say."""
    if unsayable := [path for path in paths if set('"\n') & set(str(path))]:
        raise BadInputError(
            f"debugfs cannot be asked for {unsayable[0]!r}", hint="rename it, or exclude it in the profile"
        )
    text = "".join(f'{command} "{path}"\n' for path in paths)
    done = door.run(
        ["debugfs", "-f", "-", disk], timeout_s=_LIMIT_S, stdin=text.encode("utf-8", "surrogateescape")
    )
    parts = _ECHO.split(done.stdout.decode("utf-8", "surrogateescape"))
    answers = list(zip(map(PurePosixPath, parts[1::2]), parts[2::2], strict=True))
    if [path for path, _ in answers] != list(paths):
        raise CommandError(done.argv, done.returncode, done.stderr.decode(errors="replace"))
    yield from answers
