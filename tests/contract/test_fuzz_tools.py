"""The committed corpus through the targets that start programs; the others are in tests/unit/test_fuzz_corpus.py."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz.limits import outcome
from tests.fuzz.mutate import mutated
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parents[1] / "fuzz/corpus"


@pytest.mark.parametrize("name", sorted(name for name, target in TARGETS.items() if target.runs_tools))
def test_the_corpus_and_a_few_changed_inputs(tmp_path: Path, name: str) -> None:
    seeds = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    chance = random.Random(name)
    for data in (*seeds, *(mutated(chance.choice(seeds), (), 8192, chance) for _ in range(10))):
        assert outcome(TARGETS[name], data, tmp_path) == ""
