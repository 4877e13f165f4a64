"""`ami create` against the emulator, over real HTTP: what it makes, and how it goes on after it was stopped."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quickstart.ec2 import images, upload
from quickstart.ec2.aws import Aws
from quickstart.ec2.create import create
from quickstart.ec2.emulator.faults import Trouble
from quickstart.ec2.plan import BLOCK_BYTES, planned
from quickstart.errors import BadInputError
from quickstart.host.progress import Quiet
from quickstart.model import MIB
from quickstart.model.words import BootMode
from tests.contract.ec2box import (
    DISK_MIB,
    ROOT_MIB,
    Stopped,
    check_whole,
    emulated,
    interrupted,
    leftovers,
    made_source,
    own,
    run,
    wanted,
)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No file and no variable of the user's own counts."""
    monkeypatch.setenv("HOME", str(tmp_path))


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
