"""Read the socket units that pass their sockets to a unit (systemd.socket(5)). For an early start, init binds
these sockets in place of systemd (docs/internals/sockets.md).

The build refuses a socket unit when init could not bind the unit's sockets exactly as systemd does.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.conditions import condition_records
from quickstart.inspect.unit.fatal import refuse_fatal
from quickstart.inspect.unit.files import (
    Directives,
    assignments,
    directives,
    emptied,
    unit_texts,
)
from quickstart.inspect.unit.lines import first_fault
from quickstart.inspect.unit.model import ListeningSocket, UnitStart
from quickstart.inspect.unit.source import Source
from quickstart.inspect.unit.values import BadValueError, boolean, file_mode, integer, size_bytes, span_us
from quickstart.inspect.unit.words import Names
from quickstart.model import Readiness
from quickstart.model.words import ReadyKind
from quickstart.parse.bounded import natural
from quickstart.parse.printable import brief

Record = tuple[str, ...]

# Each socket takes a descriptor from 3 on in PID 1. The starter uses numbers from 64 on for itself.
MOST_SOCKETS = 16
_KINDS = {
    "ListenStream": "stream",
    "ListenDatagram": "datagram",
    "ListenSequentialPacket": "sequential-packet",
}
# unix(7): sun_path has 108 bytes with the NUL at its end, or at the beginning of an abstract name.
_MOST_ADDRESS_BYTES = 107
# One word for init's shell, without characters of patterns.
_PATH = re.compile(r"(?:/[A-Za-z0-9_@%+=:,-][A-Za-z0-9._@%+=:,-]*)+")
_ABSTRACT = re.compile(r"@[A-Za-z0-9._@%+=:,/-]+")
# systemd empties or mounts the others later, and would hide the socket.
_RUN = PurePosixPath("/run")
_NOT_OURS = ("/run/lock", "/run/quickstart", "/run/user")
# The default of Debian's systemd 252 and 257 (socket_init in socket.c). The kernel's own limit is net.core.somaxconn.
_BACKLOG = "2147483647"
_UINT32_MAX = (1 << 32) - 1
_INT32_MAX = (1 << 31) - 1

# The kernel's numbers for levels and options (asm-generic/socket.h, linux/in.h, linux/in6.h, linux/tcp.h).
_SOCKET, _IP, _TCP, _IPV6 = "1", "0", "6", "41"
_FLAGS = {
    "KeepAlive": (_SOCKET, "9"),
    "Broadcast": (_SOCKET, "6"),
    "PassCredentials": (_SOCKET, "16"),
    "PassSecurity": (_SOCKET, "34"),
    "ReusePort": (_SOCKET, "15"),
    "NoDelay": (_TCP, "1"),
}
_NUMBERS = {
    "Priority": (_SOCKET, "12"),
    "Mark": (_SOCKET, "36"),
    "KeepAliveProbes": (_TCP, "6"),
}
_SPANS = {
    "KeepAliveTimeSec": (_TCP, "4"),
    "KeepAliveIntervalSec": (_TCP, "5"),
    "DeferAcceptSec": (_TCP, "9"),
}
# These options also allow sizes beyond the kernel's usual limit, as with systemd (SO_SNDBUFFORCE, SO_RCVBUFFORCE).
_SIZES = {"SendBuffer": (_SOCKET, "32"), "ReceiveBuffer": (_SOCKET, "33")}
# SO_TIMESTAMP and SO_TIMESTAMPNS.
_TIMESTAMPS = {
    **dict.fromkeys(("us", "usec", "µs"), (_SOCKET, "29")),
    **dict.fromkeys(("ns", "nsec"), (_SOCKET, "35")),
}
_FREE_BIND = {"inet": (_IP, "15"), "inet6": (_IPV6, "78")}
_ONLY_IPV6 = (_IPV6, "26")
_FILE = ("SocketUser", "SocketGroup", "SocketMode", "DirectoryMode")
# systemd's own work after the hand-off, or read elsewhere.
_LATER = (
    *("Accept", "Service", "FileDescriptorName", "Backlog", "BindIPv6Only", "FreeBind", "RemoveOnStop"),
    *("MaxConnections", "MaxConnectionsPerSource", "TriggerLimitIntervalSec", "TriggerLimitBurst"),
    *("PollLimitIntervalSec", "PollLimitBurst", "FlushPending", "TimeoutSec", "Timestamping"),
)
# An empty assignment takes back the values of these directives only (systemd.socket(5)). systemd ignores any other.
_RESET = frozenset((*_KINDS, "SocketUser", "SocketGroup", "Symlinks", "FileDescriptorName"))
_KNOWN = frozenset((*_KINDS, *_FLAGS, *_NUMBERS, *_SPANS, *_SIZES, *_FILE, *_LATER))


@dataclass(frozen=True)
class _Unit:
    """The name of a socket unit, and the values of the directives in its [Socket] section."""

    name: str
    found: Directives

    def refusal(self, name: str, value: str, why: object) -> UnsupportedUnitError:
        return UnsupportedUnitError(
            f"{self.name} cannot be bound early: {name}={brief(value)} {why}",
            hint="disable the socket unit in the image, if the service can listen by itself",
        )

    def last(self, name: str, otherwise: str = "") -> str:
        return self.found.get(name, (otherwise,))[-1]

    def flag(self, name: str) -> bool:
        try:
            return boolean(self.last(name, "no"))
        except BadValueError as error:
            raise self.refusal(name, self.last(name), error) from error


def sockets_of(root: ImageRoot, source: Source, socket_units: Iterable[str]) -> tuple[ListeningSocket, ...]:
    """The sockets of all ``socket_units`` for the unit of ``source``. Raises UnsupportedUnitError when init could not
    bind these sockets or pass them to the unit.
    """
    found: list[ListeningSocket] = []
    for name in socket_units:
        found += listening_sockets(root, name)
        if len(found) > MOST_SOCKETS:
            raise UnsupportedUnitError(
                f"{source.unit} cannot be started early: it gets {len(found)} sockets, at most {MOST_SOCKETS} can be bound"
            )
    if found and source.flag("NonBlocking"):
        raise UnsupportedUnitError(
            f"{source.unit} cannot be started early: it has NonBlocking=yes with sockets"
        )
    return tuple(found)


def listening_sockets(
    root: ImageRoot, name: str, read_elsewhere: frozenset[str] = frozenset()
) -> tuple[ListeningSocket, ...]:
    """The sockets of the socket unit ``name``, in the order in which systemd passes them to the service.
    ``read_elsewhere`` are directives that the caller itself reads, so this function accepts them.

    Raises UnsupportedUnitError for a setting that init cannot apply as systemd does.
    """
    texts = unit_texts(root, name)
    for fault in filter(None, map(first_fault, texts)):
        raise UnsupportedUnitError(f"{name} cannot be bound early: it has {fault}")
    assigned = assignments(texts, "[Socket]")
    unit = _Unit(name, directives(assigned))
    refuse_fatal(name, assigned)
    for value in (value for key, value in assigned if key == "Accept"):
        try:
            boolean(value)
        except BadValueError as error:
            raise unit.refusal("Accept", value, error) from error
    if lost := emptied(assigned, frozenset(name for name, _ in assigned) - _RESET):
        raise UnsupportedUnitError(
            f"{name} cannot be bound early: it has an empty {lost[0]}= after a value, which takes nothing back",
            hint="give the value that is meant, or remove the empty line",
        )
    if unknown := sorted(set(unit.found) - _KNOWN - read_elsewhere):
        raise UnsupportedUnitError(
            f"{name} cannot be bound early: it has {', '.join(unknown)}",
            hint="disable the socket unit in the image, if the service can listen by itself",
        )
    listened = tuple(_listened(assigned))
    # This is checked before anything is looked up for the sockets.
    if len(listened) > MOST_SOCKETS:
        raise UnsupportedUnitError(
            f"{name} cannot be bound early: it has {len(listened)} sockets, at most {MOST_SOCKETS} can be bound"
        )
    options, names = _options(unit), Names(name)
    return tuple(_socket(root, unit, kind, names.expand(value), options) for kind, value in listened)


def refuse_bound_port(unit: UnitStart, ready: Readiness) -> None:
    """Raise UnsupportedUnitError for a readiness request that only connects to a port, when a socket of ``unit`` or of
    its companions has this port. Companions are the units that start early together with ``unit``. Init listens on this
    port before the service runs, so such a request would succeed before the service is ready.
    """
    for socket in (socket for each in unit.all_units for socket in each.sockets):
        if ready.kind is ReadyKind.TCP and socket.port == ready.port:
            raise UnsupportedUnitError(
                f"tcp:{ready.port} says nothing of {unit.unit}: {socket.unit} listens on this port before the service runs",
                hint="an http: or exec: request is answered by the service itself",
            )


def socket_conditions(root: ImageRoot, name: str) -> tuple[Record, ...]:
    """The conditions of the socket unit ``name``, as records for the starter. Raises UnsupportedUnitError for a
    triggering condition (`Condition…=|…`). Of the triggering conditions of a unit, at least one must be true. The
    starter combines the conditions of all units, so it could not tell which of these conditions belong to this unit.
    """
    assigned = assignments(unit_texts(root, name), "[Unit]")
    for key, value in assigned:
        if key.startswith(("Condition", "Assert")) and value.startswith("|"):
            raise UnsupportedUnitError(f"{name} cannot be bound early: it has {key}={brief(value)}")
    return condition_records(name, assigned)


def _listened(assigned: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The directive and address of each socket. An empty assignment to any Listen…= directive clears all
    earlier sockets (systemd.socket(5), ListenStream=).
    """
    found: list[tuple[str, str]] = []
    for name, value in assigned:
        if name in _KINDS and not value:
            found.clear()
        elif name in _KINDS:
            found.append((name, value))
    yield from found


