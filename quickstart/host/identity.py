"""Choose the user as whom a possibly hostile program runs. When QuickStart is root, no other program runs as
this user, and this user has none of our rights.

As root, QuickStart gives each such program an unprivileged user and group ID of its own, so that no program
can signal or trace another (credentials(7), ptrace(2)). A user namespace has only the IDs that are mapped
into it, and other namespaces of the same user may map the same IDs (user_namespaces(7)). So QuickStart claims
an ID while the program runs. When QuickStart is not root, the program keeps our user ID.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
# The capabilities (capability.h) that are needed to become another user, to give files away, and to give up
# capabilities permanently.
_CAP_CHOWN, _CAP_SETGID, _CAP_SETUID, _CAP_SETPCAP = 0, 6, 7, 8


@dataclass(frozen=True)
class Identity:
    """The identity of a program. ``uid`` and ``gid`` are None when the program keeps ours. ``groups`` are its
    supplementary groups, or None when the program keeps ours.

    The program has no capabilities. ``drop`` says that the capability bounding set is also emptied, which is
    necessary for a program that root starts.
    """

    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] | None = None
    drop: bool = False


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The facts that decide which identities this process can give to programs: its effective user and
    capabilities, and the IDs that its user namespace maps.

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
    """An identity for one program, which no other program has while the context lasts. The program must have
    ended before the context ends.

    ``wanted_group`` is a group that the program needs, such as the group of /dev/kvm. Raises HostLacksError
    when all IDs are claimed.
    """
    standing = _standing()
    # Whoever would keep us from starting programs would have to claim them all.
    first = secrets.randbelow(_OWN_COUNT)
    for number in range(first, first + _TRIES):
        identity = identity_of(standing, number, wanted_group)
        with ExitStack() as claims:
            if not all(_claim(claims, name) for name in _names(standing, identity)):
                continue
            yield identity
            return
    raise HostLacksError(
        "no user ID is free for a program that runs without rights",
        hint="`ss -xl` shows who has the sockets named @quickstart-uid; end what is not needed any more",
    )


def _names(standing: Standing, identity: Identity) -> Iterator[str]:
    """The names by which the IDs of ``identity`` are claimed (`_claim`). Each name contains the ID that
    stands for this user or group outside our user namespace, because other namespaces may map the same
    outside ID.
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

    An abstract UNIX socket is bound to the name (unix(7)). Only one process at a time can do this, and the
    claim ends with its process, however the process ends. So no directory that all processes of a user share
    is needed.
    """
    claim = claims.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        claim.bind(f"\0{name}")
    except OSError:
        return False
    return True


def identity_of(standing: Standing, number: int, wanted_group: int | None = None) -> Identity:
    """The identity that ``number`` selects (pure). Consecutive numbers select different IDs, as far as the
    namespace maps enough IDs.
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
    """The ID that ``number`` selects from the IDs that ``extents`` maps. The ID is not 0, and is probably
    unused. None when there is no such ID.
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
