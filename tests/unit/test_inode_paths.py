"""The paths of a volume's inodes, and their memory."""

from __future__ import annotations

import tracemalloc
from pathlib import PurePosixPath

import pytest

from quickstart.image.inodepaths import InodePaths, path_bytes

# Of pathlib's objects for any path, and of the number that leads to it.
OBJECTS_BYTES = 600


def test_a_path_is_made_of_its_directory_and_its_name() -> None:
    paths = InodePaths({2: PurePosixPath("/")})
    paths.name(11, 2, "etc")
    paths.name(12, 11, "odd\udce9")
    paths.name(13, None, "inode 13")
    paths.name(14, 13, "below")
    expected = {2: "/", 11: "/etc", 12: "/etc/odd\udce9", 13: "inode 13", 14: "inode 13/below"}
    assert {number: str(path) for number, path in paths.items()} == expected
    assert paths[12] == paths.made(12) == PurePosixPath("/etc/odd\udce9")
    # Whoever asks again gets the same object.
    assert paths[12] is paths[12]
    assert (11 in paths, 15 in paths, len(paths)) == (True, False, 5)


@pytest.mark.parametrize("depth", [1, 8, 100, 1900])
def test_what_a_path_takes_is_foreseen(depth: int) -> None:
    """Paths of 1900 directories took five times of what was counted."""
    paths = InodePaths({2: PurePosixPath("/" + "a/" * depth)})
    for number in range(11, 111):
        paths.name(number, 2, str(number))
    tracemalloc.start()
    try:
        texts = [str(paths[number]) for number in range(11, 111)]
        taken_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken_bytes < sum(path_bytes(text) + OBJECTS_BYTES for text in texts)


def test_a_name_takes_little_memory() -> None:
    """In a deep directory, too, and when all paths are looked through once."""
    paths = InodePaths({2: PurePosixPath("/" + "a/" * 1900)})
    tracemalloc.start()
    try:
        for number in range(11, 10_011):
            paths.name(number, 2, "n")
        assert sum(1 for _ in paths.items()) == 10_001
        assert tracemalloc.get_traced_memory()[1] < 10_000 * 300
    finally:
        tracemalloc.stop()
