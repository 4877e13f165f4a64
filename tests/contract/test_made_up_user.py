"""The user that the starter has made up, at the hand-off and at the adoption (docs/internals/dynamic-user.md)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.contract.initscript import INIT, function

# It gives files to others.
pytestmark = pytest.mark.host_root

SECONDS = 60.0
SHELLS = [("dash",), ("busybox", "sh")]
NUMBER = 63495


def status(shell: tuple[str, ...], place: Path, script: str, name: str, found: int = 1) -> int:
    """The status of a function of init. ``place`` has what is in /run/quickstart, and ``found`` is what the caretaker says."""
    text = function(script, name).replace("/run/systemd/dynamic-uid", f"{place}/dynamic-uid")
    stub = f"caretaker() {{ [ \"$*\" = 'find-ipc {NUMBER}' ] && return {found}; exit 9; }}"
    done = subprocess.run(
        [*shell, "-uc", f"RUN={place}\n{stub}\n{text}\n{name}"],
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    assert not done.stderr
    return done.returncode


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A machine whose init has made the user up."""
    (tmp_path / "made-up-user").write_text(f"{NUMBER} app\n")
    (tmp_path / "dynamic-uid").mkdir()
    return tmp_path


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_the_hand_off_asks_for_ipc_of_the_user(shell: tuple[str, ...], place: Path) -> None:
    assert status(shell, place, "hand-off", "user_has_no_ipc", found=1) == 0
    assert status(shell, place, "hand-off", "user_has_no_ipc", found=0) == 1
    # The caretaker could not look.
    assert status(shell, place, "hand-off", "user_has_no_ipc", found=127) == 1
    (place / "made-up-user").unlink()
    assert status(shell, place, "hand-off", "user_has_no_ipc", found=0) == 0


# A process that uses a segment of shared memory of its own.
ATTACHED = """
import ctypes, os, time
os.setgid(int(os.environ["ID"])); os.setuid(int(os.environ["ID"]))
c = ctypes.CDLL(None)
c.shmat.restype = ctypes.c_void_p
assert c.shmat(c.shmget(0, 100, 0o1600), None, 0)
print(flush=True)
time.sleep(600)
"""
SYSTEM_V = {"msg": "ipcmk -Q", "sem": "ipcmk -S 2", "shm": "ipcmk -M 100"}
FILES = {
    "a file": "touch /dev/shm/sem.x; chown $ID:0 /dev/shm/sem.x",
    "a group's file": "touch /dev/shm/sem.x; chown 0:$ID /dev/shm/sem.x",
    "a file below": "mkdir /dev/shm/d; touch /dev/shm/d/x; chown $ID /dev/shm/d/x",
    "a link": "ln -s /etc/passwd /dev/shm/l; chown -h $ID /dev/shm/l",
    "a directory": "mkdir -p /dev/shm/d/e; chown $ID /dev/shm/d /dev/shm/d/e",
    "a queue": "touch /dev/mqueue/q; chown $ID /dev/mqueue/q",
    "none": ":",
    "in use": 'python3 -c "$ATTACHED" | { read -r line; exec sleep 600; } & sleep 0.5',
}
LEFT = "ls -A /dev/shm /dev/mqueue | grep -c '^[a-z]' | tr '\\n' ' '; tail -qn +2 /proc/sysvipc/* | wc -l"


def ipc(caretaker: Path, make: str, number: int = NUMBER) -> list[str]:
    """What the caretaker finds before and after it has removed what it finds, and what is left."""
    others = "touch /dev/shm/others; ipcmk -M 100 -S 2 -Q >/dev/null"
    script = (
        "mount -t proc proc /proc && mount -t tmpfs dev /dev && mknod -m 666 /dev/null c 1 3 && mkdir -m 1777 /dev/shm /dev/mqueue"
        " && mount -t mqueue q /dev/mqueue || exit 1\n"
        f"{others}\n{make}\n$CARETAKER find-ipc {number}; echo $?\n$CARETAKER remove-ipc {number}\n"
        f"$CARETAKER find-ipc {number}; echo $?; sleep 0.1; {LEFT}"
    )
    done = subprocess.run(
        ["unshare", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "sh", "-c", script],
        env={"PATH": "/usr/sbin:/usr/bin", "CARETAKER": str(caretaker), "ID": str(NUMBER), "ATTACHED": ATTACHED, "QUEUE": QUEUE},
        capture_output=True, text=True, timeout=SECONDS, check=True,
    )  # fmt: skip
    return done.stdout.split()


