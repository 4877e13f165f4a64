"""Programs of an image that run on this host are root of the image and of nothing else. Each known way out is closed.

The image is a tree made by hand. The probe (confineprobe.c) does no harm even where it succeeds.
"""

from __future__ import annotations

import os
import resource
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from quickstart.errors import CommandError
from quickstart.host import door
from quickstart.reference import confine
from quickstart.store.store import Store
from tests.contract.ordinary import is_host_root, ordinary_user
from tests.cprograms import STRICT

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


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with Store(tmp_path_factory.mktemp("store")) as store:
        yield confine.confiner(store)


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("probe") / "probe"
    subprocess.run([confine.COMPILER, *STRICT, *confine.FLAGS, "-o", made, PROBE], check=True, timeout=120)
    return made


def furnish(tree: Path, probe: Path) -> Path:
    for name in ("bin", "dev", "proc", "sys", "etc", "tmp"):
        (tree / name).mkdir(parents=True)
    shutil.copy(door.tool_path("busybox"), tree / "bin/busybox")
    (tree / "bin/sh").symlink_to("busybox")
    shutil.copy(probe, tree / "bin/probe")
    return tree


@pytest.fixture
def tree(tmp_path: Path, probe: Path) -> Path:
    assert os.geteuid() == 0, "a root of its own needs root: run the tests with sudo"
    return furnish(tmp_path / "image", probe)


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


@pytest.fixture
def box(tree: Path, program: Path, tmp_path: Path) -> Box:
    return Box(tree, program, tmp_path / "log")


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


def test_what_a_package_s_script_does_not_need_is_refused(box: Box) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        # A name without a file, which whoever has the same network can connect to.
        listener.bind("\0quickstart-test-" + str(os.getpid()))
        listener.listen()
        check_refused(tried(box.run("probe", f"quickstart-test-{os.getpid()}")))


def test_with_the_network_there_are_no_unix_sockets(box: Box) -> None:
    name = f"quickstart-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as friend:
        friend.bind(f"\0{name}")
        found = tried(box.run("probe", name, network=True))
        friend.setblocking(False)
        with pytest.raises(BlockingIOError):
            friend.recv(1)
    assert {found.pop("unix"), found.pop("pair")} == {NO_FAMILY}
    assert not {"abstract", "pair-abstract"} & found.keys()
    check_refused(found)


