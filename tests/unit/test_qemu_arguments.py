"""QEMU's command line for a machine, with any words in the manifest, and the agent's words in it."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quickstart.errors import BadInputError
from quickstart.launch.accel import tcg
from quickstart.launch.archive import agent_words
from quickstart.launch.arguments import (
    Channels,
    Files,
    channel_arguments,
    machine_arguments,
    named_as_the_host_does,
)
from quickstart.model import Network, Readiness
from quickstart.model.machine import Machine, NbdSocket, only_reading
from quickstart.model.words import DiskFormat, Firmware, ReadyKind

UEFI_FILES = Files((Path("code"), Path("variables")), 7)
FILES = Files((Path("/jail/kernel"), Path("/jail/initrd")), 7)
MACHINE = Machine(
    name="m",
    memory_mib=512,
    kernel=Path("k"),
    initrds=(),
    cmdline="ro",
    disk=Path("/a,b"),
    disk_format=DiskFormat.RAW,
    snapshot=False,
    mac="52:54:00:00:00:01",
    forward_port=None,
    guest_port=0,
)
# What a stranger may write where a word or a number is meant.
HOSTILE = (
    "80,guestfwd=tcp:10.0.2.100:1234-cmd:/path/script",
    "-netdev",
    "a,b",
    "x\n-device virtio-9p",
    "\0",
    "",
    "on",
    -1,
    0,
    True,
    1.5,
    float("nan"),
    10**5000,
    None,
    ["80"],
    "٣",
)


def words_of(**changed: Any) -> tuple[str, ...]:
    return machine_arguments(dataclasses.replace(MACHINE, **changed), tcg("test"), FILES)


def arguments(**changed: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in itertools.pairwise(words_of(**changed)):
        if name.startswith("-"):
            found.setdefault(name, []).append(value)
    return found


def test_a_machine_has_an_identity_where_it_is_given_one() -> None:
    assert "-uuid" not in arguments()
    uuid = "3c1f7c56-6d0a-4d8c-9c55-0d1f1f6a2b01"
    assert arguments(uuid=uuid)["-uuid"] == [uuid]


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_file_is_a_descriptor_that_is_opened_once(snapshot: bool) -> None:
    found = arguments(snapshot=snapshot)
    drive = "file=/dev/fdset/1,format=raw,if=none,id=root,auto-read-only=off"
    assert found["-drive"] == [drive + (",snapshot=on" if snapshot else "")]
    assert found["-add-fd"] == ["fd=7,set=1"]


def test_a_disk_that_is_only_read_has_no_overlay() -> None:
    """What fills it would fill the host's temporary directory: 8 bytes of a hostile journal make 64 KiB of an overlay."""
    drive = "file=/dev/fdset/1,format=raw,if=none,id=root,auto-read-only=off,read-only=on"
    machine = only_reading(MACHINE)
    assert machine.snapshot
    assert drive in machine_arguments(machine, tcg("test"), FILES)


def test_a_volume_is_a_connection() -> None:
    found = arguments(disk=NbdSocket(Path("/s,x")))
    drive = "file.driver=nbd,file.server.type=fd,file.server.str=7,format=raw,if=none,id=root"
    assert found["-drive"] == [drive]
    assert "-add-fd" not in found


def test_an_error_of_qemu_names_the_disk() -> None:
    said = "Is another process using the image [/dev/fdset/1]?"
    assert named_as_the_host_does(said, MACHINE) == "Is another process using the image [/a,b]?"


def test_a_request_of_the_guest_is_one_to_the_disk() -> None:
    block = [each for each in arguments()["-device"] if each.startswith("virtio-blk")]
    assert len(block) == 1 and "request-merging=off" in block[0]


@pytest.mark.parametrize(
    ("more", "is_told"), [({}, False), ({"snapshot": True}, True), ({"reports_full_disk": True}, True)]
)
def test_a_guest_whose_host_has_no_space(more: dict[str, bool], is_told: bool) -> None:
    """Without an error, QEMU would stop the guest, and a build would wait for its time limit."""
    (block,) = (each for each in arguments(**more)["-device"] if each.startswith("virtio-blk"))
    assert (",werror=report" in block) == is_told


def test_the_number_of_cpus() -> None:
    assert arguments(vcpus=2)["-smp"] == ["2"]


def test_every_machine_is_in_the_sandbox_and_its_network_closed() -> None:
    found = arguments(forward_port=8080, guest_port=80)
    denied = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
    assert found["-sandbox"] == [denied]
    assert found["-netdev"] == ["user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:8080-:80"]
    assert arguments(network=Network.OPEN)["-netdev"] == ["user,id=net,restrict=off"]


def test_a_name_has_no_option_of_its_own() -> None:
    assert arguments(name="-x,debug-threads=on,process=/bin/sh")["-name"] == [
        "-x_debug-threads_on_process__bin_sh"
    ]


@pytest.mark.parametrize("value", HOSTILE, ids=map(str, range(len(HOSTILE))))
@pytest.mark.parametrize(
    "field", ["memory_mib", "vcpus", "forward_port", "guest_port", "mac", "uuid", "disk_format"]
)
def test_a_value_of_another_kind_is_refused(field: str, value: Any) -> None:
    usual: dict[str, Any] = {"forward_port": 8080, "guest_port": 80}
    if (field == "uuid" and not value) or (field == "forward_port" and value is None):
        # That is: none.
        assert words_of(**{**usual, field: value})
        return
    with pytest.raises(BadInputError, match=field):
        words_of(**{**usual, field: value})