# The two directories' names that `ls` prints do not count, but the file of others does.
OTHERS = ["1", "3"]


@pytest.mark.parametrize("kind", SYSTEM_V)
def test_system_v_ipc_is_found_and_removed(caretaker: Path, kind: str) -> None:
    make = f"setpriv --reuid $ID --regid $ID --clear-groups {SYSTEM_V[kind]} >/dev/null"
    assert ipc(caretaker, make) == ["0", "1", *OTHERS]
    assert ipc(caretaker, make, NUMBER + 1) == ["1", "1", "1", "4"]


@pytest.mark.parametrize("kind", FILES)
def test_posix_ipc_is_found_and_removed(caretaker: Path, kind: str) -> None:
    """systemd does not count shared memory that is in use; removed, it goes with its last process (shmctl(2))."""
    left = {"a file below": ["2", "3"], "in use": ["1", "4"]}.get(kind, OTHERS)
    assert ipc(caretaker, FILES[kind]) == ["1" if kind in ("none", "in use") else "0", "1", *left]


def test_everybody_s_ipc_is_removed(caretaker: Path) -> None:
    make = 'mkdir /dev/shm/d; touch /dev/shm/d/x; python3 -c "$QUEUE"; $CARETAKER remove-ipc all || echo none'
    assert ipc(caretaker, make) == ["1", "1", "0", "0"]


# A queue as mq_open(3) makes it, which needs no mount.
QUEUE = """
import ctypes, os
os.setgid(int(os.environ["ID"])); os.setuid(int(os.environ["ID"]))
assert ctypes.CDLL(None, use_errno=True).mq_open(b"/q", os.O_CREAT, 0o600, None) >= 0
"""


def test_a_queue_is_found_where_nobody_has_mounted_queues(caretaker: Path) -> None:
    """As at the hand-off: it is systemd that mounts /dev/mqueue."""
    script = (
        "mount -t proc proc /proc && mount -t tmpfs dev /dev && mknod -m 666 /dev/null c 1 3 || exit 1\n"
        'mkdir /dev/shm /dev/mqueue; python3 -c "$QUEUE"\n$CARETAKER find-ipc $ID; echo $?\n'
        "$CARETAKER remove-ipc $ID\n$CARETAKER find-ipc $ID; echo $?\n"
        "mount -t mqueue q /dev/mqueue && ls /dev/mqueue"
    )
    done = subprocess.run(
        ["unshare", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "sh", "-c", script],
        env={"PATH": "/usr/sbin:/usr/bin", "CARETAKER": str(caretaker), "ID": str(NUMBER), "QUEUE": QUEUE},
        capture_output=True, text=True, timeout=SECONDS, check=True,
    )  # fmt: skip
    assert (done.stdout.split(), done.stderr) == (["0", "1"], "")


@pytest.mark.parametrize("word", ["0", "-1", "x", ""])
def test_nobody_s_ipc(caretaker: Path, word: str) -> None:
    assert (
        subprocess.run(
            [caretaker, "remove-ipc", word], capture_output=True, timeout=SECONDS, check=False
        ).returncode
        == 2
    )


def test_adopt_takes_a_process_of_the_same_user_only(place: Path) -> None:
    """The link is systemd's (make_uid_symlinks in its src/core/dynamic-user.c)."""
    link = place / "dynamic-uid/direct:app"
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
    # Whoever ends the early processes.
    for script, before in (("adopt", r"\["), ("settle", "forget_start")):
        assert re.search(rf"^\tremove_ipc\n\t?{before}", (INIT / script).read_text(), re.MULTILINE), script
