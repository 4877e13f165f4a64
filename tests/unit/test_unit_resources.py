"""Limits of the unit's cgroup and of its slices; the starter writes them before the first process starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import read_unit

Record = tuple[str, ...]
DEFAULT = ("0", "pids.max", "tasks", "1500", "10000")


def put(base: Path, path: str, text: str) -> None:
    file = base / path.removeprefix("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def attributes(base: Path, text: str) -> list[Record]:
    put(base, "usr/lib/systemd/system/app.service", f"[Service]\nExecStart=/bin/x\n{text}\n")
    found = read_unit(ImageRoot(base), "app.service").settings
    return [record[1:] for record in found if record[0] == "cgroup-attribute"]


def test_a_service_has_15_percent_of_the_tasks(tmp_path: Path) -> None:
    assert attributes(tmp_path, "") == [DEFAULT]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("TasksMax=40", ("40",)),
        ("TasksMax=12.5%", ("tasks", "1250", "10000")),
        ("TasksMax=125‰", ("tasks", "1250", "10000")),
        ("TasksMax=7\nTasksMax=", DEFAULT[2:]),
        ("TasksMax=infinity", None),
    ],
)
def test_tasks(tmp_path: Path, text: str, value: Record | None) -> None:
    assert attributes(tmp_path, text) == ([("0", "pids.max", *value)] if value else [])


def test_the_manager_s_default_of_tasks(tmp_path: Path) -> None:
    put(tmp_path, "etc/systemd/system.conf", "[Manager]\nDefaultTasksMax=infinity\n")
    assert attributes(tmp_path, "") == []
    assert attributes(tmp_path, "TasksMax=9") == [("0", "pids.max", "9")]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("MemoryMax=1G", [("memory.max", "1073741824")]),
        ("MemoryMax=50%\nMemoryHigh=400M", [("memory.high", "419430400"), ("memory.max", "memory", "5000", "10000")]),
        ("MemoryLimit=1G", [("memory.max", "1073741824")]),
        ("MemoryLimit=1G\nMemoryMax=infinity\nMemoryLow=0", [("memory.max", "1073741824")]),
        ("MemoryLimit=1G\nMemoryMax=2G", [("memory.max", "2147483648")]),
        ("MemoryLimit=1G\nMemorySwapMax=0", [("memory.swap.max", "0")]),
        ("MemorySwapMax=0\nMemoryMax=infinity\nMemoryLow=0", [("memory.swap.max", "0")]),
        ("MemoryMin=infinity", [("memory.min", "max")]),
        ("CPUWeight=50\nStartupCPUWeight=900", [("cpu.weight", "900")]),
        ("CPUWeight=idle", [("cpu.idle", "1")]),
        ("CPUQuota=20%", [("cpu.max", "20000 100000")]),
        ("CPUQuota=250%\nCPUQuotaPeriodSec=10ms", [("cpu.max", "25000 10000")]),
        # The kernel resolves no less than 1 ms, and knows no longer period than 1 s.
        ("CPUQuota=0.5%", [("cpu.max", "1000 200000")]),
        ("CPUQuota=10%\nCPUQuotaPeriodSec=5s", [("cpu.max", "100000 1000000")]),
        ("AllowedCPUs=0-1\nAllowedCPUs=3\nAllowedMemoryNodes=0", [("cpuset.cpus", "0,1,3"), ("cpuset.mems", "0")]),
        ("AllowedCPUs=0\nStartupAllowedCPUs=1", [("cpuset.cpus", "1")]),
        ("IOWeight=20", [("io.weight", "default 20")]),
        ("OOMPolicy=kill", [("memory.oom.group", "1")]),
        ("OOMPolicy=continue\nMemoryAccounting=yes\nTasksAccounting=no", []),
    ],
)  # fmt: skip
def test_other_attributes(tmp_path: Path, text: str, found: list[Record]) -> None:
    """The values are those that systemd 252 writes (cgroup_context_apply)."""
    assert attributes(tmp_path, text) == [DEFAULT, *(("0", *each) for each in found)]


def test_what_a_slice_says_comes_first(tmp_path: Path) -> None:
    put(tmp_path, "etc/systemd/system/a.slice", "[Slice]\nMemoryMax=1M\n")
    put(tmp_path, "etc/systemd/system/a-b.slice.d/50.conf", "[Slice]\nTasksMax=50\n")
    put(tmp_path, "etc/systemd/system/-.slice.d/x.conf", "[Slice]\nMemoryMax=1M\n")
    found = attributes(tmp_path, "Slice=a-b.slice")
    # The root group has no attributes.
    assert found == [("2", "memory.max", "1048576"), ("1", "pids.max", "50"), DEFAULT]


@pytest.mark.parametrize(
    "line",
    [
        *("TasksMax=0", "TasksMax=7", "TasksMax=many", "TasksMax=101%", "TasksMax=1.234%"),
        *(
            "MemoryMax=0",
            "MemoryLimit=0",
            "MemoryHigh=0%",
            "MemoryMax=1KB",
            "MemoryMax=1.5G",
            "CPUQuota=0%",
            "CPUQuota=20",
        ),
        *("CPUWeight=0", "CPUWeight=10001", "IOWeight=idle", "AllowedCPUs=x", "OOMPolicy=never"),
        # Of a device, of cgroup v1, of some systemd's only.
        *("IOReadBandwidthMax=/ 1M", "IODeviceWeight=/ 10", "BlockIOWeight=10", "CPUShares=10"),
        *("StartupMemoryMax=1G", "MemoryZSwapMax=0"),
    ],
)
def test_what_cannot_be_had_refuses_the_early_start(tmp_path: Path, line: str) -> None:
    with pytest.raises(UnsupportedUnitError, match=line.partition("=")[0]):
        attributes(tmp_path, line)
    put(tmp_path, "etc/systemd/system/system.slice.d/x.conf", f"[Slice]\n{line}\n")
    with pytest.raises(UnsupportedUnitError, match=line.partition("=")[0]):
        attributes(tmp_path, "")


def test_a_limit_of_the_root_slice_refuses_it(tmp_path: Path) -> None:
    put(tmp_path, "etc/systemd/system/-.slice.d/x.conf", "[Slice]\nTasksMax=500\n")
    with pytest.raises(UnsupportedUnitError, match=r"its slice -\.slice has TasksMax"):
        attributes(tmp_path, "")


@pytest.mark.parametrize(
    ("outer", "inner", "text", "found"),
    [
        ("DefaultMemoryLow=1M", "", "", [("1", "memory.low", "1048576"), ("0", "memory.low", "1048576")]),
        ("", "DefaultMemoryMin=infinity", "", [("0", "memory.min", "max")]),
        (
            *("DefaultMemoryLow=1M", "DefaultMemoryLow=2M\nMemoryLow=3M", ""),
            [("1", "memory.low", "3145728"), ("0", "memory.low", "2097152")],
        ),
        ("DefaultMemoryLow=1M", "MemoryLow=0", "MemoryLow=", []),
        # An empty one means 0, and hides what is further out.
        ("DefaultMemoryLow=1M", "DefaultMemoryLow=", "", [("1", "memory.low", "1048576")]),
        # A service lends nothing to itself, and its limits are its own.
        ("", "", "DefaultMemoryLow=1M", []),
        ("DefaultMemoryHigh=1M", "", "MemoryLow=infinity", None),
        ("DefaultStartupMemoryLow=1M", "", "", None),
    ],
)  # fmt: skip
def test_what_slices_lend(
    tmp_path: Path, outer: str, inner: str, text: str, found: list[Record] | None
) -> None:
    """The nearest slice that has a Default… is asked, down from -.slice (systemd.resource-control(5))."""
    put(tmp_path, "etc/systemd/system/-.slice", f"[Slice]\n{outer}\n")
    put(tmp_path, "etc/systemd/system/system.slice.d/a.conf", f"[Slice]\n{inner}\n")
    if found is None:
        with pytest.raises(UnsupportedUnitError, match=rf"its slice -\.slice has {outer.partition('=')[0]}"):
            attributes(tmp_path, text)
    else:
        assert [each for each in attributes(tmp_path, text) if each != DEFAULT] == found


def test_an_empty_limit_of_a_slice_is_the_manager_s_default(tmp_path: Path) -> None:
    put(tmp_path, "etc/systemd/system/system.slice.d/a.conf", "[Slice]\nTasksMax=\n")
    assert attributes(tmp_path, "") == [("1", *DEFAULT[1:]), DEFAULT]


def test_an_empty_device_policy_of_a_slice_takes_nothing_back(tmp_path: Path) -> None:
    put(tmp_path, "etc/systemd/system/system.slice.d/a.conf", "[Slice]\nDevicePolicy=strict\nDevicePolicy=\n")
    with pytest.raises(UnsupportedUnitError, match="an empty DevicePolicy="):
        attributes(tmp_path, "")
