"""Wait until a machine has settled. A machine has settled when the distribution's boot is complete and systemd controls
the application's unit (docs/users/run.md, docs/users/hand-off.md).

The host runs `systemctl is-system-running` in the guest repeatedly. A single call is not enough, because systemd may
not have started yet, and does not answer while it reloads its units. Our init's script `settle` runs as a job of the
boot, so the hand-off from our init to systemd is complete when the last job of the boot is done.

The guest is not trusted. So the host limits the number of calls, the total time of all calls, and the length of each
answer.
"""

from __future__ import annotations

import io
import re
import time
from dataclasses import dataclass

from quickstart.errors import GuestError, NotSettledError
from quickstart.guest import Executes

# A stock boot takes half a minute on two slow cores without KVM. systemd gives a job 90 s (DefaultTimeoutStartSec=).
LIMIT_S = 300.0
LONGEST_S = 86_400.0
_SLICE_S = 10
# The extra time after a slice, for a slow machine under load, and for systemctl's own limit of 90 s for an answer on
# the bus (sd_bus_call(3)).
_GRACE_S = 240.0
# The answer to the last question, which names the jobs, may come this long after the time is up.
_LAST_GRACE_S = 30.0
# The pause between two questions. An honest answer takes longer, but a hostile guest could answer thousands of times
# a second.
_PAUSE_S = 0.5
# An honest answer has at most `_MOST_LINES` lines of about 60 bytes.
_SAID_BYTES = 1 << 18
_MOST_LINES = 1024
_SHOWN = 5
_DONE = ("running", "degraded")
# Rescue or emergency mode, and a shutdown: no boot goes on from there.
_NEVER = ("maintenance", "stopping")
_MICROSECONDS = re.compile(r"[0-9]{1,18}", re.ASCII)
# systemctl's words for a state or a kind of job. A guest may send any text, and its text is shown.
_WORD = re.compile(r"[a-z][a-z-]{0,31}", re.ASCII)
_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,255}", re.ASCII)
# `--wait` ends when the boot does. Its output comes at its end, so none means that the slice was too short.
ASK = f"""\
state=$(timeout -k 5 {_SLICE_S} systemctl is-system-running --wait 2>/dev/null)
echo "state ${{state:-starting}}"
case $state in
running | degraded)
	echo "finished $(systemctl show -P FinishTimestampMonotonic)"
	systemctl list-units --failed --plain --no-legend --no-pager | head -n {_MOST_LINES} |
		while read -r unit _; do echo "failed $unit"; done ;;
*)
	timeout -k 5 {_SLICE_S} systemctl list-jobs --plain --no-legend --no-pager 2>/dev/null | head -n {_MOST_LINES} |
		while read -r _ unit kind phase; do echo "job $unit $kind $phase"; done
	sleep 0.5 ;;
esac
"""


@dataclass(frozen=True)
class Settled:
    """The facts about a settled machine. ``state`` is systemd's state of the whole machine (``running`` or
    ``degraded``). ``uptime_ns`` is the guest's uptime when the boot was complete.
    """

    state: str
    uptime_ns: int
    failed_units: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """One answer from systemd about the state of the boot. ``finished_us`` is the guest's uptime when the boot was
    complete, or 0 while the boot is not complete. ``jobs`` are systemd's jobs, each in the form ``UNIT KIND``.
    Running jobs come before waiting jobs.
    """

    state: str
    finished_us: int
    failed_units: tuple[str, ...]
    jobs: tuple[str, ...]


def hands_over(hand_off: str, words: str) -> bool:
    """Whether the distribution's init takes over the machine from our init. The result depends on the value
    ``hand_off`` of the manifest, and on the words of the kernel's command line.
    """
    return hand_off != "no" and "quickstart=stay" not in words.split()


def parse(text: str) -> Answer:
    """The answer in ``text``, which is the output of the shell script `ASK` in the guest. A guest may print anything,
    so lines that the script cannot print are ignored.
    """
    state, finished_us = "unknown", 0
    failed: list[str] = []
    jobs: list[tuple[bool, str]] = []
    for line in text.splitlines():
        match line.split():
            case ["state", word] if _WORD.fullmatch(word):
                state = word
            case ["finished", number] if _MICROSECONDS.fullmatch(number):
                finished_us = int(number)
            case ["failed", unit] if _UNIT.fullmatch(unit):
                failed.append(unit)
            case ["job", unit, kind, phase] if _UNIT.fullmatch(unit) and _WORD.fullmatch(kind):
                jobs.append((phase != "running", f"{unit} {kind}"))
    ordered = tuple(name for _, name in sorted(jobs[:_MOST_LINES]))
    return Answer(state, finished_us, tuple(sorted(failed[:_MOST_LINES])), ordered)


def wait_settled(guest: Executes, timeout_s: float = LIMIT_S) -> Settled:
    """Wait until the machine has settled. ``timeout_s`` begins with the call and is measured on this host's clock. The
    wait ends at most 30 s after ``timeout_s`` is over.

    Raises NotSettledError when the machine has not settled at the end of the wait, or can never settle.
    Raises GuestError when the machine does not answer, or when its answer is too long.
    """
    deadline_s = time.monotonic() + timeout_s
    last: Answer | None = None
    while True:
        asked_s = time.monotonic()
        answer = _ask(guest, deadline_s) or last
        if answer is not None and answer.state in _DONE:
            return Settled(answer.state, answer.finished_us * 1000, answer.failed_units)
        if answer is not None and answer.state in _NEVER:
            raise NotSettledError(
                f"the machine does not settle: systemd is in {answer.state}", guest.console_tail()
            )
        last = answer
        # The wait ends early when the guest ends, which the next question then shows.
        guest.wait(max(0.0, asked_s + _PAUSE_S - time.monotonic()))
        if time.monotonic() >= deadline_s:
            raise NotSettledError(
                f"the machine has not settled {timeout_s:g} s after it was ready: {_waits_for(last)}",
                guest.console_tail(),
            )


def _ask(guest: Executes, deadline_s: float) -> Answer | None:
    """The answer to one question about the state of the boot. The function runs the shell script `ASK` in the guest,
    and this script asks systemd. The result is None when ``deadline_s`` is over and no answer has arrived. Raises
    NotSettledError when the guest has ended. Raises GuestError when the guest does not answer in the time for one
    question.
    """
    said, sink = io.BytesIO(), io.BytesIO()
    left_s = max(0.0, deadline_s - time.monotonic())
    limit_s = min(_SLICE_S + _GRACE_S, left_s + _LAST_GRACE_S)
    try:
        guest.execute(ASK, said, sink, limit_s, _SAID_BYTES)
    except GuestError as error:
        if guest.wait(0):
            raise NotSettledError("the guest ended before it had settled", guest.console_tail()) from error
        if time.monotonic() >= deadline_s:
            return None
        raise GuestError(
            "the machine does not say whether its boot is done: "
            f"it had {limit_s:g} s for an answer of at most {_SAID_BYTES >> 10} KiB",
            console_tail=guest.console_tail(),
            hint=NotSettledError.HINT,
        ) from error
    return parse(said.getvalue().decode(errors="replace"))


def _waits_for(answer: Answer | None) -> str:
    if answer is None:
        return "it has not answered what it waits for"
    if not answer.jobs:
        return f"systemd says {answer.state}"
    more = f" and {len(answer.jobs) - _SHOWN} more" if len(answer.jobs) > _SHOWN else ""
    return f"systemd is {answer.state} and waits for {', '.join(answer.jobs[:_SHOWN])}{more}"
