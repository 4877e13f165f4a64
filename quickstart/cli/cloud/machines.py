"""`quickstart ami run` and `quickstart ami cleanup`: machines in EC2, started from images of QuickStart."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path

import click
from rich.console import Console

from quickstart.cli.cloud.account import (
    confirm,
    image_of_ours,
    machine_options,
    place_options,
    user_data_of,
)
from quickstart.cli.options import JSON
from quickstart.cli.output import Verb, run_verb, say
from quickstart.ec2 import machines
from quickstart.ec2.asking import Request, request_of
from quickstart.ec2.aws import Aws, Place, connected
from quickstart.ec2.images import Image, Waiting
from quickstart.ec2.waiting import LOOK_PAUSE_S, check_running, wait_for_answer
from quickstart.errors import BadInputError

# Two of Nitro's processors and 2 GiB: it starts with both kinds of firmware, and in all regions.
_TYPE = "t3.small"
_TIMEOUT_S, _LONGEST_S = 600.0, 86400.0
_STATE_PAUSE_S = 1.0


@click.command("run")
@click.argument("name")
@place_options
@click.option("--type", "kind", default=_TYPE, show_default=True, help="The type of the machine.")
@machine_options
@click.option(
    "--ready", metavar="REQUEST", help="The readiness request, http:PORT/PATH or tcp:PORT [the image's]."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True, max=_LONGEST_S),
    default=_TIMEOUT_S,
    show_default=True,
    help="The time limit from the launch to the answer, in seconds.",
)
@click.option("--check", is_flag=True, help="End the machine once its application has answered.")
@JSON
def run_machine(
    name: str,
    region: str,
    aws_profile: str,
    endpoint_url: str,
    kind: str,
    subnet: str,
    security_groups: tuple[str, ...],
    key_name: str,
    user_data_file: Path | None,
    rate_mib_s: int | None,
    ready: str | None,
    timeout_s: float,
    check: bool,
    as_json: bool,
) -> None:
    """Start a machine from the image NAME, and wait until its application answers this host.

    The machine and its volume end with this command: after Ctrl-C, after an error, and with --check. AWS charges for
    them until then.
    """
    place = Place(region=region, profile=aws_profile, endpoint=endpoint_url)

    def work(verb: Verb) -> int:
        # click takes "nan", which no time is later than.
        if not timeout_s <= _LONGEST_S:
            raise BadInputError(f"--timeout {timeout_s} is no time")
        data = user_data_of(user_data_file)
        asked = request_of(ready) if ready is not None else None
        aws = connected(place, 1)
        verb.display().note(aws.name)
        image = image_of_ours(aws, name)
        request = asked or _request(image)
        wanted = machines.Wanted(
            image_id=image.id,
            image_name=image.name,
            root_device=image.root_device,
            type=kind,
            subnet_id=subnet,
            group_ids=security_groups,
            key_name=key_name,
            user_data=data,
            rate_mib_s=rate_mib_s,
        )
        _run(verb, aws, wanted, request, timeout_s, check)
        return 0

    sys.exit(run_verb("ami run", as_json, work))


def _request(image: Image) -> Request:
    if not image.ready:
        raise BadInputError(
            f"the image {image.name} does not say how its application is asked over the network",
            hint="for example --ready http:80/",
        )
    return request_of(image.ready)


def _run(
    verb: Verb, aws: Aws, wanted: machines.Wanted, request: Request, timeout_s: float, check: bool
) -> None:
    began_s = time.monotonic()
    waiting = Waiting(poll_s=_STATE_PAUSE_S, limit_s=timeout_s)
    with machines.launched(aws, wanted, verb.display()) as identifier:
        verb.display().note(f"{identifier} starts ({wanted.type})")
        with verb.display().step("wait for the machine's address"):
            machine = machines.wait_for_start(aws, identifier, waiting)
        running_s = time.monotonic() - began_s
        with verb.display().step(f"wait for an answer from {request.url(machine.address)}"):
            answered_ns = wait_for_answer(aws, machine, request, began_s + timeout_s)
        facts: dict[str, object] = {
            "instance_id": identifier,
            "image_id": wanted.image_id,
            "address": machine.address,
            "url": request.url(machine.address),
            "running_ns": int(running_s * 1e9),
            "ready_ns": answered_ns - int(began_s * 1e9),
        }
        verb.result(facts, lambda console: _show(console, facts))
        sys.stdout.flush()
        if not check:
            _stay(verb, aws, identifier)


def _show(console: Console, facts: Mapping[str, object]) -> None:
    seconds = int(str(facts["ready_ns"])) / 1e9
    say(console, f"ready: {facts['url']} answers {seconds:.1f} s after the launch, by this host's clock")


def _stay(verb: Verb, aws: Aws, identifier: str) -> None:
    try:
        verb.display().note("Ctrl-C ends the machine")
        while True:
            time.sleep(LOOK_PAUSE_S)
            check_running(aws, identifier)
    except KeyboardInterrupt:
        verb.console.print()


@click.command("cleanup")
@click.option("--yes", is_flag=True, help="Do not ask.")
@place_options
@JSON
def cleanup(yes: bool, region: str, aws_profile: str, endpoint_url: str, as_json: bool) -> None:
    """End the machines that a killed `ami run` or bench has left. Machines of other programs are not touched.

    Those of an `ami run` or bench that still works are ended, too, also of other users of the account. Images and
    snapshots stay.
    """
    place = Place(region=region, profile=aws_profile, endpoint=endpoint_url)

    def work(verb: Verb) -> int:
        aws = connected(place, 1)
        left = machines.ours(aws)
        rows = [{"instance_id": each.id, "state": each.state, "launched": each.launched} for each in left]
        if left:
            confirm(verb, aws, [each.row for each in left], yes)
            machines.terminate(aws, [each.id for each in left])
        verb.result({"ended": rows}, lambda console: say(console, f"{aws.name}: ended {len(left)} machines"))
        return 0

    sys.exit(run_verb("ami cleanup", as_json, work))
