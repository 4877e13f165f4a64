"""`quickstart bench --backend ec2` and `quickstart bench cleanup`: measure machines in EC2."""

from __future__ import annotations

import functools
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from quickstart.bench.cloud import (
    CloudOptions,
    CloudRunner,
    bench_images,
    bench_snapshots,
    check_plan,
    clock_of,
    machine_hours,
    remove_image,
)
from quickstart.cli.cloud.account import confirm, machine_options, place_options, user_data_of
from quickstart.cli.options import JSON
from quickstart.cli.output import Verb, run_verb, say
from quickstart.ec2 import images, machines
from quickstart.ec2.aws import Aws, Place, connected
from quickstart.ec2.upload import DEFAULT_WORKERS
from quickstart.errors import BadInputError, QuickStartError
from quickstart.host.progress import Progress
from quickstart.measure.matrix import Matrix
from quickstart.measure.results import CLOUD_STORAGE
from quickstart.store.store import Store

_QEMU, _EC2 = "qemu", "ec2"


@dataclass(frozen=True, kw_only=True)
class CloudArguments:
    """The options of `quickstart bench` for EC2."""

    backend: str = _QEMU
    region: str = ""
    aws_profile: str = ""
    endpoint_url: str = ""
    machine_type: str = ""
    subnet: str = ""
    security_groups: tuple[str, ...] = ()
    key_name: str = ""
    user_data_file: Path | None = None
    rate_mib_s: int | None = None
    most_machine_hours: float = CloudOptions.most_machine_hours
    keep_images: bool = False

    @property
    def place(self) -> Place:
        return Place(region=self.region, profile=self.aws_profile, endpoint=self.endpoint_url)


def cloud_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for EC2. ``command`` gets them as one argument ``cloud``."""

    @functools.wraps(command)
    def gathered(*args: Any, **kwargs: Any) -> None:
        # Without them, a sub-verb is called.
        names = [each.name for each in fields(CloudArguments) if each.name in kwargs]
        found = {name: kwargs.pop(name) for name in names}
        command(*args, cloud=CloudArguments(**found), **kwargs)

    wrapped: Callable[..., None] = gathered
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return place_options(machine_options(wrapped))


_OPTIONS = (
    click.option(
        "--backend",
        type=click.Choice([_QEMU, _EC2]),
        default=_QEMU,
        show_default=True,
        help="Where the machines of --disk run: in QEMU on this host, or in EC2.",
    ),
    click.option(
        "--machine-type",
        default="",
        metavar="TYPE",
        help="EC2: the type of the machines [t3.small or t3.medium].",
    ),
    click.option(
        "--max-machine-hours",
        "most_machine_hours",
        type=click.FloatRange(min=0, min_open=True),
        default=CloudOptions.most_machine_hours,
        show_default=True,
        help="EC2: measure nothing if all machines together might run longer than this.",
    ),
    click.option("--keep-images", is_flag=True, help="EC2: leave the bench's images in the account."),
)


def cloud_block(cloud: CloudArguments, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options for a matrix, with what EC2 alone can be: the clock of this account, and a fresh volume of a snapshot."""
    if cloud.backend != _EC2:
        return dict(options)
    aws = connected(cloud.place, 1)
    return {
        **options,
        "clocks": options.get("clocks") or (clock_of(aws),),
        "storages": options.get("storages") or (CLOUD_STORAGE,),
    }


def check_backend(cloud: CloudArguments, matrix: Matrix) -> None:
    """Raise BadInputError when the options say another backend than the clocks of the matrix. Machines in EC2 cost money,
    so they are not started by a word that stands somewhere else.
    """
    if matrix.is_of_cloud and cloud.backend != _EC2:
        raise BadInputError("the machines of this matrix are in EC2", hint="--backend ec2 starts them")
    given = [each.name for each in fields(cloud) if getattr(cloud, each.name) != each.default]
    if not matrix.is_of_cloud and given:
        raise BadInputError(
            "the machines of this matrix are in QEMU, and an option is for EC2",
            hint="--backend ec2 with --disk, or leave the options for EC2 out",
        )


