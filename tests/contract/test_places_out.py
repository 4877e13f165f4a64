"""An OUT where another user, who exists here, may rename and replace files: what root does in it, and what root refuses."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

import quickstart
from quickstart.artefact import directory as artefacts
from quickstart.artefact import output
from quickstart.errors import BadInputError
from quickstart.host.places import swapped_by_others
from quickstart.report import document
from tests.contract.strangers import CELL, COMMAND, LIMIT_S, STRANGER, STRANGER_OUTSIDE, out_in
from tests.unit.benchdata import realistic


def test_a_build_is_not_led_elsewhere(theirs: Path, tmp_path: Path) -> None:
    """Whom the directory belongs to swaps the one that is being made for a link; root gave what is there to all."""
    (closed := tmp_path / "closed").mkdir(mode=0o700)
    with suppress(BadInputError), output.new_directory(theirs / "out") as partial:
        partial.rename(theirs / "aside")
        partial.symlink_to(closed)
    assert closed.stat().st_mode & 0o777 == 0o700


def test_a_link_that_says_where_out_is(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    (link := tmp_path / "sticky/out").symlink_to(tmp_path / "elsewhere")
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(BadInputError, match="sticky/out belongs to another user"):
        output.check_place(link)


def test_a_link_of_the_name_that_out_has_by_default(theirs: Path, tmp_path: Path) -> None:
    """In /tmp another user knows the name of root's OUT beforehand."""
    elsewhere = out_in(tmp_path)
    (sticky := tmp_path / "sticky").mkdir()
    sticky.chmod(0o1777)
    (link := sticky / "quickstart-nginx").symlink_to(elsewhere)
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    done = subprocess.run(
        [COMMAND, "build", "--profile", "nginx"],
        capture_output=True,
        cwd=sticky,
        timeout=LIMIT_S,
        env={**os.environ, "QUICKSTART_CACHE": str(tmp_path / "store")},
        check=False,
    )
    said = done.stderr.decode()
    assert (done.returncode, f"{link} belongs to another user ({STRANGER})" in said) == (2, True), said
    assert artefacts.load(elsewhere).profile_name == "app"


def test_the_verbs_that_boot_or_write_refuse_it_and_those_that_look_do_not(theirs: Path) -> None:
    out = out_in(theirs)
    environment = {**os.environ, "QUICKSTART_CACHE": str(theirs.parent / "store")}
    for words in (["run", out, "--check"], ["verify", out], ["rebuild", out], ["shell", out]):
        done = subprocess.run(
            [COMMAND, *map(str, words)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            env=environment,
            check=False,
        )
        said = done.stderr.decode()
        assert (done.returncode, f"{theirs} belongs to another user ({STRANGER})" in said) == (2, True), said
        assert "cp -r" in said or "-o in a directory of yours" in said
    for words in (
        ["build", "--profile", "nginx", "-o", theirs / "new"],
        ["trace", "--profile", "nginx", "-o", theirs / "new"],
    ):
        done = subprocess.run(
            [COMMAND, *map(str, words)], capture_output=True, timeout=LIMIT_S, env=environment, check=False
        )
        said = done.stderr.decode()
        assert (done.returncode, f"{theirs} belongs to another user ({STRANGER})" in said) == (2, True), said
        assert "choose an -o in a directory of yours" in said
    assert sorted(each.name for each in theirs.iterdir()) == ["out"]
    # Whoever wants to look before a copy is made.
    assert artefacts.load(out).profile_name == "app"


@pytest.mark.parametrize("kind", ["another user's", "with another user's figures"])
@pytest.mark.parametrize("options", [["--report"], CELL])
def test_results_go_into_no_directory_of_another_user(
    tmp_path: Path, kind: str, options: Sequence[str]
) -> None:
    """He would put a link in place of `figures` while the report is drawn."""
    place, figures = tmp_path / "results", tmp_path / "results/figures"
    figures.mkdir(parents=True)
    stranger = place if kind == "another user's" else figures
    os.chown(stranger, STRANGER, STRANGER)
    document.save(realistic(), place / "results.json")
    before = sorted(tmp_path.rglob("*"))
    done = subprocess.run(
        [COMMAND, "bench", *options, "-o", place],
        capture_output=True,
        timeout=LIMIT_S,
        env={**os.environ, "QUICKSTART_CACHE": str(tmp_path / "store")},
        check=False,
    )
    said = done.stderr.decode()
    assert (done.returncode, f"{stranger} belongs to another user ({STRANGER})" in said) == (2, True), said
    assert sorted(tmp_path.rglob("*")) == before


def test_an_out_of_another_user_in_a_sticky_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    out = out_in(tmp_path)
    with output.in_use(out):
        pass
    os.chown(out, STRANGER, STRANGER)
    with (
        pytest.raises(BadInputError, match=f"out belongs to another user .{STRANGER_OUTSIDE}"),
        output.in_use(out),
    ):
        pytest.fail("it was used")
    os.chown(out, 0, 0)
    os.chown(out / "root.raw", STRANGER, STRANGER)
    with pytest.raises(BadInputError, match=r"root\.raw belongs to another user"), output.in_use(out):
        pytest.fail("it was used")


def test_whoever_can_change_the_program_is_trusted_as_it_is(theirs: Path) -> None:
    """`make demo` by root in another user's clone: that user has root's rights by the program already."""
    shutil.copytree(
        Path(quickstart.__file__).parent, theirs / "quickstart", ignore=shutil.ignore_patterns("__pycache__")
    )
    script = "import sys, pathlib, quickstart.host.places as p; print(p.swapped_by_others(pathlib.Path(sys.argv[1])))"
    said = subprocess.run(
        [sys.executable, "-B", "-c", script, theirs / "out"],
        capture_output=True,
        cwd="/",
        env={"PYTHONPATH": str(theirs), "PATH": "/usr/bin:/bin"},
        timeout=LIMIT_S,
        check=True,
        text=True,
    )
    assert said.stdout == "\n"
    assert swapped_by_others(theirs / "out") == f"{theirs} belongs to another user ({STRANGER_OUTSIDE})"
