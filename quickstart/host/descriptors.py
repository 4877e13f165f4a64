"""Record which open file each descriptor of a traced process refers to. A trace has many processes, and each process
begins with a copy of its parent's descriptors.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")

# The default of fs.nr_open. No process has a descriptor with a higher number.
_MOST = 1 << 20
_BITS, _LEVELS = 4, 5
_WAYS = 1 << _BITS
_EMPTY: tuple[None, ...] = (None,) * _WAYS


class Descriptors(Generic[T]):
    """A table with a value for each descriptor of one process.

    Copying a table takes constant time, because the copies share their common part, which is a tree of immutable
    tuples. So the time and memory for a trace with many forks and opens are proportional to the length of the trace,
    and not to the square of its length.
    """

    def __init__(self) -> None:
        self._root: tuple[object, ...] = _EMPTY

    def get(self, number: int) -> T | None:
        """The value of a descriptor. The result is None when no value was set for the descriptor, or when the
        descriptor's number is out of range.
        """
        node: object = self._root
        for level in range(_LEVELS - 1, -1, -1):
            if not isinstance(node, tuple) or not 0 <= number < _MOST:
                return None
            node = node[number >> level * _BITS & _WAYS - 1]
        return node[0] if isinstance(node, tuple) else None

    def set(self, number: int, value: T) -> None:
        """Set the value of a descriptor. The method ignores a number that is out of range."""
        if 0 <= number < _MOST:
            self._root = _with(self._root, number, value, _LEVELS - 1)

    def copy(self) -> Descriptors[T]:
        """A copy of this table, which can be changed independently."""
        other: Descriptors[T] = Descriptors()
        other._root = self._root
        return other


def _with(node: object, number: int, value: object, level: int) -> tuple[object, ...]:
    if level < 0:
        return (value,)
    ways = node if isinstance(node, tuple) else _EMPTY
    at = number >> level * _BITS & _WAYS - 1
    return (*ways[:at], _with(ways[at], number, value, level - 1), *ways[at + 1 :])
