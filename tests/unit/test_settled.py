"""When a machine has settled: the meaning of systemd's answers, and what a run does then."""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO, cast

import pytest
from click.testing import CliRunner

from quickstart.artefact import directory as artefacts
from quickstart.cli import moment
from quickstart.cli.main import group
from quickstart.cli.moment import When, settled_facts, settled_line
from quickstart.errors import BadInputError, GuestError, NotSettledError
from quickstart.launch import settled
from quickstart.launch.accel import tcg
from quickstart.launch.channel import Channel
from quickstart.launch.qemu import QemuGuest
from quickstart.launch.settled import Settled, hands_over, parse, wait_settled
from quickstart.model import Artefact
from quickstart.model.machine import Machine
from tests.guests import StandInGuest
from tests.unit.outs import write_manifest

RUNNING = "state running\nfinished 12050000\n"
STARTING = "state starting\njob b.service start waiting\njob a.service start running\njob default.target start waiting\n"


class Guest(StandInGuest):
    """Gives one answer after the other; when there is none left, it has ended."""

    def __init__(self, *answers: str) -> None:
        super().__init__()
        self._answers: Iterator[str] = iter(answers)
        self._ended = False

    def answer(self, command: str, stdout: BinaryIO, timeout_s: float, limit_bytes: int | None) -> int:
        assert command == settled.ASK
        assert limit_bytes is not None
        answer = next(self._answers, None)
        if answer is None:
            self._ended = True
            raise GuestError("cut off")
        stdout.write(answer.encode())
        return 0

    def wait(self, timeout_s: float) -> bool:
        return self._ended

    def console_tail(self, lines: int = 20) -> str:
        return "the last line"


class Mute(Guest):
    """Lives, and answers nothing in time."""

    def wait(self, timeout_s: float) -> bool:
        return False


class Slow(Guest):
    """On a clock of its own, as a hostile guest would have it: each answer takes ``answer_s``, and none is the last."""

    def __init__(self, answer: str, answer_s: float) -> None:
        super().__init__()
        self._answer, self._answer_s = answer, answer_s
        self.now_s = 1000.0
        self.asked = 0

    def answer(self, command: str, stdout: BinaryIO, timeout_s: float, limit_bytes: int | None) -> int:
        self.asked += 1
        assert self.asked < 10_000, "it is asked for ever"
        self.now_s += min(self._answer_s, timeout_s)
        if self._answer_s > timeout_s:
            raise GuestError("no answer in time")
        stdout.write(self._answer.encode())
        return 0

    def wait(self, timeout_s: float) -> bool:
        self.now_s += timeout_s
        return False


