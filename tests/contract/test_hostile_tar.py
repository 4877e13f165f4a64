"""Malicious archives and directories for `build --rootfs` are refused, or copied without harm."""

from __future__ import annotations

import gzip
import io
import os
import select
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.errors import BadInputError
from quickstart.host import door
from quickstart.host.files import remove_tree
from quickstart.host.namespaces import own_namespaces
from quickstart.host.progress import Quiet
from quickstart.host.workspace import workspace
from quickstart.inspect.foreign.home import NotHome, foreign_members
from quickstart.inspect.foreign.members import DeviceNode
from quickstart.inspect.foreign.reader import NOBODY
from quickstart.model import MIB
from quickstart.profile import load_profile
from quickstart.reference.guest import forget_build
from quickstart.reference.rootfs import check_devices, copy_directory, examine, reference_of, unpack
from quickstart.store.context import Context
from quickstart.store.store import Store
from tests.contract.test_hostile_disk import listing

DISK = 16 * MIB
Fill = Callable[[tarfile.TarFile, Path], None]


def add(archive: tarfile.TarFile, name: str, data: bytes = b"", **fields: object) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    archive.addfile(info, io.BytesIO(data))


def link(archive: tarfile.TarFile, name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> None:
    add(archive, name, type=kind, linkname=target)


def made(path: Path, fill: Fill, outside: Path, form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=form) as archive:
        fill(archive, outside)
    return path


def way_out(archive: tarfile.TarFile, outside: Path) -> None:
    link(archive, "way", str(outside))
    add(archive, "way/new", b"evil")


def way_out_in_two_steps(archive: tarfile.TarFile, outside: Path) -> None:
    link(archive, "a", ".")
    link(archive, "a/b", "../outside")
    add(archive, "b/new", b"evil")


def directory_becomes_link(archive: tarfile.TarFile, outside: Path) -> None:
    add(archive, "d", type=tarfile.DIRTYPE, mode=0o755)
    link(archive, "d", str(outside))
    add(archive, "d/new", b"evil")


def mode_through_a_link(archive: tarfile.TarFile, outside: Path) -> None:
    """A directory of that name later gives its mode and owner to what the link leads to."""
    link(archive, "d", str(outside))
    add(archive, "d", type=tarfile.DIRTYPE, mode=0o777, uid=1234)
    add(archive, "d/new", b"evil")


def hard_out(archive: tarfile.TarFile, outside: Path) -> None:
    link(archive, "h", str(outside / "victim"), tarfile.LNKTYPE)
    add(archive, "h", b"evil")


def hard_through_a_link(archive: tarfile.TarFile, outside: Path) -> None:
    link(archive, "way", str(outside))
    link(archive, "h", "way/victim", tarfile.LNKTYPE)


def many(archive: tarfile.TarFile, outside: Path) -> None:
    for number in range(DISK // 4096 + 1):
        add(archive, str(number))


def deep(archive: tarfile.TarFile, outside: Path) -> None:
    add(archive, "/".join(["d" * 100] * 60) + "/file")


def sparse(archive: tarfile.TarFile, outside: Path) -> None:
    """8 TiB of holes (GNU's sparse format 0.1)."""
    headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.map": "0,1",
        "GNU.sparse.size": str(8 << 40),
    }
    add(archive, "holes", b"x", pax_headers=headers)


def overlapping(archive: tarfile.TarFile, outside: Path) -> None:
    headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.map": "4,4,0,4",
        "GNU.sparse.size": "8",
    }
    add(archive, "holes", b"12345678", pax_headers=headers)


def acl_for_nobody(archive: tarfile.TarFile, outside: Path) -> None:
    add(archive, "f", pax_headers={"SCHILY.acl.access": "user::rwx,user:no such user:rwx"})


def no_acl(archive: tarfile.TarFile, outside: Path) -> None:
    add(archive, "f", pax_headers={"SCHILY.acl.access": "x" * 100_000})


def long_name(archive: tarfile.TarFile, outside: Path) -> None:
    add(archive, "n" * 256)


def root_is_a_link(archive: tarfile.TarFile, outside: Path) -> None:
    link(archive, ".", str(outside))


def unknown_kind(archive: tarfile.TarFile, outside: Path) -> None:
    add(archive, "f", type=b"Z")


def up(archive: tarfile.TarFile, outside: Path) -> None:
    add(archive, "x/../../outside/new", b"evil")


