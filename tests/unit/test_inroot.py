"""Files that we write into an image land inside the image, whatever links its packages' scripts have made there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quickstart.errors import ReferenceImageError
from quickstart.host import inroot
from quickstart.model import Profile
from quickstart.profile import load_profile
from quickstart.reference import customise, guest, variant
from tests.unit.test_customise import BEGIN_S

# Every directory into which something is written, and every file, by the functions below.
DIRECTORIES = ("usr/sbin", "etc/apt", "etc/network", "etc/systemd", "etc/ssh", "etc/initramfs-tools", "var/lib/dbus",
    "var/cache/apt", "var/cache/ldconfig", "var/log", "var/lib/dpkg", "var/lib/systemd", "fast")  # fmt: skip
FILES = ("usr/sbin/policy-rc.d", "etc/resolv.conf", "etc/apt/sources.list", "etc/fstab", "etc/hostname", "etc/hosts",
    "etc/network/interfaces", "etc/machine-id", "etc/shadow", "etc/shadow-", guest.DEB,
    "etc/systemd/system-preset/00-quickstart.preset", "etc/initramfs-tools/modules")  # fmt: skip
SHADOW = "root:*:20778:0:99999:7:::\n"


def make_image(tree: Path, profile: Profile) -> None:
    """All that is done to an image beside its packages' scripts."""
    customise.begin(tree, ("deb http://example.org/ suite main",))
    customise.configure(tree)
    with guest.deb_in(tree):
        pass
    variant.write_files(variant.TUNED, profile, tree)
    customise.end(tree, "00000000-0000-0000-0000-000000000001")
    customise.fix_times(tree, BEGIN_S)


def outside_of(place: Path) -> Path:
    """A directory of this host with files that the names above would lead to."""
    outside = place / "outside"
    for name in ("network", "systemd", "system", "apt", "archives", "lists", "initramfs-tools", "conf.d"):
        (outside / name).mkdir(parents=True)
    for name in ("policy-rc.d", "sources.list", "interfaces", "modules", "machine-id", "ssh_host_key", "x.log", "x-old",
                 "x.bin", "random-seed", "aux-cache", "archives/x.deb", "lists/x", "apt/x", "hostname"):  # fmt: skip
        (outside / name).write_text(SHADOW)
    return outside


def state(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path.relative_to(directory)): (
            path.stat().st_mode,
            path.stat().st_mtime_ns,
            b"" if path.is_dir() else path.read_bytes(),
        )
        for path in (directory, *directory.rglob("*"))
    }


@pytest.fixture
def profile() -> Profile:
    return load_profile("nginx")


@pytest.mark.parametrize("name", FILES)
def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path, profile: Profile, name: str) -> None:
    outside = outside_of(tmp_path)
    link = tmp_path / "tree" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(outside / "hostname")
    before = state(outside)
    make_image(tmp_path / "tree", profile)
    assert state(outside) == before


@pytest.mark.parametrize("name", DIRECTORIES)
@pytest.mark.parametrize("leaves", ["by name", "by dots"])
def test_a_link_in_place_of_a_directory_leads_nowhere_else(
    tmp_path: Path, profile: Profile, name: str, leaves: str
) -> None:
    """It is followed in the image, where such a directory is not: an error by name, or nothing to do."""
    outside = outside_of(tmp_path)
    link = tmp_path / "tree" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(outside if leaves == "by name" else "../" * 20 + str(outside))
    before = state(outside)
    try:
        make_image(tmp_path / "tree", profile)
    except ReferenceImageError as error:
        assert "of the image" in error.message
    assert state(outside) == before


def test_a_link_within_the_image_is_followed_as_there(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "etc").symlink_to("/real")
    inroot.write(tmp_path, "etc/x", b"1", 0o600)
    assert (tmp_path / "real/x").read_bytes() == b"1"
    assert (tmp_path / "real/x").stat().st_mode & 0o777 == 0o600
    inroot.rewrite(tmp_path, "etc/x", lambda data: data + b"2")
    assert (tmp_path / "real/x").read_bytes() == b"12"
    inroot.remove_matching(tmp_path, "etc/x*")
    assert not list((tmp_path / "real").iterdir())


def test_a_second_name_of_a_file_keeps_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    inroot.write(tmp_path, "b", b"new")
    assert ((tmp_path / "a").read_text(), (tmp_path / "b").read_text()) == ("old", "new")


@pytest.mark.parametrize("kind", ["pipe", "directory", "link"])
def test_what_is_no_plain_file_is_not_rewritten(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "shadow"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        (tmp_path / "other").write_text("x")
        path.symlink_to("other")
    inroot.rewrite(tmp_path, "shadow", lambda _: b"changed")
    assert kind != "link" or (tmp_path / "other").read_text() == "x"


def test_what_is_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "etc/fstab").mkdir(parents=True)
    with pytest.raises(ReferenceImageError, match="/etc/fstab of the image"):
        inroot.write(tmp_path, "etc/fstab", b"")
    (tmp_path / "usr").write_text("")
    with pytest.raises(ReferenceImageError, match=r"/usr/sbin/policy-rc[.]d of the image"):
        inroot.write(tmp_path, "usr/sbin/policy-rc.d", b"")
