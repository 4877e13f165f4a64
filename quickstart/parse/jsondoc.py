"""Parse untrusted JSON within limits on the depth of nesting, the number of values and the length of numbers.

`json.loads` recurses as deep as the text is nested. It also accepts numbers of any length, NaN, Infinity, and duplicate
keys (the last value counts). `parse` raises ValueError for a text that is nested too deep, a number that is too long,
NaN, Infinity, and a duplicate key. The time that `parse` takes is proportional to the text's length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Never

# Objects and lists within each other. None of our documents has more than six.
_MOST_DEEP = 16
# Limits for all objects and lists, and for all values with the keys. They limit the memory, because an object or list
# takes some 300 bytes, and a value 100.
_MOST_CONTAINERS = 400_000
_MOST_VALUES = 1_500_000
# 2**63 has 19 digits.
_MOST_DIGITS = 20
# The pattern is possessive, and goes to the end of the text if the closing quote is missing. So no place is examined
# twice. quickstart.parse.bounded says why it has (?>(?:…)*) and not (?:…)*+.
_STRING = re.compile(rb'"[^"\\]*+(?>(?:\\.[^"\\]*+)*)(?:"|\\?\Z)', re.DOTALL)
_ALL_BUT_SYNTAX = bytes(sorted(set(range(256)) - set(b"[]{},:")))


def parse(data: bytes, *, keep_long_numbers: bool = False) -> object:
    """The JSON document in ``data`` (UTF-8). Raises ValueError with a readable message for any other data,
    and when a limit is exceeded.

    With ``keep_long_numbers``, an integer with too many digits becomes a Decimal. The caller's pydantic model then
    refuses the Decimal, and its message says where in the document this number is.
    """
    _check_shape(data)
    try:
        return json.loads(
            data.decode("utf-8"),
            parse_int=_any_integer if keep_long_numbers else _integer,
            parse_constant=_no_constant,
            object_pairs_hook=_object,
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from error


def _check_shape(data: bytes) -> None:
    syntax = _syntax(data)
    containers = syntax.count(b"[") + syntax.count(b"{")
    if containers > _MOST_CONTAINERS:
        raise ValueError(f"{containers} objects and lists, at most {_MOST_CONTAINERS} are read")
    values = containers + syntax.count(b",") + syntax.count(b":")
    if values > _MOST_VALUES:
        raise ValueError(f"more than {_MOST_VALUES} values")
    nested = syntax.translate(None, b",:")
    # Each round removes the innermost objects and lists. If the text is not JSON, something may be left, too.
    for _ in range(_MOST_DEEP):
        if not nested:
            return
        nested = nested.replace(b"[]", b"").replace(b"{}", b"")
    if nested:
        raise ValueError(f"not JSON, or nested more than {_MOST_DEEP} deep")


def _syntax(data: bytes) -> bytearray:
    """The brackets, commas and colons of ``data`` that are outside strings."""
    # re.sub is not used, because it keeps a piece for each string until its end.
    found, at = bytearray(), 0
    for number, match in enumerate(_STRING.finditer(data)):
        if number > _MOST_VALUES:
            raise ValueError(f"more than {_MOST_VALUES} values")
        found += data[at : match.start()].translate(None, _ALL_BUT_SYNTAX)
        at = match.end()
    return found + data[at:].translate(None, _ALL_BUT_SYNTAX)


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _any_integer(digits: str) -> int | Decimal:
    # The time of int() grows with the square of the number of digits. That of Decimal() does not.
    return Decimal(digits) if len(digits) > _MOST_DIGITS else int(digits)


def _no_constant(name: str) -> Never:
    raise ValueError(f"{name} is not JSON")


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice in one object")
    return found
