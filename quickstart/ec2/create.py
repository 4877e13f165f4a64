"""Make an AMI of an artefact: its disk becomes a snapshot, and the snapshot an image.

A call that was killed can be continued (state.py). A call that fails removes what it has made in the account, unless
it could be continued: then its record stays.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from quickstart.artefact.manifest import MANIFEST
from quickstart.ec2 import images, state, upload
from quickstart.ec2.aws import Aws
from quickstart.ec2.plan import Plan, planned
from quickstart.errors import BadInputError, CloudError, UnavailableError
from quickstart.host.beneath import opened_regular, read_bounded
from quickstart.host.progress import Progress
from quickstart.model import MIB
from quickstart.model.words import BootMode

_DESCRIPTION = "made by QuickStart from profile {}"
_START_TIMEOUT_MINUTES = 60
# How long AWS may take to complete a snapshot of which it already has everything.
_COMPLETED_S = 300.0
# What AWS says of a snapshot that is closed already.
_NOT_PENDING = "ValidationException"


@dataclass(frozen=True, kw_only=True)
class Source:
    """The artefact of an AMI. ``disk`` is a raw image in ``out`` whose root volume begins at ``root_at_bytes``.
    ``profile`` is the name of the profile.
    """

    out: Path
    disk: Path
    root_at_bytes: int
    profile: str


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The AMI that a user wants. ``workers`` is the number of calls that run at once."""

    name: str
    source: Source
    boot_mode: BootMode
    tpm: bool = False
    workers: int = upload.DEFAULT_WORKERS
    waiting: images.Waiting = field(default_factory=images.Waiting)

    @property
    def description(self) -> str:
        return _DESCRIPTION.format(self.source.profile)


@dataclass(frozen=True, kw_only=True)
class Created:
    """An AMI. ``is_new`` is False when it was there already. ``sent_blocks`` are those that this call has sent."""

    image_id: str
    snapshot_id: str
    is_new: bool
    plan: Plan
    sent_blocks: int


def manifest_sha256(out: Path) -> str:
    """What names the artefact in the account."""
    return hashlib.sha256(read_bounded(out / MANIFEST, MIB)).hexdigest()


def create(aws: Aws, wanted: Wanted, progress: Progress, *, resume: bool) -> Created:
    """Make the AMI. With ``resume``, continue a call that was killed. The caller keeps OUT from being replaced
    (``output.in_use``).

    Raises BadInputError when the account has another image of this name, or when a record of a killed call exists and
    ``resume`` is not set. Raises CloudError when AWS refuses a call.
    """
    out, name = wanted.source.out, wanted.name
    images.check_name(name)
    if wanted.tpm and wanted.boot_mode is not BootMode.UEFI:
        raise BadInputError("an image has a TPM only with the boot mode uefi", hint="--boot-mode uefi")
    digest = manifest_sha256(out)
    files = state.files_of(out, name, aws.account, aws.region)
    record = state.read_record(files)
    plan = _plan(wanted.source, progress)
    if (present := images.named(aws, name)) is not None:
        _check_same(present, digest)
        images.wait_for_image(aws, present.id, wanted.waiting)
        state.remove_record(files)
        return Created(
            image_id=present.id,
            snapshot_id=present.snapshot_ids[0],
            is_new=False,
            plan=plan,
            sent_blocks=0,
        )
    record = _begun(aws, record, files, name, digest, resume)
    with _rolled_back(aws, files):
        return _made(aws, wanted, plan, files, record, progress)


def _plan(source: Source, progress: Progress) -> Plan:
    with progress.step("look for the disk's blocks"):
        return planned(source.disk, source.root_at_bytes)


def _check_same(present: images.Image, digest: str) -> None:
    if present.manifest_sha256 != digest:
        raise BadInputError(
            f"the account has another image of the name {present.name} ({present.id})",
            hint=f"choose another --name, or `quickstart ami delete '{present.name}'`",
        )


def _begun(
    aws: Aws, record: state.Record | None, files: state.Files, name: str, digest: str, resume: bool
) -> state.Record:
    """The record of this call: the one that a killed call has left, or a new one."""
    if record is not None and not resume:
        if images.our_snapshots(aws, name):
            raise BadInputError(
                f"an earlier call has not made {name} to its end",
                hint=f"--resume continues it, `quickstart ami delete '{name}'` removes what it has made",
            )
        # What the earlier call had made was removed.
        state.remove_record(files)
        record = None
    if record is not None:
        if record.manifest_sha256 != digest or record.endpoint != aws.endpoint:
            raise BadInputError(
                f"the earlier call for {name} was for another artefact or endpoint",
                hint=f"`quickstart ami delete '{name}'` removes what it has made",
            )
        return record
    state.remove_record(files)
    record = state.Record(
        name=name,
        account=aws.account,
        region=aws.region,
        endpoint=aws.endpoint,
        manifest_sha256=digest,
        # The hash of the artefact alone would return a snapshot that was deleted meanwhile.
        token=digest[:40] + secrets.token_hex(8),
    )
    state.write_record(files, record)
    return record


