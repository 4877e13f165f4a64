"""Lines of tmpfiles.d(5) for places where every user may make a file: what init does first, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.rundirectories import run_directories
from quickstart.inspect.unit.tmpfiles import empties_tmp, refuse_tmpfiles
from tests.unit.debiantmpfiles import BOOKWORM, TRIXIE
from tests.unit.hookscripts import script
from tests.unit.test_unit_sockets import put
from tests.unit.test_unit_tmpfiles import names, refused


@pytest.mark.parametrize("files", [BOOKWORM, TRIXIE], ids=["bookworm", "trixie"])
def test_debian_s_own_lines_are_no_reason(tmp_path: Path, files: Mapping[str, str]) -> None:
    names(tmp_path)
    for name, text in files.items():
        script(tmp_path, f"/usr/lib/tmpfiles.d/{name}", text, is_packaged=True)
    paths = "".join(f"/usr/lib/tmpfiles.d/{name}\n" for name in files)
    put(tmp_path, "/var/lib/dpkg/info/tool.list", f"/.\n{paths}")
    assert refused(tmp_path) == ""
    assert empties_tmp(ImageRoot(tmp_path)) is (files is BOOKWORM)


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
        ("d {} 01777 0 0 1h30min", False),
        ("q {} 1777 root root aAmMcC:10d", False),
        ("d {} 1777 root root - x", True),
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


@pytest.mark.parametrize(
    "lines",
    [
        "q /var/tmp 1777 root root 30d\nR! /var/tmp",
        "x /var/tmp\nD /var/tmp 1777 root root -",
        "X /var/tmp\nd /var/tmp 0700 svc svc",
        "x /run/lock\nd /run/lock 0755",
        "d /var/tmp 0700\nd /var/tmp 1777 root root",
        "z /var/t* 0700",
        "e /var/t*",
        "a+ /var/t* - - - - u:x:r",
        "R /[v]ar/tmp",
        "Z /run/ 0700",
        "z /run/shm/x 0600",
        "f /run/shm/x",
        "d /run/lock/../lock 0700",
        "D /tmp 1777 root root soon",
        "D /tmp 1777 0 0",
        "L+ /var/lock - - - - /srv",
        "d /var/lock 0700",
        "#x\rD /tmp 1777 root root -",
        "d /run/lock 1777 root root 10days!\nd /run/lock 0700 root root -",
        'd /dev/shm 1777 root root "10d\nd /dev/shm 0700',
        "d /var/tmp/app 0700 1001 1001\nd /var/tmp/app 0777 root root",
        "d /var/tmp/app ~0700 root root\nd /var/tmp/app 0777 root root",
        'd "/var/tmp/app" 0700 root root\nd /var/tmp/app 0777 root root',
        "d /var/tmp/app 0700 root root\nd /var/tmp/app 0777 root root",
        "d /var/tmp/app 0700 root root soon\nd /var/tmp/app 0777 root root",
        "z /{tmp,var/tmp} 0700 root root",
        "e /{dev/shm,run/lock} 0700",
        "Z /dev 0700 root root",
        "A+ / - - - - u:x:r",
        "R /var/",
        "\\x66 /var/tmp/y",
        "d /run/lock 1777 root root 999999999y\nd /run/lock 0700 root root -",
        "d /run/lock/. 0700 root root",
        "d /var/tmp/app 0777 root root\nd /var/tmp/app/. 0700 root root",
        "d!! /var/tmp/app 0700 root root",
        '"f"! /srv/x',
    ],
)
def test_lines_that_another_does_not_take_back(tmp_path: Path, lines: str) -> None:
    """systemd-tmpfiles keeps lines with a pattern apart from the others."""
    names(tmp_path)
    script(tmp_path, "/usr/lib/tmpfiles.d/a.conf", f"{lines}\n", is_packaged=True)
    assert refused(tmp_path)


@pytest.mark.parametrize(
    ("line", "access"),
    [
        ("d /var/tmp/a", (":0755", ":root", ":root")),
        ("d /var/tmp/a - - - -", (":0755", ":root", ":root")),
        ("d /var/tmp/a :0750 :root :root", (":0750", ":root", ":root")),
        ("d /var/tmp/a 0750 root -", ("0750", "root", ":root")),
        ("d /var/tmp/a 0750 0 0", ("0750", "root", "root")),
        ("d /run/lock/a - :root 0", (":0755", ":root", "root")),
        ("d /run/a - :root 0", ("0755", "root", "root")),
        ("d /run/shm/a 0700 root root", ("0700", "root", "root")),
    ],
)
def test_what_a_line_leaves_to_an_existing_directory(
    tmp_path: Path, line: str, access: tuple[str, ...]
) -> None:
    names(tmp_path)
    put(tmp_path, "/usr/lib/tmpfiles.d/a.conf", f"{line}\n")
    (found,) = run_directories(ImageRoot(tmp_path))
    assert found[1:4] == access
    assert refused(tmp_path) == ""


@pytest.mark.parametrize(
    ("lines", "modes"),
    [
        ("d /run/app 0700 1001 1001\nd /run/app 0777 root root", []),
        ("d /run/app 0700 root root soon\nd /run/app 0777 root root", []),
        ("f /run/app\nd /run/app 0777", []),
        ('d "/run/app" 0700\nd /run/app 0777', []),
        ("d /run/app 0700 root root 1h30min\nd /run/app 0755 root root", ["0700"]),
        ("x /run/app\nd /run/app 0700 root root 2w3d", ["0700"]),
        ("d /run/app 0750 : root", []),
        ("d!! /run/app 0750 root root", []),
        ("d /run/app 0750 ::root root", []),
        ("d /run/app/. 0750 root root", ["0750"]),
        ("d /run/app 0750 root root 99999y", ["0750"]),
    ],
)
def test_of_several_lines_for_a_path_the_first_counts(tmp_path: Path, lines: str, modes: list[str]) -> None:
    """To systemd-tmpfiles, too; what the starter cannot do of it, it does not do in another way."""
    names(tmp_path)
    put(tmp_path, "/etc/passwd", "root:x:0:0\n::1:1\n")
    put(tmp_path, "/usr/lib/tmpfiles.d/a.conf", f"{lines}\n")
    assert [record[1] for record in run_directories(ImageRoot(tmp_path))] == modes


@pytest.mark.parametrize(
    "line",
    ["d /srv/run/shm/x 0700 app app", "e /srv/{a,run} 0700", "d /srv/r\\x75n 0700", 'd "/srv/r"un 0700'],
)
def test_an_own_line_for_something_of_the_image(tmp_path: Path, line: str) -> None:
    put(tmp_path, "/srv/run/shm/x/file", "")
    (tmp_path / "srv/run/shm/x").chmod(0o755)
    put(tmp_path, "/etc/tmpfiles.d/a.conf", f"{line}\n")
    assert refused(tmp_path)


@pytest.mark.parametrize("mode", ["~0700", "u=rwx", "77777"])
def test_a_mode_that_depends_on_the_directory_s_own(tmp_path: Path, mode: str) -> None:
    names(tmp_path)
    put(tmp_path, "/usr/lib/tmpfiles.d/a.conf", f"d /var/tmp/a {mode} root root\n")
    assert run_directories(ImageRoot(tmp_path)) == ()
    assert refused(tmp_path)


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
        "d /run/lock/x 0755 33 0",
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
        "d /tmp/x 0700 33 0",
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
