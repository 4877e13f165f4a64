"""Parse the reports that a booting guest sends about a unit, and draw conclusions from the reports (pure)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quickstart.model import Readiness
from quickstart.model.words import ReadyKind
from quickstart.parse.bounded import natural

_PROPERTIES = ("LoadState", "ActiveState", "SubState", "Result", "NRestarts", "UnitFileState")
_LISTEN = "0A"
# Local address and port, those of the other side, state, three numbers, user and timeout, and then the inode.
_SOCKET = re.compile(
    r"\s*[0-9]+: ([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} (\w\w)"
    r"(?: \S+ \S+ \S+ +[0-9]+ +[0-9]+ ([0-9]{1,18})(?: |$))?"
)
_LOOPBACK = re.compile(r"127\.|::1$|::ffff:127\.")
# This many looks in a row must give the same result.
_SURE = 3
_RESTARTS = 3
_JOURNAL_LINES = 15
_LINE_CHARACTERS = 1000
# The limit for a message or a README.
_LISTENERS = 20
# The limit for the answer to one look. An honest answer has some kilobytes, and 150 bytes for each connection.
SAID_BYTES = 4 << 20
# This many looks are kept. A boot has any number of looks, and a guest decides how long each of them is.
MOST_LOOKS = _SURE
# The limit for a property, and for the system's state.
_VALUE_CHARACTERS = 256


@dataclass(frozen=True, kw_only=True)
class Look:
    """One report from the guest. ``unit`` has systemd's properties of the unit. ``system`` is the output of
    `systemctl is-system-running`.

    ``listeners`` are the pairs (address, port) of all TCP listeners over IPv4 and IPv6. ``answer`` is the HTTP status
    of the answer to a request from this host, or 0 if there was no answer.
    """

    unit: Mapping[str, str]
    system: str
    listeners: tuple[tuple[str, int], ...]
    memory_kib: int
    available_kib: int
    journal: tuple[str, ...]
    answer: int = 0

    @property
    def used_mib(self) -> int:
        return (self.memory_kib - self.available_kib) // 1024


def look_command(unit: str) -> str:
    """A shell command that reports the state of the unit in the guest. ``parse_look`` reads its output. The command
    changes nothing in the guest.
    """
    name = shlex.quote(unit)
    properties = ",".join(_PROPERTIES)
    return (
        f"echo '== unit'; systemctl show --no-pager -p {properties} -- {name} 2>/dev/null\n"
        "echo '== system'; systemctl is-system-running 2>/dev/null\n"
        "echo '== tcp'; cat /proc/net/tcp /proc/net/tcp6 2>/dev/null\n"
        "echo '== memory'; cat /proc/meminfo\n"
        f"echo '== journal'; journalctl -q --no-pager -o cat -n {_JOURNAL_LINES} -u {name} 2>/dev/null\n"
        "echo '== end'"
    )


def parse_look(text: str, answer: int = 0) -> Look:
    """The report in ``text``, which is the output of the command of ``look_command``. ``answer`` becomes the report's
    field ``answer``. Early in the boot, some facts do not exist yet, and their fields are empty.
    """
    parts: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if line.startswith("== "):
            current = parts.setdefault(line[3:], [])
        else:
            current.append(line)
    said_of_unit = (line.partition("=") for line in parts.get("unit", ()))
    # A guest may send anything, and looks are kept. So only the requested properties are kept.
    unit = {name: value[:_VALUE_CHARACTERS] for name, _, value in said_of_unit if name in _PROPERTIES}
    memory = dict(re.findall(r"^(\w+): *([0-9]{1,18}) kB", "\n".join(parts.get("memory", ())), re.MULTILINE))
    said = parts.get("journal", ())[-_JOURNAL_LINES:]
    listeners = {found for line in parts.get("tcp", ()) if (found := _listener(line))}
    return Look(
        unit=unit,
        system=" ".join(parts.get("system", ())).strip()[:_VALUE_CHARACTERS],
        listeners=tuple(sorted(listeners)),
        memory_kib=int(memory.get("MemTotal", 0)),
        available_kib=int(memory.get("MemAvailable", 0)),
        # A guest may send more than it was asked for, and all of it would be in a message.
        journal=tuple(line[:_LINE_CHARACTERS] for line in said if line.strip()),
        answer=answer,
    )


@dataclass(frozen=True, kw_only=True)
class Socket:
    """A line of /proc/net/tcp, tcp6, udp or udp6 (proc(5)). ``state`` and ``inode`` are spelled as the kernel
    writes them.
    """

    address: str
    port: int
    state: str
    inode: str


def parse_socket(line: str) -> Socket | None:
    """The socket in a line of /proc/net/tcp, tcp6, udp or udp6. The result is None for any other line."""
    match = _SOCKET.match(line)
    if match is None:
        return None
    return Socket(address=_address(match[1]), port=int(match[2], 16), state=match[3], inode=match[4] or "")


def _listener(line: str) -> tuple[str, int] | None:
    found = parse_socket(line)
    return (found.address, found.port) if found is not None and found.state == _LISTEN else None


def _address(digits: str) -> str:
    """The IP address for the hexadecimal digits in /proc/net/tcp, which are 32-bit words in the machine's
    byte order (little-endian).
    """
    data = b"".join(bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8))
    if len(data) == 4:
        return ".".join(str(byte) for byte in data)
    if data == bytes(16):
        return "::"
    if data == bytes(15) + b"\1":
        return "::1"
    if data.startswith(bytes(10) + b"\xff\xff"):
        return "::ffff:" + ".".join(str(byte) for byte in data[12:])
    return ":".join(data[at : at + 2].hex() for at in range(0, 16, 2))


def is_loopback(address: str) -> bool:
    return _LOOPBACK.match(address) is not None


def listens_inside_only(looks: Sequence[Look], ready: Readiness) -> bool:
    """Whether the last reports show that the port of ``ready`` can be reached only inside the guest. The function
    examines the last _SURE reports. In each of these reports, the port must have at least one listener, and all its
    listeners must have loopback addresses. In the newest report, at least one of the listeners must have an IPv4
    address.
    """
    last = looks[-_SURE:]
    places = [_places(each, ready.port) for each in last]
    return (
        ready.kind != ReadyKind.EXEC
        and len(last) == _SURE
        and all(found and all(is_loopback(each) for each in found) for found in places)
        and any(not each.startswith("::1") for each in places[-1])
    )


def _places(look: Look, port: int) -> tuple[str, ...]:
    return tuple(address for address, each in look.listeners if each == port)


def failure(looks: Sequence[Look], unit: str, ready: Readiness) -> str:
    """The reason why the unit will certainly not become ready. The result is empty when the unit may still become
    ready.
    """
    last = looks[-1]
    state = last.unit.get("ActiveState", "")
    if last.unit.get("LoadState") in ("masked", "bad-setting", "error", "not-found"):
        return f"systemd does not load {unit}: {last.unit['LoadState']}"
    if state == "failed":
        return f"{unit} fails by itself: {last.unit.get('Result', '')}"
    if _number(last.unit.get("NRestarts", "")) >= _RESTARTS:
        return f"{unit} ends and is restarted again and again: {last.unit.get('Result', '')}"
    booted = [each.system in ("running", "degraded") for each in looks[-_SURE:]]
    if len(booted) < _SURE or not all(booted):
        return ""
    if all(each.unit.get("ActiveState") == "inactive" for each in looks[-_SURE:]):
        enabled = last.unit.get("UnitFileState") or "no state"
        return f"{unit} does not run once the machine has booted (it is {enabled})"
    answers = {each.answer for each in looks[-_SURE:]}
    if (
        ready.kind == ReadyKind.HTTP
        and len(answers) == 1
        and 0 not in answers
        and ready.status not in answers
    ):
        return (
            f"GET {ready.path} on port {ready.port} is answered with {last.answer}, not with {ready.status}"
        )
    return ""


def _number(text: str) -> int:
    return natural(text) or 0


def state_line(look: Look, ready: Readiness) -> str:
    """The report ``look`` in words, for the message that the service was not ready in time."""
    listening = listened(look.listeners) or "nothing"
    unit = f"{look.unit.get('ActiveState', 'unknown')} ({look.unit.get('SubState', '')})"
    answer = f"; the last answer was {look.answer}" if look.answer else ""
    return f"the unit is {unit}, the machine {look.system or 'not up yet'}; listened to: {listening}{answer}"


def listened(listeners: Sequence[tuple[str, int]]) -> str:
    """The listeners in words. If there are many listeners, only the first ones are named. If there are no listeners,
    the result is empty.
    """
    more = f" and {len(listeners) - _LISTENERS} more" if len(listeners) > _LISTENERS else ""
    return ", ".join(f"{address} port {port}" for address, port in listeners[:_LISTENERS]) + more


def advice(why: str, ready: Readiness) -> str:
    """A hint that says how to avoid the failure ``why``."""
    if "is answered with" in why:
        return "another path in --ready, or --status when that answer is the right one"
    if "does not run once" in why:
        return "give a root in which it is enabled: --rootfs"
    return "does it need a configuration? Give a root that has it: --rootfs"
