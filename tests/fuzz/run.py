"""All targets in turn: `python -m tests.fuzz.run [--seconds N] [--findings DIR] [TARGET…]`. Prints a line for
each; status 1 with findings.

``--seconds`` is the time of all targets together. DIR/corpus keeps the inputs that libFuzzer found useful,
for the next run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.targets import TARGETS

_CORPUS = Path(__file__).parent / "corpus"
_EXECUTED = re.compile(r"stat::number_of_executed_units: (\d+)")
# Reading the instrumented modules, and the inputs that are there.
_START_S = 4
_SLACK_S = 600


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--seconds", type=int, default=600)
    words.add_argument("--findings", type=Path, default=Path(".fuzz"))
    words.add_argument("targets", nargs="*", metavar="TARGET")
    given = words.parse_args()
    if unknown := set(given.targets) - set(TARGETS):
        words.error(f"no target {', '.join(sorted(unknown))}; known: {', '.join(TARGETS)}")
    names = given.targets or list(TARGETS)
    faults = executed = 0
    end_s = time.monotonic() + given.seconds
    for number, name in enumerate(names):
        share_s = (end_s - time.monotonic()) / (len(names) - number)
        count, found = _run(name, max(1, int(share_s - _START_S)), given.findings)
        executed += count
        faults += found
        print(f"{name:12} {count:10} executions {found:4} findings", flush=True)
    print(f"{len(names)} targets, {executed} executions, {faults} findings in {given.findings}")
    return 1 if faults else 0


def _run(name: str, seconds: int, findings: Path) -> tuple[int, int]:
    """Executions and findings of one target; a process that ended otherwise than it should is a finding."""
    kept, learned = findings / name, findings / "corpus" / name
    shutil.rmtree(kept, ignore_errors=True)
    for each in (kept, learned):
        each.mkdir(parents=True, exist_ok=True)
    corpora = [str(learned), *([str(_CORPUS / name)] if (_CORPUS / name).is_dir() else [])]
    argv = [sys.executable, "-m", "tests.fuzz.one", name, str(seconds), str(kept), *corpora]
    with tempfile.TemporaryDirectory(prefix="quickstart-fuzz-") as place, (kept / "log").open("wb") as log:
        try:
            status = subprocess.run(
                argv, stdout=log, stderr=log, timeout=seconds + _SLACK_S, env={**os.environ, "TMPDIR": place}
            ).returncode
        except subprocess.TimeoutExpired:
            status = -1
    said = (kept / "log").read_text(errors="replace")
    match = _EXECUTED.search(said)
    found = len([each for each in kept.iterdir() if each.suffix == "" and each.name != "log"])
    if (status or match is None) and not found:
        print(f"{name}: ended with status {status}: {said[-2000:]}", file=sys.stderr)
        found = 1
    return int(match[1]) if match else 0, found


if __name__ == "__main__":
    sys.exit(main())
