"""Names that somebody else chose are printed to a terminal with escapes and without markup, by every verb."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable
from itertools import count
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from quickstart.artefact.audit import ERROR, Finding, Findings
from quickstart.artefact.inside import Member
from quickstart.cli import audit, build, inside, output, run, trace
from quickstart.cli.output import Display, run_verb
from quickstart.engines.trial import Trial
from quickstart.launch.settled import Settled
from quickstart.model import Exclusion, StartSet
from quickstart.model.subject import Traced
from tests.unit.startfiles import start_file

# Sets the window's title; is markup for rich, and ends some that is not open; is no UTF-8; is longer than a line.
NAME = "\x1b]0;title\x07[/b][red]\udcff" + "x" * 200
SHOWN = r"\x1b]0;title\x07[/b][red]\xff" + "x" * 200


class Terminal:
    def __init__(self) -> None:
        self._bytes = io.BytesIO()
        file = io.TextIOWrapper(self._bytes, encoding="utf-8", write_through=True)
        self.console = Console(file=file, force_terminal=True, width=80, highlight=False)

    def text(self) -> str:
        """Without the colours and the moves that are ours."""
        return re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", self._bytes.getvalue().decode())


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


def of_audit(console: Console) -> None:
    audit._show(
        console, Path("/out"), Findings((Finding(ERROR, "/x", f"holds {NAME}", "build again"),), 1, 0), ()
    )


def of_audit_out(console: Console) -> None:
    audit._show(console, Path(f"/{NAME}"), Findings((), 0, 0), ("ro",))


def of_build(console: Console) -> None:
    made: Any = SimpleNamespace(
        directory=Path(f"/{NAME}"),
        start_set_files=1,
        start_set_bytes=1,
        initramfs_bytes=1,
        cmdline=f"ro {NAME}",
        stock_cmdline="ro",
        cloud_init=True,
        early="seen",
    )
    tried: Any = SimpleNamespace(
        built=SimpleNamespace(artefact=made, made=True), trial=Trial(early_ns=0, stock_ns=1, fallback=NAME)
    )
    build._show(console, tried)


def of_ls(console: Console) -> None:
    inside._show(
        console, [Member(name=f"fast/{NAME}", part="B", mode=0o100644, size_bytes=1, target="", data=b"")]
    )


def of_trace(console: Console) -> None:
    out = (Exclusion(PurePosixPath(f"/{NAME}"), "is a secret"),)
    trace._show(console, Traced(StartSet((), out, 1), ()))


def of_two_traces(console: Console) -> None:
    file = start_file(f"/{NAME}", seen_in=1)
    trace._show(console, Traced(StartSet((file,), (), 2), ()))


def of_run(console: Console) -> None:
    """The status line is the guest's."""
    numbers = dict.fromkeys(
        ("t_pr_ns", "t_app_ns", "t_total_ns", "ready_uptime_ns", "root_reads", "root_read_bytes"), 1
    )
    measured = SimpleNamespace(configuration="quickstart", clock="wall", accelerator="tcg", **numbers)
    ran: Any = SimpleNamespace(
        measurement=measured, url="http://127.0.0.1:1/", page=NAME, settled=Settled("running", 1, ())
    )
    run._show(console, [ran], True)


@pytest.mark.parametrize("show", [of_audit, of_audit_out, of_build, of_ls, of_trace, of_two_traces, of_run])
def test_results(terminal: Terminal, show: Callable[[Console], None]) -> None:
    show(terminal.console)
    assert SHOWN in terminal.text()
    assert "\x1b]" not in terminal.text()


def test_steps_and_notes(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count()
    monkeypatch.setattr(output, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    with Display(terminal.console).step(f"hash {NAME}"):
        pass
    Display(terminal.console).note(NAME)
    assert f"  hash {SHOWN}  1.0 s\n  {SHOWN}\n" in terminal.text()
    assert "\x1b]" not in terminal.text()


def test_programs_that_are_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.Logger("root")
    monkeypatch.setattr(logging, "root", root)

    def work(verb: output.Verb) -> int:
        root.info("%s", f"cp {NAME}")
        return 0

    assert run_verb("build", False, work, verbose=True) == 0
    assert capsys.readouterr().err == f"+ cp {SHOWN}\n"


@pytest.mark.parametrize(("t_pr_ns", "is_said"), [(1, False), (-(10**9), True)])
def test_times_of_a_clock_that_ran_too_fast(terminal: Terminal, t_pr_ns: int, is_said: bool) -> None:
    numbers = dict.fromkeys(("t_app_ns", "t_total_ns", "ready_uptime_ns", "root_reads", "root_read_bytes"), 1)
    measured = SimpleNamespace(
        configuration="quickstart", clock="wall", accelerator="tcg", t_pr_ns=t_pr_ns, **numbers
    )
    ran: Any = SimpleNamespace(measurement=measured, url="", page="", settled=None)
    run._show(terminal.console, [ran], True)
    assert ("ran faster than this host's" in " ".join(terminal.text().split())) is is_said
