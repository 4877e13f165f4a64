"""Tags, and the filters of the Describe actions (Amazon EC2 User Guide, "Tag your Amazon EC2 resources" and "Filter your
resources").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quickstart.ec2.emulator.faults import ApiError

Given = Mapping[str, Any]


def tag_rows(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags, as answers have them."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def tags_of(given: Iterable[Given]) -> dict[str, str]:
    """The tags in the parameters of a call. Raises ApiError for a tag that no resource may have."""
    found = {str(tag.get("Key", "")): str(tag.get("Value", "")) for tag in given}
    if any(not key or len(key) > 127 or key.lower().startswith("aws:") for key in found):
        raise ApiError("InvalidParameterValue", "A tag has an empty, reserved or too long key.")
    if not all(text.isprintable() for pair in found.items() for text in pair):
        raise ApiError("InvalidParameterValue", "A tag has a character that cannot be printed.")
    if len(found) > 50:
        raise ApiError("TagLimitExceeded", "A resource has at most 50 tags.")
    return found


def passes(filters: Sequence[Given], facts: Mapping[str, str], tags: Mapping[str, str]) -> bool:
    """Whether a thing passes all filters of a call. ``facts`` are its values, by the names of EC2's filters."""
    return all(_passes_one(each, facts, tags) for each in filters)


def _passes_one(wanted: Given, facts: Mapping[str, str], tags: Mapping[str, str]) -> bool:
    name, values = wanted.get("Name", ""), wanted.get("Values", ())
    if name == "tag-key":
        return any(matches(value, key) for value in values for key in tags)
    if name.startswith("tag:"):
        key = name.removeprefix("tag:")
        return key in tags and any(matches(value, tags[key]) for value in values)
    if name not in facts:
        raise ApiError("InvalidParameterValue", f"The filter '{name}' is invalid")
    return any(matches(value, facts[name]) for value in values)


def matches(pattern: str, text: str) -> bool:
    """EC2's patterns: * stands for any characters, ? for one, and a backslash takes the meaning away. The time is at most
    the product of both lengths.
    """
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    at, place, star, mark = 0, 0, -1, 0
    while place < len(text):
        part = parts[at] if at < len(parts) else ""
        if part == "*":
            star, mark = at, place
            at += 1
        elif part == "?" or (part and part[-1] == text[place]):
            at, place = at + 1, place + 1
        elif star >= 0:
            mark += 1
            at, place = star + 1, mark
        else:
            return False
    return all(part == "*" for part in parts[at:])