@pytest.mark.parametrize(
    "fill",
    [
        *(way_out, way_out_in_two_steps, directory_becomes_link, hard_out),
        *(hard_through_a_link, many, deep, sparse, overlapping, acl_for_nobody, no_acl, long_name),
        *(root_is_a_link, unknown_kind, up),
    ],
)
def test_an_archive_that_means_harm_is_refused(tmp_path: Path, fill: Fill) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/victim").write_text("good")
    archive = made(tmp_path / "archive.tar", fill, tmp_path / "outside")
    before = listing(tmp_path)
    with (
        Store(tmp_path / "store") as store,
        pytest.raises(BadInputError) as caught,
    ):
        profile = load_profile("nginx")
        small = type(profile)(**{**profile.__dict__, "disk_mib": DISK // MIB})
        reference_of(small, examine(archive), Context(store, Quiet()))
    assert "\n" not in caught.value.message, caught.value.message
    assert listing(tmp_path) == before
    assert list(tmp_path.glob("store/reference/*.partial")) == []


def test_a_directory_in_the_place_of_a_link_gives_its_mode_to_nothing_outside(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir(mode=0o700)
    unpack(made(tmp_path / "archive", mode_through_a_link, tmp_path / "outside"), tmp_path / "tree", DISK)
    status = (tmp_path / "outside").stat()
    assert (status.st_mode & 0o777, status.st_uid) == (0o700, os.geteuid())
    assert list((tmp_path / "outside").iterdir()) == []
    assert (tmp_path / "tree/d/new").read_bytes() == b"evil"
    assert not (tmp_path / "tree/d").is_symlink()


def test_what_unpacks_to_more_than_the_disk_is_refused_before_it_fills_the_store(tmp_path: Path) -> None:
    """A bomb: 1 GiB of zeros in one MiB."""
    with gzip.open(tmp_path / "bomb.tar.gz", "wb", compresslevel=1) as file:
        info = tarfile.TarInfo("zeros")
        info.size = 1 << 30
        file.write(info.tobuf())
        for _ in range(1024):
            file.write(bytes(MIB))
        file.write(bytes(1024))
    with pytest.raises(BadInputError, match="does not fit on the disk"):
        unpack(tmp_path / "bomb.tar.gz", tmp_path / "tree", DISK)
    assert sum(path.stat().st_blocks for path in (tmp_path / "tree").iterdir()) == 0


def test_a_header_that_wants_gigabytes(tmp_path: Path) -> None:
    """A pax header that is 8 GiB long, of zeros that compress to nothing: the reader has one GiB of memory, and no more."""
    with gzip.open(tmp_path / "big.tar.gz", "wb", compresslevel=1) as file:
        info = tarfile.TarInfo("pax")
        info.size, info.type = 8 << 30, tarfile.XHDTYPE
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(1100):
            file.write(bytes(MIB))
    with pytest.raises(BadInputError, match=r"in a GiB of memory|cannot be unpacked whole"):
        unpack(tmp_path / "big.tar.gz", tmp_path / "tree", DISK)


def test_devices_and_sockets_are_never_made_on_the_host(tmp_path: Path) -> None:
    def fill(archive: tarfile.TarFile, outside: Path) -> None:
        for name, kind in (("dev/sda", tarfile.BLKTYPE), ("opt/null", tarfile.CHRTYPE)):
            add(archive, name, type=kind, devmajor=8, devminor=1, mode=0o640)
        add(archive, "pipe", type=tarfile.FIFOTYPE, mode=0o640)

    archive = made(tmp_path / "archive", fill, tmp_path)
    found = unpack(archive, tmp_path / "tree", DISK)
    assert [(each.path, each.mode, each.major, each.minor) for each in found.devices] == [
        ("dev/sda", 0o060640, 8, 1),
        ("opt/null", 0o020640, 8, 1),
    ]
    left = [path for path in (tmp_path / "tree").rglob("*") if not path.is_dir()]
    assert [path.name for path in left] == ["pipe"]
    given = tmp_path / "given"
    given.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(given / "socket"))
        found = copy_directory(examine(given), tmp_path / "copy", Store(tmp_path / "store"), DISK)
    assert found == NotHome(sockets=("socket",))


@pytest.mark.parametrize(("count", "name"), [(4097, "n{}"), (1, "a\nb"), (1, "a\rb"), (1, "a/" * 512 + "n")])
def test_nodes_that_are_too_many_or_cannot_be_named(count: int, name: str) -> None:
    node = DeviceNode(path="", mode=0o20666, uid=0, gid=0, major=1, minor=3, mtime_s=0)
    nodes = tuple(replace(node, path=name.format(number)) for number in range(count))
    with pytest.raises(BadInputError, match="device node"):
        check_devices(nodes, Path("given"))


def test_a_directory_deeper_than_mke2fs_can_be_given(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    way = os.open(given, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=way)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=way)
        os.close(way)
        way = below
    os.close(way)
    try:
        with pytest.raises(BadInputError, match="a path of more than 1000 bytes") as caught:
            copy_directory(examine(given), tmp_path / "copy", Store(tmp_path / "store"), DISK)
        assert "\n" not in caught.value.message
    finally:
        # pytest's own way to remove it does not go that deep.
        remove_tree(given)
        remove_tree(tmp_path / "copy")


def test_a_directory_that_is_larger_than_the_disk(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "given/big").write_bytes(b"x" * (DISK + 1))
    with pytest.raises(BadInputError, match="does not fit on the disk"):
        copy_directory(examine(tmp_path / "given"), tmp_path / "copy", Store(tmp_path / "store"), DISK)
    assert (tmp_path / "copy").is_dir()
    assert list((tmp_path / "copy").iterdir()) == []


def test_a_stamp_that_is_a_directory(tmp_path: Path) -> None:
    (tmp_path / "var/lib").mkdir(parents=True)
    (tmp_path / ".quickstart").mkdir()
    with pytest.raises(BadInputError, match="is a directory"):
        forget_build(tmp_path)


def test_who_reads_has_no_power() -> None:
    """Asked from outside while it waits for more: its ids, capabilities, root and network."""
    reading, waiting = os.pipe()
    seen: dict[str, str] = {}
    with workspace("quickstart-test-") as work:
        (work / "empty").mkdir()
        argv = [
            *own_namespaces(network=True),
            sys.executable,
            "-P",
            "-m",
            "quickstart.inspect.foreign.reader",
        ]
        with door.filtered([*argv, "tar", work / "empty"], reading) as found:
            pid = _reader_below(found.process.pid)
            seen = dict(
                line.split(":\t", 1)
                for line in Path(f"/proc/{pid}/status").read_text().splitlines()
                if ":\t" in line
            )
            root, network = (Path(f"/proc/{pid}/{name}").readlink() for name in ("root", "ns/net"))
            os.close(waiting)
    os.close(reading)
    assert seen["Uid"].split() == seen["Gid"].split() == [str(NOBODY)] * 4
    assert seen["Groups"].strip() == ""
    assert {int(seen[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert seen["NoNewPrivs"] == "1"
    assert root == (work / "empty").resolve()
    assert network != Path("/proc/self/ns/net").readlink()


def _reader_below(pid: int) -> int:
    """The process at the end of the chain, once it is nobody."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        last = pid
        while below := Path(f"/proc/{last}/task/{last}/children").read_text().split():
            last = int(below[0])
        status = Path(f"/proc/{last}/status").read_text()
        if "NoNewPrivs:\t1" in status:
            return last
        time.sleep(0.02)
    pytest.fail("the reader did not give up its rights")


FORK = """
import os, sys
from pathlib import Path
from quickstart.inspect.foreign.reader import give_up_rights
give_up_rights(Path(sys.argv[1]))
try:
    if os.fork() == 0:
        os._exit(0)
    os.write(1, b"a process more")
except BlockingIOError:
    os.write(1, b"none")
"""


def test_a_reader_that_was_taken_over_starts_no_process(tmp_path: Path) -> None:
    """Its limits of memory and time are a process's: of thousands none would hold."""
    (empty := tmp_path / "empty").mkdir()
    done = subprocess.run([sys.executable, "-c", FORK, empty], capture_output=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == (b"none", 0), done.stderr


def test_what_decompresses_is_a_user_without_other_processes(tmp_path: Path) -> None:
    """As nobody it could write to /proc/PID/mem of the daemons that are nobody, too, and to shared memory of theirs."""
    (source := tmp_path / "a.tar").write_bytes(b"")
    with suppress(InterruptedError), foreign_members(source, "tar", ("sleep", "60")):
        pid = _descendant("sleep")
        seen = Path(f"/proc/{pid}/status").read_text()
        ipc = Path(f"/proc/{pid}/ns/ipc").readlink()
        # To leave without an error would be to wait for it.
        raise InterruptedError
    fields = dict(line.split(":\t", 1) for line in seen.splitlines() if ":\t" in line)
    uids = fields["Uid"].split()
    assert len(set(uids)) == 1
    assert int(uids[0]) not in (0, NOBODY, os.getuid())
    assert int(fields["CapBnd"], 16) == 0
    assert ipc != Path("/proc/self/ns/ipc").readlink()


def _descendant(name: str) -> int:
    """The process of that name below ours, once it is there."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        waiting = [os.getpid()]
        while waiting:
            pid = waiting.pop()
            # It may have ended meanwhile.
            with suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                    return pid
                waiting += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        time.sleep(0.02)
    pytest.fail(f"there is no {name}")


_READS = """
import sys
from pathlib import Path
from quickstart.inspect.foreign.home import foreign_members
with foreign_members(Path(sys.argv[1]), "tar", tuple(sys.argv[2:])) as members:
    list(members)
"""


def strangers_at(fifo: Path) -> bool:
    """Whether a process that is not root reads ``fifo``."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "fd/0").readlink() == fifo and "\nUid:\t0\t" not in (
                process / "status"
            ).read_text():
                return True
    return False


@pytest.mark.parametrize("decompressor", [(), ("xz", "-dc")])
def test_a_killed_parent_leaves_no_reader(tmp_path: Path, decompressor: tuple[str, ...]) -> None:
    """Each has changed its user, whereby the kernel forgets with whose end it shall end."""
    os.mkfifo(fifo := tmp_path / "fifo")
    parent = subprocess.Popen([sys.executable, "-c", _READS, fifo, *decompressor])
    end_s = time.monotonic() + 60
    try:
        # Whoever writes to it waits for a reader, and knows when there is none.
        with fifo.open("wb") as writer:
            while not strangers_at(fifo):
                assert time.monotonic() < end_s
                time.sleep(0.05)
            time.sleep(0.5)
            parent.kill()
            parent.wait()
            gone = select.poll()
            gone.register(writer, select.POLLERR)
            assert gone.poll(20_000)
    finally:
        parent.kill()
        parent.wait()
