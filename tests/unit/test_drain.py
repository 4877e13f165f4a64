"""What a guest says without end is kept within bounds: its beginning, its newest part, and word of what is left out."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from quickstart.launch import drain
from quickstart.launch.drain import BoundedLog, Drained, drained, hand_over

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
    assert [match[1] for match in log.lines(pattern)] == [b"fallback 1: why", b"fallback 3"]
    log.close()


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
