"""/usr/sbin/quickstart in a root of its own, with the host's coreutils, mounts and namespaces (as root)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest

from quickstart.host.namespaces import own_namespaces
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.enabled import enabled_text
from tests.unit.test_cloudinit import ALWAYS, BOOTCMD

# It mounts what only root of the host may.
pytestmark = pytest.mark.host_root

BUILD = "0123456789abcdef0123456789abcdef"
ODD = ("opt/app/a b", 'opt/app/it\'s "x"', "opt/app/two\nlines", "opt/app/\\back", "opt/app/b\xe9")
Machine = Callable[[str], str]
# PID 1 of its namespace, with /fast as init leaves it: a directory of another file system, bound.
BEGIN = """\
set -eu
# Its root is a mount of its own, over that of the namespace, and shared, as systemd makes it.
mount --bind "$1" "$1"
cd "$1"
for name in usr; do mount --bind "/$name" "$name"; done
mount -t proc proc proc
mount -t tmpfs -o mode=755 dev dev
for name in null zero urandom; do : >"dev/$name"; mount --bind "/dev/$name" "dev/$name"; done
: >dev/kmsg
ln -s /proc/self/fd dev/fd
mkdir -p initramfs
mount -t tmpfs initramfs initramfs
cp -a packed initramfs/fast
mount --bind initramfs/fast fast
mount --move . /
mount --make-shared .
exec chroot . /usr/bin/env -i PATH=/tool:/usr/sbin:/usr/bin:/sbin:/bin sh -eu -c "$2"
"""


@pytest.fixture
def machine(tmp_path: Path, caretaker: Path) -> Machine:
    """Runs a script in a root whose packed files are below /opt/app; it has to succeed."""
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they mount")
    root = tmp_path / "root"
    for name in (
        "usr",
        "proc",
        "dev",
        "etc",
        "tmp",
        "fast",
        "var/lib",
        "opt/app",
        "tool",
        "opt/place",
        "packed/quickstart/bin",
    ):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/machine-id").write_text(f"{'0' * 31}1\n")
    scripts = resources.files("quickstart.reference.guestpkg").joinpath("scripts")
    for each in scripts.iterdir():
        target = root / "tool" / each.name
        target.write_bytes(each.read_bytes())
        target.chmod(0o755)
    names = ["opt/app/program", "opt/app/link", *ODD]
    (root / "opt/app/link").symlink_to("program")
    for name in names[:1] + names[2:]:
        (root / name).write_text("packed")
    (root / "opt/place/entry").write_text("there")
    packed = root / "packed/quickstart"
    shutil.copy(caretaker, packed / "bin/caretaker")
    (packed / "part-b").write_text(f"{BUILD}\n")
    absent, places = "opt/app/absent", ("opt/place", "opt/no place")
    (packed / "packed.names").write_bytes(b"".join(os.fsencode(name) + b"\0" for name in (*names, absent)))
    (packed / "packed.places").write_bytes(b"".join(os.fsencode(name) + b"\0" for name in places))
    rows = subprocess.run(
        ["stat", "-c", "%f %s %Y %Z %n", "--", *names, "opt/place/entry"],
        cwd=root,
        capture_output=True,
        check=True,
        timeout=60,
    ).stdout
    ways = [".", "opt", "opt/app"]
    (packed / "packed.ways").write_bytes(b"".join(os.fsencode(name) + b"\0" for name in ways))
    rows += subprocess.run(
        ["stat", "-c", "%f %u %g 0 %n", "--", *ways], cwd=root, capture_output=True, check=True, timeout=60
    ).stdout
    (packed / "packed.stat").write_bytes(rows)
    # The machine has the host's own units.
    (packed / "packed.units").write_bytes(enabled_text(ImageRoot(Path("/")), "none.service"))
    for name in ("early-units", "settings-files"):
        script = resources.files("quickstart.initramfs").joinpath("init", name)
        (packed / name).write_bytes(script.read_bytes())

    def run(script: str) -> str:
        done = subprocess.run(
            [*own_namespaces(), "sh", "-c", BEGIN, "sh", str(root), script],
            capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr).decode(errors="replace")
        return done.stdout.decode(errors="replace")

    return run


CHANGE = "printf X | dd of=/opt/app/program bs=1 conv=notrunc 2>/dev/null"
FAILS = "&& exit 9 || :"


def test_nothing_differs_before_and_after_it_is_recorded(machine: Machine) -> None:
    said = machine(
        "quickstart check; quickstart record /fast/quickstart; quickstart check; readlink /var/lib/quickstart/current; "
        "tr '\\0' '|' </var/lib/quickstart/current/names; ls /var/lib/quickstart; test -s /var/lib/quickstart/current/kernel"
    )
    assert said.startswith(f"{BUILD}\nopt/app/program|opt/app/link|")
    assert said.endswith(f"|{BUILD}\ncurrent\n")


def test_only_root_reads_what_is_recorded(machine: Machine) -> None:
    """It names files in directories that not everybody may enter, with their sizes."""
    said = machine("quickstart record; cd /var/lib/quickstart/current; stat -c %a * | sort -u")
    assert said == "600\n"
    # As an ordinary user's id(1) says it.
    refused = f"id() {{ echo 1000; }}; set -- check; (. $(command -v quickstart)) 2>/tmp/said {FAILS}"
    assert "check has to run as root" in machine(f"{refused}; cat /tmp/said")


def test_what_is_recorded_stays(machine: Machine) -> None:
    """A second record of the same build takes no notice of what the volume has by now; one of another build does."""
    machine(
        f"quickstart record; stat -c %y /var/lib/quickstart/current/facts >/tmp/1; sleep 1.1; {CHANGE}; quickstart record; "
        "stat -c %y /var/lib/quickstart/current/facts | cmp - /tmp/1; "
        f"echo {BUILD[::-1]} >/fast/quickstart/part-b; quickstart record 2>/tmp/2 {FAILS}; "
        "grep -q 'nothing was recorded' /tmp/2; [ $(readlink /var/lib/quickstart/current) = " + BUILD + " ]"
    )


def test_a_new_build_takes_the_old_ones_place(machine: Machine) -> None:
    said = machine(
        f"quickstart record; echo {BUILD[::-1]} >/fast/quickstart/part-b; quickstart record; ls /var/lib/quickstart"
    )
    assert said.split() == sorted((BUILD[::-1], "current"))


def test_a_unit_that_comes_before_the_application(machine: Machine) -> None:
    """As init judges it, by init's own script, which the record keeps."""
    place = "/etc/systemd/system/multi-user.target.wants"
    out = machine(
        f"""mkdir -p {place}
ln -s /x {place}/daemon.service
quickstart check; quickstart record; quickstart check
printf '[Unit]\\nBefore=network.target\\n' >/etc/systemd/system/wall.service
quickstart check
ln -s /x {place}/wall.service
quickstart check {FAILS}
quickstart status --json"""
    )
    assert f"{place}/wall.service is not as it was packed" in out
    said = json.loads(out.splitlines()[-1])["result"]
    assert said["differing"] == [f"{place}/wall.service"]


