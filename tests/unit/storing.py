"""What fills an entry of the store, and what fails to."""

from __future__ import annotations

from pathlib import Path

INPUTS = {"a": 1, "b": ["x", "y"]}


def fill(directory: Path) -> None:
    assert list(directory.iterdir()) == []
    (directory / "result").write_text("made")


def fail(directory: Path) -> None:
    (directory / "half").write_text("half")
    raise RuntimeError("stopped")
