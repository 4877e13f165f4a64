"""The matrices of our own bench, and the profiles that only they use."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.measure.matrix import load_matrix
from quickstart.profile import known_profiles, load_profile

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.parametrize("matrix", sorted(path.name for path in BENCH.glob("*.toml")))
def test_each_matrix_can_be_measured(matrix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the top of the checkout, as they say."""
    monkeypatch.chdir(BENCH.parent)
    assert load_matrix(BENCH / matrix, known_profiles()).name == Path(matrix).stem


@pytest.mark.parametrize("name", sorted(path.name for path in (BENCH / "profiles").iterdir()))
def test_each_profile_is_one(name: str) -> None:
    assert load_profile(str(BENCH / "profiles" / name)).name == name
