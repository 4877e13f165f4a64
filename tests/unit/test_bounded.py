"""Untrusted numbers, lines, files and TOML: time and memory are limited, and a ValueError or OSError is
raised beyond the limits.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.host.descriptors import Descriptors
from quickstart.parse.bounded import MAX_TOML_BYTES, UINT64_MAX, lines_of, natural, parse_toml, read_whole
from tests.unit.hostile import bounded


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("007", 7),
        (str(UINT64_MAX), UINT64_MAX),
        (str(UINT64_MAX + 1), None),
        ("1" * 21, None),
        ("9" * 10**7, None),
        ("", None),
        ("-1", None),
        ("+1", None),
        (" 1", None),
        ("1\n", None),
        ("1_0", None),
        ("²", None),
        ("٣", None),
    ],
)
def test_a_natural_number(text: str, value: int | None) -> None:
    with bounded():
        assert natural(text) == value


def test_a_number_above_the_most() -> None:
    assert natural("5", 5) == 5
    assert natural("6", 5) is None


def test_lines_and_pieces_of_long_ones() -> None:
    assert list(lines_of(io.BytesIO(b"a\nbcd\nefghij\nk"), 3)) == [b"a\n", b"bcd\n", b"efgh", b"ij\n", b"k"]


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_whole(path, 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_whole(path, 4)


@pytest.mark.parametrize("kind", ["fifo", "directory", "device", "sparse", "link"])
def test_what_is_no_plain_file_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "link":
        path.symlink_to("/dev/zero")
    else:
        path.touch()
        os.truncate(path, 1 << 40)
    with bounded(), pytest.raises(OSError, match=r"not a regular file|more than 1000 bytes|Is a directory"):
        read_whole(path, 1000)


LONG = ".".join("a" * 20_000)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("x = " + "[" * 5000, "nested too deep"),
        ("x = " + "{a=" * 5000, "nested too deep|Expected|Invalid"),
        (f"{LONG} = 1", "more than 32 parts"),
        (f"[{LONG}]", "more than 32 parts"),
        (f"x = {{ {LONG} = 1 }}", "more than 32 parts"),
        ("\"a\" . 'b'." + LONG + " = 1", "more than 32 parts"),
        ("'a'." * 20_000 + "b = 1", "more than 32 parts"),
        ('x = """\n"# . \n"""\n' + LONG + " = 1", "more than 32 parts"),
        ("x = '''\n#'\n'''\n# it's\n" + LONG + " = 1", "more than 32 parts"),
        ("x = " + "9" * 4301, "limit"),
        ("x = 0x" + "f" * 100_000, "limit"),
        ("x = 1979-99-99", "Expected|Invalid"),
        ("#" * (MAX_TOML_BYTES + 1), "more than 262144 characters"),
        ('x = "\\ud800"', "Invalid|Escaped|scalar"),
        ('"""\\' * 60_000, "Invalid|Expected|Unterminated|Illegal|escape"),
        ("'" * 200_001, "Invalid|Expected|Unterminated|Illegal"),
        ("a." * 100_000, "more than 32 parts"),
    ],
)
def test_toml_that_would_take_all(text: str, what: str) -> None:
    with bounded(), pytest.raises(ValueError, match=what):
        parse_toml(text)


def test_toml_with_dots_that_are_no_keys() -> None:
    dots = "a." * 100
    text = f'x = "{dots}"\ny = \'\'\'\n{dots}\n\'\'\'\n# {dots}\nz = """"{dots}""""\n[a.b.c]\nd.e = 1.5\n'
    assert parse_toml(text)["a"] == {"b": {"c": {"d": {"e": 1.5}}}}
    assert parse_toml("w = " + "9" * 19) == {"w": int("9" * 19)}


@given(st.lists(st.tuples(st.sampled_from(["set", "copy"]), st.integers(-1, (1 << 20) + 1)), max_size=60))
def test_descriptors_are_dictionaries_that_are_copied(steps: list[tuple[str, int]]) -> None:
    kept: list[tuple[Descriptors[int], dict[int, int]]] = []
    found, expected = Descriptors[int](), dict[int, int]()
    for at, (step, number) in enumerate(steps):
        if step == "copy":
            kept.append((found, expected))
            found, expected = found.copy(), dict(expected)
        else:
            found.set(number, at)
            if 0 <= number < 1 << 20:
                expected[number] = at
    for one, other in [*kept, (found, expected)]:
        for _, number in steps:
            assert one.get(number) == other.get(number)


def test_many_copies_of_many_descriptors_share_them() -> None:
    found = Descriptors[int]()
    copies = []
    with bounded(mib=400):
        for number in range(20_000):
            found.set(number, number)
            copies.append(found.copy())
    assert copies[100].get(100) == 100 and copies[100].get(101) is None
