"""Find what has changed between two measurements: the files that the machines boot, and the kernel's options. A change
may explain why the times of the two measurements differ (docs/users/compare.md). This module has no side effects.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from quickstart.measure.results import Booted, Cell, Results, Sample
from quickstart.measure.statistics import median
from quickstart.model import MIB
from quickstart.report.comparable import booted

# Kind of a fact → the phases that depend on it. The kernel unpacks the archive before it executes /init.
_UNPACKED = ("fetch", "before kernel", "kernel", "initramfs", "init", "integrity")
_KERNELS = ("before kernel", "kernel")
_APPLICATIONS = ("application start", "ready")
PHASES_OF: Mapping[str, tuple[str, ...]] = {
    "initramfs": _UNPACKED,
    "command_line": _KERNELS,
    "kernel": ("fetch", *_KERNELS, "modules"),
    "unit": ("systemd", "network", *_APPLICATIONS),
    "unit_line": _APPLICATIONS,
    "package": ("initramfs", "systemd", *_APPLICATIONS),
    "reads": ("initramfs", "systemd", "root mount", "enter root", *_APPLICATIONS),
}
# Files and units below these limits are counted, but not listed, because they do not explain half a second.
_SMALL_BYTES = 4096
_SHORT_NS = 20_000_000
_FEW_REQUESTS = 10
_FEW_BYTES = 256 * 1024


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One fact that differs between the two compared results. ``kind`` is the kind of the fact, such as ``kernel`` or
    ``package``, and is a key of PHASES_OF. ``change`` is ``new``, ``gone`` or ``changed``.

    ``a`` is the value of the fact in the first result, and ``b`` is the value in the second result. A value is None
    when the result does not have the fact. A number is a number of bytes, nanoseconds or requests. ``text`` describes
    the change in words.
    """

    kind: str
    change: str
    name: str
    a: int | str | None
    b: int | str | None
    text: str


Runs = Sequence[Sample]
T = TypeVar("T", int, str)


def causes(
    first: Results, second: Results, cells: tuple[Cell, Cell], runs: tuple[Runs, Runs]
) -> tuple[Cause, ...]:
    """The changes for one cell of the bench, ordered by kind. Within a kind, the largest change comes first. A cell
    is a combination such as nginx, `quickstart`, `ebs-cold`, `virtual`. ``cells`` has the cell of each of the two
    results, and ``runs`` has the cell's runs in each of the two results.
    """
    before, after = booted(first, cells[0]), booted(second, cells[1])
    ready = tuple([each for each in side if not each.censored] for side in runs)
    found: list[Cause] = []
    if before is not None and after is not None:
        found += _initramfs(first, before, second, after) or _form(before, after, ready)
        found += _command_line(before, after, cells[0].command_line)
        found += _kernel(before, after)
    found += _units(*ready)
    if before is not None and after is not None:
        found += _lines(before, after)
        found += _packages(first, before, second, after)
    found += _reads(*ready)
    return tuple(found)


def _initramfs(first: Results, before: Booted, second: Results, after: Booted) -> list[Cause]:
    return list(_files(first, before, second, after)) if before.initramfs != after.initramfs else []


def _form(before: Booted, after: Booted, ready: Sequence[Sequence[Sample]]) -> Iterator[Cause]:
    """The change between two initramfs that have the same files in different forms. For example, only the second
    initramfs is compressed.
    """
    if before.initramfs != after.initramfs and all(ready):
        old, new = (max(each.initramfs_bytes for each in side) for side in ready)
        if abs(new - old) > _SMALL_BYTES:
            yield _cause("initramfs", "the same files, as transferred", old, new, mib)


def _files(first: Results, before: Booted, second: Results, after: Booted) -> Iterator[Cause]:
    old = first.circumstances.facts.contents.get(before.initramfs)
    new = second.circumstances.facts.contents.get(after.initramfs)
    if old is None or new is None:
        yield Cause(
            kind="initramfs",
            change="changed",
            name="",
            a=None,
            b=None,
            text="another archive, whose files are not recorded",
        )
        return
    changed = sorted(
        (name for name in {**old, **new} if old.get(name) != new.get(name)),
        key=lambda name: (-abs(new.get(name, 0) - old.get(name, 0)), name),
    )
    small = {name for name in changed if max(old.get(name, 0), new.get(name, 0)) <= _SMALL_BYTES}
    for name in changed:
        if name not in small:
            yield _cause("initramfs", name, old.get(name), new.get(name), mib)
    if small:
        a, b = (sum(each.get(name, 0) for name in small) for each in (old, new))
        text = f"{len(small)} files of at most {_SMALL_BYTES} bytes, {b - a:+} bytes"
        yield Cause(kind="initramfs", change="changed", name="", a=a, b=b, text=text)


def _command_line(before: Booted, after: Booted, line: str) -> Iterator[Cause]:
    old, new = (Counter(each.command_lines.get(line, "").split()) for each in (before, after))
    lost, added = list((old - new).elements()), list((new - old).elements())
    # Another image has another volume, which is no option.
    if before.image != after.image:
        lost, added = ([w for w in words if not w.startswith("root=UUID=")] for words in (lost, added))
    # The places in ``added`` of the words with each key.
    waiting: dict[str, deque[int]] = {}
    for at, word in enumerate(added):
        waiting.setdefault(_key(word), deque()).append(at)
    taken: set[int] = set()
    for word in lost:
        key = _key(word)
        if not waiting.get(key):
            yield Cause(
                kind="command_line", change="gone", name=key, a=word, b=None, text=f"option {word} is lost"
            )
            continue
        taken.add(at := waiting[key].popleft())
        yield Cause(
            kind="command_line",
            change="changed",
            name=key,
            a=word,
            b=added[at],
            text=f"option {word} is {added[at]} now",
        )
    for word in [word for at, word in enumerate(added) if at not in taken]:
        yield Cause(
            kind="command_line", change="new", name=_key(word), a=None, b=word, text=f"option {word} is new"
        )


