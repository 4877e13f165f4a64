"""docs/internals/starter.md prints the list of allowed differences between an adopted and a restarted process."""

from __future__ import annotations

from pathlib import Path

from tests.vm.parity_adopted import Process
from tests.vm.parity_list import committed, differences

DOCUMENT = Path(__file__).parents[2] / "docs/internals/starter.md"


def test_the_document_prints_the_list() -> None:
    section = DOCUMENT.read_text().partition("## Parity")[2]
    rows = section.partition("|---|---|---|\n")[2].partition("\n\n")[0].splitlines()
    assert rows == [each.row() for each in committed()]


def process(pid: int, **changed: str) -> Process:
    files = {
        "status": f"Name:\tx\nPid:\t{pid}\nPPid:\t1\nUmask:\t0022",
        "limits": "Max open files 1024",
        "cgroup": "0::/system.slice/x.service",
        "oom_score_adj": "0",
        "mountinfo": "26 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw",
        "environ": f"INVOCATION_ID={pid}\nHOME=/",
        "cmdline": "/usr/bin/x",
        "exe": "/usr/bin/x",
        "streams": "/dev/null\nJOURNAL_STREAM\nJOURNAL_STREAM",
    }
    return Process("main", pid, {**files, **changed})


def compared(old: Process, new: Process, *later: str) -> list[str]:
    return differences((old, old), (new, new), frozenset(later))


def test_what_the_list_names_is_no_difference() -> None:
    early = process(7, exe="/fast/usr/bin/x")
    assert compared(early, process(8)) == []


def test_anything_else_is_one() -> None:
    ordinary = process(8)
    for file, text in {
        "status": "Name:\tx\nPid:\t7\nPPid:\t1\nUmask:\t0077",
        "limits": "Max open files 4096",
        "cgroup": "0::/x",
        "oom_score_adj": "1",
        "mountinfo": "26 1 254:0 / / ro,relatime shared:1 - ext4 /dev/vda rw",
        "environ": "HOME=/root",
        "cmdline": "x",
        "exe": "/usr/bin/y",
        "streams": "/dev/null\n/var/log/app\nJOURNAL_STREAM",
    }.items():
        found = compared(process(7, **{file: text}), ordinary)
        assert len(found) == 1
        assert found[0].startswith(f"{file} ")


def test_a_file_of_fast_lies_over_the_same_one_only_and_only_before_the_restart() -> None:
    root = "26 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"
    over = "31 26 0:2 /fast/usr/lib/m.so {} ro,relatime shared:9 - rootfs rootfs rw"
    early = process(7, mountinfo=f"{root}\n{over.format('/usr/lib/m.so')}")
    assert compared(early, process(8, mountinfo=root)) == []
    assert len(compared(process(7, mountinfo=root), process(8, mountinfo=early.files["mountinfo"]))) == 1
    assert (
        len(compared(process(7, mountinfo=f"{root}\n{over.format('/etc/m.so')}"), process(8, mountinfo=root)))
        == 1
    )


def test_a_later_mount_may_lack_or_be_writable_but_not_be_another() -> None:
    root = "26 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"
    debug = "31 26 0:7 / /sys/kernel/debug {},nosuid shared:9 - {} debugfs rw"
    new = process(8, mountinfo=f"{root}\n{debug.format('ro', 'debugfs')}")
    writable = process(7, mountinfo=f"{root}\n{debug.format('rw', 'debugfs')}")
    other = process(7, mountinfo=f"{root}\n{debug.format('ro', 'tmpfs')}")
    assert compared(process(7, mountinfo=root), new, "/sys/kernel/debug") == []
    assert compared(writable, new, "/sys/kernel/debug") == []
    assert len(compared(other, new, "/sys/kernel/debug")) == 1
    assert len(compared(writable, new)) == 1
    # One that only the adopted process has.
    assert len(compared(writable, process(8, mountinfo=root), "/sys/kernel/debug")) == 1
