"""Which user a program runs as that may be turned against us: one that nobody else is, without any right of ours.

Root hands what it starts to an unprivileged user: user and group IDs of its own for each program, so that none of them can
signal or trace another (credentials(7), ptrace(2)). In a user namespace only the mapped IDs can be had (user_namespaces(7)), and
other namespaces of that user have the same ones: so an ID is claimed for as long as its program lives. Who is not root stays who
he is.
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

# Beyond what systemd gives to containers, within 31 bits (UIDS-GIDS of systemd): nobody has these.
_OWN_BASE, _OWN_COUNT = 0x7000_0000, 0x1000_0000
# In a namespace that maps 65536 IDs: above users of a distribution, below those that systemd makes up (DynamicUser=).
_LOW_BASE, _LOW_END = 40_000, 61_184
# So many IDs in a row are tried: all of a namespace that maps 65536.
_TRIES = _LOW_END - _LOW_BASE
# capability.h: what it takes to become another user, to give files away, and to give up capabilities for good.
_CAP_CHOWN, _CAP_SETGID, _CAP_SETUID, _CAP_SETPCAP = 0, 6, 7, 8

# As which a user namespace shows a group that it does not map; such a one can be kept, not asked for.
_OVERFLOW = 65534

# One row of /proc/PID/uid_map: the first ID inside, the first outside, how many (user_namespaces(7)).
Extent = tuple[int, int, int]


@dataclass(frozen=True)
class Identity:
    """Who a program is. ``uid`` and ``gid`` are None where it stays who we are; ``groups`` are its supplementary ones, None: ours.

    It has no capability; ``drop`` says that they can be taken out of the bounding set, too, which a program of root's needs.
    """

    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] | None = None
    drop: bool = False


@dataclass(frozen=True)
class Standing:
    """What this process may do about identities: its effective user and capabilities, and what its user namespace maps.

    ``setgroups`` says whether supplementary groups can be set in it.
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
    """The identity for one program, which nobody else has while the context lasts: it has to have ended before.

    ``wanted_group`` is a group that it needs, such as that of /dev/kvm. Raises HostLacksError when all IDs are claimed.
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
    """What stands for its IDs as they are outside of our namespace, where other namespaces may map them, too."""
    for kind, extents, own in (
        ("uid", standing.uid_map, identity.uid),
        ("gid", standing.gid_map, identity.gid),
    ):
        for first, outside, count in extents:
            if own is not None and first <= own < first + count:
                yield f"quickstart-{kind}-{outside + own - first}"


def _claim(claims: ExitStack, name: str) -> bool:
    """Whether ``name`` is ours until ``claims`` are closed: that of a UNIX socket, no file (unix(7)), which one can have at a time.

    It is gone with whoever has it, however he ends, and needs no directory that all processes of a user agree on.
    """
    claim = claims.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        claim.bind(f"\0{name}")
    except OSError:
        return False
    return True


def identity_of(standing: Standing, number: int, wanted_group: int | None = None) -> Identity:
    """The identity of the program with that number (pure); numbers near to each other get IDs that differ."""
    drop = standing.has(_CAP_SETPCAP)
    if standing.euid != 0 or not standing.has(_CAP_CHOWN, _CAP_SETUID, _CAP_SETGID):
        return Identity(drop=drop)
    uid, gid = _free_id(standing.uid_map, number), _free_id(standing.gid_map, number)
    if uid is None or gid is None:
        return Identity(drop=drop)
    groups: tuple[int, ...] | None = None
    if wanted_group is None:
        groups = () if standing.setgroups else None
    elif standing.setgroups and wanted_group != _OVERFLOW and _is_mapped(standing.gid_map, wanted_group):
        groups = (wanted_group,)
    return Identity(uid, gid, groups, drop)


def _is_mapped(extents: Sequence[Extent], number: int) -> bool:
    return any(first <= number < first + count for first, _, count in extents)


def _free_id(extents: Sequence[Extent], number: int) -> int | None:
    """An ID beside 0 that is mapped and that nobody is likely to have; None when the map has none."""
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
        uid_map=_extents(Path("/proc/self/uid_map").read_text()),
        gid_map=_extents(Path("/proc/self/gid_map").read_text()),
        setgroups=not setgroups.exists() or setgroups.read_text().strip() == "allow",
    )


def _extents(text: str) -> tuple[Extent, ...]:
    rows = (tuple(map(int, line.split())) for line in text.splitlines())
    return tuple((row[0], row[1], row[2]) for row in rows if len(row) == 3)
