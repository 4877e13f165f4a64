"""Choose the user ID with which a possibly hostile program runs. When QuickStart is root, no other program runs with
this user ID, and the user ID gives the program none of our rights.

As root, QuickStart gives each such program an unprivileged user and group ID of its own, so that no program can signal
or trace another program (credentials(7), ptrace(2)). A user namespace has only the IDs that are mapped into it, and
other namespaces of the same user may map the same IDs (user_namespaces(7)). So QuickStart claims an ID while the
program runs. When QuickStart is not root, the program keeps our user ID.
"""

from __future__ import annotations

import functools
import os
import secrets
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from quickstart.errors import HostLacksError
from quickstart.host.owners import OVERFLOW, Extent, mapped

# These IDs are above those that systemd gives to containers, and have 31 bits (UIDS-GIDS of systemd), so
# nobody uses them.
_OWN_BASE, _OWN_COUNT = 0x7000_0000, 0x1000_0000
# In a namespace that maps 65536 IDs, these IDs are above a distribution's users and below the users that
# systemd makes up (DynamicUser=).
_LOW_BASE, _LOW_END = 40_000, 61_184
# This many IDs are tried one after the other, which are all IDs of this range.
_TRIES = _LOW_END - _LOW_BASE
# This many IDs are tried before we ask who holds the claims.
_BELIEVED = 64
# struct ucred of SO_PEERCRED: process, user, group.
_PEER = struct.Struct("3i")
# The capabilities (capability.h) that are needed to become another user, to give files away, and to give up
# capabilities permanently.
_CAP_CHOWN, _CAP_SETGID, _CAP_SETUID, _CAP_SETPCAP = 0, 6, 7, 8


@dataclass(frozen=True)
class Identity:
    """The identity of a program. ``uid`` and ``gid`` are None when the program keeps our user and group. ``groups`` are
    the program's supplementary groups, or None when the program keeps our supplementary groups.

    The program has no capabilities. ``drop`` says that the capability bounding set is also emptied, which is necessary
    for a program that root starts.
    """

    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] | None = None
    drop: bool = False


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The facts that decide which identities this process can give to programs. These are the effective user and the
    capabilities of the process, and the IDs that the user namespace of the process maps.

    ``setgroups`` says whether supplementary groups can be set in the namespace.
    """

    euid: int
    capabilities: int
    uid_map: tuple[Extent, ...]
    gid_map: tuple[Extent, ...]
    setgroups: bool

    def has(self, *capabilities: int) -> bool:
        return all(self.capabilities >> each & 1 for each in capabilities)


@contextmanager
def unprivileged(wanted_group: int | None = None) -> Iterator[Identity]:
    """A context manager that gives an identity for one program. No other program has this identity during the ``with``
    block. The program must have ended before the block ends.

    ``wanted_group`` is a group that the program needs, such as the group of /dev/kvm. Raises HostLacksError when all
    IDs are claimed.

    In a small namespace, another user can claim all IDs. So after many IDs in a row were claimed, this function ignores
    the claims of other users, and takes an ID that no process has now. In this case, two programs that QuickStart
    starts at the same moment can get the same ID, but only if QuickStart happens to choose the same ID for both.
    """
    standing = _standing()
    # In a small namespace, the same IDs come again. The answers are cached, because a process that is asked twice would
    # have to keep two connections.
    is_ours = functools.cache(_is_ours)
    in_use = functools.cache(_in_use)
    first = secrets.randbelow(_OWN_COUNT)
    for number in range(first, first + _TRIES):
        identity = identity_of(standing, number, wanted_group)
        with ExitStack() as claims:
            taken = [name for name in _names(standing, identity) if not _claim(claims, name)]
            if taken:
                if number < first + _BELIEVED or any(map(is_ours, taken)):
                    continue
                if {("Uid", identity.uid), ("Gid", identity.gid)} & in_use():
                    continue
            yield identity
            return
    raise HostLacksError(
        "no user ID is free for a program that runs without rights",
        hint="`ss -xl` shows who has the sockets named @quickstart-uid; end what is not needed any more",
    )


def _names(standing: Standing, identity: Identity) -> Iterator[str]:
    """The names by which the IDs of ``identity`` are claimed (`_claim`). Each name contains the ID of the user or group
    as it is outside of our user namespace, because other namespaces may map the same outside ID.
    """
    for kind, extents, own in (
        ("uid", standing.uid_map, identity.uid),
        ("gid", standing.gid_map, identity.gid),
    ):
        for first, outside, count in extents:
            if own is not None and first <= own < first + count:
                yield f"quickstart-{kind}-{outside + own - first}"


def _claim(claims: ExitStack, name: str) -> bool:
    """Claim ``name`` until ``claims`` is closed. Return False when another process has claimed the name.

    The claim is an abstract UNIX socket that is bound to the name (unix(7)). Only one process at a time can bind a
    socket to the name, and the claim ends when its process ends, for whatever reason. So the processes of a user need
    no common directory for the claims.
    """
    claim = claims.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        claim.bind(f"\0{name}")
        # `_is_ours` connects to the socket to find out whose it is. Nobody accepts these connections.
        claim.listen(socket.SOMAXCONN)
    except OSError:
        return False
    return True


def _is_ours(name: str) -> bool:
    """Whether the process that has claimed ``name`` belongs to our user (SO_PEERCRED of unix(7))."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.setblocking(False)
        try:
            asked.connect(f"\0{name}")
            said = asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        except OSError:
            return False
    _, uid, _ = _PEER.unpack(said)
    return bool(uid == os.geteuid())


