"""Functions of init's second half: when it writes /etc/resolv.conf, and that links are protected before sysctl.d is read."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from quickstart.host.namespaces import own_namespaces

MINE, SERVERS = "nameserver 127.0.0.1\n", "nameserver 6.6.6.6\n"


# Of fstab(5).
NO_OPTIONS = "SHM_OPTIONS= PROC_OPTIONS="


def second() -> str:
    return resources.files("quickstart.initramfs").joinpath("init", "second").read_text()


def function(name: str) -> str:
    found = re.search(rf"^{name}\(\) \{{.*?^\}}", second(), re.MULTILINE | re.DOTALL)
    assert found, name
    return found[0]


@pytest.mark.parametrize(
    ("network", "hand_off", "before", "expected"),
    [
        ("networkd", "keep RESOLVER=yes", MINE, MINE),
        # As dhclient does it some seconds later.
        ("ifupdown", "keep RESOLVER=yes", MINE, SERVERS),
        # The administrator keeps dhclient from it.
        ("ifupdown", "keep", MINE, MINE),
        ("ifupdown", "keep", "", SERVERS),
        # Nobody else does.
        ("", "no", MINE, SERVERS),
        ("ifupdown", "no", MINE, SERVERS),
    ],
)
def test_a_server_does_not_write_what_the_stock_boot_would_not(
    tmp_path: Path, network: str, hand_off: str, before: str, expected: str
) -> None:
    """`second` has the function; it is run with a directory of ours as /etc."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/resolv.conf").write_text(SERVERS)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/resolv.conf").write_text(before)
    place = shlex.quote(str(tmp_path))
    words = f"Q={place} NETWORK={network} HAND_OFF={hand_off}"
    script = f"set -e\nmount --bind {place}/etc /etc\n{words}\n{function('take_resolver')}\ntake_resolver"
    done = subprocess.run([*own_namespaces(), "dash", "-c", script], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "etc/resolv.conf").read_text() == expected


