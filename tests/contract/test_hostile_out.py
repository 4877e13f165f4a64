"""Malicious OUTs: each verb ends soon, with one line and status 2, uses little memory and touches nothing else."""

from __future__ import annotations

import io
import json
import os
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from quickstart.artefact.directory import check_output
from quickstart.artefact.manifest import read_manifest
from quickstart.errors import OutputExistsError
from quickstart.initramfs.layout import IMAGE
from quickstart.initramfs.newc import directory, regular, write_archive
from quickstart.model.words import Payload
from tests.unit.outs import change, facts
from tests.unit.test_inside import artefact

VERBS = (
    ("ls", "OUT"),
    ("cat", "OUT", "/lib/libz.so"),
    ("why", "OUT", "/lib/libz.so"),
    ("diff", "OUT", "OTHER"),
    ("audit", "OUT"),
    ("run", "OUT", "--check", "--snapshot"),
    ("verify", "OUT"),
    ("rebuild", "OUT"),
    ("shell", "OUT"),
    ("shell", "--at", "reference", "OUT"),
)
# Of these nothing is looked into by the verbs that boot.
READING = VERBS[:5]
MAX_RSS_KIB = 300 << 10
# A hang is what is meant: the machine may be busy.
LIMIT_S = 120
# Its memory is bounded by the system, too; at its end it says how much of it there was (proc(5), VmHWM: of this program alone).
PROGRAM = """
import re, resource, sys
from quickstart.cli.main import entry_point
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
try:
    entry_point()
finally:
    print(re.search("VmHWM:.*", open("/proc/self/status").read())[0], file=sys.stderr)
"""
MAIN = ("-c", PROGRAM)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A whole artefact, beside another one and what is not to be touched."""
    artefact(tmp_path / "other")
    (tmp_path / "victim").write_bytes(bytes(4096))
    return artefact(tmp_path / "out").directory


def called(place: Path, verb: tuple[str, ...], cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    """A verb, whose memory stayed small."""
    names = {"OUT": str(place / "out"), "OTHER": str(place / "other")}
    argv = [sys.executable, *MAIN, *(names.get(word, word) for word in verb)]
    environment = {**os.environ, "QUICKSTART_CACHE": str(place / "store")}
    done = subprocess.run(argv, capture_output=True, timeout=LIMIT_S, check=False, env=environment, cwd=cwd)
    memory = re.search(rb"VmHWM:\s*(\d+) kB", done.stderr)
    assert memory is not None, done.stderr
    assert int(memory[1]) < MAX_RSS_KIB, verb
    return done


def said(place: Path, verb: tuple[str, ...]) -> tuple[int, str]:
    """Status and stderr of a verb."""
    done = called(place, verb)
    return done.returncode, done.stderr.decode()


def state(place: Path) -> dict[str, object]:
    """All there is around OUT, times of change included; the store is what verbs are to write."""
    found: dict[str, object] = {}
    for path in sorted(place.rglob("*")):
        if path.relative_to(place).parts[0] != "store":
            status = path.lstat()
            found[str(path)] = (status.st_mode, status.st_size, status.st_mtime_ns, status.st_nlink)
    return found


def assert_refused(out: Path, verbs: tuple[tuple[str, ...], ...], what: str) -> None:
    before = state(out.parent)
    for verb in verbs:
        status, text = said(out.parent, verb)
        assert status == 2, f"{verb}: {status} {text}"
        first = next(line for line in text.splitlines() if line.startswith(f"quickstart {verb[0]}: "))
        assert re.search(what, first), text
        assert "Traceback" not in text
    assert state(out.parent) == before


@pytest.mark.parametrize("verb", [("rebuild", "OUT"), ("verify", "OUT", "--until-clean")])
def test_a_profile_beside_it_is_not_taken_for_the_one_that_it_names(out: Path, verb: tuple[str, ...]) -> None:
    """Who gives an OUT may give a directory with it; the user is in the directory where both lie."""
    change(out, lambda document: document.update(profile="beside"))
    (place := out.parent / "beside").mkdir()
    (place / "profile.toml").write_text("this is no profile")
    done = called(out.parent, verb, cwd=out.parent)
    assert done.returncode == 2
    assert b"no profile that comes with quickstart is called 'beside'" in done.stderr


def test_what_is_made_from_is_whole(out: Path) -> None:
    for verb in READING[:4]:
        assert said(out.parent, verb)[0] == 0


@pytest.mark.parametrize("linked", [False, True])
def test_another_users_out_is_not_taken_for_what_was_built(out: Path, linked: bool) -> None:
    """Where others may write he puts it there first, with the key that a build will have: its sums are by its own manifest."""
    key = read_manifest(out).build_key
    place = out.with_name("place")
    if linked:
        place.symlink_to(out)
        os.lchown(place, 4242, 4242)
    else:
        out.rename(place)
        os.chown(place, 4242, 4242)
    with pytest.raises(OutputExistsError, match=r"belongs to another user \(4242\)"):
        check_output(place, key, force=False)
    assert check_output(place, key, force=True) is None


# ---------------------------------------------------------------- the manifest

GUESTFWD = "80,guestfwd=tcp:10.0.2.100:1234-cmd:/bin/touch"


def port(document: dict[str, Any]) -> None:
    document["ready"].update(kind="exec", port=GUESTFWD, command="nc 10.0.2.100 1234")


def test_a_hostile_manifest(out: Path) -> None:
    change(out, port)
    assert_refused(out, VERBS, r"ready\.port: Input should be a valid integer")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[" * 200_000 + "]" * 200_000, "nested more than 16 deep"),
        ('{"disk": {"size_bytes": Infinity}}', "Infinity is not JSON"),
        ('{"memory_mib": ' + "9" * 4300 + "}", "a number of 4300 digits"),
    ],
    ids=["deep", "infinity", "digits"],
)
def test_a_manifest_that_is_hard_to_parse(out: Path, text: str, what: str) -> None:
    (out / "manifest.json").write_text(text)
    assert_refused(out, (("run", "OUT", "--check"), ("audit", "OUT")), what)


# ---------------------------------------------------------------- links, pipes, devices


def link_to_zeros(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def link_to_victim(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent.parent / "victim")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def test_a_disk_that_leads_elsewhere(out: Path) -> None:
    link_to_victim(out / "root.raw")
    assert_refused(out, VERBS, r"root\.raw is a symbolic link")


@pytest.mark.parametrize("turn", [link_to_zeros, pipe])
@pytest.mark.parametrize("name", ["manifest.json", "root.raw", "initramfs.img", "start-set.json"])
def test_a_file_that_leads_elsewhere(out: Path, name: str, turn: Callable[[Path], None]) -> None:
    turn(out / name)
    assert_refused(out, (("why", "OUT", "/x"), ("audit", "OUT")), rf"{name} is (a symbolic link|a pipe)")


# ---------------------------------------------------------------- what unpacks without an end


class Zeros:
    """As many zeros as a file is to have, without its being anywhere."""

    def __init__(self, head: bytes, size_bytes: int) -> None:
        self.head, self.left = head, size_bytes

    def pieces(self) -> Any:
        yield self.head
        while self.left:
            count = min(self.left, 1 << 20)
            self.left -= count
            yield bytes(count)


def newc_of_zeros(size_bytes: int) -> Zeros:
    """An archive that begins with a file of so many zeros, and has nothing else."""
    stream = io.BytesIO()
    write_archive(stream, [regular("zeros", b"", 0o644)])
    head = bytearray(stream.getvalue()[:116])
    head[54:62] = b"%08X" % size_bytes
    return Zeros(bytes(head), size_bytes)


def bomb(payload: Payload, size_bytes: int) -> bytes:
    zeros = newc_of_zeros(size_bytes)
    stream = io.BytesIO()
    zstd = zstandard.ZstdCompressor(level=1).compressobj()
    compressor = zstd if payload is Payload.ZSTD else zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    for piece in zeros.pieces():
        stream.write(compressor.compress(piece))
    stream.write(compressor.flush())
    made = bytearray(stream.getvalue())
    if payload is Payload.GZIP:
        # As quickstart's own header has it: the best compression, an unknown system.
        made[8:10] = b"\x02\xff"
    return bytes(made)


def with_initramfs(out: Path, data: bytes, unpacked_bytes: int) -> None:
    (out / "initramfs.img").write_bytes(data)

    def edit(document: dict[str, Any]) -> None:
        document["files"]["initramfs.img"] = facts(out / "initramfs.img")
        document.update(initramfs_bytes=len(data), initramfs_unpacked_bytes=unpacked_bytes)

    change(out, edit)


def test_a_terminal_does_not_obey_a_file_of_out(out: Path) -> None:
    evil = b"\x1b]0;owned\x07\xff plain \x1b[31mred\n"
    stream = io.BytesIO()
    write_archive(stream, [regular("evil", evil, 0o644)])
    with_initramfs(out, stream.getvalue(), len(stream.getvalue()))
    argv = [sys.executable, *MAIN, "cat", str(out), "/evil"]
    piped = subprocess.run(argv, capture_output=True, timeout=LIMIT_S, check=True)
    assert piped.stdout == evil
    ours, theirs = os.openpty()
    try:
        subprocess.run(argv, stdout=theirs, stderr=subprocess.DEVNULL, timeout=LIMIT_S, check=True)
        shown = os.read(ours, 4096)
    finally:
        os.close(ours)
        os.close(theirs)
    assert shown == b"\\x1b]0;owned\\x07\\xff plain \x1b[31mred\r\n"


@pytest.mark.parametrize("words", [("ls", "--json"), ("ls",), ("audit", "--json")])
def test_a_full_stdout_is_one_line(out: Path, words: tuple[str, ...]) -> None:
    stream = io.BytesIO()
    write_archive(stream, [regular(f"file{number}", b"", 0o644) for number in range(1000)])
    with_initramfs(out, stream.getvalue(), len(stream.getvalue()))
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, *MAIN, words[0], str(out), *words[1:]],
            stdout=full, stderr=subprocess.PIPE, timeout=LIMIT_S, check=False, text=True,
        )  # fmt: skip
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "No space left on device" in done.stderr


@pytest.mark.parametrize("words", [("ls", "--json"), ("ls",)])
def test_a_reader_that_has_seen_enough_ends_a_verb_in_silence(out: Path, words: tuple[str, ...]) -> None:
    """`quickstart ls OUT | head -1`"""
    stream = io.BytesIO()
    write_archive(stream, [regular(f"file{number}", b"", 0o644) for number in range(3000)])
    with_initramfs(out, stream.getvalue(), len(stream.getvalue()))
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        done = subprocess.run(
            [sys.executable, *MAIN, words[0], str(out), *words[1:]],
            stdout=theirs, stderr=subprocess.PIPE, timeout=LIMIT_S, check=False, text=True,
        )  # fmt: skip
    finally:
        os.close(theirs)
    # The one line is the test's own.
    assert (done.returncode, done.stderr.count("\n"), "VmHWM" in done.stderr) == (1, 1, True), done.stderr


@pytest.mark.parametrize("payload", [Payload.ZSTD, Payload.GZIP])
def test_a_stream_of_more_than_a_gib(out: Path, payload: Payload) -> None:
    """What is above the manifest's number is not read; where that is high, it is read in pieces, and memory stays small."""
    data = bomb(payload, 1 << 30)
    assert len(data) < 8 << 20
    with_initramfs(out, data, 1 << 26)
    assert_refused(out, READING[:1], f"no more than {(1 << 26) - 116} can be left")
    with_initramfs(out, data, 4 << 30)
    assert_refused(out, READING[:1], "the file ends")


