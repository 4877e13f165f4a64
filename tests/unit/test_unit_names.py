"""Names of units in a unit's lines, and bytes that a line or a name gives by their numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import names_of
from quickstart.inspect.unit.pulled import started_of
from quickstart.inspect.unit.read import read_unit
from quickstart.inspect.unit.words import Names, names_in, split_words, unescape_name
from tests.unit.test_unit_sockets import link
from tests.unit.unitreader import SERVICE, put, read

PLACE = "/usr/lib/systemd/system"


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("a.service  b@%i.socket", ["a.service", "b@x.socket"]),
        (r"my\x2dfw.service", [r"my\x2dfw.service", "my-fw.service"]),
        # Another reader would not take the quotes for a part of the name.
        ('"a.service" b.service', ["b.service", "a.service"]),
        ("a@%b.service", ["a@%b.service"]),
    ],
)
def test_names_of_units(value: str, names: list[str]) -> None:
    assert names_in("app@x.service", value) == names


def test_a_name_with_a_backslash_is_pulled_in(tmp_path: Path) -> None:
    fw = r"my\x2dfw.service"
    put(tmp_path, f"{PLACE}/default.target", f"[Unit]\nWants={fw}\n")
    put(tmp_path, f"{PLACE}/{fw}", "[Unit]\nBefore=network-pre.target\n[Service]\nExecStart=/bin/fw\n")
    assert started_of(ImageRoot(tmp_path), (fw,)) == {fw}


def test_bytes_of_a_character() -> None:
    assert unescape_name(r"caf\xc3\xa9-a\x2Db") == "café/a-b"
    assert split_words("u", r"A=caf\xc3\xa9 \303\251 \u00e9 a\x41") == ["A=café", "é", "é", "aA"]
    assert Names(r"app@caf\xc3\xa9.service").expand("/srv/%I") == "/srv/café"
    # As the name of a file.
    assert unescape_name(r"\xff") == "\udcff"
    for text in (r"\xff", r"\xc3", r"\777"):
        with pytest.raises(UnsupportedUnitError):
            split_words("u", text)


def test_an_instance_whose_name_has_bytes_of_a_character(tmp_path: Path) -> None:
    put(tmp_path, f"{PLACE}/app@.service", f"{SERVICE}InaccessiblePaths=-/srv/%I\n")
    unit = read_unit(ImageRoot(tmp_path), r"app@caf\xc3\xa9.service")
    assert ("mount", "inaccessible", "optional", "/srv/café") in unit.settings


@pytest.mark.parametrize(
    ("slice_name", "group"),
    [
        ("own.slice", "own.slice/app.service"),
        ("cpu.slice", "_cpu.slice/app.service"),
        ("_x.slice", "__x.slice/app.service"),
        ("cpux.slice", "cpux.slice/app.service"),
        ("io.own.slice", ""),
    ],
)
def test_the_cgroup_of_a_name_that_could_be_the_kernel_s(tmp_path: Path, slice_name: str, group: str) -> None:
    if group:
        assert read(tmp_path, f"{SERVICE}Slice={slice_name}\n").group == group
        return
    with pytest.raises(UnsupportedUnitError, match="depends on the version of systemd"):
        read(tmp_path, f"{SERVICE}Slice={slice_name}\n")


def test_an_alias_is_followed_by_its_name(tmp_path: Path) -> None:
    """After `systemctl edit --full`, the unit's file is in /etc, and the package's alias still leads to the package's file."""
    put(tmp_path, "/usr/lib/systemd/system/mariadb.service", SERVICE)
    put(tmp_path, "/etc/systemd/system/mariadb.service", SERVICE)
    link(tmp_path, "/usr/lib/systemd/system/mysql.service", "mariadb.service")
    link(tmp_path, "/etc/systemd/system/mysqld.service", "/usr/lib/systemd/system/mysql.service")
    link(tmp_path, "/usr/lib/systemd/system/other.service", "/opt/mariadb.service")
    for name in ("mariadb", "mysql", "mysqld"):
        assert set(names_of(ImageRoot(tmp_path), f"{name}.service")) == {
            "mariadb.service",
            "mysql.service",
            "mysqld.service",
        }
