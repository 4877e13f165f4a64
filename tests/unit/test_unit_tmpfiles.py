"""Lines of tmpfiles.d(5) that come after an early start, and would remove what the application has made."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.sysctl import KernelSetting
from quickstart.inspect.unit.tmpfiles import (
    packages_files_with_settings,
    refuse_tmpfiles,
    run_directories,
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


X11 = "D! /tmp/.X11-unix 1777 root root 10d\nr! /tmp/.X[0-9]*-lock\n"


def test_the_directories_of_the_x_window_system_are_made_where_there_is_one(tmp_path: Path) -> None:
    put(tmp_path, "/usr/lib/tmpfiles.d/x11.conf", X11)
    names(tmp_path)
    assert run_directories(ImageRoot(tmp_path)) == ()
    refuse_tmpfiles(ImageRoot(tmp_path), "app.service")
    put(tmp_path, "/etc/X11/Xsession", "")
    assert len(run_directories(ImageRoot(tmp_path))) == 1
    # Whoever has programs with windows would find sockets and locks of an earlier boot.
    with pytest.raises(UnsupportedUnitError, match=r"tmpfiles\.d has `D! /tmp/.X11-unix"):
        refuse_tmpfiles(ImageRoot(tmp_path), "app.service")
    put(tmp_path, "/usr/lib/tmpfiles.d/tmp.conf", "D /tmp 1777 root root -\n")
    refuse_tmpfiles(ImageRoot(tmp_path), "app.service")


@pytest.mark.parametrize("place", ["/tmp", "/var/tmp", "/dev/shm", "/run/lock"])
@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        ("d {} 1777 root root 10d", False),
        ("q {}/ 1777", False),
        ("d {}", False),
        ("x {}", False),
        # The second line does not count for systemd-tmpfiles, as in Debian 13 for /run/lock.
        ("d {0} 1777 root root -   -\nd {0} 0755 root root -", False),
        ("d {} 0755 root root -", True),
        ("d {} 1777 daemon root -", True),
        ("d {} 1777 root users -", True),
        ("d {} 1777 root root soon", True),
        ("d {} 1777 0 0", True),
        ("z {} 1770 root users", True),
        ("a+ {} - - - - u:www-data:---", True),
        ("R! {}", True),
        ("r {}", True),
        ("e {} 0700", True),
        ("L+ {} - - - - /srv", True),
        ("t {} - - - - user.x=y", True),
        ('d "{}" 1777 root root', True),
    ],
)
@pytest.mark.parametrize("own", ["/etc/tmpfiles.d/app.conf", "/usr/lib/tmpfiles.d/app.conf"])
def test_a_line_for_a_place_itself_says_what_init_makes_of_it(
    tmp_path: Path, place: str, line: str, own: str, *, is_refused: bool
) -> None:
    """In a stock boot, other rights count before any service starts, and what is to go has gone."""
    put(tmp_path, own, f"{line.format(place)}\n")
    names(tmp_path)
    assert (refused(tmp_path) != "") is is_refused


@pytest.mark.parametrize("place", ["/tmp", "/var/tmp", "/dev/shm", "/run/lock"])
def test_only_tmp_is_emptied_before_an_early_start(tmp_path: Path, place: str) -> None:
    put(tmp_path, "/usr/lib/tmpfiles.d/app.conf", f"D {place} 1777 root root -\n")
    assert (refused(tmp_path) != "") is (place != "/tmp")


@pytest.mark.parametrize(
    "line",
    [
        "D //tmp 1777 root root -",
        "D /./tmp 1777 root root -",
        "D /tmp/. 1777 root root -",
        "D %T 1777 root root -",
        "D /t'm'p 1777 root root -",
        'D "/tmp" 1777 root root -',
        "D^ /tmp 1777 root root -",
        "D$ /tmp 1777 root root -",
        "D /tmp 1777 nosuch root -",
        "D /tmp 9999 root root -",
        "R /tmp",
        "d '/tmp/app b' 0700",
        "d /%T/app 0700 root root",
        "d /tmp%M/app 0700 root root",
        'd /t"mp"/app 0700 root root',
        "d /tmp\\x2fapp 0700 root root",
        "f /run/lock/x 0644",
        "d /run/lock/x 0755 0 0",
        "z /run/lock/x 0600",
        "d /run 0700 root root",
        "z /dev 0700",
    ],
)
def test_a_spelling_that_two_readers_may_take_differently(tmp_path: Path, line: str) -> None:
    put(tmp_path, "/etc/tmpfiles.d/app.conf", f"{line}\n")
    names(tmp_path)
    assert refused(tmp_path)


def test_a_carriage_return_ends_a_line_and_other_blanks_do_not(tmp_path: Path) -> None:
    put(tmp_path, "/usr/lib/tmpfiles.d/a.conf", "# x\rd /run/a 0755 root root\x0b\nd /run/b\u2028d /run/c\n")
    put(tmp_path, "/usr/lib/tmpfiles.d/b.conf", "d\t/run/d \t 0700\r\n")
    names(tmp_path)
    found = [record[-1] for record in run_directories(ImageRoot(tmp_path))]
    assert found == ["/run/b\u2028d", "/run/d"]


@pytest.mark.parametrize(
    "line",
    [
        # Numbers in place of names, names that the image has not, words in quotes, specifiers, escapes.
        "d /tmp/x 0700 0 0",
        "d /var/tmp/x 0700 33 33",
        "d /tmp/x 0700 nobody2 root",
        'd "/tmp/x" 0700 root root',
        '"d" /tmp/x-%H 0700 root root',
        "d /tmp/x\\x2da 0700 root root",
        "d /tmp/../tmp/x 0700 root root",
        "d /var/spool/../tmp/x 0700 root root",
        "f /var/../tmp/x 0600 root root",
        "q /dev/shm/%b 0700",
    ],
)
def test_a_directory_that_the_starter_cannot_make_is_refused(tmp_path: Path, line: str) -> None:
    put(tmp_path, "/usr/lib/tmpfiles.d/app.conf", f"D /tmp 1777 root root\n{line}\n")
    names(tmp_path)
    with pytest.raises(UnsupportedUnitError, match=r"tmpfiles\.d has"):
        refuse_tmpfiles(ImageRoot(tmp_path), "app.service")


@pytest.mark.parametrize("place", ["/tmp", "/var/tmp", "%T", "%V"])
@pytest.mark.parametrize(
    "line",
    [
        "f {}/x 0644 root root",
        "L {}/x - - - - /etc",
        "C {}/x",
        "z {}/x 0600 root root",
        "a {}/x - - - - u::r",
        "w {}/x - - - - 1",
    ],
)
@pytest.mark.parametrize("own", ["/etc/tmpfiles.d/app.conf", "/usr/lib/tmpfiles.d/app.conf"])
def test_a_line_that_takes_over_what_a_user_has_made_is_refused(
    tmp_path: Path, place: str, line: str, own: str
) -> None:
    put(tmp_path, own, f"{line.format(place)}\n")
    with pytest.raises(UnsupportedUnitError, match=r"tmpfiles\.d has"):
        refuse_tmpfiles(ImageRoot(tmp_path), "app.service")


@pytest.mark.parametrize("kind", ["r!", "R!", "R", "D"])
@pytest.mark.parametrize(
    "tmp", ["D /tmp 1777 root root -", "d /tmp 1777 root root -", "D /tmp\nd /tmp 1777", ""]
)
def test_what_a_boot_removes_is_refused_where_it_would_be_there(tmp_path: Path, kind: str, tmp: str) -> None:
    """In /tmp, nothing of an earlier boot is there if all rules for /tmp empty it."""
    names(tmp_path)
    own = "R! /var/tmp/systemd-private-*\nR! /tmp/systemd-private-*\nR! /var/tmp/flatpak-cache-*\n"
    for place, is_gone in (("/tmp", tmp.startswith("D") and "\n" not in tmp), ("/var/tmp", False)):
        put(tmp_path, "/usr/lib/tmpfiles.d/app.conf", f"{tmp}\n{own}{X11}{kind} {place}/app 0700\n")
        if is_gone:
            refuse_tmpfiles(ImageRoot(tmp_path), "app.service")
            continue
        with pytest.raises(UnsupportedUnitError, match=rf"tmpfiles\.d has `{kind} {place}/app"):
            refuse_tmpfiles(ImageRoot(tmp_path), "app.service")
