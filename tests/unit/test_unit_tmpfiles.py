"""Lines of tmpfiles.d(5) that come after an early start, and would remove what the application has made."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.rundirectories import run_directories
from quickstart.inspect.unit.sysctl import KernelSetting
from quickstart.inspect.unit.tmpfiles import (
    packages_files_with_settings,
    refuse_tmpfiles,
    unpacked_tmpfiles,
    written_settings,
)
from tests.unit.hookscripts import script
from tests.unit.test_unit_sockets import link, put


def refused(base: Path) -> str:
    try:
        refuse_tmpfiles(ImageRoot(base), "app.service")
    except UnsupportedUnitError as error:
        return error.message
    return ""


@pytest.mark.parametrize(
    "line",
    [
        "D! /var/lib/app 0755 app app",
        "R /var/cache/app/*",
        "r! /etc/app.lock",
        "f+ /etc/app.conf 0644 root root - text",
        "f!+ /etc/app.conf",
        "F /etc/app.conf",
        "f /run/app.d/acl.conf 0644 root root - deny",
        "L /var/run/app.conf - - - - /etc/other",
        "C %t/app.conf - - - - /etc/other",
        '"D!" /var/lib/app',
        "L+? /etc/app.conf - - - - /etc/other",
        "L+ /etc/app.conf - - - - /etc/other",
        "C+ /etc/app.conf",
        "w /etc/app.conf - - - - text",
        'R "/var/lib/a b"',
        "R /tmp/../var/lib/app",
        "R %S/app",
        "f //run/app.conf",
        "f /./run/./app.conf",
        "Z /srv/private 0700 root root",
        "a+ /srv/private - - - - d:group::r-x",
        "w /sys/kernel/security/lockdown - - - - integrity",
        "w /sys/devices/system/cpu/smt/control - - - - forceoff",
        "w /sys/kernel/mm/ksm/run - - - - %m",
        "w /sys/kernel/mm/../x - - - - 1",
        "w /sys/kernel/mm/./ksm/run - - - - 1",
        "z /dev/x 0600 root root",
        "m /sys/kernel/x 0600",
        "c /dev/x 0600 root root - 1:5",
    ],
)
@pytest.mark.parametrize("place", ["/etc", "/usr/local/lib", "/usr/lib"])
def test_what_removes_or_overwrites(tmp_path: Path, place: str, line: str) -> None:
    put(tmp_path, f"{place}/tmpfiles.d/app.conf", f"# x\n{line}\n")
    assert "app.service cannot be started early: tmpfiles.d has `" in refused(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "# R /var/lib/app",
        "d /var/lib/app 0755 app app 10d",
        "L$ /etc/profile.d/a.sh - - - - /usr/lib/a.sh",
        "L? /etc/b - - - - /usr/lib/b",
        "f /var/lib/app/first 0644",
        "L /var/lib/dbus/machine-id - - - - /etc/machine-id",
        "L+ /etc/mtab   -    -    -    -  ../proc/self/mounts",
        "r! /etc/passwd.lock",
        "D! /tmp/.X11-unix 1777 root root 10d",
        "R! /var/tmp/systemd-private-*",
        "f+! /run/utmp 0664 root utmp -",
        "D /run/app",
        "f+! /run/nologin 0644",
        "L /run/shm - - - - /dev/shm",
        "C /run/systemd/tpm2-pcr-public-key.pem 0444 root root - /.extra/tpm2",
        "w /sys/kernel/mm/transparent_hugepage/enabled - - - - never",
        "x /sys/kernel/x",
        "# z /dev/x 0600",
        "a+ /var/log/journal - - - - d:group::r-x",
        "z /var/log/journal 2755 root systemd-journal",
        "R",
    ],
)
def test_what_does_not_matter(tmp_path: Path, line: str) -> None:
    put(tmp_path, "/usr/lib/tmpfiles.d/app.conf", f"{line}\n")
    assert refused(tmp_path) == ""


@pytest.mark.parametrize(
    ("mode", "is_refused"),
    [("0700", True), ("02770", True), ("70", True), ("0755", False), ("00755", False), ("-", False)],
)
def test_a_directory_of_the_image_with_another_mode(tmp_path: Path, mode: str, *, is_refused: bool) -> None:
    put(tmp_path, "/srv/private/file", "")
    (tmp_path / "srv/private").chmod(0o755)
    put(
        tmp_path,
        "/etc/tmpfiles.d/app.conf",
        f"d /srv/private {mode} root root -\nd /srv/new 0700\nd %S/new 0700\nd %h/x 0700\n",
    )
    assert (refused(tmp_path) != "") is is_refused


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        ("d /srv/private - nobody -", True),
        ("d /srv/private - - nogroup", True),
        ("f /srv/private/file - 65534", True),
        ("f /srv/private/file 0600", True),
        ("e /srv/private - unknown -", True),
        ("d /srv/private - root root", False),
        ("d /srv/private 0755 0 0", False),
        ("d /srv/private - :nobody :nogroup", False),
        ("d /srv/new 0700 nobody nogroup", False),
        ("f /srv/private/file", False),
    ],
)
def test_something_of_the_image_with_another_owner(tmp_path: Path, line: str, *, is_refused: bool) -> None:
    put(tmp_path, "/srv/private/file", "")
    (tmp_path / "srv/private").chmod(0o755)
    (tmp_path / "srv/private/file").chmod(0o644)
    put(tmp_path, "/etc/passwd", "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")
    put(tmp_path, "/etc/group", "root:x:0:\nnogroup:x:65534:\n")
    put(tmp_path, "/etc/tmpfiles.d/app.conf", f"{line}\n")
    assert (refused(tmp_path) != "") is is_refused


def test_a_value_for_a_file_of_the_kernel_s(tmp_path: Path) -> None:
    """Init writes it before the application. Of a package's file it compares the content."""
    line = "w! /sys/block/*/queue/scheduler  - - - - mq-deadline\n"
    own = "w /proc/sys/kernel/kptr_restrict - - - - 2\nw /sys/module/x/parameters/y - - - - a b\nw /sys/x - - - - 1\n"
    script(tmp_path, "/usr/lib/tmpfiles.d/a.conf", line, is_packaged=True)
    put(tmp_path, "/etc/tmpfiles.d/b.conf", own)
    put(tmp_path, "/usr/lib/tmpfiles.d/c.conf", "w /sys/kernel/mm/ksm/run - - - - 1\n")
    put(tmp_path, "/etc/tmpfiles.d/d.conf", "w /sys/kernel/mm/ksm/secret - - - - 1\n").chmod(0o600)
    root = ImageRoot(tmp_path)
    assert written_settings(root) == (
        KernelSetting("/sys/block/*/queue/scheduler", "mq-deadline", True),
        KernelSetting("kernel/kptr_restrict", "2", False),
        KernelSetting("/sys/module/x/parameters/y", "a b", False),
        KernelSetting("/sys/kernel/mm/ksm/run", "1", False),
    )
    assert packages_files_with_settings(root) == {PurePosixPath("/usr/lib/tmpfiles.d/a.conf")}
    assert unpacked_tmpfiles(root) == {PurePosixPath("/usr/lib/tmpfiles.d/c.conf")}


