"""The option `--when` of `quickstart run`. This option chooses the moment for which a run waits. After this moment, the
run executes the command of `--exec`, or ends.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import click

from quickstart.artefact.manifest import read_manifest
from quickstart.cli.options import Option
from quickstart.cli.output import Verb
from quickstart.errors import BadInputError
from quickstart.guest import Executes
from quickstart.launch.settled import LIMIT_S, LONGEST_S, Settled, hands_over, wait_settled
from quickstart.model import Artefact


class When(enum.Enum):
    """The moments for which a run can wait. READY is the moment of the application's first correct answer. SETTLED is
    the moment when the distribution's boot is complete and systemd controls the application's unit.
    """

    READY = "ready"
    SETTLED = "settled"


WHEN: Option = click.option(
    "--when",
    type=click.Choice([each.value for each in When]),
    help="The moment at which CMD of --exec runs, or --check ends. ready: the application answers. settled: the "
    "distribution's boot is complete, too [settled for --exec if there is a hand-off, otherwise ready].",
)
SETTLE_TIMEOUT: Option = click.option(
    "--settle-timeout",
    "settle_timeout_s",
    metavar="S",
    type=click.FloatRange(min=0, min_open=True, max=LONGEST_S),
    help=f"The time limit from ready to settled, in seconds [--timeout, or else {LIMIT_S:g}].",
)


def moment(artefact: Artefact, when: When | None, stock: bool, append: str, has_command: bool) -> When:
    """The moment for which a run waits. If ``when`` is not None, the run waits for ``when``, the user's choice.
    Otherwise, a run with a command waits for SETTLED if the machine can settle, and any other run waits for READY.
    """
    if when is not None:
        return when
    return When.SETTLED if has_command and _settles(artefact, stock, append) else When.READY


def demand_settling(artefact: Artefact, when: When | None, stock: bool, append: str) -> None:
    """Raise BadInputError when the user has chosen SETTLED for a machine that can never settle."""
    if when is When.SETTLED and not _settles(artefact, stock, append):
        raise BadInputError(
            f"{artefact.directory} never settles: without a hand-off the distribution's boot does not begin",
            hint="`--when ready` waits for the application alone",
        )


def _settles(artefact: Artefact, stock: bool, append: str) -> bool:
    """Whether the machine can settle. A machine settles only if systemd runs in the machine. systemd runs in a stock
    boot (the distribution's own boot), and after a hand-off from our init to systemd.
    """
    words = f"{artefact.cmdline} {append}"
    return stock or hands_over(read_manifest(artefact.directory).hand_off, words)


def settle(verb: Verb, guest: Executes, timeout_s: float | None) -> Settled:
    """Wait until the machine has settled, and print one line about the settled machine. Raises NotSettledError when the
    machine does not settle in time, and GuestError when the machine does not answer.
    """
    with verb.display().step("wait for the whole machine"):
        settled = wait_settled(guest, timeout_s or LIMIT_S)
    verb.display().note(settled_line(settled))
    return settled


def settled_line(settled: Settled) -> str:
    """A line of text about a settled machine. The line has systemd's state, the guest's uptime when the boot was
    complete, and the failed units.
    """
    failed = f"; failed: {' '.join(settled.failed_units)}" if settled.failed_units else ""
    return f"settled: {settled.state}, {settled.uptime_ns / 1e9:.2f} s after the machine's start{failed}"


def settled_facts(settled: Settled | None) -> Mapping[str, object]:
    """The fields of the JSON result about the settled machine. The fields are null when ``settled`` is None."""
    return {
        "settled": settled.state if settled else None,
        "settled_uptime_ns": settled.uptime_ns if settled else None,
        "failed_units": list(settled.failed_units) if settled else None,
    }


def settled_cell(settled: Settled | None) -> str:
    """The text for the settled machine in a table. The text has the guest's uptime when the boot was complete, and
    systemd's state. The text is empty when ``settled`` is None.
    """
    return f"{settled.uptime_ns / 1e9:.2f} s ({settled.state})" if settled else ""
