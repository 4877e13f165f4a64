"""Read the threshold of `bench compare`: by how much the second result may be later (compare.md)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from quickstart.errors import BadInputError

_UNITS_NS = {"ms": 10**6, "s": 10**9}
_THRESHOLD = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|%)")


@dataclass(frozen=True)
class Threshold:
    """The threshold of a comparison of results A and B. In each time (T_app, T_total), B may be later than A
    by ``least_ns`` or by ``share`` of A's median T_total, whichever is larger.
    """

    least_ns: int = 100_000_000
    share: Fraction = Fraction(3, 100)

    def of(self, t_total_ns: int) -> int:
        return max(self.least_ns, int(self.share * t_total_ns))


def threshold_of(words: Sequence[str]) -> Threshold:
    """The threshold from words such as ``100ms``, ``0.1s`` or ``3%``. Each kind (time or share) may be given
    once. A kind that is not given is 0.

    Without any words, this is the default threshold. Raises BadInputError for any other word.
    """
    if not words:
        return Threshold()
    least_ns: int | None = None
    share: Fraction | None = None
    for word in words:
        found = _THRESHOLD.fullmatch(word)
        if found is None:
            raise BadInputError(f"no threshold: {word!r}", hint="for example 150ms, 0.2s or 5%")
        if (share if found[2] == "%" else least_ns) is not None:
            raise BadInputError(
                f"two thresholds of one kind: {' '.join(words)}", hint="one time and one share"
            )
        if found[2] == "%":
            share = Fraction(found[1]) / 100
        else:
            least_ns = int(Fraction(found[1]) * _UNITS_NS[found[2]])
    return Threshold(least_ns or 0, share or Fraction(0))
