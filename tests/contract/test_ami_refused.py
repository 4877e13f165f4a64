"""`ami create` where AWS refuses, the disk changes, or others mean harm. The emulator answers over real HTTP."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from quickstart.ec2 import images, policy, upload
from quickstart.ec2.aws import Patience
from quickstart.ec2.create import create
from quickstart.ec2.emulator import account as account_module
from quickstart.ec2.emulator import ebs
from quickstart.ec2.emulator.account import Account, Snapshot
from quickstart.ec2.emulator.faults import ApiError
from quickstart.ec2.plan import BLOCK_BYTES
from quickstart.errors import BadInputError, CloudError, DeniedError, HostLacksError
from quickstart.host.progress import Quiet
from quickstart.model import MIB
from tests.contract.ec2box import (
    Stopped,
    check_whole,
    emulated,
    interrupted,
    left_in,
    leftovers,
    made_source,
    own,
    wanted,
)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No file and no variable of the user's own counts."""
    monkeypatch.setenv("HOME", str(tmp_path))


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
