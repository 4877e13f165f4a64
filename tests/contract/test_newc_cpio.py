"""GNU cpio reads our newc archives, and we read those of GNU cpio (cpio(1))."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.initramfs.newc import (
    CpioEntry,
    char_device,
    directory,
    hard_link,
    regular,
    symlink,
    write_archive,
)
from quickstart.initramfs.newc_reader import CpioMember, read_archive

ODD_NAME = b"caf\xe9 \xc3\xa9".decode("utf-8", "surrogateescape")
ENTRIES = (
    directory("usr"),
    directory("usr/bin", 0o711),
    regular("usr/bin/tool", b"\x7fELF\0\1\2", 0o751),
    regular("usr/empty", b"", 0o600),
    regular("usr/large", bytes(range(256)) * 5000, 0o444),
    regular(f"usr/{ODD_NAME}", b"odd", 0o640),
    symlink("bin", "usr/bin"),
    symlink("dangling", "/no/such place"),
)


def cpio(directory: Path, *arguments: str, stdin: bytes) -> bytes:
    return run(directory, "cpio", "--quiet", *arguments, stdin=stdin)


def run(directory: Path, name: str, *arguments: str, stdin: bytes) -> bytes:
    tool = shutil.which(name)
    if tool is None:
        pytest.fail(f"{name} is not installed: apt-get install {name}")
    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    done = subprocess.run(
        [tool, *arguments],
        cwd=directory,
        env=environment,
        input=stdin,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    # BusyBox says how many blocks it has read.
    assert name == "busybox" or done.stderr == b""
    return done.stdout


def pack(*entries: CpioEntry) -> bytes:
    stream = io.BytesIO()
    write_archive(stream, entries)
    return stream.getvalue()


def test_cpio_lists_our_archive(tmp_path: Path) -> None:
    archive = pack(*ENTRIES, char_device("null", 0o666, 1, 3))
    names = cpio(tmp_path, "-t", stdin=archive).splitlines()
    assert names == [os.fsencode(entry.name) for entry in ENTRIES] + [b"null"]
    lines = cpio(tmp_path, "-tv", "--numeric-uid-gid", stdin=archive).decode("utf-8", "replace").splitlines()
    modes = [line.split()[0] for line in lines]
    assert modes == [stat.filemode(entry.mode) for entry in ENTRIES] + ["crw-rw-rw-"]
    assert lines[-1].split()[2:6] == ["0", "0", "1,", "3"]
    assert all("Jan  1  1970" in line for line in lines)
    assert lines[6].endswith("bin -> usr/bin")


def test_cpio_extracts_our_archive(tmp_path: Path) -> None:
    cpio(tmp_path, "-i", "--no-preserve-owner", stdin=pack(*ENTRIES))
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert found == sorted(entry.name for entry in ENTRIES)
    for entry in ENTRIES:
        path = tmp_path / entry.name
        status = path.lstat()
        assert status.st_mode == entry.mode
        if path.is_symlink():
            assert os.fsencode(path.readlink()) == entry.data
        elif path.is_file():
            assert path.read_bytes() == entry.data
            assert status.st_nlink == 1


@pytest.mark.parametrize("command", [("cpio", "--quiet"), ("busybox", "cpio")])
@pytest.mark.parametrize("content", [b"content", b""])
def test_hard_links_with_the_content_under_the_first_name(
    tmp_path: Path, command: tuple[str, ...], content: bytes
) -> None:
    """GNU cpio and BusyBox's make one file of the names, as the kernel does (init/initramfs.c, maybe_link and do_name)."""
    first = replace(regular("d/one", content, 0o755), names=3)
    others = (hard_link("d/three", first), hard_link("d/two", first))
    archive = pack(directory("d"), first, regular("d/plain", b"plain", 0o644), *others)
    run(tmp_path, *command, "-i", stdin=archive)
    inodes = {(tmp_path / name).stat().st_ino for name in ("d/one", "d/two", "d/three")}
    assert len(inodes) == 1
    assert (tmp_path / "d/two").stat().st_nlink == 3
    assert (tmp_path / "d/three").read_bytes() == content
    assert (tmp_path / "d/three").stat().st_mode == 0o100755
    assert (tmp_path / "d/plain").stat().st_nlink == 1


def test_we_read_what_cpio_writes(tmp_path: Path) -> None:
    names = [".", "d", "d/f", "d/hard", "d/link", "d/fifo"]
    (tmp_path / "d").mkdir(mode=0o750)
    (tmp_path / "d/f").write_bytes(b"content")
    (tmp_path / "d/f").chmod(0o4755)
    os.link(tmp_path / "d/f", tmp_path / "d/hard")
    (tmp_path / "d/link").symlink_to("f")
    os.mkfifo(tmp_path / "d/fifo", 0o600)
    archive = cpio(tmp_path, "-o", "-H", "newc", stdin="\n".join(names).encode())
    members = {member.name: member for member in read_archive(io.BytesIO(archive + archive))}
    assert sorted(members) == sorted(names)
    for name, member in members.items():
        assert_same_as_host(member, tmp_path / name)
    assert members["d/link"].data == b"f"
    # cpio gives the data of hard links to the last one only.
    assert sorted([members["d/f"].data, members["d/hard"].data]) == [b"", b"content"]
    assert members["d/f"].inode == members["d/hard"].inode
    assert members["d/f"].nlink == 2


def assert_same_as_host(member: CpioMember, path: Path) -> None:
    status = path.lstat()
    assert member.mode == status.st_mode
    assert (member.uid, member.gid) == (status.st_uid, status.st_gid)
    assert member.mtime == int(status.st_mtime)
    assert member.size == len(member.data)
