"""quickstart-guest's bytes, and what its installation leaves unchanged in a user's own root."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import BadInputError
from quickstart.model import IMAGE_TIME_S
from quickstart.reference.debootstrap import reference_inputs
from quickstart.reference.guest import forget_build, inputs, place
from quickstart.reference.guestpkg.package import NAME, deb, guest_package
from quickstart.reference.rootfs import Rootfs, rootfs_inputs
from tests.unit.test_build_tools import PROFILE

STATUS = "Package: apt\nStatus: install ok installed\nVersion: 1\n\nPackage: zlib1g\nStatus: install ok installed\n\n"


def members(archive: bytes) -> Mapping[str, bytes]:
    """ar(5), read as deb(5) says it is."""
    assert archive.startswith(b"!<arch>\n")
    found, at = {}, 8
    while at < len(archive):
        header = archive[at : at + 60]
        assert header[58:] == b"`\n"
        size = int(header[48:58])
        found[header[:16].decode().strip()] = archive[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
    return found


def test_the_same_bytes_whenever_and_whoever_makes_it() -> None:
    first = deb(guest_package())
    before = os.umask(0o077)
    try:
        assert deb(guest_package()) == first
    finally:
        os.umask(before)


def test_nothing_of_this_host_is_in_it() -> None:
    parts = members(deb(guest_package()))
    assert list(parts) == ["debian-binary", "control.tar", "data.tar"]
    for name in ("control.tar", "data.tar"):
        with tarfile.open(fileobj=io.BytesIO(parts[name])) as archive:
            for each in archive.getmembers():
                assert (each.uid, each.gid, each.uname, each.gname) == (0, 0, "root", "root"), each.name
                assert each.mtime == IMAGE_TIME_S
                assert each.name == "." or each.name.startswith("./")
                assert not each.mode & 0o022


def test_it_watches_where_programs_and_libraries_are() -> None:
    triggers = guest_package().triggers.splitlines()
    assert {"interest-noawait /usr/lib", "interest-noawait /lib", "interest-noawait /usr/sbin"} <= set(
        triggers
    )
    assert all(line.split()[0] == "interest-noawait" for line in triggers)


def test_it_is_in_the_keys_of_a_reference_image() -> None:
    rootfs = Rootfs(Path("/x"), "tar", "0" * 64)
    assert inputs(True) != inputs(False) == {}
    assert reference_inputs(PROFILE) != reference_inputs(PROFILE, guest_package=False)
    assert rootfs_inputs(rootfs) != rootfs_inputs(rootfs, guest_package=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A merged /usr with dpkg's database, all of an old time."""
    tree = tmp_path / "tree"
    for name in ("etc", "usr/sbin", "usr/lib/systemd", "var/lib/dpkg/info"):
        (tree / name).mkdir(parents=True)
    (tree / "sbin").symlink_to("usr/sbin")
    (tree / "var/lib/dpkg/status").write_text(STATUS)
    for path in (*tree.rglob("*"), tree):
        os.utime(path, (1, 1_500_000_000), follow_symlinks=False)
    return tree


def test_a_root_that_was_given_keeps_its_times(tree: Path) -> None:
    before = {path: path.lstat().st_mtime_ns for path in tree.rglob("*")}
    assert place(tree)
    changed = {
        str(path.relative_to(tree)) for path, time in before.items() if path.lstat().st_mtime_ns != time
    }
    assert changed == {"var/lib/dpkg/status"}
    assert {path.lstat().st_mtime for path in tree.rglob("*") if path not in before} == {IMAGE_TIME_S}
    assert (tree / "usr/sbin/quickstart").stat().st_mode & 0o7777 == 0o755


def test_placed_twice_is_placed_once(tree: Path) -> None:
    def content() -> Mapping[Path, bytes]:
        return {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}

    assert place(tree)
    first = content()
    assert place(tree)
    assert content() == first
    status = (tree / "var/lib/dpkg/status").read_text()
    assert [line for line in status.splitlines() if line.startswith("Package:")] == [
        "Package: apt",
        f"Package: {NAME}",
        "Package: zlib1g",
    ]


def test_a_root_without_dpkg_is_left_alone(tree: Path) -> None:
    (tree / "var/lib/dpkg/status").unlink()
    before = sorted(tree.rglob("*"))
    assert not place(tree)
    assert sorted(tree.rglob("*")) == before


@pytest.mark.parametrize("name", ["usr/sbin", "etc", "var/lib/dpkg/triggers", "usr/lib/systemd"])
@pytest.mark.parametrize("absolute", [True, False])
def test_no_link_of_a_root_leads_onto_this_host(
    tree: Path, tmp_path: Path, name: str, absolute: bool
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    path = tree / name
    if path.exists():
        path.rename(tree / "moved")
    path.symlink_to(outside if absolute else os.path.relpath(outside, path.parent))
    with pytest.raises(BadInputError, match=r"leads nowhere"):
        place(tree)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("name", ["usr/sbin/quickstart", "var/lib/dpkg/info/quickstart-guest.list"])
def test_a_file_that_is_a_link_is_replaced_and_not_followed(tree: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "victim").write_text("good")
    (tree / name).symlink_to(tmp_path / "victim")
    assert place(tree)
    assert (tmp_path / "victim").read_text() == "good"
    assert not (tree / name).is_symlink()


def test_a_directory_in_the_way_is_named(tree: Path) -> None:
    (tree / "usr/sbin/quickstart").mkdir()
    with pytest.raises(BadInputError, match="/usr/sbin/quickstart is a directory"):
        place(tree)


def test_what_another_build_left_is_forgotten(tree: Path, tmp_path: Path) -> None:
    (tree / ".quickstart").symlink_to("1:off")
    (tree / "var/lib/quickstart/00").mkdir(parents=True)
    os.utime(tree / "var/lib", (1, 1_500_000_000))
    forget_build(tree)
    assert not os.path.lexists(tree / ".quickstart")
    assert not (tree / "var/lib/quickstart").exists()
    assert (tree / "var/lib").stat().st_mtime == 1_500_000_000


def test_forgetting_follows_no_link(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "outside/quickstart").mkdir(parents=True)
    (tree / "var/lib/quickstart").symlink_to(tmp_path / "outside")
    forget_build(tree)
    (tree / "var/lib").rename(tree / "lib")
    (tree / "var/lib").symlink_to(tmp_path / "outside")
    forget_build(tree)
    assert (tmp_path / "outside/quickstart").is_dir()


def test_paths_are_those_that_systemd_and_the_kernels_scripts_look_in() -> None:
    places = {file.path for file in guest_package().files}
    assert {
        PurePosixPath("/usr/lib/systemd/system-shutdown/quickstart"),
        PurePosixPath("/etc/kernel/postinst.d/zz-quickstart"),
        PurePosixPath("/usr/sbin/quickstart"),
    } <= places
