"""Endless output of a guest is kept within limits: its beginning, its newest part, and a note about what is left out."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from quickstart.launch import drain
from quickstart.launch.drain import BoundedLog, Drained, drained, hand_over, whole_lines

LIMIT = 1 << 20


@pytest.fixture
def log(tmp_path: Path) -> BoundedLog:
    return BoundedLog(tmp_path / "log", head_bytes=10, newest_bytes=6)


def test_a_short_log_is_whole(log: BoundedLog) -> None:
    log.append(b"hello")
    assert (log.read(0).data, log.read(2, 2).data, log.read(5).data) == (b"hello", b"ll", b"")
    assert (log.tail(3), log.size_bytes) == (b"llo", 5)
    log.close()
    assert log.path.read_bytes() == b"hello"


def test_the_middle_of_a_long_one_is_left_out(log: BoundedLog) -> None:
    for number in range(1000):
        log.append(b"%03d\n" % number)
        assert len(log._newest) <= 16
    assert log.path.stat().st_size == 10
    assert log.read(0).data == b"000\n001\n00"
    found = log.read(10)
    assert found.position >= 3988 and found.data.endswith(b"999\n")
    log.close()
    kept = log.path.read_bytes()
    assert kept.startswith(b"000\n001\n00\n[quickstart: ") and kept.endswith(b"999\n")
    (left_out,) = re.findall(rb"\[quickstart: (\d+) bytes are left out here\]", kept)
    assert int(left_out) == found.position - 10


def test_a_piece_larger_than_everything(log: BoundedLog) -> None:
    log.append(bytes(range(100)))
    assert log.read(0).data == bytes(range(10))
    assert log.tail(6) == bytes(range(94, 100))


def test_lines_are_found_however_they_were_cut(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "log", drain.HEAD_BYTES, drain.NEWEST_BYTES)
    for byte in b"a line\r\nquickstart: fallback 1: why\r\nx quickstart: fallback 2\nquickstart: fallback 3":
        log.append(bytes([byte]))
    pattern = re.compile(rb"quickstart: (fallback [^\r\n]*)")
    # One that another program's prompt stands before, too.
    assert [match[1] for match in log.lines(pattern)] == [b"fallback 1: why", b"fallback 2", b"fallback 3"]
    log.close()


TSC = b"[    2.122957] tsc: Refined TSC clocksource calibration: 2095.076 MHz"
CALLER = b"[12345.000001][    T1] virtio_net virtio0 enp0s3: renamed from eth0"
OURS = b"quickstart: fallback 1: no DHCP lease on enp0s3; the stock init takes over"
BROKEN = {
    "whole": (OURS + b"\r\n", [OURS]),
    "in the middle": (OURS[:-9] + TSC + b"\r\n" + OURS[-9:] + b"\r\n", [TSC, OURS]),
    "at the end": (OURS + TSC + b"\r\n\r\n", [TSC, OURS]),
    "within the end": (OURS + b"\r" + TSC + b"\r\n\n", [TSC, OURS]),
    "before it": (TSC + b"\r\n" + OURS + b"\r\n", [TSC, OURS]),
    "at the beginning": (OURS[:1] + TSC + b"\r\n" + OURS[1:] + b"\r\n", [TSC, OURS]),
    "two at a place": (
        OURS[:30] + TSC + b"\r\n" + CALLER + b"\r\n" + OURS[30:] + b"\r\n",
        [TSC, CALLER, OURS],
    ),
    "two at two": (
        OURS[:30] + TSC + b"\r\n" + OURS[30:40] + CALLER + b"\r\n" + OURS[40:] + b"\r\n",
        [TSC, CALLER, OURS],
    ),
    "only the kernel's": (TSC + b"\r\n" + CALLER + b"\r\n", [TSC, CALLER]),
    "cut off": (OURS[:30] + TSC + b"\r\n", [TSC, OURS[:30]]),
    "a line that printk breaks has not ended": (OURS[:30] + TSC, [TSC, OURS[:30]]),
    "no stamp": (b"[  OK  ] up [1.5] [2.122957] [    2.12] [    2.122957]x\r\n", None),
    "an address": (b"[::1]:80 [127.000.000001] y\r\n", None),
}


@pytest.mark.parametrize("said, meant", BROKEN.values(), ids=BROKEN)
def test_what_printk_wrote_into_a_line_is_taken_out(said: bytes, meant: list[bytes] | None) -> None:
    expected = [said.removesuffix(b"\r\n")] if meant is None else meant
    assert [line for line in whole_lines(said.split(b"\n")) if line] == expected


@pytest.mark.parametrize("step", [1, 7, 1 << 16])
def test_the_reason_of_a_fallback_is_whole(tmp_path: Path, step: int) -> None:
    log = BoundedLog(tmp_path / "log", head_bytes=20, newest_bytes=4096)
    said = b"".join(text for text, _ in BROKEN.values())
    for begin in range(0, len(said), step):
        log.append(said[begin : begin + step])
    pattern = re.compile(rb"quickstart: (fallback [^\r\n]*over)")
    assert [match[0] for match in log.lines(pattern)] == [OURS] * 8
    log.close()


def test_lines_that_printk_breaks_without_end_are_no_burden() -> None:
    lines = list(whole_lines(b"x" * 3000 + TSC for _ in range(1000)))
    assert (len(lines), max(map(len, lines))) == (1001, 4096)


def test_a_line_without_end_is_no_burden(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "log", drain.HEAD_BYTES, drain.NEWEST_BYTES)
    log.append(b"quickstart: fallback " + b"x" * (4 << 20) + b"\nquickstart: fallback y\n")
    first, second = log.lines(re.compile(rb"quickstart: (fallback [^\r\n]*)"))
    assert len(first[1]) < 5000 and second[1] == b"fallback y"
    log.close()


def test_a_full_disk_stops_nobody() -> None:
    log = BoundedLog(Path("/dev/full"), 1000, 1000)
    log.append(b"lost on disk")
    log.append(b", kept in memory")
    assert log.tail(100) == b"lost on disk, kept in memory"
    assert log.read(0).data == b"lost on disk, kept in memory"
    log.close()


def feed(said: Drained, data: bytes) -> None:
    while data:
        data = data[os.write(said.writers[0], data) :]


def test_pipes_are_emptied_and_who_writes_never_waits(tmp_path: Path) -> None:
    with drained(tmp_path / "console", tmp_path / "errors") as said:
        # More than a pipe holds: without a reader it would be waited for ever.
        feed(said, b"x" * LIMIT)
        os.write(said.writers[1], b"an error")
        said.drain.catch_up()
        assert [log.size_bytes for log in said.logs] == [LIMIT, 8]
        feed(said, b"the end")
        hand_over(said)
        assert said.drain.join()
        assert said.logs[0].tail(7) == b"the end"
    assert (tmp_path / "console").stat().st_size == LIMIT + 7
    assert (tmp_path / "errors").read_bytes() == b"an error"


def test_a_flood_takes_neither_disk_nor_memory(tmp_path: Path) -> None:
    flood_bytes = 5 * drain.HEAD_BYTES
    with drained(tmp_path / "console") as said:
        for _ in range(flood_bytes // LIMIT):
            feed(said, b"y\n" * (LIMIT // 2))
        said.drain.catch_up()
        (log,) = said.logs
        assert log.size_bytes == flood_bytes
        assert len(log._newest) <= 2 * drain.NEWEST_BYTES
        assert log.path.stat().st_size == drain.HEAD_BYTES
    kept = log.path.stat().st_size
    assert drain.HEAD_BYTES < kept <= drain.HEAD_BYTES + 2 * drain.NEWEST_BYTES + 100
    assert b"bytes are left out here]" in log.path.read_bytes()


def test_a_context_that_ends_early_closes_all(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(ZeroDivisionError), drained(tmp_path / "console"):
        raise ZeroDivisionError
    assert len(list(Path("/proc/self/fd").iterdir())) == before
