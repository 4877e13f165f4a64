"""Logs of real reference boots (tests/logs), and the facts that must be found in them."""

from __future__ import annotations

import functools
import lzma
import os
from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.errors import TraceError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import Op
from quickstart.pack.others import refuse_made_before
from quickstart.trace.collect import UnitLog, collect
from tests.unit.imagebuilder import trace
from tests.unit.madebefore import app

LOGS = Path(__file__).parent.parent / "logs"
UNITS = sorted(path.name.removesuffix(".txt") for path in LOGS.glob("*.txt"))


@functools.cache
def unit_log(name: str) -> UnitLog:
    """The unit's share; ``name`` is SUITE.UNIT."""
    suite, _, unit = name.partition(".")
    with lzma.open(LOGS / f"{suite}.strace.xz") as log:
        return collect(log, f"{unit}.service")


def used(log: UnitLog) -> list[str]:
    """What the unit executed, mapped and opened, a row each."""
    rows = {
        f"{event.op.value} {event.path} by {event.program}{' (made)' if event.made else ''}"
        for event in log.events
        if event.error is None and event.op in (Op.EXEC, Op.MAP, Op.OPEN)
    }
    return sorted(rows, key=os.fsencode)


def test_there_are_logs() -> None:
    assert set(UNITS) >= {"bookworm.apache2", "bookworm.mariadb", "trixie.nginx", "trixie.ssh"}


@pytest.mark.parametrize("name", UNITS)
def test_what_a_unit_used(name: str) -> None:
    assert used(unit_log(name)) == (LOGS / f"{name}.txt").read_text().splitlines()


@pytest.mark.parametrize("name", UNITS)
def test_paths_are_those_of_the_image(name: str) -> None:
    paths = [str(event.path) for event in unit_log(name).events]
    assert not [path for path in paths if "/unit-root" in path or "/mount-rootfs" in path]


def test_systemds_own_executor_is_not_the_units() -> None:
    for name in UNITS:
        assert not [
            row for row in used(unit_log(name)) if "systemd-executor" in row or "libsystemd-core" in row
        ]


def test_mariadb_uses_an_io_uring() -> None:
    assert unit_log("bookworm.mariadb").blind == ("mariadbd",)
    assert unit_log("bookworm.apache2").blind == ()


@pytest.mark.parametrize("share", [0.3, 0.7, 0.999])
def test_a_cut_log_is_refused_wherever_it_is_cut(share: float) -> None:
    data = lzma.decompress((LOGS / "bookworm.strace.xz").read_bytes())
    cut = data[: int(len(data) * share)].rstrip(b"\n")
    with pytest.raises(TraceError, match="is cut in line"):
        collect(cut.splitlines(keepends=True), "apache2.service")


def test_a_line_that_is_lost_in_the_middle_of_a_call_is_noticed() -> None:
    lines = lzma.decompress((LOGS / "bookworm.strace.xz").read_bytes()).splitlines(keepends=True)
    begun = next(n for n, line in enumerate(lines) if n > 10_000 and line.endswith(b"<unfinished ...>\n"))
    with pytest.raises(TraceError, match="did not begin"):
        collect([*lines[:begun], *lines[begun + 1 :]], "apache2.service")


@pytest.mark.parametrize("name", UNITS)
def test_nothing_of_the_boot_is_used_but_what_an_early_start_has(name: str, tmp_path: Path) -> None:
    """A package's rule in tmpfiles.d makes /run/mysqld and the like, as the starter does."""
    made = {"/run/mysqld", "/run/lock", "/run/apache2", "/run/sshd"}
    changed = unit_log(name).changed
    found = replace(changed, before_unit=tuple(path for path in changed.before_unit if str(path) not in made))
    refuse_made_before([replace(trace(), changed=found)], app(), ImageRoot(tmp_path))
