"""Repeats one input: `python -m tests.fuzz.again TARGET FILE…`; prints each traceback, and the time that it took."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.limits import limit_memory, outcome
from tests.fuzz.targets import TARGETS


def main(name: str, files: list[str]) -> int:
    limit_memory()
    faults = 0
    with tempfile.TemporaryDirectory(prefix="quickstart-fuzz-") as place:
        for file in files:
            begin_s = time.process_time()
            said = outcome(TARGETS[name], Path(file).read_bytes(), Path(place))
            faults += bool(said)
            print(f"{file}: {said or 'holds'} ({time.process_time() - begin_s:.2f} s)")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
