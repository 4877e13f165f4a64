"""Conditions and Asserts of a unit, in the form in which the starter checks them during the boot."""

from __future__ import annotations

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.unit import conditions
from quickstart.inspect.unit.conditions import condition_records

Record = tuple[str, ...]


def records(*lines: str, unit: str = "app.service") -> list[Record]:
    assigned = tuple((name, value) for name, _, value in (line.partition("=") for line in lines))
    return [record[1:] for record in condition_records(unit, assigned)]


def test_each_condition_of_a_path_is_looked_at() -> None:
    assert records(
        "Description=x",
        "ConditionPathExists=/etc/app.conf",
        "ConditionDirectoryNotEmpty=|!/srv",
        "AssertFileNotEmpty=/etc/%n",
        "ConditionPathExists=!/run/off",
    ) == [
        ("Condition", "PathExists", "no", "no", "/etc/app.conf"),
        ("Condition", "DirectoryNotEmpty", "yes", "yes", "/srv"),
        ("Condition", "PathExists", "yes", "no", "/run/off"),
        ("Assert", "FileNotEmpty", "no", "no", "/etc/app.service"),
    ]


def test_an_empty_one_clears_its_whole_list() -> None:
    assert records(
        "ConditionPathExists=/a", "AssertPathExists=/b", "ConditionHost=x", "ConditionFileNotEmpty="
    ) == [("Assert", "PathExists", "no", "no", "/b")]


def test_what_holds_in_every_machine_of_the_image_is_left_out() -> None:
    assert records("ConditionVirtualization=!container", "ConditionCapability=CAP_SYS_TIME") == []
    # It triggers the list, so no other trigger matters.
    assert records("ConditionUser=|root", "ConditionPathExists=|/a", "ConditionPathExists=/b") == [
        ("Condition", "PathExists", "no", "no", "/b")
    ]


def test_no_condition_is_compared_with_all_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit file of a stranger's may have a hundred thousand."""

    def never(*_: object) -> bool:
        raise AssertionError("compared")

    monkeypatch.setattr(conditions._Condition, "__eq__", never)
    assert records(*(f"ConditionCapability=c{number}" for number in range(10))) == []


@pytest.mark.parametrize(
    "line",
    [
        # Of this machine, its launch or this moment; of what systemd mounts and makes later.
        *("ConditionVirtualization=kvm", "ConditionHost=web1", "ConditionMemory=>=1G", "ConditionACPower=true"),
        *("ConditionKernelCommandLine=fast", "ConditionFirstBoot=yes", "AssertCPUs=4", "ConditionNeedsUpdate=/etc"),
        *("ConditionPathIsMountPoint=/srv", "ConditionPathExists=/run/app", "AssertPathExists=/var/run/app"),
        *("ConditionPathExistsGlob=/etc/{a,b}", "ConditionPathExists=app.conf", "ConditionSomethingNew=x"),
    ],
)  # fmt: skip
def test_what_cannot_be_known_before_systemd_refuses_the_early_start(line: str) -> None:
    with pytest.raises(UnsupportedUnitError, match=line.partition("=")[0]):
        records(line)
