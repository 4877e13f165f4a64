"""Find the local sockets of other processes to which a unit's programs connect. This module has no side effects.

Examples are the sockets of the message bus, of systemd and of udev. With an early start, our init starts the unit
before systemd runs, and no process listens on these sockets yet. A connection to such a socket shows that a script
calls systemctl, hostnamectl or busctl, or that a library uses D-Bus.

strace does not record sendmsg(2). Programs call sendmsg(2) with an address only for the notify socket and for
journald's sockets, and these sockets also exist in an early start.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from quickstart.model.started import Peer
from quickstart.parse.bounded import PATH_MAX
from quickstart.parse.guestpaths import in_run
from quickstart.trace.place import plain
from quickstart.trace.strace import Call, unescape

_FAMILY = "{sa_family=AF_UNIX"
# unix(7), as strace prints it: a path, or @ and an abstract name.
_ADDRESS = rf"{re.escape(_FAMILY)}, sun_path=(@?)\"((?>(?:[^\"\\]++|\\.)*))\"\}}, [0-9]+"
_NAMED = re.compile(rf"[0-9]+(?:<[^>]*+>)?, {_ADDRESS}", re.DOTALL)
_SENT_TO = re.compile(_ADDRESS, re.DOTALL)
# A socket with a long queue, whose other end has been found (unix(7) has no EINPROGRESS).
_CONNECTED = (None, "EAGAIN")


class Bound(NamedTuple):
    """The process ``number`` has bound a socket to ``path``. A ``path`` that begins with @ is an abstract name."""

    line: int
    number: int
    path: str


class Met(NamedTuple):
    """The process ``number`` has connected or sent to the socket at ``path``. A ``path`` that begins with @ is an
    abstract name.
    """

    line: int
    number: int
    path: str


def local_socket(call: Call, number: int, lookup: Callable[[str], str]) -> Bound | Met | None:
    """The item for a system call that binds, connects or sends to a local socket with a name. The result is None for
    any other call. ``number`` is the number of the process. ``lookup`` turns a path that the process uses into a path
    in the image (see Place.lookup in place.py).
    """
    if call.name == "sendto":
        at = call.arguments.rfind(_FAMILY)
        named = _SENT_TO.fullmatch(call.arguments, at) if at >= 0 else None
    elif call.name in ("bind", "connect"):
        named = _NAMED.fullmatch(call.arguments)
    else:
        named = None
    # The kernel takes up to 108 bytes.
    if named is None or not named[2] or len(named[2]) >= PATH_MAX:
        return None
    name = unescape(named[2])
    path = f"@{name}" if named[1] else in_run(plain(lookup(name)))
    if call.name == "bind":
        return Bound(call.line, number, path) if call.error is None else None
    return Met(call.line, number, path) if call.error in _CONNECTED else None


@dataclass
class Peers:
    """Collects the sockets that processes outside of the traced units have bound, and the units' connections to these
    sockets. ``others`` are the names of the sockets that were last bound by a process outside of the units. ``note`` is
    called with the name of each socket and connection that is added.
    """

    note: Callable[[str], None]
    others: set[str] = field(default_factory=set)
    met: dict[Peer, None] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.others) + len(self.met)

    def bound(self, path: str, *, by_unit: bool) -> None:
        if by_unit:
            self.others.discard(path)
        elif path not in self.others:
            self.note(path)
            self.others.add(path)

    def connected(self, peer: Peer) -> None:
        if peer.path in self.others and peer not in self.met:
            self.note(peer.path)
            self.met[peer] = None