def _key(word: str) -> str:
    return word.partition("=")[0]


def _kernel(before: Booted, after: Booted) -> Iterator[Cause]:
    if before.kernel != after.kernel:
        text = f"{before.kernel} is {after.kernel} now"
        yield Cause(kind="kernel", change="changed", name="", a=before.kernel, b=after.kernel, text=text)


def _units(before: Runs, after: Runs) -> Iterator[Cause]:
    """The changes of the median time that a systemd unit takes to start, for each unit. In a run without the unit, the
    unit's time is 0. Small changes are left out.
    """
    if not before or not after:
        return
    found: list[tuple[int, Cause]] = []
    sides = _unit_times(before), _unit_times(after)
    for name in {**sides[0], **sides[1]}:
        times = [side.get(name, []) for side in sides]
        old, new = (_median_of(each, len(runs)) for each, runs in zip(times, (before, after), strict=True))
        if abs(new - old) >= _SHORT_NS:
            cause = _cause("unit", name, old if times[0] else None, new if times[1] else None, seconds)
            found.append((abs(new - old), cause))
    # New and missing units come before units that took longer, because on one CPU, the durations depend on the order
    # of the units.
    order = sorted(found, key=lambda each: (each[1].change == "changed", -each[0], each[1].name))
    yield from (cause for _, cause in order)


def _unit_times(runs: Runs) -> Mapping[str, list[int]]:
    """The start times of each unit, one time for each run that has the unit. If a run has a unit several times, the sum
    of the times counts.
    """
    found: dict[str, list[int]] = {}
    for run in runs:
        sums: Counter[str] = Counter()
        for unit in run.units:
            sums[unit.name] += unit.end_ns - unit.begin_ns
        for name, time_ns in sums.items():
            found.setdefault(name, []).append(time_ns)
    return found


def _median_of(times: Sequence[int], runs: int) -> int:
    """The median of the times of ``runs`` runs. ``times`` has the times of some of the runs. The times of the other
    runs are 0.
    """
    below = sorted(each for each in times if each < 0)
    above = sorted(each for each in times if each >= 0)
    zeros = runs - len(times)

    def at(place: int) -> int:
        if place < len(below):
            return below[place]
        return above[place - len(below) - zeros] if place >= len(below) + zeros else 0

    return (at((runs - 1) // 2) + at(runs // 2)) // 2


def _lines(before: Booted, after: Booted) -> Iterator[Cause]:
    old, new = Counter(before.unit_lines), Counter(after.unit_lines)
    for change, lines in (("gone", old - new), ("new", new - old)):
        for line in lines.elements():
            a, b = (line, None) if change == "gone" else (None, line)
            yield Cause(
                kind="unit_line",
                change=change,
                name=before.unit,
                a=a,
                b=b,
                text=f"{after.unit}: {line} is {change}",
            )


def _packages(first: Results, before: Booted, second: Results, after: Booted) -> Iterator[Cause]:
    if before.image == after.image:
        return
    old = first.circumstances.facts.packages.get(before.image, {})
    new = second.circumstances.facts.packages.get(after.image, {})
    for name in sorted({**old, **new}):
        if old.get(name) != new.get(name):
            yield _cause("package", name, old.get(name), new.get(name), str)


def _reads(before: Runs, after: Runs) -> Iterator[Cause]:
    """The changes of two numbers: the read requests to the root volume before ready, and the bytes that these requests
    read. A change is reported only when every run of one result has a greater number than every run of the other
    result.
    """
    if not before or not after:
        return
    requests = [[run.guest.requests for run in side] for side in (before, after)]
    sizes = [[run.guest.read_bytes for run in side] for side in (before, after)]
    for name, (old, new), least, say in (
        ("requests", requests, _FEW_REQUESTS, str),
        ("bytes", sizes, _FEW_BYTES, mib),
    ):
        a, b = median(old), median(new)
        if abs(b - a) >= least and (min(new) > max(old) or max(new) < min(old)):
            text = f"root {name} read before ready: {say(a)}, {say(b)} now"
            yield Cause(kind="reads", change="changed", name=name, a=a, b=b, text=text)


def _cause(kind: str, name: str, a: T | None, b: T | None, say: Callable[[T], str]) -> Cause:
    """The change of the fact ``name`` from ``a`` to ``b``. At least one of these values is not None."""
    if a is not None and b is not None:
        return Cause(kind=kind, change="changed", name=name, a=a, b=b, text=f"{name}: {say(a)}, {say(b)} now")
    change, value = ("new", b) if a is None else ("gone", a)
    return Cause(
        kind=kind,
        change=change,
        name=name,
        a=a,
        b=b,
        text=f"{name} is {change}{'' if value is None else f', {say(value)}'}",
    )


def mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.2f} MiB" if size_bytes >= MIB // 10 else f"{size_bytes} bytes"


def seconds(ns: int) -> str:
    return f"{ns / 1e9:.2f} s"
