"""Functions of init's second half: the machine-id, mounts, and that links are protected before sysctl.d is read."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from tests.contract.initscript import function

# What `prepare` calls.
OF_PREPARE = ("mkdir", "mounter", "mount_tmp", "set_host_name", "protect_links", "set_as_systemd")
# Of fstab(5).
NO_OPTIONS = "SHM_OPTIONS= PROC_OPTIONS= UDEV_DATA="


def second() -> str:
    return resources.files("quickstart.initramfs").joinpath("init", "second").read_text()


UUID = "CAFE0000-1111-2222-3333-444455556666\n"


@pytest.mark.parametrize(
    ("words", "before", "clock", "vendor", "after"),
    [
        ("READS_MACHINE_ID=yes", "", "tsc kvm-clock acpi_pm", "QEMU", "cafe0000111122223333444455556666"),
        # Not under KVM, or in a cloud that systemd does not take for it: at random.
        ("READS_MACHINE_ID=yes", "", "tsc hpet", "QEMU", ""),
        ("READS_MACHINE_ID=yes", "", "kvm-clock", "Amazon EC2", ""),
        ("READS_MACHINE_ID=yes", "f" * 32, "kvm-clock", "QEMU", "f" * 32),
        ("READS_MACHINE_ID=", "", "kvm-clock", "QEMU", None),
    ],
)
def test_an_application_that_reads_the_machine_id_finds_one(
    tmp_path: Path, words: str, before: str, clock: str, vendor: str, after: str | None
) -> None:
    text = function("second", "make_machine_id")
    files = {
        "/sys/devices/system/clocksource/clocksource0/available_clocksource": f"{clock}\n",
        "/sys/class/dmi/id/sys_vendor": f"{vendor}\n",
        "/sys/class/dmi/id/product_uuid": UUID,
        "/var/lib/dbus/machine-id": None,
        "/etc/machine-id": f"{before}\n" if before else "",
    }
    for number, (path, content) in enumerate(files.items()):
        text = text.replace(path, f"{tmp_path}/{number}")
        if content is not None:
            (tmp_path / str(number)).write_text(content)
    done = subprocess.run(
        ["busybox", "sh", "-uc", f'{words}\nfall_back() {{ echo "$*"; exit 9; }}\n{text}\nmake_machine_id'],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found = (tmp_path / "4").read_text().strip()
    assert found == (after or found) and re.fullmatch("[0-9a-f]{32}" if after is not None else "", found)
    (tmp_path / "3").write_text("d" * 32)
    # A line break alone is no machine-id either.
    (tmp_path / "4").write_text("\n")
    again = subprocess.run(
        ["busybox", "sh", "-uc", f'{words}\nfall_back() {{ echo "$*"; exit 9; }}\n{text}\nmake_machine_id'],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert again.returncode == (0 if after is None else 9), again.stderr


def test_links_are_protected_before_the_application_begins(tmp_path: Path) -> None:
    """Upstream's kernel has both at 0 (kernel: Documentation/admin-guide/sysctl/fs.rst)."""
    for kind in ("hardlinks", "symlinks"):
        (tmp_path / f"protected_{kind}").write_text("0\n")
    script = function("second", "protect_links").replace("/proc/sys/fs", str(tmp_path))
    subprocess.run(["dash", "-euc", f"{script}\nprotect_links"], check=True, timeout=60)
    assert {path.read_text() for path in tmp_path.iterdir()} == {"1\n"}
    calls = [
        line.strip()
        for line in second().splitlines()
        if line.strip() in ("protect_links", "start_application")
    ]
    assert calls == ["protect_links", "start_application"]


@pytest.mark.parametrize("shell", [("dash",), ("busybox", "sh")], ids=" ".join)
@pytest.mark.parametrize(("hand_off", "which"), [("keep", "all"), ("no", "unit")])
def test_sockets_are_bound_behind_the_kernel_s_settings(
    tmp_path: Path, hand_off: str, which: str, shell: tuple[str, ...]
) -> None:
    """A socket takes some of them when it is made (net.ipv6.bindv6only). What binds it executes the script anew, once."""
    (tmp_path / "settings").write_text("echo settings\n")
    (tmp_path / "earlier-files").write_text("")
    text = second()
    end = text[text.index('if [ -z "${PREPARED:-}" ]; then') : text.index("stamp started")]
    names = (
        *OF_PREPARE,
        "make_machine_id",
        "take_from_lease",
        "note_sockets",
        "stamp",
        "start_application",
    )
    stubs = "".join(f"{name}() {{ :; }}\n" for name in names)
    (tmp_path / "hand-off").write_text("hand_off() { :; }\n")
    script = tmp_path / "second"
    script.write_text(
        f"{NO_OPTIONS} Q={tmp_path} SOCKETS=1 JOURNAL_SOCKETS=2 HAND_OFF={hand_off} NOLOGIN= arguments=\n"
        f"{stubs}{function('second', 'count_sockets')}\n{function('second', 'bind_sockets')}\n"
        f"{function('second', 'prepare').replace('/proc/sys/kernel/ctrl-alt-del', '/dev/null')}\n"
        f'{end}\necho "application $PREPARED"\n'
    )
    says = tmp_path / "caretaker"
    says.write_text('#!/bin/sh\necho "$1 $2 ${3##*/}"\nshift 3\nexec "$@"\n')
    says.chmod(0o755)
    (tmp_path / "busybox").write_text(
        f'#!/bin/sh\nshift\nexec {shutil.which(shell[0])} {" ".join(shell[1:])} "$@"\n'
    )
    (tmp_path / "busybox").chmod(0o755)
    done = subprocess.run(
        [*shell, "-eu", script], check=True, capture_output=True, text=True, timeout=60,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )  # fmt: skip
    assert (done.stdout.splitlines(), done.stderr) == (
        ["settings", f"listen {which} unit", "application yes"],
        "",
    )


