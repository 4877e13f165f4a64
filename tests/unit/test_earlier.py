"""What systemd itself started before the application, by its own account."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quickstart.errors import TraceError, UnsupportedUnitError
from quickstart.model import Trace
from quickstart.model.started import LoadedUnit
from quickstart.pack.earlier import refuse_earlier
from quickstart.trace.started import parse_units
from tests.unit.imagebuilder import trace

LOG = """\
Id=app.service
After=basic.target -.mount
InactiveExitTimestampMonotonic=9000000

After=
InactiveExitTimestampMonotonic=0
Id=other.service
== end
"""


def booted(**after: str) -> Trace:
    """A trace of a boot with these units, all of them started; `__` in a name is a dash, and `_` a dot."""
    usual = {
        "app_service": "basic.target network.target",
        "basic_target": "sysinit.target",
        "network_target": "network-pre.target networking.service",
        "sysinit_target": "local-fs.target systemd-sysctl.service",
        "network__pre_target": "",
        **dict.fromkeys(("networking_service", "systemd__sysctl_service", "local__fs_target"), ""),
        **after,
    }
    names = {name: name.replace("__", "-").replace("_", ".") for name in usual}
    loaded = (LoadedUnit(names[name], frozenset(words.split()), 1) for name, words in usual.items())
    return replace(trace(), loaded=tuple(loaded))


def test_a_usual_boot() -> None:
    refuse_earlier([booted()], ["app.service"])


@pytest.mark.parametrize(
    ("name", "after"),
    [
        ("filter.service", {"network__pre_target": "filter.service", "filter_service": ""}),
        (
            "check.service",
            {"sysinit_target": "guard.target", "guard_target": "check.service", "check_service": ""},
        ),
        ("srv-data.mount", {"local__fs_target": "srv-data.mount", "srv__data_mount": ""}),
        ("home.automount", {"local__fs_target": "home.automount", "home_automount": ""}),
    ],
)
def test_what_prepares_the_machine_is_refused(name: str, after: dict[str, str]) -> None:
    with pytest.raises(
        UnsupportedUnitError, match=f"app.service cannot be started early: .* started {name} before it"
    ):
        refuse_earlier([booted(), booted(**after)], ["app.service"])


def test_a_unit_of_the_stack_may_come_before() -> None:
    filtered = booted(network__pre_target="filter.service", filter_service="")
    refuse_earlier([filtered], ["filter.service", "app.service"])


def test_what_the_application_does_not_come_after() -> None:
    """It has no After=network.target, so systemd starts it beside the filter, too."""
    filtered = booted(app_service="basic.target", network__pre_target="filter.service", filter_service="")
    refuse_earlier([filtered], ["app.service"])


def test_what_was_not_started() -> None:
    filtered = booted(network__pre_target="filter.service", filter_service="")
    loaded = (
        replace(each, started_us=0) if each.name == "filter.service" else each for each in filtered.loaded
    )
    refuse_earlier([replace(filtered, loaded=tuple(loaded))], ["app.service"])


def test_an_ordinary_service_that_comes_before() -> None:
    refuse_earlier(
        [booted(app_service="basic.target db.service", db_service="basic.target")], ["app.service"]
    )


def test_the_log_of_the_units() -> None:
    assert parse_units(LOG) == (
        LoadedUnit("app.service", frozenset({"basic.target", "-.mount"}), 9_000_000),
        LoadedUnit("other.service", frozenset(), 0),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        LOG[:-1],
        "== end\n",
        LOG.replace("Id=app.service\n", ""),
        LOG.replace("After=\n", ""),
        LOG.replace("=9000000", "=-1"),
        LOG.replace("=9000000", "=" + "9" * 5000),
    ],
)
def test_a_log_that_is_none(text: str) -> None:
    with pytest.raises(TraceError, match=r"the log of the units is (cut|damaged)"):
        parse_units(text)


def test_a_mount_that_came_later() -> None:
    """systemd orders each mount that it finds before local-fs.target, one of a container as well."""
    mounted = booted(local__fs_target="srv.mount", srv_mount="")
    loaded = (replace(each, started_us=2) if each.name == "srv.mount" else each for each in mounted.loaded)
    refuse_earlier([replace(mounted, loaded=tuple(loaded))], ["app.service"])
