"""Our reader of dpkg's database gives the same answers as dpkg-query itself (dpkg-query(1), -S)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from quickstart.inspect.dpkg import owners
from quickstart.inspect.imageroot import ImageRoot
from tests.unit.test_dpkg import DATABASE, PATHS, write


def dpkg_owners(database: Path, spelled: str) -> set[str]:
    """The packages that have a file of this spelling; dpkg-query knows no other."""
    tool = shutil.which("dpkg-query")
    if tool is None:
        pytest.fail("dpkg-query is not installed: apt-get install dpkg")
    done = subprocess.run(
        [tool, f"--admindir={database}", "-S", spelled],
        capture_output=True, text=True, env={"LC_ALL": "C"}, timeout=60, check=False,
    )  # fmt: skip
    rows = [line for line in done.stdout.splitlines() if line.endswith(f": {spelled}")]
    return {name.split(":")[0] for line in rows for name in line.removesuffix(f": {spelled}").split(", ")}


def test_dpkg_names_the_same_packages(tmp_path: Path) -> None:
    root = ImageRoot(tmp_path)
    for name in ("bin", "lib/x"):
        (tmp_path / "usr" / name).mkdir(parents=True)
    for name in ("bin", "lib"):
        (tmp_path / name).symlink_to(f"usr/{name}")
    # dpkg-query says in words what is diverted.
    for name in sorted(DATABASE.keys() - {"diversions"}):
        write(tmp_path, name, DATABASE[name])
    write(tmp_path, "info/format", "1\n")
    compared = 0
    for path in (path for path in PATHS if path.isascii()):
        (tmp_path / "usr" / path).touch()
        canonical = PurePosixPath("/usr", path)
        ours = owners(root, [canonical]).get(canonical)
        database = tmp_path / "var/lib/dpkg"
        theirs = dpkg_owners(database, f"/usr/{path}") | dpkg_owners(database, f"/{path}")
        assert ({ours.package} <= theirs) if ours else not theirs, path
        compared += ours is not None
    assert compared == 5
