"""Make report.html and figures of committed results again, each out of its results.json, into the same directory.

.venv/bin/python bench/reports.py [DIRECTORY...]      default: all of bench/results; `make reports` calls it

Of what it writes only figures/overview.svg is committed (bench/results/README.md).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from quickstart.bench.series import RESULTS, invalid
from quickstart.report import document
from quickstart.report.report import write_report

ALL = Path(__file__).with_name("results")


def directories(place: Path = ALL) -> tuple[Path, ...]:
    """Every directory below ``place`` that has results, in order."""
    return tuple(sorted(file.parent for file in place.rglob(RESULTS)))


def main(wanted: Sequence[Path]) -> None:
    for directory in wanted:
        results = document.load(directory / RESULTS)
        write_report(results, invalid(results), directory)
        print(directory / "report.html", flush=True)


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]] or directories())
