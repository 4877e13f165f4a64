"""Make an AMI of an artefact: its disk becomes a snapshot, and the snapshot an image.

A call that was killed can be continued (state.py). A call that AWS refuses removes what it has made in the account.
Nothing else is removed: a snapshot has to have the tags of this image and of this artefact.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from quickstart.artefact.manifest import MANIFEST
from quickstart.ec2 import images, state, upload
from quickstart.ec2.aws import Aws
from quickstart.ec2.plan import Plan, planned
from quickstart.errors import BadInputError, CloudError, QuickStartError, UnavailableError
from quickstart.host.beneath import opened_regular, read_bounded
from quickstart.host.progress import Progress
from quickstart.host.unchanged import Seen, check_unchanged
from quickstart.model import MIB
from quickstart.model.words import BootMode
from quickstart.parse.printable import command

_DESCRIPTION = "made by QuickStart from profile {}"
# For so long after its last block, AWS waits for the rest of a snapshot.
_START_TIMEOUT_MINUTES = 24 * 60
# How long AWS may take to complete a snapshot of which it already has everything.
_COMPLETED_S = 300.0
# What AWS says of a snapshot that is closed already.
_NOT_PENDING = "ValidationException"


@dataclass(frozen=True, kw_only=True)
class Source:
    """The artefact of an AMI. ``disk`` is a raw image in ``out`` whose root volume begins at ``root_at_bytes``, and
    ``seen`` its state before the caller has checked that no machine has written to it. ``fats`` are its partitions with
    FAT file systems, as (offset, size) in bytes. ``profile`` is the name of the profile, and ``ready`` its readiness
    request (asking.py), or empty.
    """

    out: Path
    disk: Path
    seen: Seen
    root_at_bytes: int
    profile: str
    fats: tuple[tuple[int, int], ...] = ()
    ready: str = ""

    @property
    def plan(self) -> Plan:
        return planned(self.disk, self.root_at_bytes, self.fats)


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

    def registration(self, snapshot_id: str) -> dict[str, object]:
        """The parameters of RegisterImage."""
        return images.registration(
            name=self.name,
            snapshot_id=snapshot_id,
            boot_mode=self.boot_mode,
            tpm=self.tpm,
            manifest_sha256=manifest_sha256(self.source.out),
            description=self.description,
            ready=self.source.ready,
        )


@dataclass(frozen=True, kw_only=True)
class Created:
    """An AMI. ``is_new`` is False when it was there already. ``sent_blocks`` are those that this call has sent."""

    image_id: str
    snapshot_id: str
    is_new: bool
    plan: Plan
    sent_blocks: int


@dataclass(frozen=True)
class _Call:
    """What all steps of one call use."""

    aws: Aws
    wanted: Wanted
    files: state.Files
    progress: Progress

    @property
    def delete_command(self) -> str:
        return command("quickstart", "ami", "delete", self.wanted.name) or "quickstart ami delete NAME"


def manifest_sha256(out: Path) -> str:
    """What names the artefact in the account."""
    return hashlib.sha256(read_bounded(out / MANIFEST, MIB)).hexdigest()


def check_tpm(wanted: Wanted) -> None:
    """Raise BadInputError for a TPM that no machine of the image can have."""
    if wanted.tpm and wanted.boot_mode is not BootMode.UEFI:
        raise BadInputError("an image has a TPM only with the boot mode uefi", hint="--boot-mode uefi")


def create(aws: Aws, wanted: Wanted, progress: Progress, *, resume: bool) -> Created:
    """Make the AMI. With ``resume``, continue a call that was killed. The caller keeps OUT from being replaced
    (``output.in_use``).

    Raises BadInputError when the account has another image of this name, when the disk changes meanwhile, or when a
    killed call has left something and ``resume`` is not set. Raises CloudError when AWS refuses a call.
    """
    images.check_name(wanted.name)
    check_tpm(wanted)
    digest = manifest_sha256(wanted.source.out)
    with state.locked(wanted.source.out, wanted.name, aws.account, aws.region, aws.endpoint) as files:
        call = _Call(aws, wanted, files, progress)
        with progress.step("look for the disk's blocks"):
            plan = wanted.source.plan
        if (present := images.named(aws, wanted.name)) is not None:
            return _was_there(call, present, digest, plan)
        record = _begun(call, digest, resume)
        return _made(call, plan, record)


def _was_there(call: _Call, present: images.Image, digest: str, plan: Plan) -> Created:
    wanted = call.wanted
    if present.manifest_sha256 != digest or not present.snapshot_ids:
        raise BadInputError(
            f"the account has another image of the name {present.name} ({present.id})",
            hint=f"choose another --name, or `{call.delete_command}`",
        )
    if (present.boot_mode, present.has_tpm) != (wanted.boot_mode, wanted.tpm):
        raise BadInputError(
            f"the account has the image {present.name} ({present.id}) with the boot mode {present.boot_mode} and "
            f"{'a' if present.has_tpm else 'no'} TPM",
            hint=f"choose another --name, or `{call.delete_command}`",
        )
    images.wait_for_image(call.aws, present.id, wanted.waiting)
    state.remove_record(call.files)
    return Created(
        image_id=present.id, snapshot_id=present.snapshot_ids[0], is_new=False, plan=plan, sent_blocks=0
    )


def _begun(call: _Call, digest: str, resume: bool) -> state.Record:
    """The record of this call: the one that a killed call has left, or a new one."""
    record = state.read_record(call.files)
    if record is not None and record.name == call.wanted.name:
        left = _left(call, record, resume)
        if left is not None and not resume:
            raise BadInputError(
                f"an earlier call has not made {record.name} to its end",
                hint=f"--resume continues it, `{call.delete_command}` removes what it has made",
            )
        if left is not None and left.manifest_sha256 != digest:
            raise BadInputError(
                f"the earlier call for {record.name} was for another artefact",
                hint=f"`{call.delete_command}` removes what it has made",
            )
        if resume and record.manifest_sha256 == digest and (left is not None or not record.snapshot_id):
            return record
    # What the earlier call had made was removed, or it had made nothing.
    state.remove_record(call.files)
    record = state.Record(
        name=call.wanted.name,
        account=call.aws.account,
        region=call.aws.region,
        manifest_sha256=digest,
        # The hash of the artefact alone would return a snapshot that was deleted meanwhile.
        token=digest[:40] + secrets.token_hex(8),
    )
    state.write_record(call.files, record)
    return record


def _left(call: _Call, record: state.Record, resume: bool) -> images.Snapshot | None:
    """The snapshot of an earlier call that is still in the account, if it can be completed. A record alone proves
    nothing, so the snapshot has to have its tags.
    """
    found: Sequence[images.Snapshot | None] = images.our_snapshots(call.aws, record.name)
    if resume and record.snapshot_id and not found:
        found = [images.snapshot_of(call.aws, record.snapshot_id, call.wanted.waiting)]
    for snapshot in found:
        if snapshot is None or snapshot.image_name != record.name:
            continue
        if snapshot.id != record.snapshot_id and record.snapshot_id:
            continue
        if snapshot.state == "error":
            images.delete_snapshot(call.aws, snapshot.id)
            continue
        return snapshot
    return None


def _made(call: _Call, plan: Plan, record: state.Record) -> Created:
    aws, wanted = call.aws, call.wanted
    if not record.snapshot_id:
        record = _started(call, plan, record)
    with _rolled_back(call, record), opened_regular(wanted.source.disk) as fd:
        sent = 0
        if not record.is_sent:
            sent = _sent(call, plan, record, fd)
            record = record.model_copy(update={"is_sent": True})
            state.write_record(call.files, record)
        with call.progress.step("wait for the snapshot"):
            images.wait_for_snapshot(aws, record.snapshot_id, wanted.waiting)
        with call.progress.counted("read the snapshot back", len(plan.written)) as advance:
            upload.compare_blocks(aws, record.snapshot_id, fd, plan, wanted.workers, advance)
        # What was left out is not compared.
        check_unchanged(wanted.source.disk, wanted.source.seen)
        with call.progress.step("register the image"):
            image_id = images.register(aws, wanted.waiting, wanted.registration(record.snapshot_id))
            images.wait_for_image(aws, image_id, wanted.waiting)
    state.remove_record(call.files)
    return Created(
        image_id=image_id, snapshot_id=record.snapshot_id, is_new=True, plan=plan, sent_blocks=sent
    )


@contextmanager
def _rolled_back(call: _Call, record: state.Record) -> Iterator[None]:
    """When AWS refuses a call in the ``with`` block, or the disk changes, remove the snapshot of ``record`` and its image
    from the account. When AWS does not answer, and when the removal fails, the record stays.
    """
    try:
        yield
    except (UnavailableError, KeyboardInterrupt):
        call.progress.note(f"--resume continues, `{call.delete_command}` removes what was made")
        raise
    except (CloudError, BadInputError):
        try:
            present = images.named(call.aws, record.name)
            if present is not None and record.snapshot_id in present.snapshot_ids:
                images.deregister(call.aws, present.id)
            images.delete_snapshot(call.aws, record.snapshot_id, is_new=True)
            state.remove_record(call.files)
        except QuickStartError as failure:
            call.progress.note(
                f"{record.snapshot_id} could not be removed ({failure.message}): `{call.delete_command}`"
            )
        raise


def _started(call: _Call, plan: Plan, record: state.Record) -> state.Record:
    """Begin the snapshot. Its id is in the record before anything else is done with it."""
    answer = call.aws.call(
        "ebs",
        "start_snapshot",
        VolumeSize=plan.volume_gib,
        Description=call.wanted.description,
        ClientToken=record.token,
        Timeout=_START_TIMEOUT_MINUTES,
        Tags=images.tags(record.name, record.manifest_sha256),
    )
    record = record.model_copy(update={"snapshot_id": images.identifier(answer.get("SnapshotId"))})
    state.write_record(call.files, record)
    with _rolled_back(call, record):
        upload.check_block_size(answer)
    return record


def _sent(call: _Call, plan: Plan, record: state.Record, fd: int) -> int:
    """Send the blocks that AWS does not have yet, and complete the snapshot. The result is their number."""
    wanted = set(plan.written)
    noted = state.read_done(call.files, plan.blocks)
    digests = {number: each for number, each in noted.items() if number in wanted}
    missing = [number for number in plan.written if number not in digests]
    state.begin_notes(call.files)
    with call.progress.counted("send the disk", len(missing)) as advance:

        def put(number: int, digest: bytes) -> None:
            digests[number] = digest
            state.note_done(call.files, number, digest)
            advance()

        upload.put_blocks(call.aws, record.snapshot_id, fd, missing, call.wanted.workers, put)
    _completed(call, record.snapshot_id, [digests[number] for number in plan.written])
    return len(missing)


def _completed(call: _Call, snapshot_id: str, digests: Sequence[bytes]) -> None:
    """Complete the snapshot. If an earlier call has done so, and its answer was lost, AWS refuses to do it again."""
    try:
        call.aws.call(
            "ebs",
            "complete_snapshot",
            also=upload.is_unknown,
            SnapshotId=snapshot_id,
            ChangedBlocksCount=len(digests),
            Checksum=upload.linear_checksum(digests),
            ChecksumAlgorithm="SHA256",
            ChecksumAggregationMethod="LINEAR",
        )
    except CloudError as refusal:
        if refusal.code != _NOT_PENDING:
            raise
        waiting = call.wanted.waiting
        try:
            images.wait_for_snapshot(
                call.aws, snapshot_id, replace(waiting, limit_s=min(_COMPLETED_S, waiting.limit_s))
            )
        except CloudError:
            raise refusal from None