@pytest.mark.parametrize("answer_s", [0.0, 1.0, 249.0, 251.0])
def test_no_guest_makes_the_wait_longer(answer_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that answers at once, which is asked twice a second at most, nor one that is just in time."""
    guest = Slow(STARTING, answer_s)
    monkeypatch.setattr(settled, "time", SimpleNamespace(monotonic=lambda: guest.now_s))
    with pytest.raises(GuestError) as raised:
        wait_settled(guest, 300)
    assert guest.now_s - 1000 <= 330
    assert guest.asked <= 600
    if answer_s < 250:
        # What an earlier answer said is not lost when the last one is cut off.
        assert "waits for a.service start" in raised.value.message


def test_a_wait_that_ends_before_the_first_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    guest = Slow(STARTING, 60)
    monkeypatch.setattr(settled, "time", SimpleNamespace(monotonic=lambda: guest.now_s))
    with pytest.raises(NotSettledError, match="20 s after it was ready: it has not answered") as raised:
        wait_settled(guest, 20)
    assert raised.value.hint is not None and "--settle-timeout" in raised.value.hint


def test_it_waits_until_systemd_says_so() -> None:
    guest = Guest("state offline\n", "state starting\n", "", RUNNING)
    assert wait_settled(guest, 60) == Settled("running", 12_050_000_000, ())


def test_a_degraded_machine_has_settled() -> None:
    guest = Guest("state degraded\nfinished 13\nfailed b.service\nfailed a.service\n")
    found = wait_settled(guest, 60)
    assert found == Settled("degraded", 13_000, ("a.service", "b.service"))
    assert (
        settled_line(found)
        == "settled: degraded, 0.00 s after the machine's start; failed: a.service b.service"
    )
    assert settled_facts(found) == {
        "settled": "degraded",
        "settled_uptime_ns": 13_000,
        "failed_units": ["a.service", "b.service"],
    }


def test_who_did_not_wait_knows_nothing() -> None:
    assert set(settled_facts(None).values()) == {None}


def test_a_machine_that_never_settles_says_what_it_waits_for() -> None:
    with pytest.raises(NotSettledError) as raised:
        wait_settled(Guest(STARTING), 0)
    assert raised.value.message == (
        "the machine has not settled 0 s after it was ready: systemd is starting and waits for "
        "a.service start, b.service start, default.target start"
    )
    assert "the last line" in raised.value.details
    assert (
        raised.value.hint is not None
        and "--when ready" in raised.value.hint
        and "--settle-timeout" in raised.value.hint
    )
    assert raised.value.exit_code == 1


@pytest.mark.parametrize("state", ["maintenance", "stopping"])
def test_a_machine_that_goes_elsewhere_is_not_waited_for(state: str) -> None:
    with pytest.raises(NotSettledError, match=f"does not settle: systemd is in {state}"):
        wait_settled(Guest(f"state {state}\n"), 1e9)


def test_a_guest_that_ends_is_named_as_such() -> None:
    with pytest.raises(NotSettledError, match="ended before it had settled"):
        wait_settled(Guest("state starting\n"), 1e9)


def test_a_guest_that_does_not_answer_is_an_error_of_its_own() -> None:
    with pytest.raises(GuestError, match="does not say whether its boot is done") as raised:
        wait_settled(Mute(), 1e9)
    assert not isinstance(raised.value, NotSettledError)
    # The question is a script, which helps nobody.
    assert len(raised.value.message) < 150


def test_only_some_of_many_jobs_are_named() -> None:
    jobs = "".join(f"job {name}.service start waiting\n" for name in "abcdefgh")
    with pytest.raises(NotSettledError, match=r"e\.service start and 3 more"):
        wait_settled(Guest("state starting\n" + jobs), 0)


@pytest.mark.parametrize(
    "line",
    [
        "state \x1b[2J",
        "finished -1",
        "finished 9999999999999999999",
        "finished \u0661",
        "failed ../../etc",
        "failed a b",
        "job a.service \x07 running",
        "anything",
    ],
)
def test_what_is_no_answer_is_left_out(line: str) -> None:
    assert parse(line) == parse("")


@pytest.mark.parametrize(
    ("hand_off", "words", "answer"),
    [
        ("keep", "ro quiet", True),
        ("release", "", True),
        ("no", "", False),
        ("keep", "ro quickstart=stay quiet", False),
        ("keep", "xquickstart=stay", True),
    ],
)
def test_whether_there_is_a_hand_off(hand_off: str, words: str, answer: bool) -> None:
    assert hands_over(hand_off, words) is answer


def test_a_unit_with_escapes_keeps_its_name() -> None:
    assert parse("job dev-disk-by\\x2duuid-1.device start running").jobs == (
        "dev-disk-by\\x2duuid-1.device start",
    )


def artefact(tmp_path: Path, hand_off: str) -> Artefact:
    write_manifest(tmp_path, hand_off=hand_off)
    return artefacts.load(tmp_path)


@pytest.mark.parametrize(
    ("hand_off", "stock", "append", "has_command", "wanted"),
    [
        ("keep", False, "", True, When.SETTLED),
        ("release", False, "", True, When.SETTLED),
        ("keep", False, "", False, When.READY),
        ("keep", False, "quickstart=stay", True, When.READY),
        ("no", False, "", True, When.READY),
        ("no", True, "", True, When.SETTLED),
    ],
)
def test_a_command_waits_for_the_whole_machine_where_it_comes(
    tmp_path: Path, hand_off: str, stock: bool, append: str, has_command: bool, wanted: When
) -> None:
    out = artefact(tmp_path, hand_off)
    assert moment.moment(out, None, stock, append, has_command) is wanted
    for said in When:
        assert moment.moment(out, said, stock, append, has_command) is said


def test_nobody_waits_for_what_never_comes(tmp_path: Path) -> None:
    out = artefact(tmp_path, "no")
    moment.demand_settling(out, When.READY, False, "")
    moment.demand_settling(out, None, False, "")
    moment.demand_settling(out, When.SETTLED, True, "")
    with pytest.raises(BadInputError, match="never settles") as raised:
        moment.demand_settling(out, When.SETTLED, False, "")
    assert raised.value.hint is not None and "--when ready" in raised.value.hint


def test_the_verb_refuses_before_it_boots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUICKSTART_CACHE", str(tmp_path / "store"))
    out = tmp_path / "out"
    out.mkdir()
    write_manifest(out)
    words = ("run", str(out), "--json", "--when", "settled", "--append", "quickstart=stay")
    found = CliRunner().invoke(group, words)
    assert found.exit_code == 2
    assert "never settles" in json.loads(found.stdout)["error"]["message"]


def test_what_a_hostile_guest_says_stays_short() -> None:
    """It is shown in a message, and on a terminal."""
    words = ("x" * 100_000, "\u0661", "\u05d0\u05d1", "\u202ex", "-")
    for word in words:
        assert parse(f"state {word}\njob a.service {word} running\n") == parse("")
    assert len(parse("".join(f"failed {n}.service\n" for n in range(50_000))).failed_units) == 1024
    assert len(parse("".join(f"job {n}.service start running\n" for n in range(50_000))).jobs) == 1024


@pytest.mark.parametrize("reads", [True, False])
def test_a_question_takes_no_longer_than_its_time(reads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a guest that lives and answers nothing: neither that it may be ending nor that it reads nothing adds to the time."""
    waited: list[float] = []

    def lives(guest: QemuGuest, timeout_s: float) -> bool:
        waited.append(timeout_s)
        return False

    monkeypatch.setattr(QemuGuest, "wait", lives)
    monkeypatch.setattr(QemuGuest, "_goes_on", lambda self: True)
    monkeypatch.setattr(QemuGuest, "console_tail", lambda self: "")
    ours, agent = socket.socketpair()
    machine = SimpleNamespace(forward_port=None)
    guest = QemuGuest(cast(Machine, machine), tcg("in a test"), b"", keep=None)
    guest._channel = Channel(ours)
    if not reads:
        fill(ours)
    ended = threading.Event()

    def ask() -> None:
        with pytest.raises(GuestError, match="did not end"):
            guest.execute("true", io.BytesIO(), io.BytesIO(), 0.2)
        ended.set()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    try:
        assert ended.wait(30)
    finally:
        agent.close()
        asking.join(30)
        ours.close()
    assert waited
    assert max(waited) <= 0.2


def fill(connected: socket.socket) -> None:
    """Send until there is no room on the way."""
    connected.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            connected.send(bytes(65_536))
    # Where a large piece has no room, a command may still have.
    with suppress(BlockingIOError):
        while True:
            connected.send(b"\0")
    connected.setblocking(True)
