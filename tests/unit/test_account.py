"""The files from which systemd has loaded the application's units, beside those that the reader has read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.model import ListeningSocket, UnitStart
from quickstart.inspect.unit.read import read_unit
from quickstart.model.started import Loaded, LoadedUnit
from quickstart.pack.account import refuse_other_files
from tests.unit.imagebuilder import trace
from tests.unit.test_unit_sockets import UNITS, link, put

OWN = "/etc/systemd/system"
GENERATED = "/run/systemd/generator"


def unit_of(base: Path, text: str = "") -> UnitStart:
    put(base, "/usr/bin/app", "")
    put(base, f"{UNITS}/app.service", f"[Service]\nExecStart=/usr/bin/app\n{text}")
    return read_unit(ImageRoot(base), "app.service")


def refused(base: Path, unit: UnitStart, *units: LoadedUnit) -> str:
    try:
        refuse_other_files([replace(trace(), loaded=Loaded(units))], unit, ImageRoot(base))
    except UnsupportedUnitError as error:
        return error.message
    return ""


def loaded(name: str, file: str = "", *drop_ins: str) -> LoadedUnit:
    return LoadedUnit(name=name, after=frozenset(), started_us=1, file=file, drop_ins=drop_ins)


def socket(name: str) -> ListeningSocket:
    return ListeningSocket(unit=name, kind="stream", path=None, port=80, records=())


def test_the_image_s_own_files(tmp_path: Path) -> None:
    for place in (f"{OWN}/app.service.d/a.conf", f"{UNITS}/service.d/b.conf"):
        put(tmp_path, place, "[Service]\nNice=1\n")
    put(tmp_path, f"{UNITS}/system.slice.d/c.conf", "[Slice]\nCPUWeight=50\n")
    link(tmp_path, "/lib", "usr/lib")
    unit = unit_of(tmp_path)
    app = loaded(
        "app.service",
        "/lib/systemd/system/app.service",
        f"{OWN}/app.service.d/a.conf",
        f"{UNITS}/service.d/b.conf",
    )
    slices = loaded("system.slice", "", f"{UNITS}/system.slice.d/c.conf"), loaded("-.slice")
    assert refused(tmp_path, unit, app, *slices) == ""


@pytest.mark.parametrize(
    ("file", "drop_ins", "shown"),
    [
        (
            f"{UNITS}/app.service",
            (f"{GENERATED}/app.service.d/hard.conf",),
            f"{GENERATED}/app.service.d/hard.conf",
        ),
        (
            f"{UNITS}/app.service",
            ("/run/systemd/system/service.d/x.conf",),
            "/run/systemd/system/service.d/x.conf",
        ),
        (f"{GENERATED}.early/app.service", (), f"{GENERATED}.early/app.service"),
        ("", (), "no file"),
        (f"{OWN}/app.service", (), f"{OWN}/app.service"),
    ],
)
def test_other_files(tmp_path: Path, file: str, drop_ins: tuple[str, ...], shown: str) -> None:
    message = refused(tmp_path, unit_of(tmp_path), loaded("app.service", file, *drop_ins))
    assert f"in the reference boot, app.service had {shown}, which the image does not have" in message


def test_a_drop_in_that_systemd_has_not_loaded(tmp_path: Path) -> None:
    put(tmp_path, f"{OWN}/app.service.d/a.conf", "[Service]\nNice=1\n")
    message = refused(tmp_path, unit_of(tmp_path), loaded("app.service", f"{UNITS}/app.service"))
    assert f"app.service had no {OWN}/app.service.d/a.conf" in message


def test_a_drop_in_that_is_switched_off(tmp_path: Path) -> None:
    put(tmp_path, f"{UNITS}/app.service.d/a.conf", "[Service]\nNice=1\n")
    link(tmp_path, f"{OWN}/app.service.d/a.conf", "/dev/null")
    assert refused(tmp_path, unit_of(tmp_path), loaded("app.service", f"{UNITS}/app.service")) == ""


@pytest.mark.parametrize("name", ["system.slice", "-.slice", "app.socket"])
def test_a_drop_in_for_a_slice_or_a_socket(tmp_path: Path, name: str) -> None:
    put(tmp_path, f"{UNITS}/app.socket", "[Socket]\nListenStream=80\n")
    unit = replace(
        unit_of(tmp_path),
        sockets=(socket("app.socket"),),
    )
    file = f"{UNITS}/app.socket" if name == "app.socket" else ""
    assert refused(tmp_path, unit, loaded(name, file)) == ""
    drop_in = f"{GENERATED}/{name}.d/deny.conf"
    assert f"{name} had {drop_in}" in refused(tmp_path, unit, loaded(name, file, drop_in))


def test_an_init_script_s_unit(tmp_path: Path) -> None:
    put(tmp_path, "/usr/bin/app", "")
    text = "#!/bin/sh\n### BEGIN INIT INFO\n# Provides: app\n# Default-Start: 2 3 4 5\n# Default-Stop:\n### END INIT INFO\n"
    put(tmp_path, "/etc/init.d/app", text)
    (tmp_path / "etc/init.d/app").chmod(0o755)
    link(tmp_path, "/etc/rc3.d/S01app", "../init.d/app")
    unit = read_unit(ImageRoot(tmp_path), "app.service")
    assert refused(tmp_path, unit, loaded("app.service", f"{GENERATED}.late/app.service")) == ""
    assert "app.service had /run/systemd/system/app.service" in refused(
        tmp_path, unit, loaded("app.service", "/run/systemd/system/app.service")
    )


@pytest.mark.parametrize(
    ("name", "is_refused"),
    [("foo.socket", True), ("app.socket", False), ("systemd-journald.socket", False), ("dbus.socket", False)],
)
def test_a_socket_of_another_service(tmp_path: Path, name: str, *, is_refused: bool) -> None:
    """The application may connect to it."""
    put(tmp_path, f"{UNITS}/app.socket", "[Socket]\nListenStream=80\n")
    unit = replace(unit_of(tmp_path), sockets=(socket("app.socket"),))
    app = replace(loaded("app.service", f"{UNITS}/app.service"), after=frozenset({name}))
    message = refused(tmp_path, unit, app)
    assert message == (
        f"app.service cannot be started early: it comes after {name}, which comes with systemd"
        if is_refused
        else ""
    )
