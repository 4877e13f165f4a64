"""Fixtures that several unit tests share; they also take out waits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from quickstart.inspect.imageroot import ImageRoot
from tests.unit.imagebuilder import Image, small_image
from tests.unit.layouts import PROGRAM


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


@pytest.fixture
def root(tmp_path: Path) -> ImageRoot:
    """The image of the application of layouts.py."""
    for name in ("etc", "usr/bin", "usr/lib64", "usr/share"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "lib64").symlink_to("usr/lib64")
    (tmp_path / "etc/app.conf").write_text("conf")
    (tmp_path / "usr/bin/app").write_bytes(PROGRAM)
    (tmp_path / "usr/lib64/liba.so.1").write_bytes(PROGRAM)
    (tmp_path / "usr/lib64/ld-linux-x86-64.so.2").write_text("ld\n")
    (tmp_path / "usr/share/zone").write_text("TZ")
    return ImageRoot(tmp_path)