@pytest.mark.parametrize("recorded", ["quickstart record", ":"])
def test_kernel_settings_of_packages_count_by_their_content(machine: Machine, recorded: str) -> None:
    """As init has it: an upgrade writes a file anew."""
    out = machine(
        f"""echo 1 >/opt/settings.conf
echo 'x  opt/settings.conf' >/tmp/sums
sh /fast/quickstart/settings-files / /tmp/sums >/fast/quickstart/packed.settings
{recorded}
cp /opt/settings.conf /opt/new; mv /opt/new /opt/settings.conf; touch -d 2001-01-01 /opt/settings.conf
quickstart check
echo 2 >/opt/settings.conf
quickstart check {FAILS}"""
    )
    assert out.startswith(
        "quickstart: /opt/settings.conf is not as it was packed; the next boot is a stock one."
    )
    assert out.count("\n") == 1


@pytest.mark.parametrize("recorded", ["quickstart record", ":"])
def test_a_hardware_clock_that_gets_the_local_time(machine: Machine, recorded: str) -> None:
    """The word counts, and not the rest of the file, which hwclock(8) writes at any time."""
    out = machine(
        f"""sh /fast/quickstart/settings-files / /dev/null >/fast/quickstart/packed.settings
{recorded}
printf '0.0 0 0.0\\n0\\nUTC\\n' >/etc/adjtime
quickstart check
printf '0.0 0 0.0\\n0\\nLOCAL\\n' >/etc/adjtime
quickstart status --json
quickstart check {FAILS}"""
    )
    status, said = out.splitlines()
    assert json.loads(status)["result"]["differing"] == ["/etc/adjtime"]
    assert said.startswith("quickstart: /etc/adjtime is not as it was packed; the next boot is a stock one.")


