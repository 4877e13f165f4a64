"""Logs of a guest that has more to say than any boot: each ends in an error of ours, before it takes much memory."""

from __future__ import annotations

import io
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from quickstart.errors import BadInputError, TraceError
from quickstart.trace import collect as collecting
from quickstart.trace import events, load, strace
from quickstart.trace.collect import collect, collect_file, limited_by_size

FIRST = b'1 1.0 execve("/sbin/init", ["init"], 0x1) = 0\n'


def unit() -> Iterator[bytes]:
    yield FIRST
    yield b"1 1.0 fork() = 2\n"
    yield b'2 1.0 openat(AT_FDCWD</>, "/sys/fs/cgroup/a.service/cgroup.procs", O_WRONLY) = 3</x>\n'
    yield b'2 1.0 execve("/usr/bin/app", ["app"], 0x1) = 0\n'


@pytest.mark.parametrize(
    "line",
    [
        b'2 1.0 stat("/%d", 0x1) = 0\n',
        b"1 1.0 fork() = %d\n",
        b'1 1.0 openat(AT_FDCWD</>, "/%d", O_WRONLY|O_CREAT|O_EXCL) = 3</x>\n',
    ],
)
def test_too_many_facts(monkeypatch: pytest.MonkeyPatch, line: bytes) -> None:
    monkeypatch.setattr(collecting, "_MOST_FACTS", 50)
    few = collect([*unit(), *(line % number for number in range(3, 40))], "a.service")
    assert few.units == {"a.service"}
    with pytest.raises(TraceError, match="more than 50 processes, made files and different actions"):
        collect([*unit(), *(line % number for number in range(3, 60))], "a.service")


def test_too_many_calls_of_processes_that_nobody_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_MOST_HELD_CHARACTERS", 10_000)
    line = b'7 1.0 stat("/x", 0x1) = 0\n'
    collect([*unit(), *[line] * 30], "a.service")
    with pytest.raises(TraceError, match="too many calls of unknown processes"):
        collect([*unit(), *[line] * 60], "a.service")


def test_too_many_calls_that_do_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strace, "_MOST_BEGUN_CHARACTERS", 10_000)
    begun, ended = b"%d 1.0 read(3, <unfinished ...>\n", b"%d 1.0 <... read resumed>) = 0\n"
    # What has ended, and what a process has begun before, are kept no longer.
    collect(
        [*unit(), *(row % 9 for _ in range(60) for row in (begun, ended)), *[begun % 9] * 60], "a.service"
    )
    with pytest.raises(TraceError, match="too many calls have begun and not ended"):
        collect([*unit(), *(begun % number for number in range(10, 70))], "a.service")


def test_a_log_may_take_time_in_proportion_to_its_size() -> None:
    for size_bytes, limit_s in ((0, 10), (20 << 20, 20), (1 << 30, 522)):
        with limited_by_size(size_bytes):
            assert round(signal.getitimer(signal.ITIMER_PROF)[1]) == limit_s


def test_a_log_that_is_slow_to_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whether it is read for the first time or comes from the store, and whichever of the logs it is."""

    def forever(*_: object) -> NoReturn:
        while True:
            pass

    said = r"reading the logs of the reference boot takes more than 0\.02"
    monkeypatch.setattr(collecting, "LIMIT_S", 0.02)
    monkeypatch.setattr(collecting, "collect", forever)
    with pytest.raises(BadInputError, match=said) as caught:
        collect_file(io.BytesIO(FIRST), "a.service")
    assert "program of the image" in (caught.value.hint or "")
    monkeypatch.setattr(load, "read_whole", forever)
    with pytest.raises(BadInputError, match=said):
        load.load_trace(tmp_path, "a.service")
