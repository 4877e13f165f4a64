"""Run a program in the foreground, as a shell would, without giving the program any of our descriptors. The docstring
of the module ``relay`` explains why the program does not get them.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import termios
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from quickstart.host import door
from quickstart.host.relay import CHUNK_BYTES, PipeEnds

# The terminal's VEOF (termios(3)).
_END_OF_INPUT = b"\x04"
_TURN_S = 0.1
_WINSIZE_BYTES = 8


@dataclass(kw_only=True)
class _Streams:
    """The descriptors between which data is copied. The keys of ``outputs`` are the descriptors from which we read the
    program's output. The value of a key is our own descriptor to which we write this output. The data from our stdin
    goes to the descriptor ``into``.

    ``theirs`` are the program's stdin, stdout and stderr. The function ``started`` closes our copies of these
    descriptors once the program runs.
    """

    terminal: bool
    into: int
    theirs: tuple[int, int, int]
    outputs: dict[int, int]
    started: Callable[[], None]
    end_input: Callable[[], None]
    pending: bytearray = field(default_factory=bytearray)
    reading: bool = True
    ended: bool = False


def run(command: Callable[[bool], Sequence[str | Path]], *, env: Mapping[str, str] | None = None) -> int:
    """Run a program, and copy data between our stdin, stdout and stderr and those of the program. Return the program's
    status. If a signal killed the program, return 128 plus the number of the signal.

    The function ``command`` returns the program's argv. Its argument is True when our stdin is a terminal. In this
    case, the program's stdin is also a terminal, which the program must make its controlling terminal. There is no time
    limit, because the user ends the program. When the program has ended, our terminal gets its former settings back.
    """
    with ExitStack() as stack:
        streams = _streams(stack)
        stdin, output, errors = streams.theirs
        process = stack.enter_context(
            door.background(command(streams.terminal), stdin=stdin, output=output, errors=errors, env=env)
        )
        streams.started()
        for each in streams.outputs:
            # The program may open its end of a pipe again and read the data itself, so our reads must not
            # block.
            os.set_blocking(each, False)
        # The output from before the program's end is here already.
        while streams.outputs or process.poll() is None:
            _pass(streams)
        status = process.wait()
    return status if status >= 0 else 128 - status


def _streams(stack: ExitStack) -> _Streams:
    if not os.isatty(0):
        return _pipes(stack, PipeEnds(stack))
    master, slave = stack.enter_context(_terminal())
    # The output of the program's terminal goes to a terminal that the user sees.
    shown = next((fd for fd in (1, 2) if os.isatty(fd)), 0)
    pipes = {fd: PipeEnds(stack) for fd in (1, 2) if not os.isatty(fd)}
    ends = {fd: pipe.writing for fd, pipe in pipes.items()}

    def started() -> None:
        os.close(slave)
        for pipe in pipes.values():
            pipe.close(pipe.writing)

    def end_input() -> None:
        with suppress(OSError):
            os.write(master, _END_OF_INPUT)

    return _Streams(
        terminal=True,
        into=master,
        theirs=(slave, ends.get(1) or slave, ends.get(2) or slave),
        outputs={master: shown} | {pipe.reading: fd for fd, pipe in pipes.items()},
        started=started,
        end_input=end_input,
    )


def _pipes(stack: ExitStack, into: PipeEnds) -> _Streams:
    out, errors = PipeEnds(stack), PipeEnds(stack)
    os.set_blocking(into.writing, False)

    def started() -> None:
        into.close(into.reading)
        out.close(out.writing)
        errors.close(errors.writing)

    return _Streams(
        terminal=False,
        into=into.writing,
        theirs=(into.reading, out.writing, errors.writing),
        outputs={out.reading: 1, errors.reading: 2},
        started=started,
        end_input=lambda: into.close(into.writing),
    )


@contextmanager
def _terminal() -> Iterator[tuple[int, int]]:
    """A context with the descriptors (master, slave) of a pseudo-terminal (pty(7)). The pseudo-terminal has the modes
    and the size of our terminal. The caller closes the slave once the program is started.

    While the context lasts, our terminal is in raw mode.
    """
    modes = termios.tcgetattr(0)
    master, slave = os.openpty()
    before = signal.getsignal(signal.SIGWINCH)
    try:
        os.set_blocking(master, False)
        termios.tcsetattr(slave, termios.TCSANOW, modes)
        _copy_size(master)
        signal.signal(signal.SIGWINCH, lambda *_: _copy_size(master))
        tty.setraw(0, termios.TCSADRAIN)
        yield master, slave
    finally:
        signal.signal(signal.SIGWINCH, before)
        os.close(master)
        # The terminal may be gone (SIGHUP).
        with suppress(termios.error):
            termios.tcsetattr(0, termios.TCSADRAIN, modes)


def _copy_size(master: int) -> None:
    with suppress(OSError):
        size = fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(_WINSIZE_BYTES))
        fcntl.ioctl(master, termios.TIOCSWINSZ, size)


def _pass(streams: _Streams) -> None:
    """Wait up to _TURN_S seconds for data. Then copy at most one piece of data from each descriptor that has data."""
    wanted = [0] if streams.reading and len(streams.pending) < CHUNK_BYTES else []
    readable, writable, _ = select.select(
        [*streams.outputs, *wanted], [streams.into] if streams.pending else [], [], _TURN_S
    )
    if writable:
        _give(streams)
    for each in [fd for fd in streams.outputs if fd in readable]:
        _take(streams, each)
    if 0 in readable:
        data = os.read(0, CHUNK_BYTES)
        streams.pending += data
        streams.reading = bool(data)
    if not (streams.reading or streams.pending or streams.ended):
        streams.ended = True
        streams.end_input()


def _give(streams: _Streams) -> None:
    try:
        del streams.pending[: os.write(streams.into, streams.pending)]
    except BlockingIOError:
        pass
    except OSError:
        # Nobody reads this data any more.
        streams.pending.clear()
        streams.reading = False


def _take(streams: _Streams, fd: int) -> None:
    try:
        data = os.read(fd, CHUNK_BYTES)
    except BlockingIOError:
        return
    except OSError:
        # A terminal's master answers so when no slave is open (pty(7)).
        data = b""
    if not data:
        del streams.outputs[fd]
    while data:
        data = data[os.write(streams.outputs[fd], data) :]
