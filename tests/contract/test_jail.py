"""The user and the privileges of our jailed programs, seen in /proc: started by root, and by root of a user namespace."""

from __future__ import annotations

import os
import re
import resource
import select
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

import pytest

from quickstart.errors import BadInputError, HostLacksError
from quickstart.host import door
from quickstart.host.identity import Identity, _in_use, unprivileged
from quickstart.host.namespaces import own_namespaces
from quickstart.launch import accel
from quickstart.launch.jail import (
    SANDBOX,
    Jail,
    demand_room,
    given,
    kvm_group,
    largest_file,
    limited,
    made_jail,
    put_kernel,
)
from quickstart.model import MIB
from tests.contract.test_door import Lifeline

LIMIT_S = 30.0
STATUS = "import sys; print(open('/proc/self/status').read())"
# The bits of a program that has nothing: it is what it is for good.
NOTHING = {"CapInh": 0, "CapPrm": 0, "CapEff": 0, "CapBnd": 0, "CapAmb": 0}
PROGRAM = f"""
import sys
import time
from quickstart.host import door
from quickstart.host.identity import unprivileged
with unprivileged() as identity, door.background(["python3", "-c", {STATUS!r}], output=1, identity=identity) as process:
    sys.exit(process.wait())
"""


@pytest.fixture(autouse=True)
def _root() -> None:
    assert os.geteuid() == 0, "who becomes another user has to be root: run these tests with sudo"


def facts(text: str) -> dict[str, str]:
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def assert_powerless(found: dict[str, str]) -> None:
    assert {name: int(found[name], 16) for name in NOTHING} == NOTHING
    assert found["NoNewPrivs"] == "1"


@pytest.mark.host_root
def test_root_starts_it_as_nobody_else(tmp_path: Path) -> None:
    seen = []
    for number in (1, 2):
        log = tmp_path / f"log{number}"
        with (
            unprivileged() as identity,
            door.background(["python3", "-c", STATUS], log=log, identity=identity) as process,
        ):
            assert process.wait(LIMIT_S) == 0
        found = facts(log.read_text())
        assert_powerless(found)
        (uid,) = set(found["Uid"].split())
        assert set(found["Gid"].split()) == {uid} and found["Groups"] == ""
        seen.append(int(uid))
    assert all(uid > 65535 for uid in seen) and len(set(seen)) == 2


@pytest.mark.host_root
@pytest.mark.parametrize(("mapped", "other"), [(65536, True), (1, False)])
def test_root_of_a_namespace_does_so_with_what_is_mapped(mapped: int, other: bool) -> None:
    """A namespace whose root is a user outside that has nothing else; where only he is mapped, his rights go all the same."""
    with subprocess.Popen(["unshare", "--user", "--", "sleep", "600"]) as holder:
        try:
            inside, outside = Path(f"/proc/{holder.pid}/ns/user"), Path("/proc/self/ns/user")
            while inside.readlink() == outside.readlink():
                assert holder.poll() is None
            for name in ("uid_map", "gid_map"):
                Path(f"/proc/{holder.pid}/{name}").write_text(f"0 100000 {mapped}\n")
            enter = ("nsenter", f"--user={inside}", "--setuid", "0", "--setgid", "0", "--")
            words = [*enter, sys.executable, "-c", PROGRAM]
            done = subprocess.run(words, stdout=subprocess.PIPE, timeout=LIMIT_S, check=True)
        finally:
            holder.kill()
    found = facts(done.stdout.decode())
    assert_powerless(found)
    (uid,) = set(found["Uid"].split())
    assert (uid != "0") == other


CLAIMED = """
import dataclasses, random, sys
from quickstart.host import identity
# As two processes do that have taken the same number.
identity.secrets.randbelow = lambda count: 5
identity._standing = lambda: identity.Standing(
    euid=0, capabilities=(1 << 41) - 1, uid_map={extents}, gid_map={extents}, setgroups=True)
with identity.unprivileged() as found:
    print(found.uid, flush=True)
    sys.stdin.read()
"""


