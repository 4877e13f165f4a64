"""Compares an adopted process with the restarted one: all must agree except what parity.toml lists."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.vm.parity import Mount, mounts
from tests.vm.parity_adopted import Process, Taken

_LIST = Path(__file__).with_name("parity.toml")
_CREDENTIALS = "/run/credentials"
_LAID_OVER = "/fast/PATH at /PATH"
_EXECUTABLE = "/fast/PATH"
# PID 1's mount points before there is a systemd.
EARLY_MOUNTS = frozenset(
    (
        *(
            "/",
            "/dev",
            "/dev/pts",
            "/dev/shm",
            "/fast",
            "/proc",
            "/run",
            "/run/lock",
            "/sys",
            "/sys/fs/cgroup",
        ),
        "/sys/fs/pstore",
        "/sys/kernel/security",
    )
)


@dataclass(frozen=True)
class Difference:
    """An entry of parity.toml: what of a file below /proc/PID may differ, and why."""

    file: str
    what: tuple[str, ...]
    why: str

    def row(self) -> str:
        """The entry as a row of the table in docs/internals/starter.md."""
        return f"| {self.file} | {', '.join(self.what)} | {self.why} |"


def committed() -> tuple[Difference, ...]:
    """The list, in its order."""
    entries = tomllib.loads(_LIST.read_text())["differs"]
    return tuple(Difference(entry["file"], tuple(entry["what"]), entry["why"]) for entry in entries)


def _named(file: str) -> frozenset[str]:
    return frozenset(word for entry in committed() if entry.file == file for word in entry.what)


def unlisted(said: Taken, unit: str) -> list[str]:
    """What differs between the unit's adopted and restarted processes and is not in the list, a line each.

    They are compared by role; AssertionError when there are others, or one is still the same.
    """
    adopted, restarted = said.of(unit, "adopted"), said.of(unit, "restarted")
    assert [each.role for each in adopted] == [each.role for each in restarted]
    assert adopted[0].role == "main"
    assert not {each.pid for each in adopted} & {each.pid for each in restarted}
    now = {mount.point for mount in mounts(said.about(unit, "adopted", "first", "mountinfo"))}
    found = []
    for old, new in zip(adopted, restarted, strict=True):
        found += differences((old, adopted[0]), (new, restarted[0]), frozenset(now - EARLY_MOUNTS))
    return found


def differences(
    adopted: tuple[Process, Process], restarted: tuple[Process, Process], later: frozenset[str]
) -> list[str]:
    """What the list does not name, a line each; each pair is a process and its unit's main one.

    ``later`` are the mount points that PID 1 has got since the early start.
    """
    old, new = adopted[0].files, restarted[0].files
    found = _of_tables("status", _status(*adopted), _status(*restarted))
    found += _of_tables("environ", _variables(old["environ"]), _variables(new["environ"]))
    found += _of_tables("streams", _numbered(old["streams"]), _numbered(new["streams"]))
    for file in ("limits", "cgroup", "oom_score_adj"):
        found += _of_tables(file, _numbered(old[file]), _numbered(new[file]))
    for file in ("exe", "cmdline"):
        found += _of_tables(file, _numbered(_off_fast(old[file])), _numbered(new[file]))
    return found + _of_mounts(mounts(old["mountinfo"]), mounts(new["mountinfo"]), later)


def _of_tables(file: str, old: dict[str, str], new: dict[str, str]) -> list[str]:
    named = _named(file)
    return [
        f"{file} {name}: {old.get(name)!r}, restarted {new.get(name)!r}"
        for name in sorted(old.keys() | new.keys())
        if name not in named and old.get(name) != new.get(name)
    ]


def _status(process: Process, main: Process) -> dict[str, str]:
    rows = (line.partition(":") for line in process.files["status"].splitlines())
    fields = {name: value.strip() for name, _, value in rows}
    if fields["PPid"] == str(main.pid):
        fields["PPid"] = "the main process"
    return fields


def _variables(environ: str) -> dict[str, str]:
    return {name: value for name, _, value in (line.partition("=") for line in environ.splitlines())}


def _numbered(text: str) -> dict[str, str]:
    return {str(number): line.rstrip() for number, line in enumerate(text.splitlines())}


def _off_fast(text: str) -> str:
    return text.replace("/fast/", "/") if "/fast" in _named("exe") else text


def _of_mounts(old: list[Mount], new: list[Mount], later: frozenset[str]) -> list[str]:
    """Mounts by their points; of several at one point all count, but of a later mount's the topmost."""
    found = []
    if _LAID_OVER in _named("mountinfo"):
        old = [mount for mount in old if mount.root != f"/fast{mount.point}"]
    if _EXECUTABLE in _named("mountinfo"):
        old = [mount for mount in old if not mount.point.startswith("/fast/")]
    for point in sorted({mount.point for mount in (*old, *new)}):
        before, after = (_shown(each, point) for each in (old, new))
        if point == _CREDENTIALS or point.startswith(f"{_CREDENTIALS}/"):
            continue
        if point in later:
            before, after = (
                [_but_writable_and_executable(each) for each in shown[-1:]] for shown in (before, after)
            )
            # It has not arrived; one that only the adopted process has would be another matter.
            before = before or after
        if before != after:
            found.append(f"mountinfo {point}: {before}, restarted {after}")
    return found


_Shown = tuple[str, str, frozenset[str], frozenset[str], frozenset[str]]


def _shown(of: list[Mount], point: str) -> list[_Shown]:
    return [
        (mount.root, mount.kind, mount.options, mount.shared, mount.whole)
        for mount in of
        if mount.point == point
    ]


def _but_writable_and_executable(shown: _Shown) -> _Shown:
    root, kind, options, shared, whole = shown
    return root, kind, options - {"ro", "rw", "noexec"}, shared, whole