def test_only_what_fetches_is_told_the_proxies(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may have a password in them, which a script could leave in the image."""
    monkeypatch.setenv("https_proxy", "http://user:secret@proxy.example")
    assert "secret" not in box.run("busybox", "env")
    assert "https_proxy=http://user:secret@proxy.example" in box.run("busybox", "env", network=True)


def test_an_ordinary_user_s_are_confined_as_well(probe: Path) -> None:
    # Outside pytest's directories, which nobody else may enter.
    with tempfile.TemporaryDirectory() as name, ordinary_user(opened(Path(name))) as user:
        furnish(user.home / "image", probe)
        shutil.chown(user.home / "image/tmp", *[user.home.stat().st_uid] * 2)
        log = user.home / "log"
        words = (sys.executable, "-c", AS_ROOT, user.home / "image", log, user.home / "store", "probe")
        done = user.run(*words, timeout_s=120)
        assert done.returncode == 0, done.stderr.decode()
        found = tried(log.read_text())
    # It is the host's root's, who is nobody there.
    assert found["core_pattern"] in (READ_ONLY, "Permission denied")
    check_refused({"core_pattern": READ_ONLY} | {k: v for k, v in found.items() if k != "core_pattern"})


def test_its_capabilities_are_those_of_files_and_users(box: Box) -> None:
    said = box.shell("grep -E '^(Cap|Seccomp:)' /proc/self/status")
    found = {name: value.strip() for name, _, value in (line.partition(":") for line in said.splitlines())}
    assert found.pop("Seccomp") == "2"
    none, kept = f"{0:016x}", f"{KEPT:016x}"
    assert found == {"CapInh": none, "CapPrm": kept, "CapEff": kept, "CapBnd": kept, "CapAmb": none}


def test_it_may_be_any_user_and_give_files_away(box: Box, tree: Path) -> None:
    """What dpkg and its scripts live by."""
    box.shell(
        "touch /etc/x; chown 33:34 /etc/x; chmod 4750 /etc/x; setpriv --help >/dev/null 2>&1; chroot / true"
    )
    status = (tree / "etc/x").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (33, 34, 0o4750)


def test_it_has_no_devices_or_control_groups_and_a_proc_of_its_own(box: Box) -> None:
    said = box.shell(
        "ls -A /sys; echo; cut -d' ' -f5 /proc/self/mountinfo; echo; ls /proc | grep -E '^[0-9]+$' | wc -l"
    )
    sys_names, mounts, processes = (
        said.split("\n\n") if said.startswith("\n") is False else ("", *said[1:].split("\n\n"))
    )
    nodes = {f"/dev/{name}" for name in ("full", "null", "random", "tty", "urandom", "zero")}
    assert sys_names == ""
    assert set(mounts.split()) == {"/", "/dev", "/proc", "/sys", *nodes}
    assert int(processes) <= 5


def test_its_network_is_its_own(box: Box) -> None:
    said = box.shell(
        "grep -c : /proc/net/dev; ping -c 1 -W 5 127.0.0.1 >/dev/null 2>&1; ifconfig lo | grep -c UP"
    )
    assert said.split() == ["1", "1"]


def test_its_streams_are_pipes_and_nobody_s_files(box: Box) -> None:
    """Root may change mode and owner of what is behind a descriptor, and open it again by /proc."""
    said = box.shell("for fd in 0 1 2; do stat -L -c %F /proc/self/fd/$fd; done; wc -c")
    assert said.split() == ["fifo"] * 3 + ["0"]


def test_nothing_of_ours_is_inherited(box: Box) -> None:
    """Not even what somebody has left open for programs that he starts."""
    with (Path("/etc/passwd")).open() as file:
        os.set_inheritable(file.fileno(), True)
        done = subprocess.run(
            [box.program, box.tree, "/bin/busybox", "ls", "-l", "/proc/self/fd"],
            stdin=subprocess.PIPE, capture_output=True, timeout=60, check=True, close_fds=False,
        )  # fmt: skip
    assert b"passwd" not in done.stdout


@pytest.mark.parametrize("name", ["dev", "proc", "sys"])
def test_a_link_in_place_of_a_directory_leads_nowhere(
    box: Box, tree: Path, tmp_path: Path, name: str
) -> None:
    """A script of a package left it; the next one would have got a /dev made on the host."""
    (outside := tmp_path / "outside").mkdir()
    (tree / name).rmdir()
    (tree / name).symlink_to(outside)
    with pytest.raises(CommandError) as caught:
        box.run("busybox", "true")
    assert caught.value.returncode == 125
    assert f"/{name}" in caught.value.tail
    assert not list(outside.iterdir())
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize(
    ("script", "status"), [("exit 3", 3), ("kill -9 $$", 137), ("none-such", 127), ("exec /etc", 126)]
)
def test_its_status_is_the_command_s(box: Box, script: str, status: int) -> None:
    with pytest.raises(CommandError) as caught:
        box.shell(script)
    assert caught.value.returncode == status


def test_a_command_that_is_not_there(box: Box) -> None:
    with pytest.raises(CommandError) as caught:
        box.run("none-such")
    assert (caught.value.returncode, caught.value.tail) == (127, "none-such: not found")


def test_what_it_leaves_running_ends_with_it(box: Box) -> None:
    box.shell(
        "(trap '' TERM HUP; exec >/dev/null 2>&1; touch /tmp/started; exec busybox setsid busybox sleep 54322) &\n"
        "until test -e /tmp/started; do sleep 0.05; done; exit 0"
    )
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [line for line in lines if b"54322" in line]


def running(number: int) -> Iterator[int]:
    """The processes of that user, as this side has them."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if path.stat().st_uid == number:
                yield int(path.name)


def test_a_user_of_the_host_with_the_same_id_does_not_get_in(box: Box, tree: Path) -> None:
    """By /proc/PID/root he gets at a socket of the image, and sends its root a descriptor of the host's root directory."""
    outsider = 54_321
    (tree / "etc/passwd").write_text(f"root:x:0:0::/:/bin/sh\nfriend:x:{outsider}:{outsider}::/:/bin/sh\n")
    script = "exec /bin/busybox su friend -c 'echo here; exec /bin/busybox sleep 300'"
    words = [str(box.program), str(box.tree), "/bin/sh", "-c", script]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"here\n"
            (friend,) = running(outsider)
            done = subprocess.run(
                ["/bin/ls", f"/proc/{friend}/root/"],
                user=outsider, group=outsider, extra_groups=[], capture_output=True, timeout=60, check=False,
            )  # fmt: skip
        finally:
            process.kill()
    assert b"Permission denied" in done.stderr, done
    assert done.stdout == b""


def test_its_ids_are_those_that_they_were(box: Box) -> None:
    """Owners on the disk stay what they are."""
    own = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    said = box.shell("cat /proc/self/uid_map; cat /proc/self/setgroups").splitlines()
    assert [line.split() for line in said[:-1]] == [[first, first, count] for first, _, count in own]
    assert said[-1] == "allow"


def test_it_leaves_no_core_to_the_host(box: Box) -> None:
    """A handler in core_pattern is root of the host's, and gets a core whatever the limit is, but for 1 (fs/coredump.c)."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    limits = box.shell("grep '^Max core' /proc/self/limits")
    assert limits.split()[4:6] == ["0" if hard == 0 else "1"] * 2


def test_it_registers_no_interpreter(box: Box) -> None:
    """Whatever the kernel is: it finds no list of interpreters, and can bring none into sight (the probe tries that)."""
    said = box.shell(
        "find / -xdev -name register; cut -d' ' -f5- /proc/self/mountinfo; mount -t binfmt_misc b /tmp || echo no"
    )
    assert "binfmt" not in said and "register" not in said
    assert said.endswith("no\n")


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


def test_it_ends_with_us(box: Box) -> None:
    """Whoever started it may be killed."""
    words = [
        str(box.program),
        str(box.tree),
        "/bin/busybox",
        "sh",
        "-c",
        "echo here; exec /bin/busybox sleep 300",
    ]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        process.kill()
        # All that could write to it is gone when it ends.
        assert select.select([process.stdout], [], [], 60)[0]
        assert process.stdout.read() == b""


def test_a_bare_chroot_is_no_way_out(box: Box, tmp_path: Path) -> None:
    """Its "/" is no mount, which pivot_root(2) cannot leave; then chroot(2) once more would lead out of it."""
    (outer := tmp_path / "outer").mkdir()
    for name in ("proc", "dev"):
        (outer / name).mkdir()
    shutil.copy(box.program, outer / "confiner")
    box.tree.rename(outer / "image")
    script = """
    mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" || exit
    before=$(cut -d" " -f5 /proc/self/mountinfo | sort)
    chroot "$0" /confiner /image /bin/busybox sh -c '
        busybox ls /; for up in 1 2 3 4 5 6; do cd ..; done; busybox ls -d outer'
    test "$before" = "$(cut -d" " -f5 /proc/self/mountinfo | sort)" && echo the same
    """
    words = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--"]
    done = subprocess.run(
        [*words, "sh", "-c", script, outer],
        stdin=subprocess.PIPE,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.decode().split("\n") == ["bin", "dev", "etc", "proc", "sys", "tmp", "the same", ""], (
        done.stderr
    )


class Unpacking:
    """Runs programs of the host that have an image as their target."""

    def __init__(self, box: Box) -> None:
        self._box = box

    def shell(self, script: str) -> list[str]:
        self._box.log.unlink(missing_ok=True)
        words = ("sh", "-c", script)
        confine.run_in(
            self._box.tree, words, self._box.program, self._box.log, {}, network=True, host_tools=True
        )
        return self._box.log.read_text().splitlines()


@pytest.fixture
def unpacking(box: Box) -> Unpacking:
    return Unpacking(box)


def test_a_program_of_the_host_sees_programs_and_the_image_alone(unpacking: Unpacking, tree: Path) -> None:
    """As debootstrap, which unpacks packages of an archive that somebody else may have signed."""
    roots = {
        "bin",
        "dev",
        "etc",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "proc",
        "root",
        "sbin",
        "sys",
        "target",
        "tmp",
        "usr",
    }
    assert set(unpacking.shell("ls -A /")) <= roots
    allowed = {
        "alternatives",
        "apt",
        "gai.conf",
        "group",
        "host.conf",
        "hosts",
        "ld.so.cache",
        "nsswitch.conf",
        "passwd",
        "resolv.conf",
    }
    assert set(unpacking.shell("ls -A /etc")) <= {*allowed, "wgetrc"}
    assert set(unpacking.shell("ls -A /root /sys /tmp; ls /target")) >= {path.name for path in tree.iterdir()}


def test_a_program_of_the_host_writes_to_the_image_alone(unpacking: Unpacking, tree: Path) -> None:
    said = unpacking.shell(
        """
        for place in / /usr /usr/bin /etc /etc/alternatives /root /sys /proc/sys/kernel; do
            touch "$place/quickstart-test" 2>/dev/null && echo "$place"
        done
        for file in /etc/hosts /etc/resolv.conf /usr/bin/env /dev/null; do
            chmod --reference="$file" "$file" 2>/dev/null && echo "$file"
        done
        mkdir /target/made && touch /target/made/file && chown 33:34 /target/made/file && chmod 4755 /target/made/file
        mknod /target/made/disk b 7 0 2>/dev/null && echo mknod
        mount -t tmpfs none /tmp 2>/dev/null && echo mount
        grep -E '^(CapEff|Seccomp):' /proc/self/status
        """
    )
    assert [line.split() for line in said] == [["CapEff:", f"{KEPT:016x}"], ["Seccomp:", "2"]]
    status = (tree / "made/file").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (33, 34, 0o4755)


def test_the_nodes_for_debootstrap_do_not_stay(unpacking: Unpacking, tree: Path) -> None:
    assert {"console", "null", "ptmx"} <= set(unpacking.shell("ls /target/dev"))
    assert not list((tree / "dev").iterdir())


@pytest.mark.parametrize("name", ["usr", "bin", "etc"])
def test_links_of_the_image_lead_a_program_of_the_host_nowhere(
    unpacking: Unpacking, tree: Path, tmp_path: Path, name: str
) -> None:
    """A package has a link where another has a directory: tar(1) refuses most of that; this is where none is refused."""
    (outside := tmp_path / "outside").mkdir()
    shutil.rmtree(tree / name, ignore_errors=True)
    (tree / name).symlink_to(outside)
    assert unpacking.shell(f"touch /target/{name}/x 2>/dev/null && echo written; :") == []
    assert not list(outside.iterdir())


def test_an_ordinary_user_unpacks_as_well(probe: Path) -> None:
    with tempfile.TemporaryDirectory() as name, ordinary_user(opened(Path(name))) as user:
        furnish(user.home / "image", probe)
        shutil.chown(user.home / "image", *[user.home.stat().st_uid] * 2)
        log = user.home / "log"
        script = "touch /target/made && ls /target/dev/null && command -v debootstrap"
        as_root = AS_ROOT.replace("log, {})", "log, {}, network=True, host_tools=True)")
        words = (
            sys.executable,
            "-c",
            as_root,
            user.home / "image",
            log,
            user.home / "store",
            "sh",
            "-c",
            script,
        )
        done = user.run(*words, timeout_s=120)
        assert done.returncode == 0, done.stderr.decode()
        assert log.read_text().splitlines() == ["/target/dev/null", "/usr/sbin/debootstrap"]
        assert (user.home / "image/made").stat().st_uid == user.home.stat().st_uid