def test_the_ids_of_two_namespaces_of_a_user_differ_while_both_live() -> None:
    """Inside they may look alike: of two namespaces that map in other ways, what counts is who they are outside."""
    whole = "((0, 1000, 1), (1, 100000, 65535))"
    moved = "((0, 1000, 1), (1, 99999, 65536))"
    with ExitStack() as stack:
        said = []
        for extents in (whole, whole, moved, moved):
            words = [sys.executable, "-c", CLAIMED.format(extents=extents)]
            pipe = subprocess.PIPE
            process = stack.enter_context(subprocess.Popen(words, stdin=pipe, stdout=pipe))
            assert process.stdout is not None
            said.append(int(process.stdout.readline()))
    # Outside 140004, 140005, 140003, and 140006: what lies between the last two is claimed.
    assert said == [40_005, 40_006, 40_005, 40_008]


SQUATTED = """
import os, socket, sys
from quickstart.errors import HostLacksError
from quickstart.host import identity
extents = ((0, 1000, 1), (1, 100000, 200))
identity._standing = lambda: identity.Standing(
    euid=0, capabilities=(1 << 41) - 1, uid_map=extents, gid_map=extents, setgroups=True)
ready, ended = os.pipe(), os.pipe()
if os.fork() == 0:
    os.close(ended[1])
    os.setgid({owner})
    os.setuid({owner})
    held = [socket.socket(socket.AF_UNIX) for _ in range(400)]
    for number, each in enumerate(held):
        each.bind("\\0quickstart-" + ("uid" if number < 200 else "gid") + f"-{{100000 + number % 200}}")
        if {listens}:
            each.listen(9)
    os.write(ready[1], b"x")
    os.read(ended[0], 1)
    os._exit(0)
os.close(ended[0])
os.read(ready[0], 1)
identity._in_use = lambda: frozenset(("Uid", each) for each in range(1, 201) if each != {free})
try:
    with identity.unprivileged() as found:
        print(found.uid)
except HostLacksError:
    print("none")
"""


@pytest.mark.parametrize(
    ("owner", "listens", "free", "expected"),
    [(4343, False, 150, "150"), (4343, True, 150, "150"), (4343, True, 0, "none"), (0, True, 150, "none")],
)
def test_the_claims_of_another_user_keep_no_program_from_its_start(
    owner: int, listens: bool, free: int, expected: str
) -> None:
    """In a small namespace they may have claimed all IDs: one is free that no process has. Our own claims count."""
    script = SQUATTED.format(owner=owner, listens=listens, free=free)
    words = [*own_namespaces(network=True), sys.executable, "-c", script]
    done = subprocess.run(words, stdout=subprocess.PIPE, timeout=LIMIT_S, check=True)
    assert done.stdout.decode().strip() == expected


def test_the_ids_of_the_processes_that_run() -> None:
    assert {("Uid", os.geteuid()), ("Gid", os.getegid())} <= _in_use()