def test_the_first_of_two_lines_for_a_file_counts(tmp_path: Path) -> None:
    put(tmp_path, "/etc/tmpfiles.d/a.conf", "w /sys/kernel/mm/ksm/run - - - - 1\n")
    put(tmp_path, "/etc/tmpfiles.d/b.conf", "w /sys/kernel/mm/ksm/run - - - - 0\n")
    assert [each.value for each in written_settings(ImageRoot(tmp_path))] == ["1"]


def test_a_value_that_is_not_for_all_to_read(tmp_path: Path) -> None:
    put(tmp_path, "/etc/tmpfiles.d/d.conf", "w /sys/kernel/mm/ksm/run - - - - 1\n").chmod(0o600)
    assert "cannot be started early" in refused(tmp_path)


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        ("L+ %t/docker.sock - - - - %t/podman/podman.sock", False),
        ("z /etc/app.key 0640 root app", False),
        ("R /var/lib/app", True),
    ],
)
def test_a_line_of_a_package_s(tmp_path: Path, line: str, *, is_refused: bool) -> None:
    """What the application uses of it, the reference boot shows (pack/others.py)."""
    script(tmp_path, "/usr/lib/tmpfiles.d/app.conf", f"{line}\n", is_packaged=True)
    assert (refused(tmp_path) != "") is is_refused


def test_a_mask(tmp_path: Path) -> None:
    put(tmp_path, "/usr/lib/tmpfiles.d/app.conf", "R /var/lib/app\n")
    link(tmp_path, "/etc/tmpfiles.d/app.conf", "/dev/null")
    assert refused(tmp_path) == ""


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("00700", "0700"),
        ('"0700"', "0700"),
        ("0750", "0750"),
        ("-", "0755"),
        ("u=rwx", "0700"),
        ("77777", "0700"),
    ],
)
def test_the_mode_of_a_directory_that_is_made_early(tmp_path: Path, mode: str, wanted: str) -> None:
    put(tmp_path, "/usr/lib/tmpfiles.d/app.conf", f"d /run/app {mode} root root\n")
    for name in ("passwd", "group"):
        put(tmp_path, f"/etc/{name}", "root:x:0:0\n")
    (found,) = run_directories(ImageRoot(tmp_path))
    assert found[:2] == ("run-directory", wanted)


@pytest.mark.parametrize(
    ("line", "is_there"),
    [
        # Of Debian's screen: a job of cron's, which starts early, would fill /run before journald starts.
        ("d /run/screen 0777 root utmp", False),
        ("d /run/screen 1777 root utmp", False),
        ("d /run/screen 0775 root utmp", True),
        # It has a size of its own, and a directory there has to be there before a user can make one of its name.
        ("d /run/lock/x 0777 root root", True),
        ("d /var/lock/x 1777 root root", True),
    ],
)
def test_no_directory_that_anybody_could_fill(tmp_path: Path, line: str, *, is_there: bool) -> None:
    put(tmp_path, "/usr/lib/tmpfiles.d/app.conf", f"{line}\n")
    put(tmp_path, "/etc/passwd", "root:x:0:0\n")
    put(tmp_path, "/etc/group", "root:x:0:\nutmp:x:43:\n")
    assert len(run_directories(ImageRoot(tmp_path))) == is_there


@pytest.mark.parametrize("place", ["/tmp", "/var/tmp", "/dev/shm"])
@pytest.mark.parametrize("kind", ["d", "v", "q", "Q", "d!"])
def test_directories_where_every_user_may_make_one_are_made_early(
    tmp_path: Path, place: str, kind: str
) -> None:
    """A user's program that starts early could take the name, and systemd-tmpfiles takes over what is there."""
    lines = f"{kind} {place}/app 0700 root root -\n{kind} {place}/shared 1777 root root\n"
    put(tmp_path, "/usr/lib/tmpfiles.d/app.conf", lines)
    names(tmp_path)
    assert run_directories(ImageRoot(tmp_path)) == (
        ("run-directory", "0700", "root", "root", f"{place}/app"),
        ("run-directory", "01777", "root", "root", f"{place}/shared"),
    )
    refuse_tmpfiles(ImageRoot(tmp_path), "app.service")


def names(root: Path) -> None:
    for name in ("passwd", "group"):
        put(root, f"/etc/{name}", "root:x:0:0\n")
