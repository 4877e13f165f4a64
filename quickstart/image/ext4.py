"""An ext4 root disk of a directory tree, without mounting it (mke2fs(8), option -d), and what its superblock says."""

from __future__ import annotations

import struct
import uuid
from pathlib import Path

from quickstart.errors import ArtefactError, BadInputError, CommandError
from quickstart.host import door
from quickstart.model import MIB, RootDisk, Superblock

# The superblock's write time after mke2fs. A constant, so that the same tree gives the same superblock, and every
# later write of it, which has a real clock, differs.
_EPOCH_S = 1_400_000_000
_SUPERBLOCK_AT = 1024
_SUPERBLOCK_BYTES = 1024
_MAGIC = 0xEF53
# Documentation/filesystems/ext4/super.rst: s_state bits and s_feature_incompat bits.
_STATE_CLEAN = 0x1
_STATE_ERRORS = 0x2
_INCOMPAT_RECOVER = 0x4


def write_disk(tree: Path, path: Path, size_mib: int, root_uuid: str) -> RootDisk:
    """Write ``tree`` (owners and modes kept, so as root) to ``path`` as a sparse raw ext4 file system of ``size_mib``.

    Raises BadInputError when the tree does not fit.
    """
    door.need_root("keeping owners and modes in a root disk")
    options = ("-q", "-F", "-L", "root", "-U", root_uuid, "-E", f"hash_seed={root_uuid}")
    fake_time = {"E2FSPROGS_FAKE_TIME": str(_EPOCH_S)}
    try:
        door.run(["mkfs.ext4", *options, "-d", tree, path, f"{size_mib}M"], timeout_s=1800, env=fake_time)
    except CommandError as error:
        path.unlink(missing_ok=True)
        if "Could not allocate block" in error.tail or "No free space" in error.tail:
            raise BadInputError(
                f"the image does not fit on a disk of {size_mib} MiB",
                hint="raise disk.size_mib in the profile",
            ) from error
        raise
    # It holds /etc/shadow.
    path.chmod(0o600)
    return RootDisk(path, size_mib * MIB, read_superblock(path))


def read_superblock(path: Path) -> Superblock:
    """The ext4 superblock of a raw image; raises ArtefactError when there is none."""
    with path.open("rb") as file:
        file.seek(_SUPERBLOCK_AT)
        return parse_superblock(file.read(_SUPERBLOCK_BYTES), str(path))


def parse_superblock(block: bytes, source: str) -> Superblock:
    """The 1024 bytes of an ext4 superblock (kernel: Documentation/filesystems/ext4/super.rst)."""
    if len(block) < _SUPERBLOCK_BYTES or struct.unpack_from("<H", block, 0x38)[0] != _MAGIC:
        raise ArtefactError(f"{source} has no ext4 superblock", hint="is the image truncated?")
    (write_time_s,) = struct.unpack_from("<I", block, 0x30)
    (mount_count,) = struct.unpack_from("<H", block, 0x34)
    (state,) = struct.unpack_from("<H", block, 0x3A)
    (incompat,) = struct.unpack_from("<I", block, 0x60)
    return Superblock(
        uuid=str(uuid.UUID(bytes=block[0x68:0x78])),
        mount_count=mount_count,
        write_time_s=write_time_s,
        clean=bool(state & _STATE_CLEAN),
        needs_recovery=bool(incompat & _INCOMPAT_RECOVER),
        has_errors=bool(state & _STATE_ERRORS),
    )
