"""The wheel works outside the checkout: profiles, tracers, scripts and manual pages come with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.vm.conftest import BUILD_S

CHECKOUT = Path(__file__).parents[2]


def called(*words: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        timeout=BUILD_S,
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with nothing but the wheel and its dependencies."""
    base = tmp_path_factory.mktemp("wheel")
    called(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", base, CHECKOUT, cwd=base)
    (wheel,) = base.glob("quickstart_boot-*.whl")
    called(sys.executable, "-m", "venv", base / "venv", cwd=base)
    called(base / "venv/bin/pip", "install", "-q", wheel, cwd=base)
    return base / "venv"


def files_below(directory: Path) -> dict[str, bytes]:
    """The content of each file by its path; not what Python has compiled of one."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_profiles_tracers_and_bench_are_the_wheels(installed: Path, tmp_path: Path) -> None:
    text = "from quickstart.host.assets import assets\nfor each in 'profiles', 'tracers', 'bench': print(assets(each))"
    for line in called(installed / "bin/python", "-c", text, cwd=tmp_path).splitlines():
        assert Path(line).is_relative_to(installed)
        theirs, ours = files_below(Path(line)), files_below(CHECKOUT / Path(line).name)
        assert theirs == ours
        assert ours


def test_the_manual_pages_are_where_man_looks(installed: Path) -> None:
    # Other packages have pages, too.
    pages = {path.name for path in (installed / "share/man/man1").glob("quickstart*")}
    assert pages == {path.name for path in (CHECKOUT / "docs/man").iterdir()}


def test_doctor(installed: Path, tmp_path: Path) -> None:
    found = json.loads(called(installed / "bin/quickstart", "doctor", "--json", cwd=tmp_path))
    assert {each["state"] for each in found["result"]["needs"] if not each["optional"]} == {"found"}


def test_a_build_has_the_checkouts_bytes(installed: Path, artefact: Path, tmp_path: Path) -> None:
    """From the store that the checkout's build has filled: the same stages, the same archive."""
    words = ("build", "--profile", "nginx", "-o", tmp_path / "web", "--json")
    built = json.loads(called(installed / "bin/quickstart", *words, cwd=tmp_path))["result"]
    assert built["made"]
    assert (tmp_path / "web/initramfs.img").read_bytes() == (artefact / "initramfs.img").read_bytes()
    assert json.loads(called(installed / "bin/quickstart", "audit", "web", "--json", cwd=tmp_path))["result"][
        "clean"
    ]
