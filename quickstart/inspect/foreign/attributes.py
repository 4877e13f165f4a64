"""Read extended attributes in ext4's format. Convert ACLs from acl(5)'s text form into the form of the kernel's
attribute.
"""

from __future__ import annotations

import grp
import pwd
import struct

from quickstart.errors import BadInputError

ATTRIBUTES_MAGIC = (0xEA020000).to_bytes(4, "little")
# The attribute with a file's ACL. It is stored in a form of its own (fs/ext4/acl.h in the kernel).
ACCESS = "system.posix_acl_access"
# attributes.rst: e_name_index. This module does not read the ACL that new files in a directory get (3).
_PREFIXES = {1: "user.", 2: ACCESS, 4: "trusted.", 6: "security."}
_EXT4_ACL_VERSION, _EXT4_ACL_ENTRY, _EXT4_ACL_ID = 1, struct.Struct("<HH"), struct.Struct("<I")
_ENTRY = struct.Struct("<BBHIII")

# linux/posix_acl_xattr.h and linux/posix_acl.h
_ACL_VERSION, _NO_ID = 2, 0xFFFFFFFF
_ACL_ENTRY = struct.Struct("<HHI")
_TAGS = {
    ("user", False): 0x01, ("user", True): 0x02, ("group", False): 0x04, ("group", True): 0x08,
    ("mask", False): 0x10, ("other", False): 0x20,
}  # fmt: skip


def attributes_in(area: bytes, first: int) -> dict[str, bytes]:
    """The extended attributes in ``area``, a piece of an ext4 file system. The entries of the attributes begin at the
    offset ``first``. The offsets of values are relative to the beginning of ``area`` (attributes.rst in the kernel's
    documentation of ext4). Raises BadInputError for damaged attributes.
    """
    found: dict[str, bytes] = {}
    at = first
    while at + _ENTRY.size <= len(area) and area[at : at + 4] != bytes(4):
        name_length, index, offset, inode, size, _ = _ENTRY.unpack_from(area, at)
        name = area[at + _ENTRY.size : at + _ENTRY.size + name_length]
        if len(name) != name_length or inode or offset + size > len(area):
            raise BadInputError("is no whole ext4 file system: its extended attributes")
        if index in _PREFIXES:
            found[_PREFIXES[index] + name.decode("utf-8", "surrogateescape")] = area[offset : offset + size]
        at += (_ENTRY.size + name_length + 3) // 4 * 4
    return found


def acl_text(stored: bytes) -> str:
    """acl(5)'s text form of an ACL, with numbers for users and groups. ``stored`` is the value that ext4 has on the disk
    (fs/ext4/acl.h in the kernel). Raises BadInputError for any other value.
    """
    words = {tag: (kind, is_named) for (kind, is_named), tag in _TAGS.items()}
    lines, at = [], 4
    try:
        if struct.unpack_from("<I", stored) != (_EXT4_ACL_VERSION,):
            raise ValueError("another version")
        while at < len(stored):
            tag, bits = _EXT4_ACL_ENTRY.unpack_from(stored, at)
            kind, is_named = words[tag]
            at += _EXT4_ACL_ENTRY.size
            name = str(_EXT4_ACL_ID.unpack_from(stored, at)[0]) if is_named else ""
            at += _EXT4_ACL_ID.size if is_named else 0
            lines.append(f"{kind}:{name}:{permissions(bits)}")
    except (ValueError, KeyError, struct.error) as error:
        raise BadInputError("is no whole ext4 file system: its ACLs") from error
    return "\n".join(lines)


def permissions(bits: int) -> str:
    """The three letters of acl(5) for the lowest three bits of ``bits``."""
    return "".join(letter if bits & bit else "-" for letter, bit in (("r", 4), ("w", 2), ("x", 1)))


def acl_attribute(text: str) -> bytes:
    """The value of system.posix_acl_access or system.posix_acl_default for an ACL in acl(5)'s text form.
    Raises BadInputError for any other text.

    Like tar(1), this function looks up user and group names on this host. It uses numeric IDs unchanged.
    """
    entries = []
    for line in text.replace(",", "\n").splitlines():
        words = line.partition("#")[0].strip().split(":")
        if words == [""]:
            continue
        # star(1) adds the id to a name: user:alice:rwx:1000.
        kind, name, letters = (*words, "", "")[:3]
        tag = _TAGS.get((kind, bool(name)))
        if tag is None or len(words) not in (3, 4) or set(letters) - set("rwx-"):
            raise BadInputError(f"has an ACL that is none: {line.strip()[:80]!r}")
        bits = sum(bit for letter, bit in (("r", 4), ("w", 2), ("x", 1)) if letter in letters)
        number = words[3] if len(words) == 4 else name
        entries.append((tag, bits, _id_of(kind, number) if name else _NO_ID))
    ordered = sorted(entries, key=lambda entry: (entry[0], entry[2]))
    return struct.pack("<I", _ACL_VERSION) + b"".join(_ACL_ENTRY.pack(*entry) for entry in ordered)


def _id_of(kind: str, name: str) -> int:
    try:
        if name.isascii() and name.isdigit() and len(name) <= 10 and int(name) < _NO_ID:
            return int(name)
        return pwd.getpwnam(name).pw_uid if kind == "user" else grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        raise BadInputError(
            f"has an ACL for the {kind} {name[:80]!r}, whom this host does not know",
            hint="make it with tar --numeric-owner",
        ) from None
