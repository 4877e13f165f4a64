"""A program that has none of our descriptors: its log has what it says, within limits, and nothing of it runs afterwards."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from quickstart.errors import CommandError
from quickstart.host import relay


def test_what_it_says_is_in_the_log_after_what_was_there(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    relay.logged(["sh", "-c", "wc -c; echo complaint >&2"], timeout_s=60, log=log)
    assert log.read_text() == "before\n0\ncomplaint\n"


def test_a_log_has_the_beginning_and_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "HEAD_BYTES", 1000)
    monkeypatch.setattr(relay, "NEWEST_BYTES", 100)
    said = "".join(f"{each}\n" for each in range(1, 50001))
    relay.logged(["seq", "50000"], timeout_s=60, log=tmp_path / "log")
    left_out = len(said) - 1100
    assert (tmp_path / "log").read_text() == (
        f"{said[:1000]}\n[{left_out} bytes are left out here]\n{said[-100:]}"
    )


def test_a_failure_shows_what_was_said_last(tmp_path: Path) -> None:
    with pytest.raises(CommandError) as caught:
        relay.logged(["sh", "-c", "seq 100; exit 4"], timeout_s=60, log=tmp_path / "log")
    assert (caught.value.returncode, caught.value.tail.splitlines()[-1]) == (4, "100")
    assert len(caught.value.tail.splitlines()) == 15


@pytest.mark.parametrize("script", ["exec sleep 54324", "exec >/dev/null 2>&1; exec sleep 54324", "yes"])
def test_it_ends_when_its_time_is_over(tmp_path: Path, script: str) -> None:
    """Whether it is silent, has closed what it says into, or speaks without end."""
    with pytest.raises(CommandError) as caught:
        relay.logged(["sh", "-c", script], timeout_s=0.5, log=tmp_path / "log")
    assert caught.value.returncode is None
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [line for line in lines if b"54324" in line]


def test_what_is_taken_back_before_it_is_read_delays_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may open its own stdout to read (/proc/self/fd/1): what was there for us is gone when we look."""
    ready = SimpleNamespace(select=lambda reading, *_: (reading, [], []))
    monkeypatch.setattr(relay, "select", ready)
    with pytest.raises(CommandError) as caught:
        relay.logged(["sh", "-c", "sleep 20; echo late"], timeout_s=0.5, log=tmp_path / "log")
    assert caught.value.returncode is None
    assert (tmp_path / "log").read_text() == ""
