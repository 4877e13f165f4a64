"""Parity: an adopted process equals one that systemd itself starts later on the same machine, except for what parity.toml lists.

One boot serves all synthetic units and nginx. The starter starts them beside nginx, before systemd, and the
hand-off takes place. systemd adopts each unit through the drop-in and `adopt`. Then each is examined,
restarted, and examined again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vm.parity import mounts
from tests.vm.parity_adopted import Taken, adopt_beside, taken
from tests.vm.parity_list import EARLY_MOUNTS, unlisted
from tests.vm.parity_units import UNITS

NGINX = "nginx.service"


@pytest.fixture(scope="module")
def said(artefact: Path, tmp_path_factory: pytest.TempPathFactory) -> Taken:
    return taken(adopt_beside(artefact, UNITS, tmp_path_factory.mktemp("units") / "root"))


@pytest.fixture(params=UNITS)
def unit(request: pytest.FixtureRequest) -> str:
    return f"parity-{request.param}.service"


def test_pid_1_has_no_other_mounts_before_systemd(said: Taken) -> None:
    early = said.about(NGINX, "early", "first", "mountinfo")
    assert {mount.point for mount in mounts(early)} == EARLY_MOUNTS


def test_the_early_process_was_adopted_as_it_is(said: Taken, unit: str) -> None:
    (early,) = said.processes[unit, "early"]
    assert early.files["reason"] == ""
    assert [each.pid for each in said.of(unit, "adopted")] == [early.pid]
    show = dict(line.split("=", 1) for line in said.about(unit, "adopted", "unit", "show").splitlines())
    assert (show["MainPID"], show["ActiveState"], show["DropInPaths"]) == (str(early.pid), "active", "")
    assert said.of(unit, "adopted")[0].files["status"].startswith("Name:\tsleep")


def test_adopted_and_restarted_agree(said: Taken, unit: str) -> None:
    assert unlisted(said, unit) == []


def test_the_limits_of_the_cgroup_were_there_early(said: Taken, unit: str) -> None:
    """Beside what a neighbour's directive brings: systemd hands a controller to all units of a slice."""
    early, stock = (
        dict(line.split(" ", 1) for line in text.splitlines())
        for text in (
            said.processes[unit, "early"][0].files["attributes"],
            said.about(unit, "restarted", "unit", "attributes"),
        )
    )
    defaults = {"memory": ("max", "0"), "cpu": ("100", "max 100000"), "cpuset": ("",)}
    of_neighbours = {
        name for name, value in stock.items() if value in defaults.get(name.partition(".")[0], ())
    }
    own = stock.keys() - of_neighbours
    assert "pids.max" in early
    assert {name: early.get(name) for name in own} == {name: stock[name] for name in own}


def test_nginx_agrees_its_workers_too(said: Taken) -> None:
    assert [each.role for each in said.of(NGINX, "adopted")] == ["main", "nginx/33"]
    assert said.of(NGINX, "adopted")[0].files["exe"] == "/fast/usr/sbin/nginx"
    assert said.of(NGINX, "restarted")[0].files["exe"] == "/usr/sbin/nginx"
    assert unlisted(said, NGINX) == []


def test_what_was_put_into_tmp_early_is_there_and_what_is_of_an_earlier_boot_is_not(said: Taken) -> None:
    """Debian's rules empty /tmp and leave /var/tmp, but for what services had of their own."""
    assert said.about(NGINX, "early", "first", "tmp").split() == [
        "/tmp/early-file",
        "/var/tmp/early-file",
        "/var/tmp/old-file",
    ]
