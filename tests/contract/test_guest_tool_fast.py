"""/usr/sbin/quickstart takes /fast away, says how the machine starts, and is removed, in a root of its own (as root)."""

from __future__ import annotations

import json
import re
import subprocess
from importlib import resources

import pytest

from tests.contract.guestbox import BUILD, CHANGE, FAILS, Machine, machine
from tests.unit.test_cloudinit import ALWAYS, BOOTCMD

__all__ = ["machine"]

# It mounts what only root of the host may.
pytestmark = pytest.mark.host_root


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


def test_a_directory_fast_of_the_volume_keeps_its_files(machine: Machine) -> None:
    """Somebody has copied /fast there. Only what is in memory is ours to delete."""
    said = machine(
        "mkdir /run; quickstart record; cp -a /fast /copy; umount /fast; cp -a /copy/. /fast; "
        f"{CHANGE}; quickstart check >/dev/null {FAILS}; cat /fast/quickstart/part-b"
    )
    assert said.split() == [BUILD]


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