@pytest.mark.parametrize("capabilities", ["-all", "-all,+dac_read_search"])
def test_a_user_keeps_no_capability_of_his(capabilities: str) -> None:
    """Who is not root starts it as himself, with nothing that he may have been given beside."""
    words = ("--inh-caps", capabilities, "--ambient-caps", capabilities, "--bounding-set", capabilities)
    user = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *words)
    command = [sys.executable, "-c", PROGRAM]
    if capabilities == "-all":
        # He may not be able to read where we lie.
        command = ["setpriv", *door.identity_words(Identity()), "python3", "-c", STATUS]
    done = subprocess.run([*user, *command], stdout=subprocess.PIPE, timeout=LIMIT_S, check=True)
    found = facts(done.stdout.decode())
    assert {int(found[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert found["NoNewPrivs"] == "1" and set(found["Uid"].split()) == {"65534"}


def test_it_dies_with_us_although_it_is_another(tmp_path: Path) -> None:
    line = Lifeline()
    program = (
        "import os, pathlib, sys\nfrom quickstart.host import door\n"
        "from quickstart.host.identity import unprivileged\n"
        "os.dup2(int(sys.argv[1]), 9)\nos.close(int(sys.argv[1]))\n"
        "argv = ['sh', '-c', 'echo begun >&9; exec sleep 600']\n"
        "more = dict(log=pathlib.Path(sys.argv[2]), pass_fds=[9])\n"
        "with unprivileged() as identity, door.background(argv, identity=identity, **more) as process:\n"
        "    os.close(9)\n    process.wait()"
    )
    words = [sys.executable, "-c", program, str(line.writer), str(tmp_path / "log")]
    parent = subprocess.Popen(words, pass_fds=[line.writer])
    try:
        assert select.select([line.reader], [], [], LIMIT_S)[0]
        assert os.read(line.reader, 6) == b"begun\n"
    finally:
        parent.kill()
        parent.wait()
    assert line.all_gone()


def test_what_is_in_a_jail_is_for_who_is_in_it(tmp_path: Path) -> None:
    place, kernel = tmp_path / "place", tmp_path / "kernel"
    place.mkdir(mode=0o700)
    kernel.write_bytes(b"a kernel")
    kernel.chmod(0o600)
    (place / "console.log").write_text("ours")
    with made_jail(place) as jail:
        demand_its_own(place, jail, kernel, tmp_path / "log")


def demand_its_own(place: Path, jail: Jail, kernel: Path, log: Path) -> None:
    copy = put_kernel(jail, kernel)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert stat.S_IMODE(jail.directory.stat().st_mode) == 0o700
    assert (place.stat().st_uid, jail.directory.stat().st_uid) == (0, jail.identity.uid)
    tries = (
        "cat kernel; echo x >mine && cat mine; rm -f kernel; echo x >../new; echo x >../console.log; ls .."
    )
    # pytest's own directories are for their owner alone: nobody else gets in by their names.
    argv = ["sh", "-c", tries]
    with door.background(argv, log=log, identity=jail.identity, cwd=jail.directory) as process:
        process.wait(LIMIT_S)
    said = log.read_text()
    assert said.startswith("a kernelx\n")
    assert said.count("Permission denied") == 3
    assert (place / "console.log").read_text() == "ours" and not (place / "new").exists()
    assert copy == Path("kernel")


def test_only_a_regular_file_goes_into_a_jail(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    (tmp_path / "link").symlink_to("/etc/shadow")
    os.mkfifo(tmp_path / "fifo")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(300 * MIB)
    with made_jail(tmp_path / "place") as jail:
        for name in ("link", "fifo", "huge"):
            with pytest.raises(BadInputError, match=name):
                put_kernel(jail, tmp_path / name)
        assert list(jail.directory.iterdir()) == []
        assert given(jail, jail.directory) == Path(jail.directory.name)
    with pytest.raises(BadInputError, match="the initramfs has 300 MiB, the machine 256 MiB"):
        demand_room([tmp_path / "huge"], 256)


def test_a_machine_of_others_is_not_larger_than_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest may say 64 GiB; a guest of the usual size takes less than it has."""
    monkeypatch.setattr("quickstart.launch.jail.available_bytes", lambda: 3000 * MIB)
    demand_room([], 3000)
    with pytest.raises(
        HostLacksError, match="the machine has 3001 MiB of memory, the host 3000 MiB that are"
    ):
        demand_room([], 3001)
    monkeypatch.setattr("quickstart.launch.jail.available_bytes", lambda: 100 * MIB)
    demand_room([], 2048)
    with pytest.raises(HostLacksError):
        demand_room([], 2049)


@pytest.mark.parametrize(
    ("form", "virtual_bytes", "expected"),
    [("raw", 640 * MIB, (640 + 10 + 64) * MIB), ("qcow2", 640 * MIB, None), ("none", 0, 64 * MIB)],
)
def test_no_file_of_a_qemu_gets_longer_than_its_disk_needs(
    tmp_path: Path, form: str, virtual_bytes: int, expected: int | None
) -> None:
    disk = None
    if form != "none":
        image = tmp_path / "disk"
        door.run(["qemu-img", "create", "-f", form, image, str(virtual_bytes)], timeout_s=LIMIT_S)
        disk = os.open(image, os.O_RDONLY)
        expected = expected or (640 + 10 + 64) * MIB + image.stat().st_size
    words = limited(("-M", "none", "-nodefaults", "-display", "none"), largest_file(disk, form))
    with door.background(words) as process:
        place = Path(f"/proc/{process.pid}")
        until = time.monotonic() + LIMIT_S
        while not (place / "comm").read_text().startswith("qemu") and time.monotonic() < until:
            assert process.poll() is None
            time.sleep(0.01)
        limits = (place / "limits").read_text()
    assert re.search(rf"^Max file size +{expected} +{expected} ", limits, re.MULTILINE), limits
    # With 1 no handler of the host's gets a core, either (core_pattern with a pipe).
    core = 0 if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0 else 1
    assert re.search(rf"^Max core file size +{core} +{core} ", limits, re.MULTILINE), limits
    if disk is not None:
        os.close(disk)


def test_a_qemu_that_only_reads_its_disk_writes_little(tmp_path: Path) -> None:
    image = tmp_path / "disk"
    door.run(["qemu-img", "create", "-f", "qcow2", image, "64G"], timeout_s=LIMIT_S)
    with image.open("rb") as file:
        assert largest_file(file.fileno(), "qcow2", read_only=True) == 64 * MIB
    image.write_bytes(b"no disk")
    with image.open("rb") as file, pytest.raises(BadInputError, match="cannot be used"):
        largest_file(file.fileno(), "qcow2", read_only=True)


def test_a_qcow2_disk_that_rests_on_another_is_refused_by_the_descriptor_that_is_used(tmp_path: Path) -> None:
    base, disk = tmp_path / "base", tmp_path / "disk"
    door.run(["qemu-img", "create", "-f", "raw", base, "1M"], timeout_s=LIMIT_S)
    door.run(["qemu-img", "create", "-f", "qcow2", "-F", "raw", "-b", base, disk], timeout_s=LIMIT_S)
    with disk.open("rb") as file, pytest.raises(BadInputError, match="rests on another file"):
        largest_file(file.fileno(), "qcow2")


def test_the_guest_that_tries_kvm_is_in_the_same_jail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would say of KVM what does not hold for those that come after it; and its kernel may be a stranger's."""
    seen: list[dict[str, object]] = []

    @contextmanager
    def background(argv: Sequence[str], **how: object) -> Iterator[subprocess.Popen[bytes]]:
        seen.append({"argv": argv, **how})
        said = ["sh", "-c", "yes flood | head -c 3000000; echo; echo quickstart-accelerator-works"]
        with subprocess.Popen(said, stdout=cast(int, how["output"])) as process:
            yield process

    monkeypatch.setattr(door, "background", background)
    (tmp_path / "kernel").write_bytes(b"a kernel")
    # What it says at the beginning counts, not what it says for ever.
    assert not accel._try_kvm(tmp_path / "kernel")
    ((argv, identity),) = [(each["argv"], each["identity"]) for each in seen]
    assert isinstance(argv, tuple) and set(SANDBOX) <= set(argv)
    assert isinstance(identity, Identity) and identity.uid is not None


@pytest.mark.parametrize(
    ("mode", "group", "wanted"), [(0o660, 108, 108), (0o666, 108, None), (0o600, 108, None), (0o660, 0, None)]
)
def test_the_group_of_kvm_is_lent_but_not_root_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, group: int, wanted: int | None
) -> None:
    device = tmp_path / "kvm"
    monkeypatch.setattr("quickstart.launch.jail._KVM", device)
    assert kvm_group() is None
    device.touch()
    device.chmod(mode)
    os.chown(device, 0, group)
    assert kvm_group() == wanted
