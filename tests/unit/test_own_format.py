"""In which format a disk is read: a guest may have written anything to the beginning of its disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.engines import ownsystem
from quickstart.store.context import Context
from tests.unit.test_bench import Shown
from tests.unit.test_qcow2 import image


class SeenError(Exception):
    """The copy was made."""


@pytest.mark.parametrize("is_given", [True, False])
def test_the_disk_of_an_artefact_is_raw_whatever_its_guest_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_given: bool
) -> None:
    disk, copies = tmp_path / "disk.raw", []

    def converted(source: Path, place: Path, form: object) -> Path:
        (place / "root.raw").write_bytes(b"converted")
        return place / "root.raw"

    def looked_at(copy: Path, context: Context) -> None:
        copies.append(copy.read_bytes())
        raise SeenError

    monkeypatch.setattr(ownsystem, "made_raw", converted)
    monkeypatch.setattr(ownsystem, "_appliance", looked_at)
    disk.write_bytes(image([]))
    context = Context(None, Shown())  # type: ignore[arg-type]
    with pytest.raises(SeenError), ownsystem.examined(disk, context, is_given=is_given):
        pass
    assert copies == [b"converted" if is_given else disk.read_bytes()]
