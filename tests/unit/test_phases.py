"""The phases of a boot, from the stamps of kernel, init and systemd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quickstart.measure.phases import phases, script, units

MS = 1_000_000
NOW = "now at 5000000000 nsecs\n"
# The kernel's log began 10 ms after its uptime.
OURS = (
    NOW
    + """\
<6>[    1.990000] Run /init as init process
<7>[    2.090000] quickstart: stamp modules
<7>[    2.190000] quickstart: stamp root
<7>[    2.240000] quickstart: stamp network
<7>[    2.390000] quickstart: stamp integrity
<7>[    2.440000] quickstart: stamp checked
<7>[    2.490000] quickstart: stamp application
<7>[    2.790000] quickstart: stamp started
<7>[    4.990000] quickstart: stamp now
"""
)
STANDARD = (
    NOW
    + """\
<6>[    1.990000] Run /init as init process
<6>[    3.490000] Run /sbin/init as init process
<7>[    4.990000] quickstart: stamp now
UserspaceTimestampMonotonic=3500000
Id=nginx.service
InactiveExitTimestampMonotonic=4000000
ActiveEnterTimestampMonotonic=4600000

Id=networking.service
InactiveExitTimestampMonotonic=3800000
ActiveEnterTimestampMonotonic=4900000

Id=systemd-networkd.service
InactiveExitTimestampMonotonic=0
ActiveEnterTimestampMonotonic=0
"""
)


def in_ms(said: str, ready_ms: int = 4800) -> dict[str, tuple[int, int]]:
    beacon_ms = 4700 if "systemd" in said else 2600
    found = phases(said, "nginx.service", 80 * MS, beacon_ms * MS, ready_ms * MS)
    return {each.name: (each.begin_ns // MS, each.end_ns // MS) for each in found}


def test_our_init() -> None:
    assert in_ms(OURS, 3000) == {
        "before kernel": (-80, 0),
        "kernel": (0, 2000),
        "init": (2000, 2100),
        "modules": (2100, 2200),
        "network": (2250, 2600),
        "root mount": (2200, 2400),
        "integrity": (2400, 2450),
        "enter root": (2450, 2500),
        "application start": (2500, 2800),
        "ready": (2800, 3000),
    }


def test_systemd() -> None:
    assert in_ms(STANDARD) == {
        "before kernel": (-80, 0),
        "kernel": (0, 2000),
        "initramfs": (2000, 3500),
        "systemd": (3500, 4000),
        "network": (3800, 4700),
        "application start": (4000, 4600),
        "ready": (4600, 4800),
    }


def test_our_init_is_still_at_what_comes_after_the_start() -> None:
    """An ExecStartPost may take longer than the application's first answer."""
    found = in_ms(OURS.replace("stamp started", "stamp x"), 3000)
    assert found["application start"] == (2500, 3000) and "ready" not in found


@pytest.mark.parametrize(("said", "ready_ms"), [(OURS, 2700), (STANDARD, 4300)])
def test_an_application_may_answer_before_it_counts_as_started(said: str, ready_ms: int) -> None:
    found = in_ms(said, ready_ms)
    assert found["application start"][1] == ready_ms and "ready" not in found


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("", {"before kernel"}),
        (OURS.replace("now at", "not at"), {"before kernel"}),
        (OURS.replace("stamp now", "stamp then"), {"before kernel"}),
        (OURS.replace("stamp root", "stamp x"), {"before kernel", "kernel"}),
        (STANDARD.replace("Id=nginx", "Id=apache2"), {"before kernel", "kernel"}),
        (STANDARD.replace("UserspaceTime", "Time"), {"before kernel", "kernel"}),
    ],
)
def test_what_was_not_stamped_is_left_out(said: str, left: set[str]) -> None:
    assert set(in_ms(said)) == left


def test_units_until_they_started_or_had_run_or_until_ready() -> None:
    more = """
Id=once.service
InactiveExitTimestampMonotonic=3600000
ActiveEnterTimestampMonotonic=0
InactiveEnterTimestampMonotonic=3700000

Id=later.service
InactiveExitTimestampMonotonic=4850000
ActiveEnterTimestampMonotonic=4900000

Id=forked.service
InactiveExitTimestampMonotonic=3600000
ActiveEnterTimestampMonotonic=3600500

Id=starting.service
InactiveExitTimestampMonotonic=4000001
ActiveEnterTimestampMonotonic=0
"""
    found = [
        (each.name, each.begin_ns // MS, each.end_ns // MS) for each in units(STANDARD + more, 4800 * MS)
    ]
    assert found == [
        ("once.service", 3600, 3700),
        ("networking.service", 3800, 4800),
        ("nginx.service", 4000, 4600),
        ("starting.service", 4000, 4800),
    ]


def test_our_init_has_no_units() -> None:
    assert units(OURS, 3000 * MS) == ()


DIGITS = "9" * 5000


@pytest.mark.parametrize(
    "changed",
    [
        ("4000000", DIGITS),
        ("] quickstart: stamp", "] quickstart: stamp x"),
        ("UserspaceTimestampMonotonic=3500000", f"UserspaceTimestampMonotonic={DIGITS}"),
        ("now at ", f"now at {DIGITS}"),
    ],
)
@pytest.mark.parametrize("said", [OURS, STANDARD])
def test_a_guest_may_print_any_number(said: str, changed: tuple[str, str]) -> None:
    for each in phases(said.replace(*changed), "nginx.service", 80 * MS, 4700 * MS, 4800 * MS):
        assert abs(each.begin_ns) + abs(each.end_ns) < 10**18
    stamped = f"<5>[{DIGITS}.000000] quickstart: stamp now\n{said}"
    phases(stamped, "nginx.service", 80 * MS, 4700 * MS, 4800 * MS)


@pytest.mark.parametrize(
    "names", [("x" * 250 + f"{each}" for each in range(2000)), (f"{each}.service" for each in range(2000))]
)
def test_a_guest_may_name_any_number_of_units(names: Iterator[str]) -> None:
    """In results.json, the units of one run take little room."""
    rows = "\n\n".join(
        f"Id={name}\nInactiveExitTimestampMonotonic=1000000\nActiveEnterTimestampMonotonic=3000000"
        for name in ("", "x" * 300, "\U0001f600" * 100, "a,b", *names)
    )
    found = [each.name for each in units(rows, 4000 * MS)]
    assert 60 <= len(found) <= 200
    assert all(each.isascii() and "," not in each and each for each in found)
    assert sum(map(len, found)) <= 16 << 10


def test_the_units_name_is_quoted() -> None:
    assert "'a b.service'" in script("a b.service")


def test_an_uptime_that_ran_ahead_leaves_no_phase_of_negative_length() -> None:
    (found,) = phases("", "nginx.service", -28 * MS, 0, 5 * MS)
    assert (found.begin_ns, found.end_ns) == (0, 0)
