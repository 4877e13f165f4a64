"""`ami create` against the emulator, over real HTTP."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from quickstart.ec2 import images, policy, upload
from quickstart.ec2.aws import Aws, Patience
from quickstart.ec2.create import Source, create
from quickstart.ec2.emulator import account as account_module
from quickstart.ec2.emulator import ebs
from quickstart.ec2.emulator.account import Account, Snapshot, get_block
from quickstart.ec2.emulator.faults import ApiError, Trouble
from quickstart.ec2.emulator.server import Emulator
from quickstart.ec2.plan import BLOCK_BYTES, planned
from quickstart.errors import BadInputError, CloudError, DeniedError, HostLacksError, UnavailableError
from quickstart.host.progress import Quiet
from quickstart.model import MIB
from quickstart.model.words import BootMode
from tests.contract.ec2box import (
    DISK_MIB,
    ROOT_MIB,
    client,
    emulated,
    environment,
    made_source,
    run,
    wanted,
)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No file and no variable of the user's own counts."""
    monkeypatch.setenv("HOME", str(tmp_path))


def own(monkeypatch: pytest.MonkeyPatch, emulator: Emulator) -> Aws:
    for name, value in environment(emulator).items():
        monkeypatch.setenv(name, value)
    return client(emulator)


def check_whole(emulator: Emulator, snapshot_id: str, disk: Path, numbers: tuple[int, ...]) -> None:
    """The snapshot has just these blocks, and each of them is the disk's."""
    snapshot = emulator.account.snapshots[snapshot_id]
    assert sorted(snapshot.digests) == list(numbers)
    with disk.open("rb") as file:
        for number in numbers:
            assert get_block(snapshot, number) == upload.block_at(file.fileno(), number)


def left_in(emulator: Emulator) -> list[str]:
    return [*emulator.account.images, *emulator.account.snapshots]


def leftovers(out: Path) -> list[str]:
    return sorted(path.name for path in out.parent.iterdir() if ".ami-" in path.name)


def test_an_image_is_made_and_kept_as_ec2_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = made_source(tmp_path)
    before = hashlib.sha256(source.disk.read_bytes()).digest()
    with emulated(tmp_path) as emulator:
        aws = own(monkeypatch, emulator)
        made = create(aws, wanted(source), Quiet(), resume=False)
        check_whole(emulator, made.snapshot_id, source.disk, made.plan.written)
        # A hole in what the file system uses is there, what it does not use is not.
        assert 10 < len(made.plan.written) < made.plan.blocks / 2
        (image,) = images.ours(aws)
        assert (image.id, image.name, image.state) == (made.image_id, "web 1", "available")
        raw = aws.call("ec2", "describe_images", ImageIds=[image.id])["Images"][0]
        assert (raw["Architecture"], raw["BootMode"], raw["EnaSupport"], raw["ImdsSupport"]) == (
            *("x86_64", "uefi-preferred", True, "v2.0"),
        )
        (mapping,) = raw["BlockDeviceMappings"]
        assert mapping["Ebs"]["VolumeType"] == "gp3"
        assert mapping["Ebs"]["VolumeSize"] == 1
        again = create(aws, wanted(source), Quiet(), resume=False)
        assert (again.image_id, again.is_new, again.sent_blocks) == (made.image_id, False, 0)
        assert emulator.calls["StartSnapshot"] == 1
    assert hashlib.sha256(source.disk.read_bytes()).digest() == before
    assert leftovers(source.out) == []


def test_a_busy_and_slow_ec2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = made_source(tmp_path)
    trouble = Trouble(throttled=0.1, unavailable=0.1, unknown_for_s=0.05, pending_for_s=0.5)
    with emulated(tmp_path, trouble) as emulator:
        made = create(own(monkeypatch, emulator), wanted(source), Quiet(), resume=False)
        check_whole(emulator, made.snapshot_id, source.disk, made.plan.written)


def test_another_image_of_this_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = made_source(tmp_path)
    with emulated(tmp_path) as emulator:
        aws = own(monkeypatch, emulator)
        create(aws, wanted(source), Quiet(), resume=False)
        (source.out / "manifest.json").write_text("{}\n")
        with pytest.raises(BadInputError, match="another image of the name web 1"):
            create(aws, wanted(source), Quiet(), resume=False)


class Stopped(BaseException):
    """As SIGKILL would, this passes all handlers of errors."""


