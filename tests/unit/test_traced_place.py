"""The directory that `trace -o` writes: it is checked before the work and at its end, and no one else's files are replaced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from quickstart.artefact.manifest import START_SET
from quickstart.artefact.traced import check_traced_place, keep_traced
from quickstart.cli.main import group
from quickstart.errors import OutputExistsError
from quickstart.model import StartSet

NOTHING = StartSet((), (), 0)


def artefact(out: Path) -> None:
    out.mkdir()
    (out / START_SET).write_text("{}")
    (out / "manifest.json").write_text("{}")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda out: out.write_text("mine"), "is not a directory"),
        (artefact, "holds something else"),
    ],
)
def test_what_is_not_ours_stays(tmp_path: Path, make: Callable[[Path], object], said: str) -> None:
    out = tmp_path / "out"
    make(out)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OutputExistsError, match=said):
        check_traced_place(out)
    # As if it had come while the guest ran.
    with pytest.raises(OutputExistsError, match=said):
        keep_traced(NOTHING, (), out)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("files", [None, (), (START_SET,)])
def test_what_may_be_written(tmp_path: Path, files: tuple[str, ...] | None) -> None:
    out = tmp_path / "out"
    if files is not None:
        out.mkdir()
        for name in files:
            (out / name).write_text("old")
    check_traced_place(out)
    keep_traced(NOTHING, (), out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (out / START_SET).read_text() != "old"
    assert [path.name for path in out.iterdir()] == [START_SET]


def test_it_is_looked_at_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUICKSTART_CACHE", str(tmp_path / "store"))
    monkeypatch.setenv("QUICKSTART_TOOL_PATH", str(tmp_path))
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        found = CliRunner().invoke(group, ["trace", "--profile", "nginx", "-o", str(tmp_path / name)])
        assert found.exit_code == 2
        assert "file exists and is not a directory" in " ".join(found.stderr.split())
