"""Calls that strace splits into halves give the same events as whole calls."""

from __future__ import annotations

import random
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from quickstart.trace.events import Born, read_events
from tests.unit.stracelog import log

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


@settings(max_examples=150)
@given(st.lists(st.tuples(PIDS, CALLS), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_splitting_calls_changes_no_event(rows: list[tuple[int, str]], choose: random.Random) -> None:
    rows = [(1, 'access("/first", F_OK) = 0'), *rows]
    whole = [f"{pid} {text}" for pid, text in rows]
    assert without_lines(log(*split(rows, choose))) == without_lines(log(*whole))


# ---------------------------------------------------------------- when a fork is logged

STEPS = st.sampled_from(["open", "cd", "cd up", "root", "fork", "fork"])


def steps_of(script: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Rows (PID, call) of processes that do what ``script`` says; a step of a PID that is not there yet is its parent's."""
    rows = [(1, 'access("/first", F_OK) = 0')]
    alive = 1
    for number, (who, step) in enumerate(script):
        pid = who % alive + 1
        if step == "fork":
            alive += 1
            rows.append((pid, f"clone(child_stack=NULL, flags=SIGCHLD) = {alive}"))
        else:
            calls = {
                "open": f'open("file{number}", O_RDONLY) = 3</x>',
                "cd": f'chdir("sub{number}") = 0',
                "cd up": f'chdir("/top{number}") = 0',
                "root": f'chroot("/jail{number}") = 0',
            }
            rows.append((pid, calls[step]))
    return rows


def with_late_forks(rows: list[tuple[int, str]], choose: random.Random) -> list[tuple[int, str]]:
    """The rows with each fork moved behind some first rows of the child, never behind the parent's next one."""
    out: list[tuple[int, str]] = []
    waiting: list[tuple[int, str]] = []
    for pid, text in rows:
        for fork in [each for each in waiting if each[0] == pid or choose.random() < 0.3]:
            waiting.remove(fork)
            out.append(fork)
        if text.startswith("clone"):
            waiting.append((pid, text))
        else:
            out.append((pid, text))
    return out + waiting


def done_by_each(rows: list[tuple[int, str]]) -> dict[int, list[object]]:
    """What each process did, by its PID, with its parent's PID first."""
    pids: dict[int, int] = {0: 0}
    found: dict[int, list[object]] = {}
    for item in read_events(log(*(f"{pid} {text}" for pid, text in rows))):
        if isinstance(item, Born):
            pids[item.number] = item.pid
            found[item.pid] = [pids[item.parent]]
        else:
            found[pids[item.number]].append(item[2:])
    return found


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 9), STEPS), min_size=1, max_size=25), st.randoms(use_true_random=False)
)
def test_whenever_a_fork_is_logged_each_process_did_the_same(
    script: list[tuple[int, str]], choose: random.Random
) -> None:
    rows = steps_of(script)
    assert done_by_each(with_late_forks(rows, choose)) == done_by_each(rows)
