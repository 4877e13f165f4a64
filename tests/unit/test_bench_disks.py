"""Which artefacts `bench --disk` refuses, before anything boots."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.artefact import directory as artefacts
from quickstart.bench.disks import check_disk
from quickstart.errors import BadInputError
from quickstart.measure.results import Cell
from quickstart.model import Artefact
from tests.unit.outs import write_manifest


def cell(out: Path, configuration: str, command_line: str) -> Cell:
    return Cell(
        profile=str(out),
        configuration=configuration,
        command_line=command_line,
        storage="local",
        clock="virtual",
        size="small",
        firmware="uefi",
    )


@pytest.fixture
def disk(tmp_path: Path) -> Artefact:
    (tmp_path / "disk.raw").write_bytes(bytes(4096))
    place = {"name": "disk.raw", "format": "raw", "size_bytes": 4096, "root_at_bytes": 1024}
    write_manifest(tmp_path, target="disk", disk=place, kernel_options="boot")
    return artefacts.load(tmp_path)


def refused(artefact: Artefact, configuration: str, command_line: str) -> str:
    with pytest.raises(BadInputError) as caught:
        check_disk(artefact, cell(artefact.directory, configuration, command_line))
    return caught.value.message


def test_an_artefact_without_a_boot_loader(tmp_path: Path) -> None:
    write_manifest(tmp_path)
    assert "has no boot loader" in refused(artefacts.load(tmp_path), "quickstart", "boot")


def test_a_disk_that_a_machine_has_written_to(disk: Artefact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artefacts, "is_as_built", lambda artefact: False)
    assert "the bench measures first boots" in refused(disk, "quickstart", "boot")


@pytest.mark.parametrize(
    ("configuration", "command_line", "has"),
    [("quickstart", "stock", "boot"), ("standard", "boot", "stock"), ("quickstart", "ours", "boot")],
)
def test_kernel_options_that_no_entry_has(
    disk: Artefact, monkeypatch: pytest.MonkeyPatch, configuration: str, command_line: str, has: str
) -> None:
    monkeypatch.setattr(artefacts, "is_as_built", lambda artefact: True)
    said = refused(disk, configuration, command_line)
    assert said.endswith(f"for {configuration} has the kernel options {has}, not {command_line}")


@pytest.mark.parametrize(("configuration", "command_line"), [("quickstart", "boot"), ("standard", "stock")])
def test_the_entries_of_the_disk(
    disk: Artefact, monkeypatch: pytest.MonkeyPatch, configuration: str, command_line: str
) -> None:
    monkeypatch.setattr(artefacts, "is_as_built", lambda artefact: True)
    check_disk(disk, cell(disk.directory, configuration, command_line))
