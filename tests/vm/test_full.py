"""Tests that take longer than `make test` allows: reference images from nothing, another disk format."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from quickstart.engines.boot import subject_of
from quickstart.host.progress import Quiet
from quickstart.profile import load_profile
from quickstart.reference.debootstrap import make_reference
from quickstart.reference.variant import TUNED
from quickstart.store.context import Context
from quickstart.store.store import Store
from tests.vm.conftest import BUILD_S, quickstart

pytestmark = pytest.mark.full


def test_a_qcow2_disk_is_booted_and_keeps_what_was_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    built = quickstart("build", "--profile", "nginx", "-o", out, "--format", "qcow2", timeout_s=BUILD_S)
    assert built.status == 0, built.err
    words = "echo kept >/root/kept; readlink /proc/$(cat /run/nginx.pid)/exe"
    checked = quickstart("run", out, "--exec", words)
    assert checked.out == "/fast/usr/sbin/nginx\n", checked.err
    again = quickstart("run", out, "--exec", "cat /root/kept")
    assert again.out == "kept\n", again.err


def test_two_references_of_the_same_packages_are_equal(tmp_path: Path) -> None:
    """Empty stores, another minute, another clock of every file: the same hash, and root disks of the same bytes."""
    profile = load_profile("nginx")
    stores = [Store(tmp_path / name) for name in "ab"]
    images = [make_reference(profile, Context(store, Quiet())) for store in stores]
    assert images[0].tree != images[1].tree
    assert images[0].image_hash == images[1].image_hash
    tuned = [make_reference(profile, Context(store, Quiet()), TUNED).image_hash for store in stores]
    assert tuned[0] == tuned[1] != images[0].image_hash
    disks = [
        subject_of(profile, image, Context(store, Quiet())).disk.path
        for image, store in zip(images, stores, strict=True)
    ]
    subprocess.run(["cmp", *disks], check=True, timeout=120)
