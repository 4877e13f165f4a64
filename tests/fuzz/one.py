"""One target in a process of its own: `python -m tests.fuzz.one TARGET SECONDS FINDINGS CORPUS…`; run.py starts it.

libFuzzer (by atheris) starts from the inputs of every CORPUS. It keeps those that reach new lines of
quickstart in the first one. An input that ends in anything but a result or an error of ours goes to FINDINGS
with its traceback, once for each place that raises it.
"""

from __future__ import annotations

import hashlib
import logging
import random
import re
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["quickstart"]):
    from tests.fuzz import targets as _targets

from tests.fuzz.limits import limit_memory, outcome
from tests.fuzz.mutate import mutated

_MOST_BYTES = 64 << 10
# For what hangs where no signal is heard: libFuzzer ends the process.
_HANG_S = 60
_OURS = re.compile(r'File ".*?/(quickstart/[^"]+)", line (\d+)')


def main(name: str, seconds: str, findings: Path, corpora: list[str]) -> None:
    """Never returns: libFuzzer ends the process."""
    logging.disable(logging.CRITICAL)
    target = _targets.TARGETS[name]
    place = Path(tempfile.mkdtemp(prefix="quickstart-fuzz-"))
    findings.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()

    def test(data: bytes) -> None:
        said = outcome(target, data, place)
        if said:
            _keep(said, data, findings, seen)

    def change(data: bytes, most_bytes: int, seed: int) -> bytes:
        chance = random.Random(seed)
        if chance.randrange(2):
            return bytes(atheris.Mutate(data, most_bytes))
        return mutated(data, target.words, most_bytes, chance)

    options = (
        *(
            "-print_final_stats=1",
            "-len_control=0",
            "-verbosity=0",
            f"-max_len={_MOST_BYTES}",
            f"-timeout={_HANG_S}",
            # By the wall clock, which a busy host slows down; limits.py counts the time of the processor.
            f"-report_slow_units={_HANG_S}",
        ),
        *(f"-max_total_time={seconds}", f"-artifact_prefix={findings}/", "-rss_limit_mb=0"),
    )
    atheris.Setup(["fuzz", *options, *corpora], test, custom_mutator=change)
    limit_memory()
    atheris.Fuzz()


def _keep(said: str, data: bytes, findings: Path, seen: set[str]) -> None:
    """The first input for each kind of error and line of ours."""
    places = _OURS.findall(said)
    key = f"{said.splitlines()[-1].partition(':')[0]} {places[-1] if places else ''}"
    if key not in seen:
        seen.add(key)
        name = hashlib.sha256(data).hexdigest()[:16]
        (findings / name).write_bytes(data)
        (findings / f"{name}.txt").write_text(said, errors="backslashreplace")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
