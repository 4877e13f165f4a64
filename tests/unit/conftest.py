"""Fixtures that several unit tests share; they also take out waits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.imagebuilder import Image, small_image


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return small_image(tmp_path / "image")


@pytest.fixture(autouse=True)
def _no_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verb that wants to be root asks the host for it; what it does then is not a unit test's business."""
    monkeypatch.setattr("quickstart.host.userns.become_root", lambda: None)


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_disks() -> Iterator[None]:
    """os.sync waits for all that anybody on this host has written; only a power cut could tell the difference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sync", lambda: None)
        yield
