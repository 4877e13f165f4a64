"""A client has taken over a volume emulator: what it may then do, tried from inside and seen in /proc.

The probe is the emulator itself with one function changed. Each request calls this function, which makes the
system call that the client asks for.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quickstart.errors import VolumeError
from quickstart.volume.emulator import Volume, served
from quickstart.volume.nbd import Command, Connection
from tests.contract.test_jail import assert_powerless, facts
from tests.contract.volumebox import LIMIT_S, LOCAL, WARM, errors_of
from tests.cprograms import PROTOCOL
from tests.sanitize.build import VOLUME

# What a program that was taken over would begin with. The first is allowed.
CALLS = (
    *("read", "openat", "openat2", "open_by_handle_at", "name_to_handle_at", "newfstatat", "readlinkat", "unlinkat", "mkdirat"),
    *("renameat2", "fchmodat", "mount", "chroot", "socket", "socketpair", "connect", "bind", "listen", "sendmsg", "recvmsg"),
    *("execve", "execveat", "clone", "clone3", "unshare", "setns", "ptrace", "process_vm_readv", "kill", "tgkill"),
    *("pidfd_getfd", "prctl", "prlimit64", "setuid", "capset", "seccomp", "mprotect", "mremap", "mmap", "memfd_create", "dup3"),
    *("fcntl", "ioctl", "bpf", "io_uring_setup", "userfaultfd", "perf_event_open", "keyctl", "sched_setscheduler", "shmget"),
)  # fmt: skip
# Those of the other two kinds that an x86-64 kernel takes: with x32's bit, and by int 0x80.
FOREIGN = ("x32", "i386") if platform.machine() == "x86_64" else ()
PROBE = """
#include <sys/syscall.h>
#include <unistd.h>
#include "volume.h"
static const long CALLS[] = {%s};
void __wrap_fault_apply(struct request *request);
void __wrap_fault_apply(struct request *request) {
    uint32_t which = (uint32_t)request->offset;
    if (request->offset >> 32 != 0x70726f62) return;
#ifdef __x86_64__
    if (which == sizeof CALLS / sizeof *CALLS) syscall(0x40000000 | SYS_read, 0, 0, 0);
    int number = 20;  /* getpid */
    if (which > sizeof CALLS / sizeof *CALLS) __asm__ volatile("int $0x80" : "+a"(number) : : "memory");
#endif
    /* For mmap: memory that can be executed, of nobody's. */
    if (which < sizeof CALLS / sizeof *CALLS) syscall(CALLS[which], 0, 4096, 7, 0x22, -1, 0);
}
"""


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("probe")
    (place / "probe.c").write_text(PROBE % ", ".join(f"SYS_{name}" for name in CALLS))
    sources = (place / "probe.c", *sorted(VOLUME.glob("*.c")))
    include = ("-I", VOLUME, "-I", PROTOCOL)
    words = ("cc", "-static", "-O2", *include, "-Wl,--wrap=fault_apply", "-o", place / "volume", *sources)
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return place / "volume"


def ask(volume: Volume, which: int) -> int:
    with Connection(volume.socket) as connection:
        connection.send(Command.READ, 0x70726F62 << 32 | which, 512)
        return connection.receive().error


def test_the_probe_lives_as_long_as_it_does_what_a_volume_does(probe: Path, image: Path) -> None:
    with served(probe, image, LOCAL) as volume:
        assert ask(volume, CALLS.index("read")) != 0
        assert errors_of(volume, 3) == [0, 0, 0]


@pytest.mark.parametrize("call", [*CALLS[1:], *FOREIGN])
def test_any_other_system_call_is_its_end(probe: Path, image: Path, call: str) -> None:
    how = f"was killed by signal {int(signal.SIGSYS)}"
    with pytest.raises(VolumeError, match=how), served(probe, image, LOCAL) as volume:
        ask(volume, (*CALLS, *FOREIGN).index(call))


def demand_jailed(process_id: int) -> dict[str, str]:
    status = facts(Path(f"/proc/{process_id}/status").read_text())
    assert_powerless(status)
    assert status["Seccomp"] == "2"
    return status


@pytest.mark.host_root
def test_it_is_nobody_else_and_has_only_what_it_serves(
    emulator: Path, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://user:secret@proxy.example")
    with served(emulator, image, WARM, instances=2) as volume, served(emulator, image, WARM) as other:
        place = Path(f"/proc/{volume.process.pid}")
        status, of_other = demand_jailed(volume.process.pid), demand_jailed(other.process.pid)
        (uid,), (other_uid,) = set(status["Uid"].split()), set(of_other["Uid"].split())
        assert int(uid) > 65535 and uid != other_uid
        assert set(status["Gid"].split()) == {uid} and status["Groups"] == ""
        named = {str(each.readlink()) for each in (place / "fd").iterdir()}
        files = {each for each in named if each.startswith("/") and not each.endswith(" (deleted)")}
        assert files == {"/dev/null", *map(str, (image, emulator, volume.log_file, volume.output_file))}
        assert len(named - files) == 2 + 2 + 1, named
        limits = (place / "limits").read_text()
        # What the image's written blocks may take; the log is smaller.
        assert "Max file size             41957393" in limits
        assert b"secret" not in (place / "environ").read_bytes()
        # Who started it sees to its time: a real volume does not compete with its host's processes.
        may = subprocess.run(["chrt", "-f", "1", "true"], capture_output=True, timeout=60, check=False)
        expected = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK if may.returncode == 0 else os.SCHED_OTHER
        assert os.sched_getscheduler(volume.process.pid) == expected


WITHIN = """
import sys
from pathlib import Path
from quickstart.volume.storage import load_model
from quickstart.volume.emulator import served
with served(Path(sys.argv[1]), Path(sys.argv[2]), load_model("local")) as volume:
    print(Path(f"/proc/{volume.process.pid}/status").read_text())
"""


def test_root_of_a_namespace_that_has_nobody_else_starts_it_without_rights(
    emulator: Path, image: Path
) -> None:
    words = ("unshare", "--user", "--map-root-user", "--", sys.executable, "-c", WITHIN, emulator, image)
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, timeout=LIMIT_S, check=True)
    found = facts(done.stdout.decode())
    assert_powerless(found)
    assert (found["Seccomp"], set(found["Uid"].split())) == ("2", {"0"})
