"""`make fuzz-c`: run each fuzz target under libFuzzer for its share of the time.

    python -m tests.sanitize.fuzz SECONDS [TARGET...]

fuzz-c/TARGET keeps what a target found, with the input that shows it. The status is then 1.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.sanitize.build import TARGETS, Target, fuzzer
from tests.sanitize.seeds import write_seeds

# What one input may take (an input that takes more is a finding).
_INPUT_S, _INPUT_MIB = 10, 512
_GRACE_S = 120


def fuzz(target: Target, seconds: int, place: Path) -> bool:
    """Whether nothing was found in that time; what was said is in ``place``/log."""
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        corpus = Path(directory) / "corpus"
        corpus.mkdir()
        write_seeds(target.name, corpus)
        words = [
            f"-max_total_time={seconds}",
            f"-timeout={_INPUT_S}",
            f"-rss_limit_mb={_INPUT_MIB}",
            f"-artifact_prefix={place}/",
            "-print_final_stats=1",
            "-max_len=70000",
            "-use_value_profile=1",
        ]
        with (place / "log").open("wb") as log:
            done = subprocess.run(
                ["nice", "-n", "19", fuzzer(target, Path(directory)), *words, corpus],
                stdout=log,
                stderr=log,
                check=False,
                timeout=seconds + _GRACE_S,
            )
    said = (place / "log").read_text(errors="replace")
    executed = re.search(r"number_of_executed_units: (\d+)", said)
    count = executed[1] if executed else "?"
    sys.stdout.write(
        f"{target.name}: {count} inputs, {'clean' if done.returncode == 0 else f'see {place}'}\n"
    )
    sys.stdout.flush()
    return done.returncode == 0


def main(seconds: str, *names: str) -> int:
    chosen = [each for each in TARGETS if not names or each.name in names]
    share_s = max(1, int(seconds) // len(chosen))
    place = Path(os.environ.get("FUZZ_C", "fuzz-c")).absolute()
    clean = [fuzz(each, share_s, place / each.name) for each in chosen]
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