@pytest.mark.parametrize("cmdline", ["ro\0quiet", "x" * 2048, "\ud800"])
def test_a_command_line_that_no_kernel_could_read(cmdline: str) -> None:
    with pytest.raises(BadInputError):
        words_of(cmdline=cmdline)


TEXTS = st.one_of(st.text(max_size=40), st.sampled_from([each for each in HOSTILE if isinstance(each, str)]))
VALUES = st.one_of(TEXTS, st.integers(), st.floats(), st.none(), st.booleans(), st.just(80), st.just(512))
DRIVES = re.compile(
    r"(file=/dev/fdset/1|file\.driver=nbd,file\.server\.type=fd,file\.server\.str=7)"
    r",format=(raw|qcow2),if=none,id=root(,auto-read-only=off)?(,snapshot=on)?"
)
ALLOWED = {
    "-name": re.compile(r"[A-Za-z0-9._-]*"),
    "-M": re.compile("q35"),
    "-accel": re.compile("tcg,thread=multi,tb-size=512"),
    "-cpu": re.compile("max"),
    "-sandbox": re.compile("on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"),
    "-smp": re.compile("[0-9]+"),
    "-m": re.compile("[0-9]+"),
    "-uuid": re.compile("[0-9a-f-]{36}"),
    "-display": re.compile("none"),
    "-kernel": re.compile("/jail/kernel"),
    "-initrd": re.compile("/jail/initrd"),
    # The guest's kernel reads it, nobody else.
    "-append": re.compile(".*", re.DOTALL),
    "-add-fd": re.compile("fd=7,set=1"),
    "-drive": DRIVES,
    "-netdev": re.compile(r"user,id=net,restrict=(on|off)(,hostfwd=tcp:127\.0\.0\.1:[0-9]+-:[0-9]+)?"),
    "-device": re.compile(
        "virtio-blk-pci,drive=root,addr=4,request-merging=off(,werror=report)?"
        "|virtio-net-pci,netdev=net,mac=[0-9a-f:]{17},addr=3,romfile="
    ),
}
ALONE = {"-nodefaults", "-no-user-config", "-no-reboot"}


@settings(max_examples=400)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "name": TEXTS,
            "memory_mib": VALUES,
            "cmdline": TEXTS,
            "disk": st.one_of(
                TEXTS.map(Path), TEXTS.map(lambda name: NbdSocket(Path(name))), st.none(), TEXTS
            ),
            "disk_format": VALUES,
            "snapshot": VALUES,
            "mac": VALUES,
            "forward_port": VALUES,
            "guest_port": VALUES,
            "vcpus": VALUES,
            "uuid": VALUES,
            "network": st.one_of(st.sampled_from(Network), TEXTS),
            "kernel": TEXTS.map(Path),
            "initrds": st.lists(TEXTS.map(Path)).map(tuple),
        },
    )
)
def test_no_value_adds_an_option(changed: dict[str, Any]) -> None:
    """Each word is an option that we give, or the value of one in the only form that it has."""
    try:
        words = list(words_of(**changed))
    except BadInputError:
        return
    while words:
        option = words.pop(0)
        if option not in ALONE:
            assert ALLOWED[option].fullmatch(words.pop(0)), (option, changed)


def test_nobody_else_can_open_what_we_talk_by() -> None:
    words = channel_arguments(Channels(monitor=3, agent=4, console=5, console_log=6))
    assert not any("path=" in word for word in words)
    assert "socket,id=qmp,fd=3" in words and "socket,id=agent,fd=4" in words
    log = "logfile=/dev/fdset/2,logappend=on"
    assert f"socket,id=console,fd=5,server=on,wait=off,{log}" in words
    assert "fd=6,set=2" in words


def test_the_agents_words_for_databases() -> None:
    ready = Readiness(
        kind=ReadyKind.MYSQL, port=3306, path="/", status=200, command="", timeout_s=60, account="asker"
    )
    assert agent_words(ready)[2:] == ("mysql", "3306", "asker")
    assert agent_words(dataclasses.replace(ready, loopback=True))[2:] == (
        "loopback",
        "mysql",
        "3306",
        "asker",
    )


def test_a_disk_boots_by_itself() -> None:
    """By the firmware that QEMU brings, or by a UEFI: without a kernel or a command line of ours."""
    bios = machine_arguments(dataclasses.replace(MACHINE, firmware=Firmware.BIOS), tcg("test"), Files((), 7))
    uefi = machine_arguments(dataclasses.replace(MACHINE, firmware=Firmware.UEFI), tcg("test"), UEFI_FILES)
    for words in (bios, uefi):
        assert {"-kernel", "-initrd", "-append"} & set(words) == set()
        assert any(word.endswith(",bootindex=0") for word in words)
    assert [word for word in bios if "pflash" in word] == []
    assert [word for word in uefi if "pflash" in word] == [
        "if=pflash,format=raw,unit=0,readonly=on,file=code",
        "if=pflash,format=raw,unit=1,file=variables",
    ]


def test_a_firmware_without_its_files_is_refused() -> None:
    for firmware, files in (
        (Firmware.UEFI, Files((), 7)),
        (Firmware.BIOS, UEFI_FILES),
        ("bios ", Files((), 7)),
    ):
        with pytest.raises(BadInputError, match="firmware"):
            machine_arguments(dataclasses.replace(MACHINE, firmware=firmware), tcg("test"), files)  # type: ignore[arg-type]
