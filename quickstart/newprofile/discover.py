"""Find a readiness request for a service if the user does not give one. For this purpose, look on which sockets the
service's processes listen in a stock boot (the distribution's own boot).

A TCP port that answers HTTP is the first choice. The next choices are, in this order, any other TCP port, a UDP port,
and a UNIX socket. If the service listens on no socket, the readiness request is a command that looks for a process of
the service. The guest's output is not trusted, so only names of plain characters get into a profile.
"""

from __future__ import annotations

import io
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from quickstart.errors import GuestError, NoProfileError
from quickstart.guest import Executes
from quickstart.model import Readiness
from quickstart.model.words import ReadyKind
from quickstart.newprofile.look import (
    MOST_LOOKS,
    SAID_BYTES,
    Look,
    advice,
    failure,
    is_loopback,
    look_command,
    parse_look,
    parse_socket,
)

_PAUSE_S = 2.0
_LOOK_S = 120.0
_ASK_S = 30.0
# The most ports that are tried by HTTP. A service with more ports has other protocols on most of them.
_MOST_ASKED = 8
_NO_ERROR = range(200, 500)
_PATH = re.compile(r"/[A-Za-z0-9_./@:+-]{1,200}")
_COMMAND = re.compile(r"[A-Za-z0-9_.+-]{1,15}")
# proc(5), /proc/net/unix: __SO_ACCEPTCON, and the inode before the path.
_UNIX = re.compile(r"[0-9a-f]+: [0-9A-F]+ [0-9A-F]+ 00010000 [0-9A-F]+ [0-9A-F]+ +([0-9]{1,18}) (.+)")
_STATUS = re.compile(r"HTTP/1\.[01] ([0-9]{3})(?: |\r|$)")


# The inodes of sockets in the output of `ls -l` for descriptors.
_INODES = r"sed -n 's/.* socket:\[\([0-9]*\)\]$/\1/p'"


@dataclass(frozen=True, kw_only=True)
class Sockets:
    """The sockets on which the unit's processes listen. ``tcp`` and ``udp`` are pairs (address, port), and ``unix`` are
    the paths of UNIX sockets. ``commands`` are the names of the processes.

    ``handed`` are the sockets in ``tcp`` that systemd has bound and passed to the service. Such a socket accepts
    connections even before the service runs. ``udp`` and ``unix`` have only sockets that the service itself has
    bound.
    """

    tcp: tuple[tuple[str, int], ...]
    handed: tuple[tuple[str, int], ...] = ()
    udp: tuple[tuple[str, int], ...]
    unix: tuple[str, ...]
    commands: tuple[str, ...]


def sockets_command(unit: str) -> str:
    """A shell command that lists the sockets of the unit's processes in the guest. ``parse_sockets`` reads its output.
    The command changes nothing in the guest.
    """
    name = shlex.quote(unit)
    return (
        f"group=$(systemctl show -P ControlGroup -- {name} 2>/dev/null)\n"
        "pids=\n"
        '[ -z "$group" ] || pids=$(find "/sys/fs/cgroup$group" -name cgroup.procs -exec cat {} + 2>/dev/null)\n'
        "echo '== commands'; for pid in $pids; do cat /proc/$pid/comm; done 2>/dev/null\n"
        "echo '== inodes'; for pid in $pids; do ls -l /proc/$pid/fd; done 2>/dev/null |"
        f" {_INODES}\n"
        f"echo '== handed'; ls -l /proc/1/fd 2>/dev/null | {_INODES}\n"
        "echo '== tcp'; cat /proc/net/tcp /proc/net/tcp6 2>/dev/null\n"
        "echo '== udp'; cat /proc/net/udp /proc/net/udp6 2>/dev/null\n"
        "echo '== unix'; cat /proc/net/unix\n"
        "echo '== end'"
    )


def parse_sockets(text: str) -> Sockets:
    """The sockets in ``text``, which is the output of the command of ``sockets_command``."""
    parts: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if line.startswith("== "):
            current = parts.setdefault(line[3:], [])
        else:
            current.append(line)
    inodes = frozenset(parts.get("inodes", ()))
    # systemd keeps the sockets open that it has bound for a service.
    handed = inodes & frozenset(parts.get("handed", ()))
    own = inodes - handed
    unix = (match for line in parts.get("unix", ()) if (match := _UNIX.fullmatch(line)))
    return Sockets(
        tcp=_own(parts.get("tcp", ()), inodes, "0A"),
        handed=_own(parts.get("tcp", ()), handed, "0A"),
        # A UDP socket that is not connected (state 07) accepts packets from everywhere.
        udp=_own(parts.get("udp", ()), own, "07"),
        unix=tuple(sorted({match[2] for match in unix if match[1] in own and _PATH.fullmatch(match[2])})),
        commands=tuple(sorted({name for name in parts.get("commands", ()) if _COMMAND.fullmatch(name)})),
    )


def _own(lines: Iterable[str], inodes: frozenset[str], state: str) -> tuple[tuple[str, int], ...]:
    found = (parse_socket(line) for line in lines)
    return tuple(
        sorted(
            {
                (each.address, each.port)
                for each in found
                if each and each.state == state and each.inode in inodes
            }
        )
    )


def candidates(places: Sequence[tuple[str, int]]) -> tuple[tuple[int, bool], ...]:
    """The ports of ``places``, which are pairs (address, port). The result has pairs (port, whether the port can be
    reached only at 127.0.0.1). Ports that can be reached from outside come first, sorted by number. The other
    ports follow, also sorted by number.
    """
    outside = {port for address, port in places if not is_loopback(address)}
    inside = {
        port for address, port in places if is_loopback(address) and not address.startswith("::1")
    } - outside
    return (*((port, False) for port in sorted(outside)), *((port, True) for port in sorted(inside)))


