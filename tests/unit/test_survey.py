"""The boot that is watched, with a made-up guest: when the watch ends, and with which result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO

import pytest

from quickstart.errors import GuestError, NoProfileError
from quickstart.guest import Exit, Message, Output
from quickstart.model import Beacon, Readiness, ReadyStamp
from quickstart.model.words import ReadyKind
from quickstart.newprofile import survey
from quickstart.newprofile.look import Look
from quickstart.newprofile.survey import watch
from tests.guests import StandInGuest

STAMP = ReadyStamp(5_000_000_000, "connected", 0)
READY = Readiness(kind=ReadyKind.TCP, port=7, path="/", status=200, command="", timeout_s=600)
EXEC = Readiness(kind=ReadyKind.EXEC, port=0, path="/", status=200, command="ask it", timeout_s=600)


def said(state: str = "active", port: str = "", address: str = "00000000", system: str = "running") -> str:
    row = f"   0: {address}:{port} 00000000:0000 0A x\n" if port else ""
    unit = f"ActiveState={state}\nSubState=x\nUnitFileState=enabled\nResult=exit-code\n"
    memory = "MemTotal: 204800 kB\nMemAvailable: 102400 kB\n"
    return f"== unit\n{unit}== system\n{system}\n== tcp\n{row}== memory\n{memory}== journal\nlast words\n== end\n"


class Guest(StandInGuest):
    """Each look takes the next text, and the last one for ever; ``ready_at`` is the look in which ready comes, by a half for
    the pause behind it."""

    def __init__(self, *texts: str, ready_at: float = -1) -> None:
        super().__init__()
        self.texts = texts
        self.ready_at = ready_at
        self.looks = 0
        self.asked = False
        self.ends = False
        self.answers_after_s = 0.0

    def start(self, command: str) -> None:
        assert "app.service" in command
        self.asked = True

    def messages(self, timeout_s: float) -> Iterator[Message]:
        if not self.asked:
            if self.ready_at == self.looks - 0.5:
                yield STAMP
            return
        self.asked, number = False, self.looks
        self.looks += 1
        if self.ends or timeout_s < self.answers_after_s:
            return
        yield Beacon(1, "ens3", "10.0.2.15", 0)
        text = self.texts[min(number, len(self.texts) - 1)].encode()
        yield Output("out", text[:40])
        if self.ready_at == number:
            yield STAMP
        yield Output("err", b"noise")
        yield Output("out", text[40:])
        yield Exit(0)

    def answer(self, command: str, stdout: BinaryIO, timeout_s: float, limit_bytes: int | None) -> int:
        stdout.write(f"no {command}\n".encode())
        return 3

    def is_running(self) -> bool:
        return not self.ends

    def console_tail(self, lines: int = 20) -> str:
        return "its last line"


@pytest.mark.parametrize("ready_at", [0, 2, 1.5])
def test_ready_during_a_look_or_between_two(ready_at: float) -> None:
    found = watch(Guest(said("activating"), said(port="0007"), ready_at=ready_at), "app.service", READY, 60)
    assert (found.loopback, found.answer, found.ready_uptime_ns) == (False, "connected", 5_000_000_000)
    # Looked at once more when it was ready.
    assert (found.listeners, found.used_mib, found.unit_file_state) == ((("0.0.0.0", 7),), 100, "enabled")  # noqa: S104


def test_an_answer_from_127_0_0_1_is_of_a_service_inside() -> None:
    """The request that was found in a boot went there (cups)."""
    guest = Guest(said("activating"), said(port="0007", address="0100007F"), ready_at=1)
    found = watch(guest, "app.service", replace(READY, loopback=True), 60)
    assert (found.loopback, found.answer, found.ready_uptime_ns) == (True, "connected", 5_000_000_000)


def test_who_listens_inside_only_is_not_waited_for() -> None:
    guest = Guest(said("activating"), said(port="0007", address="0100007F"))
    found = watch(guest, "app.service", READY, 60)
    assert (found.loopback, found.answer, found.listeners) == (True, "", (("127.0.0.1", 7),))
    assert guest.looks == 4


def test_a_unit_that_fails_ends_the_boot_with_its_last_words() -> None:
    guest = Guest(said("activating"), said("failed"))
    with pytest.raises(NoProfileError) as caught:
        watch(guest, "app.service", READY, 60)
    assert caught.value.problems == ("app.service fails by itself: exit-code", "| last words")
    assert guest.looks == 2


def test_time_that_is_up() -> None:
    with pytest.raises(NoProfileError) as caught:
        watch(Guest(said()), "app.service", READY, 0)
    assert caught.value.problems == ("it was not ready after 0 s",)


def test_time_that_is_up_with_a_command_says_what_that_said(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    with pytest.raises(NoProfileError) as caught:
        watch(Guest(said(port="0009")), "app.service", EXEC, 4)
    first, state, ended, output, *journal = caught.value.problems
    assert first == "it was not ready after 4 s"
    assert state.startswith("the unit is active (x), the machine running; listened to: 0.0.0.0 port 9")
    assert (ended, output, journal) == ("`ask it` ends with 3", "| no ask it", ["| last words"])


def test_a_guest_that_ends() -> None:
    guest = Guest(said())
    guest.ends = True
    with pytest.raises(GuestError, match="the guest ended while it was watched") as caught:
        watch(guest, "app.service", READY, 60)
    assert "its last line" in caught.value.details


def test_a_busy_host_has_as_long_for_a_look_as_for_ready() -> None:
    guest = Guest(said(), ready_at=0)
    guest.answers_after_s = 500
    assert watch(guest, "app.service", READY, 600).ready_uptime_ns
    with pytest.raises(GuestError, match="did not answer for 120 s") as caught:
        watch(guest, "app.service", READY, 60)
    assert "--timeout" in str(caught.value.hint)


def test_a_long_boot_keeps_the_last_looks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []

    def count(looks: list[Look], unit: str, ready: Readiness) -> str:
        kept.append(len(looks))
        return "enough" if len(kept) == 10 else ""

    monkeypatch.setattr(survey, "failure", count)
    with pytest.raises(NoProfileError, match="enough"):
        watch(Guest(said("activating")), "app.service", READY, 60)
    assert max(kept) == 3
