"""Units, settings and lists of an image that has more of them than any image: each ends in an error of ours at once."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect import dpkg
from quickstart.inspect.imageroot import ImageRoot, Resolution
from quickstart.inspect.unit import apparmor, enabled, neighbours, order, rundirectories, sysctl
from quickstart.inspect.unit.apparmor import profile_places, refuse_profiles
from quickstart.inspect.unit.conditions import braces_expanded
from quickstart.inspect.unit.enabled import enabled_text
from quickstart.inspect.unit.files import names_of
from quickstart.inspect.unit.initscripts import read_script
from quickstart.inspect.unit.neighbours import handing_sockets
from quickstart.inspect.unit.order import comes_before
from quickstart.inspect.unit.rundirectories import run_directories
from quickstart.inspect.unit.sockets import listening_sockets
from quickstart.inspect.unit.sysctl import kernel_settings
from tests.unit.hostile import bounded
from tests.unit.unitreader import put

PACKAGES = "/usr/lib/systemd/system"
MIB = 1 << 20


@pytest.fixture
def root(tmp_path: Path) -> ImageRoot:
    put(tmp_path, f"{PACKAGES}/app.service", "[Service]\nExecStart=/usr/bin/app\n")
    enable(tmp_path, "default.target", "app.service")
    return ImageRoot(tmp_path)


def enable(base: Path, target: str, *units: str) -> None:
    place = base / f"{PACKAGES[1:]}/{target}.wants"
    place.mkdir(exist_ok=True)
    for unit in units:
        (place / unit).symlink_to(f"../{unit}")


def linked(file: Path, count: int, name: str) -> None:
    """``count`` more names of one file."""
    for number in range(count):
        os.link(file, file.with_name(name.format(number)))


@pytest.mark.parametrize("pattern", ["/{" + "," * 400_000 + "x}" + "y" * 400_000, "/" + "{a}" * 300_000])
def test_braces_of_a_long_line(pattern: str) -> None:
    with bounded(2, 100):
        assert braces_expanded(pattern) == ()


def test_many_links_to_one_large_unit(root: ImageRoot) -> None:
    put(root.base, f"{PACKAGES}/big.service", "#" * MIB)
    linked(root.base / f"{PACKAGES[1:]}/big.service", 400, "b{}.service")
    with bounded(mib=200), pytest.raises(UnsupportedUnitError, match="units have more than 16777216 char"):
        comes_before(root, "app.service")


def test_one_drop_in_of_many_units(root: ImageRoot) -> None:
    put(root.base, f"{PACKAGES}/service.d/a.conf", "[Unit]\n" + "#\n" * 500_000)
    for number in range(40):
        put(root.base, f"{PACKAGES}/s{number}.service", "")
    enable(root.base, "default.target", *(f"s{number}.service" for number in range(40)))
    with bounded(), pytest.raises(UnsupportedUnitError, match="drop-ins, have more than 4194304 char"):
        comes_before(root, "app.service")


def test_before_of_one_drop_in_of_many_templates(root: ImageRoot) -> None:
    words = " ".join(f"u{number}.service" for number in range(20_000))
    put(root.base, f"{PACKAGES}/service.d/a.conf", f"[Unit]\nBefore={words}\n")
    for number in range(2000):
        put(root.base, f"{PACKAGES}/t{number}@.service", "")
    with bounded(mib=200), pytest.raises(UnsupportedUnitError, match=r"Before= .* more than 1048576 char"):
        comes_before(root, "app.service")


def test_scripts_count_as_files_of_units(root: ImageRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        put(root.base, f"/etc/init.d/s{number}", "#" * 1000)
    (root.base / "etc/init.d/directory").mkdir()
    comes_before(root, "app.service")
    with monkeypatch.context() as patched, pytest.raises(UnsupportedUnitError, match="more than 10000 char"):
        patched.setattr(order, "_MAX_CHARACTERS", 10_000)
        comes_before(root, "app.service")
    with monkeypatch.context() as patched, pytest.raises(UnsupportedUnitError, match="more than 20 files"):
        patched.setattr(order, "_MAX_FILES", 20)
        comes_before(root, "app.service")


def test_a_description_of_many_lines(root: ImageRoot) -> None:
    lines = "# Provides: s\n# Description: x\n" + "#  aaaaaaaa\n" * 400_000
    put(root.base, "/etc/init.d/s", f"### BEGIN INIT INFO\n{lines}### END INIT INFO\n")
    with bounded():
        assert len(read_script(root, "s.service").description) < 5000


def test_many_links_that_enable(root: ImageRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1000):
        put(root.base, f"{PACKAGES}/u{number}.service", "")
    enable(root.base, "a.target", *(f"x{number}.target" for number in range(3000)))
    with bounded():
        assert enabled_text(root, "app.service").count(b"absent a.target.wants/x") == 3000
    monkeypatch.setattr(enabled, "MAX_LINKS", 3000)
    with pytest.raises(UnsupportedUnitError, match=r"more than 3000 units.*default\.target\.wants"):
        enabled_text(root, "app.service")


def test_a_socket_unit_with_many_sockets(root: ImageRoot) -> None:
    lines = "".join(f"ListenStream=/run/{number}\n" for number in range(50_000))
    put(root.base, f"{PACKAGES}/app.socket", f"[Socket]\n{lines}")
    with bounded(), pytest.raises(UnsupportedUnitError, match="has 50000 sockets, at most 16"):
        listening_sockets(root, "app.socket")


def test_large_files_of_sockets(root: ImageRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root.base, f"{PACKAGES}/a0.socket", "#" * 1000)
    linked(root.base / f"{PACKAGES[1:]}/a0.socket", 4, "b{}.socket")
    enable(root.base, "sockets.target", "a0.socket", *(f"b{number}.socket" for number in range(4)))
    assert handing_sockets(root, "app.service") == ()
    monkeypatch.setattr(neighbours, "_MAX_SOCKET_BYTES", 4000)
    with pytest.raises(UnsupportedUnitError, match="sockets have more than 4000 bytes"):
        handing_sockets(root, "app.service")


def test_kernel_settings_with_many_patterns(root: ImageRoot) -> None:
    rows = "".join(f"[{number}=1\nk{number}=1\n" for number in range(50_000))
    put(root.base, "/usr/lib/sysctl.d/a.conf", rows[: sysctl._MOST_CHARACTERS])
    with bounded(mib=200), pytest.raises(UnsupportedUnitError, match=r"patterns and .* keys, too many"):
        kernel_settings(root)


def test_many_large_files_of_tmpfiles(root: ImageRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root.base, "/usr/lib/tmpfiles.d/a.conf", "#" * 1000)
    linked(root.base / "usr/lib/tmpfiles.d/a.conf", 4, "b{}.conf")
    assert run_directories(root) == ()
    monkeypatch.setattr(rundirectories, "_MOST_CHARACTERS", 4000)
    with pytest.raises(UnsupportedUnitError, match=r"tmpfiles\.d has more than 4000 characters"):
        run_directories(root)


def test_many_large_profiles_of_apparmor(root: ImageRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root.base, "/usr/sbin/apparmor_parser", "")
    put(root.base, f"{PACKAGES}/apparmor.service", "")
    enable(root.base, "a.target", "apparmor.service")
    put(root.base, "/etc/apparmor.d/p", "#" * MIB)
    linked(root.base / "etc/apparmor.d/p", 100, "p{}")
    with bounded(mib=100), pytest.raises(UnsupportedUnitError, match="more than 4194304 characters"):
        refuse_profiles(root, "app.service", [PurePosixPath("/usr/bin/app")])
    for file in (root.base / "etc/apparmor.d").iterdir():
        file.unlink()
    # One directory under many names.
    put(root.base, "/etc/apparmor.d/d/x", "")
    put(root.base, "/etc/apparmor.d/p", "".join(f"include <{'./' * number}d>\n" for number in range(30)))
    assert list(profile_places(root))
    monkeypatch.setattr(apparmor, "_MAX_PROFILES", 20)
    with pytest.raises(UnsupportedUnitError, match="includes more than 20 files by their names"):
        list(profile_places(root))


def test_many_large_lists_of_packages(root: ImageRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones count, and nothing is an error: an owner is only said."""
    stanza = "Package: a{}\nStatus: install ok installed\nVersion: 1\nArchitecture: all\n\n"
    put(root.base, "/var/lib/dpkg/status", "".join(stanza.format(number) for number in range(9)))
    put(root.base, "/var/lib/dpkg/diversions", "")
    for number in range(9):
        put(root.base, f"/var/lib/dpkg/info/a{number}.list", f"/usr/f{number}\n")
        put(root.base, f"/usr/f{number}", "")
    paths = [PurePosixPath(f"/usr/f{number}") for number in range(9)]
    assert len(dpkg.owners(root, paths)) == 9
    monkeypatch.setattr(dpkg, "_MOST_LISTED_BYTES", 40)
    assert sorted(dpkg.owners(root, paths)) == paths[:5]


def test_the_links_of_a_directory_are_followed_once(root: ImageRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build asks for the names of each unit that a boot starts, several times."""
    place = root.base / PACKAGES[1:]
    for number in range(300):
        (place / f"l{number}.service").symlink_to("gone.service" if number else "app.service")
    followed: list[PurePosixPath] = []
    resolve = ImageRoot.resolve

    def counted(self: ImageRoot, path: PurePosixPath) -> Resolution:
        followed.append(path)
        return resolve(self, path)

    monkeypatch.setattr(ImageRoot, "resolve", counted)
    assert names_of(root, "app.service") == ("app.service", "l0.service")
    assert len(followed) > 300
    followed.clear()
    assert names_of(root, "app.service") == ("app.service", "l0.service")
    assert len(followed) < 50
    (place / "l1.service").unlink()
    (place / "l1.service").symlink_to("app.service")
    assert names_of(root, "app.service") == ("app.service", "l0.service", "l1.service")
