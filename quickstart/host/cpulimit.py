"""Limit the CPU time that reading a stranger's image or artefact may take.

Our readers bound the sizes of what they read. This limit is for what such bounds miss: an input of some kilobytes
that is slow to read. Reading the units of an ordinary image takes half a second.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from quickstart.errors import BadInputError

LIMIT_S = 10.0
# Of all files of an initramfs: unpacking and reading 100 MB takes two seconds.
INSIDE_LIMIT_S = 30.0
# Of an image and the log of a boot, of which the start set is computed. An application with a start set of some thousand
# files takes some seconds, and several times as long on a slow host.
START_SET_LIMIT_S = 60.0


@contextmanager
def cpu_limit(what: str, limit_s: float = LIMIT_S) -> Iterator[None]:
    """Raise BadInputError in the block when this process has used ``limit_s`` of CPU time since its beginning, and again
    after each further ``limit_s``, so that a block that goes on after the error is stopped, too. ``what`` names the
    input in the message.

    The signal SIGPROF of setitimer(2) interrupts the block, also in the middle of a regular expression. Inside of
    another such block, and outside of the main thread, where Python handles no signals, the function does nothing.

    It is a decorator, too: a function that reads what strangers give has its limit from whatever verb it is called.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getitimer(signal.ITIMER_PROF)[0] > 0:
        yield
        return

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise BadInputError(
            f"reading {what} takes more than {limit_s:g} s of CPU time",
            hint="look for files with very many or very long lines, and for `**` in many globs of a profile",
        )

    former = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, limit_s, limit_s)
    try:
        yield
    finally:
        try:
            signal.setitimer(signal.ITIMER_PROF, 0)
        finally:
            # The signal may come before the line above; the next one is seconds away.
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, former)
