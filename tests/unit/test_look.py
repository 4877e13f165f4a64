"""One look at a guest during the watched boot of `profile new`, and when it is useless to wait any longer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.model.words import ReadyKind
from quickstart.newprofile.look import (
    Look,
    failure,
    listens_inside_only,
    look_command,
    parse_look,
    state_line,
)
from quickstart.newprofile.survey import Survey, read, write
from tests.unit.drafts import ANY, READY, TCP

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:2BCB 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0F02000A:0016 0202000A:9C40 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 100 0 0 10 0
   2: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 3 1 0 100 0 0 10 0
  sl  local_address                         remote_address                        st tx_queue
   0: 00000000000000000000000001000000:2BCB 00000000000000000000000000000000:0000 0A 00000000:00000000
   1: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 00000000:00000000
   2: 0000000000000000FFFF00000100007F:0007 00000000000000000000000000000000:0000 0A 00000000:00000000
   3: B80D0120000000000000000002000000:0008 00000000000000000000000000000000:0000 0A 00000000:00000000
"""
SAID = f"""\
== unit
ActiveState=active
SubState=running
Result=success
NRestarts=0
== system
running
== tcp
{TABLE}== memory
MemTotal:        2000000 kB
MemFree:          100000 kB
MemAvailable:    1795200 kB
== journal
Started app.

said = so
== end
"""


def look(answer: int = 0, **unit: str) -> Look:
    found = parse_look(SAID, answer)
    return replace(found, unit={**found.unit, **unit})


def test_a_look() -> None:
    found = look()
    assert found.unit["ActiveState"] == "active"
    assert (found.system, found.used_mib, found.journal) == ("running", 200, ("Started app.", "said = so"))
    assert found.listeners == (
        (ANY, 80),
        ("127.0.0.1", 11211),
        ("2001:0db8:0000:0000:0000:0000:0000:0002", 8),
        ("::", 22),
        ("::1", 11211),
        ("::ffff:127.0.0.1", 7),
    )


def test_a_look_before_systemd_is_there() -> None:
    found = parse_look("== unit\n== system\n== tcp\n== memory\n== journal\n== end\n")
    assert (found.unit, found.system, found.listeners, found.used_mib) == ({}, "", (), 0)
    assert failure([found] * 5, "app.service", READY) == ""
    assert not listens_inside_only([found] * 5, TCP)


def test_the_units_name_is_one_word_of_the_command() -> None:
    assert "'a b.service'" in look_command("a b.service")


@pytest.mark.parametrize(
    ("port", "kind", "inside"),
    [
        (11211, "tcp", True),
        (11211, "http", True),
        (11211, "exec", False),
        (80, "tcp", False),
        (9, "tcp", False),
    ],
)
def test_who_listens_on_127_0_0_1_only(port: int, kind: str, inside: bool) -> None:
    ready = replace(READY, port=port, kind=ReadyKind(kind))
    assert listens_inside_only([look()] * 3, ready) is inside
    assert not listens_inside_only([look()] * 2, ready)


def test_a_listener_on_the_other_loopback_only_is_not_asked_over_ipv4() -> None:
    only = replace(look(), listeners=(("::1", 11211),))
    assert not listens_inside_only([only] * 3, replace(TCP, port=11211))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"LoadState": "masked"}, "systemd does not load app.service: masked"),
        ({"ActiveState": "failed", "Result": "exit-code"}, "app.service fails by itself: exit-code"),
        ({"NRestarts": "3", "Result": "signal"}, "is restarted again and again: signal"),
        (
            {"ActiveState": "inactive", "UnitFileState": "disabled"},
            "does not run once the machine has booted (it is d",
        ),
        ({"ActiveState": "activating"}, ""),
    ],
)
def test_what_keeps_a_unit_from_being_ready(change: dict[str, str], why: str) -> None:
    found = failure([look(0, **change)] * 3, "app.service", READY)
    assert why in found
    assert bool(why) == bool(found)


def test_a_unit_that_is_still_to_come_is_waited_for() -> None:
    booting = replace(look(ActiveState="inactive"), system="starting")
    assert failure([booting] * 9, "app.service", READY) == ""
    assert failure([booting, look(), look()], "app.service", READY) == ""


def test_another_answer_than_the_one_asked_for() -> None:
    looks = [look(answer=403)] * 3
    assert failure(looks, "app.service", READY) == "GET / on port 80 is answered with 403, not with 200"
    assert failure(looks, "app.service", replace(READY, status=403)) == ""
    assert failure([look(answer=503), *looks[:2]], "app.service", READY) == ""
    assert "the last answer was 403" in state_line(looks[0], READY)


def test_a_guest_that_says_more_than_it_was_asked_for() -> None:
    row = "   0: {:08X}:0050 00000000:0000 0A 0 0 0\n"
    text = "== tcp\n" + "".join(row.format(number) for number in range(1000))
    look = parse_look(f"{text}== journal\n" + ("x" * 10_000 + "\n") * 1000)
    assert len(look.journal) == 15 and {len(line) for line in look.journal} == {1000}
    assert len(look.listeners) == 1000
    line = state_line(look, replace(READY, port=80))
    assert line.count("port 80") == 20 and "and 980 more" in line


def test_a_survey_is_kept(tmp_path: Path) -> None:
    survey = Survey(
        loopback=True,
        used_mib=123,
        listeners=(("127.0.0.1", 80), ("::", 22)),
        unit_file_state="enabled",
        answer="connected",
        ready_uptime_ns=5,
    )
    write(survey, tmp_path)
    assert read(tmp_path) == survey


def test_only_what_was_asked_for_is_kept_of_a_look() -> None:
    text = "== unit\nActiveState=active\nx\n" + "".join(f"x{number}=\n" for number in range(1000))
    look = parse_look(f"{text}Result={'y' * 1000}\n== system\n{'z' * 1000}\n")
    assert look.unit == {"ActiveState": "active", "Result": "y" * 256}
    assert look.system == "z" * 256
