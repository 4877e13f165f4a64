"""`profile new --image`: the packages of a unit that is on a disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.errors import BadInputError, UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.newprofile.ground import packages_of

STATUS = "Package: app-server\nStatus: install ok installed\nArchitecture: all\nVersion: 1\n"
UNIT = "[Service]\nExecStart=/usr/bin/app\n"


@pytest.fixture
def root(tmp_path: Path) -> ImageRoot:
    """An image with a unit of a package, and with a unit that the image's owner has written."""
    for name, text in (
        ("var/lib/dpkg/status", STATUS),
        ("var/lib/dpkg/info/app-server.list", "/.\n/lib/systemd/system/app.service\n"),
        ("usr/lib/systemd/system/app.service", UNIT),
        ("etc/systemd/system/own.service", UNIT),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "lib").symlink_to("usr/lib")
    return ImageRoot(tmp_path)


def test_the_package_that_brings_the_unit(root: ImageRoot) -> None:
    assert packages_of(root, ["app.service"]) == ("app-server",)


def test_a_unit_without_a_package_needs_a_name(root: ImageRoot) -> None:
    with pytest.raises(BadInputError, match="no package of the image has brought own") as raised:
        packages_of(root, ["app.service", "own.service"])
    assert "--package" in str(raised.value.hint)


def test_a_unit_that_is_not_there(root: ImageRoot) -> None:
    with pytest.raises(UnsupportedUnitError):
        packages_of(root, ["other.service"])
