"""Functions of init's first half: what the kernel's command line asks for."""

from __future__ import annotations

import re
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from tests.contract.initscript import function

FIXED = "UNIT=nginx.service ROOT_FSTYPE=ext4 OWN_FLAGS= ROOT_UUID= HAND_OFF=keep EARLY=seen"


def unwanted(tmp_path: Path, shell: tuple[str, ...], line: str, fixed: str = FIXED) -> str:
    """Why the stock boot is wanted; empty when it is not."""
    (tmp_path / "cmdline").write_text(f"{line}\n")
    first = resources.files("quickstart.initramfs").joinpath("init", "first").read_text()
    found = re.search(r"^read_command_line\(\) \{.*?^\}", first, re.MULTILINE | re.DOTALL)
    assert found
    function = found[0].replace("/proc/cmdline", str(tmp_path / "cmdline"))
    script = f'{fixed}\n{function}\nread_command_line; printf %s "$unwanted"'
    done = subprocess.run([*shell, "-euc", script], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout


@pytest.mark.parametrize("shell", [("dash",), ("busybox", "sh")])
@pytest.mark.parametrize(
    "word",
    [
        *(
            "quickstart=off",
            "single",
            "emergency",
            "init=/bin/sh",
            "systemd.unit=rescue.target",
            "systemd.mask=nginx",
        ),
        # A check that somebody asks for, a root with other options or none at all, another goal of the boot.
        *(
            "fsck.mode=force",
            "forcefsck",
            "rootflags=noexec,ro",
            "rootflags=",
            "rootfstype=btrfs",
            "boot=live",
            "break=premount",
        ),
        *("systemd.run=/bin/true", "systemd.volatile=yes"),
        # What PID 1 hands on to each service, and who makes the kernel's settings.
        *("systemd.setenv=HTTP_PROXY=http://x/", "systemd.cpu_affinity=0", "systemd.cpu-affinity=0"),
        *("sysctl.fs.file-max=9", "sysctl/fs/file-max=9", "modules_load=x", "modules-load=x"),
        "systemd.early_core_pattern=/core",
        *("systemd.mask=systemd-sysctl", "systemd.mask=systemd-sysctl.service"),
        # Another target by its run level, questions before each start, more units; a name, a language, control groups, mounts.
        *(
            "2",
            "3",
            "5",
            "systemd.confirm_spawn",
            "systemd.confirm-spawn=yes",
            "systemd.wants=nftables.service",
        ),
        *("systemd.hostname=other", "locale.LANG=C", "locale.LC_ALL=C", "SYSTEMD_PROC_CMDLINE=rescue"),
        *("systemd.unified_cgroup_hierarchy=0", "systemd.mount-extra=tmpfs:/srv", "mount.usr=/dev/vdb"),
    ],
)
def test_who_asks_for_another_boot_gets_the_stock_one(
    tmp_path: Path, shell: tuple[str, ...], word: str
) -> None:
    assert unwanted(tmp_path, shell, f"root=UUID=1-2 ro {word} quiet") == word


@pytest.mark.parametrize(
    "words",
    [
        "",
        "quiet rw panic=10 console=ttyS0",
        "rootfstype=ext4",
        "fsck.mode=skip",
        "systemd.mask=serial-getty@other boot_delay=1",
        "-- splash 6",
    ],
)
def test_what_changes_nothing_is_no_reason(tmp_path: Path, words: str) -> None:
    assert unwanted(tmp_path, ("busybox", "sh"), f"root=UUID=1-2 ro {words}") == ""


@pytest.mark.parametrize("shell", [("dash",), ("busybox", "sh")])
@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("rootflags=subvol=@rootfs", ""),
        ("rootflags=subvol=@root", "rootflags=subvol=@root"),
        ("rootflags=subvol=@rootfs2", "rootflags=subvol=@rootfs2"),
        ("rootflags=subvol=@rootfs,ro", "rootflags=subvol=@rootfs,ro"),
        ("rootflags=*", "rootflags=*"),
        ("rootflags=subvol=@rootfs rootflags=noatime", "rootflags=noatime"),
        ("rootflags=", "rootflags="),
        ("", "the command line has no rootflags=subvol=@rootfs"),
    ],
)
def test_the_flags_of_the_disks_own_loader(
    tmp_path: Path, shell: tuple[str, ...], words: str, why: str
) -> None:
    """Without them, a stock boot would mount another subvolume."""
    fixed = FIXED.replace("OWN_FLAGS= ", "OWN_FLAGS=rootflags=subvol=@rootfs ")
    assert unwanted(tmp_path, shell, f"root=UUID=1-2 ro {words} quiet", fixed) == why


def whole(name: str) -> str:
    return resources.files("quickstart.initramfs").joinpath("init", name).read_text()


