"""Failures give a clear error and the right exit code, and leave nothing under OUT's name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from quickstart.host.assets import assets
from tests.vm.conftest import BUILD_S, COMMAND, assert_gone, children, quickstart

NGINX = (assets("profiles") / "nginx" / "profile.toml").read_text()


def profile(directory: Path, *changes: tuple[str, str]) -> Path:
    """The nginx profile with some text replaced."""
    text = NGINX
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (directory / "profile.toml").write_text(text)
    return directory


@pytest.mark.parametrize(
    ("old", "new", "status", "said"),
    [
        ('packages = ["nginx"]', "packages = [", 2, "not TOML"),
        ('packages = ["nginx"]', 'packages = ["no-such-package-at-all"]', 2, "no-such-package-at-all"),
        ('suite = "bookworm"', 'suite = "nosuchsuite"', 2, "nosuchsuite"),
        ('unit = "nginx.service"', 'unit = "ngnix.service"', 2, "no unit ngnix.service"),
        ('unit = "nginx.service"', 'unit = "systemd-logind.service"', 2, "IPAddressDeny"),
        ("budget_mib = 24", "budget_mib = 5", 1, "the profile's budget is 5 MiB"),
        ("[memory]", "[disk]\nsize_mib = 256\n\n[memory]", 2, "does not fit on a disk of 256 MiB"),
    ],
)
def test_bad_profiles(artefact: Path, tmp_path: Path, old: str, new: str, status: int, said: str) -> None:
    out = tmp_path / "out"
    called = quickstart(
        "build", "--profile", profile(tmp_path, (old, new)), "-o", out, "--json", timeout_s=BUILD_S
    )
    assert (called.status, said in called.error_text) == (status, True), called.error
    assert [path.name for path in tmp_path.iterdir()] == ["profile.toml"]


def test_a_reference_boot_that_never_gets_ready(artefact: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    changed = profile(tmp_path, ("port = 80", "port = 81"), ("timeout_s = 600", "timeout_s = 8"))
    called = quickstart("build", "--profile", changed, "-o", out, "--json", timeout_s=BUILD_S)
    assert called.status == 1
    assert "was not ready after 32 s" in called.error_text
    assert "last console lines" in called.error_text
    assert not out.exists()


def test_a_guest_that_never_gets_ready(artefact: Path) -> None:
    called = quickstart("run", artefact, "--snapshot", "--timeout", "1", "--json")
    assert called.status == 1
    assert "was not ready after 1 s (its network never came up)" in called.error_text


def test_a_guest_that_dies(artefact: Path) -> None:
    called = quickstart(
        "run", artefact, "--snapshot", "--append", "rdinit=/none root=/dev/none panic=-1", "--json"
    )
    assert called.status == 1
    assert "ended before it was ready" in called.error_text
    assert "Kernel panic" in called.error_text


def test_a_tool_that_is_missing(tmp_path: Path) -> None:
    called = quickstart(
        *("build", "--profile", "nginx", "-o", tmp_path / "out", "--json"),
        env={"QUICKSTART_TOOL_PATH": str(tmp_path)},
    )
    assert called.status == 3
    assert called.error["hint"].startswith("apt-get install ")
    assert not (tmp_path / "out").exists()


def test_two_guests_on_one_disk(used: Path) -> None:
    with subprocess.Popen(
        [str(COMMAND), "run", str(used)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as first:
        try:
            assert first.stdout is not None
            assert b"http://127.0.0.1:" in first.stdout.readline()
            called = quickstart("run", used, "--check", "--json")
            # Not SIGINT: who starts us in the background has it ignored.
            first.terminate()
            assert first.wait(120) == 0
        finally:
            first.kill()
    assert called.status == 1
    assert "is in use by another guest" in called.error_text


def test_a_used_disk_is_not_thrown_away(used: Path, tmp_path: Path) -> None:
    assert quickstart("run", used, "--check").status == 0
    changed = profile(tmp_path, ("budget_mib = 24", "budget_mib = 25"))
    called = quickstart("build", "--profile", changed, "-o", used, "--json")
    assert called.status == 2
    assert "--force" in called.error["hint"]
    assert quickstart("build", "--no-trial", "--profile", changed, "-o", used, "--force").status == 0


def test_a_killed_run_leaves_no_guest(artefact: Path) -> None:
    with subprocess.Popen(
        [str(COMMAND), "run", str(artefact), "--snapshot"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as killed:
        assert killed.stdout is not None
        assert b"http://127.0.0.1:" in killed.stdout.readline()
        guests = children(killed.pid)
        assert guests
        killed.kill()
    assert_gone(guests)
