"""Read from the image the sockets and settings by which systemd connects a unit's output to journald (systemd.exec(5),
"Logging and Standard Input/Output"; docs/internals/output.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import assignments, directives, unit_file, unit_texts
from quickstart.inspect.unit.model import ListeningSocket
from quickstart.inspect.unit.sockets import listening_sockets
from quickstart.inspect.unit.source import Source
from quickstart.inspect.unit.values import BadValueError
from quickstart.parse.bounded import natural
from quickstart.parse.printable import brief

Record = tuple[str, ...]

# The first has the socket for the output of services, and the socket for messages in journald's own protocol. The
# second has the socket of syslog(3).
JOURNAL_SOCKETS = ("systemd-journald.socket", "systemd-journald-dev-log.socket")
_LINKS = "Symlinks"
_LINK = re.compile(r"/(?:dev|run)/[A-Za-z0-9_-]+")
# The numbers of syslog(3).
_FACILITIES = {
    **{name: number for number, name in enumerate(("kern", "user", "mail", "daemon", "auth", "syslog"))},
    **{name: number for number, name in enumerate(("lpr", "news", "uucp", "cron", "authpriv", "ftp"), 6)},
    **{f"local{number}": 16 + number for number in range(8)},
}
_LEVELS = {
    name: number
    for number, name in enumerate(("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"))
}
_LAST_FACILITY = 127
# Whether journald also writes the output to the kernel's log, and to the console. An empty record means neither.
_FORWARDED: dict[str, Record] = {
    "journal": (),
    "syslog": (),
    "kmsg": ("1", "0"),
    "journal+console": ("0", "1"),
    "syslog+console": ("0", "1"),
    "kmsg+console": ("1", "1"),
}
_INHERIT = "inherit"
_FILES = ("file", "append", "truncate")


def journal_sockets(root: ImageRoot) -> tuple[ListeningSocket, ...]:
    """The sockets of journald's socket units, which init binds before the application starts. A socket unit that is
    masked or not in the image has no sockets in the result.

    Raises UnsupportedUnitError when init could not bind the sockets as systemd does.
    """
    return tuple(socket for name in JOURNAL_SOCKETS if _has(root, name) for socket in _sockets(root, name))


def _has(root: ImageRoot, name: str) -> bool:
    try:
        unit_file(root, name)
    except UnsupportedUnitError:
        return False
    return True


def _sockets(root: ImageRoot, name: str) -> Iterator[ListeningSocket]:
    sockets = listening_sockets(root, name, frozenset((_LINKS,)))
    found = directives(assignments(unit_texts(root, name), "[Socket]"))
    links = [word for value in found.get(_LINKS, ()) for word in value.split()]
    # As in systemd, there are links only for a socket unit with exactly one path.
    if links and (len(sockets) != 1 or not all(map(_LINK.fullmatch, links))):
        raise UnsupportedUnitError(
            f"{name} cannot be bound early: it has {_LINKS}={brief(' '.join(links))}",
            hint="remove the drop-in that sets it",
        )
    for socket in sockets:
        (_, *words), *options = socket.records
        made = (("journal-link", str(socket.path), link) for link in links)
        yield replace(socket, records=(("journal-socket", *words), *options, *made))


def output_records(source: Source) -> Iterator[Record]:
    """The records (lines) of the starter's description for the unit's standard output and standard error, and for the
    labels that journald gives to this output. The starter, which starts the unit early, uses systemd's default where a
    record is missing.
    """
    out, error = (source.last(name, _INHERIT) for name in ("StandardOutput", "StandardError"))
    for name in ("DefaultStandardOutput", "DefaultStandardError"):
        if any(value not in (*_FORWARDED, "null", _INHERIT) for value in source.manager.get(name, ())):
            raise source.refusal(
                name, source.manager[name][-1], BadValueError("is no default that systemd takes")
            )
    # service_fix_stdio in systemd's src/core/service.c
    if out == error == _INHERIT:
        error = source.manager.get("DefaultStandardError", (_INHERIT,))[-1]
    if out == _INHERIT:
        out = source.manager.get("DefaultStandardOutput", ("journal",))[-1]
    if out != "journal":
        yield "stdout", *_stream(source, "StandardOutput", out)
    # For equal values, systemd makes one a copy of the other.
    if error not in (_INHERIT, out):
        yield "stderr", *_stream(source, "StandardError", error)
    facility = _number(source, "SyslogFacility", _FACILITIES, _FACILITIES["daemon"], _LAST_FACILITY)
    level = _number(source, "SyslogLevel", _LEVELS, _LEVELS["info"], _LEVELS["debug"])
    if facility != _FACILITIES["daemon"] or level != _LEVELS["info"]:
        yield "syslog-priority", str(facility << 3 | level)
    if not source.flag("SyslogLevelPrefix", otherwise=True):
        yield "syslog-level-prefix", "no"
    if "SyslogIdentifier" in source.found:
        yield "syslog-identifier", source.names.expand(source.last("SyslogIdentifier"))


def _stream(source: Source, name: str, value: str) -> Record:
    kind, colon, path = value.partition(":")
    # Standard output inherits the standard input, which is /dev/null.
    if value in ("null", _INHERIT):
        return ("null",)
    if value in _FORWARDED:
        return ("log", *_FORWARDED[value])
    if kind == "truncate":
        raise source.refusal(
            name, value, BadValueError("would be emptied once more when systemd adopts the unit")
        )
    if colon and kind in _FILES:
        return kind, source.plain_path(name, path)
    raise source.refusal(name, value, BadValueError("cannot be repeated"))


def _number(source: Source, name: str, names: dict[str, int], default: int, highest: int) -> int:
    """The value of the directive ``name``, which is one of ``names`` or a number. systemd ignores any other value."""
    value = source.last(name)
    if re.match("0[0-9]", value):
        raise source.refusal(name, value, BadValueError("is a number to the base 8"))
    number = names.get(value, natural(value, highest)) if value else default
    if number is None:
        raise source.refusal(name, value, BadValueError("is not known"))
    return number
