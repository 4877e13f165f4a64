"""`quickstart ec2`: an emulator of EC2 on this host."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import click
from rich.console import Console

from quickstart.cli.options import JSON
from quickstart.cli.output import Verb, run_verb, say
from quickstart.ec2.emulator.faults import Trouble
from quickstart.ec2.emulator.hardware import Hypervisor
from quickstart.errors import BadInputError, HostLacksError
from quickstart.host import door
from quickstart.host.beneath import read_bounded
from quickstart.host.workspace import workspace
from quickstart.launch.accel import choose, tcg
from quickstart.measure.results import STORAGES
from quickstart.model import MIB
from quickstart.parse import jsondoc
from quickstart.store.store import Store, default_root
from quickstart.volume.emulator import volume_binary
from quickstart.volume.storage import load_model

_INSTALL = "pip install 'boto3>=1.40,<2' 'werkzeug>=3,<4'"


@click.group()
def ec2() -> None:
    """An emulator of EC2 on this host, to try `quickstart ami` without an account."""


_SHARE = click.FloatRange(0, 0.9)


@ec2.command("emulator")
@click.option("--region", default="eu-central-1", show_default=True, help="The region that the emulator has.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port of 127.0.0.1 [a free one].")
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    help="A policy document of IAM. Without it, every call is allowed.",
)
@click.option("--throttled", type=_SHARE, default=0.0, help="The share of calls that are throttled.")
@click.option("--unavailable", type=_SHARE, default=0.0, help="The share of calls that get the status 503.")
@click.option(
    "--unknown-for",
    "unknown_for_s",
    type=click.FloatRange(0, 600),
    default=0.0,
    help="For how many seconds EC2 does not know a new image, snapshot, machine or volume.",
)
@click.option(
    "--storage",
    type=click.Choice(STORAGES),
    default="ebs-cold",
    show_default=True,
    help="The storage model of the machines' volumes.",
)
@JSON
def emulator(
    region: str,
    port: int,
    policy: Path | None,
    throttled: float,
    unavailable: float,
    unknown_for_s: float,
    storage: str,
    as_json: bool,
) -> None:
    """Serve EC2's calls for images, snapshots and machines, and the EBS direct APIs, until Ctrl-C.

    Machines run in QEMU. What a client makes is kept in the temporary directory, and is gone at the end.
    """
    trouble = Trouble(throttled=throttled, unavailable=unavailable, unknown_for_s=unknown_for_s)

    def work(verb: Verb) -> int:
        try:
            from quickstart.ec2.emulator.server import Settings, serving
        except ImportError as error:
            raise HostLacksError(f"{error.name} is not installed", hint=_INSTALL) from error
        with workspace("quickstart-ec2-") as directory:
            settings = Settings(
                directory=directory,
                region=region,
                trouble=trouble,
                policy=_document(policy) if policy else None,
                port=port,
                hypervisor=_hypervisor(verb, storage),
            )
            with serving(settings) as served:
                words = {
                    "AWS_ENDPOINT_URL": served.url,
                    "AWS_REGION": region,
                    "AWS_ACCESS_KEY_ID": settings.key.id,
                    "AWS_SECRET_ACCESS_KEY": settings.key.secret,
                }

                def text(console: Console) -> None:
                    for name, value in words.items():
                        say(console, f"export {name}={value}")

                verb.result({"environment": words}, text)
                sys.stdout.flush()
                threading.Event().wait()
        return 0

    sys.exit(run_verb("ec2 emulator", as_json, work, as_root=True))


def _hypervisor(verb: Verb, storage: str) -> Hypervisor:
    from quickstart.ec2.emulator.hypervisor import Qemu

    door.need_tools("qemu-system-x86_64", "setpriv", "prlimit", "cc")
    with Store(default_root(), verb.display().note) as store:
        kernel = Path("/boot", f"vmlinuz-{os.uname().release}")
        accelerator = (
            choose(kernel, store) if os.access(kernel, os.R_OK) else tcg("there is no kernel to try KVM with")
        )
        return Qemu(accelerator=accelerator, volume=volume_binary(store), storage=load_model(storage))


def _document(path: Path) -> Mapping[str, object]:
    try:
        found = jsondoc.parse(read_bounded(path.absolute(), MIB))
    except ValueError as error:
        raise BadInputError(f"{path} is no policy document: {error}") from error
    if not isinstance(found, dict):
        raise BadInputError(f"{path} is no policy document")
    return found
