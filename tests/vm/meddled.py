"""A build like the command's that kills itself, or shrinks a file system to what it holds, when a step begins.

    python -m tests.vm.meddled OUT kill|kill-at-work|fill PLACE [STEP DELAY_S [IMAGE PROFILE]]

``STEP`` is a step's name (progress.Progress), or "after " and its name for its end. Without a step, the build
is not disturbed. With ``IMAGE``, it is a build of this disk (`build --image`). The store is $QUICKSTART_CACHE.
`fill` remounts the tmpfs at ``PLACE``. On stdout, as JSON lines: each step, and before a kill the processes below
this one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from quickstart.cli.output import Verb, run_verb
from quickstart.engines import boot as pipeline
from quickstart.engines.image import ImageOptions, build_image
from quickstart.host.progress import Quiet
from quickstart.profile import load_profile
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root
from tests.vm.conftest import children


class Meddler(Quiet):
    """A progress.Progress that calls ``act`` some time after a step's begin or end; at once in the build's own thread."""

    def __init__(self, step: str, delay_s: float, act: Callable[[], None]) -> None:
        self._step = step
        self._delay_s = delay_s
        self._act = act

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        self._at(name)
        yield
        self._at(f"after {name}")

    def note(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")

    def _at(self, moment: str) -> None:
        say({"step": moment})
        if moment != self._step:
            return
        if self._delay_s == 0:
            self._act()
        else:
            timer = threading.Timer(self._delay_s, self._act)
            timer.daemon = True
            timer.start()


def say(what: dict[str, object]) -> None:
    sys.stdout.write(f"{json.dumps(what)}\n")
    sys.stdout.flush()


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``."""
    found = children(pid)
    return found + [each for child in found for each in descendants(child)]


def kill(at_work: bool = False) -> None:
    """With ``at_work``, when a program runs: between two programs of a step there is none for a moment."""
    last_s = time.monotonic() + 10
    while at_work and not descendants(os.getpid()) and time.monotonic() < last_s:
        time.sleep(0.001)
    say({"below": descendants(os.getpid())})
    os.kill(os.getpid(), signal.SIGKILL)


def fill(place: Path) -> None:
    """Leave no byte free on the tmpfs at ``place``, which others write to meanwhile."""
    for _ in range(100):
        status = os.statvfs(place)
        used_bytes = (status.f_blocks - status.f_bfree) * status.f_frsize
        done = subprocess.run(
            ["mount", "-o", f"remount,size={used_bytes}", place], stderr=subprocess.DEVNULL, timeout=60
        )
        # It grew in between.
        if done.returncode == 0:
            say({"full": os.statvfs(place).f_bavail})
            return
    os._exit(99)


def main(
    out: str,
    action: str,
    place: str,
    step: str = "",
    delay_s: str = "0",
    image: str = "",
    profile: str = "nginx",
) -> int:
    act = partial(fill, Path(place)) if action == "fill" else partial(kill, action == "kill-at-work")
    meddler = Meddler(step, float(delay_s), act)

    def work(verb: Verb) -> int:
        with Store(default_root(), meddler.note) as store:
            context = Context(store, meddler)
            if image:
                of_image = ImageOptions(image=Path(image), out=Path(out), force=True)
                build_image(load_profile(profile), of_image, context)
            else:
                options = pipeline.BuildOptions(out=Path(out), force=True)
                pipeline.build(load_profile(profile), options, context)
        return 0

    return run_verb("build", False, work)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
