"""Which packed files come from /fast, which are compared with the volume, and which are laid over it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.initramfs.serving import bound_files, served_files
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.model import UnitCommand
from quickstart.model import FileKind, StartSet
from tests.unit.hostile import bounded
from tests.unit.layouts import UNIT, P, directory, link, start_file


@pytest.fixture
def root(tmp_path: Path) -> ImageRoot:
    for name in ("etc", "usr/bin", "usr/lib64", "usr/share"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "usr/bin/app").write_bytes(b"app")
    return ImageRoot(tmp_path)


def test_only_what_is_taken_from_fast_is_compared() -> None:
    served = (
        start_file("/usr/bin/app", FileKind.FILE, 0o100755),
        link("/usr/bin/other", "/etc/alternatives/other"),
        link("/etc/alternatives/other", "/usr/bin/app"),
        link("/usr/bin/same", "../bin/app"),
        start_file("/usr/lib/liba.so.1", FileKind.FILE, 0o100644),
        link("/usr/lib/liba.so", "liba.so.1"),
        start_file("/usr/lib/script.sh", FileKind.FILE, 0o100755),
    )
    opened_on_the_root = (
        start_file("/etc/app.conf", FileKind.FILE, 0o100644),
        start_file("/etc/ld.so.cache", FileKind.FILE, 0o100644),
        start_file("/etc/passwd", FileKind.FILE, 0o100644),
        link("/etc/enabled/site", "../available/site"),
        link("/lib", "usr/lib"),
        directory("/usr"),
    )
    assert set(served_files(StartSet((*opened_on_the_root, *served), ()), ())) == set(served)


def test_a_link_to_the_directory_of_a_program_is_compared() -> None:
    """Whoever points it to another directory starts other programs by the same names."""
    compared = (
        link("/opt/app/current", "../app-1/./release"),
        start_file("/opt/app-1/real/bin/app", FileKind.FILE, 0o100755),
        link("/opt/app-1/release", "/opt/app-1/real"),
        link("/opt/libs", "/opt/links"),
        link("/opt/links/liba.so", "../app-1/real/liba.so.1"),
    )
    others = (
        link("/bin", "usr/bin"),
        link("/etc/app", "/opt/data"),
        link("/etc/round", "round"),
        start_file("/opt/data/table", FileKind.LEFT, 0o100644),
        replace(link("/opt/data/current", "table"), kind=FileKind.LEFT),
        start_file("/usr/bin/app", FileKind.LEFT, 0o100644),
    )
    assert set(served_files(StartSet((*compared, *others), ()), ())) == set(compared)


HARDENED = replace(UNIT, settings=(("mount", "read-only", "required", "/usr"), ("namespace", "shared")))


@pytest.fixture
def modular(root: ImageRoot) -> StartSet:
    """What a server with modules packs; the loader knows /usr/lib/found by /etc/ld.so.conf."""
    names = (
        "usr/sbin/app",
        "usr/sbin/helper",
        "usr/lib/found/libc.so.6",
        "usr/lib/app/mod_a.so",
        "usr/share/perl5/App.pm",
        "usr/share/app/table",
        "usr/local/lib/own.pm",
    )
    for name in (*names, "etc/app.conf"):
        (root.base / name).parent.mkdir(parents=True, exist_ok=True)
        (root.base / name).write_bytes(b"x")
    (root.base / "etc/ld.so.conf").write_text("/usr/lib/found\n")
    modes = {"usr/sbin/app": 0o100755, "usr/sbin/helper": 0o100755}
    files = [
        replace(start_file(f"/{name}", FileKind.FILE, modes.get(name, 0o100644)), package="app")
        for name in (*names, "etc/app.conf")
    ]
    return StartSet(tuple(files), ())


def test_what_is_opened_by_absolute_path_is_laid_over_the_volumes(root: ImageRoot, modular: StartSet) -> None:
    """Not what the starter alone starts or the loader finds by itself, and no configuration. The program itself may start again."""
    checker = UnitCommand("/usr/sbin/helper", ("/usr/sbin/helper",))
    unit = replace(HARDENED, start=UnitCommand("/usr/sbin/app", ("/usr/sbin/app",)), start_pre=(checker,))
    bound = bound_files(modular, root, unit)
    assert [str(path) for path in bound] == [
        "/usr/sbin/app",
        "/usr/lib/app/mod_a.so",
        "/usr/share/perl5/App.pm",
    ]
    assert P("/usr/share/perl5/App.pm") in {file.path for file in served_files(modular, bound)}
    assert P("/usr/share/perl5/App.pm") not in {file.path for file in served_files(modular, ())}


def test_files_that_no_package_has_come_from_the_volume(root: ImageRoot, modular: StartSet) -> None:
    """Who has written them may change them, and reload the service."""
    own = replace(modular, files=tuple(replace(file, package="") for file in modular.files))
    assert bound_files(own, root, HARDENED) == ()


def test_a_file_that_the_unit_may_write_to_comes_from_the_volume(root: ImageRoot, modular: StartSet) -> None:
    mounts = (("mount", "read-write", "required", "/usr/share/perl5"), *HARDENED.settings)
    bound = bound_files(modular, root, replace(HARDENED, settings=mounts))
    assert P("/usr/share/perl5/App.pm") in bound_files(modular, root, HARDENED)
    assert P("/usr/share/perl5/App.pm") not in bound


def test_where_the_unit_itself_mounts_something_nothing_is_laid_over(
    root: ImageRoot, modular: StartSet
) -> None:
    mounts = (
        ("mount", "tmpfs", "required", "/usr/share", ""),
        ("mount", "bind", "required", "/usr/sbin/helper", "/x"),
    )
    bound = bound_files(modular, root, replace(HARDENED, settings=(*mounts, *HARDENED.settings)))
    assert [str(path) for path in bound] == ["/usr/sbin/app", "/usr/lib/app/mod_a.so"]


def test_a_unit_without_mounts_of_its_own_gets_none_because_of_us(root: ImageRoot, modular: StartSet) -> None:
    assert bound_files(modular, root, UNIT) == ()


def test_a_chain_of_links_is_followed_once() -> None:
    """Each link leads to the directory of the one before, the last one to a program's."""
    count = 3000
    program = start_file("/d0/app", FileKind.FILE, 0o100755)
    chain = [link(f"/d{number}/k", f"/d{number - 1}") for number in range(1, count)]
    lost = link("/e1/k", "/e0")
    with bounded(2):
        assert set(served_files(StartSet((program, *chain, lost), ()), ())) == {program, *chain}
