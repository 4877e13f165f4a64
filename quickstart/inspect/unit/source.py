"""The assignments of a unit, and methods to read them. Errors name the directive whose value is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.unit.files import Directives, directives
from quickstart.inspect.unit.values import BadValueError, boolean
from quickstart.inspect.unit.words import Names, split_words
from quickstart.parse.printable import brief

T = TypeVar("T")
# A blank that does not separate words for systemd (WHITESPACE in its src/basic/string-util.h).
_OTHER_BLANK = re.compile(r"[^\S \t\n\r]")
# Directives whose words may have escapes. Commands are read elsewhere.
_WITH_ESCAPES = ("Environment", "UnsetEnvironment")


@dataclass(frozen=True)
class Systemd:
    """The differences between the image's systemd and other versions. ``call_groups`` are the groups of system calls
    that the image's systemd defines. ``newer`` are the directives for which the image's systemd does more than Debian
    12's systemd, as pidone.newer_directives finds them.
    """

    call_groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    newer: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Source:
    """The assignments of ``unit`` in one section (mostly [Service]) in order, and the values of each [Manager]
    directive in the image's system.conf.

    ``systemd`` describes the image's systemd. A field of ``systemd`` is empty when no directive of the unit needs the
    field.
    """

    unit: str
    assigned: tuple[tuple[str, str], ...]
    manager: Directives
    systemd: Systemd = field(default_factory=Systemd)

    def __post_init__(self) -> None:
        """Raise UnsupportedUnitError for a value with a blank, such as a no-break space, that systemd takes for a
        letter. The words of a list would differ.
        """
        for name, value in self.assigned:
            if _OTHER_BLANK.search(value):
                raise UnsupportedUnitError(
                    f"{self.unit} cannot be started early: {name}={brief(value)} has a blank that systemd takes for a letter",
                    hint="was it copied from a web page? Write an ordinary blank",
                )

    @cached_property
    def found(self) -> Directives:
        """The values of each directive that has a value after all assignments."""
        return directives(self.assigned)

    @cached_property
    def names(self) -> Names:
        return Names(self.unit)

    def refusal(self, name: str, value: str, why: BadValueError) -> UnsupportedUnitError:
        return UnsupportedUnitError(f"{self.unit} cannot be started early: {name}={brief(value)} {why}")

    def all(self, name: str) -> tuple[str, ...]:
        return self.found.get(name, ())

    def last(self, name: str, otherwise: str = "") -> str:
        """The effective value of the directive ``name``, which is the last one, or ``otherwise`` when the directive
        has no value.
        """
        return self.found.get(name, (otherwise,))[-1]

    def value(self, name: str, convert: Callable[[str], T]) -> T | None:
        """The effective value of the directive ``name``, converted by ``convert``. The result is None when the
        directive has no value. Raises UnsupportedUnitError for an invalid value.
        """
        if name not in self.found:
            return None
        return self.converted(name, self.last(name), convert)

    def converted(self, name: str, value: str, convert: Callable[[str], T]) -> T:
        try:
            return convert(value)
        except BadValueError as error:
            raise self.refusal(name, value, error) from error

    def flag(self, name: str, otherwise: bool = False, but: Iterable[str] = ()) -> bool:
        """The effective value of the directive ``name`` as a boolean. The result is false for a value in ``but``.
        ``but`` has the valid values of the directive that are not booleans.
        """
        if self.last(name) in but:
            return False
        found = self.value(name, boolean)
        return otherwise if found is None else found

    def plain_path(self, name: str, text: str) -> str:
        """``text`` with its specifiers expanded. Raises UnsupportedUnitError unless ``text`` is an absolute path
        without `..`, because systemd would ignore any other path, or would not start the unit.
        """
        path = self.names.expand(text)
        if not path.startswith("/") or ".." in path.split("/"):
            raise self.refusal(name, text, BadValueError("is no absolute path without `..`"))
        return path

    def words(self, name: str) -> tuple[str, ...]:
        """The words of all values of the directive ``name``. Raises UnsupportedUnitError for a backslash in any
        directive other than Environment= and UnsetEnvironment=. In other directives, systemd would remove the backslash
        without resolving the escape.
        """
        for value in self.all(name):
            if "\\" in value and name not in _WITH_ESCAPES:
                raise self.refusal(name, value, BadValueError("has a backslash"))
        return tuple(word for value in self.all(name) for word in split_words(self.unit, value))

    def every(self, name: str) -> tuple[str, ...]:
        """The values of all assignments to the directive ``name``, including empty values."""
        return tuple(value for each, value in self.assigned if each == name)
