"""The guest's statements about its logs count only when they agree with the logs that arrived."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import pytest

from quickstart.errors import TraceError
from quickstart.trace import record
from tests.guests import StandInGuest


class Saying(StandInGuest):
    """A guest in which every command says the same."""

    def __init__(self, said: bytes) -> None:
        self._said = said

    def answer(self, command: str, stdout: BinaryIO, timeout_s: float, limit_bytes: int | None) -> int:
        stdout.write(self._said)
        return 0


@pytest.mark.parametrize("said", [b"", b"  \n", b"\xff\xfe strace.log", b"0" * 64])
def test_a_checksum_that_is_none_is_a_log_that_is_not_whole(said: bytes, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"strace\.log did not come home whole"):
        record._fetch(Saying(said), "strace.log", tmp_path, 1 << 20)


class Listening(StandInGuest):
    """A guest that notes its commands."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def answer(self, command: str, stdout: BinaryIO, timeout_s: float, limit_bytes: int | None) -> int:
        self.heard.append(command)
        return 0


@pytest.mark.parametrize(
    ("units", "heard"),
    [
        (("a.service",), []),
        (("b.service", "c d.service", "a.service"), ["units-started b.service 'c d.service'"]),
    ],
)
def test_the_trace_ends_when_the_companions_have_started(units: tuple[str, ...], heard: list[str]) -> None:
    guest = Listening()
    record._await_companions(guest, units)
    assert [each.rsplit("/", 1)[1] for each in guest.heard] == heard
