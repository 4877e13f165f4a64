"""Wait for what a machine in EC2 does: its application's answer, and the launch agent's words on its console."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from quickstart.ec2 import machines
from quickstart.ec2.asking import Request, is_answered
from quickstart.ec2.aws import Aws
from quickstart.errors import CloudError, GuestError, QuickStartError, UnavailableError
from quickstart.launch.spoken import spoken
from quickstart.model import Beacon, Counters, ReadyStamp
from quickstart.parse.printable import brief

# How often the application is asked, and how often EC2 is.
ANSWER_PAUSE_S = 0.05
LOOK_PAUSE_S = 5.0
_CONSOLE_PAUSE_S = 1.0
_CONSOLE_LINES = 20


def wait_for_answer(aws: Aws, machine: machines.Instance, request: Request, end_s: float) -> int:
    """Ask until the application answers, at the latest at ``end_s`` of time.monotonic. Return the time of the answer, in
    ns of time.monotonic_ns.

    Raises GuestError when the machine ends, or when there is no right answer in time.
    """
    with _watched(aws, machine.id) as gone:
        while not is_answered(machine.address, request):
            if gone:
                raise gone[0]
            if time.monotonic() >= end_s:
                raise GuestError(
                    f"{machine.id} runs, but {request.url(machine.address)} gave no right answer in time",
                    console_tail=console_tail(aws, machine.id),
                    hint="does a security group let this host reach the port? --security-group, --timeout",
                )
            time.sleep(ANSWER_PAUSE_S)
        return time.monotonic_ns()


@contextmanager
def _watched(aws: Aws, identifier: str) -> Iterator[list[GuestError]]:
    """A list that gets an error when the machine ends. Another thread looks, because EC2 may answer late, and then nobody
    would ask the application.
    """
    gone: list[GuestError] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_PAUSE_S):
            try:
                check_running(aws, identifier)
            except GuestError as error:
                gone.append(error)
                return
            except QuickStartError:
                # Whoever ends the machine will say so.
                return

    # It ends by itself, at the latest after its call.
    threading.Thread(target=look, name="watch", daemon=True).start()
    try:
        yield gone
    finally:
        over.set()


def check_running(aws: Aws, identifier: str) -> None:
    """Raise GuestError when the machine does not run any more."""
    found = None
    with suppress(UnavailableError):
        found = machines.machine(aws, identifier)
    if found is not None and found.is_gone:
        raise GuestError(
            f"{identifier} is {found.state}: {brief(found.reason)}",
            console_tail=console_tail(aws, identifier),
        )


def console_tail(aws: Aws, identifier: str) -> str:
    """The last lines of the machine's console, for an error message. Empty if EC2 gives none."""
    with suppress(CloudError):
        return "\n".join(machines.console(aws, identifier).splitlines()[-_CONSOLE_LINES:])
    return ""


def wait_for_words(aws: Aws, identifier: str, limit_s: float) -> tuple[Beacon, ReadyStamp, Counters]:
    """The launch agent's messages on the console, once all are there.

    Raises GuestError when they are not there after ``limit_s``. A line that is not the agent's may still be half of one.
    """
    end_s = time.monotonic() + limit_s
    why = "it said nothing"
    while time.monotonic() < end_s:
        try:
            if (found := spoken(machines.console(aws, identifier))) is not None:
                return found
        except GuestError as error:
            why = error.message
        aws.sleep(_CONSOLE_PAUSE_S)
    raise GuestError(
        f"the launch agent's words are not on the console of {identifier}: {why}",
        console_tail=console_tail(aws, identifier),
    )