def test_a_clock_with_the_local_time_is_not_recorded(machine: Machine) -> None:
    out = machine(
        "printf '0.0 0 0.0\\n0\\nLOCAL\\n' >/etc/adjtime; : >/fast/quickstart/packed.settings; "
        f"quickstart record 2>&1 {FAILS}"
    )
    assert out.endswith("nothing was recorded\n")


def test_other_kernel_settings_than_the_packed_are_not_recorded(machine: Machine) -> None:
    out = machine(
        f"echo 'x  opt/settings.conf' >/fast/quickstart/packed.settings; quickstart record 2>&1 {FAILS}"
    )
    assert out.endswith("nothing was recorded\n")


@pytest.mark.parametrize("recorded", ["quickstart record", ":"])
@pytest.mark.parametrize(
    ("change", "named"),
    [
        (CHANGE, "/opt/app/program"),
        ("cp -p /opt/app/program /opt/new; mv /opt/new /opt/app/program", "/opt/app/program"),
        ("rm /opt/app/program", "/opt/app/program"),
        ("ln -sfn other /opt/app/link", "/opt/app/link"),
        ("chmod 600 '/opt/app/a b'", "/opt/app/a b"),
        ('rm "/opt/app/it\'s \\"x\\""', '/opt/app/it\'s "x"'),
        # What was not there: a name (a mask, an earlier library), an entry of a directory, a whole such directory.
        ("ln -s /dev/null /opt/app/absent", "/opt/app/absent"),
        ("touch /opt/place/drop-in.conf", "/opt/place/drop-in.conf"),
        ("echo other >/opt/place/entry", "/opt/place/entry"),
        ("rm /opt/place/entry", "/opt/place/entry"),
        ("mkdir '/opt/no place'; touch '/opt/no place/x'", "/opt/no place/x"),
        # Who may come to what is packed: a directory above it is closed, or given away.
        ("chmod 700 /opt", "/opt"),
        ("chgrp 1 /opt/app", "/opt/app"),
        ("chmod 750 /", "/."),
        ("mv /opt/place /opt/placed; ln -s placed /opt/place", "/opt/place"),
    ],
)
def test_a_change_is_named_and_fast_is_taken_away(
    machine: Machine, recorded: str, change: str, named: str
) -> None:
    # A second later, as for whoever only sees seconds.
    said = machine(
        f"{recorded}; ln -s 1:{BUILD}:1:1 /.quickstart; sleep 1.1; {change}; quickstart check {FAILS}; "
        "ls -A /fast; ls -A / | grep -c '^.quickstart$' || :"
    )
    assert said.splitlines()[0] == (
        f"quickstart: {named} is not as it was packed; the next boot is a stock one. "
        "`quickstart rebuild OUT` on the host packs anew."
    )
    assert said.splitlines()[1:] == ["0"]


def test_a_record_of_before_has_no_ways(machine: Machine) -> None:
    """quickstart-guest is upgraded, the record stays as an earlier one has written it."""
    machine(
        "quickstart record; cd /var/lib/quickstart/current; head -n -3 facts >f; mv f facts; rm ways; "
        "chmod 700 /opt; quickstart check"
    )


def test_the_modules_of_the_fast_starts_kernel_belong_to_it(machine: Machine) -> None:
    said = machine(
        "quickstart record; mkdir /opt/modules; echo /opt/modules >/var/lib/quickstart/current/modules; quickstart check; "
        f"echo as packed; rmdir /opt/modules; quickstart check {FAILS}; quickstart status --json | grep -o '\"differing.*'"
    )
    as_packed, gone, status = said.splitlines()
    assert as_packed == "as packed"
    assert gone.startswith("quickstart: /opt/modules is not as it was packed; the next boot is a stock one.")
    assert status.startswith('"differing": ["/opt/modules"], "next_boot": "stock: /opt/modules is not')


def test_times_are_compared_in_nanoseconds(machine: Machine) -> None:
    """What the build has is in seconds; a change in that very second is seen by the record."""
    machine(
        'quickstart record; at=$(stat -c %.9Y /opt/app/program); touch -d "@${at%.*}.000000001" /opt/app/program; '
        f"quickstart check {FAILS}"
    )


def test_an_empty_record_agrees_with_nothing(machine: Machine) -> None:
    """As a crash may leave one: init's own facts count then, and without them nothing is stamped."""
    machine(
        "quickstart record; : >/var/lib/quickstart/current/names; : >/var/lib/quickstart/current/facts; "
        f"sleep 1.1; {CHANGE}; "
        f"quickstart check {FAILS}; umount -l /fast 2>/dev/null || :; quickstart stamp; [ ! -e /.quickstart ]"
    )


