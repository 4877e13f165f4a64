"""The five configurations: command lines, the machine, the archives of minimal and ramboot, and the table of the tuned variant."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import BadInputError, StartSetError
from quickstart.image import kerneloptions
from quickstart.image.kerneloptions import words_of
from quickstart.initramfs import ramboot
from quickstart.initramfs.guestconfig import GuestConfig, HandOff, Served, config_text
from quickstart.initramfs.layout import part_b, unit_text
from quickstart.initramfs.newc import CpioEntry, write_archive
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.model import UnitCommand, UnitStart
from quickstart.launch.accel import Accelerator
from quickstart.launch.arguments import Files, machine_arguments
from quickstart.measure.configuration import Boot, built_with, machine_of, with_command_line
from quickstart.measure.results import COMMAND_LINES, CONFIGURATIONS
from quickstart.model import (
    Event,
    Exclusion,
    FileRules,
    NetworkFacts,
    Op,
    StartSet,
    Trace,
)
from quickstart.model.superblock import Superblock
from quickstart.model.words import KernelOptions
from quickstart.profile import load_bench, load_profile
from quickstart.reference.debootstrap import reference_inputs, root_uuid
from quickstart.reference.variant import TUNED, commands, of_bench, preset, together, write_files
from tests.unit.startfiles import start_file

FILES = Files((Path("/kernel"), Path("/initrd")), 7)
BOOT = Boot(
    configuration="quickstart",
    command_line="stock",
    kernel=Path("/k"),
    initrds=(Path("/i"),),
    volume=Path("/d"),
    fetched=(),
    attached=True,
    cmdline="console=ttyS0 root=UUID=1 ro panic=10",
    memory_mib=1024,
    mac="52:54:00:00:00:01",
    ready=load_profile("nginx").ready,
    unit="nginx.service",
)
NOTHING = StartSet((), ())
UNIT = UnitStart(
    unit="app.service",
    type="simple",
    pid_file=None,
    start_pre=(),
    start=UnitCommand("/usr/bin/app", ("/usr/bin/app", "-x")),
)
CONFIG = GuestConfig(
    build="0123",
    superblock=Superblock(
        uuid="11111111-2222-3333-4444-555555555555",
        mount_count=0,
        write_time_s=0,
        clean=True,
        needs_recovery=False,
        has_errors=False,
    ),
    root_fstype="ext4",
    root_flags="",
    root_options="errors=remount-ro",
    interface="ens3",
    unit=UNIT,
    ready=load_profile("nginx").ready,
    hand_off=HandOff.KEEP,
    network="ifupdown",
)


# ---------------------------------------------------------------- command lines and machines


def test_a_command_line_is_the_stock_one_and_its_options() -> None:
    assert with_command_line(BOOT, "stock") == BOOT
    for line in ("boot", "ours"):
        found = with_command_line(BOOT, line)
        assert found.cmdline.split() == [*BOOT.cmdline.split(), *words_of(KernelOptions(line))]
        assert replace(found, cmdline=BOOT.cmdline, command_line="stock") == BOOT
        assert with_command_line(found, line) == found


def test_an_option_that_is_lost_is_lost_in_what_is_booted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate on ourselves (tests/vm/test_gate.py) takes one away in this way."""
    ours = KernelOptions.OURS
    left = tuple(each for each in words_of(ours) if each != "cryptomgr.notests")
    monkeypatch.setattr(kerneloptions, "WORDS", {**kerneloptions.WORDS, ours: left})
    assert with_command_line(BOOT, "ours").cmdline.split() == [*BOOT.cmdline.split(), *left]


def test_the_lines_of_a_bench_are_the_kernel_options() -> None:
    assert {each.value for each in KernelOptions} == set(COMMAND_LINES)


@pytest.mark.parametrize("options", [KernelOptions.BOOT, KernelOptions.STOCK])
def test_without_a_word_our_configurations_have_what_is_built(options: KernelOptions) -> None:
    profile = replace(load_profile("nginx"), kernel_options=options)
    lines = {name: built_with(name, profile) for name in CONFIGURATIONS}
    assert lines == {
        **dict.fromkeys(("standard", "standard-tuned"), "stock"),
        **dict.fromkeys(("minimal", "ramboot", "quickstart"), options),
    }


def test_an_unknown_command_line_is_refused() -> None:
    with pytest.raises(BadInputError, match="fastest") as caught:
        with_command_line(BOOT, "fastest")
    assert all(name in (caught.value.hint or "") for name in COMMAND_LINES)


