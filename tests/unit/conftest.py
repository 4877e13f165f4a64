"""What several modules of unit tests start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.imagebuilder import Image, small_image


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return small_image(tmp_path / "image")
