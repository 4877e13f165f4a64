"""The limit of CPU time stops what the limits of sizes let through."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable
from typing import NoReturn

import pytest

from quickstart.errors import BadInputError
from quickstart.host.cpulimit import cpu_limit
from quickstart.inspect.unit import stack
from quickstart.pack import startset

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


def test_the_outer_limit_holds() -> None:
    with (
        pytest.raises(BadInputError, match="reading the tar"),
        cpu_limit("the tar", SHORT_S),
        cpu_limit("the image"),
    ):
        forever()


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
