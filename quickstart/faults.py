"""What pydantic found wrong with a document, as lines that a person can act on."""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Sequence

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails


def faults(error: ValidationError, document: type[BaseModel]) -> list[str]:
    """One line for each fault: its place, what is wrong, and the key or word that was probably meant.

    ``document`` is the model that was validated against.
    """
    details = error.errors(include_url=False)
    # A list that is short because its members were refused is not a fault of its own.
    inside = {detail["loc"][:-1] for detail in details}
    return [
        _fault(each, document) for each in details if each["type"] != "too_short" or each["loc"] not in inside
    ]


def near(word: str, known: Sequence[str]) -> str:
    """``; did you mean 'x'?``, or nothing when no known word is like it."""
    found = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def _fault(detail: ErrorDetails, document: type[BaseModel]) -> str:
    location = detail["loc"]
    where = re.sub(r"\.(\d+)", r"[\1]", ".".join(str(part) for part in location)) or "the whole"
    if detail["type"] == "extra_forbidden":
        return f"{where}: no such key{near(str(location[-1]), _keys_at(location, document))}"
    if detail["type"] == "missing":
        return f"{where}: missing"
    return f"{where}: {detail['msg'].removeprefix('Value error, ')} (got {_short(detail['input'])})"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _keys_at(location: tuple[int | str, ...], document: type[BaseModel]) -> list[str]:
    """The keys that the table around ``location`` has."""
    table = document
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        named = {field.alias or name: field for name, field in table.model_fields.items()}
        inner = _model_in(named[part].annotation) if part in named else None
        if inner is None:
            return []
        table = inner
    return [field.alias or name for name, field in table.model_fields.items()]


def _model_in(annotation: object) -> type[BaseModel] | None:
    """The model that an annotation is, or is a list of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in typing.get_args(annotation) if (found := _model_in(each))), None)
