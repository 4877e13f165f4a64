"""Where the compilers' files between the source and the program are: nowhere that anybody else may write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from quickstart import doctor
from quickstart.host import door
from quickstart.store.compiled import compiled
from quickstart.store.store import MARK, Store


@pytest.fixture
def compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The temporary directories of the compilers that run, which leave a file there, as one that is killed does."""
    found: list[Path] = []

    def run(
        argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, **more: object
    ) -> door.Completed:
        if "-o" in argv:
            place = Path(door.environment(env)["TMPDIR"])
            assert place.stat().st_mode & 0o777 == 0o700
            (place / "ccXXXXXX.o").write_text("left")
            Path(argv[argv.index("-o") + 1]).write_text("a program")
            found.append(place)
        return door.Completed(("cc",), 0, b"cc 1\n", b"")

    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(door, "run", run)
    return found


def test_programs_are_made_below_the_unfinished_entry(tmp_path: Path, compilers: list[Path]) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources/main.c").write_text("int main(void) { return 0; }\n")
    with Store(tmp_path / "store") as store:
        program = compiled(store, "agent", (), tmp_path / "sources")
    assert [each.parent.name for each in compilers] == [f"{program.parent.name}.partial"]
    assert {each.name for each in program.parent.iterdir()} == {"agent", "main.c", "protocol.h", MARK}
    assert list((tmp_path / "tmp").iterdir()) == []


def test_doctor_s_trial_is_made_in_its_workspace(tmp_path: Path, compilers: list[Path]) -> None:
    assert doctor._static_libc().state == doctor.FOUND
    assert [each.parent for each in compilers] == [tmp_path / "tmp"]
    assert list((tmp_path / "tmp").iterdir()) == []
