"""Delegate=: the controllers that a unit may hand on to control groups of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import read_unit
from quickstart.inspect.unit.model import UnitStart

ALL = ("cpu", "cpuset", "io", "memory", "pids")


def put(base: Path, path: str, text: str) -> None:
    file = base / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def read(base: Path, text: str) -> UnitStart:
    put(base, "usr/lib/systemd/system/app.service", f"[Service]\nExecStart=/bin/x\n{text}\n")
    return read_unit(ImageRoot(base), "app.service")


def delegated(base: Path, text: str) -> list[tuple[str, ...]]:
    return [record[1:] for record in read(base, text).settings if record[0] == "delegate"]


@pytest.mark.parametrize(
    "text", ["", "Delegate=no", "Delegate=yes\nDelegate=off", "Delegate=cpu\nDelegate=no"]
)
def test_a_unit_without_delegation_has_the_same_description_as_before(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text).settings == read(tmp_path, "").settings
    assert delegated(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "controllers"),
    [
        ("Delegate=yes", ALL),
        ("Delegate=True", ALL),
        ("Delegate=1", ALL),
        # An empty assignment delegates the groups, without a controller.
        ("Delegate=", ()),
        ("Delegate=yes\nDelegate=", ()),
        ("Delegate=no\nDelegate=", ()),
        ("Delegate=pids memory cpu", ("cpu", "memory", "pids")),
        ("Delegate='io' \"cpuset\"", ("cpuset", "io")),
        ("Delegate=cpu\nDelegate=memory", ("cpu", "memory")),
        ("Delegate=yes\nDelegate=memory", ALL),
        ("Delegate=no\nDelegate=memory", ("memory",)),
        ("Delegate=io\nDelegate=\nDelegate=memory", ("memory",)),
    ],
)
def test_controllers(tmp_path: Path, text: str, controllers: tuple[str, ...]) -> None:
    """As config_parse_delegate of systemd has it: a list adds, yes and no and nothing replace."""
    assert delegated(tmp_path, text) == [controllers]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        # systemd takes some of these, passes by others, and means no controller of cgroup v2 by any.
        ("Delegate=cpuacct", "is none of cpu, cpuset, io, memory, pids"),
        ("Delegate=memory bpf-firewall", "Delegate=memory bpf-firewall is none of"),
        ("Delegate=CPU", "is none of"),
        ("Delegate=cpu\\x20io", "has a backslash"),
        ("Delegate=yes\nDelegateSubgroup=main", "it has DelegateSubgroup"),
        ("Delegate=yes\nExecStartPost=/bin/y", "ExecStartPost= with Delegate="),
        ("Delegate=yes\nUser=app", "another user or group than root"),
        ("Delegate=yes\nUser=app\nUser=root\nGroup=app", "another user or group than root"),
        ("Delegate=yes\nDynamicUser=yes", "another user or group than root"),
    ],
)
def test_what_cannot_be_had_early_is_refused(tmp_path: Path, text: str, why: str) -> None:
    put(tmp_path, "etc/passwd", "root:x:0:0::/root:/bin/sh\napp:x:99:99::/:/bin/sh\n")
    put(tmp_path, "etc/group", "root:x:0:\napp:x:99:\n")
    with pytest.raises(UnsupportedUnitError, match=why):
        read(tmp_path, text)


@pytest.mark.parametrize("text", ["ExecStartPost=/bin/y", "Group=0"])
def test_without_delegation_these_are_taken(tmp_path: Path, text: str) -> None:
    put(tmp_path, "etc/group", "root:x:0:\n")
    assert read(tmp_path, f"Delegate=no\n{text}").unit == "app.service"


@pytest.mark.parametrize(
    ("text", "is_set"),
    [("", True), ("Delegate=yes", False), ("Delegate=", False), ("Delegate=yes\nOOMPolicy=kill", True)],
)
def test_a_delegating_unit_sees_to_what_the_kernel_kills(tmp_path: Path, text: str, is_set: bool) -> None:
    """The manager's DefaultOOMPolicy= is not for it (service_add_extras)."""
    put(tmp_path, "etc/systemd/system.conf", "[Manager]\nDefaultOOMPolicy=kill\n")
    assert (("cgroup-attribute", "0", "memory.oom.group", "1") in read(tmp_path, text).settings) is is_set


def test_a_slice_delegates_nothing(tmp_path: Path) -> None:
    put(tmp_path, "etc/systemd/system/system.slice", "[Slice]\nDelegate=yes\n")
    assert delegated(tmp_path, "") == []