@pytest.mark.parametrize(
    ("hand_off", "nologin", "is_there"), [("keep", "yes", True), ("keep", "", False), ("no", "yes", False)]
)
def test_nobody_logs_in_before_systemd_lets_them(
    tmp_path: Path, hand_off: str, nologin: str, is_there: bool
) -> None:
    """An sshd that starts early asks pam_nologin(8), too. Without a hand-off nobody would remove the file."""
    names = (*OF_PREPARE, "note", "fall_back")
    stubs = "".join(f"{name}() {{ :; }}\n" for name in names)
    for name in ("earlier-files", "settings"):
        (tmp_path / name).write_text("")
    body = function("second", "prepare").replace("/proc/sys/kernel/ctrl-alt-del", "/dev/null")
    body = body.replace("/run/nologin", str(tmp_path / "nologin"))
    script = f"{NO_OPTIONS} Q={tmp_path} HAND_OFF={hand_off} NOLOGIN={nologin}\n{stubs}{body}\nprepare"
    subprocess.run(["dash", "-euc", script], check=True, timeout=60)
    assert (tmp_path / "nologin").exists() is is_there


@pytest.mark.parametrize("place", ["", "/run/udev/data"])
def test_udev_s_directory_for_whoever_looks_for_it(tmp_path: Path, place: str) -> None:
    """A stock boot has it from the distribution's initramfs on."""
    stubs = "".join(f"{name}() {{ :; }}\n" for name in (*OF_PREPARE, "note", "fall_back") if name != "mkdir")
    for name in ("earlier-files", "settings"):
        (tmp_path / name).write_text("")
    body = function("second", "prepare").replace("/proc/sys/kernel/ctrl-alt-del", "/dev/null")
    script = f'{NO_OPTIONS}{place} Q={tmp_path} HAND_OFF=no NOLOGIN=\n{stubs}{body}\nmkdir() {{ echo "$*"; }}\nprepare'
    done = subprocess.run(["dash", "-euc", script], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout.split() == [
        "-p",
        "/dev/pts",
        "/dev/shm",
        "/run/lock",
        "/run/quickstart",
        *place.split(),
    ]


def set_as_systemd(place: Path, words: str) -> dict[str, str]:
    """What init's function writes into a directory of ours, where fs.nr_open has the kernel's own bound."""
    names = (
        *("kernel/printk_devkmsg", "fs/file-max", "fs/nr_open", "net/unix/max_dgram_qlen"),
        "kernel/core_pattern",
    )
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("1\n")
    text = function("second", "set_as_systemd").replace("/proc/sys", str(place))
    bound = 'echo() { [ "$1" != 2147483640 ] && printf "%s\\n" "$1"; }'
    subprocess.run(
        ["busybox", "sh", "-c", f"{words}\n{bound}\n{text}\nset_as_systemd"], check=True, timeout=60
    )
    return {name: (place / name).read_text().strip() for name in names}


@pytest.mark.parametrize(
    ("words", "nr_open", "core_pattern"),
    [
        ("RAISES_NR_OPEN= STOPS_CORE_DUMPS=", "1", "1"),
        ("RAISES_NR_OPEN=yes STOPS_CORE_DUMPS=yes", "1073741816", "|/bin/false"),
    ],
)
def test_what_systemd_sets_before_any_service(
    tmp_path: Path, words: str, nr_open: str, core_pattern: str
) -> None:
    """The values are those of Debian's kernel under systemd 252 and 257."""
    assert set_as_systemd(tmp_path, words) == {
        "kernel/printk_devkmsg": "on",
        "fs/file-max": str((1 << 63) - 1),
        "fs/nr_open": nr_open,
        "net/unix/max_dgram_qlen": "512",
        "kernel/core_pattern": core_pattern,
    }


def test_sysctl_d_has_the_last_word() -> None:
    prepare = second().partition("\nprepare() {\n")[2].partition("\n}\n")[0]
    assert prepare.splitlines()[-2:] == ["\tset_as_systemd", "\t. $Q/settings"]


def mounts(place: Path, words: str) -> list[str]:
    """The lines of init's table of mounts that are about memory and processes."""
    for name in ("earlier-files", "settings"):
        (place / name).write_text("")
    names = ("mkdir", "mount_tmp", "set_host_name", "protect_links", "set_as_systemd", "note")
    stubs = "".join(f"{name}() {{ :; }}\n" for name in names)
    body = function("second", "prepare").replace("/proc/sys/kernel/ctrl-alt-del", "/dev/null")
    script = f"Q={place} HAND_OFF=no NOLOGIN= {words}\nmounter() {{ cat; }}\n{stubs}{body}\nprepare"
    done = subprocess.run(["busybox", "sh", "-euc", script], check=True, capture_output=True, timeout=60)
    rows = (line.split() for line in done.stdout.decode().splitlines())
    return [" ".join(row[2:]) for row in rows if row and row[2] in ("/dev/shm", "/proc")]


def test_options_of_fstab(tmp_path: Path) -> None:
    usual = "/dev/shm nodev,nosuid,strictatime,mode=1777"
    assert mounts(tmp_path, NO_OPTIONS) == [usual]
    assert mounts(tmp_path, "SHM_OPTIONS=noexec,size=2G PROC_OPTIONS=hidepid=2,gid=7 UDEV_DATA=") == [
        f"{usual},noexec,size=2G",
        "/proc remount,nodev,noexec,nosuid,hidepid=2,gid=7",
    ]
