"""A base class for tables in documents, and functions that turn pydantic's error messages into lines that help a user
to correct the document.
"""

from __future__ import annotations

import difflib
import re
import reprlib
import typing
from collections.abc import Callable, Sequence
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from quickstart.parse.printable import shown

T = TypeVar("T")
# The limits for the messages about one document.
MAX_LINES = 100
_LONGEST_WORD = 100
_MOST_SHOWN = 200
# For a list or a table: the first members, to some depth.
_SHORT = reprlib.Repr()
_SHORT.maxstring = _MOST_SHOWN
# pydantic returns all faults at once, and each takes about a KiB.
_MAX_TOLD = 50_000


class Table(BaseModel):
    """A table in a document. Unknown keys are refused, values must have exactly the declared types, and the
    table is immutable.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def faults(error: ValidationError, document: type[BaseModel]) -> list[str]:
    """One line for each fault in ``error``. The line says where the fault is, what is wrong, and which key or word the
    user has probably meant. ``document`` is the pydantic model for the whole document.
    """
    if error.error_count() > _MAX_TOLD:
        return [f"the whole: {error.error_count()} faults, so it is another kind of document"]
    details = error.errors(include_url=False)
    # If a list is too short only because its members were refused, this is not another fault.
    inside = {detail["loc"][:-1] for detail in details}
    kept = [each for each in details if each["type"] != "too_short" or each["loc"] not in inside]
    return first_ones(kept, lambda each: _fault(each, document))


def first_ones(found: Sequence[T], line_of: Callable[[T], str] = str) -> list[str]:
    """One line for each of the first faults. When there are more than MAX_LINES faults, the last line gives
    the number of further faults.
    """
    # A line may have keys and words from an untrusted source, which must not begin a line of their own.
    lines = [shown(line_of(each)) for each in found[:MAX_LINES]]
    return [*lines, f"and {len(found) - MAX_LINES} more"] if len(found) > MAX_LINES else lines


def near(word: str, known: Sequence[str]) -> str:
    """The text ``; did you mean 'x'?`` with the known word that is most similar to ``word``. The result is empty when
    no known word is similar.
    """
    found = difflib.get_close_matches(word[:_LONGEST_WORD], known, n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def _fault(detail: ErrorDetails, document: type[BaseModel]) -> str:
    location = detail["loc"]
    parts = ".".join(_short(part) if isinstance(part, str) else str(part) for part in location)
    where = re.sub(r"\.(\d+)", r"[\1]", parts) or "the whole"
    if detail["type"] == "extra_forbidden":
        return f"{where}: no such key{near(str(location[-1]), _keys_at(location, document))}"
    if detail["type"] == "missing":
        return f"{where}: missing"
    return f"{where}: {detail['msg'].removeprefix('Value error, ')} (got {_repr_of(detail['input'])})"


def _repr_of(value: object) -> str:
    # Of all of a long text, the representation may take ten times its memory.
    whole = value[: _MOST_SHOWN + 1] if isinstance(value, str) else value
    return _short(_SHORT.repr(whole) if isinstance(value, dict | list | tuple) else repr(whole))


def _short(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _keys_at(location: tuple[int | str, ...], document: type[BaseModel]) -> list[str]:
    """The keys that the pydantic model ``document`` allows in the table at ``location``."""
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
    """The pydantic model in a type annotation. The annotation is the model itself or contains it, for example as the
    type of a list's members. The result is None when the annotation has no model.
    """
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in typing.get_args(annotation) if (found := _model_in(each))), None)
