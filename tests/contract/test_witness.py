"""What another user could have made or replaced is refused in a user namespace, too, where all strangers look like root.

The user "builder" is root of a namespace of his own (become_root). A stranger, who exists here, owns something on
the way.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.ordinary import FIRST_ID, UID, User, ordinary_user
from tests.contract.strangers import out_in

pytestmark = pytest.mark.host_root

COMMAND = Path(sys.executable).with_name("quickstart")
STRANGER = 4343
SAID = f"belongs to another user ({STRANGER})"
BECOME = """
import os, sys
from contextlib import suppress
from pathlib import Path
from quickstart.artefact import output
from quickstart.errors import QuickStartError
from quickstart.host import door, userns, witness
from quickstart.host.places import swapped_by_others
from quickstart.store.store import Store
userns.become_root()
given = [Path(each) for each in sys.argv[1:]]
print("ready", flush=True)
sys.stdin.read(1)
def told(ask):
    try:
        print(ask())
    except QuickStartError as error:
        print(error.message)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """As /tmp is: everybody may make something there."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o1777)
        yield path


@pytest.fixture
def user(place: Path) -> Iterator[User]:
    with ordinary_user(place) as found:
        yield found


def given_to(path: Path, uid: int = STRANGER, mode: int = 0o755) -> Path:
    path.mkdir(mode=mode)
    path.chmod(mode)
    os.chown(path, uid, uid)
    return path


def inside(user: User, code: str, *words: str | Path) -> list[str]:
    """The lines that ``code`` prints after it has become root."""
    done = user.run(sys.executable, "-c", BECOME + code, *words)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()[1:]


def test_whose_a_directory_is(user: User, place: Path) -> None:
    theirs, roots = given_to(place / "theirs"), given_to(place / "roots", 0)
    (open_to_all := given_to(place / "open", 0)).chmod(0o777)
    (link := place / "link").symlink_to(user.home)
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    found = inside(
        user,
        "for each in given: print(swapped_by_others(each))",
        *(theirs, theirs / "x", roots, roots / "x", user.home, "/usr/bin", place / "none", open_to_all, link),
    )
    assert found == [
        *(f"{theirs} {SAID}", f"{theirs} {SAID}", "", "", "", "", ""),
        f"{open_to_all} can be written by others",
        f"{link} {SAID}",
    ]


def test_a_group_of_strangers_is_told_from_root_s(user: User, place: Path) -> None:
    """Both are nogroup in the namespace."""
    (place / "theirs").mkdir()
    os.chown(place / "theirs", 0, STRANGER)
    (place / "theirs").chmod(0o775)
    found = inside(user, "print(swapped_by_others(given[0]))", place / "theirs")
    assert found == [f"{place}/theirs can be written by others"]


MAKE = 'told(lambda: Store(given[0]).get_or_make("agent", {}, lambda d: (d / "x").write_text("x")).made)'


def test_a_stage_that_a_stranger_has_made(user: User, place: Path) -> None:
    """In a store that everybody may write to, like /tmp."""
    given_to(place / "agent")
    (found,) = inside(user, MAKE, place)
    assert f"{place} can be written by others" in found
    place.chmod(0o755)
    (found,) = inside(user, MAKE, place)
    assert f"{place}/agent {SAID}" in found


class Halfway:
    """The user's process, which is in its namespace and waits until it is told to go on."""

    def __init__(self, user: User, code: str, *words: str | Path) -> None:
        self._process = subprocess.Popen(
            [*user.prefix, sys.executable, "-c", BECOME + code, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=user.environment,
            cwd=user.home,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        self.pid = self._process.pid

    def rest(self) -> list[str]:
        said, _ = self._process.communicate(b"x", timeout=60)
        assert self._process.returncode == 0
        return said.decode().splitlines()


def test_a_store_that_a_stranger_makes_meanwhile(user: User, place: Path) -> None:
    waiting = Halfway(user, MAKE, place / "store")
    given_to(place / "store", mode=0o777)
    (found,) = waiting.rest()
    assert f"{place}/store {SAID}" in found
    assert list((place / "store").iterdir()) == []


def test_a_parent_of_out_that_a_stranger_makes_meanwhile(user: User, place: Path) -> None:
    code = """
def write():
    with output.new_directory(given[0]) as directory:
        (directory / "run.sh").write_text("")
told(write)
"""
    waiting = Halfway(user, code, place / "sub/out")
    given_to(place / "sub", mode=0o1777)
    (found,) = waiting.rest()
    assert f"{place}/sub {SAID}" in found
    assert list((place / "sub").iterdir()) == []


def test_a_tool_of_a_stranger(user: User, place: Path) -> None:
    theirs = given_to(place / "theirs")
    (theirs / "tool").write_text("#!/bin/sh\n")
    (theirs / "tool").chmod(0o755)
    code = 'os.environ["QUICKSTART_TOOL_PATH"] = sys.argv[1]; told(lambda: door.tool_path("tool"))'
    (found,) = inside(user, code, f"{theirs}:/usr/bin")
    assert f"{theirs} {SAID}" in found


def test_an_out_of_a_stranger_is_not_rebuilt(user: User, place: Path) -> None:
    out = out_in(given_to(place / "theirs", 0))
    os.chown(out, STRANGER, STRANGER)
    done = user.run(COMMAND, "rebuild", out, "--profile", "nginx")
    assert (done.returncode, f"{out} {SAID}" in done.stderr.decode()) == (2, True), done.stderr
    os.chown(out, 0, 0)
    os.chown(out / "root.raw", STRANGER, STRANGER)
    done = user.run(COMMAND, "rebuild", out, "--profile", "nginx")
    assert (done.returncode, f"root.raw {SAID}" in done.stderr.decode()) == (2, True), done.stderr


EXAMINE = """
from quickstart.reference.rootfs import copy_directory, examine
def copied():
    found = examine(given[0])
    copy_directory(found, given[1], Store(given[2]), 1 << 24)
    return "copied", (given[1] / "unit").stat().st_uid, (given[1] / "unit").stat().st_gid
told(copied)
"""


@pytest.mark.parametrize(
    ("uid", "gid", "said"),
    [
        (UID, STRANGER, f"unit belongs to the group {STRANGER} of the host"),
        (STRANGER, UID, f"unit belongs to the user {STRANGER} of the host"),
        (0, 0, "unit belongs to the user 0 of the host"),
        (UID, UID, "('copied', 0, 0)"),
        # Nobody's, by the host and by the user's subordinate IDs; and one of these.
        (65534, 65534, "('copied', 65534, 65534)"),
        (FIRST_ID + 65533, FIRST_ID + 65533, "('copied', 65534, 65534)"),
        (FIRST_ID + 32, FIRST_ID + 41, "('copied', 33, 42)"),
    ],
)
def test_an_owner_whom_the_namespace_does_not_map_is_not_nobody(
    user: User, uid: int, gid: int, said: str
) -> None:
    """Else whoever is nobody or nogroup in the guest would have what is a stranger's here."""
    given_to(tree := user.home / "tree", UID)
    (tree / "unit").write_text("")
    os.chown(tree / "unit", uid, gid)
    (found,) = inside(user, EXAMINE, tree, user.home / "copy", user.home / "store")
    assert said in found
    assert (user.home / "copy").exists() == said.startswith("('copied'")


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_such_an_owner_of_any_kind_of_file(user: User, kind: str) -> None:
    given_to(tree := user.home / "tree", UID)
    made = {"link": lambda path: path.symlink_to("x"), "pipe": os.mkfifo, "directory": Path.mkdir}
    made[kind](tree / "odd")
    os.chown(tree / "odd", UID, STRANGER, follow_symlinks=False)
    (found,) = inside(user, EXAMINE, tree, user.home / "copy", user.home / "store")
    assert f"odd belongs to the group {STRANGER} of the host" in found
    # Also where it changes after it was hashed.
    code = """
from quickstart.inspect.foreign.directory import read_directory
from quickstart.host.witness import ForeignOwnerError
with suppress(ForeignOwnerError):
    print([member.path for member, _ in read_directory(given[0], 0)])
"""
    assert inside(user, code, tree) == []


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_without_its_witness_nothing_is_trusted(user: User) -> None:
    waiting = Halfway(user, "told(lambda: swapped_by_others(given[0]))", user.home)
    (child,) = children(waiting.pid)
    os.kill(child, 9)
    assert waiting.rest() == ["the process that says whose a file is has ended"]


def test_the_witness_ends_with_its_process(user: User) -> None:
    waiting = Halfway(user, "print(len(os.listdir('/proc/self/fd')))", user.home)
    (child,) = children(waiting.pid)
    # Its streams and the socket: whoever waits for the end of a pipe of the user's does not wait for the witness.
    assert len(list(Path(f"/proc/{child}/fd").iterdir())) == 4
    os.kill(waiting.pid, 9)
    witness = os.pidfd_open(child) if Path(f"/proc/{child}").exists() else None
    if witness is not None:
        assert select.select([witness], [], [], 60)[0]
        os.close(witness)
