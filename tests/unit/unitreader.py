"""Units of an image that a test makes, and how they are read."""

from __future__ import annotations

from pathlib import Path

from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import read_unit
from quickstart.inspect.unit.model import UnitStart

SERVICE = "[Service]\nType=simple\nExecStart=/usr/bin/app\n"


def put(base: Path, path: str, text: str) -> None:
    file = base / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def read(tmp_path: Path, text: str) -> UnitStart:
    put(tmp_path, "/usr/lib/systemd/system/app.service", text)
    return read_unit(ImageRoot(tmp_path), "app.service")
