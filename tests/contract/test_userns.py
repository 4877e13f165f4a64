"""An ordinary user becomes root of a user namespace: owners, devices, capabilities, signals, and the message
when this is impossible.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.ordinary import UID, User, is_host_root, ordinary_user

COMMAND = Path(sys.executable).with_name("quickstart")
STRANGER = 4343
BECOME = """
import os, sys
from quickstart.errors import QuickStartError
from quickstart.host.userns import become_root
before = (os.getpid(), os.getcwd(), dict(os.environ))
try:
    become_root()
except QuickStartError as error:
    print(type(error).__name__, error.exit_code, error.message, error.hint, sep="|")
    raise SystemExit(error.exit_code)
assert before == (os.getpid(), os.getcwd(), dict(os.environ))
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """Outside pytest's directories, which nobody else may enter."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.fixture
def user(place: Path) -> Iterator[User]:
    with ordinary_user(place) as found:
        yield found


def become(user: User, code: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    return user.run(sys.executable, "-c", BECOME + code, more=more)


def test_owners_are_kept_and_mine_is_mine(user: User) -> None:
    done = become(
        user,
        "open('mine', 'w').close(); open('theirs', 'w').close(); os.chown('theirs', 33, 65534)\n"
        "print(os.geteuid(), os.stat('theirs').st_uid, os.stat('theirs').st_gid)",
    )
    assert done.stdout == b"0 33 65534\n", done.stderr
    mine, theirs = ((user.home / name).stat() for name in ("mine", "theirs"))
    if is_host_root():
        assert (mine.st_uid, mine.st_gid) == (UID, UID)
        assert (theirs.st_uid, theirs.st_gid) == (300_032, 365_533)


def test_no_right_over_the_host(user: User) -> None:
    """Root inside may neither read nor write what the user may not, make no device, and take no id that is not his."""
    secret = user.home.parent / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    code = """
for attempt in (
    lambda: open(sys.argv[1]),
    lambda: os.mknod("null", 0o20666, os.makedev(1, 3)),
    lambda: os.setresuid(65536, 65536, 65536),
    lambda: os.chroot("/") or open("/proc/sys/kernel/hostname", "w"),
):
    try:
        attempt()
    except OSError:
        continue
    print("allowed")
"""
    if not is_host_root():
        secret.unlink()
    done = user.run(sys.executable, "-c", BECOME + code, secret)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr


def test_a_file_capability_is_as_root_makes_it(user: User) -> None:
    """The kernel keeps whose namespace it is of; in the image is no such thing (linux/capability.h, VFS_CAP_REVISION_2 and _3)."""
    code = """
from pathlib import Path
from quickstart.image.ext4 import write_disk
tree = Path("tree"); tree.mkdir()
(tree / "able").write_text("x")
value = bytes.fromhex("0100000200200000000000000000000000000000")
os.setxattr(tree / "able", "security.capability", value)
write_disk(tree, Path("disk.raw"), 16, "00112233-4455-6677-8899-aabbccddeeff", "root")
"""
    assert become(user, code).returncode == 0
    shown = subprocess.run(
        ["/sbin/debugfs", "-R", "ea_list /able", user.home / "disk.raw"],
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert b"security.capability (20) = 01 00 00 02 00 20 00 00" in shown.stdout


def test_a_disk_is_the_same_bytes_whoever_writes_it(user: User, tmp_path: Path) -> None:
    code = """
import hashlib
from pathlib import Path
from quickstart.image.ext4 import write_disk
place = Path(sys.argv[1]); tree = place / "tree"; tree.mkdir()
for number, name in enumerate(("a", "b", "c")):
    (tree / name).write_text(name)
    os.chown(tree / name, number * 1000, 65534)
    os.utime(tree / name, (1, 1_600_000_000))
(tree / "c").chmod(0o4755)
os.utime(tree, (1, 1_600_000_000))
write_disk(tree, place / "disk.raw", 16, "00112233-4455-6677-8899-aabbccddeeff", "root")
print(hashlib.sha256((place / "disk.raw").read_bytes()).hexdigest())
"""
    theirs = user.run(sys.executable, "-c", BECOME + code, user.home)
    ours = subprocess.run(
        [sys.executable, "-c", BECOME + code, tmp_path], capture_output=True, timeout=60, check=True
    )
    assert theirs.returncode == 0, theirs.stderr
    assert theirs.stdout == ours.stdout


def test_what_is_in_the_store_is_whole_from_inside_and_outside(user: User) -> None:
    """`build` is in the namespace, `run` is not, and both take the agent from the store."""
    code = """
