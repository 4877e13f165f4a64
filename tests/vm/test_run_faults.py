"""`quickstart run` beside another, killed, and on full disks: what is left is complete, and the fault is reported."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.vm.benching import fill, small
from tests.vm.conftest import COMMAND, STAY, assert_gone, children, guest_file, host, quickstart

pytestmark = pytest.mark.full


def test_two_snapshots_of_one_artefact_at_once(artefact: Path) -> None:
    words = [str(COMMAND), "run", str(artefact), *STAY, "--snapshot", "--check"]
    both = [
        subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [each.communicate(timeout=600)[1] for each in both]
    assert [each.returncode for each in both] == [0, 0], said


def test_a_killed_run_leaves_a_disk_that_is_mended_by_its_journal(used: Path, tmp_path: Path) -> None:
    """As a loss of power: what was synced is there, and what the run left in the temporary directory goes with the next."""
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    command = "echo kept >/root/kept; sync; echo synced; sleep 300"
    words = [str(COMMAND), "run", str(used), *STAY, "--exec", command]
    environment = {**os.environ, "TMPDIR": str(tmp)}
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"synced\n"
        guests = children(killed.pid)
        assert guests
        killed.kill()
    assert_gone(guests)
    assert [path.name.rpartition("-")[0] for path in tmp.iterdir()] == ["quickstart-guest"]
    again = quickstart("run", used, *STAY, "--exec", "cat /root/kept", env={"TMPDIR": str(tmp)})
    assert (again.status, again.out) == (0, "kept\n"), again.err
    assert list(tmp.iterdir()) == []
    host("e2fsck", "-fn", used / "root.raw")
    assert guest_file(used, "/root/kept") == "kept\n"


def test_a_run_without_room_for_its_temporary_files(artefact: Path, tmp_path: Path) -> None:
    with small(tmp_path / "tmp", 1):
        fill(tmp_path / "tmp")
        called = quickstart(
            "run", artefact, "--snapshot", "--check", "--json", env={"TMPDIR": str(tmp_path / "tmp")}
        )
        assert called.status == 3, called.err
        assert f"no space left for the temporary directory {tmp_path / 'tmp'}" in called.error["message"]
        assert [path.name for path in (tmp_path / "tmp").iterdir()] == ["filler"]


def test_a_guest_whose_writes_find_no_room_on_the_host(artefact: Path, tmp_path: Path) -> None:
    """Nobody makes room for writes that are thrown away, so the guest gets an error, and the command ends."""
    command = "dd if=/dev/zero of=/root/big bs=1M count=400 conv=fsync"
    with small(tmp_path / "tmp", 150):
        called = quickstart(
            *("run", artefact, *STAY, "--snapshot", "--json", "--exec", command),
            env={"TMPDIR": str(tmp_path / "tmp")},
        )
        assert (called.status, called.result["exec_status"]) == (1, 1), called.err
        # ext4 may have ended its journal before fsync says what happened, and then the volume is read-only.
        said = called.result["exec_stderr"]
        assert "Input/output error" in said or "Read-only file system" in said
        assert list((tmp_path / "tmp").iterdir()) == []
