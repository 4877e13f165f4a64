"""What takes longer than `make test` allows: a store from nothing, a killed build, another disk format."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from quickstart.pipeline import make_disk
from quickstart.profile import load_profile
from quickstart.progress import Quiet
from quickstart.reference.debootstrap import make_reference
from quickstart.store import Store
from tests.vm.conftest import BUILD_S, COMMAND, assert_gone, children, quickstart

pytestmark = pytest.mark.full


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``."""
    found = children(pid)
    return found + [each for child in found for each in descendants(child)]


def test_a_build_killed_at_any_time_does_no_harm_to_the_next(tmp_path: Path) -> None:
    """SIGKILL during debootstrap, package installation and the traced boot, then a whole build in the same store."""
    env = {"QUICKSTART_CACHE": str(tmp_path / "store")}
    words = [str(COMMAND), "build", "--profile", "nginx", "-o", str(tmp_path / "out"), "--format", "qcow2"]
    for seconds in (10, 35, 70):
        with subprocess.Popen(
            words, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **env}, stderr=subprocess.PIPE
        ) as build:
            time.sleep(seconds)
            assert build.poll() is None
            below = descendants(build.pid)
            assert below
            build.kill()
        assert_gone(below)
        assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
        assert not (tmp_path / "out").exists()
    called = quickstart(
        "build", "--profile", "nginx", "-o", tmp_path / "out", "--format", "qcow2", timeout_s=BUILD_S, env=env
    )
    assert called.status == 0, called.err
    checked = quickstart(
        "run",
        tmp_path / "out",
        "--exec",
        "echo kept >/root/kept; readlink /proc/$(cat /run/nginx.pid)/exe",
        env=env,
    )
    assert checked.out == "/fast/usr/sbin/nginx\n", checked.err
    again = quickstart("run", tmp_path / "out", "--exec", "cat /root/kept", env=env)
    assert again.out == "kept\n", again.err


def test_two_references_of_the_same_packages_are_equal(tmp_path: Path) -> None:
    """Empty stores, another minute, another clock of every file: the same hash, and root disks of the same bytes."""
    profile = load_profile("nginx")
    stores = [Store(tmp_path / name) for name in "ab"]
    images = [make_reference(profile, store, Quiet()) for store in stores]
    assert images[0].tree != images[1].tree
    assert images[0].image_hash == images[1].image_hash
    disks = [
        make_disk(profile, image, store, Quiet()).path for image, store in zip(images, stores, strict=True)
    ]
    subprocess.run(["cmp", *disks], check=True, timeout=120)