def test_new_processes_of_every_namespace_load_from_the_volume(machine: Machine) -> None:
    """Whether a namespace follows the first one (as systemd makes them) or is private; who runs keeps what he has open."""
    said = machine(
        "quickstart record; mkfifo /tmp/a /tmp/b; "
        "unshare --mount --propagation slave sh -c 'read -r _ </tmp/a; ls -A /fast | wc -l' >/tmp/1 & "
        "unshare --mount --propagation private sh -c 'exec 3</fast/quickstart/part-b; read -r _ </tmp/b; "
        "ls -A /fast | wc -l; cat <&3' >/tmp/2 & "
        f"sleep 0.5; {CHANGE}; quickstart check >/dev/null {FAILS}; echo >/tmp/a; echo >/tmp/b; wait; cat /tmp/1 /tmp/2"
    )
    assert said.split() == ["0", "0", BUILD]


def test_until_settle_fast_stays_and_settle_is_told(machine: Machine) -> None:
    """systemd starts adopt and settle from there: without them the unit could not be restarted in that boot."""
    said = machine(
        f"quickstart record; mkdir -p /run/quickstart; {CHANGE}; quickstart check {FAILS}; "
        f"test -s /fast/quickstart/part-b; ls /run/quickstart; rm -r /run/quickstart; quickstart check {FAILS}; ls -A /fast | wc -l"
    )
    assert [line for line in said.splitlines() if line in ("take-away", "0")] == ["take-away", "0"]


def test_who_runs_what_was_taken_away_is_told_from_others(machine: Machine) -> None:
    """needrestart(1) goes by this word of proc(5), as after an upgrade in a stock boot."""
    said = machine(
        "mkdir /run; quickstart record; exec 3</fast/quickstart/part-b; "
        f"readlink /proc/$$/fd/3; {CHANGE}; quickstart check >/dev/null {FAILS}; readlink /proc/$$/fd/3; cat <&3; "
        "ls -d /run/quickstart.* 2>/dev/null || echo none"
    )
    before, after, *rest = said.splitlines()
    assert not before.endswith("(deleted)")
    assert after.endswith(" (deleted)")
    assert rest == [BUILD, "none"]


def test_a_chroot_takes_nothing_away_from_the_machine(machine: Machine) -> None:
    """An image that is made inside of a machine has dpkg triggers, too."""
    machine(
        "quickstart record; mkdir -p /c/fast /c/proc /c/usr /c/opt/app /c/var/lib; "
        "cp -a /var/lib/quickstart /c/var/lib; cp -a /tool /c; "
        "for n in bin lib lib64 sbin; do ln -s usr/$n /c/$n; done; mount --bind /usr /c/usr; mount --bind /proc /c/proc; "
        f"chroot /c sh -c 'PATH=/tool:$PATH; quickstart check' {FAILS}; test -s /fast/quickstart/part-b"
    )


def test_anothers_directory_of_that_name_is_left_alone(machine: Machine) -> None:
    machine(
        "quickstart record; umount -l /fast; mount -t tmpfs mine /fast; touch /fast/mine; "
        f"{CHANGE}; quickstart check {FAILS}; test -e /fast/mine"
    )


def test_disabled_stays_disabled(machine: Machine) -> None:
    said = machine(
        "quickstart record; quickstart disable >/dev/null; readlink /.quickstart; quickstart stamp; "
        f"{CHANGE}; quickstart check >/dev/null {FAILS}; readlink /.quickstart; "
        "quickstart enable; [ ! -L /.quickstart ]; ln -s text /.quickstart; quickstart enable; readlink /.quickstart"
    )
    assert said.splitlines() == ["1:off", "1:off", "quickstart: enabled", "quickstart: enabled", "text"]


def test_a_loss_of_power_in_the_middle_of_a_stamp_does_not_keep_it_from_being_disabled(
    machine: Machine,
) -> None:
    said = machine(
        "ln -s half /.quickstart.new; quickstart disable >/dev/null; readlink /.quickstart; [ ! -L /.quickstart.new ]"
    )
    assert said.split() == ["1:off"]


