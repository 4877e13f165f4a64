"""A stack: its units in the order in which they start early, in the profile, in the trace and in the archive."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.errors import ProfileError, UnsupportedUnitError
from quickstart.initramfs.guestconfig import config_text, unit_config_text
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import read_stack
from quickstart.inspect.unit.enabled import enabled_text
from quickstart.inspect.unit.sockets import MOST_SOCKETS, refuse_bound_port
from quickstart.inspect.unit.stack import ordered
from quickstart.model import Readiness
from quickstart.model.words import ReadyKind
from quickstart.profile import MOST_UNITS, parse_profile
from quickstart.trace.collect import collect
from tests.unit.layouts import CONFIG, UNIT
from tests.unit.stracelog import log
from tests.unit.test_strace_unit import UNIT_LOG
from tests.unit.unitreader import put

PROFILE = """schema = 1
name = "app"
packages = ["app"]
{units}
[ready]
kind = "tcp"
port = 80
"""


def image(base: Path, **units: str) -> ImageRoot:
    """An image with these units, each with its lines of [Unit]."""
    (base / "usr/bin").mkdir(parents=True)
    (base / "usr/bin/app").write_text("x")
    places = base / "usr/lib/systemd/system"
    places.mkdir(parents=True)
    (places / "default.target.wants").mkdir()
    for name, text in units.items():
        (places / f"default.target.wants/{name}.service").symlink_to(f"../{name}.service")
        (places / f"{name}.service").write_text(f"[Unit]\n{text}\n[Service]\nExecStart=/usr/bin/app\n")
    return ImageRoot(base)


def starts(root: ImageRoot, *units: str) -> list[str]:
    return [each.unit for each in read_stack(root, units).all_units]


def test_a_profile_names_one_unit_or_the_units_of_a_stack() -> None:
    one = parse_profile(PROFILE.format(units='unit = "web.service"'), "here")
    assert (one.unit, one.companions, one.units) == ("web.service", (), ("web.service",))
    stack = parse_profile(PROFILE.format(units='units = ["db.service", "web.service"]'), "here")
    assert (stack.unit, stack.companions) == ("web.service", ("db.service",))
    assert stack.units == ("db.service", "web.service")
    alone = parse_profile(PROFILE.format(units='units = ["web.service"]'), "here")
    assert alone == one


@pytest.mark.parametrize(
    ("units", "fault"),
    [
        ("", "unit: missing"),
        ('unit = "a.service"\nunits = ["a.service", "b.service"]', "`units` names all units already"),
        ('units = ["a.service", "a.service"]', "names a unit twice"),
        ("units = []", "units"),
        ('units = ["a.socket"]', "units"),
        (f"units = {[f'u{number}.service' for number in range(MOST_UNITS + 1)]}", "units"),
    ],
)
def test_other_units_of_a_profile_are_refused(units: str, fault: str) -> None:
    with pytest.raises(ProfileError, match=fault):
        parse_profile(PROFILE.format(units=units), "here")


def test_a_stack_starts_in_the_order_of_its_units(tmp_path: Path) -> None:
    root = image(tmp_path, web="", php="After=cache.service", db="", cache="Before=nothing.service")
    # As the profile has them, but for what a unit says itself.
    assert starts(root, "php.service", "db.service", "cache.service", "web.service") == [
        "db.service",
        "cache.service",
        "php.service",
        "web.service",
    ]
    assert read_stack(root, ("web.service",)).companions == ()


def test_a_unit_may_need_another_of_its_stack(tmp_path: Path) -> None:
    root = image(tmp_path, web="Requires=db.service\nAfter=db.service", db="Requires=net.service", net="")
    with pytest.raises(UnsupportedUnitError, match=r"web.service cannot .* it needs db.service") as error:
        read_stack(root, ("web.service",))
    assert error.value.hint == "name both in `units` of the profile, so that both start early"
    with pytest.raises(UnsupportedUnitError, match=r"db.service cannot .* it needs net.service"):
        read_stack(root, ("db.service", "web.service"))
    assert starts(root, "db.service", "net.service", "web.service")[-1] == "web.service"


def test_the_unit_that_answers_is_the_last(tmp_path: Path) -> None:
    root = image(tmp_path, web="Before=db.service", db="")
    with pytest.raises(UnsupportedUnitError, match=r"db.service starts after web.service") as error:
        read_stack(root, ("db.service", "web.service"))
    assert error.value.hint == "put web.service before db.service in `units`"
    assert starts(root, "web.service", "db.service") == ["web.service", "db.service"]


def listens(base: Path, name: str, text: str) -> None:
    """Put the socket unit ``name``, which sockets.target pulls in, into the image."""
    places = base / "usr/lib/systemd/system"
    (places / name).write_text(text)
    (places / "sockets.target.wants").mkdir(exist_ok=True)
    (places / f"sockets.target.wants/{name}").symlink_to(f"../{name}")


def test_each_unit_gets_its_own_sockets(tmp_path: Path) -> None:
    root = image(tmp_path, web="After=db.service", db="", php="")
    listens(tmp_path, "db.socket", "[Socket]\nListenStream=/run/db.sock\nListenStream=3306\n")
    listens(tmp_path, "web.socket", "[Socket]\nListenStream=80\n")
    listens(tmp_path, "php.socket", "[Socket]\nListenStream=/run/php.sock\n")
    stack = read_stack(root, ("php.service", "db.service", "web.service"))
    # PID 1 holds the last unit's first, and the others' in the order in which they start.
    assert [(each.unit, each.sockets_before, len(each.sockets)) for each in stack.all_units] == [
        ("php.service", 1, 1),
        ("db.service", 2, 2),
        ("web.service", 0, 1),
    ]


def test_a_stack_has_as_many_sockets_as_a_unit(tmp_path: Path) -> None:
    root = image(tmp_path, web="", db="")
    for name, count in (("db", MOST_SOCKETS), ("web", 1)):
        ports = "".join(f"ListenStream=@{name}{number}\n" for number in range(count))
        listens(tmp_path, f"{name}.socket", f"[Socket]\n{ports}")
    with pytest.raises(UnsupportedUnitError, match=r"the units of the stack get 17 sockets .* at most 16"):
        read_stack(root, ("db.service", "web.service"))
    # Of another service, any user could bind it first.
    put(tmp_path, "/usr/lib/systemd/system/web.socket", "[Socket]\nListenStream=80\n")
    assert len(read_stack(root, ("db.service",)).sockets) == MOST_SOCKETS


@pytest.mark.parametrize("name", ["db", "web"])
def test_a_socket_that_comes_after_a_unit_of_the_stack(tmp_path: Path, name: str) -> None:
    """A stock boot binds it when that unit has started: it may be the one that has the address before."""
    root = image(tmp_path, cache="", db="", web="")
    listens(tmp_path, f"{name}.socket", "[Unit]\nAfter=cache.service\n[Socket]\nListenStream=80\n")
    with pytest.raises(
        UnsupportedUnitError, match=rf"{name}.socket .* binds it after cache.service"
    ) as error:
        read_stack(root, ("cache.service", "db.service", "web.service"))
    assert error.value.hint == f"leave cache.service or the service of {name}.socket out of `units`"


def test_a_port_of_a_companion_says_nothing(tmp_path: Path) -> None:
    root = image(tmp_path, db="", web="")
    listens(tmp_path, "db.socket", "[Socket]\nListenStream=80\n")
    stack = read_stack(root, ("db.service", "web.service"))
    ready = Readiness(kind=ReadyKind.TCP, port=80, path="/", status=200, command="", timeout_s=1)
    with pytest.raises(UnsupportedUnitError, match=r"tcp:80 says nothing of web\.service: db\.socket"):
        refuse_bound_port(stack, ready)
    refuse_bound_port(stack, replace(ready, port=81))


def test_a_circle_is_refused_and_units_without_an_order_stay() -> None:
    assert ordered(("c", "a", "b"), {"c": {"b"}, "a": (), "b": ()}) == ("a", "b", "c")
    with pytest.raises(UnsupportedUnitError, match="each of a, b comes after another"):
        ordered(("a", "b"), {"a": {"b"}, "b": {"a"}})


def test_a_trace_has_the_actions_of_all_units() -> None:
    lines = log(*UNIT_LOG)
    found = collect(lines, "b.service", "a.service")
    assert {event.program for event in found.events} == {"sh", "cat", "b"}
    assert found.units == {"a.service", "b.service"}
    assert found.processes == collect(lines, "a.service").processes + 1
    assert collect(lines, "b.service").units == {"b.service"}
    assert collect(lines, "other.service").units == frozenset()


def test_units_that_are_enabled_later_are_judged_for_the_whole_stack(tmp_path: Path) -> None:
    root = image(tmp_path, web="After=db.service filter.service", db="After=disk.service")
    lines = enabled_text(root, "db.service", "web.service").decode().splitlines()
    assert {"application db.service", "application web.service"} <= set(lines)
    assert {"before filter.service", "before disk.service"} <= set(lines)
    assert "before db.service" not in lines


def test_the_configuration_names_the_companions() -> None:
    unit = replace(UNIT, companions=(replace(UNIT, unit="db.service", group="system.slice/db.service"),))
    lines = config_text(replace(CONFIG, unit=unit)).splitlines()
    assert "COMPANIONS=1" in lines
    assert "COMPANION_UNITS=db.service" in lines
    assert f"GROUPS_OF_ALL='system.slice/db.service {UNIT.group}'" in lines
    assert "UNIT=db.service" in unit_config_text(unit.companions[0]).splitlines()
    assert "SOCKETS=0" in unit_config_text(unit.companions[0]).splitlines()