@contextmanager
def _rolled_back(aws: Aws, files: state.Files) -> Iterator[None]:
    """When AWS refuses a call in the ``with`` block, remove what the record names from the account. When the work is
    only interrupted, or the removal fails, the record stays, so that the work can be continued.
    """
    try:
        yield
    except UnavailableError:
        raise
    except CloudError:
        record = state.read_record(files)
        with suppress(CloudError, BadInputError):
            if record is not None and record.snapshot_id:
                _remove(aws, record.name, record.snapshot_id)
            state.remove_record(files)
        raise


def _remove(aws: Aws, name: str, snapshot_id: str) -> None:
    """Remove the image ``name``, if it is of this snapshot, and the snapshot."""
    present = images.named(aws, name)
    if present is not None and snapshot_id in present.snapshot_ids:
        images.deregister(aws, present.id)
    images.delete_snapshot(aws, snapshot_id)


def _made(
    aws: Aws,
    wanted: Wanted,
    plan: Plan,
    files: state.Files,
    record: state.Record,
    progress: Progress,
) -> Created:
    if not record.snapshot_id:
        record = _started(aws, wanted, plan, files, record)
    with opened_regular(wanted.source.disk) as fd:
        sent = 0
        if not record.is_sent:
            sent = _sent(aws, wanted, plan, files, record, fd, progress)
            record = record.model_copy(update={"is_sent": True})
            state.write_record(files, record)
        with progress.step("wait for the snapshot"):
            images.wait_for_snapshot(aws, record.snapshot_id, wanted.waiting)
        with progress.counted("read the snapshot back", len(plan.written)) as advance:
            upload.compare_blocks(aws, record.snapshot_id, fd, plan, wanted.workers, advance)
    with progress.step("register the image"):
        image_id = images.register(
            aws,
            name=wanted.name,
            snapshot_id=record.snapshot_id,
            boot_mode=wanted.boot_mode,
            tpm=wanted.tpm,
            manifest_sha256=record.manifest_sha256,
            description=wanted.description,
        )
        images.wait_for_image(aws, image_id, wanted.waiting)
    state.remove_record(files)
    return Created(
        image_id=image_id, snapshot_id=record.snapshot_id, is_new=True, plan=plan, sent_blocks=sent
    )


def _started(aws: Aws, wanted: Wanted, plan: Plan, files: state.Files, record: state.Record) -> state.Record:
    answer = aws.call("ebs", "start_snapshot", **start_parameters(wanted, plan, record))
    upload.check_block_size(answer["BlockSize"])
    record = record.model_copy(update={"snapshot_id": str(answer["SnapshotId"])})
    state.write_record(files, record)
    return record


def start_parameters(wanted: Wanted, plan: Plan, record: state.Record) -> dict[str, object]:
    """The parameters of StartSnapshot."""
    return {
        "VolumeSize": plan.volume_gib,
        "Description": wanted.description,
        "ClientToken": record.token,
        "Timeout": _START_TIMEOUT_MINUTES,
        "Tags": images.tags(record.name, record.manifest_sha256),
    }


def _sent(
    aws: Aws,
    wanted: Wanted,
    plan: Plan,
    files: state.Files,
    record: state.Record,
    fd: int,
    progress: Progress,
) -> int:
    """Send the blocks that AWS does not have yet, and complete the snapshot. The result is their number."""
    planned_numbers = set(plan.written)
    digests = {number: each for number, each in state.read_done(files).items() if number in planned_numbers}
    missing = [number for number in plan.written if number not in digests]
    with (
        state.opened_done(files) as noted,
        progress.counted("send the disk", len(missing)) as advance,
    ):

        def put(number: int, digest: bytes) -> None:
            digests[number] = digest
            state.note_done(noted, number, digest)
            advance()

        upload.put_blocks(aws, record.snapshot_id, fd, missing, wanted.workers, put)
    _completed(aws, wanted, record.snapshot_id, [digests[number] for number in plan.written])
    return len(missing)


def _completed(aws: Aws, wanted: Wanted, snapshot_id: str, digests: Sequence[bytes]) -> None:
    """Complete the snapshot. If an earlier call has done so, and its answer was lost, AWS refuses to do it again."""
    try:
        aws.call(
            "ebs",
            "complete_snapshot",
            SnapshotId=snapshot_id,
            ChangedBlocksCount=len(digests),
            Checksum=upload.linear_checksum(digests),
            ChecksumAlgorithm="SHA256",
            ChecksumAggregationMethod="LINEAR",
        )
    except CloudError as refusal:
        if refusal.code != _NOT_PENDING:
            raise
        limit_s = min(_COMPLETED_S, wanted.waiting.limit_s)
        try:
            images.wait_for_snapshot(aws, snapshot_id, replace(wanted.waiting, limit_s=limit_s))
        except CloudError:
            raise refusal from None
