"""Tests that take turns: `make test` runs one of them, by the hash of the checkout's commit, and `make test-full` runs all."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

_Test = TypeVar("_Test", bound=Callable[..., object])


def chosen(names: Sequence[str], commit: str) -> str:
    """The one of ``names`` whose turn it is at ``commit``, a hash in hexadecimal or an empty string (pure)."""
    return names[int(commit or "0", 16) % len(names)]


def commit_of_now() -> str:
    """The hash of the checkout's commit, or an empty string for a directory without a history."""
    called = subprocess.run(
        ("git", "rev-parse", "--verify", "--quiet", "HEAD"),
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return called.stdout.strip()


def in_turn(every: Iterable[str], in_turns: Sequence[str], always: Sequence[str] = ()) -> list[Any]:
    """``every`` name as a parameter of pytest. `make test` runs those in ``always``, and one of ``in_turns``."""
    now = {*always, chosen(in_turns, commit_of_now())}
    return [pytest.param(name, marks=() if name in now else pytest.mark.full) for name in every]


def turn_of(name: str, names: Sequence[str]) -> Callable[[_Test], _Test]:
    """A decorator of the test with the name ``name``, one of ``names`` whose tests take turns."""
    is_now = chosen(names, commit_of_now()) == name

    def marked(test: _Test) -> _Test:
        return test if is_now else pytest.mark.full(test)

    return marked
