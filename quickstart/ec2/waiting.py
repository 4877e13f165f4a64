"""Wait for what a machine in EC2 does: its application's answer, and the launch agent's words on its console."""

from __future__ import annotations

import time
from contextlib import suppress

from quickstart.ec2 import machines
from quickstart.ec2.asking import Request, is_answered
from quickstart.ec2.aws import Aws
from quickstart.errors import CloudError, GuestError, UnavailableError
from quickstart.launch.spoken import spoken
from quickstart.model import Beacon, Counters, ReadyStamp
from quickstart.parse.printable import brief

# The measured time does not depend on how often EC2 is asked, which may be busy.
ANSWER_PAUSE_S = 0.05
LOOK_PAUSE_S = 5.0
_CONSOLE_PAUSE_S = 1.0
_CONSOLE_LINES = 20


def wait_for_answer(aws: Aws, machine: machines.Instance, request: Request, end_s: float) -> int:
    """Ask until the application answers, at the latest at ``end_s`` of time.monotonic. Return the time of the answer, in
    ns of time.monotonic_ns.

    Raises GuestError when the machine ends, or when there is no right answer in time.
    """
    look_s = time.monotonic() + LOOK_PAUSE_S
    while not is_answered(machine.address, request):
        now_s = time.monotonic()
        if now_s >= end_s:
            raise GuestError(
                f"{machine.id} runs, but {request.url(machine.address)} gave no right answer in time",
                console_tail=console_tail(aws, machine.id),
                hint="does a security group let this host reach the port? --security-group, --timeout",
            )
        if now_s >= look_s:
            check_running(aws, machine.id)
            look_s = time.monotonic() + LOOK_PAUSE_S
        time.sleep(ANSWER_PAUSE_S)
    return time.monotonic_ns()


def check_running(aws: Aws, identifier: str) -> None:
    """Raise GuestError when the machine does not run any more."""
    found = None
    with suppress(UnavailableError):
        found = machines.machine(aws, identifier)
    if found is not None and not found.is_running:
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
