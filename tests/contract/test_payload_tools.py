"""The tools that make and read a kernel's initramfs accept our compressed parts, and we accept theirs."""

from __future__ import annotations

import io
import shutil
import subprocess

import pytest

from quickstart.initramfs.newc import CpioEntry, directory, regular, write_archive
from quickstart.initramfs.newc_reader import read_archive
from quickstart.initramfs.payload import packing
from quickstart.model.words import Payload

# What unpacks a stream, what makes one as the kernel's own build does (scripts/Makefile.lib: gzip -n -9, lz4 -l, zstd -19).
TOOLS = {
    Payload.GZIP: (("gzip", "-dc"), ("gzip", "-n", "-9", "-c")),
    Payload.LZ4: (("lz4", "-dc"), ("lz4", "-l", "-9", "-c")),
    Payload.ZSTD: (("zstd", "-dc"), ("zstd", "-19", "-c")),
}
ENTRIES = (
    directory("usr"),
    regular("usr/large", bytes(range(256)) * 40_000, 0o755),
    regular("usr/small", b"small", 0o644),
)


def run(*words: str, stdin: bytes) -> bytes:
    tool = shutil.which(words[0])
    if tool is None:
        pytest.fail(f"{words[0]} is not installed: apt-get install {words[0]}")
    done = subprocess.run([tool, *words[1:]], input=stdin, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout


def archive(entries: tuple[CpioEntry, ...]) -> bytes:
    stream = io.BytesIO()
    write_archive(stream, entries)
    return stream.getvalue()


def packed(payload: Payload) -> bytes:
    """Without the zeros behind it, which the tools have other opinions on."""
    stream = io.BytesIO()
    with packing(stream, payload) as sink:
        write_archive(sink, ENTRIES)
    return stream.getvalue().rstrip(b"\0")


@pytest.mark.parametrize("payload", TOOLS)
def test_the_tool_unpacks_ours(payload: Payload) -> None:
    ours = packed(payload)
    # Of a stream's own end zeros may be a part: some of them are given back.
    tries = [ours + bytes(count) for count in range(9)]
    assert any(_unpacks(payload, each) for each in tries)


def _unpacks(payload: Payload, data: bytes) -> bool:
    words, _ = TOOLS[payload]
    tool = shutil.which(words[0])
    if tool is None:
        pytest.fail(f"{words[0]} is not installed: apt-get install {words[0]}")
    done = subprocess.run([tool, *words[1:]], input=data, capture_output=True, timeout=60, check=False)
    return done.returncode == 0 and done.stdout == archive(ENTRIES)


@pytest.mark.parametrize("payload", TOOLS)
def test_we_read_what_the_tool_makes(payload: Payload) -> None:
    theirs = run(*TOOLS[payload][1], stdin=archive(ENTRIES))
    for data in (theirs, theirs + bytes(8), theirs + bytes(8 - len(theirs) % 4) + archive(ENTRIES)):
        found = list(read_archive(io.BytesIO(data)))
        assert [(m.name, m.data) for m in found if m.archive == 0] == [(e.name, e.data) for e in ENTRIES]
        assert [m.name for m in found if m.archive] in ([], [e.name for e in ENTRIES])


def test_the_window_is_one_that_the_kernel_has_room_for() -> None:
    said = packed(Payload.ZSTD)
    # RFC 8878, 3.1.1.1: no single segment, so the byte behind the descriptor is the window's: exponent and mantissa.
    descriptor, window = said[4], said[5]
    assert not descriptor & 0x20
    assert not descriptor & 0x04, "a checksum of the content"
    assert (1 << (10 + (window >> 3))) + ((1 << (10 + (window >> 3))) // 8) * (window & 7) <= 8 << 20
