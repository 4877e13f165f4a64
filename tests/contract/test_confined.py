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
from tests.contract.confinebox import (
    AS_ROOT,
    KEPT,
    NO_FAMILY,
    READ_ONLY,
    Box,
    check_refused,
    furnish,
    opened,
    tried,
)
from tests.contract.ordinary import ordinary_user


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
