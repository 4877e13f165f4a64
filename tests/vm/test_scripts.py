"""The scripts behind the measurements in docs/ that the bench does not make: each runs once and writes its results."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quickstart.profile import load_profile
from quickstart.store.store import Store, default_root
from tests.vm.conftest import BUILD_S

BENCH = Path(__file__).parents[2] / "bench"
# Up to ten boots on the virtual clock, and what they boot from is made.
SCRIPT_S = 4 * BUILD_S


def ran(script: str, *words: str | Path, makes: Path) -> dict[str, Any]:
    """What the script has written to ``makes``."""
    argv = [sys.executable, str(BENCH / script), *(str(word) for word in words)]
    done = subprocess.run(argv, capture_output=True, timeout=SCRIPT_S, check=False, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(makes.read_text())
    return found


def test_what_settle_boots_is_what_a_build_packs(artefact: Path, tmp_path: Path) -> None:
    """Without a boot: all of it is in the store by the build of the artefact."""
    script = runpy.run_path(str(BENCH / "settle/measure.py"))
    with Store(default_root()) as store:
        found = script["machines"](load_profile("nginx"), store, tmp_path)
        assert list(found) == ["standard", "quickstart", "quickstart --release"]
        assert found["quickstart"].initrds[0].read_bytes() == (artefact / "initramfs.img").read_bytes()
        assert len({machine.disk for machine in found.values()}) == 2


@pytest.mark.full
def test_settle(tmp_path: Path) -> None:
    found = ran("settle/measure.py", "nginx", "1", tmp_path, makes=tmp_path / "nginx.json")
    assert list(found) == list(json.loads((BENCH / "settle/nginx.json").read_text()))
    assert list(found["medians"]) == ["standard", "quickstart", "quickstart --release"]
    assert [runs[0]["state"] for runs in found["runs"].values()] == ["running"] * 3
    ready_ns = {name: each["t_app_ns"] for name, each in found["medians"].items()}
    assert ready_ns["quickstart"] < ready_ns["standard"]


@pytest.mark.full
def test_payload(tmp_path: Path) -> None:
    found = ran("payload/measure.py", "nginx", "1", tmp_path, makes=tmp_path / "nginx.json")
    committed = json.loads((BENCH / "payload/nginx.json").read_text())
    assert list(found) == list(committed)
    assert found["medians"].keys() == committed["medians"].keys()
    assert found["initramfs_bytes"]["lz4"] < found["initramfs_bytes"]["cpio"]


@pytest.mark.full
def test_baseline(tmp_path: Path) -> None:
    found = ran("baseline/record.py", "nginx", tmp_path, makes=tmp_path / "nginx-standard.json")
    assert list(found) == list(json.loads((BENCH / "baseline/nginx-standard.json").read_text()))
    tuned = json.loads((tmp_path / "nginx-tuned.json").read_text())
    assert len(tuned["packages"]) < len(found["packages"])
