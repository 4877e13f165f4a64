"""The limit of CPU time stops what the limits of sizes let through."""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

import pytest

from quickstart.errors import BadInputError
from quickstart.host.cpulimit import TooSlowError, cpu_limit
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import stack
from quickstart.newprofile import make
from quickstart.pack import startset
from quickstart.profile import load_profile

SHORT_S = 0.02


class AskedError(Exception):
    """Somebody has asked the image for something; the argument says whether the timer ran."""


def forever() -> None:
    while True:
        pass


def is_set() -> bool:
    return signal.getitimer(signal.ITIMER_PROF)[0] > 0


def test_a_loop_is_stopped() -> None:
    message = r"reading the image takes more than 0\.02 s of CPU time"
    with pytest.raises(BadInputError, match=message), cpu_limit("the image", SHORT_S):
        forever()
    assert not is_set()


def test_a_regular_expression_is_stopped() -> None:
    with pytest.raises(BadInputError), cpu_limit("the image", SHORT_S):
        # It would take years.
        re.search(r"(?:a|aa)+b", "a" * 200)


def test_whoever_goes_on_is_stopped_again() -> None:
    errors = 0
    with pytest.raises(BadInputError), cpu_limit("the image", SHORT_S):
        try:
            forever()
        except BadInputError:
            errors += 1
        forever()
    assert errors == 1


def test_what_ends_in_time_leaves_no_timer() -> None:
    before = signal.getsignal(signal.SIGPROF)
    with cpu_limit("the image"):
        assert is_set()
    assert not is_set()
    assert signal.getsignal(signal.SIGPROF) is before


def test_a_signal_that_comes_when_the_block_has_ended_leaves_no_timer() -> None:
    """Between the end of the block and the call that stops the timer."""
    before = signal.getsignal(signal.SIGPROF)
    signals = 0

    def at_its_end(frame: FrameType, event: str, arg: object) -> None:
        nonlocal signals
        if event == "call" and frame.f_code.co_name == "__exit__":
            sys.setprofile(None)
            signals += 1
            signal.raise_signal(signal.SIGPROF)

    error: BadInputError | None = None
    try:
        with cpu_limit("the image"):
            sys.setprofile(at_its_end)
    except BadInputError as raised:
        # As a caller that keeps it, and with it the frames.
        error = raised
    found = is_set(), signal.getsignal(signal.SIGPROF)
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)
    assert (signals, error) == (1, None)
    assert found == (False, before)


def test_a_function_that_calls_itself_keeps_its_limit() -> None:
    @cpu_limit("the image")
    def deep(left: int) -> bool:
        return (not left or deep(left - 1)) and is_set()

    assert deep(3)
    assert not is_set()


def test_the_outer_limit_holds() -> None:
    with (
        pytest.raises(BadInputError, match="reading the tar"),
        cpu_limit("the tar", SHORT_S),
        cpu_limit("the image"),
    ):
        forever()


def test_the_inner_limit_holds_too() -> None:
    with cpu_limit("the tar"):
        with pytest.raises(TooSlowError, match="reading the image"), cpu_limit("the image", SHORT_S):
            forever()
        # And the outer one goes on with what is left of it.
        assert 9 < signal.getitimer(signal.ITIMER_PROF)[0] < 10
    assert not is_set()


def test_the_time_of_inner_blocks_is_the_outer_one_s() -> None:
    """The kernel counts in ticks, of which a short block on a busy host may have one too many or too few."""
    inner_s = 10 * SHORT_S
    with cpu_limit("the tar"):
        for _ in range(3):
            with suppress(TooSlowError), cpu_limit("the image", inner_s):
                forever()
        assert signal.getitimer(signal.ITIMER_PROF)[0] < 10 - 1.5 * inner_s


def test_what_is_too_slow_is_looked_at_no_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def slow(name: str) -> NoReturn:
        asked.append(name)
        raise TooSlowError("reading the image takes more than 10 s of CPU time")

    for name in ("read_stack", "check_includes", "network_service", "root_mount"):
        monkeypatch.setattr(make, name, lambda *_, name=name: slow(name))
    found = make.refusals(ImageRoot(tmp_path), load_profile("nginx"), lambda unit: None)
    assert (len(found), asked) == (1, ["read_stack"])


def test_another_thread_has_no_limit() -> None:
    seen: list[bool] = []

    def work() -> None:
        with cpu_limit("the image", SHORT_S):
            seen.append(is_set())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]


def test_a_function_has_its_limit_at_each_call() -> None:
    limited = cpu_limit("the image", SHORT_S)(forever)
    for _ in range(2):
        with pytest.raises(BadInputError):
            limited()
    assert not is_set()


@pytest.mark.parametrize(
    ("reader", "words"), [(startset.compute, 3), (startset.check_includes, 2), (stack.read_stack, 2)]
)
def test_what_reads_an_image_has_a_limit_whoever_calls_it(reader: Callable[..., object], words: int) -> None:
    """`trace` and `profile check` called them without one."""

    class Image:
        """Whatever is asked of it, the answer is whether the timer runs."""

        def __getattr__(self, name: str) -> NoReturn:
            raise AskedError(is_set())

        def __iter__(self) -> NoReturn:
            raise AskedError(is_set())

    with pytest.raises(AskedError) as asked:
        reader(*[Image()] * words)
    assert asked.value.args == (True,)
    assert not is_set()
