"""The modloader walks real trees like sysfs. Its errors tell which modules it tried, and in which order.

The kernel rejects a text file as a module, so each module that is tried is named on standard error. Every
boot of tests/vm shows that real modules are loaded.
"""

from __future__ import annotations

import fnmatch
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

from quickstart.host.namespaces import own_namespaces
from quickstart.initramfs.modules import Module, ModuleSet, modloader_table
from quickstart.initramfs.programs import freestanding
from quickstart.store.store import Store


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with Store(tmp_path_factory.mktemp("store")) as store:
        yield freestanding(store, "modloader")


@dataclass(frozen=True)
class Guest:
    """A directory with /sys and with part A's modules."""

    base: Path
    program: Path

    def device(self, place: str, alias: str) -> None:
        path = self.base / "sys" / place / "modalias"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{alias}\n")

    def tried(self, table: str, what: str) -> list[str]:
        """The modules that were tried, in this order."""
        (self.base / "sys").mkdir(exist_ok=True)
        (self.base / "modules.d").mkdir(exist_ok=True)
        for name in re.findall(r"^module (.+)$", table, re.MULTILINE):
            (self.base / f"modules.d/{name}.ko").write_text("no module")
        (self.base / "table").write_text(table)
        words: list[str | Path] = [
            self.program,
            self.base / "modules.d",
            self.base / "table",
            self.base / "sys",
            what,
        ]
        done = subprocess.run(words, capture_output=True, timeout=30, check=False)
        assert done.returncode == 0
        lines = done.stderr.decode().splitlines()
        assert all(re.fullmatch(r"quickstart: module .+ was not loaded", line) for line in lines)
        return [line.split()[2] for line in lines]


@pytest.fixture
def guest(tmp_path: Path, program: Path) -> Guest:
    return Guest(tmp_path, program)


def module(name: str, *requires: str) -> Module:
    return Module(name, PurePosixPath(f"/{name}.ko"), requires)


TABLE = modloader_table(
    ModuleSet(
        (
            *(module("sha256_ssse3"), module("virtio_ring"), module("virtio", "virtio_ring")),
            *(module("virtio_pci", "virtio_ring", "virtio"), module("virtio_blk", "virtio_ring", "virtio")),
            *(module("failover"), module("virtio_net", "virtio_ring", "virtio", "failover")),
            *(module("libata"), module("ahci", "libata"), module("jbd2"), module("ext4", "jbd2")),
        ),
        (
            ("cpu:type:x86,ven*fam*mod*:feature:*0089*", "sha256_ssse3"),
            ("pci:v00001AF4d*sv*sd*bc*sc*i*", "virtio_pci"),
            ("virtio:d00000002v*", "virtio_blk"),
            ("virtio:d00000001v*", "virtio_net"),
            ("pci:v*d*sv*sd*bc01sc06i01*", "ahci"),
        ),
    )
)
CPU = "cpu:type:x86,ven0002fam000Fmod006B:feature:,0000,0089,009C"
CARD = "pci:v00001AF4d00001041sv00001AF4sd00001100bc02sc00i00"
DISK = "virtio:d00000002v00001AF4"
CONTROLLER = "pci:v00008086d00002922sv00001AF4sd00001100bc01sc06i01"


def test_a_devices_module_comes_after_what_it_requires(guest: Guest) -> None:
    guest.device("bus/pci/devices/0000:00:02.0", CARD)
    assert guest.tried(TABLE, "present") == ["virtio_ring", "virtio", "virtio_pci"]


def test_the_cpu_comes_first_and_nothing_is_tried_twice(guest: Guest) -> None:
    guest.device("bus/virtio/devices/virtio0", DISK)
    guest.device("bus/virtio/devices/virtio1", DISK)
    guest.device("bus/pci/devices/0000:00:02.0", CARD)
    guest.device("devices/system/cpu", CPU)
    found = guest.tried(TABLE, "present")
    assert found == ["sha256_ssse3", "virtio_ring", "virtio", "virtio_pci", "virtio_blk"]


def test_what_the_root_needs_comes_before_the_rest(guest: Guest) -> None:
    guest.device("bus/virtio/devices/virtio0", "virtio:d00000001v00001AF4")
    guest.device("bus/virtio/devices/virtio1", DISK)
    assert guest.tried(TABLE, "disks") == ["virtio_ring", "virtio", "virtio_blk", "jbd2", "ext4"]
    rest = guest.tried(TABLE, "present")
    assert sorted(rest) == ["failover", "virtio", "virtio_blk", "virtio_net", "virtio_ring"]
    assert rest.index("failover") < rest.index("virtio_net")


def test_disk_controllers_come_late(guest: Guest) -> None:
    guest.device("bus/pci/devices/0000:00:1f.2", CONTROLLER)
    assert guest.tried(TABLE, "present") == []
    assert guest.tried(TABLE, "late") == ["libata", "ahci"]
    assert guest.tried(TABLE, "again") == []


def test_everything_and_what_an_image_needs(guest: Guest) -> None:
    assert guest.tried(f"{TABLE}module loop\nimage loop\n", "image") == ["loop"]
    assert guest.tried(TABLE, "all") == re.findall(r"^module (.+)$", TABLE, re.MULTILINE)


def test_a_module_that_the_kernel_has_is_not_tried(guest: Guest) -> None:
    (guest.base / "sys/module/virtio").mkdir(parents=True)
    guest.device("bus/virtio/devices/virtio0", DISK)
    assert guest.tried(TABLE, "present") == ["virtio_ring", "virtio_blk"]


