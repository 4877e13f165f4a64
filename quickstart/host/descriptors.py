"""What the file descriptors of processes are open on, as a trace tells it: many processes, each begun as a copy of another."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")

# fs.nr_open's default: no process has a descriptor above.
_MOST = 1 << 20
_BITS, _LEVELS = 4, 5
_WAYS = 1 << _BITS
_EMPTY: tuple[None, ...] = (None,) * _WAYS


class Descriptors(Generic[T]):
    """Values by descriptor.

    A copy takes no time and shares what both have (a tree of tuples that never change), so that a trace of nothing but forks and
    openings takes time and memory that grow with its length, not with the square of it.
    """

    def __init__(self) -> None:
        self._root: tuple[object, ...] = _EMPTY

    def get(self, number: int) -> T | None:
        """None for a descriptor that was not opened, or that there cannot be."""
        node: object = self._root
        for level in range(_LEVELS - 1, -1, -1):
            if not isinstance(node, tuple) or not 0 <= number < _MOST:
                return None
            node = node[number >> level * _BITS & _WAYS - 1]
        return node[0] if isinstance(node, tuple) else None

    def set(self, number: int, value: T) -> None:
        """Nothing for a descriptor that there cannot be."""
        if 0 <= number < _MOST:
            self._root = _with(self._root, number, value, _LEVELS - 1)

    def copy(self) -> Descriptors[T]:
        """Another one that begins with the same."""
        other: Descriptors[T] = Descriptors()
        other._root = self._root
        return other


def _with(node: object, number: int, value: object, level: int) -> tuple[object, ...]:
    if level < 0:
        return (value,)
    ways = node if isinstance(node, tuple) else _EMPTY
    at = number >> level * _BITS & _WAYS - 1
    return (*ways[:at], _with(ways[at], number, value, level - 1), *ways[at + 1 :])
