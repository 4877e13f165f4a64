"""Our initramfs is divided for a disk: a boot loader reads part A, and init reads part B."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.initramfs.newc import directory, regular, write_archive
from quickstart.initramfs.newc_reader import read_archive
from quickstart.initramfs.parts import LATE, LOADED, divided
from quickstart.model import Initramfs
from quickstart.model.words import Payload

_DIRECTORIES = (directory("fast"), directory("fast/quickstart"))
PART_A = (
    *_DIRECTORIES,
    regular("init", b"#!/bin/sh\n" * 900, 0o755),
    regular("fast/quickstart/config", b"BUILD=b1\n", 0o644),
)
PART_B = (
    *_DIRECTORIES,
    directory("fast/usr"),
    directory("fast/usr/sbin"),
    regular("fast/usr/sbin/nginx", bytes(70_001), 0o755),
    regular("fast/quickstart/part-b", b"b1\n", 0o644),
)


@pytest.fixture
def initramfs(tmp_path: Path) -> Initramfs:
    path = tmp_path / "whole.img"
    with path.open("wb") as file:
        write_archive(file, PART_A)
        part_a_bytes = file.tell()
        write_archive(file, PART_B)
        size_bytes = file.tell()
    return Initramfs(
        path=path,
        size_bytes=size_bytes,
        part_a_bytes=part_a_bytes,
        part_b_bytes=size_bytes - part_a_bytes,
        unpacked_bytes=size_bytes,
        sha256="",
    )


def names(path: Path) -> list[tuple[str, bytes]]:
    with path.open("rb") as file:
        return [(each.name, each.data) for each in read_archive(file)]


@pytest.mark.parametrize("loaded", [Payload.CPIO, Payload.LZ4])
def test_both_parts_have_their_members(tmp_path: Path, initramfs: Initramfs, loaded: Payload) -> None:
    place = tmp_path / "parts"
    place.mkdir()
    parts = divided(initramfs, Payload.CPIO, loaded, place)
    assert names(parts[LOADED]) == [(each.name, each.data) for each in PART_A]
    assert names(parts[LATE]) == [(each.name, each.data) for each in PART_B]
    # The kernel finds the next archive only at a multiple of four bytes.
    assert parts[LOADED].stat().st_size % 512 == 0
    assert {each.stat().st_mode & 0o777 for each in parts.values()} == {0o600}
    assert (parts[LOADED].stat().st_size < initramfs.part_a_bytes) == (loaded is Payload.LZ4)


@pytest.mark.parametrize("payload", [Payload.SQUASHFS, Payload.ZSTD])
def test_what_init_cannot_unpack_is_for_the_boot_loader(
    tmp_path: Path, initramfs: Initramfs, payload: Payload
) -> None:
    assert divided(initramfs, payload, Payload.LZ4, tmp_path) == {LOADED: initramfs.path}
