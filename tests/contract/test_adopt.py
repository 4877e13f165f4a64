"""`adopt` binds what is newer than a process into its mount namespace, and executes nothing there."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ADOPT = Path(__file__).parents[2] / "quickstart/initramfs/init/adopt"
SECONDS = 20.0


@pytest.fixture(scope="module", autouse=True)
def _root() -> None:
    assert os.geteuid() == 0, "namespaces need root: run the tests with sudo"


@pytest.fixture
def main() -> Iterator[int]:
    """A process with a mount namespace of its own, as the starter makes one."""
    command = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", "echo up; read forever"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.read(3) == b"up\n", "unshare failed: apt-get install util-linux"
        yield process.pid
    finally:
        process.communicate(timeout=SECONDS)


def bind_late(place: Path, caretaker: Path, main: int, rows: str) -> int:
    """The status of the function as the script has it, with ``rows`` as its file."""
    text = ADOPT.read_text()
    found = re.search(r"^bind_late\(\) \{.*?^\}", text, re.MULTILINE | re.DOTALL)
    assert found
    (place / "late-binds").write_text(rows)
    (place / "bin").mkdir(exist_ok=True)
    (place / "bin/caretaker").unlink(missing_ok=True)
    (place / "bin/caretaker").symlink_to(caretaker)
    script = f"Q={shlex.quote(str(place))} main={main}\n{found[0]}\nbind_late"
    done = subprocess.run(["dash", "-c", script], capture_output=True, timeout=SECONDS)
    return done.returncode


def mounts(main: int, target: Path) -> list[list[str]]:
    """Root and options of the mounts at ``target`` in the process's namespace (proc(5), mountinfo)."""
    rows = (line.split() for line in Path(f"/proc/{main}/mountinfo").read_text().splitlines())
    found = [[row[3].rpartition("/")[2], row[5]] for row in rows if row[4] == str(target)]
    return [[name, options.replace(",relatime", "")] for name, options in found]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A file system with the options of /run."""
    place = tmp_path / "run"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "nosuid,nodev", "run", place], check=True, timeout=SECONDS)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True, timeout=SECONDS)


@pytest.mark.parametrize("how", ["ro", "rw"])
def test_a_socket_behind_a_link_is_bound_there_and_not_here(
    run: Path, tmp_path: Path, main: int, how: str, caretaker: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(run / "dev-log"))
        (tmp_path / "log").symlink_to("run/dev-log")
        target = tmp_path / "chroot/dev/log"
        assert bind_late(tmp_path, caretaker, main, f"{how}\trequired\t{tmp_path}/log\t{target}\n") == 0
    # With the options that the source has.
    assert mounts(main, target) == [["dev-log", f"{how},nosuid,nodev"]]
    assert target.is_file() and not target.is_socket()


def test_a_directory(tmp_path: Path, main: int, caretaker: Path) -> None:
    (tmp_path / "journal").mkdir()
    target = tmp_path / "chroot/journal"
    assert bind_late(tmp_path, caretaker, main, f"rw\trequired\t{tmp_path}/journal\t{target}\n") == 0
    assert mounts(main, target) == [["journal", "rw"]]


def test_what_is_not_there_matters_only_when_it_is_required(
    tmp_path: Path, main: int, caretaker: Path
) -> None:
    (tmp_path / "there").write_text("")
    rows = f"rw\toptional\t{tmp_path}/none\t{tmp_path}/a\nrw\trequired\t{tmp_path}/there\t{tmp_path}/b\n"
    assert bind_late(tmp_path, caretaker, main, rows) == 0
    assert mounts(main, tmp_path / "b") == [["there", "rw"]]
    assert bind_late(tmp_path, caretaker, main, rows.replace("optional", "required")) == 1


def test_nothing_to_bind(tmp_path: Path, caretaker: Path) -> None:
    assert bind_late(tmp_path, caretaker, os.getpid(), "") == 0
