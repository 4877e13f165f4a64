"""The audit of the files of OUT: modes, kinds, the manifest, and run.sh."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from quickstart.artefact.audit import ERROR, LAUNCH_MARKS, NOTE, Finding
from quickstart.artefact.directory import load, run_script
from quickstart.artefact.manifest import read_manifest
from quickstart.errors import ArtefactError
from tests.unit.audited import (
    artefact,
    audit,
    the_error,
)
from tests.unit.outs import change, facts


@pytest.mark.parametrize("name", ["vmlinuz", "initrd.img"])
def test_a_changed_file_of_out(tmp_path: Path, name: str) -> None:
    made = artefact(tmp_path)
    (tmp_path / name).write_bytes(b"another")
    assert the_error(audit(made)) == Finding(
        ERROR, name, "its SHA-256 is not the manifest's", "build it again with --force"
    )


@pytest.mark.parametrize(
    ("name", "mode"), [("root.raw", 0o640), ("run.sh", 0o757), ("vmlinuz", 0o666), (".", 0o777)]
)
def test_modes_of_out(tmp_path: Path, name: str, mode: int) -> None:
    made = artefact(tmp_path / "out")
    (tmp_path / "out" / name).chmod(mode)
    assert the_error(audit(made)).object == name


def test_a_file_of_out_that_is_gone_and_one_that_is_strange(tmp_path: Path) -> None:
    made = artefact(tmp_path)
    (tmp_path / "run.sh").unlink()
    (tmp_path / "notes.txt").write_text("")
    found = audit(made)
    assert [(each.severity, each.object) for each in found] == [(ERROR, "run.sh"), (NOTE, "notes.txt")]


def test_an_agent_behind_a_hole_of_the_root_disk(tmp_path: Path) -> None:
    made = artefact(tmp_path)
    with (tmp_path / "root.raw").open("r+b") as disk:
        # Across the border of two blocks as they are read.
        disk.seek((64 << 20) + (4 << 20) - 9)
        disk.write(LAUNCH_MARKS[0])
    assert the_error(audit(made)).object == "root.raw"


def test_a_manifest_that_was_edited_for_an_attack_is_not_clean(tmp_path: Path) -> None:
    made = artefact(tmp_path)
    change(tmp_path, lambda document: document["ready"].update(port="80,guestfwd=tcp:10.0.2.100:1-cmd:/x"))
    with pytest.raises(ArtefactError, match=r"ready\.port") as caught:
        audit(made)
    assert caught.value.exit_code == 2


def test_what_is_no_plain_file_is_named_and_not_opened(tmp_path: Path) -> None:
    made = artefact(tmp_path)
    (tmp_path / "link").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "more").mkdir()
    found = {each.object: (each.severity, each.what) for each in audit(made)}
    assert found == {
        "link": (ERROR, "is a symbolic link, not a plain file"),
        "pipe": (ERROR, "is a pipe (FIFO), not a plain file"),
        "more": (ERROR, "is a directory, not a plain file"),
    }


def test_a_setuid_file_of_out(tmp_path: Path) -> None:
    made = artefact(tmp_path)
    (tmp_path / "vmlinuz").chmod(0o4755)
    assert the_error(audit(made)).what == "mode 4755: setuid or setgid"


@pytest.mark.parametrize(
    ("name", "mend"),
    [
        ("a; touch PWNED; #", "chmod ug-s -- 'a; touch PWNED; #'"),
        ("--reference=x", "chmod ug-s -- --reference=x"),
        ("a\n  b", "chmod ug-s"),
        ("`id`", "chmod ug-s"),
    ],
)
def test_the_command_for_a_file_of_a_hostile_name(tmp_path: Path, name: str, mend: str) -> None:
    made = artefact(tmp_path)
    (tmp_path / name).touch()
    (tmp_path / name).chmod(0o4755)
    assert the_error(audit(made)).mend == mend


@pytest.mark.parametrize(
    "edit", [lambda text: f"{text}\nid", lambda text: "", lambda text: text.replace("-nodefaults", "")]
)
def test_a_run_sh_of_another_author(tmp_path: Path, edit: Callable[[str], str]) -> None:
    """Also where the manifest has its digest: that is the same author's."""
    made = artefact(tmp_path)
    script = tmp_path / "run.sh"
    script.write_text(edit(script.read_text()))
    assert the_error(audit(made)).object == "run.sh"
    if script.read_bytes():
        change(tmp_path, lambda document: document["files"].update({"run.sh": facts(script)}))
    assert "is not what quickstart writes" in the_error(audit(made)).what


def test_a_word_for_the_kernel_that_no_build_puts_there(tmp_path: Path) -> None:
    artefact(tmp_path)
    stock = load(tmp_path).cmdline
    change(
        tmp_path, lambda document: document.update(cmdline=f"{stock} mitigations=off", stock_cmdline=stock)
    )
    (tmp_path / "run.sh").write_text(run_script(read_manifest(tmp_path)))
    (note,) = audit(load(tmp_path))
    assert (note.severity, note.object) == (NOTE, "manifest.json")
    assert "mitigations=off" in note.what


def test_a_run_sh_that_is_a_link(tmp_path: Path) -> None:
    made = artefact(tmp_path / "out")
    (tmp_path / "out/run.sh").rename(tmp_path / "run.sh")
    (tmp_path / "out/run.sh").symlink_to(tmp_path / "run.sh")
    assert {each.what for each in audit(made)} == {
        "is a symbolic link, not a plain file",
        "is not what quickstart writes for this manifest: it may do anything",
    }
