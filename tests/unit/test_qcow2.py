"""How much data a qcow2 image has, by its tables (docs/interop/qcow2.txt of QEMU)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile

import pytest

from quickstart.image.qcow2 import Form, data_bytes, virtual_bytes
from tests.unit.hostile import bounded

CLUSTER = 1 << 16
GIB = 1 << 30
TIB = 1 << 40
MIB_64 = 64 << 20
# Bits of entries: its data is compressed; it reads as zeros.
PACKED, ZEROS = 1 << 62, 1
OWN = 1 << 63


def image(second: list[int], *, size_bytes: int = GIB, first: list[int] | None = None) -> bytes:
    """An image of 64 KiB clusters: its header, the first table, a second table with the entries ``second``, and three clusters
    of data.
    """
    header = struct.pack(
        ">4sIQIIQIIQ", b"QFI\xfb", 3, 0, 0, 16, size_bytes, 0, -(-size_bytes // (GIB // 2)), CLUSTER
    )
    header += struct.pack(">QIIQQQQII", 0, 0, 0, 0, 0, 0, 0, 4, 104)
    first = [2 * CLUSTER | OWN] if first is None else first
    parts = [header, *(struct.pack(f">{len(each)}Q", *each) for each in (first, second))]
    return (
        b"".join((each or b"\0").ljust(max(1, -(-len(each) // CLUSTER)) * CLUSTER, b"\0") for each in parts)
        + b"x" * 3 * CLUSTER
    )


@contextmanager
def opened(data: bytes, file_bytes: int | None = None) -> Iterator[int]:
    """The image, with its file cut or lengthened to ``file_bytes``."""
    with TemporaryFile() as file:
        file.write(data)
        file.truncate(file_bytes or len(data))
        assert virtual_bytes(file.fileno())
        yield file.fileno()


A, B, C = 3 * CLUSTER | OWN, 4 * CLUSTER | OWN, 5 * CLUSTER | OWN


@pytest.mark.parametrize(
    ("second", "clusters"),
    [
        ([], 0),
        ([A, 0, 0, C], 2),
        ([0, A | ZEROS, ZEROS], 0),
    ],
)
def test_what_is_written_is_what_has_data(second: list[int], clusters: int) -> None:
    with opened(image(second)) as fd:
        assert data_bytes(fd, GIB) == clusters * CLUSTER


def test_compressed_data_are_refused() -> None:
    """81 KB were 14 GiB: all entries named one place, and each took QEMU the time of a cluster."""
    with (
        opened(image([A, PACKED | 4 * CLUSTER])) as fd,
        pytest.raises(ValueError, match="has compressed data"),
    ):
        data_bytes(fd, GIB)


def test_compressed_data_that_a_user_gives() -> None:
    """Two clusters may begin in one cluster of the file, but none behind its end."""
    compressed = [PACKED | 4 * CLUSTER + 100, PACKED | 4 * CLUSTER + 700, A]
    with opened(image(compressed)) as fd:
        assert data_bytes(fd, GIB, Form.GIVEN) == 3 * CLUSTER
    with (
        opened(image([PACKED | 6 * CLUSTER])) as fd,
        pytest.raises(ValueError, match="behind the end of the file"),
    ):
        data_bytes(fd, GIB, Form.GIVEN)


def test_tables_in_holes_take_no_time() -> None:
    """12 KiB on the disk were 40 s: each of 8 GiB of tables was read, and had nothing in it."""
    header = bytearray(image([], size_bytes=TIB))
    header[20:24] = struct.pack(">I", 21)
    entries = 2048
    first = struct.pack(f">{entries}Q", *((8 + each) << 21 for each in range(entries)))
    header[36:40] = struct.pack(">I", entries)
    header[40:48] = struct.pack(">Q", 1 << 21)
    header[24:32] = struct.pack(">Q", 1 << 50)
    with bounded(), TemporaryFile() as file:
        file.write(header[: 1 << 16])
        file.seek(1 << 21)
        file.write(first)
        file.truncate((9 + entries) << 21)
        assert data_bytes(file.fileno(), GIB, Form.GIVEN) == 0


def test_holes_do_not_make_room_for_compressed_data() -> None:
    with (
        opened(image([PACKED | 3 * CLUSTER] * 8192), GIB) as fd,
        pytest.raises(ValueError, match="1032 times"),
    ):
        data_bytes(fd, GIB, Form.GIVEN)


def test_small_clusters_take_whole_blocks() -> None:
    second = [0] * 64
    second[::8] = [(4 + each) << 9 for each in range(8)]
    head = struct.pack(">4sIQIIQIIQQIIQ", b"QFI\xfb", 2, 0, 0, 9, 1 << 20, 0, 32, 512, 0, 0, 0, 0)
    parts = (head, struct.pack(">Q", 1024), struct.pack(">64Q", *second))
    with TemporaryFile() as file:
        file.write(b"".join(part.ljust(512, b"\0") for part in parts) + b"x" * 512 * 16)
        file.flush()
        assert data_bytes(file.fileno(), GIB, Form.GIVEN) == 8 * 4096


def test_an_extension_behind_64_kib_is_seen() -> None:
    """With clusters of 2 MiB, QEMU reads on."""
    data = bytearray(image([]))
    data[20:24] = struct.pack(">I", 21)
    names = CLUSTER - 104 - 8
    data[104:112] = struct.pack(">II", 0x6803F857, names)
    data[CLUSTER : CLUSTER + 8] = struct.pack(">II", 0x44415441, 8)
    with TemporaryFile() as file:
        file.write(data)
        file.flush()
        with pytest.raises(ValueError, match="external data file"):
            virtual_bytes(file.fileno(), Form.GIVEN)


def test_few_compressed_bytes_are_not_gigabytes() -> None:
    compressed = image([PACKED | 3 * CLUSTER] * 8192)
    with opened(compressed) as fd, pytest.raises(ValueError, match="1032 times its file"):
        data_bytes(fd, GIB, Form.GIVEN)


# Magic, version, backing file, cluster bits, size, encryption, tables, counts, snapshots, three kinds of features, bits of a count.
@pytest.mark.parametrize(
    ("at", "value", "said"),
    [
        (4, 1, "does not know such a qcow2 image"),
        (4, 4, "does not know such a qcow2 image"),
        (20, 8, "does not know such a qcow2 image"),
        (20, 22, "does not know such a qcow2 image"),
        (16, 1, "a backing file"),
        (32, 2, "is encrypted"),
        (28, 0x40000001, "no multiple of 512"),
        (60, 1, "has snapshots"),
        (76, 2, "features that build does not use"),
        (76, 4, "an external data file"),
        (76, 16, "features that build does not use"),
        (84, 2, "features that build does not use"),
        (92, 1, "has dirty bitmaps"),
        (100, 200, "header is damaged"),
    ],
)
def test_what_a_user_may_not_give(at: int, value: int, said: str) -> None:
    """A number of four bytes at this place of the header."""
    data = bytearray(image([]))
    data[at : at + 4] = struct.pack(">I", value)
    with TemporaryFile() as file:
        file.write(data)
        file.flush()
        for form in Form:
            with pytest.raises(ValueError, match=said if form is Form.GIVEN else None):
                virtual_bytes(file.fileno(), form)


@pytest.mark.parametrize(("at", "value"), [(4, 2), (20, 21), (76, 1), (76, 8), (84, 1), (96, 6)])
def test_what_a_user_may_give_and_build_does_not_make(at: int, value: int) -> None:
    data = bytearray(image([]))
    data[at : at + 4] = struct.pack(">I", value)
    with TemporaryFile() as file:
        file.write(data)
        file.flush()
        assert virtual_bytes(file.fileno(), Form.GIVEN) == GIB
        with pytest.raises(ValueError, match=r"no qcow2 image of version 3|features that build does not use"):
            virtual_bytes(file.fileno())


@pytest.mark.parametrize(
    ("second", "first"),
    [([A, B, A], None), ([A], [2 * CLUSTER, 2 * CLUSTER]), ([2 * CLUSTER], None)],
    ids=["data", "tables", "data in a table"],
)
def test_no_place_has_two_parts_of_the_disk(second: list[int], first: list[int] | None) -> None:
    with (
        opened(image(second, first=first)) as fd,
        pytest.raises(ValueError, match="in one place of the file"),
    ):
        data_bytes(fd, GIB)


def test_it_counts_no_further_than_is_asked() -> None:
    data = [(3 + number) * CLUSTER for number in range(8192)]
    with opened(image(data, first=[2 * CLUSTER | OWN, 7]), 8200 * CLUSTER) as fd:
        assert MIB_64 < data_bytes(fd, MIB_64) <= GIB


@pytest.mark.parametrize("second", [[A, 1 << 40], [6 * CLUSTER | OWN]])
def test_nothing_is_behind_the_end_of_the_file(second: list[int]) -> None:
    with opened(image(second)) as fd, pytest.raises(ValueError, match="behind the end of the file"):
        data_bytes(fd, GIB)


def test_a_first_table_behind_any_file() -> None:
    """The offset is larger than what pread(2) takes."""
    data = bytearray(image([A]))
    data[40:48] = struct.pack(">Q", 1 << 63)
    with opened(bytes(data)) as fd, pytest.raises(ValueError, match="first table is behind the end"):
        data_bytes(fd, GIB)


def test_the_last_cluster_of_the_file_may_be_short() -> None:
    """589 KB were 2 GiB of data: all entries named the last cluster, which was not noted."""
    cut = 5 * CLUSTER + 10
    with opened(image([A, C]), cut) as fd:
        assert data_bytes(fd, GIB) == 2 * CLUSTER
    with opened(image([C, A, C]), cut) as fd, pytest.raises(ValueError, match="in one place of the file"):
        data_bytes(fd, GIB)
    # One second table for all of the first.
    header = image([ZEROS], size_bytes=64 * TIB, first=[2 * CLUSTER | OWN] * (64 * TIB // (GIB // 2)))
    with (
        bounded(),
        opened(header, len(header) - 3 * CLUSTER - 100) as fd,
        pytest.raises(ValueError, match=r"in one place of the file|behind the end"),
    ):
        data_bytes(fd, GIB)


def test_few_bytes_for_64_tib() -> None:
    """One file, whose tables are all one; one with more tables than are read; one of 1 EiB, nearly all a hole."""
    tables = 64 * TIB // (GIB // 2)
    with bounded():
        one = image([0], size_bytes=64 * TIB, first=[17 * CLUSTER] * tables)
        with opened(one) as fd, pytest.raises(ValueError, match="in one place"):
            data_bytes(fd, GIB)
        with opened(image([A], size_bytes=65 * TIB)) as fd, pytest.raises(ValueError, match="133120 tables"):
            data_bytes(fd, GIB)
        # tmpfs and ext4 have no file of this length.
        with opened(image([A])) as fd, pytest.MonkeyPatch.context() as patch:
            patch.setattr("quickstart.image.qcow2._MOST_CLUSTERS", 5)
            with pytest.raises(ValueError, match="its file has 6 clusters"):
                data_bytes(fd, GIB)
