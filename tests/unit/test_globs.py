"""Globs of profiles and manifests: what they match, and that none takes long."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.inspect.globs import _compiled, matches
from tests.unit.hostile import bounded

PATHS = st.lists(st.text("ab.", min_size=1, max_size=4), min_size=1, max_size=4).map(
    lambda names: "/".join(names)
)
GLOBS = st.lists(
    st.sampled_from(["a", "b", ".", "/", "*", "**", "?", "[ab]", "[!a]"]), min_size=1, max_size=9
)
PLAIN = {"**": "(?:.|\n)*", "*": "[^/]*", "?": "[^/]", "[ab]": "[ab]", "[!a]": "[^a/]", ".": r"\."}


def joined(parts: list[str]) -> list[str]:
    """Two single stars beside each other would be read as a double one."""
    found: list[str] = []
    for part in parts:
        if not (part in ("*", "**") and found and found[-1] in ("*", "**")):
            found.append(part)
    return found


@given(PATHS, GLOBS)
def test_a_glob_matches_what_its_plain_pattern_does(path: str, parts: list[str]) -> None:
    parts = ["/", *joined(parts)]
    if not {"*", "**", "?", "[ab]", "[!a]"} & set(parts):
        return
    plain = re.compile("".join(PLAIN.get(part, part) for part in parts))
    place = PurePosixPath("/", path)
    assert matches(place, "".join(parts)) == (plain.fullmatch(str(place)) is not None)


@pytest.mark.parametrize("glob", ["/" + "**a" * 12 + "**b", "/" + "*a" * 12 + "*b", "/**" + "*a" * 12 + "*b"])
def test_no_glob_takes_longer_than_the_path_is(glob: str) -> None:
    """With a second try for each star this would not end in a lifetime."""
    assert not matches(PurePosixPath("/" + "a" * 4000), glob)
    assert matches(PurePosixPath("/" + "a" * 4000 + "b"), glob)


@pytest.mark.parametrize(
    ("glob", "name"),
    [
        ("/**a*a*a*b*", "a" * 4000),
        ("/**/" + "a/" * 200 + "b*", "a/" * 1990),
        ("/**" + "?" * 500 + "b*", "a" * 4000),
        ("/**" + "[ab]" * 120 + "c*", "a" * 4000),
    ],
)
def test_each_character_of_a_path_is_read_once(glob: str, name: str) -> None:
    """A stranger's manifest has a hundred globs, and an archive some thousand such paths."""
    read = 0

    class Counted(str):
        def __iter__(self) -> Iterator[str]:
            nonlocal read
            for char in str.__iter__(self):
                read += 1
                yield char

    head, middle, _ = _compiled(glob)
    assert middle is not None
    assert not middle.matches(Counted(f"/{name}".removeprefix(head)))
    assert read <= len(name) + 1
    with bounded(20):
        for _ in range(1000):
            assert not matches(f"/{name}", glob)


@pytest.mark.parametrize("glob", ["/a[]b", "/a[!]b", "/a[b"])
def test_brackets_without_a_class_are_letters(glob: str) -> None:
    assert matches(glob, glob)
    assert not matches("/ab", glob)


@pytest.mark.parametrize("char", ["a", "m", "z", "é", "\n", "\udc80", "["])
def test_classes_are_those_of_fnmatch(char: str) -> None:
    for token in ("[a-m]", "[!a-m]", "[z-a]", "[!z-a]", "[]a]", "[!]a]", "[é-\U0010ffff]", "[a-]"):
        assert matches(f"/x{char}y", f"/*{token}y") == fnmatch.fnmatchcase(char, token)


def test_a_class_stays_within_a_name() -> None:
    assert matches(PurePosixPath("/a.b"), "/a[!x]b")
    assert not matches(PurePosixPath("/a/b"), "/a[!x]b")
