"""What the first requests read: the log of the volume's reads, and the shell line of the profile in the guest."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import pytest

from quickstart.errors import TraceError
from quickstart.trace import firstreads, record
from quickstart.trace.firstreads import parse_reads
from tests.guests import StandInGuest

LOG = """\
7.999999 0 8
8.000000 2048 32
8.000001 4096 8
9.500000 2048 32
9.500000 64 0
== end
"""
READY_NS = 8_000_000_000


def test_only_what_is_read_from_ready_on_counts_and_once() -> None:
    assert parse_reads(LOG, READY_NS) == ((2048 * 512, 32 * 512), (4096 * 512, 8 * 512))
    assert parse_reads("== end\n", READY_NS) == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("8.000000 2048 32\n", "cut"),
        ("8.0 2048 32\n== end\n", "damaged"),
        ("8.000000 -1 32\n== end\n", "damaged"),
        ("8.000000 1 2 3\n== end\n", "damaged"),
        ("8.000000 1234567890123456 8\n== end\n", "damaged"),
        ("\n== end\n", "damaged"),
        # These would not be counted as lines.
        ("8.000000 8 8\r8.000000 16 8\n== end\n", "damaged"),
        ("8.000000 8 8\u20288.000000 16 8\n== end\n", "damaged"),
    ],
)
def test_a_log_that_is_none(text: str, reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        parse_reads(text, READY_NS)


def test_a_log_without_an_end_of_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firstreads, "_MOST_READS", 2)
    with pytest.raises(TraceError, match="more than 2 lines"):
        parse_reads("x\n" * 3 + "== end\n", READY_NS)


class Answering(StandInGuest):
    """A guest in which the first requests end with a status."""

    def __init__(self, status: int, of_the_script: int = 0) -> None:
        self.status = status
        self.of_the_script = of_the_script
        self.heard: list[str] = []

    def answer(self, command: str, stdout: BinaryIO, timeout_s: float, limit_bytes: int | None) -> int:
        self.heard.append(command)
        if not command.endswith("/reads-all"):
            return self.status
        stdout.write(LOG.encode())
        return self.of_the_script


def test_the_reads_are_looked_at_when_the_requests_were_made(tmp_path: Path) -> None:
    guest = Answering(0)
    record._record_first_reads(guest, tmp_path, "ask 100 times")
    assert guest.heard == ["ask 100 times", "/run/quickstart-trace/reads-all"]
    assert (tmp_path / "reads.log").read_text() == LOG


def test_requests_that_fail_are_no_first_requests(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"first_requests ended with 3") as caught:
        record._record_first_reads(Answering(3), tmp_path, "ask")
    assert "[prefetch]" in (caught.value.hint or "")
    assert not (tmp_path / "reads.log").exists()


def test_a_kernel_that_cannot_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"reads-all` in the guest ended with 32") as caught:
        record._record_first_reads(Answering(0, 32), tmp_path, "ask")
    assert "CONFIG_EVENT_TRACING" in (caught.value.hint or "")
