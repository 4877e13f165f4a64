"""QEMU's command line for a machine, and the words of the agent in it."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest

from quickstart.launch.accel import tcg
from quickstart.launch.payload import agent_words
from quickstart.launch.qemu import machine_arguments
from quickstart.model import Machine, Readiness


def arguments(
    disk: Path | str, snapshot: bool = False, vcpus: int = 1, uuid: str = ""
) -> dict[str, list[str]]:
    machine = Machine(
        name="m",
        memory_mib=512,
        kernel=Path("k"),
        initrds=(),
        cmdline="",
        disk=disk,
        disk_format="raw",
        snapshot=snapshot,
        mac="52:54:00:00:00:01",
        forward_port=None,
        guest_port=0,
        vcpus=vcpus,
        uuid=uuid,
    )
    words = machine_arguments(machine, tcg("test"), "i")
    found: dict[str, list[str]] = {}
    for name, value in itertools.pairwise(words):
        if name.startswith("-"):
            found.setdefault(name, []).append(value)
    return found


def test_a_machine_has_an_identity_where_it_is_given_one() -> None:
    assert "-uuid" not in arguments(Path("/a"))
    assert arguments(Path("/a"), uuid="1-2")["-uuid"] == ["1-2"]


@pytest.mark.parametrize(
    ("disk", "snapshot", "drive"),
    [
        (Path("/a,b"), True, "file=/a,,b,format=raw,if=none,id=root,snapshot=on"),
        (
            "nbd+unix:///?socket=/s",
            False,
            "file=nbd+unix:///?socket=/s,format=raw,if=none,id=root",
        ),
    ],
)
def test_the_disk_is_a_file_or_a_volume(disk: Path | str, snapshot: bool, drive: str) -> None:
    assert arguments(disk, snapshot)["-drive"] == [drive]


def test_a_request_of_the_guest_is_one_to_the_disk() -> None:
    block = [each for each in arguments(Path("/d"))["-device"] if each.startswith("virtio-blk")]
    assert len(block) == 1 and "request-merging=off" in block[0]


def test_the_number_of_cpus() -> None:
    assert arguments(Path("/d"), vcpus=2)["-smp"] == ["2"]


def test_the_agents_words_for_databases() -> None:
    ready = Readiness("mysql", 3306, "/", 200, "", 60, account="asker")
    assert agent_words(ready)[2:] == ("mysql", "3306", "asker")
    assert agent_words(dataclasses.replace(ready, loopback=True))[2:] == (
        "loopback",
        "mysql",
        "3306",
        "asker",
    )
