"""Write part B of the initramfs as a SquashFS image of the start set, with squashfs-tools.

sqfstar makes the image from a tar archive, so this module needs no rights of root. Two calls with equal entries give
the same bytes if the version of squashfs-tools is the same (docs/internals/payload.md). `squashfs_reader` reads the
image.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterable
from pathlib import Path

from quickstart.host import door
from quickstart.host.workspace import workspace
from quickstart.initramfs.newc import CpioEntry

# When a process reads a block, it waits until the kernel has unpacked the block. LZ4 takes a quarter of Zstandard's
# time.
_OPTIONS = (
    *("-comp", "lz4", "-Xhc", "-mkfs-time", "0", "-all-time", "0", "-root-mode", "0755", "-no-xattrs"),
    *("-processors", "1", "-quiet", "-no-progress"),
)
_TIMEOUT_S = 600
_TYPES = {stat.S_IFDIR: tarfile.DIRTYPE, stat.S_IFLNK: tarfile.SYMTYPE, stat.S_IFREG: tarfile.REGTYPE}


def write_image(entries: Iterable[CpioEntry]) -> bytes:
    """The bytes of a SquashFS image that contains ``entries``. The entries are directories, links and regular files."""
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
