"""All our C programs, those of the tests too, compile without any warning of our one set (store/compiled.py)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from quickstart.reference import confine
from tests.cprograms import PROGRAMS, ROOT, STRICT, strictly_compiled


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_compiles_without_a_warning(name: str, tmp_path: Path) -> None:
    assert strictly_compiled(PROGRAMS[name], tmp_path / name).is_file()


def test_the_probe_of_the_confiner_compiles_without_a_warning(tmp_path: Path) -> None:
    source = ROOT / "tests/contract/confineprobe.c"
    words = (confine.COMPILER, *STRICT, *confine.FLAGS, "-o", tmp_path / "probe", source)
    subprocess.run(words, check=True, timeout=120)


def test_a_warning_is_an_error(tmp_path: Path) -> None:
    """Without this, flags that got lost would pass all the rest."""
    (tmp_path / "wrong.c").write_text(
        "int main(void) { long many = 1L << 40; int few = many; return few; }\n"
    )
    words = ("cc", *STRICT, "-o", tmp_path / "wrong", tmp_path / "wrong.c")
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0 and "-Werror=conversion" in done.stderr