def choose(sockets: Sockets, answers: Mapping[int, int]) -> tuple[Mapping[str, object], str]:
    """Choose a readiness request for a service that listens on ``sockets``. Return the request as the profile's table
    [ready], and the reason for this choice. For each TCP port, ``answers`` has the HTTP status of the answer to GET /,
    or 0 if there was no answer.

    Raises ValueError, with the reason, when the service has nothing that a readiness request could use.
    """
    ports = candidates(sockets.tcp)
    for port, inside in ports:
        status = answers.get(port, 0)
        if status in _NO_ERROR:
            table = {"kind": "http", "port": port, "path": "/", "status": status, **_address(inside)}
            return table, f"it listens on port {port}, and answers GET / with {status}"
    if ports := candidates([place for place in sockets.tcp if place not in sockets.handed]):
        port, inside = ports[0]
        return {
            "kind": "tcp",
            "port": port,
            **_address(inside),
        }, f"it listens on port {port}, and no port of it answers HTTP"
    if sockets.udp:
        port = min(port for _, port in sockets.udp)
        command = f"grep -qs ':{port:04X} 0' /proc/net/udp /proc/net/udp6"
        return {"kind": "exec", "command": command}, f"it listens on UDP port {port} only"
    # A socket outside of /run may be left over from an earlier boot.
    if paths := sorted(sockets.unix, key=lambda path: (not path.startswith("/run/"), path)):
        return {"kind": "exec", "command": f"test -S {paths[0]}"}, f"it listens on {paths[0]}, and on no port"
    if sockets.commands:
        name = sockets.commands[0]
        return {
            "kind": "exec",
            "command": f"grep -qsx {name} /proc/[0-9]*/comm",
        }, f"it listens nowhere; its process is {name}"
    raise ValueError("its processes listen nowhere, and have no plain name")


def _address(inside: bool) -> dict[str, str]:
    return {"address": "loopback"} if inside else {}


def discover(guest: Executes, unit: str, limit_s: float) -> tuple[Mapping[str, object], str]:
    """Wait until the guest's boot is complete, the unit is active, and the unit's sockets no longer change. Then return
    the profile's table [ready] for the service, and the reason for this choice.

    Raises NoProfileError in these three cases.

    - The service fails.
    - After ``limit_s`` seconds, the boot is not complete, the unit is not active, or the unit's sockets still change.
    - The service has nothing that a readiness request could use.
    """
    looks: list[Look] = []
    seen: list[Sockets] = []
    deadline_s = time.monotonic() + limit_s
    while True:
        text = _said(guest, f"{look_command(unit)}\n{sockets_command(unit)}", _LOOK_S)
        looks.append(parse_look(text))
        seen.append(parse_sockets(text))
        del looks[:-MOST_LOOKS], seen[:-MOST_LOOKS]
        if _is_settled(looks, seen):
            break
        if why := failure(looks, unit, _NOTHING):
            journal = [f"| {line}" for line in looks[-1].journal]
            raise NoProfileError(unit, [why, *journal], hint=advice(why, _NOTHING))
        if time.monotonic() > deadline_s:
            state = looks[-1].unit.get("ActiveState", "unknown")
            raise NoProfileError(
                unit,
                [f"it had not settled after {limit_s:g} s: it is {state}"],
                hint="--timeout waits longer, --ready says what to wait for",
            )
        time.sleep(_PAUSE_S)
    asked = candidates(seen[-1].tcp)[:_MOST_ASKED]
    answers = {port: _status(_said(guest, _ask_command(port), _ASK_S)) for port, _ in asked}
    try:
        return choose(seen[-1], answers)
    except ValueError as error:
        raise NoProfileError(unit, [str(error)], hint="say what to wait for by --ready") from error


# discover() sends no readiness request, so this request is only a placeholder.
_NOTHING = Readiness(kind=ReadyKind.EXEC, port=0, path="", status=0, command="true", timeout_s=1)


def _is_settled(looks: Sequence[Look], seen: Sequence[Sockets]) -> bool:
    last = looks[-MOST_LOOKS:]
    return (
        len(last) == MOST_LOOKS
        and all(each.system in ("running", "degraded") for each in last)
        and all(each.unit.get("ActiveState") == "active" for each in last)
        and len({replace(each, commands=()) for each in seen[-MOST_LOOKS:]}) == 1
    )


def _ask_command(port: int) -> str:
    """The shell command that sends GET / to ``port`` of 127.0.0.1, an address that every machine has. The command uses
    bash, because bash is the only program of every Debian system that can make TCP connections.
    """
    request = r"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    script = f"exec 3<>/dev/tcp/127.0.0.1/{port} && printf '{request}' >&3 && head -c 64 <&3"
    return f"timeout 10 bash -c {shlex.quote(script)} 2>/dev/null"


def _status(text: str) -> int:
    match = _STATUS.match(text)
    return int(match[1]) if match else 0


def _said(guest: Executes, command: str, limit_s: float) -> str:
    out = io.BytesIO()
    try:
        guest.execute(command, out, io.BytesIO(), limit_s, SAID_BYTES)
    except GuestError as error:
        if not guest.is_running():
            raise
        raise GuestError(
            f"the guest did not answer while it was watched: {error.message}", hint="is the host busy?"
        ) from error
    return out.getvalue().decode(errors="replace")
