"""The log of the page cache: which files it is asked for, and what it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.errors import TraceError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import Trace
from quickstart.model.residency import Resident
from quickstart.pack.parts import joined, parts_of
from quickstart.trace.collect import collect
from quickstart.trace.resident import LARGE_BYTES, large_files, parse_resident
from tests.unit.imagebuilder import P, small_image, trace
from tests.unit.stracelog import log

GROUP = '2 openat(AT_FDCWD</>, "/sys/fs/cgroup/a.service/cgroup.procs", O_WRONLY) = 3</x>'
LOG = "== 600000 /usr/lib/a\n0 4096\n8192 4096\n== 700000 /usr/lib/b c\n== end\n"


def test_parts_of_files() -> None:
    first, second = parse_resident(LOG)
    assert first == Resident(P("/usr/lib/a"), 600_000, ((0, 4096), (8192, 4096)))
    assert (first.resident_bytes, second.path, second.parts) == (8192, P("/usr/lib/b c"), ())
    assert parse_resident("== end\n") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is cut"),
        (LOG[:-1], "is cut"),
        ("0 4096\n== end\n", "is damaged"),
        ("== x /usr/lib/a\n== end\n", "is damaged"),
        ("== 1 usr/lib/a\n== end\n", "is damaged"),
        ("== 1 /a\n0 x\n== end\n", "is damaged"),
        ("== 1 /a\n4096 4096\n0 4096\n== end\n", "is damaged"),
        ("== 1 /a\n0 8192\n4096 4096\n== end\n", "is damaged"),
        ("== 1 /a\n" + "1 9" * 100_000 + "\n== end\n", "is damaged"),
    ],
)
def test_a_log_that_is_none(text: str, message: str) -> None:
    with pytest.raises(TraceError, match=f"the log of the page cache {message}"):
        parse_resident(text)


def test_large_files_of_the_unit_are_asked_for(tmp_path: Path) -> None:
    image = small_image(tmp_path)
    for name in ("/usr/lib/large", "/usr/lib/another", "/usr/lib/a\nb", "/usr/bin/interpreter"):
        image.file(name, bytes(LARGE_BYTES + 1))
    image.file("/usr/lib/small", bytes(LARGE_BYTES))
    image.file("/usr/bin/script", "#!/bin/interpreter -x\n", 0o755)
    image.link("/etc/link", "/usr/lib/large")
    names = ("/etc/link", "/usr/lib/small", "/usr/lib/a\\nb", "/usr/lib/absent")
    found = collect(
        log(
            '1 execve("/sbin/init", ["init"], []) = 0',
            "1 clone(flags=SIGCHLD) = 2",
            '1 openat(AT_FDCWD</>, "/usr/lib/another", O_RDONLY) = 3</usr/lib/another>',
            GROUP,
            '2 execve("/usr/bin/script", ["a"], ["INVOCATION_ID=1"]) = 0',
            *(f'2 openat(AT_FDCWD</>, "{name}", O_RDONLY) = 3<{name}>' for name in names),
        ),
        "a.service",
    )
    assert large_files(found, ImageRoot(tmp_path)) == (P("/usr/bin/interpreter"), P("/usr/lib/large"))


def test_parts_of_several_boots() -> None:
    a, b = (Resident(P("/a"), 9000, parts) for parts in (((0, 4096),), ((4096, 4096), (20480, 4096))))
    only_once = Resident(P("/b"), 9000, ())
    traces = [_with(a, only_once), _with(b)]
    assert parts_of(traces) == {P("/a"): Resident(P("/a"), 9000, ((0, 8192), (20480, 4096)))}


def test_parts_are_joined_over_small_gaps() -> None:
    parts = [(40, 10), (0, 10), (5, 10), (20, 5)]
    assert list(joined(parts)) == [(0, 15), (20, 5), (40, 10)]
    assert list(joined(parts, 5)) == [(0, 25), (40, 10)]
    assert list(joined([])) == []


def _with(*found: Resident) -> Trace:
    return replace(trace(), resident=found)
