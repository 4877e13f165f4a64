"""`quickstart ami`: make images for EC2 (AMIs) of artefacts, and manage these images."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import click
from rich.console import Console

from quickstart.artefact import directory as artefacts
from quickstart.artefact import output
from quickstart.artefact.manifest import read_manifest
from quickstart.cli.cloud.account import confirm, image_of_ours, place_options
from quickstart.cli.cloud.machines import cleanup, run_machine
from quickstart.cli.options import JSON
from quickstart.cli.output import Verb, run_verb, say
from quickstart.ec2 import create as creation
from quickstart.ec2 import images
from quickstart.ec2.asking import word_of
from quickstart.ec2.aws import Aws, Place, connected
from quickstart.ec2.disk import boot_mode_of, fats_of
from quickstart.ec2.plan import Plan
from quickstart.ec2.policy import policy
from quickstart.ec2.upload import DEFAULT_WORKERS
from quickstart.engines.ownsystem import look_into
from quickstart.errors import BadInputError
from quickstart.host.unchanged import Seen, seen
from quickstart.model import MIB, Artefact
from quickstart.model.disk import Inspected
from quickstart.model.words import BootMode, DiskFormat, Target
from quickstart.parse.printable import brief
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root

_AUTO = "auto"


@click.group()
def ami() -> None:
    """Make images for EC2 of artefacts, and manage these images.

    Credentials, region and endpoint come from where every tool for AWS takes them: the environment and ~/.aws.
    """


@ami.command("create")
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--name", required=True, help="The name of the image, which is unique in the account and region."
)
@place_options
@click.option(
    "--boot-mode",
    type=click.Choice([_AUTO, *(each.value for each in BootMode)]),
    default=_AUTO,
    show_default=True,
    help="The firmware of the machines. auto: what the disk's boot loaders can do, UEFI first. legacy-bios also lets "
    "types of machines without UEFI start the image.",
)
@click.option(
    "--tpm",
    is_flag=True,
    help="Give the machines a TPM 2.0. The firmware then measures what it starts, which takes time. Needs the boot "
    "mode uefi.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=DEFAULT_WORKERS,
    show_default=True,
    help="How many blocks are sent at once. More are faster on a fast network, and AWS may throttle them.",
)
@click.option("--resume", is_flag=True, help="Continue a call that was killed or got no answer.")
@click.option("--dry-run", is_flag=True, help="Print the calls and the needed policy, and call nothing.")
@JSON
def create(
    out: Path,
    name: str,
    region: str,
    aws_profile: str,
    endpoint_url: str,
    boot_mode: str,
    tpm: bool,
    workers: int,
    resume: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make the image NAME of the artefact OUT, which boots by itself (`build --image`, `build --target disk`).

    The disk becomes a snapshot, which is compared with the disk, and then an image. A second call with the same OUT and
    NAME changes nothing. AWS charges for the calls and for the snapshot's storage.
    """
    place = Place(region=region, profile=aws_profile, endpoint=endpoint_url)

    def work(verb: Verb) -> int:
        directory = out.absolute()
        with output.in_use(directory):
            artefact = artefacts.load(directory)
            before = seen(artefact.disk)
            _check_artefact(artefact)
            check_name(name)
            # What is missing is said before the disk is read.
            aws = None if dry_run else connected(place, workers)
            if aws is not None:
                verb.display().note(aws.name)
            found = _examined(artefact, verb)
            wanted = creation.Wanted(
                name=name,
                source=_source(artefact, before, found),
                boot_mode=boot_mode_of(found.loaders, None if boot_mode == _AUTO else BootMode(boot_mode)),
                tpm=tpm,
                workers=workers,
            )
            creation.check_tpm(wanted)
            if aws is None:
                return _tell(verb, wanted)
            began_s = time.monotonic()
            made = creation.create(aws, wanted, verb.display(), resume=resume)
            _show_created(verb, aws, wanted, made, time.monotonic() - began_s)
        return 0

    sys.exit(run_verb("ami create", as_json, work, as_root=True))