def cloud_runner(
    matrix: Matrix, cloud: CloudArguments, directory: Path, store: Store, progress: Progress, stack: ExitStack
) -> CloudRunner:
    """The runner for a matrix whose machines are in EC2. Before anything is written, the account and what the bench may
    use are shown. When ``stack`` ends without an error, the bench's images are removed. ``directory`` has the results.
    """
    aws = connected(cloud.place, DEFAULT_WORKERS)
    progress.note(aws.name)
    options = CloudOptions(
        type=cloud.machine_type,
        subnet_id=cloud.subnet,
        group_ids=cloud.security_groups,
        key_name=cloud.key_name,
        user_data=_user_data(matrix, cloud),
        rate_mib_s=cloud.rate_mib_s,
        most_machine_hours=cloud.most_machine_hours,
        owner=f"{platform.node()}:{directory}",
    )
    check_plan(matrix, aws, options)
    runs = sum(each.runs for each in matrix.plan)
    progress.note(
        f"{runs} machines, one after the other, each with a fresh volume: at most {machine_hours(matrix):.1f} machine "
        "hours. AWS charges for machines, volumes, snapshots and calls"
    )
    runner = CloudRunner(matrix=matrix, aws=aws, options=options, store=store, progress=progress)

    def at_the_end(kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is not None or cloud.keep_images:
            progress.note("the bench's images stay in the account: `quickstart bench cleanup` removes them")
        else:
            try:
                runner.remove_images()
            except QuickStartError as failure:
                # For example, the credentials have expired. The results are there all the same.
                progress.note(f"the bench's images may stay ({failure.message}): `quickstart bench cleanup`")

    stack.push(at_the_end)
    return runner


def _user_data(matrix: Matrix, cloud: CloudArguments) -> bytes | None:
    if cloud.user_data_file is not None and matrix.user_data:
        raise BadInputError("both the matrix and --user-data name a file", hint="leave one of them out")
    given = cloud.user_data_file or (Path(matrix.user_data) if matrix.user_data else None)
    return user_data_of(given)


@click.command("cleanup")
@click.option("--yes", is_flag=True, help="Do not ask.")
@place_options
@JSON
def bench_cleanup(yes: bool, region: str, aws_profile: str, endpoint_url: str, as_json: bool) -> None:
    """Remove what a bench in EC2 has left: its machines, images and snapshots.

    Machines of `quickstart ami run` are ended, too, and so is a bench that still works, also of other users of the
    account.
    """
    place = Place(region=region, profile=aws_profile, endpoint=endpoint_url)

    def work(verb: Verb) -> int:
        aws = connected(place, 1)
        instances, made, snapshots = machines.ours(aws), bench_images(aws), bench_snapshots(aws)
        left = [
            *(each.id for each in instances),
            *(each.id for each in made),
            *(each.id for each in snapshots),
        ]
        if left:
            rows = (
                *(each.row for each in instances),
                *(f"{each.id}  {each.created}  {each.name}" for each in made),
                *(f"{each.id}  {each.state}  {each.image_name}" for each in snapshots),
            )
            confirm(verb, aws, rows, yes)
            _remove(aws, [each.id for each in instances], made, snapshots)
        verb.result({"removed": left}, lambda console: _show(console, aws, left))
        return 0

    sys.exit(run_verb("bench cleanup", as_json, work))


def _remove(
    aws: Aws,
    instances: Sequence[str],
    made: Sequence[images.Image],
    snapshots: Sequence[images.Snapshot],
) -> None:
    machines.terminate(aws, instances)
    for image in made:
        remove_image(aws, image)
    for snapshot in snapshots:
        images.delete_snapshot(aws, snapshot.id)


def _show(console: Console, aws: Aws, left: Sequence[str]) -> None:
    say(console, f"{aws.name}: removed {len(left)} things")
