"""Where a stock boot looks for programs and libraries: a file there would be used in place of a packed one."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.errors import StartSetError
from quickstart.initramfs import facts
from quickstart.initramfs.facts import watched
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import FileKind, StartSet
from tests.unit.elfbuilder import elf
from tests.unit.layouts import P, link, start_file
from tests.unit.unitreader import put

UNIT = "/usr/lib/systemd/system/app.service"
TEXT = "[Service]\nExecStart=/usr/bin/app\n"
WANTS = "/etc/systemd/system/multi-user.target.wants"


@pytest.fixture
def root(tmp_path: Path) -> ImageRoot:
    put(tmp_path, UNIT, TEXT)
    (tmp_path / WANTS[1:]).mkdir(parents=True)
    (tmp_path / WANTS[1:] / "app.service").symlink_to(UNIT)
    return ImageRoot(tmp_path)


def test_what_would_be_found_before_what_is_packed(root: ImageRoot) -> None:
    put(root.base, "/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
    put(root.base, "/etc/ld.so.conf.d/libc.conf", "/usr/local/lib\n/usr/lib/x86_64-linux-gnu\n")
    for name in ("usr/lib/x86_64-linux-gnu", "usr/bin", "usr/sbin", "usr/local/bin"):
        (root.base / name).mkdir(parents=True, exist_ok=True)
    (root.base / "bin").symlink_to("usr/bin")
    (root.base / "sbin").symlink_to("usr/sbin")
    packed = (
        start_file("/usr/bin/app", FileKind.FILE, 0o100755),
        start_file("/usr/lib/x86_64-linux-gnu/liba.so.1", FileKind.FILE, 0o100644),
        # ld.so does not look for it by name.
        start_file("/usr/lib/app/mod.so", FileKind.FILE, 0o100644),
    )
    found = watched(root, ("app.service",), StartSet(packed, ()), ())
    names = set(map(str, found.names))
    assert {
        "/usr/local/sbin/app",
        "/usr/local/bin/app",
        "/usr/sbin/app",
        "/usr/local/lib/liba.so.1",
        "/etc/ld.so.conf",
    } <= names
    assert not [name for name in names if name.endswith("/mod.so") or name == "/usr/bin/app"]
    places = set(map(str, found.places))
    assert {"/usr/local/lib/glibc-hwcaps/x86-64-v3", "/etc/ld.so.conf.d"} <= places
    assert P("/etc/ld.so.conf.d/libc.conf") in {file.path for file in found.files}


def test_what_decides_where_the_loader_looks(root: ImageRoot) -> None:
    """Links on the way to a directory of ld.so.conf and behind its drop-ins, and files that it includes from elsewhere."""
    put(root.base, "/etc/ld.so.conf", "include /opt/ld/*.conf\ninclude /etc/ld.so.conf.d/*.conf\n")
    put(root.base, "/opt/ld/a.conf", "/opt/x/current/lib\n")
    put(root.base, "/usr/lib/a/ld.so.conf", "/usr/lib/a\n")
    (root.base / "opt/x/1/lib").mkdir(parents=True)
    (root.base / "opt/x/current").symlink_to("/opt/x/1")
    (root.base / "etc/ld.so.conf.d").mkdir()
    (root.base / "etc/ld.so.conf.d/00gl.conf").symlink_to("/etc/alternatives/gl_conf")
    (root.base / "etc/alternatives").mkdir()
    (root.base / "etc/alternatives/gl_conf").symlink_to("/usr/lib/a/ld.so.conf")
    found = watched(root, ("app.service",), StartSet((), ()), ())
    names, places = set(map(str, found.names)), set(map(str, found.places))
    assert {"/opt/x/current", "/opt/ld/a.conf", "/etc/ld.so.conf.d/00gl.conf"} <= names
    assert {"/etc/alternatives/gl_conf", "/usr/lib/a/ld.so.conf"} <= names
    assert {"/opt/ld", "/etc/ld.so.conf.d"} <= places


@pytest.mark.parametrize("entry", ["/opt/app/lib", "$ORIGIN/../../opt/app/lib", "/opt/new/../app/lib"])
def test_a_program_s_own_directories_are_looked_into_first(root: ImageRoot, entry: str) -> None:
    """LD_LIBRARY_PATH, by which libraries come from /fast, goes before DT_RUNPATH (ld.so(8))."""
    (root.base / "usr/bin").mkdir(parents=True)
    (root.base / "usr/bin/app").write_bytes(elf(needed=["liba.so.1"], runpath=f"{entry}:/run/app"))
    packed = (
        start_file("/usr/bin/app", FileKind.FILE, 0o100755),
        link("/usr/lib/x86_64-linux-gnu/liba.so.1", "liba.so.1.2"),
        start_file("/usr/lib/x86_64-linux-gnu/liba.so.1.2", FileKind.FILE, 0o100644),
    )
    found = watched(root, ("app.service",), StartSet(packed, ()), ())
    names = set(map(str, found.names))
    assert {"/opt/app/lib/liba.so.1", "/opt/app/lib/liba.so.1.2"} <= names
    # Before version 2.37, glibc looks into the second one, too.
    assert {"/opt/app/lib/glibc-hwcaps/x86-64-v3", "/opt/app/lib/haswell"} <= set(map(str, found.places))
    assert not [name for name in names if name.startswith("/run/")]


def test_a_file_in_a_directory_s_place_is_compared_once(root: ImageRoot) -> None:
    """/usr/bin/java is a link, and java's DT_RUNPATH is $ORIGIN: the loader looks into /usr/bin/x86_64, util-linux's link."""
    put(root.base, "/usr/bin/setarch", "")
    (root.base / "usr/bin/x86_64").symlink_to("setarch")
    packed = (start_file("/usr/lib/x86_64-linux-gnu/liba.so.1", FileKind.FILE, 0o100644),)
    found = watched(root, ("app.service",), StartSet(packed, ()), (), searched=[P("/usr/bin")])
    assert {"/usr/bin/setarch", "/usr/bin/x86_64"} <= set(map(str, found.names))
    assert "/usr/bin/haswell" in set(map(str, found.places))
    assert not {"/usr/bin/setarch", "/usr/bin/x86_64"} & set(map(str, found.places))


def test_libraries_times_directories_have_a_limit(root: ImageRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """60 programs with 64 directories each, and 2000 empty files lib*.so, were 8 million names."""
    monkeypatch.setattr(facts, "_MOST_NAMES", 100)
    libraries = [start_file(f"/usr/lib/lib{number}.so", FileKind.FILE, 0o100644) for number in range(20)]
    found = StartSet(tuple(libraries), ())
    searched = [P(f"/opt/{number}") for number in range(5)]
    watched(root, ("app.service",), found, (), searched=searched)
    with pytest.raises(StartSetError, match="the start set has 20 libraries, too many to compare"):
        watched(root, ("app.service",), found, (), searched=[*searched, P("/opt/5"), P("/opt/6")])
