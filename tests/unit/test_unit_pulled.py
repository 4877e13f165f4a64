"""What leads to a unit from the default target: whoever disables a part of that way disables the unit."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.facts import deciding
from quickstart.inspect.unit.neighbours import refuse_requirements
from quickstart.inspect.unit.pulled import is_started, pullers, refuse_occasional
from quickstart.inspect.unit.read import read_unit
from tests.unit.test_unit_sockets import link, put

UNITS = "/usr/lib/systemd/system"
OWN = "/etc/systemd/system"
GOAL = f"{OWN}/multi-user.target.wants"
RUNS = "[Service]\nExecStart=/usr/bin/app\n"
WRAPPER = "[Service]\nType=oneshot\nExecStart=/bin/true\n"


def files_of(base: Path, unit: str) -> set[str]:
    return set(map(str, deciding(ImageRoot(base), unit).files))


def test_a_target_in_between_may_be_disabled(tmp_path: Path) -> None:
    put(tmp_path, f"{UNITS}/app.service", RUNS)
    put(tmp_path, f"{UNITS}/all.target", "[Unit]\nDescription=all\n")
    link(tmp_path, f"{OWN}/all.target.wants/app.service", f"{UNITS}/app.service")
    link(tmp_path, f"{GOAL}/all.target", f"{UNITS}/all.target")
    assert {f"{GOAL}/all.target", f"{OWN}/all.target.wants/app.service"} <= files_of(tmp_path, "app.service")


@pytest.mark.parametrize("key", ["Wants", "Requires", "Upholds"])
def test_so_may_a_unit_that_names_it(tmp_path: Path, key: str) -> None:
    put(tmp_path, f"{UNITS}/app.service", RUNS)
    put(tmp_path, f"{UNITS}/front.service", f"[Unit]\n{key}=app.service\n{RUNS}")
    link(tmp_path, f"{GOAL}/front.service", f"{UNITS}/front.service")
    assert f"{GOAL}/front.service" in files_of(tmp_path, "app.service")


def test_an_instance_is_disabled_by_its_wrapper_or_by_what_its_generator_reads(tmp_path: Path) -> None:
    put(tmp_path, f"{UNITS}/postgresql@.service", RUNS)
    put(tmp_path, f"{UNITS}/postgresql.service", WRAPPER)
    link(tmp_path, f"{GOAL}/postgresql.service", f"{UNITS}/postgresql.service")
    files = files_of(tmp_path, "postgresql@15-main.service")
    assert {f"{GOAL}/postgresql.service", "/etc/postgresql/15/main/start.conf"} <= files
    put(tmp_path, f"{UNITS}/openvpn@.service", RUNS)
    assert "/etc/default/openvpn" in files_of(tmp_path, "openvpn@home.service")


def test_the_socket_of_a_stage_may_be_disabled_with_it(tmp_path: Path) -> None:
    put(tmp_path, f"{UNITS}/app.service", f"[Unit]\nRequires=app.socket\n{RUNS}")
    put(tmp_path, f"{UNITS}/app.socket", "[Socket]\nListenStream=80\n")
    put(tmp_path, f"{UNITS}/all.target", "[Unit]\nWants=app.socket\n")
    link(tmp_path, f"{GOAL}/all.target", f"{UNITS}/all.target")
    assert f"{GOAL}/all.target" in files_of(tmp_path, "app.service")


def test_what_a_boot_starts(tmp_path: Path) -> None:
    for name in ("linked", "named", "triggered", "lost", "rival"):
        put(tmp_path, f"{UNITS}/{name}.service", RUNS)
    put(tmp_path, f"{UNITS}/front.service", f"[Unit]\nWants=named.service\nRequisite=rival.service\n{RUNS}")
    put(tmp_path, f"{UNITS}/bell.timer", "[Timer]\nUnit=triggered.service\n")
    put(tmp_path, f"{UNITS}/default.target", "[Unit]\nRequires=multi-user.target\n")
    put(tmp_path, f"{UNITS}/multi-user.target", "[Unit]\nDescription=users\n")
    for name in ("linked.service", "front.service", "bell.timer"):
        link(tmp_path, f"{GOAL}/{name}", f"{UNITS}/{name}")
    link(tmp_path, f"{OWN}/rescue.target.wants/lost.service", f"{UNITS}/lost.service")
    root = ImageRoot(tmp_path)
    started = [
        name
        for name in ("linked", "named", "triggered", "lost", "rival")
        if is_started(root, f"{name}.service")
    ]
    assert started == ["linked", "named", "triggered"]
    assert pullers(root, "lost.service") == ("lost.service", "rescue.target")


def test_what_a_boot_starts_on_occasion_only(tmp_path: Path) -> None:
    put(tmp_path, f"{UNITS}/app.service", RUNS)
    put(tmp_path, f"{UNITS}/app.path", "[Path]\nPathExists=/etc/app.on\n")
    root = ImageRoot(tmp_path)
    # Something else may start it, such as a generator; the reference boot shows that.
    refuse_occasional(root, "app.service")
    link(tmp_path, f"{GOAL}/app.path", f"{UNITS}/app.path")
    with pytest.raises(UnsupportedUnitError, match=r"only when app\.path triggers it"):
        read_unit(root, "app.service")
    put(tmp_path, f"{UNITS}/front.service", f"[Unit]\nWants=app.service\n{RUNS}")
    put(tmp_path, f"{UNITS}/bell.timer", "[Timer]\nOnBootSec=9\nUnit=front.service\n")
    link(tmp_path, f"{GOAL}/bell.timer", f"{UNITS}/bell.timer")
    (tmp_path / GOAL[1:] / "app.path").unlink()
    with pytest.raises(UnsupportedUnitError, match=r"only when bell\.timer triggers it"):
        refuse_occasional(root, "app.service")
    link(tmp_path, f"{GOAL}/app.service", f"{UNITS}/app.service")
    refuse_occasional(root, "app.service")


def test_the_default_target_decides(tmp_path: Path) -> None:
    put(tmp_path, f"{UNITS}/app.service", RUNS)
    put(tmp_path, f"{UNITS}/graphical.target", "[Unit]\nRequires=multi-user.target\n")
    put(tmp_path, f"{UNITS}/multi-user.target", "[Unit]\nDescription=users\n")
    link(tmp_path, f"{OWN}/graphical.target.wants/app.service", f"{UNITS}/app.service")
    root = ImageRoot(tmp_path)
    # An image that does not say has the usual one.
    assert is_started(root, "app.service")
    link(tmp_path, f"{OWN}/default.target", f"{UNITS}/multi-user.target")
    assert not is_started(root, "app.service")


@pytest.mark.parametrize("group", ["front@.service", "front-.service", "service"])
def test_links_of_a_template_a_prefix_and_a_type(tmp_path: Path, group: str) -> None:
    """systemd reads `X.wants` for all of these names of a unit (unit_file_find_dirs)."""
    put(tmp_path, f"{UNITS}/app.service", RUNS)
    put(tmp_path, f"{UNITS}/front@.service", RUNS)
    put(tmp_path, f"{UNITS}/front-a.service", RUNS)
    link(tmp_path, f"{OWN}/{group}.wants/app.service", f"{UNITS}/app.service")
    assert is_started(ImageRoot(tmp_path), "app.service") == (group == "service")
    link(tmp_path, f"{GOAL}/front@1.service", f"{UNITS}/front@.service")
    link(tmp_path, f"{GOAL}/front-a.service", f"{UNITS}/front-a.service")
    assert is_started(ImageRoot(tmp_path), "app.service")
    puller = {"front@.service": "front@1.service", "front-.service": "front-a.service"}.get(group)
    assert puller is None or f"{GOAL}/{puller}" in files_of(tmp_path, "app.service")


@pytest.mark.parametrize("name", ["app@.service", "app-.service", "service", "app-one@.service"])
def test_what_a_template_a_prefix_or_a_type_requires_is_refused_or_compared(
    tmp_path: Path, name: str
) -> None:
    put(tmp_path, f"{UNITS}/app-one@.service", RUNS)
    put(tmp_path, f"{UNITS}/app@.service", RUNS)
    unit = "app@1.service" if name == "app@.service" else "app-one@1.service"
    root = ImageRoot(tmp_path)
    refuse_requirements(root, unit)
    assert f"{OWN}/{name}.requires" in map(str, deciding(root, unit).places)
    put(tmp_path, f"{UNITS}/check.service", RUNS)
    link(tmp_path, f"{OWN}/{name}.requires/check.service", f"{UNITS}/check.service")
    with pytest.raises(UnsupportedUnitError, match=r"it needs check\.service"):
        refuse_requirements(root, unit)