@pytest.mark.parametrize("shell", [("dash",), ("busybox", "sh")])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), ""),
        (("splash", "a b", "", "6"), ""),
        (("--unit=rescue.target",), "--unit=rescue.target"),
        (("--unit", "rescue.target"), "--unit"),
        (("splash", "--confirm-spawn"), "--confirm-spawn"),
        (("-b",), "-b"),
    ],
)
def test_an_option_of_pid_1_is_the_stock_init_s(
    shell: tuple[str, ...], arguments: tuple[str, ...], expected: str
) -> None:
    """The kernel makes arguments of what follows `--`; systemd takes options from them (systemd(1))."""
    script = f'unwanted=\n{function("first", "read_arguments")}\nread_arguments "$@"; printf %s "$unwanted"'
    done = subprocess.run(
        [*shell, "-euc", script, "init", *arguments], check=True, capture_output=True, timeout=60
    )
    assert done.stdout.decode() == expected


# Where PID 1 becomes another program.
_BECOMES = (
    ("first", "exec_second_half"),
    ("first", "boot_stock"),
    ("second", "bind_sockets"),
    ("second", "fall_back"),
    ("hand-off", "hand_off"),
)


@pytest.mark.parametrize("shell", [("dash",), ("busybox", "sh")])
@pytest.mark.parametrize("place", _BECOMES)
def test_whoever_comes_next_gets_the_very_arguments(
    tmp_path: Path, shell: tuple[str, ...], place: tuple[str, str]
) -> None:
    """The last line of each function, which executes the next program: a script in its place says what it is given."""
    file, name = place
    says = tmp_path / "says"
    says.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    says.chmod(0o755)
    last = function(file, name).splitlines()[-2].strip()
    assert "exec" in last
    last = re.sub(
        r"exec (chroot|caretaker|env|\\\"\\\$Q/bin/switch_root\\\"|(?=/sbin/init))", f"exec {says} ", last
    )
    given = ("splash", "a  b", "", '$(x) "`"', "*")
    setup = (
        f'Q=/q which=all stock_init=/s TERM=vt\n{function("lib", "keep_arguments")}\nkeep_arguments "$@"\n'
    )
    script = f"{setup}run() {{ {last}\n}}\nrun other"
    done = subprocess.run(
        [*shell, "-euc", script, "init", *given], check=True, capture_output=True, timeout=60
    )
    assert done.stdout.decode().endswith("".join(f"<{word}>" for word in given))
    assert "<other>" not in done.stdout.decode()


def test_both_halves_keep_their_arguments() -> None:
    for half in ("init", "second"):
        assert 'keep_arguments "$@"' in whole(half).splitlines()
    assert 'read_arguments "$@"' in whole("init").splitlines()


@pytest.mark.parametrize("shell", [("dash",), ("busybox", "sh")])
@pytest.mark.parametrize("line", ["root=UUID=1 ro", "root=UUID=1 cloud-init=disabled"])
def test_a_profile_that_never_starts_early(tmp_path: Path, shell: tuple[str, ...], line: str) -> None:
    never = FIXED.replace("EARLY=seen", "EARLY=never")
    assert unwanted(tmp_path, shell, line, never) == 'early = "never"'
    assert unwanted(tmp_path, shell, f"{line} single", never) == "single"


@pytest.mark.parametrize(
    ("setting", "queue"),
    [
        ("net/core/default_qdisc fq", "fq"),
        ("net/core/* fq", "pfifo_fast"),
        ("net/ipv4/x fq", "pfifo_fast"),
    ],
)
def test_a_card_s_queue_is_chosen_before_it_is_up(tmp_path: Path, setting: str, queue: str) -> None:
    """The setting is the whole machine's, so a directory of ours has it."""
    (tmp_path / "sys/net/core").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "sys/net/core/default_qdisc").write_text("pfifo_fast\n")
    first = resources.files("quickstart.initramfs").joinpath("init", "first").read_text()
    found = [
        re.search(rf"^{name}\(\) \{{.*?^\}}", first, re.MULTILINE | re.DOTALL)
        for name in ("setting", "set_for_now")
    ]
    text = "\n".join(each[0] for each in found if each).replace("/proc/sys", f"{tmp_path}/sys")
    script = f"Q={tmp_path} INTERFACE=ens3 BEFORE=\n{text}\nsetting {setting}"
    subprocess.run(["busybox", "sh", "-euc", script], check=True, timeout=60)
    assert (tmp_path / "sys/net/core/default_qdisc").read_text() == f"{queue}\n"
    # A fallback puts it back.
    before = tmp_path / "run/before"
    assert not before.exists() or before.read_text().endswith("/default_qdisc pfifo_fast\n")
    assert before.exists() is (queue == "fq")
    assert text.count("default_qdisc") == 1
