"""Type=dbus: a unit has started when one of its processes owns its name on the bus, which is watched until systemd is on it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.contract.starterbox import SLEEP, Started, command, describe, run_starter
from tests.contract.starterbox import UNIT as EXEC

FAKE = Path(__file__).with_name("fakebus.py")
PLACE = "/run/dbus/system_bus_socket"
UNIT = (
    *(record for record in EXEC if record[0] != "type"),
    ("type", "dbus"),
    ("bus-name", "org.example.App"),
)
SHORT = ("start-timeout-ms", "1500")
SECONDS = 40.0


def bus(how: str) -> str:
    """Shell that starts the bus of fakebus.py, and waits for it."""
    return (
        f"mkdir -p /run/dbus\nPYTHONPATH= {sys.executable} {FAKE} {PLACE} {how} $GROUP >/run/listening 2>/run/bus.log &\n"
        "until [ -s /run/listening ]; do sleep 0.05; done\n"
    )


def started(starter: Path, work: Path, how: str, *records: tuple[str, ...]) -> Started:
    before = bus(how) if how else ""
    return run_starter(starter, work, describe(*UNIT, *records), {"log": "cat /run/bus.log"}, before)


@pytest.mark.host_root
@pytest.mark.parametrize("how", ["owned", "swapped"])
def test_a_unit_has_started_when_it_owns_its_name(starter: Path, tmp_path: Path, how: str) -> None:
    found = started(starter, tmp_path, how, SLEEP)
    assert (found.status, found.reason, found.answers["log"]) == (0, "", "")


@pytest.mark.host_root
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("others", "org.example.App belongs to a process of another unit"),
        ("nobody", "nobody has the name org.example.App within the unit's TimeoutStartSec"),
        ("silent", "the bus does not greet"),
        ("", f"{PLACE}: No such file or directory"),
        ("nonsense", "the bus has sent no message"),
        ("long-header", "the bus has sent a message that is too long"),
        ("long-body", "the bus has sent a message that is too long"),
        ("half", "the bus has closed the connection"),
        ("field", "the bus has sent an unknown field"),
        ("type", "the bus has sent an unknown field"),
        ("no-end", "the bus has sent a broken message"),
        ("beyond", "the bus has sent a broken message"),
    ],
)
def test_otherwise_it_has_not_started(starter: Path, tmp_path: Path, how: str, reason: str) -> None:
    found = started(starter, tmp_path, how, SHORT, SLEEP)
    assert (found.status, found.reason) == (1, reason)


@pytest.mark.host_root
def test_it_has_to_run_until_then(starter: Path, tmp_path: Path) -> None:
    found = started(starter, tmp_path, "nobody", command("main", "exit 0"))
    assert found.reason == "the main process ended before it had the name org.example.App"


def verdict(starter: Path, work: Path, how: str, limit_s: float = 5.0) -> str:
    """What the watcher of a bus that behaves so has to say at its end."""
    (work / "caretaker").symlink_to(starter)
    place = work / "socket"
    with subprocess.Popen([sys.executable, FAKE, place, how], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "listening\n"
            called = subprocess.run(
                [work / "caretaker", "watch-bus", place, work / "verdict"],
                capture_output=True, text=True, timeout=SECONDS, check=False,
            )  # fmt: skip
            if called.returncode:
                return called.stderr.strip()
            watcher = Path(f"/proc/{called.stdout.strip()}/exe")
            assert (work / "verdict").read_text() == ""
            until = time.monotonic() + limit_s
            while watcher.exists() and time.monotonic() < until:
                time.sleep(0.05)
            assert not watcher.exists()
            return (work / "verdict").read_text()
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("served", "served\n"),
        # Somebody has waited, but not for long.
        ("late", "served\n"),
        ("lost", "lost the bus has closed the connection\n"),
        ("refused", "starter: the bus does not let us watch it"),
        ("nonsense", "starter: the bus has sent no message"),
    ],
)
def test_the_bus_is_watched_until_systemd_is_on_it(
    starter: Path, tmp_path: Path, how: str, said: str
) -> None:
    assert verdict(starter, tmp_path, how) == said


@pytest.mark.parametrize(
    ("how", "said"), [("asked", "late .service"), ("called", "org.freedesktop.systemd1")]
)
def test_who_waits_for_long_is_told(starter: Path, tmp_path: Path, how: str, said: str) -> None:
    begin = time.monotonic()
    assert verdict(starter, tmp_path, how, SECONDS) == f"asked {said}\n"
    assert time.monotonic() - begin > 14
