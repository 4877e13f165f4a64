"""Part B as a SquashFS image of the start set, by squashfs-tools: written from a tar archive, so without root; the same entries
make the same bytes by the same tool (docs/payload.md)."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from quickstart.errors import ArtefactError, CommandError
from quickstart.host import door
from quickstart.host.workspace import workspace
from quickstart.initramfs.newc import CpioEntry

# What the kernel unpacks a block of, when something asks for it, is waited for: LZ4 takes a quarter of Zstandard's time.
_OPTIONS = (
    *("-comp", "lz4", "-Xhc", "-mkfs-time", "0", "-all-time", "0", "-root-mode", "0755", "-no-xattrs"),
    *("-processors", "1", "-quiet", "-no-progress"),
)
_TIMEOUT_S = 600
_TYPES = {stat.S_IFDIR: tarfile.DIRTYPE, stat.S_IFLNK: tarfile.SYMTYPE, stat.S_IFREG: tarfile.REGTYPE}


@dataclass(frozen=True)
class ImageFile:
    """A file of an image: ``name`` relative to its root, ``mode`` a whole st_mode; ``data`` is content or a link's target."""

    name: str
    mode: int
    data: bytes


def write_image(entries: Iterable[CpioEntry]) -> bytes:
    """The image of these entries: directories, links and regular files."""
    with workspace("quickstart-image.") as place:
        target = place / "image"
        door.run(["sqfstar", *_OPTIONS, target], stdin=_tar(entries), timeout_s=_TIMEOUT_S)
        return target.read_bytes()


def _tar(entries: Iterable[CpioEntry]) -> bytes:
    stream = io.BytesIO()
    names = {"encoding": "utf-8", "errors": "surrogateescape"}
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT, **names) as tar:  # type: ignore[call-overload]
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.type, info.mode = _TYPES[stat.S_IFMT(entry.mode)], stat.S_IMODE(entry.mode)
            info.uid, info.gid = entry.uid, entry.gid
            data = entry.data.read_bytes() if isinstance(entry.data, Path) else entry.data
            if stat.S_ISLNK(entry.mode):
                info.linkname, data = os.fsdecode(data), b""
            elif entry.link_to:
                info.type, info.linkname = tarfile.LNKTYPE, entry.link_to
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def read_image(data: bytes) -> Iterator[ImageFile]:
    """What an image holds, in the order of its names; raises ArtefactError for one that cannot be read.

    Owners are not looked at: they are root's, and part A's list is of the image as a whole.
    """
    with workspace("quickstart-image.") as place:
        image, tree = place / "image", place / "tree"
        image.write_bytes(data)
        try:
            door.run(
                ["unsquashfs", "-no-progress", "-quiet", "-no-xattrs", "-dest", tree, image],
                timeout_s=_TIMEOUT_S,
            )
            yield from _files(tree)
        except (CommandError, OSError) as error:
            said = error.tail.strip() if isinstance(error, CommandError) else str(error)
            raise ArtefactError(
                f"the image of part B cannot be read: {said}", hint="build the artefact again"
            ) from error


def _files(tree: Path) -> Iterator[ImageFile]:
    for path in sorted(tree.rglob("*")):
        mode = path.lstat().st_mode
        data = b""
        if stat.S_ISLNK(mode):
            data = os.fsencode(path.readlink())
        elif stat.S_ISREG(mode):
            data = path.read_bytes()
        yield ImageFile(str(path.relative_to(tree)), mode, data)
