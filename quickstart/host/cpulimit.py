"""Limit the CPU time that reading a stranger's image or artefact may take.

The functions that read such files also limit the sizes of what they read. The limit of CPU time is for an input that is
small but slow to read, for example an input of some kilobytes. For comparison, reading the units of an ordinary image
takes half a second.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import ContextDecorator
from types import FrameType
from typing import Self

from quickstart.errors import BadInputError

LIMIT_S = 10.0
# For all files of an initramfs. Unpacking and reading 100 MB takes two seconds.
INSIDE_LIMIT_S = 30.0
# For a guest's own trace. Reading a million lines takes ten seconds.
TRACE_LIMIT_S = 30.0
# For an image and the log of a boot, from which the start set is computed. For a start set of some thousand
# files, this takes some seconds, and several times as long on a slow host.
START_SET_LIMIT_S = 60.0
# For two results.json. Our largest ones take a second.
RESULTS_LIMIT_S = 30.0
# For one results.json and its report, and the additional time for each combination of application, size,
# storage and clock. A figure takes about a second.
REPORT_LIMIT_S, REPORT_PLACE_LIMIT_S = 60.0, 2.0
_HINT = "look for files with very many or very long lines, and for `**` in many globs of a profile"
RESULTS_HINT = "look for very many cells, runs, files or words in it"
# For an outer block whose time is over.
_SOON_S = 0.001
_Handler = Callable[[int, FrameType | None], object] | int | None


class TooSlowError(BadInputError):
    """Reading an input takes more CPU time than the limit for this input. After this error, it is not worthwhile to
    read other parts of the same input.
    """


def cpu_limit(what: str, limit_s: float = LIMIT_S, hint: str = _HINT) -> _Limit:
    """A context manager that raises TooSlowError in its ``with`` block when this process has used ``limit_s`` seconds
    of CPU time since the beginning of the block. When the block continues after the error, the context manager raises
    the error again after every further ``limit_s`` seconds. ``what`` names the input in the message.

    The signal SIGPROF of setitimer(2) interrupts the block, even while a regular expression is evaluated. When one such
    block is inside another such block, both limits apply, and the time of the inner block also counts for the outer
    block. Outside of the main thread, the context manager does nothing, because Python handles signals only in the main
    thread.

    The context manager also works as a decorator. A decorated function that reads untrusted input has the same limit in
    every verb that calls the function.
    """
    return _Limit(what, limit_s, hint)


class _Limit(ContextDecorator):
    """The context of `cpu_limit`. The context is a class and not a generator function. With a generator, a signal
    between the end of the block and the rest of the generator would leave the timer running.
    """

    def __init__(self, what: str, limit_s: float, hint: str) -> None:
        self._what, self._limit_s, self._hint = what, limit_s, hint
        self._is_set = False
        self._former: _Handler = None
        # The remaining time of the outer block's timer when this block began, and the interval of that
        # timer. 0 without an outer block.
        self._outer_s, self._outer_again_s, self._began_s = 0.0, 0.0, 0.0

    def _recreate_cm(self) -> Self:
        # For each call of a decorated function, which may call itself.
        return type(self)(self._what, self._limit_s, self._hint)

    def __enter__(self) -> None:
        outer_s, again_s = signal.getitimer(signal.ITIMER_PROF)
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or 0 < outer_s <= self._limit_s:
            return
        self._is_set = True
        self._outer_s, self._outer_again_s, self._began_s = outer_s, again_s, time.process_time()
        self._former = signal.signal(signal.SIGPROF, self._stop)
        signal.setitimer(signal.ITIMER_PROF, self._limit_s, self._limit_s)

    def __exit__(self, *error: object) -> None:
        if self._is_set:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, self._former)
            if self._outer_s:
                left_s = self._outer_s - (time.process_time() - self._began_s)
                signal.setitimer(signal.ITIMER_PROF, max(left_s, _SOON_S), self._outer_again_s)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code is _Limit.__exit__.__code__ and frame.f_locals.get("self") is self:
                # The block has ended, and nothing is left to be stopped.
                return
            frame = frame.f_back
        raise TooSlowError(
            f"reading {self._what} takes more than {self._limit_s:g} s of CPU time", hint=self._hint
        )
