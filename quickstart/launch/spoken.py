"""Read what the launch agent has written to a machine's console (docs/internals/agent.md). The console is untrusted: the
machine's other programs write to it, too.
"""

from __future__ import annotations

import re

from quickstart.errors import GuestError
from quickstart.launch.channel import Decoder
from quickstart.launch.drain import whole_text
from quickstart.model import Beacon, Counters, ReadyStamp

BEGIN = "quickstart-agent says "
_LINE = re.compile(rf"{re.escape(BEGIN)}([^\r\n]*)")
# Three short messages, and 4 KiB of counters.
_MOST_CHARACTERS = 1 << 16


def spoken(console: str) -> tuple[Beacon, ReadyStamp, Counters] | None:
    """The last beacon before ready, the ready message and the counters of a machine, or None while one of them is missing.
    Their times of arrival are 0, because the console does not say when a line was written. Raises GuestError for lines
    that are not the agent's.
    """
    # The last line may go on.
    whole = console[: console.rfind("\n") + 1]
    lines = [match[1] for match in _LINE.finditer(whole_text(whole.encode()))]
    said = "".join(f"{line}\n" for line in lines)[:_MOST_CHARACTERS]
    beacon: Beacon | None = None
    ready: ReadyStamp | None = None
    for message in Decoder().feed(said.encode(), 0):
        match message:
            case Beacon() if ready is None:
                beacon = message
            case ReadyStamp() if ready is None:
                ready = message
            case Counters() if ready is not None:
                if beacon is None:
                    raise GuestError("the guest's agent was ready before it had an address")
                return beacon, ready, message
    return None
