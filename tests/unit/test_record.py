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