def test_status_is_json_whatever_files_are_called(machine: Machine) -> None:
    said = machine(
        "quickstart record; chmod 600 /opt/app/*; sleep 0.1; quickstart status --json; umount -l /fast; "
        "quickstart disable >/dev/null; quickstart status --json"
    )
    first, second = (json.loads(line) for line in said.splitlines())
    assert (first["schema"], first["verb"], first["ok"]) == (1, "status", True)
    result = first["result"]
    assert result["build"] == BUILD
    assert (result["enabled"], result["fast_mounted"], result["stamp"]) == (True, True, "")
    assert {"/opt/app/program", "/opt/app/a b", '/opt/app/it\'s "x"', "/opt/app/\\back"} <= set(
        result["differing"]
    )
    assert result["next_boot"] == "stock: /opt/app/\\back is not as it was packed"
    assert (second["result"]["enabled"], second["result"]["fast_mounted"]) == (False, False)
    assert (second["result"]["stamp"], second["result"]["next_boot"]) == ("1:off", "stock: disabled")


@pytest.mark.parametrize("left", ["", "[ 9.1] quickstart: stamp settled", "[ 9.1] quickstart: x is not new"])
def test_how_the_boot_started_long_ago(machine: Machine, left: str) -> None:
    """The kernel's log has forgotten it. journald keeps init's lines without their beginning, which names them."""
    said = machine(
        f"printf '#!/bin/sh\\necho \"{left}\"\\n' >/tool/dmesg; printf '#!/bin/sh\\n%s\\n' "
        '\'[ "$*" = "-q -k -b -o cat SYSLOG_IDENTIFIER=quickstart" ] && echo "the root volume is as stamped"\' '
        ">/tool/journalctl; chmod 755 /tool/*; quickstart status --json"
    )
    result = json.loads(said)["result"]
    assert (result["boot"], result["reason"]) == ("fast", "the root volume was as stamped")


def test_two_failures_in_grub_are_named(machine: Machine) -> None:
    """As 42_quickstart leaves them in the environment block of GRUB, on a disk of `build --image`."""
    said = machine(
        "quickstart record; mkdir -p /boot/grub; quickstart status --json; "
        "printf '# GRUB Environment Block\\nquickstart_state=off\\n###' >/boot/grub/grubenv; quickstart status --json"
    )
    first, second = (json.loads(line)["result"]["next_boot"] for line in said.splitlines())
    assert not first.startswith("stock")
    assert second.startswith("stock: the last two fast starts did not come to their end")


def test_a_new_kernel_is_answered_in_one_line(machine: Machine) -> None:
    said = machine(
        "kernel-hook 6.9 x; quickstart record; quickstart kernel $(uname -r); quickstart kernel 6.9; uname -r"
    )
    line, version = said.splitlines()
    assert line == (
        f"quickstart: the fast start goes on with kernel {version}; `quickstart rebuild OUT` on the host takes 6.9."
    )


def test_purged_means_gone(machine: Machine) -> None:
    said = machine(
        "sed -i 's#/usr/sbin/#/tool/#' /tool/prerm; quickstart record; quickstart disable >/dev/null; "
        "prerm remove; postrm remove; ls -A /fast | wc -l; postrm purge; "
        "ls -d /.quickstart /var/lib/quickstart /fast 2>&1 | grep -c 'No such'"
    )
    assert said.split() == ["0", "3"]


def test_it_does_not_stamp_what_is_no_ext4(machine: Machine) -> None:
    machine("quickstart record; quickstart stamp; [ ! -L /.quickstart ]; [ ! -s /dev/kmsg ]")


def test_a_wrong_word_is_status_2(machine: Machine) -> None:
    said = machine(
        "quickstart forgets 2>/dev/null || echo $?; quickstart 2>/dev/null || echo $?; quickstart help"
    )
    assert said.startswith("2\n2\nquickstart status")


@pytest.mark.parametrize(("text", "runs"), [*ALWAYS, *BOOTCMD])
def test_what_cloud_init_runs_at_each_boot(text: str, *, runs: bool) -> None:
    """The same as at the build (inspect/cloudinit.py)."""
    script = resources.files("quickstart.reference").joinpath("guestpkg", "scripts", "quickstart").read_text()
    found = re.search(r"^runs_each_boot\(\) \{.*?^\}", script, re.MULTILINE | re.DOTALL)
    assert found
    done = subprocess.run(
        ["dash", "-eu", "-c", f"{found[0]}\nif runs_each_boot; then echo runs; fi"],
        input=text.encode(),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert (done.stdout == b"runs\n", done.stderr) == (runs, b"")
