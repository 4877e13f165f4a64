"""Files of an image beside their packages' md5sums, and units that somebody has edited in place."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.delivered import changed
from quickstart.inspect.imageroot import ImageRoot
from quickstart.pack.edited import refuse_edited
from tests.unit.accounts import booted
from tests.unit.test_unit_sockets import link, put

UNIT = "/usr/lib/systemd/system/networking.service"
TEXT = "[Service]\nExecStart=/sbin/ifup -a\n"


def package(base: Path, *, spelled: str = UNIT, listed: str = TEXT, name: str = "tool") -> None:
    put(base, UNIT, TEXT)
    link(base, "/lib", "usr/lib")
    put(
        base,
        "/var/lib/dpkg/status",
        "Package: tool\nStatus: install ok installed\nVersion: 1\nArchitecture: amd64\n\n",
    )
    put(base, f"/var/lib/dpkg/info/{name}.list", f"/.\n{spelled}\n")
    digest = hashlib.md5(listed.encode(), usedforsecurity=False).hexdigest()
    put(base, f"/var/lib/dpkg/info/{name}.md5sums", f"{digest}  {spelled[1:]}\n")


@pytest.mark.parametrize("spelled", [UNIT, UNIT.removeprefix("/usr")])
@pytest.mark.parametrize("name", ["tool", "tool:amd64"])
def test_as_delivered(tmp_path: Path, spelled: str, name: str) -> None:
    package(tmp_path, spelled=spelled, name=name)
    assert changed(ImageRoot(tmp_path), [PurePosixPath(UNIT)]) == frozenset()


def test_changed_or_unknown(tmp_path: Path) -> None:
    package(tmp_path, listed=f"{TEXT}#")
    put(tmp_path, "/usr/lib/systemd/system/own.service", TEXT)
    paths = frozenset(map(PurePosixPath, (UNIT, "/usr/lib/systemd/system/own.service")))
    assert changed(ImageRoot(tmp_path), paths) == paths
    (tmp_path / "var/lib/dpkg/info/tool.md5sums").unlink()
    assert changed(ImageRoot(tmp_path), paths) == paths


def test_a_unit_that_was_edited_in_place(tmp_path: Path) -> None:
    package(tmp_path)
    boot = booted()
    refuse_edited([boot], ["app.service"], ImageRoot(tmp_path))
    put(tmp_path, UNIT, f"{TEXT}ExecStartPre=/sbin/iptables-restore /etc/rules\n")
    with pytest.raises(UnsupportedUnitError) as refusal:
        refuse_edited([boot], ["app.service"], ImageRoot(tmp_path))
    assert refusal.value.message == (
        "app.service cannot be started early: networking.service comes before it,"
        f" and {UNIT} is not as its package has delivered it"
    )
    # A unit of the stack starts early itself, as its present file says.
    refuse_edited([boot], ["app.service", "networking.service"], ImageRoot(tmp_path))
    late = replace(boot, loaded=replace(boot.loaded, units=tuple(
        replace(each, after=frozenset()) for each in boot.loaded.units
    )))  # fmt: skip
    refuse_edited([late], ["app.service"], ImageRoot(tmp_path))