def check_name(name: str) -> None:
    """Raise BadInputError for a name that no image can have, or that a bench's images have."""
    images.check_name(name)
    if name.startswith(images.BENCH_PREFIX):
        raise BadInputError(
            f"the names of a bench's images begin with {images.BENCH_PREFIX}, and `bench cleanup` removes them",
            hint="choose another --name",
        )


def _source(artefact: Artefact, before: Seen, found: Inspected) -> creation.Source:
    return creation.Source(
        out=artefact.directory,
        disk=artefact.disk,
        seen=before,
        root_at_bytes=artefact.root_at_bytes,
        profile=artefact.profile_name,
        ready=word_of(artefact.ready),
        fats=fats_of(found),
    )


def _check_artefact(artefact: Artefact) -> None:
    if artefact.target is not Target.DISK or artefact.disk_format is not DiskFormat.RAW:
        raise BadInputError(
            f"{artefact.directory} has no raw disk that boots by itself",
            hint="build it with `--target disk`, or with `--image`",
        )
    # A rebuilt disk has the data of its machine, too.
    if artefacts.may_be_used(artefact):
        raise BadInputError(
            f"a machine has run from the disk of {artefact.directory}, so each machine of the image would have its data",
            hint="build it again",
        )
    if artefact.disk.stat().st_size != read_manifest(artefact.directory).disk.size_bytes:
        raise BadInputError(f"the disk of {artefact.directory} has another size now", hint="build it again")


def _examined(artefact: Artefact, verb: Verb) -> Inspected:
    with Store(default_root(), verb.display().note) as store:
        return look_into(artefact.disk, Context(store, verb.display()))


def _tell(verb: Verb, wanted: creation.Wanted) -> int:
    """Print what `create` would do."""
    plan = wanted.source.plan
    calls: tuple[tuple[str, object], ...] = (
        ("ebs:StartSnapshot", {"VolumeSize": plan.volume_gib, "Description": wanted.description}),
        ("ebs:PutSnapshotBlock", {"calls": len(plan.written)}),
        ("ebs:CompleteSnapshot", {"ChangedBlocksCount": len(plan.written)}),
        ("ebs:GetSnapshotBlock", {"calls": len(plan.written)}),
        ("ec2:RegisterImage", wanted.registration("snap-…")),
    )

    def text(console: Console) -> None:
        say(console, _plan_line(plan))
        for action, parameters in calls:
            say(console, f"{action} {json.dumps(parameters, ensure_ascii=False)}")
        for line in json.dumps(policy(), indent=1).splitlines():
            say(console, line)

    document = {"plan": _plan_document(plan), "calls": [list(call) for call in calls], "policy": policy()}
    verb.result(document, text)
    return 0


def _plan_document(plan: Plan) -> dict[str, object]:
    return {
        "disk_bytes": plan.disk_bytes,
        "volume_gib": plan.volume_gib,
        "blocks": plan.blocks,
        "written_blocks": len(plan.written),
        "written_bytes": plan.written_bytes,
    }


def _plan_line(plan: Plan) -> str:
    return (
        f"{len(plan.written)} of {plan.blocks} blocks, {plan.written_bytes / MIB:.0f} MiB of a disk of "
        f"{plan.disk_bytes / MIB:.0f} MiB"
    )


def _show_created(
    verb: Verb, aws: Aws, wanted: creation.Wanted, made: creation.Created, took_s: float
) -> None:
    document = {
        "image_id": made.image_id,
        "snapshot_id": made.snapshot_id,
        "name": wanted.name,
        "region": aws.region,
        "account": aws.account,
        "boot_mode": wanted.boot_mode.value,
        "new": made.is_new,
        "sent_blocks": made.sent_blocks,
        "took_s": round(took_s, 3),
        "plan": _plan_document(made.plan),
    }

    def text(console: Console) -> None:
        say(console, f"{made.image_id}  {wanted.name}{'' if made.is_new else '  (was there already)'}")
        if made.is_new:
            say(console, f"sent {made.sent_blocks} blocks; {_plan_line(made.plan)}; {took_s:.1f} s")

    verb.result(document, text)


