"""Watch one stock boot (the distribution's own boot) of the reference image, to find whether the service becomes ready,
where the service listens, and how much memory the guest uses.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quickstart.errors import GuestError, NoProfileError
from quickstart.guest import Executes, Exit, Output
from quickstart.launch.forward import status_line
from quickstart.model import Readiness, ReadyStamp
from quickstart.model.words import ReadyKind
from quickstart.newprofile.look import (
    MOST_LOOKS,
    SAID_BYTES,
    Look,
    advice,
    failure,
    listens_inside_only,
    look_command,
    parse_look,
    state_line,
)

# On a busy host, a healthy guest may take this long for one answer. With a longer wait for ready, this wait is
# longer, too.
_LOOK_S = 120.0
_PAUSE_S = 2.0
_ASK_S = 2.0
_FILE = "survey.json"
_OUTPUT_BYTES = 2000


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The findings from the watched boot.

    ``listeners`` are the TCP listeners of the whole machine. ``loopback`` says that the service listens only on
    127.0.0.1. If the readiness request went to the guest's external address in this case, nobody answered, and
    ``ready_uptime_ns`` is 0.
    """

    loopback: bool
    used_mib: int
    listeners: tuple[tuple[str, int], ...]
    unit_file_state: str
    answer: str
    ready_uptime_ns: int


def watch(guest: Executes, unit: str, ready: Readiness, limit_s: float) -> Survey:
    """Watch the guest. The launch agent, our program in the guest, sends the readiness request ``ready``. The watch
    ends when the service is ready, when the service listens only inside the guest, or when the service will certainly
    not become ready.

    Raises NoProfileError with the reason when the service does not become ready. Raises GuestError when the guest
    itself ends or hangs.
    """
    looks: list[Look] = []
    look_s = max(_LOOK_S, limit_s)
    deadline_s = time.monotonic() + limit_s
    stamp: ReadyStamp | None = None
    while stamp is None and time.monotonic() < deadline_s:
        look, stamp = _look(guest, unit, ready, look_s)
        looks.append(look)
        del looks[:-MOST_LOOKS]
        if stamp is None and listens_inside_only(looks, ready):
            return _survey(looks[-1], None, ready)
        if stamp is None and (why := failure(looks, unit, ready)):
            raise NoProfileError(unit, [why, *_journal(looks[-1])], hint=advice(why, ready))
        stamp = stamp or _pause(guest)
    if stamp is None:
        problems = [f"it was not ready after {limit_s:g} s", *_last_words(guest, looks, ready)]
        raise NoProfileError(unit, problems, hint="is it what --ready asks for? --timeout waits longer")
    return _survey(_look(guest, unit, ready, look_s)[0], stamp, ready)


def _survey(look: Look, stamp: ReadyStamp | None, ready: Readiness) -> Survey:
    return Survey(
        # A request to 127.0.0.1, which discover.py may have chosen, is answered from there.
        loopback=ready.loopback or stamp is None,
        used_mib=look.used_mib,
        listeners=look.listeners,
        unit_file_state=look.unit.get("UnitFileState", ""),
        answer=stamp.answer if stamp else "",
        ready_uptime_ns=stamp.uptime_ns if stamp else 0,
    )


def _look(guest: Executes, unit: str, ready: Readiness, look_s: float) -> tuple[Look, ReadyStamp | None]:
    stamp: ReadyStamp | None = None
    text = bytearray()
    guest.start(look_command(unit))
    for message in guest.messages(look_s):
        if isinstance(message, Output) and message.stream == "out" and len(text) < SAID_BYTES:
            text += message.data
        elif isinstance(message, ReadyStamp):
            stamp = message
        elif isinstance(message, Exit):
            asked = (
                _answer(guest.url_port, ready.path) if ready.kind == ReadyKind.HTTP and stamp is None else 0
            )
            return parse_look(text.decode(errors="replace"), asked), stamp
    how = f"did not answer for {look_s:g} s" if guest.is_running() else "ended"
    raise GuestError(
        f"the guest {how} while it was watched",
        hint="is the host busy? --timeout waits longer" if guest.is_running() else None,
        console_tail=guest.console_tail(),
    )


def _pause(guest: Executes) -> ReadyStamp | None:
    for message in guest.messages(_PAUSE_S):
        if isinstance(message, ReadyStamp):
            return message
    return None


def _answer(port: int | None, path: str) -> int:
    """The HTTP status that this host gets for a GET request through the forwarded port, or 0 if there is no answer."""
    if port is None:
        return 0
    _, _, rest = status_line(port, path, _ASK_S).partition(" ")
    return int(rest[:3] or 0)


def _journal(look: Look) -> list[str]:
    return [f"| {line}" for line in look.journal]


def _last_words(guest: Executes, looks: Sequence[Look], ready: Readiness) -> list[str]:
    said = [state_line(looks[-1], ready)] if looks else []
    if ready.kind == ReadyKind.EXEC:
        out = io.BytesIO()
        status = guest.execute(ready.command, out, out, _LOOK_S, SAID_BYTES)
        lines = out.getvalue()[-_OUTPUT_BYTES:].decode(errors="replace").splitlines()
        said += [f"`{ready.command}` ends with {status}", *(f"| {line}" for line in lines)]
    return [*said, *(_journal(looks[-1]) if looks else [])]


def write(survey: Survey, directory: Path) -> None:
    """Write ``survey`` to a file in ``directory``."""
    facts = {**survey.__dict__, "listeners": [list(each) for each in survey.listeners]}
    (directory / _FILE).write_text(json.dumps(facts, indent=1) + "\n")


def read(directory: Path) -> Survey:
    """The survey that ``write`` has written to ``directory``."""
    facts = json.loads((directory / _FILE).read_text())
    listeners = tuple((str(address), int(port)) for address, port in facts.pop("listeners"))
    return Survey(listeners=listeners, **facts)
