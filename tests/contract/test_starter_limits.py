"""The limits of the unit's cgroup are written before its first process starts. Plain files take the place of the kernel's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.contract.starterbox import SLEEP, Record, Started, command, describe, run_starter, start

pytestmark = pytest.mark.host_root

ATTRIBUTES = ("pids.max", "memory.max", "memory.high", "cpu.max")
# This host may have no controllers to give, so the files are there beforehand; the unit's group is `x/app.service`.
TREE = f"""
mount -t tmpfs cgroup /sys/fs/cgroup
mkdir -p $GROUP
echo 'cpu memory pids' >/sys/fs/cgroup/cgroup.controllers
for at in /sys/fs/cgroup /sys/fs/cgroup/$group $GROUP; do
	for name in cgroup.procs cgroup.subtree_control {" ".join(ATTRIBUTES)}; do : >$at/$name; done
done
"""
SHOW = "cd /sys/fs/cgroup; grep -r . . --include='*.max' --include='*.high' --include='*control' | sed s/$group/SLICE/ | sort"
FIRST = command("pre", "cat /sys/fs/cgroup/*/app.service/pids.max; :")


def limit(*words: str) -> Record:
    return ("cgroup-attribute", *words)


def started(starter: Path, work: Path, *records: Record) -> Started:
    # A PID namespace may have a pid_max of its own.
    most = "cat /proc/sys/kernel/threads-max /proc/sys/kernel/pid_max"
    return start(starter, work, *records, FIRST, SLEEP, before=TREE, shown=SHOW, most=most)


def test_attributes_are_there_before_the_first_command(starter: Path, tmp_path: Path) -> None:
    found = started(
        starter,
        tmp_path,
        limit("1", "memory.max", "1048576"),
        limit("0", "pids.max", "40"),
        limit("0", "cpu.max", "20000 100000"),
    )
    assert found.log.splitlines()[0] == "40"
    # Each group above hands the controller down; plain files keep what was written last from their start on.
    assert found.answers["shown"].splitlines() == [
        "./SLICE/app.service/cpu.max:20000 100000",
        "./SLICE/app.service/pids.max:40",
        "./SLICE/cgroup.subtree_control:+cpus",
        "./SLICE/memory.max:1048576",
        "./cgroup.subtree_control:+cpusry",
    ]


def test_shares_are_those_of_the_machine(starter: Path, tmp_path: Path) -> None:
    found = started(
        starter,
        tmp_path,
        limit("0", "pids.max", "tasks", "1500", "10000"),
        limit("0", "memory.high", "memory", "5000", "10000"),
    )
    answers = dict(line.split(":") for line in found.answers["shown"].splitlines())
    threads, pids = map(int, found.answers["most"].split())
    # PID 0 is nobody's.
    assert answers["./SLICE/app.service/pids.max"] == str(min(threads, pids - 1) * 1500 // 10000)
    page = os.sysconf("SC_PAGE_SIZE")
    half = os.sysconf("SC_PHYS_PAGES") // 2 * page
    assert abs(int(answers["./SLICE/app.service/memory.high"]) - half) <= page


def test_what_the_kernel_has_not_is_gone_without(starter: Path, tmp_path: Path) -> None:
    """As by systemd: a controller that is switched off, an attribute that this kernel lacks."""
    found = started(
        starter, tmp_path, limit("0", "io.weight", "default 20"), limit("0", "memory.swap.max", "0")
    )
    assert "swap" not in found.answers["shown"]
    assert "io" not in found.answers["shown"]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (limit("3", "pids.max", "1"), "attribute of no group"),
        (limit("0", "pids.max", "tasks", "1"), "lacks words"),
        (limit("0", "pids.max", "luck", "1", "2"), "unknown `luck`"),
        (limit("0", "pids.max", "tasks", "1", "0"), "share of nothing"),
        (limit("0", "../pids.max", "1"), "lacks words"),
    ],
)
def test_a_damaged_record_starts_nothing(starter: Path, tmp_path: Path, record: Record, reason: str) -> None:
    unit: tuple[Record, ...] = (("unit", "app.service"), ("group", "x"), ("type", "exec"))
    found = run_starter(starter, tmp_path, describe(*unit, record, SLEEP), before=TREE)
    assert (found.status, found.main_pid) == (1, "")
    assert reason in found.reason
