"""A target: a parser of untrusted bytes. Every input must end in a result or in an error of ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# Gives one input to a parser; the directory is the process's own and keeps what the last input wrote.
Run = Callable[[bytes, Path], None]
# What JSON is made of.
JSON = (b'{"', b'":', b"[", b"]", b"}", b"null", b"Infinity", b"1e999", b"-1", b"true", b'""')


@dataclass(frozen=True)
class Target:
    """``words`` are what its inputs are made of."""

    run: Run
    words: tuple[bytes, ...] = ()


def void(_: object) -> None:
    """For targets of one call."""
