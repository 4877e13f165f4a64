"""Runs programs of an image that is a tree made by hand; the probe among them tries each known way out."""

from __future__ import annotations

import shutil
from pathlib import Path

from quickstart.host import door
from quickstart.reference import confine
from tests.contract.ordinary import is_host_root

PROBE = Path(__file__).with_name("confineprobe.c")
REFUSED, READ_ONLY, UNKNOWN = "Operation not permitted", "Read-only file system", "Function not implemented"
NO_FAMILY = "Address family not supported by protocol"
# All but these are refused with EPERM.
OTHERWISE = {
    "clone3": UNKNOWN,
    "io_uring_setup": UNKNOWN,
    "x32": UNKNOWN,
    "first-program": "Permission denied",
    "first-root": "Permission denied",
    **dict.fromkeys(("chmod-null", "chown-null", "write-sys", "uid_map"), READ_ONLY),
    **dict.fromkeys(("packet", "alg", "vsock", "netlink-audit", "pair-tipc"), NO_FAMILY),
    **dict.fromkeys(("write-null", "unix", "pair", "inet", "inet6", "tcp", "udp", "netlink-route"), "done"),
    "abstract": "Connection refused",
    # Where the host's /proc has it mounted; the image's /proc has nothing of that.
    "binfmt-register": "No such file or directory",
}
# CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SYS_CHROOT, SETFCAP: capability.h.
KEPT = sum(1 << each for each in (0, 1, 3, 4, 5, 6, 7, 18, 31))
# For a user who is not root.
AS_ROOT = """
import sys
from pathlib import Path
from quickstart.host import userns
from quickstart.reference import confine
from quickstart.store.store import Store
userns.become_root()
tree, log = Path(sys.argv[1]), Path(sys.argv[2])
with Store(Path(sys.argv[3])) as store:
    confine.run_in(tree, sys.argv[4:], confine.confiner(store), log, {})
"""


def furnish(tree: Path, probe: Path) -> Path:
    for name in ("bin", "dev", "proc", "sys", "etc", "tmp"):
        (tree / name).mkdir(parents=True)
    shutil.copy(door.tool_path("busybox"), tree / "bin/busybox")
    (tree / "bin/sh").symlink_to("busybox")
    shutil.copy(probe, tree / "bin/probe")
    return tree


class Box:
    """Runs programs of an image."""

    def __init__(self, tree: Path, program: Path, log: Path) -> None:
        self.tree, self.program, self.log = tree, program, log

    def run(self, *argv: str, network: bool = False) -> str:
        """What it said, status 0."""
        self.log.unlink(missing_ok=True)
        confine.run_in(self.tree, argv, self.program, self.log, {}, network=network)
        return self.log.read_text()

    def shell(self, script: str) -> str:
        return self.run(
            "sh",
            "-c",
            f'PATH=/bin; for each in $(busybox --list); do alias $each="busybox $each"; done\n{script}',
        )


def opened(directory: Path) -> Path:
    directory.chmod(0o755)
    return directory


def tried(said: str) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in said.splitlines())


def check_refused(found: dict[str, str]) -> None:
    # The host's root owns it, who is nobody in a user namespace.
    assert found.pop("core_pattern") in ((READ_ONLY,) if is_host_root() else (READ_ONLY, "Permission denied"))
    # Not there where binfmt_misc is a module that nobody has loaded.
    assert found.pop("binfmt-new") in (READ_ONLY, "No such file or directory")
    # Gone where the kernel has no such file, or no such calls.
    assert found.pop("sysrq") in (READ_ONLY, "No such file or directory")
    assert found.pop("i386", UNKNOWN) in (UNKNOWN, "killed")
    assert {"mount", "ptrace", "keyctl", "unshare-user", "clone-user", "mknod-disk"} <= found.keys()
    expected = {name: OTHERWISE.get(name, REFUSED) for name in found}
    assert found == expected