def _options(unit: _Unit) -> tuple[Record, ...]:
    """The `socket-option LEVEL NUMBER VALUE` records, which apply to all sockets of the socket unit."""

    def converted() -> Iterator[Record]:
        for name, value in ((name, unit.last(name)) for name in sorted(unit.found)):
            try:
                if name in _FLAGS and boolean(value):
                    yield *_FLAGS[name], "1"
                elif name in _NUMBERS:
                    yield *_NUMBERS[name], integer(value, 0, _INT32_MAX)
                elif name in _SPANS:
                    yield *_SPANS[name], str((span_us(value) or 0) // 10**6)
                elif name == "Timestamping" and value in _TIMESTAMPS:
                    yield *_TIMESTAMPS[value], "1"
                elif name == "Timestamping" and value != "off":
                    raise unit.refusal(name, value, "is not known")
                elif name in _SIZES:
                    yield *_SIZES[name], integer(size_bytes(value), 1, _INT32_MAX)
            except BadValueError as error:
                raise unit.refusal(name, value, error) from error

    return tuple(("socket-option", *option) for option in converted())


def _socket(
    root: ImageRoot, unit: _Unit, kind: str, value: str, options: tuple[Record, ...]
) -> ListeningSocket:
    """The socket of one Listen…= directive. ``kind`` is the directive's name, and ``value`` is the address
    (systemd.socket(5)).
    """
    name = Names(unit.name).expand(unit.last("FileDescriptorName")) or unit.name
    if not re.fullmatch(r"[!-9;-~]{1,255}", name):
        raise unit.refusal("FileDescriptorName", name, "is no name of a descriptor")
    if value.startswith(("/", "@")):
        family, words = _unix(root, unit, kind, value)
        port, own_options = 0, options
    else:
        family, address, port = _internet(unit, kind, value)
        words, own_options = (address, str(port)), (*_address_options(unit, family), *options)
    record = ("socket", _KINDS[kind], name, _backlog(unit), family, *words)
    path = PurePosixPath(words[0]) if family == "unix" else None
    return ListeningSocket(
        unit=unit.name, kind=_KINDS[kind], path=path, port=port, records=(record, *own_options)
    )


def _backlog(unit: _Unit) -> str:
    value = unit.last("Backlog", _BACKLOG)
    number = natural(value, _UINT32_MAX)
    if number is None or value != str(number):
        raise unit.refusal("Backlog", value, "is no number of connections")
    return str(min(number, _INT32_MAX))


def _unix(root: ImageRoot, unit: _Unit, kind: str, value: str) -> tuple[str, tuple[str, ...]]:
    """The family and the words of the `socket` record for a UNIX socket. The family `abstract` has one word, the
    socket's name. The family `unix` has five words: the socket's path, the mode of the socket, the mode of new
    directories above it, the socket's owner and the socket's group (`-` for root).
    """
    if len(value.encode("utf-8", "surrogateescape")) > _MOST_ADDRESS_BYTES:
        raise unit.refusal(kind, value, f"has more than {_MOST_ADDRESS_BYTES} bytes")
    if value.startswith("@"):
        if not _ABSTRACT.fullmatch(value):
            raise unit.refusal(kind, value, "is no plain name")
        return "abstract", (value[1:],)
    if not _PATH.fullmatch(value):
        raise unit.refusal(kind, value, "is no plain path")
    path = PurePosixPath(value)
    if path.is_relative_to("/var/run"):
        path = _RUN / path.relative_to("/var/run")
    if not path.is_relative_to(_RUN) or any(path.is_relative_to(each) for each in _NOT_OURS):
        raise unit.refusal(kind, value, "is not below /run, or below a directory that systemd makes later")
    modes = []
    for name, default in (("SocketMode", "0666"), ("DirectoryMode", "0755")):
        try:
            modes.append(file_mode(unit.last(name, default)))
        except BadValueError as error:
            raise unit.refusal(name, unit.last(name), error) from error
    return "unix", (str(path), *modes, *_owners(root, unit))


def _owners(root: ImageRoot, unit: _Unit) -> Iterator[str]:
    for name, file in (("SocketUser", "/etc/passwd"), ("SocketGroup", "/etc/group")):
        value = unit.last(name)
        place = root.resolve(PurePosixPath(file)).canonical if value else None
        rows = root.read_text(place).splitlines() if place is not None else []
        if value and not any(value == row.partition(":")[0] for row in rows):
            raise unit.refusal(name, value, f"is not in the image's {file}")
        yield value or "-"


def _internet(unit: _Unit, kind: str, value: str) -> tuple[str, str, int]:
    """The family, the address and the port of an IP socket. Without FreeBind=, the function accepts only the wildcard
    and loopback addresses, because any other address may not exist before the machine has its DHCP lease.
    """
    host, colon, last = value.rpartition(":")
    port = natural(last, 65535)
    if not port or last != str(port):
        raise unit.refusal(kind, value, "is no address that init could bind")
    if kind == "ListenSequentialPacket":
        raise unit.refusal(kind, value, "needs a protocol that init does not load")
    if not colon:
        return "inet6", "::", port
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        raise unit.refusal(kind, value, "is no address that init could bind") from None
    is_bracketed = host.startswith("[") and host.endswith("]")
    if (address.version == 6) is not is_bracketed or "%" in host:
        raise unit.refusal(kind, value, "is no address that init could bind")
    if not (address.is_unspecified or address.is_loopback or unit.flag("FreeBind")):
        raise unit.refusal(kind, value, "may not exist yet when init binds it")
    return "inet" if address.version == 4 else "inet6", str(address), port


def _address_options(unit: _Unit, family: str) -> Iterator[Record]:
    if unit.flag("FreeBind"):
        yield "socket-option", *_FREE_BIND[family], "1"
    value = unit.last("BindIPv6Only", "default")
    if family != "inet6" or value == "default":
        return
    # systemd also accepts a boolean, which is not in the manual page
    # (socket_address_bind_ipv6_only_or_bool_from_string).
    is_only = value == "ipv6-only" if value in ("both", "ipv6-only") else unit.flag("BindIPv6Only")
    yield "socket-option", *_ONLY_IPV6, "1" if is_only else "0"
