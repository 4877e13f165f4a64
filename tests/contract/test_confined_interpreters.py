"""Programs of an image get no interpreter of the host's (binfmt_misc)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from quickstart.host import door
from tests.contract.confinebox import Box

# A user namespace with an interpreter that is kept open in its own list, as qemu-user-static has it in the host's.
INTERPRETER = """
mount -t binfmt_misc binfmt_misc "$0/binfmt" || exit 99
echo ":quickstart:M::QSFM::$0/echo:FLAG" >"$0/binfmt/register" && "$1" || exit 98
shift
exec "$@" /bin/foreign
"""


class HostInterpreter:
    """An image with a program that only an interpreter of the host's can run."""

    def __init__(self, box: Box, place: Path) -> None:
        self._box, self._place = box, place
        self.foreign = box.tree / "bin/foreign"
        self.foreign.write_bytes(b"QSFM" + bytes(64))
        self.foreign.chmod(0o755)
        shutil.copy(door.tool_path("busybox"), place / "echo")
        (place / "binfmt").mkdir()

    def run(self, flag: str, *, old_kernel: bool = False) -> subprocess.CompletedProcess[bytes] | None:
        """The confiner beside such an interpreter; None where the kernel has one list for all, which is the host's."""
        script = INTERPRETER.replace("FLAG", flag)
        before = (sys.executable, "-c", OLD_KERNEL) if old_kernel else ()
        words: list[str | Path] = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
        done = subprocess.run(
            [*words, self._place, self.foreign, *before, self._box.program, self._box.tree],
            stdin=subprocess.PIPE, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        if done.returncode == 99:
            release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
            assert release < (6, 7) or "binfmt_misc" not in Path("/proc/filesystems").read_text()
            return None
        assert done.stdout.decode().splitlines() == [str(self.foreign)], done.stderr
        return done


def test_the_host_s_interpreters_are_none_of_its_own(box: Box, tmp_path: Path) -> None:
    """One that is kept open is a file of the host's: by /proc/PID/exe root of the image would change its mode and owner."""
    done = HostInterpreter(box, tmp_path).run("F")
    assert done is None or done.returncode == 126


# As before Linux 6.7, where the confiner gets no list of its own: a filter (seccomp(2)) fails the call for the mount namespace
# in which it would make one, and no other call.
OLD_KERNEL = """
import ctypes, os, struct, sys
UNSHARE = {"x86_64": 272, "aarch64": 97}[os.uname().machine]
LOAD, IS, RETURN, NEWNS, ALLOW, ENOSPC = 0x20, 0x15, 0x06, 0x20000, 0x7FFF0000, 0x50000 + 28
steps = ((LOAD, 0, 0, 0), (IS, 0, 3, UNSHARE), (LOAD, 0, 0, 16), (IS, 0, 1, NEWNS), (RETURN, 0, 0, ENOSPC), (RETURN, 0, 0, ALLOW))
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code)))
assert ctypes.CDLL(None).prctl(22, 2, ctypes.c_void_p(ctypes.addressof(program)), 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_nothing_starts_beside_an_open_interpreter(box: Box, tmp_path: Path) -> None:
    """Where it cannot be kept out of sight."""
    done = HostInterpreter(box, tmp_path).run("F", old_kernel=True)
    assert done is None or (
        done.returncode == 125 and b"interpreter quickstart (binfmt_misc, flag F)" in done.stderr
    ), done


def test_an_interpreter_that_is_opened_by_name_is_harmless(box: Box, tmp_path: Path) -> None:
    """Its name is looked up in the image, which has no such program: that is no reason to refuse."""
    done = HostInterpreter(box, tmp_path).run("", old_kernel=True)
    assert done is None or done.returncode in (126, 127), done
