"""Refuse an early start on an image with sockets that a process of any user could bind first.

In a stock boot, systemd binds the sockets of all started socket units before the first service runs (sockets.target). In
an early start, the application runs before systemd. A user of the machine, whose code the application runs, could then
listen where users of the machine expect another service, and for example take their passwords. Init binds the sockets
of the application itself, and of journald. Only root can bind a port below the first unprivileged port
(net.ipv4.ip_unprivileged_port_start), or a path in a directory of root.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from quickstart.errors import StartSetError, UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import assignments, unit_texts
from quickstart.inspect.unit.hidden import started_sockets
from quickstart.inspect.unit.linked import enabled_services
from quickstart.inspect.unit.sysctl import kernel_settings
from quickstart.parse.bounded import natural
from quickstart.parse.guestpaths import in_run, simplified
from quickstart.parse.printable import brief

_QUEUE = "ListenMessageQueue"
_LISTENS = ("ListenStream", "ListenDatagram", "ListenSequentialPacket", "ListenFIFO", _QUEUE)
# Directories in which every user may make a file. /var/lock and /var/run are links.
_OPEN_TO_ALL = ("/tmp/", "/var/tmp/", "/dev/shm/", "/run/lock/", "/var/lock/")  # noqa: S108
# Services that bind such an address themselves, or that talk as root to who has bound it.
_BINDS = {
    "iscsid.service": "@ISCSIADM_ABSTRACT_NAMESPACE",
    "open-iscsi.service": "@ISCSIADM_ABSTRACT_NAMESPACE",
    "multipathd.service": "@/org/kernel/linux/storage/multipathd",
}
_PORT_START = "net/ipv4/ip_unprivileged_port_start"
_USUAL_START, _LAST_PORT = 1024, 65535


def refuse_listeners(root: ImageRoot, unit: str, bound: Collection[str]) -> None:
    """Raise UnsupportedUnitError when a boot starts a unit that listens where any user could listen, too. These are
    socket units, and some services of storage. ``bound`` are the socket units whose sockets init binds before ``unit``
    starts.
    """
    late = sorted(started_sockets(root).difference(bound))
    listens = [(name, address) for name in late for address in _addresses(root, name)]
    listens += [(name, _BINDS[name]) for name in sorted(enabled_services(root).intersection(_BINDS))]
    if not listens:
        return
    start = _port_start(root)
    for name, address in listens:
        if is_open_to_all(address, start):
            raise UnsupportedUnitError(
                f"{unit} cannot be started early: {name} listens on {brief(address)}, and a process of any user could do"
                " so before systemd does",
                hint=f'disable {name} in the image, or set early = "never" in the profile',
            )


def _addresses(root: ImageRoot, name: str) -> Iterator[str]:
    try:
        assigned = assignments(unit_texts(root, name), "[Socket]")
    except (StartSetError, UnsupportedUnitError):
        # It has no file, so it is not started.
        return
    # Every user may make a message queue.
    yield from (
        f"@{value}" if key == _QUEUE else value for key, value in assigned if key in _LISTENS and value
    )


def _port_start(root: ImageRoot) -> int:
    """The first port that any user may bind. Files that init cannot read as systemd does count, too."""
    values = [each.value for each in kernel_settings(root, with_hidden=True) if each.key == _PORT_START]
    return min((natural(value, _LAST_PORT) or 0 for value in values), default=_USUAL_START)


def is_open_to_all(address: str, port_start: int) -> bool:
    """Whether a process of any user could bind ``address``, a value of ListenStream= (systemd.socket(5)), when nobody
    has bound it yet. ``port_start`` is the first port that any user may bind.
    """
    if address.startswith(("/", "%t/")):
        if ".." in address.split("/"):
            return True
        return f"{in_run(simplified(address.replace('%t/', '/run/', 1)))}/".startswith(_OPEN_TO_ALL)
    # A name that only looks like a port, of an abstract socket.
    port = None if address.startswith("@") else natural(address.rpartition(":")[2], _LAST_PORT)
    return port is None or port >= port_start
