"""The machine is the same in every form of the initramfs, and each kind of damage to a form has its fallback."""

from __future__ import annotations

import http.client
import json
import re
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from quickstart.cli.firmware import free_port
from quickstart.host import door
from quickstart.initramfs.layout import IMAGE
from quickstart.initramfs.newc import CpioEntry, write_archive
from quickstart.initramfs.newc_reader import CpioMember, read_archive
from quickstart.initramfs.payload import packing
from quickstart.launch.drain import whole_text
from quickstart.model.words import Payload
from quickstart.store.store import Store
from tests.vm.booting import FAST, SETTLED, WHOLE, WORKING, boot
from tests.vm.conftest import BOOT_S, BUILD_S, host, quickstart

FALLBACK = re.compile(r"quickstart: (fallback \d: [^\r\n]*)")


def built(place: Path, payload: str, *words: str) -> Path:
    out = place / payload
    done = quickstart(
        "build",
        "--no-trial",
        "--profile",
        "nginx",
        "--payload",
        payload,
        "-o",
        out,
        *words,
        timeout_s=BUILD_S,
    )
    assert done.status == 0, done.err
    return out


@pytest.fixture(scope="module")
def lz4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("payload"), "lz4")


@pytest.fixture(scope="module")
def squashfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("payload"), "squashfs")


def members(archive: Path) -> list[CpioMember]:
    with archive.open("rb") as stream:
        return list(read_archive(stream))


def test_a_compressed_payload_is_started_from_and_handed_over(
    store: Store, artefact: Path, lz4: Path
) -> None:
    """And all that looks inside sees what it sees in a plain one."""
    ours, plain = members(lz4 / "initramfs.img"), members(artefact / "initramfs.img")
    assert [(m.name, m.mode, m.archive) for m in ours] == [(m.name, m.mode, m.archive) for m in plain]
    assert (lz4 / "initramfs.img").stat().st_size < (artefact / "initramfs.img").stat().st_size * 0.8
    audited = quickstart("audit", lz4)
    assert audited.status == 0, audited.out
    ended = boot(store, lz4)
    assert ended.said == FAST
    assert ended.fallbacks == []


@pytest.mark.full
@pytest.mark.parametrize("payload", ["gzip", "zstd"])
def test_the_other_compressors(store: Store, tmp_path: Path, payload: str) -> None:
    ended = boot(store, built(tmp_path, payload))
    assert ended.said == FAST
    assert ended.fallbacks == []


@pytest.mark.full
def test_an_image_is_mounted_and_handed_over(store: Store, squashfs: Path) -> None:
    audited = quickstart("audit", squashfs)
    assert audited.status == 0, audited.out
    assert "fast/usr/sbin/nginx" in quickstart("ls", squashfs).out
    look = "awk '$2 ~ \"^/fast\" { print $2, $3, substr($4, 1, 2) }' /proc/mounts; touch /fast/x /fast/quickstart/x"
    ended = boot(store, squashfs, command=f"{WHOLE}; {look} 2>&1 | sed 's/.*: //'")
    assert ended.said[: len(FAST)] == FAST
    mounts = "/fast squashfs ro /fast/quickstart rootfs ro"
    assert " ".join(ended.said[len(FAST) :]) == f"{mounts} Read-only file system Read-only file system"
    assert ended.fallbacks == []


@pytest.mark.full
def test_a_released_image_is_no_longer_there(store: Store, tmp_path: Path) -> None:
    """Once the application, which has its program mapped, is another process, the loop device has no file."""
    out = built(tmp_path, "squashfs", "--release")
    left = "grep -c ' /fast' /proc/mounts; find /fast -type f | wc -l; cat /sys/block/loop*/loop/backing_file 2>&1 | wc -l"
    restart = "systemctl restart nginx; sleep 2; readlink /proc/$(cat /run/nginx.pid)/exe"
    ended = boot(store, out, command=f"{SETTLED}wait_settled; {restart}; {left}; {WHOLE}")
    assert ended.said[:4] == ["/usr/sbin/nginx", "0", "0", "1"]
    assert ended.said[4:] == WORKING