@pytest.mark.parametrize(
    ("operation", "call"),
    [
        ("start_snapshot", 1),
        ("put_snapshot_block", 1),
        ("put_snapshot_block", 7),
        ("complete_snapshot", 1),
        ("describe_snapshots", 1),
        ("list_snapshot_blocks", 1),
        ("get_snapshot_block", 5),
        ("register_image", 1),
        ("describe_images", 2),
    ],
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_stopped_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, call: int, when: str
) -> None:
    """It stops before AWS gets the call, or before the answer is noted."""
    source = made_source(tmp_path)
    with emulated(tmp_path) as emulator:
        aws = own(monkeypatch, emulator)
        counted, lock, whole = 0, threading.Lock(), {name: getattr(Aws, name) for name in ("call", "read")}

        def stopping(door: str) -> Callable[..., Any]:
            def call_it(self: Aws, service: str, name: str, *rest: Any, **parameters: object) -> Any:
                nonlocal counted
                with lock:
                    counted += name == operation
                    is_now = name == operation and counted == call
                if is_now and when == "before":
                    raise Stopped
                answer = whole[door](self, service, name, *rest, **parameters)
                if is_now:
                    raise Stopped
                return answer

            return call_it

        for door in whole:
            monkeypatch.setattr(Aws, door, stopping(door))
        with pytest.raises(Stopped):
            create(aws, wanted(source), Quiet(), resume=False)
        for door, method in whole.items():
            monkeypatch.setattr(Aws, door, method)
        made = create(aws, wanted(source), Quiet(), resume=True)
        check_whole(emulator, made.snapshot_id, source.disk, made.plan.written)
        assert [*emulator.account.images] == [made.image_id]
        assert [*emulator.account.snapshots] == [made.snapshot_id]
    assert leftovers(source.out) == []


def refusing(monkeypatch: pytest.MonkeyPatch, operation: str, error: Exception) -> None:
    """The operation fails with ``error`` in place of being called."""
    whole = Aws.call

    def call(self: Aws, service: str, name: str, **parameters: Any) -> dict[str, Any]:
        if name == operation:
            raise error
        return whole(self, service, name, **parameters)

    monkeypatch.setattr(Aws, "call", call)


def interrupted(monkeypatch: pytest.MonkeyPatch, aws: Aws, source: Source) -> None:
    """A call that ends before it completes the snapshot, and can be continued."""
    with monkeypatch.context() as patched:
        refusing(patched, "complete_snapshot", UnavailableError("no answer", code=""))
        with pytest.raises(UnavailableError):
            create(aws, wanted(source), Quiet(), resume=False)


def test_what_is_refused_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = made_source(tmp_path)
    allowed = [action for action in policy.ACTIONS if action != "ec2:RegisterImage"]
    document = {"Statement": [{"Effect": "Allow", "Action": allowed}]}
    with emulated(tmp_path, policy=document) as emulator:
        with pytest.raises(DeniedError, match="no permission for ec2:RegisterImage"):
            create(own(monkeypatch, emulator), wanted(source), Quiet(), resume=False)
        assert left_in(emulator) == []
    assert leftovers(source.out) == []


@pytest.mark.parametrize("action", policy.ACTIONS)
def test_each_permission_is_needed_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """With all of the policy's permissions it works (other tests), and without one of them it says so."""
    source = made_source(tmp_path)
    allowed = [each for each in policy.ACTIONS if each != action]
    document = {"Statement": [{"Effect": "Allow", "Action": allowed}]}
    with emulated(tmp_path, policy=document) as emulator:
        aws = own(monkeypatch, emulator)

        def use() -> None:
            made = create(aws, wanted(source), Quiet(), resume=False)
            images.our_snapshots(aws)
            images.deregister(aws, made.image_id)
            images.delete_snapshot(aws, made.snapshot_id)

        with pytest.raises(DeniedError) as caught:
            use()
        assert caught.value.action == action


def test_no_answer_keeps_what_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = made_source(tmp_path)
    with emulated(tmp_path) as emulator:
        aws = own(monkeypatch, emulator)
        interrupted(monkeypatch, aws, source)
        assert len(leftovers(source.out)) == 2
        with pytest.raises(BadInputError, match="has not made web 1 to its end") as caught:
            create(aws, wanted(source), Quiet(), resume=False)
        assert "--resume" in (caught.value.hint or "")
        made = create(aws, wanted(source), Quiet(), resume=True)
        assert made.sent_blocks == 0


def test_a_removed_snapshot_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = made_source(tmp_path)
    with emulated(tmp_path) as emulator:
        aws = own(monkeypatch, emulator)
        interrupted(monkeypatch, aws, source)
        (snapshot,) = images.our_snapshots(aws, "web 1")
        images.delete_snapshot(aws, snapshot.id)
        made = create(aws, wanted(source), Quiet(), resume=False)
        assert made.sent_blocks == len(made.plan.written)


