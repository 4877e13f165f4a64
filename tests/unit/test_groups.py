"""What the reference boot shows of a unit with control groups of its own (Delegate=)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.unit.model import UnitCommand, UnitStart
from quickstart.model import Op, Trace
from quickstart.pack.groups import refuse_controllers_of_own, refuse_wrapped_docker, told_of_systemd
from tests.unit.imagebuilder import trace

OWN = "/sys/fs/cgroup/system.slice/app.service"
MADE = ("run-directory", "0755", "root", "root", "/run/systemd/system")
COMMAND = UnitCommand("/usr/bin/app", ("/usr/bin/app",))
PLAIN = UnitStart(unit="app.service", type="notify", pid_file=None, start_pre=(), start=COMMAND)
DELEGATING = replace(PLAIN, settings=(("umask", "022"), ("delegate", "cpu")))


def failed(found: Trace) -> Trace:
    return replace(found, events=tuple(replace(event, error="ENOENT") for event in found.events))


@pytest.mark.parametrize("path", [f"{OWN}/cgroup.subtree_control", "/sys/fs/cgroup/cgroup.subtree_control"])
def test_controllers_that_systemd_would_take_back_are_refused(path: str) -> None:
    with pytest.raises(UnsupportedUnitError, match="gives controllers to control groups of its own"):
        refuse_controllers_of_own((trace((Op.WRITE, path)),), "app.service")


@pytest.mark.parametrize(
    ("op", "path"),
    [
        (Op.OPEN, f"{OWN}/cgroup.subtree_control"),
        (Op.WRITE, f"{OWN}/below/cgroup.procs"),
        (Op.WRITE, "/srv/cgroup.subtree_control"),
    ],
)
def test_groups_without_controllers_are_taken(op: Op, path: str) -> None:
    refuse_controllers_of_own((trace((op, path)),), "app.service")


def test_a_kernel_without_the_file_is_no_reason() -> None:
    refuse_controllers_of_own((failed(trace((Op.WRITE, f"{OWN}/cgroup.subtree_control"))),), "app.service")


DOCKER = trace((Op.EXEC, "/usr/sbin/dockerd"))


def test_dockerd_behind_a_script_is_refused() -> None:
    with pytest.raises(UnsupportedUnitError, match="a script of it starts dockerd"):
        refuse_wrapped_docker((DOCKER,), DELEGATING)


def test_dockerd_as_a_unit_s_program_is_taken() -> None:
    refuse_wrapped_docker((trace((Op.EXEC, "/usr/bin/app")), failed(DOCKER)), DELEGATING)
    docker = replace(DELEGATING, start=UnitCommand("/usr/sbin/dockerd", ("/usr/sbin/dockerd",)))
    refuse_wrapped_docker((DOCKER,), docker)
    refuse_wrapped_docker((DOCKER,), replace(PLAIN, companions=(docker,)))


LOOKS = trace((Op.LOOKUP, "/run/systemd/system"))


def test_who_makes_control_groups_finds_that_systemd_runs() -> None:
    """dockerd chooses by it who makes those of its containers, once."""
    assert told_of_systemd((LOOKS,), DELEGATING).settings == (*DELEGATING.settings, MADE)


@pytest.mark.parametrize(
    ("found", "unit"),
    [
        # A script of LSB would call systemctl.
        (LOOKS, PLAIN),
        (failed(LOOKS), DELEGATING),
        (trace((Op.LOOKUP, "/run/systemd/notify")), DELEGATING),
    ],
)
def test_others_find_what_they_found_before(found: Trace, unit: UnitStart) -> None:
    assert told_of_systemd((found,), unit) == unit


def test_in_a_stack_the_directory_is_there_from_the_delegating_unit_on() -> None:
    first, last = replace(DELEGATING, unit="first.service"), replace(PLAIN, unit="last.service")
    found = told_of_systemd((LOOKS,), replace(last, companions=(first,)))
    assert found.settings == last.settings
    assert found.companions[0].settings[-1] == MADE
