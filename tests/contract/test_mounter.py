"""The mounter in a mount namespace of its own, seen through /proc/self/mountinfo."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from quickstart.initramfs.programs import freestanding
from quickstart.store.store import Store


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with Store(tmp_path_factory.mktemp("store")) as store:
        yield freestanding(store, "mounter")


@dataclass(frozen=True)
class Result:
    status: int
    said: str
    mounts: dict[str, str]
    """The line of /proc/self/mountinfo of each mount below the place, by its name there."""


def mounted(program: Path, place: Path, *tables: str) -> Result:
    """Run the program with one table after the other until one fails."""
    script = 'cd "$1"; for table in "$3" "$4"; do printf "%s" "$table" | "$2" || exit $?; done; cat /proc/self/mountinfo'
    first, second = (*tables, "")[:2]
    words: list[str | Path] = ["unshare", "--mount", "sh", "-c", script, "sh", place, program, first, second]
    done = subprocess.run(words, capture_output=True, timeout=30, check=False)
    lines = {line.split()[4]: line for line in done.stdout.decode().splitlines()}
    below = {
        name.removeprefix(f"{place}/"): line for name, line in lines.items() if name.startswith(f"{place}/")
    }
    return Result(done.returncode, done.stderr.decode(), below)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_a_link_is_made_unless_something_is_there(program: Path, place: Path) -> None:
    found = mounted(
        program, place, f"link /proc/self/fd {place}/fd -\nlink /x {place}/a -\ntmpfs t {place}/b nodev\n"
    )
    assert (found.status, found.said, set(found.mounts)) == (0, "", {"b"})
    assert (place / "fd").readlink() == Path("/proc/self/fd") and not (place / "a").is_symlink()


def test_options_are_flags_or_the_file_systems_own(program: Path, place: Path) -> None:
    table = f"tmpfs  here {place}/a nodev,size=64k,noexec,mode=0711\n\n tmpfs\tx {place}/b ro,nosuid,strictatime\n"
    found = mounted(program, place, table)
    assert (found.status, found.said) == (0, "")
    words = found.mounts["a"].split()
    assert set(words[5].split(",")) == {"rw", "nodev", "noexec", "relatime"}
    assert words[-3:-1] == ["tmpfs", "here"]
    assert {"size=64k", "mode=711"} <= set(words[-1].split(","))
    assert set(found.mounts["b"].split()[5].split(",")) == {"ro", "nosuid"}


def test_times_of_access(program: Path, place: Path) -> None:
    found = mounted(program, place, f"tmpfs x {place}/a noatime\ntmpfs x {place}/b relatime\n")
    assert (found.status, found.said) == (0, "")
    assert [set(found.mounts[name].split()[5].split(",")) for name in "ab"] == [
        {"rw", "noatime"},
        {"rw", "relatime"},
    ]


# A user namespace mounts no /proc of processes that are not its own.
@pytest.mark.host_root
def test_other_users_processes_are_hidden_later(program: Path, place: Path) -> None:
    """As a line of fstab has it; each mount of proc has options of its own since Linux 5.8."""
    table = f"proc proc {place}/a nodev,nosuid,noexec\n"
    found = mounted(program, place, table, f"proc proc {place}/a remount,nodev,noexec,nosuid,hidepid=2\n")
    assert (found.status, found.said) == (0, "")
    assert {"hidepid=invisible", "nosuid"} <= set(re.split("[ ,]", found.mounts["a"]))


def test_bind_remount_and_move(program: Path, place: Path) -> None:
    (place / "a/file").write_text("")
    found = mounted(
        program,
        place,
        f"none {place}/a {place}/b bind\nnone none {place}/b remount,bind,ro\n",
        # Nothing is moved out of a shared mount (mount(2)).
        f"tmpfs x {place}/a rw\n",
    )
    assert (found.status, found.said) == (0, "")
    assert "ro" in found.mounts["b"].split()[5].split(",")
    assert "rw" in found.mounts["a"].split()[5].split(",")
    moved = mounted(program, place, "tmpfs x a mode=0700\nnone a c move\n")
    assert (moved.status, moved.said) == (0, "")
    assert list(moved.mounts) == ["c"]


def test_shared_mounts(program: Path, place: Path) -> None:
    found = mounted(program, place, f"tmpfs x {place}/a nodev\nnone none {place}/a rshared\n")
    assert (found.status, found.said) == (0, "")
    assert "shared:" in found.mounts["a"]


def test_the_first_that_fails_is_named_and_ends_it(program: Path, place: Path) -> None:
    table = f"tmpfs x {place}/a nodev\nnone-such x {place}/b nodev\ntmpfs x {place}/c nodev\n"
    found = mounted(program, place, table, "")
    assert (found.status, found.said) == (1, f"quickstart: cannot mount {place}/b\n")


def test_a_line_without_words_fails(program: Path, place: Path) -> None:
    assert mounted(program, place, "tmpfs x\n").status == 1


@pytest.mark.parametrize("table", ["tmpfs x a nodev\n" * 400])
def test_a_table_that_is_too_long(program: Path, place: Path, table: str) -> None:
    assert mounted(program, place, table).status == 2
