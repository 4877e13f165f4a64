"""The wheel works outside the checkout: it includes profiles, tracers, scripts and manual pages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

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
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("built")
    called(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", base, CHECKOUT, cwd=base)
    (made,) = base.glob("quickstart_boot-*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with nothing but the wheel and its dependencies."""
    base = tmp_path_factory.mktemp("wheel")
    called(sys.executable, "-m", "venv", base / "venv", cwd=base)
    called(base / "venv/bin/pip", "install", "-q", wheel, cwd=base)
    return base / "venv"


def files_below(directory: Path) -> dict[str, bytes]:
    """The content of each file by its path; not what Python has compiled of one."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


# Of what runs, and of what a verb reads (ADR 25). Scripts of the guest have no suffix.
KINDS = {".py", ".c", ".h", "", ".sh", ".toml", ".j2", ".1", ".service", ".conf"}
OTHERS = {"packages.txt", "README.md", "METADATA", "RECORD", "WHEEL", "LICENSE", "entry_points.txt"}


def test_it_holds_what_runs_and_no_more(wheel: Path) -> None:
    assert wheel.stat().st_size <= 6 << 18
    files = {Path(each.filename): each.compress_size for each in ZipFile(wheel).infolist()}
    assert [path for path in files if path.suffix not in KINDS and path.name not in OTHERS] == []
    # A page of what is measured has more.
    assert [path for path, size_bytes in files.items() if size_bytes > 16_000 and path.name != "RECORD"] == []
    models = Path("quickstart/_data/bench")
    assert {path.parent.name for path in files if path.is_relative_to(models)} == {"storage"}


def test_profiles_tracers_and_storage_models_are_the_wheels(installed: Path, tmp_path: Path) -> None:
    text = "from quickstart.host.assets import assets\nfor each in 'profiles', 'tracers', 'bench': print(assets(each))"
    places = [Path(line) for line in called(installed / "bin/python", "-c", text, cwd=tmp_path).splitlines()]
    assert len(places) == 3
    for place in places:
        assert place.is_relative_to(installed)
        wanted = files_below(CHECKOUT / place.name)
        if place.name == "bench":
            wanted = {name: data for name, data in wanted.items() if name.startswith("storage/")}
        if place.name == "profiles":
            wanted = {name: data for name, data in wanted.items() if not name.endswith("README.md")}
        assert wanted
        assert files_below(place) == wanted


def test_every_verb_is_there(installed: Path, tmp_path: Path) -> None:
    """Each has its help, which takes the import of all that it needs."""
    command = installed / "bin/quickstart"
    pages = {path.stem for path in (CHECKOUT / "docs/man").iterdir()}
    text = "from quickstart.cli.manpages import pages; print(*pages(), sep='\\n')"
    verbs = called(installed / "bin/python", "-c", text, cwd=tmp_path).split()
    assert {name.removesuffix(".1") for name in verbs} == pages
    for verb in ("build", "run", "bench", "verify", "rebuild", "shell", "trace", "audit", "why"):
        assert f"Usage: quickstart {verb}" in called(command, verb, "--help", cwd=tmp_path)


def test_a_report_is_made_by_the_wheel_alone(installed: Path, tmp_path: Path) -> None:
    """Its template and the paper's figures come with it; a storage model is looked up by its name."""
    shutil.copyfile(CHECKOUT / "bench/results/gate/results.json", tmp_path / "results.json")
    command = installed / "bin/quickstart"
    made = json.loads(called(command, "bench", "--report", "-o", tmp_path, "--json", cwd=tmp_path))["result"]
    assert made["valid"]
    assert (tmp_path / "report.html").stat().st_size > 10_000
    words = (
        "--profile",
        "nginx",
        "--configuration",
        "standard",
        "--storage",
        "ebs-cold",
        "--clock",
        "virtual",
        "--dry-run",
    )
    planned = json.loads(called(command, "bench", *words, "--json", cwd=tmp_path))["result"]
    assert planned["plan"][0]["storage"] == "ebs-cold"


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