def _in_use() -> frozenset[tuple[str, int]]:
    """The user and group IDs of all processes. Each element is (`Uid` or `Gid`, ID)."""
    found: set[tuple[str, int]] = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        # Processes end while we look.
        with suppress(OSError):
            for line in status.read_text(errors="replace").splitlines():
                key, _, rest = line.partition(":")
                if key in ("Uid", "Gid"):
                    found.update((key, int(word)) for word in rest.split())
    return frozenset(found)


def identity_of(standing: Standing, number: int, wanted_group: int | None = None) -> Identity:
    """The identity that ``number`` selects (pure). Consecutive numbers select different IDs if the namespace maps
    enough IDs.
    """
    drop = standing.has(_CAP_SETPCAP)
    if standing.euid != 0 or not standing.has(_CAP_CHOWN, _CAP_SETUID, _CAP_SETGID):
        return Identity(drop=drop)
    uid, gid = _free_id(standing.uid_map, number), _free_id(standing.gid_map, number)
    if uid is None or gid is None:
        return Identity(drop=drop)
    groups: tuple[int, ...] | None = None
    if wanted_group is None:
        groups = () if standing.setgroups else None
    elif standing.setgroups and wanted_group != OVERFLOW and _is_mapped(standing.gid_map, wanted_group):
        groups = (wanted_group,)
    return Identity(uid, gid, groups, drop)


def _is_mapped(extents: Sequence[Extent], number: int) -> bool:
    return any(first <= number < first + count for first, _, count in extents)


def _free_id(extents: Sequence[Extent], number: int) -> int | None:
    """The ID that ``number`` selects from the IDs that ``extents`` maps. The ID is not 0, and probably no other program
    has it. The result is None when there is no such ID.
    """
    own = _OWN_BASE + number % _OWN_COUNT
    if _is_mapped(extents, _OWN_BASE) and _is_mapped(extents, own):
        return own
    first, _, count = max(extents, key=lambda each: each[0] + each[2], default=(0, 0, 0))
    end = min(first + count, _LOW_END)
    begin = max(first, 1, _LOW_BASE if end > _LOW_BASE else end // 2)
    return begin + number % (end - begin) if begin < end else None


def _standing() -> Standing:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    setgroups = Path("/proc/self/setgroups")
    return Standing(
        euid=os.geteuid(),
        capabilities=int(status["CapEff"], 16),
        uid_map=mapped("uid"),
        gid_map=mapped("gid"),
        setgroups=not setgroups.exists() or setgroups.read_text().strip() == "allow",
    )
