"""`earlier-files` (initramfs/init) removes from /tmp what is older than the application, and keeps what came later."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from quickstart.host import door
from quickstart.host.namespaces import own_namespaces

RULE = "D /tmp 1777 root root -\n"


def left(root: Path, caretaker: Path, before: str, between: str = ":", rules: str = RULE) -> list[str]:
    """What is in /tmp and /var/tmp of a machine in the end; ``between`` is what happens after the application's start."""
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they chroot")
    place = root / "fast/quickstart"
    for name in ("fast/quickstart/bin", "run/quickstart", "tmp", "var/tmp", "usr/lib/tmpfiles.d", "dev"):
        (root / name).mkdir(parents=True)
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)
    (root / "dev/null").touch()
    (root / "usr/lib/tmpfiles.d/tmp.conf").write_text(rules)
    shutil.copy(door.tool_path("busybox"), place / "busybox")
    shutil.copy(caretaker, place / "bin/caretaker")
    script = resources.files("quickstart.initramfs").joinpath("init", "earlier-files")
    (place / "earlier-files").write_bytes(script.read_bytes())
    done = subprocess.run(["busybox", "--list"], capture_output=True, text=True, timeout=60, check=True)
    for applet in done.stdout.split():
        (place / "bin" / applet).symlink_to("../busybox")
    tool = "sh /fast/quickstart/earlier-files"
    called = subprocess.run(
        [*own_namespaces(), "chroot", root, "/fast/quickstart/busybox", "sh", "-euc",
         f"{before}\n{tool} note\nsleep 1\n{between}\n{tool} remove"],
        env={"PATH": "/fast/quickstart/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (called.returncode, called.stderr) == (0, b"")
    found = (path for name in ("tmp", "var/tmp") for path in (root / name).iterdir())
    return sorted(str(path.relative_to(root)) for path in found)


def test_what_was_there_goes_and_what_came_stays(tmp_path: Path, caretaker: Path) -> None:
    before = "mkdir -p /tmp/a/b /var/tmp/systemd-private-x/tmp; touch /tmp/a/b/c /tmp/.hidden /var/tmp/kept; ln -s /var/tmp /tmp/l"
    assert left(tmp_path, caretaker, before, "touch /tmp/new; mkdir /tmp/.hidden2") == [
        "tmp/.hidden2",
        "tmp/new",
        "var/tmp/kept",
    ]


@pytest.mark.parametrize(
    ("own", "stays"),
    [
        ("etc/tmpfiles.d/tmp.conf", True),
        ("run/tmpfiles.d/tmp.conf", True),
        ("usr/local/lib/tmpfiles.d/tmp.conf", True),
        ("etc/tmpfiles.d/tmp.txt", False),
    ],
)
@pytest.mark.parametrize(
    "rule",
    ["d /tmp 1777 root root -", "q /tmp/ 1777 root 10d", 'd "/tmp"', "  d /tmp", "d %T 1777"],
)
def test_a_rule_of_the_administrator_s_own(
    tmp_path: Path, caretaker: Path, own: str, rule: str, *, stays: bool
) -> None:
    """The same name takes the place of the package's file."""
    before = f"mkdir -p /{Path(own).parent}; printf %s '{rule}' >/{own}; touch /tmp/kept"
    assert left(tmp_path, caretaker, before) == (["tmp/kept"] if stays else [])


def test_a_mask_of_the_rule_or_of_the_service(tmp_path: Path, caretaker: Path) -> None:
    for number, link in enumerate(
        ("/etc/tmpfiles.d/tmp.conf", "/etc/systemd/system/systemd-tmpfiles-setup.service")
    ):
        before = f"mkdir -p {Path(link).parent}; ln -s /dev/null {link}; touch /tmp/kept"
        assert left(tmp_path / str(number), caretaker, before) == ["tmp/kept"]


def test_an_own_rule_that_empties_it(tmp_path: Path, caretaker: Path) -> None:
    before = (
        "mkdir -p /etc/tmpfiles.d; echo 'D! /tmp 1777 root root' >/etc/tmpfiles.d/tmp.conf; touch /tmp/gone"
    )
    assert left(tmp_path, caretaker, before, rules="d /tmp\n") == []


def test_without_a_rule_only_private_directories_go(tmp_path: Path, caretaker: Path) -> None:
    before = "mkdir /tmp/systemd-private-x; touch /tmp/kept"
    assert left(tmp_path, caretaker, before, rules="q /tmp 1777 root root 10d\n") == ["tmp/kept"]


def test_a_name_with_a_line_break_names_no_other(tmp_path: Path, caretaker: Path) -> None:
    """Anybody may have such a file there; up to the break it is the name of what the application makes."""
    found = left(tmp_path, caretaker, "touch /tmp/goes; mkdir '/tmp/app.sock\nx'", "touch /tmp/app.sock")
    assert "tmp/app.sock" in found
    assert "tmp/goes" not in found


def test_who_refills_what_goes_does_not_hold_up_the_boot(tmp_path: Path) -> None:
    """init's drop-in ends it after a time, and all that it started; systemd-tmpfiles goes on then (`-`)."""
    text = resources.files("quickstart.initramfs").joinpath("init", "hand-off").read_text()
    found = re.search(r"^keep_early_files\(\) \{.*?^\}", text, re.MULTILINE | re.DOTALL)
    assert found
    # In place of BusyBox what never ends, with a child.
    (tmp_path / "busybox").write_text("#!/bin/sh\ntrap '' TERM\nsleep 600 &\nwait; wait\n")
    (tmp_path / "busybox").chmod(0o755)
    script = f"set -eu\nQ={shlex.quote(str(tmp_path))} UNITS={shlex.quote(str(tmp_path))}\n{found[0]}\nkeep_early_files"
    subprocess.run(["dash", "-c", script], check=True, timeout=60)
    unit = (tmp_path / "systemd-tmpfiles-setup.service.d/zzzz-quickstart.conf").read_text()
    first = re.findall(r"^ExecStart=-(.+)$", unit, re.MULTILINE)[0].split()
    limits = [place for place, word in enumerate(first) if word.isdigit() and int(word) >= 60]
    assert limits, first
    first[limits[0]] = "1"
    assert subprocess.run(first, timeout=30, check=False).returncode != 0


def test_nothing_of_an_earlier_boot_is_in_tmp_when_the_application_starts(
    tmp_path: Path, caretaker: Path
) -> None:
    """What a user has left there could wait for a service that comes before systemd-tmpfiles."""
    before = "mkdir /tmp/rootjob; ln -s /root/pwned /tmp/rootjob/state; touch /tmp/.x"
    between = """
        [ -z "$(ls -A /tmp)" ]
        [ "$(stat -c '%a %u %g' /tmp /.quickstart-earlier.0)" = "$(printf '1777 0 0\\n700 0 0')" ]
    """
    assert left(tmp_path, caretaker, before, between) == []
    assert not list(tmp_path.glob(".quickstart-earlier*"))


def test_a_directory_that_the_application_uses_again_stays(tmp_path: Path, caretaker: Path) -> None:
    """It was there before, and a stock boot would have emptied /tmp before the application."""
    again = "mkdir /tmp/nginx_body 2>/dev/null || :"
    assert left(tmp_path, caretaker, "mkdir /tmp/nginx_body", again) == ["tmp/nginx_body"]


def test_a_boot_that_was_cut_off_leaves_nothing_for_good(tmp_path: Path, caretaker: Path) -> None:
    before = "mkdir /.quickstart-earlier.0 /.quickstart-earlier.1; touch /.quickstart-earlier.0/x /tmp/y"
    assert left(tmp_path, caretaker, before, "[ -e /.quickstart-earlier.2/y ]") == []
    assert not list(tmp_path.glob(".quickstart-earlier*"))


@pytest.mark.parametrize(
    "other",
    [
        "chmod 1770 /tmp",
        "chmod 0777 /tmp",
        "chown 1:0 /tmp",
        "chown 0:1 /tmp",
        "rm -r /tmp; mkdir /t; chmod 1777 /t; ln -s t /tmp",
    ],
)
def test_a_tmp_that_would_not_be_the_same_anew_is_not_replaced(
    tmp_path: Path, caretaker: Path, other: str
) -> None:
    """The boot is a stock boot then, and /tmp is as it was."""
    before = f"touch /tmp/kept; {other}; touch /tmp/kept"
    assert noted(tmp_path, caretaker, before).returncode == 1
    assert (tmp_path / "tmp/kept").exists()
    assert not list(tmp_path.glob(".quickstart-earlier*"))


def noted(root: Path, caretaker: Path, before: str) -> subprocess.CompletedProcess[bytes]:
    """What `note` ends with."""
    left(root, caretaker, ":")
    script = f"{before}\nsh /fast/quickstart/earlier-files note"
    return subprocess.run(
        [*own_namespaces(), "chroot", root, "/fast/quickstart/busybox", "sh", "-euc", script],
        env={"PATH": "/fast/quickstart/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, capture_output=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "line", ["d /tmp 1777", "z /tmp 1777 root root", "x /tmp", "e /tmp 1777 root root 10d"]
)
@pytest.mark.parametrize("name", ["a.conf", "zz.conf"])
def test_rules_of_which_one_empties_tmp_are_systemds_to_decide(
    tmp_path: Path, caretaker: Path, line: str, name: str
) -> None:
    """systemd 252 empties it, whatever the other says. The boot is a stock boot."""
    before = f"mkdir -p /etc/tmpfiles.d; echo '{line}' >/etc/tmpfiles.d/{name}; touch /tmp/kept"
    assert noted(tmp_path, caretaker, before).returncode == 1
    assert (tmp_path / "tmp/kept").exists()


@pytest.mark.parametrize(
    "rule",
    [
        "D //tmp 1777 root root -",
        "D /./tmp 1777 root root -",
        "D /tmp/. 1777 root root -",
        'D "/tmp" 1777 root root -',
        "D %T 1777 root root -",
        "D^ /tmp 1777 root root -",
        "D /tmp 1777 nosuch root -",
        "D /tmp 9999 root root -",
        "D /tmp 0755 root root -",
        "D /tmp 1777 root root soon",
        "R /tmp",
        "r! /tmp",
    ],
)
def test_a_rule_that_is_not_plain_is_systemds_to_read(tmp_path: Path, caretaker: Path, rule: str) -> None:
    """systemd 252 ignores some of them. `build` refuses all of them, so only a later package brings one."""
    assert (
        noted(tmp_path, caretaker, f"echo '{rule}' >/usr/lib/tmpfiles.d/tmp.conf; touch /tmp/kept").returncode
        == 1
    )
    assert (tmp_path / "tmp/kept").exists()


@pytest.mark.parametrize(
    "rule", ["D /tmp", "D! /tmp/ 1777", "\tD /tmp - - - 10d ", "D\t/tmp 1777 root root 30d"]
)
def test_a_plain_rule(tmp_path: Path, caretaker: Path, rule: str) -> None:
    assert left(tmp_path, caretaker, "touch /tmp/gone", rules=f"# D /tmp 0700\n{rule}\n") == []


def test_a_tmp_that_is_a_link_is_not_looked_into(tmp_path: Path, caretaker: Path) -> None:
    """tmp.mount would not be started (ConditionPathIsSymbolicLink=), and init would mount over what the link leads to."""
    assert noted(tmp_path, caretaker, "rm -r /tmp; ln -s var/tmp /tmp").returncode == 1


def test_of_a_user_s_many_names_only_some_are_noted(tmp_path: Path, caretaker: Path) -> None:
    """/run has little room. The others stay for the next boot."""
    before = "cd /var/tmp; seq 10100 | sed s/^/systemd-private-/ | xargs touch; touch /tmp/x; cd /"
    kept = left(tmp_path, caretaker, before)
    assert len(kept) == 100
    noted_lines = (tmp_path / "run/quickstart/earlier").read_text().splitlines()
    assert len(noted_lines) == 10000


@pytest.mark.parametrize(
    "change",
    ["chmod 0777 /tmp", "chmod 1755 /tmp", "chmod 1770 /tmp", "chown 1 /tmp", "chgrp 1 /tmp", "rm -r /tmp"],
)
def test_an_empty_tmp_in_which_others_may_replace_files(tmp_path: Path, caretaker: Path, change: str) -> None:
    assert noted(tmp_path, caretaker, change).returncode == 1


def test_without_var_tmp(tmp_path: Path, caretaker: Path) -> None:
    assert noted(tmp_path, caretaker, "rm -r /var/tmp; touch /tmp/x").returncode == 0
    assert not list((tmp_path / "tmp").iterdir())


def test_names_that_a_user_has_taken_keep_nothing(tmp_path: Path, caretaker: Path) -> None:
    """A tree that is too deep is moved up, under a name that may be taken."""
    deep = "/".join("d" * 205)
    before = f"for n in 1 2 3 4 5 6 7 8 9; do mkdir -p /tmp/$n/{deep} /tmp/.quickstart-$n/x; done; mkdir -p /tmp/.quickstart-0/x"
    assert left(tmp_path, caretaker, before) == []
    assert not list(tmp_path.glob(".quickstart-earlier*"))
