"""Bytes of a guest, its logs and counters: parsing takes time and memory in proportion to their length, and
ends in a result or a typed error.

Each input here once took minutes or gigabytes or ended in a traceback, or is similar to one that did.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from quickstart.errors import (
    GuestError,
    TraceError,
)
from quickstart.measure.counting import disk_reads, iowait_ns
from quickstart.model import Readiness
from quickstart.model.words import ReadyKind
from quickstart.newprofile.look import failure, parse_look
from quickstart.trace.collect import collect
from quickstart.trace.load import load_trace, parse_maps
from quickstart.trace.strace import read_calls, unescape
from quickstart.verify import guesttrace
from tests.unit.hostile import DIGITS, bounded
from tests.unit.stracelog import items, log, paths

# ---------------------------------------------------------------- strace


@pytest.mark.parametrize(
    "row",
    [
        '7 rename("a", ' + "1<" * 100_000 + ") = 0",
        '7 rename("a", ' + '"\\' * 100_000 + ") = 0",
        '7 symlink("a", ' + '"\\' * 100_000 + ") = 0",
        "7 mmap(NULL, 8192" + ", PROT_EXEC" * 40_000 + ") = 0x7f0000000000",
        "7 mmap(NULL, 8192, " + "PROT_EXEC|" * 40_000 + ") = 0x7f0000000000",
        "7 clone3({flags=" + "CLONE_INTO_CGROUP" * 40_000 + "}) = 9",
    ],
)
def test_a_line_that_patterns_could_be_lost_in(row: str) -> None:
    with bounded(), contextlib.suppress(TraceError):
        collect(log('7 execve("/sbin/init", [], 0x7) = 0', row, '7 access("/x", F_OK) = 0'), "app.service")


def test_a_path_of_nothing_but_dots() -> None:
    rows = ['7 chroot("/r") = 0'] + ['7 access("' + "/../" * 60_000 + 'x", F_OK) = 0'] * 20
    with bounded():
        assert paths(*rows)[1:] == ["/r/x"] * 20


def test_a_path_longer_than_a_path_can_be_names_nothing() -> None:
    assert paths('7 access("/' + "x" * 4096 + '", F_OK) = 0', '7 access("/y", F_OK) = 0') == ["/y"]


@pytest.mark.parametrize("digits", ["1" * 5000, "1" * 11])
def test_process_numbers_of_any_length(digits: str) -> None:
    rows = (f'{digits} access("/x", F_OK) = 0',)
    with bounded(), pytest.raises(TraceError, match=r"line 1 of the strace log is not strace's"):
        items(*rows)
    forks = (f"7 clone(flags=0) = {digits}", '7 access("/x", F_OK) = 0')
    with bounded(), contextlib.suppress(TraceError):
        items(*forks)


def test_a_backslash_before_a_byte_that_is_no_text() -> None:
    assert paths(b'7 access("/\\\xff", F_OK) = 0') == ["/\udcff"]
    assert unescape("\\\udcff\\") == "\udcff\\"


def test_a_line_without_end_is_not_read_whole() -> None:
    with bounded(), pytest.raises(TraceError, match="line 2 of the strace log has more than 4194304 bytes"):
        list(read_calls([*log('7 access("/x", F_OK) = 0'), *log("7 access(" + "x" * (4 << 20) + ") = 0")]))


def test_a_call_resumed_for_ever() -> None:
    rows = ["7 read(1 <unfinished ...>"] + [f"7 <... read resumed>{'x' * 50} <unfinished ...>"] * 100_000
    with bounded(), pytest.raises(TraceError, match="line 9 of the strace log is not strace's"):
        items(*rows)


def test_forks_held_back_as_deep_as_the_log_is_long() -> None:
    rows = ['1 access("/x", F_OK) = 0']
    rows += [f"{pid} clone(flags=0) = {pid + 1}" for pid in range(10, 30_000)]
    rows += ['30000 access("/last", F_OK) = 0', "1 clone(flags=0) = 10"]
    with bounded():
        assert paths(*rows) == ["/x", "/last"]


def test_descriptors_and_binds_are_not_copied_for_each_process() -> None:
    rows = [f'1 openat(AT_FDCWD</>, "/f{n}", O_RDONLY) = {n}</f{n}>' for n in range(10_000)]
    rows += [f'1 mount("/s{n}", "/t{n}", NULL, MS_BIND, NULL) = 0' for n in range(10_000)]
    for pid in range(2, 10_000):
        rows += [f"1 clone(flags=0) = {pid}", f'{pid} openat(AT_FDCWD</>, "/g", O_RDONLY) = 9</g>']
    rows += ['9999 access("/proc/self/fd/9", F_OK) = 0', '9999 access("/proc/self/fd/8", F_OK) = 0']
    rows += ['9999 chroot("/t9999") = 0', '9999 access("/x", F_OK) = 0']
    with bounded(mib=400):
        assert paths(*rows)[-4:] == ["/g", "/f8", "/t9999", "/s9999/x"]


def test_a_directory_gone_into_for_ever() -> None:
    rows = ['7 chdir("' + "x" * 30 + '") = 0'] * 100_000
    with bounded(), pytest.raises(TraceError, match="leads to a directory whose name has"):
        items(*rows)


# ---------------------------------------------------------------- the other logs of a trace


@pytest.mark.parametrize(
    ("line", "what"),
    [("abc\n", "more than 524288 lines"), ("1-2 r-xp 0 0:0 1 /lib/{}\n", "more than 131072 files")],
)
def test_maps_without_end(line: str, what: str) -> None:
    text = (
        "== 7 app\n"
        + "".join(line.format(n) for n in range(524_290 if "{" not in line else 131_080))
        + "== end\n"
    )
    with bounded(mib=300), pytest.raises(TraceError, match=what):
        parse_maps(text)


def test_maps_of_a_process_whose_number_is_none() -> None:
    text = f"== {DIGITS} app\n1-2 r-xp 0 0:0 1 /lib/x\n== end\n"
    with bounded():
        assert [(each.pid, str(each.path)) for each in parse_maps(text)] == [(0, "/lib/x")]


@pytest.mark.parametrize(
    "facts",
    [
        "[" * 100_000,
        '{"interface": "e", "mac": "m", "address": "a", "ready_uptime_ns": Infinity}',
        '{"interface": "e", "mac": "m", "address": "a", "ready_uptime_ns": "1"}',
        '{"interface": 1, "mac": "m", "address": "a", "ready_uptime_ns": 1}',
        '{"interface": "e", "mac": "m", "address": "a", "ready_uptime_ns": ' + DIGITS + "}",
        "[]",
        "\udcff",
    ],
)
def test_facts_that_are_none(tmp_path: Path, facts: str) -> None:
    for name in (
        "strace.log",
        "maps.log",
        "units.log",
        "resident.log",
        "ldd.log",
        "modules.before",
        "modules.after",
    ):
        (tmp_path / name).write_text("== end\n")
    (tmp_path / "facts.json").write_text(facts, errors="surrogateescape")
    with bounded(), pytest.raises(TraceError, match="is damaged"):
        load_trace(tmp_path, "app.service")


def test_a_log_larger_than_any(tmp_path: Path) -> None:
    with (tmp_path / "maps.log").open("wb") as file:
        file.truncate(1 << 40)
    with bounded(), pytest.raises(TraceError, match=r"cannot be read: .*maps\.log"):
        load_trace(tmp_path, "app.service")


# ---------------------------------------------------------------- the guest kernel's trace

HEAD = "   app-7   [000] .....  1.000000: "


@pytest.mark.parametrize(
    "line",
    [
        " " * 8000,
        HEAD + 'qs_name: (x) name="' + ') name="' * 900 + "x",
        HEAD + "qs_name: " + '() name="' * 800 + "x",
        HEAD + "sched_process_fork: comm=" + " pid=1 child_comm=" * 440,
    ],
)
def test_a_line_of_the_kernel_that_patterns_could_be_lost_in(line: str) -> None:
    text = "\n".join([line] * 5000)
    with bounded():
        guesttrace.parse(text.split("\n"), "")


def test_numbers_of_the_kernel_of_any_length() -> None:
    lines = [
        f"app-{DIGITS} [000] ..... 1.000000: sys_x()",
        f"app-7 [000] ..... {DIGITS}.000000: sys_x()",
        HEAD + "sys_openat(dfd: 1)",
        HEAD + 'qs_name: (x) name="/a"',
        HEAD + "sys_openat -> 0x" + "f" * 5000,
        HEAD + f"sys_openat -> {DIGITS}",
        HEAD + f"sys_read(fd: {'f' * 5000})",
        HEAD + "sys_read -> 0x1",
        HEAD + f"block_bio_queue: 1,1 R {DIGITS} + {DIGITS} [x]",
        HEAD + f"block_rq_issue: 1,1 R 1 () {DIGITS} + 1 [x]",
        HEAD + f"sched_process_fork: comm=a pid=1 child_comm=b child_pid={DIGITS}",
    ]
    with bounded():
        assert guesttrace.parse(lines, f"overrun: {DIGITS}\noverrun: 2\n").lost == 2


def test_requests_that_are_never_issued_do_not_wait_for_ever() -> None:
    lines = [HEAD + f"block_bio_queue: 7,0 R {n * 8} + 8 [x]" for n in range(20_000)]
    lines += [HEAD + "block_rq_issue: 1,1 R 1 () 900000000 + 1 [x]"] * 6000
    lines += [HEAD + "block_bio_queue: 1,1 R 99999992 + 8 [x]"]
    lines += [HEAD + "block_rq_issue: 1,1 R 1 () 99999992 + 8 [x]"]
    with bounded():
        found = guesttrace.parse(lines, "").issued
    assert len(found) == 6001 and len(found[-1].askers) == 1


def test_files_of_a_process_are_not_copied_for_each_child() -> None:
    lines = []
    for n in range(10_000):
        lines += [HEAD + "sys_openat(dfd: ffffff9c)", HEAD + f'qs_name: (x) name="/f{n}"']
        lines += [HEAD + f"sys_openat -> {n:#x}"]
        lines += [HEAD + f"sched_process_fork: comm=app pid=7 child_comm=app child_pid={100 + n}"]
    with bounded(mib=500):
        assert len(guesttrace.parse(lines, "").uses) == 10_000


def test_a_file_of_the_guest_opened_below_the_last_one_for_ever() -> None:
    lines = []
    for n in range(8000):
        lines += [
            HEAD + f"sys_openat(dfd: {n:x})",
            HEAD + 'qs_name: (x) name="aaaa"',
            HEAD + f"sys_openat -> {n + 1:#x}",
        ]
    with bounded():
        uses = guesttrace.parse(lines, "").uses
    assert max(len(str(use.path)) for use in uses) < 4096


def test_a_directory_of_the_guest_gone_into_for_ever() -> None:
    enter = [
        HEAD + "sys_chdir(filename: 0)",
        HEAD + 'qs_name: (x) name="aaaaaaaa"',
        HEAD + "sys_chdir -> 0x0",
    ]
    with bounded():
        guesttrace.parse(enter * 10_000, "")


# ---------------------------------------------------------------- counters

DISK = " 254       0 vda {} 221 {} 28 2 0 16 0 0 20 28 0 0 0\n"


@pytest.mark.parametrize(
    ("reads", "sectors"), [("x", "1"), ("1", "-1"), (DIGITS, "1"), ("1", DIGITS), ("²", "1")]
)
def test_damaged_diskstats(reads: str, sectors: str) -> None:
    with bounded(), pytest.raises(GuestError, match="diskstats is damaged: vda has"):
        disk_reads(DISK.format(reads, sectors), "vda")


@pytest.mark.parametrize("ticks", [DIGITS, "²", "-1", "99999999999999999999"])
def test_damaged_counters_of_the_processor(ticks: str) -> None:
    with bounded(), pytest.raises(GuestError, match="no cpu line"):
        iowait_ns(f"cpu 1 2 3 4 {ticks} 6\n")


def test_a_look_at_a_guest_that_lies() -> None:
    text = f"== unit\nActiveState=active\nNRestarts={DIGITS}\n== memory\nMemTotal: {DIGITS} kB\n"
    text += "a:" + " " * 200_000 + "\n" + "\n" * 200_000 + "== tcp\n" + " " * 200_000 + "\n== end\n"
    with bounded():
        look = parse_look(text)
        assert look.used_mib == 0 and not look.listeners
        assert (
            failure(
                [look],
                "app.service",
                Readiness(kind=ReadyKind.TCP, port=80, path="/", status=200, command="", timeout_s=60),
            )
            == ""
        )
