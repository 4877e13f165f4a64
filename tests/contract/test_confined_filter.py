"""The confiner's system call filter of an arm64 machine: compiled here with arm64's numbers, and run by an interpreter.

arm64 uses the kernel's generic numbers (include/uapi/asm-generic/unistd.h, which comes with the C library's
headers).
"""

from __future__ import annotations

import re
import struct
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from quickstart.inspect.unit.seccomp import RET_ALLOW, RET_ERRNO
from tests.unit.test_seccomp import verdict

HERE = Path(__file__).parent
GENERIC = Path("/usr/include/asm-generic/unistd.h")
ARM64 = "other"
EPERM, ENOSYS, EAFNOSUPPORT = (RET_ERRNO | errno for errno in (1, 38, 97))
# By hand, of arm64's table: the header is that of the machine meant.
BY_HAND = {"umount2": 39, "mount": 40, "pivot_root": 41, "ptrace": 117, "setns": 268, "bpf": 280}
IOCTL, UNSHARE, SOCKET, CLONE, EXECVE = 29, 97, 198, 220, 221
REFUSED = """
mount umount2 pivot_root open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr open_tree_attr setns
bpf perf_event_open kexec_load kexec_file_load init_module finit_module delete_module reboot syslog
add_key request_key keyctl userfaultfd fanotify_init
ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd
swapon swapoff open_by_handle_at quotactl quotactl_fd acct vhangup
settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname
"""
# Newer than some headers.
LATER = {"quotactl_fd": 443, "open_tree_attr": 467}
UNKNOWN = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register")


def generic_numbers() -> dict[str, int]:
    pattern = re.compile(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", re.MULTILINE)
    return {**LATER, **{name: int(number) for name, number in pattern.findall(GENERIC.read_text())}}


@pytest.fixture(scope="module", params=[False, True], ids=["without the network", "with the network"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    place = tmp_path_factory.mktemp("arm64")
    (place / "sys").mkdir()
    names = re.findall(r"^#define __NR_(\w+)", GENERIC.read_text(), re.MULTILINE)
    shim = "".join(f"#ifdef __NR_{name}\n#define SYS_{name} __NR_{name}\n#endif\n" for name in names)
    (place / "sys/syscall.h").write_text(f'#include "{GENERIC}"\n{shim}')
    confiner = resources.files("quickstart.reference").joinpath("confiner")
    with resources.as_file(confiner) as folder:
        flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{place}", f"-I{folder}"]
        forced = ["-include", str(HERE / "armfilter.h")]
        subprocess.run(
            ["gcc", *flags, *forced, "-c", "-o", place / "filter.o", folder / "filter.c"],
            check=True,
            timeout=120,
        )
        subprocess.run(
            ["gcc", *flags, "-o", place / "out", HERE / "filterout.c", place / "filter.o"],
            check=True,
            timeout=120,
        )
    words = [str(place / "out"), *(["network"] if request.param else [])]
    done = subprocess.run(words, capture_output=True, timeout=60, check=True)
    # The interpreter reads big-endian steps.
    return b"".join(struct.pack(">HBBI", *step) for step in struct.iter_unpack("<HBBI", done.stdout))


def test_what_is_refused_on_arm64_is_what_was_meant(program: bytes) -> None:
    numbers = generic_numbers()
    assert BY_HAND.items() <= numbers.items()
    found = {number: verdict(program, ARM64, number) for number in range(600)}
    assert {number for number, answer in found.items() if answer == EPERM} == {
        numbers[name] for name in REFUSED.split()
    }
    assert {number for number, answer in found.items() if answer == ENOSYS} == {
        numbers[name] for name in UNKNOWN
    }
    assert found[EXECVE] == found[UNSHARE] == RET_ALLOW


def test_calls_that_depend_on_arguments(program: bytes) -> None:
    for flag in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x04000000, 0x08000000, 0x02000000):
        assert verdict(program, ARM64, UNSHARE, flag) == verdict(program, ARM64, CLONE, flag) == EPERM
    assert verdict(program, ARM64, UNSHARE, 0x80) == EPERM
    assert verdict(program, ARM64, CLONE, 0x01200011) == RET_ALLOW
    assert verdict(program, ARM64, IOCTL, 0, 0x5412) == EPERM
    assert verdict(program, ARM64, IOCTL, 0, 0x5401) == RET_ALLOW
    assert verdict(program, ARM64, SOCKET, 38, 5, 0) == EAFNOSUPPORT
    assert verdict(program, ARM64, SOCKET, 2, 1, 0) == RET_ALLOW


def test_calls_of_another_architecture_are_unknown(program: bytes) -> None:
    assert {verdict(program, other, 63) for other in ("x86-64", "i386")} == {ENOSYS}
