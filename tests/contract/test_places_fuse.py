"""A FUSE file system that says that everything on it belongs to root: QuickStart trusts it as it trusts who has mounted it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.strangers import LIMIT_S, STRANGER

# A directory of root's that anybody may mount: mode and owner are what it says, whoever serves it. $2 is who mounted it.
LIAR = """
import ctypes, os, struct, sys
from pathlib import Path
from quickstart.host.beneath import read_judged
from quickstart.host.places import swapped_by_others
from quickstart.store.store import Store
place, mounter, silent = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "silent"
fuse = os.open("/dev/fuse", os.O_RDWR)
words = f"fd={fuse},rootmode=40000,user_id={mounter},group_id={mounter},allow_other".encode()
libc = ctypes.CDLL(None, use_errno=True)
# linux/mount.h: MS_NOSUID | MS_NODEV
if libc.mount(b"liar", os.fsencode(place), b"fuse", 6, words) != 0:
    sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
server = os.fork()
if server == 0:
    # linux/fuse.h; attr: ino, size, blocks, times, mode, nlink, uid, gid, rdev, blksize, flags
    attr = struct.pack("<6Q10I", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0)
    answers = {
        26: struct.pack("<IIIIHHIIHHI28x", 7, 31, 65536, 0, 1, 1, 65536, 1, 1, 0, 0),
        3: struct.pack("<QII", 0, 0, 0) + attr,
        17: bytes(80),
    }
    # Its one file, whose node is 2.
    file = struct.pack("<6Q10I", 2, 4, 1, 0, 0, 0, 0, 0, 0, 0o100644, 1, 0, 0, 0, 4096, 0)
    of_file = {3: struct.pack("<QII", 0, 0, 0) + file, 15: b"text", 17: bytes(80)}
    while True:
        asked = os.read(fuse, 1 << 18)
        _, opcode, unique, node = struct.unpack_from("<IIQQ", asked)
        answer = (of_file if node == 2 else answers).get(opcode)
        if opcode == 1 and asked[40:] == b"file\\0":
            answer = struct.pack("<QQQQII", 2, 0, 0, 0, 0, 0) + file
        if silent and opcode != 26:
            answer = None
        # FORGET and its like want none.
        if opcode not in (2, 36, 42):
            error = 0 if answer is not None else (-2 if opcode == 1 else -38)
            os.write(fuse, struct.pack("<IiQ", 16 + len(answer or b""), error, unique) + (answer or b""))
try:
    print(swapped_by_others(place / "store") if len(sys.argv) < 5 else read_judged(place / "file", 9))
finally:
    os.kill(server, 9)
    os.waitpid(server, 0)
"""


@pytest.fixture
def in_namespace(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """The beginning of an argv that mounts where nobody else sees it."""
    yield (
        "unshare",
        "--mount",
        "--propagation",
        "private",
        sys.executable,
        "-c",
        LIAR,
        str(tmp_path / "liar"),
    )


@pytest.mark.host_root
@pytest.mark.parametrize(
    ("mounter", "answers", "said"),
    [
        (
            str(STRANGER),
            "lies",
            f"lies on a FUSE file system of another user ({STRANGER}), who says of owners what he likes\n",
        ),
        (
            str(STRANGER),
            "silent",
            "lies on a FUSE file system of nobody known, who says of owners what he likes\n",
        ),
        # What root has mounted is what root says.
        ("0", "lies", "\n"),
    ],
)
def test_a_fuse_that_says_it_is_roots(
    tmp_path: Path, in_namespace: tuple[str, ...], mounter: str, answers: str, said: str
) -> None:
    if not Path("/dev/fuse").exists():
        pytest.fail("this kernel has no FUSE: modprobe fuse")
    (tmp_path / "liar").mkdir()
    done = subprocess.run(
        [*in_namespace, mounter, answers], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    wanted = said if said == "\n" else f"{tmp_path}/liar {said}"
    assert done.stdout == wanted


@pytest.mark.host_root
@pytest.mark.parametrize("mounter", [str(STRANGER), "0"])
def test_commands_of_a_profile_on_such_a_fuse_are_its_mounters(
    tmp_path: Path, in_namespace: tuple[str, ...], mounter: str
) -> None:
    (tmp_path / "liar").mkdir()
    done = subprocess.run(
        [*in_namespace, mounter, "lies", "read"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{(b'text', '' if mounter == '0' else f'{tmp_path}/liar')}\n"
