"""Entries of newc archives, and how a test packs and unpacks them."""

from __future__ import annotations

import io
import stat
from dataclasses import replace
from pathlib import PurePosixPath

from hypothesis import strategies as st

from quickstart.initramfs import newc
from quickstart.initramfs.newc import (
    CpioEntry,
    char_device,
    directory,
    regular,
    symlink,
    write_archive,
)
from quickstart.initramfs.newc_reader import CpioMember, read_archive

SAMPLE = (
    directory("etc"),
    regular("etc/motd", b"hello", 0o640),
    regular("etc/empty", b"", 0o600),
    symlink("lib", "usr/lib"),
    directory(PurePosixPath("dev"), 0o700),
    char_device("dev/console", 0o600, 5, 1),
)


def pack(*entries: CpioEntry) -> bytes:
    stream = io.BytesIO()
    count = write_archive(stream, entries)
    assert count == len(stream.getvalue())
    return stream.getvalue()


def unpack(archive: bytes) -> list[CpioMember]:
    return list(read_archive(io.BytesIO(archive)))


COMPONENTS = (
    st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=12)
    | st.binary(min_size=1, max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
).filter(lambda part: part not in (".", "..", "TRAILER!!!") and "/" not in part and "\0" not in part)
NUMBERS = st.integers(0, newc.MAX_FIELD)


@st.composite
def entry_lists(draw: st.DrawFn) -> list[CpioEntry]:
    parents = [""]
    entries: list[CpioEntry] = []
    for component in draw(st.lists(COMPONENTS, unique=True, max_size=8)):
        parent = draw(st.sampled_from(parents))
        name = f"{parent}{component}"
        kind = draw(st.sampled_from([stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO]))
        data = b""
        if kind == stat.S_IFREG:
            data = draw(st.binary(max_size=40))
        elif kind == stat.S_IFLNK:
            data = draw(st.binary(min_size=1, max_size=40).filter(lambda target: b"\0" not in target))
        elif kind == stat.S_IFDIR:
            parents.append(f"{name}/")
        mode = kind | draw(st.integers(0, 0o7777))
        uid, gid, mtime, major, minor = (draw(NUMBERS) for _ in range(5))
        entries.append(
            CpioEntry(
                name=name,
                mode=mode,
                data=data,
                uid=uid,
                gid=gid,
                mtime=mtime,
                rdev_major=major,
                rdev_minor=minor,
            )
        )
    return entries


FIRST = replace(regular("a", b"content", 0o755), names=3)