def test_members_without_an_end(out: Path) -> None:
    """Empty ones, of which a small stream holds millions."""
    stream = io.BytesIO()
    write_archive(stream, [directory(f"{number:06}") for number in range(100_001)])
    packed = zstandard.ZstdCompressor(level=3).compress(stream.getvalue())
    assert len(packed) < 1 << 20
    with_initramfs(out, packed, 4 << 30)
    assert_refused(out, READING[:1], "more than 100000 members")


# ---------------------------------------------------------------- an image in part B


def with_image(out: Path, image: bytes) -> None:
    stream = io.BytesIO()
    write_archive(stream, [directory("fast"), directory("fast/quickstart")])
    write_archive(stream, [directory("fast"), directory("fast/quickstart"), regular(IMAGE, image, 0o644)])
    with_initramfs(out, stream.getvalue(), 4 << 30)


def squashed(place: Path, *options: str) -> bytes:
    target = place / "image"
    subprocess.run(
        ["/usr/bin/mksquashfs", place / "tree", target, "-quiet", "-no-progress", "-noappend", *options],
        check=True, timeout=LIMIT_S, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return target.read_bytes()


def test_an_image_of_much_more_than_it_has(out: Path, tmp_path: Path) -> None:
    """512 MiB of zeros in some KiB: looked at in pieces, and never written anywhere."""
    place = tmp_path / "store"
    (place / "tree").mkdir(parents=True)
    with (place / "tree/zeros").open("wb") as file:
        file.truncate(512 << 20)
    image = squashed(place, "-comp", "lz4")
    assert len(image) < 1 << 20
    with_image(out, image)
    before = state(out.parent)
    assert said(out.parent, ("ls", "OUT", "/fast/zeros"))[0] == 0
    assert said(out.parent, ("audit", "OUT"))[0] == 1
    assert state(out.parent) == before


def test_devices_and_setuid_programs_in_an_image_are_named_and_never_made(out: Path, tmp_path: Path) -> None:
    place = tmp_path / "store"
    (place / "tree").mkdir(parents=True)
    devices = ("-p", "sda b 666 0 0 8 0", "-p", "pipe i 666 0 0 f", "-p", "su f 4755 0 0 echo x")
    with_image(out, squashed(place, "-comp", "lz4", *devices))
    before = state(out.parent)
    done = called(out.parent, ("audit", "OUT", "--json"))
    assert done.returncode == 1, done.stderr
    whats = {(each["object"], each["what"]) for each in json.loads(done.stdout)["result"]["findings"]}
    strange = "is a device (0:0), a FIFO or a socket"
    assert {("/fast/sda", strange), ("/fast/pipe", strange)} <= whats
    assert ("/fast/su", "mode 4755: setuid or setgid") in whats
    assert state(out.parent) == before


@pytest.mark.parametrize(
    ("at", "value", "what"),
    [
        (0, b"shsq", "no SquashFS 4 image"),
        (20, struct.pack("<H", 1), "compressed by the way 1"),
        (12, struct.pack("<I", 1 << 30), "blocks of 1073741824 bytes"),
        (32, struct.pack("<Q", 1 << 60), "is cut"),
        (64, struct.pack("<Q", 1 << 63), "is cut"),
        (72, struct.pack("<Q", 0), "cannot be read"),
    ],
)
def test_a_damaged_image(out: Path, tmp_path: Path, at: int, value: bytes, what: str) -> None:
    place = tmp_path / "store"
    (place / "tree").mkdir(parents=True)
    (place / "tree/file").write_text("content")
    image = bytearray(squashed(place, "-comp", "lz4"))
    image[at : at + len(value)] = value
    with_image(out, bytes(image))
    assert_refused(out, READING[:1], what)


# ---------------------------------------------------------------- what audit names


def test_audit_names_what_is_suspicious(out: Path) -> None:
    (out / "link").symlink_to("/etc/shadow")
    (out / "su").write_text("")
    (out / "su").chmod(0o4755)
    (out / "run.sh").write_text("#!/bin/sh\nrm -rf /\n")
    done = called(out.parent, ("audit", "OUT", "--json"))
    found = {(each["object"], each["what"]) for each in json.loads(done.stdout)["result"]["findings"]}
    assert ("link", "is a symbolic link, not a plain file") in found
    assert ("su", "mode 4755: setuid or setgid") in found
    assert ("run.sh", "is not what quickstart writes for this manifest: it may do anything") in found
    assert done.returncode == 1
