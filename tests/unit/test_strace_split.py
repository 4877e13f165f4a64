"""However strace cuts its calls into halves, the events are the same."""

from __future__ import annotations

import random
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from quickstart.trace.events import Born, read_events
from tests.unit.test_strace import log

NAMES = st.text(st.sampled_from('ab./"\\> é\n(=,<'), min_size=1, max_size=8)
PIDS = st.integers(1, 4)


def quoted(name: str) -> str:
    """As strace prints a string or, in angle brackets, a path."""
    plain = {"\\": r"\\", '"': r"\"", "\n": r"\n", "<": r"\74", ">": r"\76"}
    return "".join(
        plain.get(c) or (c if c.isascii() else "".join(rf"\{b:o}" for b in c.encode())) for c in name
    )


def opened(name: str, directory: str) -> str:
    return f'openat(AT_FDCWD</{quoted(directory)}>, "{quoted(name)}", O_RDONLY) = 3</{quoted(name)}>'


def looked_up(name: str) -> str:
    return f'access("{quoted(name)}", F_OK) = -1 ENOENT (No such file or directory)'


CALLS = st.one_of(
    st.builds(opened, NAMES, NAMES),
    st.builds(looked_up, NAMES),
    st.builds('rename("{}", "{}") = 0'.format, NAMES.map(quoted), NAMES.map(quoted)),
    st.builds('chdir("{}") = 0'.format, NAMES.map(quoted)),
    st.builds('execve("{}", ["x"], 0x1 /* 2 vars */) = 0'.format, NAMES.map(quoted)),
    st.builds("getdents64(4</{}>, 0x55 /* 3 entries */, 32768) = 80".format, NAMES.map(quoted)),
    st.just("fork() = 9"),
    st.just("+++ exited with 0 +++"),
)


def without_lines(lines: Iterable[bytes]) -> list[tuple[object, ...]]:
    """Every item but for its line."""
    return [item if isinstance(item, Born) else item[1:] for item in read_events(lines)]


def split(rows: list[tuple[int, str]], choose: random.Random) -> list[str]:
    """The rows with calls cut in two anywhere in their arguments; what other PIDs do may come between the halves."""
    out: list[str] = []
    for pid, text in rows:
        begin, end = text.find("(") + 1, text.rfind(") = ")
        if text.startswith("+++") or choose.random() < 0.3:
            out.append(f"{pid} {text}")
            continue
        at = choose.randint(begin, end)
        # The second half is where the call was; the first may come earlier, but not before the PID's last row.
        earliest = max((n for n, row in enumerate(out) if row.startswith(f"{pid} ")), default=-1) + 1
        out.insert(choose.randint(earliest, len(out)), f"{pid} {text[:at]} <unfinished ...>")
        out.append(f"{pid} <... {text[: begin - 1]} resumed>{text[at:]}")
    return out


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(PIDS, CALLS), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_splitting_calls_changes_no_event(rows: list[tuple[int, str]], choose: random.Random) -> None:
    rows = [(1, 'access("/first", F_OK) = 0'), *rows]
    whole = [f"{pid} {text}" for pid, text in rows]
    assert without_lines(log(*split(rows, choose))) == without_lines(log(*whole))
