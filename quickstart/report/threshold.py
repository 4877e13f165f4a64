"""Read the threshold of `quickstart bench compare`. The threshold says by how much the times of the second result may
be later without being reported as a regression (docs/users/compare.md).
"""

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
    """The threshold of a comparison of the results A and B. Each time of B, such as T_total (from the launch until
    ready), may be later than the same time of A by ``least_ns`` or by the share ``share`` of A's median T_total. The
    larger of these two limits counts.
    """

    least_ns: int = 100_000_000
    share: Fraction = Fraction(3, 100)

    def of(self, t_total_ns: int) -> int:
        return max(self.least_ns, int(self.share * t_total_ns))


def threshold_of(words: Sequence[str]) -> Threshold:
    """The threshold from words such as ``100ms``, ``0.1s`` or ``3%``. ``words`` may have one time and one share. If
    ``words`` has no time or no share, the missing value is 0.

    When ``words`` is empty, the result is the default threshold. Raises BadInputError when a word is not a time or a
    share, and when ``words`` has two times or two shares.
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