@pytest.mark.parametrize("at_bytes", [0, 100 * MIB], ids=["a block that is sent", "a block that is left out"])
def test_a_disk_that_changes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_bytes: int
) -> None:
    source = made_source(tmp_path)
    assert at_bytes // BLOCK_BYTES not in source.plan.written or at_bytes == 0
    with emulated(tmp_path) as emulator:
        aws = own(monkeypatch, emulator)
        whole = upload.put_blocks

        def put(*given: Any) -> None:
            whole(*given)
            with source.disk.open("r+b") as file:
                file.seek(at_bytes)
                file.write(b"other bytes")

        monkeypatch.setattr(upload, "put_blocks", put)
        said = "block 0 of snap-" if at_bytes == 0 else "changed while it was read"
        with pytest.raises((CloudError, BadInputError), match=said):
            create(aws, wanted(source), Quiet(), resume=False)
        assert left_in(emulator) == []
    assert leftovers(source.out) == []


def test_no_secret_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = made_source(tmp_path)
    with emulated(tmp_path) as emulator:
        aws = own(monkeypatch, emulator)
        interrupted(monkeypatch, aws, source)
        texts = [(source.out.parent / name).read_text() for name in leftovers(source.out)]
        (snapshot,) = emulator.account.snapshots.values()
        texts += [snapshot.description, *snapshot.tags.values(), snapshot.token]
    for text in texts:
        assert emulator.key.secret not in text
        assert emulator.key.id not in text


@pytest.mark.parametrize(("size", "volume_gib"), [(1 << 30, 1), ((1 << 30) + 1, 2), (DISK_MIB * MIB, 1)])
def test_the_volume_has_whole_gibibytes(tmp_path: Path, size: int, volume_gib: int) -> None:
    source = made_source(tmp_path)
    with source.disk.open("r+b") as file:
        file.truncate(size)
    assert planned(source.disk, source.root_at_bytes).volume_gib == volume_gib


def test_noise_in_all_that_is_left_out(tmp_path: Path) -> None:
    """The files of the volume are whole, whatever AWS has in the other blocks."""
    source = made_source(tmp_path)
    plan = planned(source.disk, source.root_at_bytes)
    volume, root = tmp_path / "volume", tmp_path / "noisy.raw"
    noise = os.urandom(BLOCK_BYTES)
    with volume.open("xb") as file, source.disk.open("rb") as disk:
        for number in range(plan.blocks):
            file.write(upload.block_at(disk.fileno(), number) if number in plan.written else noise)
    run(
        "dd",
        f"if={volume}",
        f"of={root}",
        "bs=1M",
        f"skip={source.root_at_bytes // MIB}",
        f"count={ROOT_MIB}",
    )
    run("e2fsck", "-f", "-n", root)
    run("debugfs", "-R", f"dump /data {tmp_path}/data", root)
    assert (tmp_path / "data").read_bytes() == (tmp_path / "tree/data").read_bytes()


def test_a_record_deletes_nothing_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can write the record may name any snapshot of the account in it."""
    source = made_source(tmp_path)
    with emulated(tmp_path) as emulator:
        aws = own(monkeypatch, emulator)
        other = emulator.account.begin_snapshot(1, "backup", {}, "token")
        emulator.account.snapshots[other.id].closed_at_s = 0.0
        interrupted(monkeypatch, aws, source)
        (record,) = [path for path in source.out.parent.iterdir() if path.name.endswith(".json")]
        (begun,) = images.our_snapshots(aws)
        text = record.read_text().replace(begun.id, other.id).replace('"is_sent": false', '"is_sent": true')
        record.write_text(text)
        made = create(aws, wanted(source), Quiet(), resume=True)
        assert made.snapshot_id != other.id
        assert other.id in emulator.account.snapshots


def test_a_record_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = made_source(tmp_path)
    with emulated(tmp_path) as emulator:
        aws = own(monkeypatch, emulator)
        interrupted(monkeypatch, aws, source)
        for name in leftovers(source.out):
            os.chown(source.out.parent / name, 1000, 1000)
        with pytest.raises(BadInputError, match="belongs to another user"):
            create(aws, wanted(source), Quiet(), resume=True)
        assert len(emulator.account.snapshots) == 1


def test_two_calls_for_one_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = made_source(tmp_path)
    with emulated(tmp_path) as emulator:
        aws = own(monkeypatch, emulator)
        whole = upload.put_blocks

        def put(*given: Any) -> None:
            for resume in (False, True):
                with pytest.raises(HostLacksError, match="another `ami create` works"):
                    create(aws, wanted(source), Quiet(), resume=resume)
            whole(*given)

        monkeypatch.setattr(upload, "put_blocks", put)
        made = create(aws, wanted(source), Quiet(), resume=False)
        assert left_in(emulator) == [made.image_id, made.snapshot_id]


@pytest.mark.parametrize("name", ["we\\b 1", "a(b) [c]'d"])
def test_names_with_special_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    source = made_source(tmp_path)
    with emulated(tmp_path) as emulator:
        aws = own(monkeypatch, emulator)
        create(aws, wanted(source), Quiet(), resume=False)
        made = create(aws, wanted(source, name), Quiet(), resume=False)
        found = images.named(aws, name)
        assert found is not None
        assert found.id == made.image_id
        assert [each.id for each in images.our_snapshots(aws, name)] == [made.snapshot_id]


def test_an_image_with_another_boot_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = made_source(tmp_path)
    with emulated(tmp_path) as emulator:
        aws = own(monkeypatch, emulator)
        create(aws, wanted(source), Quiet(), resume=False)
        other = dataclasses.replace(wanted(source), boot_mode=BootMode.UEFI)
        with pytest.raises(BadInputError, match="with the boot mode uefi-preferred and no TPM"):
            create(aws, other, Quiet(), resume=False)


def test_a_continued_call_whose_snapshot_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins anew; and so does one of an artefact that was built again meanwhile."""
    source = made_source(tmp_path)
    with emulated(tmp_path) as emulator:
        aws = own(monkeypatch, emulator)
        interrupted(monkeypatch, aws, source)
        (snapshot,) = images.our_snapshots(aws, "web 1")
        (source.out / "manifest.json").write_text('{"schema": 2}\n')
        with pytest.raises(BadInputError, match="for another artefact"):
            create(aws, wanted(source), Quiet(), resume=True)
        images.delete_snapshot(aws, snapshot.id)
        made = create(aws, wanted(source), Quiet(), resume=True)
        assert made.sent_blocks == len(made.plan.written)


