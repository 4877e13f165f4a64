"""The user that the starter has made up, at the hand-off and at the adoption (docs/internals/dynamic-user.md)."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

# It gives files to others.
pytestmark = pytest.mark.host_root

INIT = Path(__file__).parents[2] / "quickstart/initramfs/init"
SECONDS = 60.0
SHELLS = [("dash",), ("busybox", "sh")]
NUMBER = 63495
MSG = "       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid      stime      rtime      ctime\n"
SEM = "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n"
SHM = "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime\n"


def function(script: str, name: str) -> str:
    found = re.search(rf"^{name}\(\) \{{.*?^\}}", (INIT / script).read_text(), re.MULTILINE | re.DOTALL)
    assert found
    return found[0]


def status(shell: tuple[str, ...], place: Path, script: str, name: str) -> int:
    text = function(script, name)
    for path in ("/proc/sysvipc", "/dev/shm", "/run/systemd/dynamic-uid"):
        text = text.replace(path, f"{place}{path}")
    done = subprocess.run(
        [*shell, "-uc", f"RUN={place}\n{text}\n{name}"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert not done.stderr
    return done.returncode


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A machine whose init has made the user up, with the IPC of others."""
    (tmp_path / "made-up-user").write_text(f"{NUMBER} app\n")
    for name in ("proc/sysvipc", "dev/shm", "run/systemd/dynamic-uid"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "proc/sysvipc/msg").write_text(
        f"{MSG}1358861599          {NUMBER}   644   0   {NUMBER}   1 2  3  4  5  6  0 0 1\n"
    )
    (tmp_path / "proc/sysvipc/sem").write_text(
        f"{SEM} 758787745          0   644          2     3     4  {NUMBER}  6  0  1\n"
    )
    (tmp_path / "proc/sysvipc/shm").write_text(
        f"{SHM}         0          0  1600                524288  {NUMBER}  7      2     3     4     5     6 1 2\n"
    )
    (tmp_path / "dev/shm/sem.others").touch()
    return tmp_path


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_ipc_of_others_does_not_count(shell: tuple[str, ...], place: Path) -> None:
    assert status(shell, place, "hand-off", "user_has_no_ipc") == 0


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize("ids", [f"{NUMBER} 4", f"3 {NUMBER}"])
@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("msg", "1 0 644 0 0 0 0 {} 5 6 0 0 1"),
        ("sem", "1 0 644 2 {} 5 6 0 1"),
        ("shm", "1 0 600 100 7 7 1 {} 5 6 1 2"),
    ],
)
def test_ipc_of_the_user_is_seen(shell: tuple[str, ...], place: Path, table: str, row: str, ids: str) -> None:
    """systemd would make up another user."""
    with (place / "proc/sysvipc" / table).open("a") as file:
        file.write(f"{row.format(ids)}\n")
    assert status(shell, place, "hand-off", "user_has_no_ipc") == 1
    (place / "made-up-user").unlink()
    assert status(shell, place, "hand-off", "user_has_no_ipc") == 0


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize("owner", [(NUMBER, 0), (0, NUMBER)])
def test_a_file_of_the_user_in_shared_memory_is_seen(
    shell: tuple[str, ...], place: Path, owner: tuple[int, int]
) -> None:
    (place / "dev/shm/below").mkdir()
    (place / "dev/shm/below/sem.x").touch()
    os.chown(place / "dev/shm/below/sem.x", *owner)
    assert status(shell, place, "hand-off", "user_has_no_ipc") == 1


def test_adopt_takes_a_process_of_the_same_user_only(place: Path) -> None:
    """The link is systemd's (make_uid_symlinks in its src/core/dynamic-user.c)."""
    link = place / "run/systemd/dynamic-uid/direct:app"
    assert status(("dash",), place, "adopt", "has_same_user") == 1
    link.symlink_to("61184")
    assert status(("dash",), place, "adopt", "has_same_user") == 1
    link.unlink()
    link.symlink_to(str(NUMBER))
    assert status(("dash",), place, "adopt", "has_same_user") == 0
    (place / "made-up-user").unlink()
    link.unlink()
    assert status(("dash",), place, "adopt", "has_same_user") == 0


def test_both_are_asked() -> None:
    assert re.search(
        r"^\t\{ user_has_no_ipc && with_companions user_has_no_ipc; } \|\| fall_back",
        (INIT / "hand-off").read_text(),
        re.M,
    )
    assert re.search(r"^\thas_same_user && why=", (INIT / "adopt").read_text(), re.M)
