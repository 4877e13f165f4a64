"""Makes ext4 images with bytes that no kernel writes, but with correct checksums."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from quickstart.image.ext4 import write_disk

UUID = "11111111-2222-3333-4444-555555555555"
_CASTAGNOLI = 0x82F63B78


def crc32c(seed: int, data: bytes) -> int:
    """As ext4 has it: without the inversions at begin and end."""
    for byte in data:
        seed ^= byte
        for _ in range(8):
            seed = seed >> 1 ^ (_CASTAGNOLI if seed & 1 else 0)
    return seed


class Disk:
    """A raw ext4 image (metadata_csum, as mkfs.ext4 makes it) of one block group, whose directories can be written to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = bytearray(path.read_bytes())
        self.block_bytes = 1024 << self.u32(1024 + 0x18)
        self.inode_bytes = int(struct.unpack_from("<H", self.data, 1024 + 0x58)[0])
        descriptor = (self.u32(1024 + 0x14) + 1) * self.block_bytes
        self.table = self.u32(descriptor + 8) * self.block_bytes

    def u32(self, at: int) -> int:
        return int(struct.unpack_from("<I", self.data, at)[0])

    def inode_at(self, number: int) -> int:
        return self.table + (number - 1) * self.inode_bytes

    def first_block_at(self, inode: int) -> int:
        """Where the first extent of an inode lies."""
        return self.u32(self.inode_at(inode) + 0x28 + 20) * self.block_bytes

    def entry_at(self, directory: int, name: bytes) -> int:
        """Where a directory's entry is, in its first block."""
        at = self.first_block_at(directory)
        end = at + self.block_bytes
        while at < end:
            _, length, name_length = struct.unpack_from("<IHB", self.data, at)
            if bytes(self.data[at + 8 : at + 8 + name_length]) == name:
                return at
            at += length
        raise LookupError(name)

    def inode_of(self, directory: int, name: bytes) -> int:
        return self.u32(self.entry_at(directory, name))

    def rename(self, directory: int, old: bytes, new: bytes) -> None:
        """Of the same length: the entry's bytes change, and nothing else."""
        assert len(old) == len(new)
        at = self.entry_at(directory, old) + 8
        self.data[at : at + len(new)] = new

    def write(self) -> Path:
        """With the checksums of the directories' first blocks and of the inodes that fit."""
        seed = crc32c(0xFFFFFFFF, bytes(self.data[1024 + 0x68 : 1024 + 0x78]))
        for number in (2, *range(11, 64)):
            at = self.inode_at(number)
            mode = struct.unpack_from("<H", self.data, at)[0]
            own = crc32c(seed, struct.pack("<I", number) + bytes(self.data[at + 0x64 : at + 0x68]))
            if mode >> 12 == 4:
                block = self.first_block_at(number)
                tail = block + self.block_bytes - 12
                if block and self.data[tail + 7] == 0xDE:
                    struct.pack_into("<I", self.data, tail + 8, crc32c(own, bytes(self.data[block:tail])))
            if mode:
                self._inode_checksum(at, own)
        self.path.write_bytes(self.data)
        return self.path

    def _inode_checksum(self, at: int, own: int) -> None:
        """i_checksum_lo (in the last words of the first 128 bytes) and _hi, over the inode with both zero."""
        struct.pack_into("<H", self.data, at + 0x7C, 0)
        struct.pack_into("<H", self.data, at + 0x82, 0)
        found = crc32c(own, bytes(self.data[at : at + self.inode_bytes]))
        struct.pack_into("<H", self.data, at + 0x7C, found & 0xFFFF)
        struct.pack_into("<H", self.data, at + 0x82, found >> 16)


def machine_tree(tree: Path, names: tuple[str, ...] = ()) -> Path:
    """What a reference image needs at least, and files of these names."""
    (tree / "boot").mkdir(parents=True)
    (tree / "sub/below").mkdir(parents=True)
    for name in ("boot/vmlinuz-6.1.0-1", "boot/initrd.img-6.1.0-1", "sub/file", *names):
        (tree / name).write_text(name)
        os.utime(tree / name, (1, 1_600_000_000))
    return tree


def made(tmp_path: Path, names: tuple[str, ...] = ()) -> Disk:
    path = tmp_path / "disk.raw"
    write_disk(machine_tree(tmp_path / "made", names), path, 32, UUID, "root")
    return Disk(path)
