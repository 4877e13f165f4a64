"""Access control lists as the kernel takes them (linux/posix_acl_xattr.h)."""

from __future__ import annotations

import os
import struct
from pathlib import Path

_VERSION = 2
_OWNER, _USER, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_NOBODY = 0xFFFFFFFF


def hide_from_somebody(path: Path) -> None:
    """As `setfacl -m u:1234:---` does it: the mode stays as it is, and lets everybody else in."""
    mode = path.stat().st_mode & 0o777
    group = mode >> 3 & 7
    entries = (
        *((_OWNER, mode >> 6, _NOBODY), (_USER, 0, 1234), (_GROUP, group, _NOBODY)),
        *((_MASK, group, _NOBODY), (_OTHER, mode & 7, _NOBODY)),
    )
    packed = b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(path, "system.posix_acl_access", struct.pack("<I", _VERSION) + packed)
    assert path.stat().st_mode & 0o777 == mode