def test_devices_without_an_alias_or_with_a_strange_one(guest: Guest) -> None:
    (guest.base / "sys/bus/pci/devices/none").mkdir(parents=True)
    guest.device("bus/pci/devices/empty", "")
    guest.device("bus/pci/devices/long", "pci:" + "v" * 10_000)
    guest.device("bus/usb/devices/1-1", CARD)
    assert guest.tried(TABLE, "present") == []


def test_many_devices(guest: Guest) -> None:
    """More than one answer of getdents64(2) holds."""
    for number in range(400):
        guest.device(f"bus/pci/devices/0000:{number:04x}", "pci:none")
    guest.device("bus/pci/devices/zzzz", CARD)
    assert guest.tried(TABLE, "present") == ["virtio_ring", "virtio", "virtio_pci"]


@pytest.mark.parametrize(
    ("pattern", "alias"),
    [
        *(("a", "a"), ("a", "b"), ("a", "ab"), ("ab", "a"), ("*", "a"), ("*", ""), ("a*", "a"), ("*a", "ba")),
        *(
            ("a*c", "abbc"),
            ("a*c", "abbcd"),
            ("a*b*c", "axbxbxc"),
            ("a*b*c", "axcxb"),
            ("**", "x"),
            ("a?c", "abc"),
        ),
        *(
            ("a?", "a"),
            ("[ab]", "b"),
            ("[ab]", "c"),
            ("[0-9A-F]x", "Bx"),
            ("[0-9]", "-"),
            ("[-a]", "-"),
            ("[a-]", "-"),
        ),
        *(("*[0-9]", "ab7"), ("*[0-9]", "ab"), ("v*d[01]*", "v1d0xd12"), ("usb:v*p*d0[0-2]*", "usb:v1p2d01")),
    ],
)
def test_patterns_are_fnmatchs(guest: Guest, pattern: str, alias: str) -> None:
    guest.device("bus/pci/devices/one", alias)
    table = f"bus pci\nmodule m\nalias {pattern} m\n"
    assert guest.tried(table, "present") == (["m"] if alias and fnmatch.fnmatchcase(alias, pattern) else [])


@pytest.mark.parametrize(
    "words", [[], ["m", "t", "s"], ["m", "none", "s", "present"], ["m", "t", "s", "other"]]
)
def test_called_wrongly(program: Path, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "t").write_text("module a\n")
    assert subprocess.run([program, *words], cwd=tmp_path, timeout=30, check=False).returncode == 2


BOUND = 'mount --bind "$0" /proc/cmdline && exec "$@"'
BY_INSMOD = r'"insmod", "(\w+)\.ko\.gz"(?:, "((?:[^"\\]|\\.)*)")?\]'
BY_FINIT_MODULE = r'finit_module\(\d+, ()"((?:[^"\\]|\\.)*)", 0\)'
OPTIONS = 'options jbd2 x=1\noptions ext4 a=1 b\noptions ext4 c="2 3"\n'


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("quiet root=UUID=1 panic=10", {"jbd2": "x=1", "ext4": 'a=1 b c="2 3"'}),
        ("ext4.a=2 jbd2.flag", {"jbd2": "x=1 flag", "ext4": 'a=1 b c="2 3" a=2'}),
        # Of others, and what is no option.
        ("ext4 ext4. ext4x.a=2 aext4.a=2 systemd.ext4=1 =ext4.a", {"jbd2": "x=1", "ext4": 'a=1 b c="2 3"'}),
        ('ext4.d="4 5" "jbd2.e=6"', {"jbd2": "x=1 e=6", "ext4": 'a=1 b c="2 3" d="4 5"'}),
        ("virtio-net.napi_tx=0 virtio_net.b=1.5", {"virtio_net": "napi_tx=0 b=1.5"}),
        # An option that has no room is left out whole.
        (f"jbd2.y={'1' * 3900}", {"jbd2": f"x=1 y={'1' * 3900}"}),
        (f"jbd2.y={'1' * 3900} jbd2.{'z' * 200}", {"jbd2": f"x=1 y={'1' * 3900}"}),
    ],
)
@pytest.mark.parametrize("is_packed", [False, True])
def test_options_of_a_module(guest: Guest, line: str, options: dict[str, str], is_packed: bool) -> None:
    """libkmod's: those of modprobe.d, then those on the kernel's command line. BusyBox's insmod hands them on."""
    guest.tried(TABLE, "all")
    (guest.base / "table").write_text(TABLE + OPTIONS)
    (guest.base / "cmdline").write_text(f"{line}\n")
    for path in (guest.base / "modules.d").iterdir() if is_packed else ():
        path.unlink()
    strace: tuple[str | Path, ...] = (
        "strace",
        "-f",
        "-s",
        "9000",
        "-e",
        "trace=finit_module,execve",
        "-o",
        guest.base / "log",
    )
    words = (guest.program, guest.base / "modules.d", guest.base / "table", guest.base / "sys", "all")
    done = subprocess.run(
        [*own_namespaces(), "sh", "-c", BOUND, guest.base / "cmdline", *strace, *words],
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    log = (guest.base / "log").read_text()
    given = re.findall(BY_INSMOD if is_packed else BY_FINIT_MODULE, log)
    names = re.findall(r"^module (.+)$", TABLE, re.MULTILINE)
    assert len(given) == len(names)
    assert not is_packed or [name for name, _ in given] == names
    found = {name: text.replace('\\"', '"') for name, (_, text) in zip(names, given, strict=True) if text}
    expected = {"jbd2": "x=1", "ext4": 'a=1 b c="2 3"', **options}
    assert found == expected
