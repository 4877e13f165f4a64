"""A user's own root: built from a tar and from the directory, booted fast, and nothing of it lost."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from quickstart.host.progress import Quiet
from quickstart.profile import load_profile
from quickstart.reference.debootstrap import make_reference
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root
from tests.contract.test_ext4 import CAPABILITY
from tests.vm.conftest import BUILD_S, guest_file, host, quickstart


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A root of somebody who knows nothing of us: the reference image with some files of their own, without /fast."""
    reference = make_reference(load_profile("nginx"), Context(Store(default_root()), Quiet()))
    directory = tmp_path_factory.mktemp("mine") / "root"
    host("cp", "-a", "--reflink=auto", reference.tree, directory)
    (directory / "fast").rmdir()
    (directory / "srv/page").write_text("mine\n")
    os.chown(directory / "srv/page", 1234, 2345)
    (directory / "srv/page").chmod(0o2640)
    os.setxattr(directory / "srv/page", "user.x", b"noted")
    shutil.copy(directory / "usr/bin/sleep", directory / "srv/able")
    os.setxattr(directory / "srv/able", "security.capability", CAPABILITY)
    # As in a chroot of postfix's.
    os.mknod(directory / "srv/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (directory / "srv/null").chmod(0o666)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def from_tar(mine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tar")
    archive = place / "root.tar.zst"
    host(
        "tar",
        "--xattrs",
        "--xattrs-include=*",
        "--acls",
        "--numeric-owner",
        "-C",
        mine,
        "--zstd",
        "-cf",
        archive,
        ".",
    )
    return built(place / "out", archive)


def built(out: Path, rootfs: Path) -> Path:
    called = quickstart(
        *("build", "--no-trial", "--profile", "nginx", "--rootfs", rootfs, "-o", out, "--json"),
        timeout_s=BUILD_S,
    )
    assert called.status == 0, called.err + called.out
    assert called.result["made"]
    return out


def test_it_starts_from_fast_and_its_files_are_on_the_volume(from_tar: Path) -> None:
    ask = (
        "readlink /proc/$(cat /run/nginx.pid)/exe; stat -c '%a %u %g' /srv/page; ls -d /fast/usr/sbin/nginx; "
    )
    ask += "echo gone >/srv/null; wc -c </srv/null; stat -c '%F %a %u %t:%T' /srv/null"
    called = quickstart("run", from_tar, "--snapshot", "--exec", ask)
    node = ["0", "character special file 666 0 1:3"]
    answers = ["/fast/usr/sbin/nginx", "2640 1234 2345", "/fast/usr/sbin/nginx", *node, ""]
    assert called.out.split("\n") == answers, called.err
    disk = from_tar / "root.raw"
    assert guest_file(from_tar, "/srv/page") == "mine\n"
    assert 'user.x (5) = "noted"' in host("debugfs", "-R", "ea_list /srv/page", disk)
    assert "security.capability" in host("debugfs", "-R", "ea_list /srv/able", disk)


def test_the_volume_has_the_uuid_that_its_fstab_wants(mine: Path, from_tar: Path) -> None:
    wanted = (mine / "etc/fstab").read_text().split()[0].removeprefix("UUID=")
    manifest = json.loads((from_tar / "manifest.json").read_text())
    assert manifest["superblock"]["uuid"] == wanted
    assert f"root=UUID={wanted} " in manifest["cmdline"]
    assert manifest["reference"]["kind"] == "tar"
    assert str(mine.parent) not in json.dumps(manifest)


def test_directory_and_tar_give_the_same_disk(mine: Path, from_tar: Path, tmp_path: Path) -> None:
    out = built(tmp_path / "out", mine)
    host("cmp", out / "root.raw", from_tar / "root.raw")
    assert json.loads((out / "manifest.json").read_text())["reference"]["kind"] == "directory"
    assert not (mine / "fast").exists()


def test_a_root_without_the_profiles_package(mine: Path, tmp_path: Path) -> None:
    status = mine / "var/lib/dpkg/status"
    whole = status.read_text()
    status.write_text(whole.replace("Package: nginx\n", "Package: other\n"))
    try:
        called = quickstart(
            *("build", "--profile", "nginx", "--rootfs", mine, "-o", tmp_path / "out", "--json"),
            timeout_s=BUILD_S,
        )
    finally:
        status.write_text(whole)
    assert called.status == 2
    assert "lacks packages of the profile nginx: nginx" in called.error["message"]
    assert not (tmp_path / "out").exists()