def test_a_configuration_never_writes_to_the_disk_that_it_boots_from() -> None:
    arguments = machine_arguments(
        machine_of(BOOT),
        Accelerator("tcg", ("-accel", "tcg"), ""),
        FILES,
    )
    (drive,) = [word for word in arguments if word.startswith("file=")]
    assert drive == "file=/dev/fdset/1,format=raw,if=none,id=root,auto-read-only=off,snapshot=on"


def test_a_machine_without_a_disk_has_no_drive() -> None:
    described = machine_of(replace(BOOT, attached=False))
    arguments = machine_arguments(described, Accelerator("tcg", ("-accel", "tcg"), ""), FILES)
    assert "-drive" not in arguments
    assert not any("blk" in word for word in arguments)
    assert arguments[arguments.index("-append") + 1] == BOOT.cmdline


# ---------------------------------------------------------------- minimal: nothing served


def values(config: GuestConfig) -> dict[str, str]:
    rows = (line.split("=", 1) for line in config_text(config).splitlines())
    return {name: value.strip("'") for name, value in rows}


@pytest.mark.parametrize("served", [Served.VOLUME, Served.MEMORY])
def test_what_is_not_served_from_fast_starts_by_its_ordinary_path(served: Served, tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/app").touch()
    found = values(replace(CONFIG, served=served))
    assert found["SERVED"] == served.value
    text = unit_text(CONFIG.unit, replace(CONFIG, served=served), NOTHING, ImageRoot(tmp_path))
    assert "\ncommand main  /usr/bin/app /usr/bin/app -x\n" in text
    assert "\nbase-environment PATH=/usr/local/sbin:" in text
    assert "LD_LIBRARY_PATH" not in text
    assert "/fast" not in text


def test_an_artefact_is_always_served_from_fast(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/app").touch()
    assert values(CONFIG)["SERVED"] == "/fast"
    with pytest.raises(StartSetError, match="is not in the start set"):
        unit_text(CONFIG.unit, CONFIG, NOTHING, ImageRoot(tmp_path))


def test_an_empty_part_b_says_that_it_is_whole_and_holds_nothing(tmp_path: Path) -> None:
    names = [entry.name for entry in part_b(CONFIG, NOTHING, ImageRoot(tmp_path))]
    assert names == ["fast", "fast/quickstart", "fast/quickstart/part-b"]


# ---------------------------------------------------------------- ramboot: everything, at its ordinary place


def P(path: str) -> PurePosixPath:  # noqa: N802
    return PurePosixPath(path)


def event(op: Op, path: str, error: str | None = None) -> Event:
    return Event(line=1, pid=1, program="app", op=op, path=P(path), error=error)


def trace_of(*events: Event) -> Trace:
    network = NetworkFacts("ens3", "52:54:00:00:00:01", "10.0.2.15")
    return Trace(
        events=events,
        processes=1,
        blind=(),
        mapped=(),
        ldd={},
        modules_before=(),
        modules=(),
        network=network,
        trace_hash="0",
        ready_uptime_ns=0,
        log_lines=1,
    )


@pytest.fixture
def root(tmp_path: Path) -> ImageRoot:
    for name in ("usr/bin", "etc", "srv/www", "var/log", "var/lib/app", "tmp", "run", "dev"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "var/run").symlink_to("/run")
    (tmp_path / "usr/bin/app").write_bytes(b"app")
    (tmp_path / "usr/bin/helper").write_bytes(b"helper")
    (tmp_path / "usr/bin/helper").chmod(0o4755)
    for name in ("hostname", "group", "passwd"):
        (tmp_path / "etc" / name).write_text("debian\n")
    (tmp_path / "etc/shadow").write_text("secret")
    (tmp_path / "etc/shadow").chmod(0o640)
    (tmp_path / "srv/www/page").write_text("page")
    os.mkfifo(tmp_path / "srv/fifo")
    return ImageRoot(tmp_path)


EVENTS = (
    event(Op.EXEC, "/bin/app"),
    event(Op.OPEN, "/srv/www/page"),
    event(Op.OPEN, "/srv/fifo"),
    event(Op.LOOKUP, "/etc/absent", "ENOENT"),
    event(Op.OPEN, "/etc/shadow"),
    event(Op.LIST, "/var/lib/app"),
    event(Op.WRITE, "/var/log/app.log"),
    event(Op.WRITE, "/var/run/app.pid"),
    event(Op.WRITE, "/run/app/socket"),
    event(Op.OPEN, "/proc/self/status"),
)


def packed(root: ImageRoot) -> dict[str, CpioEntry]:
    app = start_file("/usr/bin/app", mode=0o100755, size_bytes=3)
    kept_out = Exclusion(P("/usr/bin/helper"), "setuid: newc archives are not served for it")
    found = ramboot.paths(StartSet((app,), (kept_out,)), [trace_of(*EVENTS)], root)
    return {entry.name: entry for entry in ramboot.entries(found, root)}


def test_ramboot_has_what_is_opened_whatever_rule_keeps_it_out_of_an_artefact(root: ImageRoot) -> None:
    found = packed(root)
    assert {"usr/bin/app", "usr/bin/helper", "etc/shadow", "srv/www/page", "etc/hostname"} <= set(found)
    assert stat.S_IMODE(found["usr/bin/helper"].mode) == 0o4755
    assert stat.S_IMODE(found["etc/shadow"].mode) == 0o640
    assert found["bin"].data == b"usr/bin"


def test_ramboot_has_the_accounts_that_the_starter_looks_up(root: ImageRoot) -> None:
    assert {"etc/passwd", "etc/group"} <= set(packed(root))


def test_ramboot_has_the_directories_that_are_written_to_or_listed(root: ImageRoot) -> None:
    found = packed(root)
    assert {"var/log", "var/lib/app", "tmp"} <= set(found)
    assert found["var/run"].data == b"/run"


def test_ramboot_has_nothing_of_what_each_boot_makes_and_nothing_special(root: ImageRoot) -> None:
    names = set(packed(root))
    assert not [name for name in names if re.match(r"(proc|sys|dev|run)(/|$)", name)]
    assert "srv/fifo" not in names
    assert "etc/absent" not in names


def test_ramboot_is_an_archive_that_can_be_written(root: ImageRoot, tmp_path: Path) -> None:
    with (tmp_path / "archive").open("wb") as stream:
        assert write_archive(stream, packed(root).values()) > 0


def test_no_rule_of_the_profile_keeps_a_file_out_of_ramboot() -> None:
    rules = FileRules(include=("/a",), exclude=("/b",), data=("/c",), secrets=())
    assert ramboot.all_rules(rules) == FileRules(include=("/a",), exclude=(), data=(), secrets=("/**",))


# ---------------------------------------------------------------- standard-tuned


def test_the_tuned_image_has_inputs_and_a_volume_of_its_own() -> None:
    profile = load_profile("nginx")
    base, tuned = reference_inputs(profile), reference_inputs(profile, TUNED)
    assert base["base"] == tuned["base"]
    assert base["packages"] == tuned["packages"]
    assert "variant" not in base
    assert root_uuid(base) != root_uuid(tuned)
    other = replace(profile, unit="other.service")
    assert reference_inputs(other) == base
    assert reference_inputs(other, TUNED) != tuned


def test_the_tuned_preset_enables_the_application_and_disables_all_that_is_not_named() -> None:
    lines = preset(TUNED, load_profile("nginx")).splitlines()
    assert lines[-1] == "disable *"
    assert {line for line in lines[:-1] if not line.startswith("enable ")} == set()
    assert "enable nginx.service" in lines
    assert {"enable ssh.service", "enable cron.service", "enable systemd-networkd.service"} <= set(lines)
    assert not any("rsyslog" in line or "timer" in line or "networking.service" in line for line in lines)
    assert ["systemctl", "preset-all"] in commands(TUNED)


# ---------------------------------------------------------------- what a profile says of the bench


def test_the_benchs_image_has_inputs_and_a_volume_of_its_own() -> None:
    profile, layer = load_profile("mysql"), load_bench("mysql")
    assert layer is not None
    bench = of_bench(layer)
    all_inputs = [reference_inputs(profile, each) for each in (None, TUNED, bench, together(TUNED, bench))]
    assert len({root_uuid(each) for each in all_inputs}) == 4
    # What `build` makes is made of the profile, which does not have the layer.
    assert layer.ready.account not in repr(profile) + repr(all_inputs[0])
    assert layer.ready.account in repr(all_inputs[2])


def test_the_benchs_image_differs_in_its_files_and_commands_alone(tmp_path: Path) -> None:
    profile, layer = load_profile("mysql"), load_bench("mysql")
    assert layer is not None
    bench = of_bench(layer)
    write_files(bench, profile, tmp_path)
    assert not any(tmp_path.iterdir())
    ran = commands(bench)
    assert [argv[0] for argv in ran] == ["sh", "sh"]
    assert ran[0][-2:] == [*layer.files[0]]
    assert ran[1][-1] == layer.commands[0]
    both = together(TUNED, bench)
    assert both is not None
    assert commands(both) == (*commands(TUNED), *ran)
    assert (both.written, both.enabled) == (TUNED.written, TUNED.enabled)
    assert (together(TUNED, None), together(None, bench), together(None, None)) == (TUNED, bench, None)