# ---------------------------------------------------------------- damage


def packed_again(out: Path, payload: Payload, flip: str) -> None:
    """OUT's archive once more, with one byte of the file ``flip`` of part B changed before it is compressed."""
    found = members(out / "initramfs.img")
    with (out / "initramfs.img").open("wb") as file:
        for part in (0, 1):
            with packing(file, payload) as sink:
                write_archive(sink, [entry(each, flip) for each in found if each.archive == part])
        size_bytes = file.tell()
    document = manifest(out)
    document["files"]["initramfs.img"]["size_bytes"] = document["initramfs_bytes"] = size_bytes
    (out / "manifest.json").write_text(json.dumps(document))


def entry(member: CpioMember, flip: str) -> CpioEntry:
    data = bytearray(member.data)
    if member.name == flip:
        data[len(data) // 3] ^= 4
    node = member.rdev_major, member.rdev_minor
    return CpioEntry(
        name=member.name, mode=member.mode, data=bytes(data), rdev_major=node[0], rdev_minor=node[1]
    )


@pytest.mark.full
def test_a_byte_flipped_before_the_compression_is_named(store: Store, lz4: Path, tmp_path: Path) -> None:
    out = copied(lz4, tmp_path)
    largest = max((each for each in members(out / "initramfs.img") if each.archive), key=lambda m: m.size)
    packed_again(out, Payload.LZ4, largest.name)
    ended = boot(store, out)
    assert ended.said == WORKING
    assert ended.fallbacks == [
        f"fallback 1: part B of the initramfs is damaged: /{largest.name} (content); the stock init takes over"
    ]


@pytest.mark.full
def test_a_byte_flipped_in_an_image_is_named(store: Store, squashfs: Path, tmp_path: Path) -> None:
    out = copied(squashfs, tmp_path)
    image = next(each for each in members(out / "initramfs.img") if each.name == IMAGE)
    data = bytearray((out / "initramfs.img").read_bytes())
    data[image.offset + image.size // 3] ^= 4
    (out / "initramfs.img").write_bytes(data)
    ended = boot(store, out)
    assert ended.said == WORKING
    assert ended.fallbacks == [
        f"fallback 1: part B of the initramfs is damaged: /{IMAGE} (content); the stock init takes over"
    ]


@pytest.mark.full
def test_a_stream_that_cannot_be_unpacked_is_a_stock_boot(lz4: Path, tmp_path: Path) -> None:
    """What the kernel was to unpack behind it, the launch agent, is lost too: OUT/run.sh boots it, and it is asked from outside."""
    out = copied(lz4, tmp_path)
    with (out / "initramfs.img").open("r+b") as file:
        part_a = manifest(out)["initramfs_part_a_bytes"]
        file.seek(part_a + 4)
        (length,) = struct.unpack("<I", file.read(4))
        # A block that goes on behind the end of the file.
        file.seek(part_a + 4)
        file.write(struct.pack("<I", length + (8 << 20)))
    port, log = free_port(), tmp_path / "console.log"
    with log.open("wb") as console:
        machine = subprocess.Popen(
            [out / "run.sh"],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            env=door.environment({"PORT": str(port)}),
        )
        try:
            page = answer(port, machine)
        finally:
            machine.terminate()
            machine.wait(60)
    said = whole_text(log.read_bytes())
    assert "Welcome to nginx" in page
    assert "Initramfs unpacking failed" in said
    assert FALLBACK.findall(said) == [
        "fallback 1: part B of the initramfs is damaged: it is neither in the initramfs nor on the root volume; "
        "the stock init takes over"
    ]


def answer(port: int, machine: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + BOOT_S
    while time.monotonic() < deadline and machine.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/")
            return connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException):
            time.sleep(1)
        finally:
            connection.close()
    return ""


def copied(source: Path, place: Path) -> Path:
    out = place / "copy"
    host("cp", "-a", "--sparse=always", source, out)
    return out


def manifest(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "manifest.json").read_text())
    return found