def failing_once(monkeypatch: pytest.MonkeyPatch, action: str, error: ApiError, times: int = 1) -> None:
    """The emulator refuses the first calls of ``action`` with ``error``."""
    whole, left, lock = ebs.answer, [times], threading.Lock()

    def answer(account: Account, request: ebs.Request, name: str, words: Mapping[str, str]) -> ebs.Answer:
        with lock:
            is_now = name == action and left[0] > 0
            left[0] -= is_now
        if is_now:
            raise error
        return whole(account, request, name, words)

    monkeypatch.setattr(ebs, "answer", answer)


@pytest.mark.parametrize(
    ("action", "error"),
    [
        ("PutSnapshotBlock", ApiError("ResourceNotFoundException", "x", 404, "SNAPSHOT_NOT_FOUND")),
        ("PutSnapshotBlock", ApiError("ValidationException", "x", 400, "CONFLICTING_BLOCK_UPDATE")),
        ("PutSnapshotBlock", ApiError("ValidationException", "Failed to read block data", 400)),
        ("CompleteSnapshot", ApiError("ResourceNotFoundException", "x", 404, "SNAPSHOT_NOT_FOUND")),
        ("ListSnapshotBlocks", ApiError("ResourceNotFoundException", "x", 404, "SNAPSHOT_NOT_FOUND")),
        ("GetSnapshotBlock", ApiError("InternalServerException", "x", 500)),
    ],
)
def test_what_passes_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str, error: ApiError
) -> None:
    source = made_source(tmp_path)
    with emulated(tmp_path) as emulator:
        aws = own(monkeypatch, emulator)
        failing_once(monkeypatch, action, error, 3)
        made = create(aws, wanted(source), Quiet(), resume=False)
        check_whole(emulator, made.snapshot_id, source.disk, made.plan.written)


def test_a_block_that_comes_damaged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged: list[int] = []
    source, whole = made_source(tmp_path), account_module.get_block

    def get(snapshot: Snapshot, number: int) -> bytes:
        data = whole(snapshot, number)
        if not damaged:
            damaged.append(number)
            return b"x" + data[1:]
        return data

    with emulated(tmp_path) as emulator:
        monkeypatch.setattr(ebs, "get_block", get)
        create(own(monkeypatch, emulator), wanted(source), Quiet(), resume=False)
    assert damaged


def test_ctrl_c_does_not_wait_for_repetitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is to be repeated after minutes is given up."""
    with emulated(tmp_path) as emulator:
        aws = own(monkeypatch, emulator)
        patient = dataclasses.replace(aws, patience=Patience(tries=9, base_s=600.0, most_s=600.0))
        failing_once(monkeypatch, "PutSnapshotBlock", ApiError("InternalServerException", "x", 500), 1000)
        source = made_source(tmp_path)
        began_s = time.monotonic()
        with source.disk.open("rb") as file, pytest.raises(Stopped):
            upload.put_blocks(patient, "snap-00000000", file.fileno(), stopping_after(4), 4, lambda *_: None)
        assert time.monotonic() - began_s < 30


def stopping_after(count: int) -> Iterator[int]:
    yield from range(count)
    raise Stopped
