"""The user's side of a guest's serial line: bytes in both directions, the end of a script, Ctrl-]; and what
runs at the other end.
"""

from __future__ import annotations

import os
import socket
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from quickstart.cli.shells import places
from quickstart.cli.shells.terminal import Local, Outcome, connect, join, local, raw, skip_to, window_size
from quickstart.errors import GuestError


class Line:
    """A serial line with both ends here, and files for our stdin and stdout."""

    def __init__(self) -> None:
        self.ours, self.guest = socket.socketpair()
        self.guest.settimeout(5)
        self.stdin, self.typed = os.pipe()
        self.shown, self.stdout = os.pipe()

    def side(self, terminal: bool = False) -> Local:
        return Local(self.stdin, self.stdout, terminal)


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.ours.close()
    made.guest.close()
    for fd in (made.stdin, made.shown, made.stdout):
        os.close(fd)


def after(turns: int) -> Iterator[bool]:
    yield from [False] * turns
    while True:
        yield True


@pytest.mark.parametrize(
    ("script", "sent"),
    [(b"id\n", b"id\n\x04"), (b"id", b"id\n\x04"), (b"", b"\x04"), (b"a\x1db\n", b"a\x1db\n\x04")],
)
def test_a_script_goes_through_and_ends_with_ctrl_d(line: Line, script: bytes, sent: bytes) -> None:
    os.write(line.typed, script)
    os.close(line.typed)
    line.guest.send(b"answer")
    ended = after(5)
    assert join(line.ours, line.side(), lambda: next(ended), 60) is Outcome.ENDED
    assert line.guest.recv(100) == sent
    assert os.read(line.shown, 100) == b"answer"


def test_what_was_said_before_the_end_is_shown(line: Line) -> None:
    line.guest.send(b"x" * 20000)
    assert join(line.ours, line.side(), lambda: True, 60) is Outcome.ENDED
    assert os.read(line.shown, 30000) == b"x" * 20000


def test_ctrl_bracket_leaves_a_terminal(line: Line) -> None:
    os.write(line.typed, b"top\n\x1dmore")
    assert join(line.ours, line.side(terminal=True), lambda: False, 60) is Outcome.LEFT


def test_a_guest_that_ends(line: Line) -> None:
    line.guest.send(b"last")
    line.guest.close()
    assert join(line.ours, line.side(), lambda: False, 60) is Outcome.CLOSED
    assert os.read(line.shown, 100) == b"last"


def test_nothing_after_the_end_of_input(line: Line) -> None:
    os.close(line.typed)
    assert join(line.ours, line.side(), lambda: False, 0.01) is Outcome.LATE


@pytest.mark.parametrize("pieces", [[b"noise MARK\nrest"], [b"noise MA", b"RK", b"\nrest"]])
def test_skip_to_a_mark(line: Line, pieces: list[bytes]) -> None:
    for piece in pieces:
        line.guest.send(piece)
    found = skip_to(line.ours, b"MARK\n", 5)
    assert found is not None
    assert b"rest".startswith(found)


def test_a_mark_that_never_comes(line: Line) -> None:
    line.guest.send(b"MAR")
    assert skip_to(line.ours, b"MARK", 0.01) is None
    line.guest.close()
    assert skip_to(line.ours, b"MARK", 5) is None


def test_a_console_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(GuestError, match="console cannot be reached"):
        connect(tmp_path / "console")


def test_the_terminal_is_as_before_however_it_ends() -> None:
    ours, theirs = os.openpty()
    side = local(theirs, theirs)
    before = termios.tcgetattr(theirs)
    assert side.terminal
    with pytest.raises(KeyboardInterrupt), raw(side):
        # A key is a byte at once, Ctrl-C too.
        os.write(ours, b"\x03")
        assert os.read(theirs, 1) == b"\x03"
        raise KeyboardInterrupt
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


def test_the_size_of_a_terminal_and_of_none() -> None:
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (50, 132))
    assert window_size(local(theirs, theirs)) == (50, 132)
    assert window_size(Local(theirs, theirs, terminal=False)) == (24, 80)
    os.close(ours)
    os.close(theirs)


def test_a_script_is_read_as_a_file_without_echo() -> None:
    program = places.guest_program(False, (24, 80), "dumb")
    assert "set -- sh /dev/ttyS0\n" in program
    assert "-echo" in program


def test_a_terminal_gets_its_size_and_kind() -> None:
    program = places.guest_program(True, (50, 132), "xterm; rm -r /")
    assert "stty sane rows 50 cols 132 <&3" in program
    assert "TERM='xterm; rm -r /'" in program
    hook = places.initramfs_hook("mark", True, (50, 132), "xterm")
    assert "rows 50 cols 132" in hook
    assert hook.index("echo mark") < hook.index("setsid -c sh -i")


def test_the_hook_leaves_no_variable_in_init() -> None:
    hook = places.initramfs_hook("mark", False, (24, 80), "dumb")
    assert (hook.splitlines()[0], hook.splitlines()[-1]) == ("(", ")")