def run_named(place: Path, name: str, words: str, *, lease: str = "") -> tuple[str, str]:
    """What ``set_host_name`` and ``take_from_lease`` say, and the name after both. The client writes ``lease``, the
    host name of its lease, after a while.
    """
    (place / "run").mkdir()
    (place / "kernel").write_text("(none)\n")
    (place / "etc-hostname").write_text(name)
    text = "\n".join(map(function, ("set_host_name", "take_resolver", "take_from_lease")))
    for path, file in (
        ("/proc/sys/kernel/hostname", "kernel"),
        ("/etc/hostname", "etc-hostname"),
        ("/etc/", "etc-"),
    ):
        text = text.replace(path, f"{place}/{file}")
    script = (
        f"Q={place} HAND_OFF=keep RESOLVER=yes READS_NAME_SERVERS= USES_NETWORK= NAMING= {words}\n{text}\n"
        'fall_back() { echo "fallback: $*"; exit; }\nusleep() { sleep 0.02; }\nlives() { [ -e "/proc/$1/exe" ]; }\n'
        f"{{ sleep 0.3; [ -z '{lease}' ] || echo '{lease}' >$Q/run/host-name; echo {SERVERS.strip()} >$Q/run/resolv.conf\n"
        "echo x >$Q/run/lease; } &\nDHCP=$!\nset_host_name\ntake_from_lease; ls $Q/run | tr '\\n' ' '"
    )
    done = subprocess.run(
        ["busybox", "sh", "-c", script], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout, (place / "kernel").read_text()


@pytest.mark.parametrize(
    ("name", "words", "lease", "said", "becomes"),
    [
        # It goes on at once.
        ("# mine\n\nweb", "NETWORK=ifupdown NAMING=lease", "other", "", "web"),
        ("# mine\r\n\r\nweb\r\n", "NETWORK=ifupdown NAMING=lease", "other", "", "web"),
        ("", "NETWORK=networkd", "other", "", "localhost"),
        # dhclient-script would give it the server's name.
        (
            "",
            "NETWORK=ifupdown NAMING=lease",
            "web1",
            "fallback: the machine has no name of its own",
            "localhost",
        ),
        (
            "localhost\n",
            "NETWORK=ifupdown NAMING=lease",
            "web1",
            "fallback: the machine has no name of its own",
            "localhost",
        ),
        ("", "NETWORK=ifupdown NAMING=lease", "", "lease resolv.conf ", "localhost"),
        (
            "localhost.localdomain\n",
            "NETWORK=networkd NAMING=lease",
            "web1",
            "fallback: the machine has no name of its own",
            "localhost.localdomain",
        ),
        # `supersede host-name "web1";` in dhclient.conf needs no server.
        (
            "",
            "NETWORK=ifupdown NAMING=client",
            "",
            "fallback: the machine has no name of its own, and its DHCP client",
            "localhost",
        ),
        ("web", "NETWORK=ifupdown NAMING=client", "", "", "web"),
    ],
)
def test_a_machine_without_a_name_waits_for_the_server_s(
    tmp_path: Path, name: str, words: str, lease: str, said: str, becomes: str
) -> None:
    found, kernel = run_named(tmp_path, name, words, lease=lease)
    assert (found.startswith(said), bool(found), kernel) == (True, bool(said), f"{becomes}\n")


def test_a_name_that_the_image_s_maker_has_chosen(tmp_path: Path) -> None:
    (tmp_path / "etc-os-release").write_text("ID=x\nDEFAULT_HOSTNAME=factory\n")
    assert run_named(tmp_path, "", "NETWORK=networkd")[0].startswith("fallback: the machine has no name")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/etc-os-release").write_text("DEFAULT_HOSTNAME=factory\n")
    assert run_named(tmp_path / "other", "web\n", "NETWORK=networkd") == ("", "web\n")


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
    text = function("make_machine_id")
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


def test_name_servers_behind_a_link_of_today(tmp_path: Path) -> None:
    """systemd-resolved was installed in the machine: its file comes later."""
    (tmp_path / "etc-resolv.conf").symlink_to("/run/systemd/resolve/stub-resolv.conf")
    said, _ = run_named(tmp_path, "web\n", "NETWORK=ifupdown READS_NAME_SERVERS=yes UNIT=app", lease="")
    assert "which is a link now" in said


def test_an_application_that_reads_name_servers_has_those_of_the_lease(tmp_path: Path) -> None:
    run_named(tmp_path, "web\n", "NETWORK=ifupdown READS_NAME_SERVERS=yes", lease="other")
    assert (tmp_path / "etc-resolv.conf").read_text() == SERVERS


def test_an_application_that_uses_the_network_has_the_address_of_the_lease(tmp_path: Path) -> None:
    said, _ = run_named(tmp_path, "web\n", "NETWORK=networkd USES_NETWORK=yes", lease="other")
    assert said.split() == ["host-name", "lease", "resolv.conf"]
    # Whose file it is matters to who reads it.
    assert not (tmp_path / "etc-resolv.conf").exists()


def test_links_are_protected_before_the_application_begins(tmp_path: Path) -> None:
    """Upstream's kernel has both at 0 (kernel: Documentation/admin-guide/sysctl/fs.rst)."""
    for kind in ("hardlinks", "symlinks"):
        (tmp_path / f"protected_{kind}").write_text("0\n")
    script = function("protect_links").replace("/proc/sys/fs", str(tmp_path))
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
        "mkdir",
        "mounter",
        "mount_tmp",
        "set_host_name",
        "protect_links",
        "set_as_systemd",
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
        f"{stubs}{function('bind_sockets')}\n"
        f'{function("prepare").replace("/proc/sys/kernel/ctrl-alt-del", "/dev/null")}\n{end}\necho "application $PREPARED"\n'
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
    names = (
        "mkdir",
        "mounter",
        "mount_tmp",
        "set_host_name",
        "protect_links",
        "set_as_systemd",
        "note",
        "fall_back",
    )
    stubs = "".join(f"{name}() {{ :; }}\n" for name in names)
    for name in ("earlier-files", "settings"):
        (tmp_path / name).write_text("")
    body = function("prepare").replace("/proc/sys/kernel/ctrl-alt-del", "/dev/null")
    body = body.replace("/run/nologin", str(tmp_path / "nologin"))
    script = f"{NO_OPTIONS} Q={tmp_path} HAND_OFF={hand_off} NOLOGIN={nologin}\n{stubs}{body}\nprepare"
    subprocess.run(["dash", "-euc", script], check=True, timeout=60)
    assert (tmp_path / "nologin").exists() is is_there


def set_as_systemd(place: Path, words: str) -> dict[str, str]:
    """What init's function writes into a directory of ours, where fs.nr_open has the kernel's own bound."""
    names = ("kernel/printk_devkmsg", "fs/file-max", "fs/nr_open", "net/unix/max_dgram_qlen")
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("1\n")
    text = function("set_as_systemd").replace("/proc/sys", str(place))
    bound = 'echo() { [ "$1" != 2147483640 ] && printf "%s\\n" "$1"; }'
    subprocess.run(
        ["busybox", "sh", "-c", f"{words}\n{bound}\n{text}\nset_as_systemd"], check=True, timeout=60
    )
    return {name: (place / name).read_text().strip() for name in names}


@pytest.mark.parametrize(
    ("words", "nr_open"), [("RAISES_NR_OPEN=", "1"), ("RAISES_NR_OPEN=yes", "1073741816")]
)
def test_what_systemd_sets_before_any_service(tmp_path: Path, words: str, nr_open: str) -> None:
    """The values are those of Debian's kernel under systemd 252 and 257."""
    assert set_as_systemd(tmp_path, words) == {
        "kernel/printk_devkmsg": "on",
        "fs/file-max": str((1 << 63) - 1),
        "fs/nr_open": nr_open,
        "net/unix/max_dgram_qlen": "512",
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
    body = function("prepare").replace("/proc/sys/kernel/ctrl-alt-del", "/dev/null")
    script = f"Q={place} HAND_OFF=no NOLOGIN= {words}\nmounter() {{ cat; }}\n{stubs}{body}\nprepare"
    done = subprocess.run(["busybox", "sh", "-euc", script], check=True, capture_output=True, timeout=60)
    rows = (line.split() for line in done.stdout.decode().splitlines())
    return [" ".join(row[2:]) for row in rows if row and row[2] in ("/dev/shm", "/proc")]


def test_options_of_fstab(tmp_path: Path) -> None:
    usual = "/dev/shm nodev,nosuid,strictatime,mode=1777"
    assert mounts(tmp_path, NO_OPTIONS) == [usual]
    assert mounts(tmp_path, "SHM_OPTIONS=noexec,size=2G PROC_OPTIONS=hidepid=2,gid=7") == [
        f"{usual},noexec,size=2G",
        "/proc remount,nodev,noexec,nosuid,hidepid=2,gid=7",
    ]
