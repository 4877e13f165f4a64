"""A stranger's JSON: what is over a limit raises ValueError, soon and with little memory."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.parse import jsondoc
from tests.unit.hostile import little_memory

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.booleans())
def test_a_document_is_what_it_was_written_from(value: object, ascii_only: bool) -> None:
    try:
        text = json.dumps(value, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:
        # A lone surrogate has no bytes.
        return
    try:
        assert jsondoc.parse(text) == value
    except ValueError as error:
        assert "nested" in str(error)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_document_or_a_value_error(data: bytes) -> None:
    try:
        jsondoc.parse(data)
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"[" * 200_000 + b"]" * 200_000, "nested more than 16 deep"),
        (b'{"a":' * 200_000 + b"1" + b"}" * 200_000, "nested more than 16 deep"),
        (b"[" * 5_000_000, "objects and lists, at most"),
        (b"[[],[]," * 250_000, "objects and lists, at most"),
        (b"[" + b"1," * 2_000_000 + b"1]", "more than 1500000 values"),
        (b"[" + b"9" * 4301 + b"]", "a number of 4301 digits"),
        (b"[-" + b"9" * 20 + b"]", "a number of 21 digits"),
        (b"[NaN]", "NaN is not JSON"),
        (b"[-Infinity]", "-Infinity is not JSON"),
        (b'{"a": 1, "a": 2}', "a key is there twice"),
        (b'["\xff"]', "not UTF-8 at byte 2"),
        (b"", "not JSON: "),
        (b'"', "not JSON: "),
        (b'["\\', "not JSON"),
        (b"[1] [2]", "not JSON"),
        # Nothing of it is a string's end: each place is looked at once.
        (b'"' + b'\\"' * 2_000_000, "not JSON"),
    ],
)
def test_what_is_over_a_limit_is_named(data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        jsondoc.parse(data)


def test_brackets_in_strings_are_no_depth() -> None:
    text = json.dumps({"a": "[" * 100_000, '"{' * 100: "\\"})
    assert jsondoc.parse(text.encode()) == json.loads(text)


def test_millions_of_strings_take_little_memory() -> None:
    """A piece was kept for each: 16 MB took a GiB."""
    data = b'["a"' + b',"a",' * 400_000 + b"]"
    with little_memory(), pytest.raises(ValueError, match="not JSON"):
        jsondoc.parse(data)