@ami.command("list")
@place_options
@JSON
def list_images(region: str, aws_profile: str, endpoint_url: str, as_json: bool) -> None:
    """List the images of the account that QuickStart has made, and snapshots of which no image was made."""
    place = Place(region=region, profile=aws_profile, endpoint=endpoint_url)

    def work(verb: Verb) -> int:
        aws = connected(place, 1)
        found = images.ours(aws)
        of_images = {identifier for image in found for identifier in image.snapshot_ids}
        left = [each for each in images.our_snapshots(aws) if each.id not in of_images]

        def text(console: Console) -> None:
            for image in found:
                say(
                    console,
                    f"{image.id}  {image.state:10} {image.boot_mode:14} {image.created}  {brief(image.name)}",
                )
            for snapshot in left:
                say(
                    console,
                    f"{snapshot.id}  without an image ({snapshot.state})  {brief(snapshot.image_name)}",
                )
            say(console, f"{aws.name}: {len(found)} images")

        document = {"images": [_image_document(each) for each in found], "snapshots": _snapshot_rows(left)}
        verb.result(document, text)
        return 0

    sys.exit(run_verb("ami list", as_json, work))


def _image_document(image: images.Image) -> dict[str, object]:
    return {
        "image_id": image.id,
        "name": image.name,
        "state": image.state,
        "created": image.created,
        "boot_mode": image.boot_mode,
        "manifest_sha256": image.manifest_sha256,
        "snapshot_ids": list(image.snapshot_ids),
    }


def _snapshot_rows(snapshots: Iterable[images.Snapshot]) -> list[dict[str, object]]:
    return [
        {"snapshot_id": each.id, "name": each.image_name, "state": each.state, "size_gib": each.size_gib}
        for each in snapshots
    ]


@ami.command("show")
@click.argument("name")
@place_options
@JSON
def show(name: str, region: str, aws_profile: str, endpoint_url: str, as_json: bool) -> None:
    """Show the image NAME."""
    place = Place(region=region, profile=aws_profile, endpoint=endpoint_url)

    def work(verb: Verb) -> int:
        aws = connected(place, 1)
        document = _image_document(image_of_ours(aws, name))

        def text(console: Console) -> None:
            for key, value in document.items():
                say(console, f"{key:16}{brief(' '.join(value) if isinstance(value, list) else str(value))}")

        verb.result(document, text)
        return 0

    sys.exit(run_verb("ami show", as_json, work))


@ami.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@place_options
@JSON
def delete(name: str, yes: bool, region: str, aws_profile: str, endpoint_url: str, as_json: bool) -> None:
    """Delete the image NAME and its snapshots, also those that an interrupted `ami create` has left.

    Only what QuickStart has made is deleted. Running machines are not touched.
    """
    place = Place(region=region, profile=aws_profile, endpoint=endpoint_url)

    def work(verb: Verb) -> int:
        images.check_name(name)
        aws = connected(place, 1)
        image = images.named(aws, name)
        own = image if image is not None and image.manifest_sha256 else None
        snapshots = [each.id for each in images.our_snapshots(aws, name)]
        kept = [each for each in (own.snapshot_ids if own else ()) if each not in snapshots]
        doomed = [*([own.id] if own else []), *snapshots]
        if not doomed:
            raise BadInputError(
                f"QuickStart has made no image {name} in {aws.name}", hint="`quickstart ami list`"
            )
        confirm(verb, aws, [f"{each}  {name}" for each in doomed], yes)
        if own:
            images.deregister(aws, own.id)
        for identifier in snapshots:
            images.delete_snapshot(aws, identifier)
        if kept:
            verb.display().note(f"kept, because QuickStart has not made them: {' '.join(kept)}")
        document = {"deleted": doomed, "kept": kept}
        verb.result(document, lambda console: say(console, f"deleted {' '.join(doomed)}"))
        return 0

    sys.exit(run_verb("ami delete", as_json, work))


@ami.command("policy")
@click.option(
    "--machines", is_flag=True, help="Add what `ami run`, `ami cleanup` and `bench --backend ec2` need."
)
def show_policy(machines: bool) -> None:
    """Print a policy of IAM with the permissions that `quickstart ami` needs."""
    click.echo(json.dumps(policy(machines=machines), indent=2))


ami.add_command(run_machine)
ami.add_command(cleanup)