from quickstart.store.store import Store, default_root
with Store(default_root(), print) as store:
    for name in sys.argv[1:]:
        print(store.get_or_make("agent", {"name": name}, lambda place: (place / "x").write_text("x")).made)
"""
    outside = "import os, sys\n" + code
    first = user.run(sys.executable, "-c", outside, "a")
    inside = user.run(sys.executable, "-c", BECOME + code, "a", "b")
    again = user.run(sys.executable, "-c", outside, "a", "b")
    assert [each.stdout for each in (first, inside, again)] == [
        b"True\n",
        b"False\nTrue\n",
        b"False\nFalse\n",
    ]


def test_a_signal_and_a_status_pass_as_they_are(user: User) -> None:
    """No process stands between the user and the verb."""
    assert become(user, "raise SystemExit(7)").returncode == 7
    code = BECOME + "import time; print('ready', flush=True); time.sleep(60)"
    process = subprocess.Popen(
        [*user.prefix, sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env=user.environment,
        cwd=user.home,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == -signal.SIGTERM
    process.stdout.close()


def test_groups_stay(user: User) -> None:
    """/dev/kvm is open to one of them."""
    done = become(user, "print(len(os.getgroups()))")
    assert done.returncode == 0, done.stderr
    before = user.run(sys.executable, "-c", "import os; print(len(os.getgroups()))")
    assert done.stdout == before.stdout


@pytest.fixture
def nobody(place: Path) -> Iterator[User]:
    with ordinary_user(place, ids=False) as found:
        yield found


@pytest.mark.host_root
def test_without_subordinate_ids_the_line_that_gives_some(nobody: User) -> None:
    out = nobody.home / "out"
    called = nobody.run(COMMAND, "build", "--profile", "nginx", "-o", out, "--json")
    error = json.loads(called.stdout)["error"]
    assert (called.returncode, error["kind"]) == (3, "NeedsRootError")
    assert (
        error["hint"]
        == "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 builder, or run it as root"
    )
    # Nothing was begun: no store, no OUT.
    assert list(nobody.home.iterdir()) == []
    told = json.loads(nobody.run(COMMAND, "doctor", "--json", timeout_s=120).stdout)["result"]["needs"]
    (owners,) = (each for each in told if each["need"] == "owners in images")
    assert (owners["state"], owners["mend"]) == (
        "missing",
        "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 builder",
    )


def test_without_newuidmap_the_line_that_installs_it(user: User) -> None:
    (user.home / "tools").mkdir()
    for name in ("setpriv", "unshare", "sh"):
        (user.home / "tools" / name).symlink_to(f"/usr/bin/{name}")
    done = become(user, "print(os.geteuid())", QUICKSTART_TOOL_PATH=str(user.home / "tools"))
    if is_host_root():
        assert done.returncode == 3
        assert done.stdout.decode().startswith("NeedsRootError|3|newuidmap is not installed")
        assert "apt-get install uidmap" in done.stdout.decode()
    else:
        assert done.stdout == b"0\n"


def test_doctor_finds_the_ids(user: User) -> None:
    told = json.loads(user.run(COMMAND, "doctor", "--json", timeout_s=120).stdout)["result"]["needs"]
    (owners,) = (each for each in told if each["need"] == "owners in images")
    assert owners["state"] == "found"
    assert ("300000" in owners["detail"]) == is_host_root()


def test_root_stays_root() -> None:
    code = BECOME + "print(open('/proc/self/uid_map').read() == sys.argv[1])"
    mapped = Path("/proc/self/uid_map").read_text()
    done = subprocess.run([sys.executable, "-c", code, mapped], capture_output=True, timeout=60, check=True)
    assert done.stdout == b"True\n"
    assert os.geteuid() == 0


def test_places_are_asked_about_before_the_user_is_root(user: User, place: Path) -> None:
    """From the namespace root's directories look like any stranger's, and are not refused; a stranger's are."""
    (theirs := place / "theirs").mkdir(mode=0o755)
    os.chown(theirs, STRANGER, STRANGER)
    words = (COMMAND, "build", "--profile", "nginx", "--dry-run", "-o")
    said = f"{theirs} belongs to another user ({STRANGER})"
    done = user.run(*words, user.home / "out")
    assert done.returncode == 0, done.stderr.decode()
    done = user.run(*words, theirs / "out")
    assert (done.returncode, said in done.stderr.decode()) == (2, True)
    done = user.run(*words, user.home / "out", more={"QUICKSTART_CACHE": str(theirs / "store")})
    assert (done.returncode, said in done.stderr.decode()) == (3, True)
