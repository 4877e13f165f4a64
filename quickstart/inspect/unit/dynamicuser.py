"""Convert DynamicUser= into records of the starter's description, and refuse units with DynamicUser= that cannot start
early. With this directive, systemd makes up a user when the unit starts (systemd.exec(5)).

For such a user, systemd first tries the ID of the owner of the unit's directory, and then a hash of the user's name.
systemd takes the first of these IDs that is free (pick_uid in src/core/dynamic-user.c). The starter, which starts the
unit early, uses the same rule. So the starter finds the ID that systemd finds later, when systemd adopts the running
unit (docs/internals/dynamic-user.md).

The module follows the sources of systemd 252 and 257. unit_patch_contexts in src/core/unit.c has the directives that
DynamicUser= implies. setup_exec_directory in src/core/execute.c (exec-invoke.c of systemd 257) has the places of the
unit's directories.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import unit_file
from quickstart.inspect.unit.model import UnitCommand
from quickstart.inspect.unit.nameservices import SWITCH, other_services
from quickstart.inspect.unit.pidone import has_own_tmp, maps_owners, names_root
from quickstart.inspect.unit.source import Source

Record = tuple[str, ...]

# systemd takes one of these IDs (its meson_options.txt). The starter has the same numbers in starter.h.
_FIRST, _LAST = 61184, 65519
# The names that systemd's valid_user_group_name accepts, without the numbers that it also accepts.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,30}")
_HASH_KEY = bytes.fromhex("37537e31cfce48f58abb39578dd9ec59")
_WORD = (1 << 64) - 1
# The directories that only the unit's own namespace shows.
PRIVATE = frozenset(("StateDirectory", "CacheDirectory", "LogsDirectory"))
_NOBODY = ("nobody", "65534")
# A value of PrivateTmp= since systemd 257.
OWN_TMP = "disconnected"
_HINT = (
    "give the unit a user that the image has, by a drop-in with DynamicUser=no and User=, and with what DynamicUser=yes"
    " implies (docs/internals/dynamic-user.md)"
)


def is_dynamic(source: Source) -> bool:
    return source.flag("DynamicUser")


def with_implied(root: ImageRoot, source: Source) -> Source:
    """``source`` with the assignments that DynamicUser=yes implies. ProtectSystem=strict, NoNewPrivileges= and
    RestrictSUIDSGID= apply even if the unit assigns other values. If Group= has the same name as the user that systemd
    makes up, the group is this user's own group. Without DynamicUser=, the result is ``source`` itself.
    """
    if not is_dynamic(source):
        return source
    user, home = user_of(source), source.last("ProtectHome")
    is_open = home not in ("read-only", "tmpfs") and not source.flag("ProtectHome")
    implied = (
        ("User", user),
        *((("Group", ""),) if source.names.expand(source.last("Group")) == user else ()),
        ("ProtectSystem", "strict"),
        *((("ProtectHome", "read-only"),) if is_open else ()),
        ("PrivateTmp", _private_tmp(root, source)),
        ("NoNewPrivileges", "yes"),
        ("RestrictSUIDSGID", "yes"),
    )
    return replace(source, assigned=(*source.assigned, *implied))


def _private_tmp(root: ImageRoot, source: Source) -> str:
    if not has_own_tmp(root):
        return "yes"
    value = source.last("PrivateTmp", "no")
    is_connected = value == "connected" or source.flag("PrivateTmp", but=("disconnected",))
    return "yes" if is_connected else OWN_TMP


def user_of(source: Source) -> str:
    """The name of the user that systemd makes up. This name is the value of User=, or the unit's name up to `@` if the
    unit has no User=. Raises UnsupportedUnitError for a name that is not valid for such a user, because systemd would
    then make up another name or use a number.
    """
    name = source.names.expand(source.last("User")) or source.names.prefix
    if not _NAME.fullmatch(name):
        raise _refusal(source, f"DynamicUser= and {name!r} is no name of such a user")
    return name


def dynamic_records(source: Source) -> Iterator[Record]:
    """The record `dynamic-user NUMBER` of the starter's description, for a unit with DynamicUser=yes. NUMBER is the ID
    that the user gets, unless the owner of one of the unit's directories determines another ID.
    """
    if is_dynamic(source):
        yield "dynamic-user", str(number_of(user_of(source)))


def _mapping(root: ImageRoot, source: Source) -> Iterator[Record]:
    """The record `map-owners yes` of the starter's description, for a unit with DynamicUser=yes whose private
    directories belong to the user `nobody` on the volume.
    """
    if is_dynamic(source) and maps_owners(root):
        yield "map-owners", "yes"


def user_records(root: ImageRoot, source: Source) -> Iterator[Record]:
    """The records that depend on the image's systemd: the record for the owners of private directories (`_mapping`), and
    the record for $USER of a unit without User=. The systemd of Debian 13 sets $USER to `root` in such a unit, and the
    systemd of Debian 12 does not set it.
    """
    yield from _mapping(root, source)
    if "User" not in source.found and names_root(root):
        yield "own-environment", "USER=root"


def _refuse_nobody(root: ImageRoot, source: Source) -> None:
    """Raise UnsupportedUnitError for directories of the user `nobody` where systemd shows such directories with other
    owners and without the right to execute files, as it does with those of DynamicUser= (setup_exec_directory in
    exec-invoke.c of systemd 257).
    """
    names = ("RuntimeDirectory", *sorted(PRIVATE))
    is_nobody = source.names.expand(source.last("User")) in _NOBODY
    if is_nobody and any(source.all(name) for name in names) and maps_owners(root):
        raise UnsupportedUnitError(
            f"{source.unit} cannot be started early: it has directories of the user nobody",
            hint="give the unit a user of its own, by a drop-in with User=",
        )


def has_tmp_of_its_own(source: Source) -> bool:
    """Whether the unit has a new file system at /tmp and /var/tmp (PrivateTmp=disconnected). For a unit without
    DynamicUser=, the result is False, because the build refuses such a unit if it has PrivateTmp=disconnected.
    """
    return is_dynamic(source) and source.last("PrivateTmp") == OWN_TMP


def number_of(name: str) -> int:
    """The user ID that systemd computes from a hash of the user's name (systemd's macro UID_CLAMP_INTO_RANGE)."""
    hashed = siphash24(_HASH_KEY, name.encode()) & 0xFFFFFFFF
    return _FIRST + hashed % (_LAST - _FIRST + 1)


def siphash24(key: bytes, data: bytes) -> int:
    """The 64-bit hash SipHash-2-4 of ``data`` (Aumasson and Bernstein, 2012)."""
    first, second = struct.unpack("<QQ", key)
    v = (
        first ^ 0x736F6D6570736575,
        second ^ 0x646F72616E646F6D,
        first ^ 0x6C7967656E657261,
        second ^ 0x7465646279746573,
    )
    padded = data + bytes(-(len(data) + 1) % 8) + bytes([len(data) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        a, b, c, d = _round(_round((v[0], v[1], v[2], v[3] ^ word)))
        v = (a ^ word, b, c, d)
    v = (v[0], v[1], v[2] ^ 0xFF, v[3])
    for _ in range(4):
        v = _round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def _round(v: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    a, b, c, d = v
    a, c = (a + b) & _WORD, (c + d) & _WORD
    b, d = _turned(b, 13) ^ a, _turned(d, 16) ^ c
    a = (_turned(a, 32) + d) & _WORD
    c = (c + b) & _WORD
    return a, _turned(b, 17) ^ c, _turned(c, 32), _turned(d, 21) ^ a


def _turned(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _WORD


def refuse_dynamic(root: ImageRoot, source: Source, kind: str, commands: Iterable[UnitCommand]) -> None:
    """Raise UnsupportedUnitError for a unit with DynamicUser=yes if the starter would treat the unit in another way
    than systemd, or find another user ID. Also raise the error for a unit of the user `nobody`, whose directories are
    those of all such users.
    """
    if not is_dynamic(source):
        _refuse_nobody(root, source)
        return
    if unit_file(root, source.unit).stem.partition("@")[0] != source.names.prefix:
        raise _refusal(source, "DynamicUser=, and its file has another name")
    if kind == "dbus":
        raise _refusal(source, "DynamicUser= and Type=dbus, and the message bus asks systemd who the user is")
    if source.last("RuntimeDirectoryPreserve", "no") != "no" and source.all("RuntimeDirectory"):
        raise _refusal(source, "DynamicUser= and a RuntimeDirectory= that is preserved")
    if source.last("WorkingDirectory").removeprefix("-") == "~":
        raise _refusal(source, "DynamicUser= and WorkingDirectory=~, and such a user has no home")
    if any("+" in command.flags for command in commands):
        raise _refusal(
            source, "DynamicUser= and a command with `+`, which sees other directories than the unit"
        )
    others = other_services(root)
    if others:
        raise _refusal(
            source,
            f"DynamicUser=, and {SWITCH} also names {', '.join(sorted(others))}, which may know the user",
        )


def _refusal(source: Source, what: str) -> UnsupportedUnitError:
    return UnsupportedUnitError(f"{source.unit} cannot be started early: it has {what}", hint=_HINT)
