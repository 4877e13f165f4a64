"""Globs of profiles and manifests: what they match, and that none takes long."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.inspect.globs import matches

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


def test_a_class_stays_within_a_name() -> None:
    assert matches(PurePosixPath("/a.b"), "/a[!x]b")
    assert not matches(PurePosixPath("/a/b"), "/a[!x]b")
