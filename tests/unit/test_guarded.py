"""Bytes of a guest on their way to a terminal or into memory."""

from __future__ import annotations

import io
from typing import cast

from quickstart.cli.guarded import Kept, Printable, guarded


def printed(*pieces: bytes) -> str:
    out = io.BytesIO()
    target = Printable(out)
    for piece in pieces:
        assert target.write(piece) == len(piece)
    target.flush()
    return out.getvalue().decode()


def test_a_terminal_gets_no_control_characters() -> None:
    assert printed(b"plain\r\n\ttext\n") == "plain\r\n\ttext\n"
    assert printed(b"\x1b]0;title\x07\x1b[2J") == "\\x1b]0;title\\x07\\x1b[2J"
    assert printed(b"\x08\x7f\x00") == "\x08\\x7f\\x00"
    # CSI as one character (C1), and what turns the direction of writing.
    assert printed("\x9b2J\u202e".encode()) == "\\x9b2J\\u202e"


def test_colours_stay_wherever_they_are_cut() -> None:
    data = b"\x1b[32mOK\x1b[0m"
    assert printed(*(data[at : at + 1] for at in range(len(data)))) == data.decode()


def test_letters_may_be_cut_anywhere() -> None:
    data = "grüße 日本".encode()
    assert printed(*(data[at : at + 1] for at in range(len(data)))) == "grüße 日本"
    assert printed(b"\xff\x1b", b"c") == "\\xff\\x1bc"


class Stream(io.TextIOWrapper):
    def __init__(self, terminal: bool) -> None:
        super().__init__(io.BytesIO())
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def test_only_a_terminal_is_guarded() -> None:
    for terminal, said in ((False, b"\x1bc"), (True, b"\\x1bc")):
        stream = Stream(terminal)
        guarded(stream).write(b"\x1bc")
        assert cast(io.BytesIO, stream.buffer).getvalue() == said


def test_memory_has_an_end() -> None:
    kept = Kept(5)
    for piece in (b"abc", b"def", b"ghi"):
        assert kept.write(piece) == 3
    assert (bytes(kept.data), kept.left_out_bytes) == (b"abcde", 4)
