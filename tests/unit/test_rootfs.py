"""What a user's own root must contain, and which mounts its fstab may have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.errors import BadInputError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import IMAGE_TIME_S, Profile
from quickstart.profile import load_profile
from quickstart.reference.entry import newest_kernel, version_key
from quickstart.reference.fstab import RootLine, root_volume
from quickstart.reference.guest import _with_stanza
from quickstart.reference.guestpkg.package import guest_package
from quickstart.reference.rootfs import check_machine, check_packages, complete, examine, installed_packages
from tests.unit.hostile import little_memory
from tests.unit.test_customise import aged

UUID = "00112233-4455-6677-8899-aabbccddeeff"
OTHER = "99112233-4455-6677-8899-aabbccddeeff"
OWN = RootLine(OTHER, "root")
FILES = (
    "usr/lib/systemd/systemd",
    "boot/vmlinuz-6.1.0-9-amd64",
    "boot/vmlinuz-6.1.0-10-amd64",
    "boot/initrd.img-6.1.0-10-amd64",
    "usr/lib/modules/6.1.0-10-amd64/modules.dep",
    "usr/share/initramfs-tools/init",
    "etc/hostname",
    "etc/machine-id",
)


@pytest.fixture
def root(tmp_path: Path) -> ImageRoot:
    """The least that a machine can be made of."""
    tree = tmp_path / "tree"
    tree.mkdir()
    tree.chmod(0o755)
    for name in FILES:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()
    (tree / "lib").symlink_to("usr/lib")
    for name in ("sbin", "proc", "sys", "dev", "run"):
        (tree / name).mkdir(exist_ok=True)
    (tree / "sbin/init").symlink_to("/lib/systemd/systemd")
    return ImageRoot(tree)


def test_the_newest_kernel_by_number_not_by_letter(root: ImageRoot) -> None:
    assert newest_kernel(root) == "6.1.0-10-amd64"
    check_machine(root, Path("mine"))


def test_versions_sort_as_debian_has_them() -> None:
    order = [
        "5.10.0-30-amd64",
        "6.1~rc1-amd64",
        "6.1-amd64",
        "6.1.0-9-amd64",
        "6.1.0-10-amd64",
        "6.12.9+deb13-amd64",
    ]
    assert sorted(sorted(order), key=version_key) == order


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("sbin/init", "/sbin/init is not systemd: install systemd-sysv"),
        ("boot/initrd.img-6.1.0-10-amd64", "no /boot/initrd.img-6.1.0-10-amd64: run update-initramfs -c"),
        ("usr/lib/modules/6.1.0-10-amd64/modules.dep", "no /lib/modules/6.1.0-10-amd64"),
        ("usr/share/initramfs-tools/init", "not made by initramfs-tools"),
        ("etc/machine-id", "/etc/machine-id asks for a first boot"),
    ],
)
def test_each_thing_that_is_missing_is_named(root: ImageRoot, gone: str, said: str) -> None:
    (root.base / gone).unlink()
    with pytest.raises(BadInputError, match=said):
        check_machine(root, Path("mine"))


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("9;touch PWNED #", "run update-initramfs -c -k '9;touch PWNED #' in it"),
        ("9\n  run `id`", "it has no /boot/initrd.img-9\\n \\x20run `id`: run update-initramfs in it"),
    ],
)
def test_a_kernel_of_a_hostile_name(root: ImageRoot, version: str, said: str) -> None:
    (root.base / f"boot/vmlinuz-{version}").touch()
    with pytest.raises(BadInputError) as caught:
        check_machine(root, Path("mine"))
    lines = caught.value.lines
    assert len(lines) == 3
    assert said in lines[2]


def test_a_first_boot_enables_more_than_the_root_does(root: ImageRoot) -> None:
    (root.base / "etc/machine-id").write_text("uninitialized\n")
    with pytest.raises(BadInputError, match="make it an empty file"):
        check_machine(root, Path("mine"))


def test_all_that_is_missing_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadInputError) as caught:
        check_machine(ImageRoot(tmp_path), Path("mine"))
    assert caught.value.message == "mine cannot be the root of a machine:"
    text = "\n".join(caught.value.details)
    assert [word for word in ("init", "vmlinuz", "initramfs-tools", "/etc") if word not in text] == []
    assert caught.value.exit_code == 2


def test_a_root_directory_that_only_root_may_enter(root: ImageRoot) -> None:
    root.base.chmod(0o700)
    with pytest.raises(BadInputError, match="may be entered by root only: chmod 755"):
        check_machine(root, Path("mine"))


@pytest.mark.parametrize("name", ["etc", "fast"])
def test_a_link_in_our_way_is_refused(root: ImageRoot, tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").mkdir()
    if name == "etc":
        (root.base / "etc").rename(root.base / "elsewhere")
    (root.base / name).symlink_to(tmp_path / "outside")
    with pytest.raises(BadInputError, match=f"its /{name} is not a directory"):
        check_machine(root, Path("mine"))


@pytest.mark.parametrize(
    ("fstab", "expected"),
    [
        ("", None),
        ("# UUID=x / ext4 defaults 0 1\nproc /proc proc defaults 0 0\n", None),
        (f"UUID={UUID} / ext4 errors=remount-ro 0 1\n", RootLine(UUID, "")),
        (f'UUID="{UUID.upper()}" / ext4 defaults 0 1', RootLine(UUID, "")),
        ("LABEL=system / ext4 defaults 0 1\n", RootLine("", "system")),
        (
            f"UUID={UUID} / ext4 defaults 0 1\n/dev/sr0 /media/cdrom0 udf,iso9660 user,noauto 0 0\n",
            RootLine(UUID, ""),
        ),
        (f"UUID={UUID} / ext4 defaults 0 1\nUUID={OTHER} /data ext4 nofail 0 2\n", RootLine(UUID, "")),
        (
            "nas:/export /mnt nfs defaults 0 0\n/swapfile none swap sw 0 0\ntmpfs /tmp tmpfs size=1g 0 0\n",
            None,
        ),
    ],
)
def test_the_root_line(fstab: str, expected: RootLine | None) -> None:
    assert root_volume(fstab) == expected


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/dev/sda1 / ext4 defaults 0 1", "neither by a UUID nor by a label: /dev/sda1 /"),
        ("PARTUUID=1 / ext4 defaults 0 1", "neither by a UUID nor by a label: PARTUUID=1"),
        ("UUID=12-34 / ext4 defaults 0 1", "neither by a UUID nor by a label: UUID=12-34"),
        ("LABEL=seventeen-letters / ext4 defaults 0 1", "neither by a UUID nor by a label"),
        (f"UUID={UUID} / xfs defaults 0 1", "root is not ext4"),
        (f"UUID={UUID} / ext4", "root is not ext4 with options"),
        (f"UUID={OTHER} /home ext4 defaults 0 2", f"does not have: UUID={OTHER} /home"),
        (f"UUID={OTHER} none swap sw 0 0", f"does not have: UUID={OTHER} none"),
        ("/dev/vdb1 /data ext4 defaults 0 2", "does not have: /dev/vdb1 /data"),
        ("LABEL=EFI /boot/efi vfat umask=0077 0 1", "does not have: LABEL=EFI /boot/efi"),
    ],
)
def test_what_an_fstab_may_not_ask_for(line: str, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        root_volume(line)


def test_nothing_but_the_root_line_and_fast_is_added(root: ImageRoot) -> None:
    """At the end of fstab, with a constant time; the directory /etc keeps its own."""
    fstab, etc = root.base / "etc/fstab", root.base / "etc"
    fstab.write_text("tmpfs /tmp tmpfs defaults 0 0")
    fstab.chmod(0o600)
    aged(etc, 1_600_000_000)
    before = set(root.base.rglob("*"))
    assert complete(root.base, OWN) == OWN
    assert fstab.read_text() == f"tmpfs /tmp tmpfs defaults 0 0\nUUID={OTHER} / ext4 errors=remount-ro 0 1\n"
    assert fstab.stat().st_mode & 0o777 == 0o600
    assert set(root.base.rglob("*")) - before == {root.base / "fast"}
    assert [int((root.base / name).stat().st_mtime) for name in ("fast", "etc/fstab", "etc")] == [
        IMAGE_TIME_S,
        IMAGE_TIME_S,
        1_600_000_000,
    ]


@pytest.mark.parametrize(
    ("spec", "volume"), [(f"UUID={UUID}", RootLine(UUID, "root")), ("LABEL=sys", RootLine(OTHER, "sys"))]
)
def test_an_fstab_with_a_root_stays_as_it_is(root: ImageRoot, spec: str, volume: RootLine) -> None:
    fstab = root.base / "etc/fstab"
    fstab.write_text(f"{spec} / ext4 defaults 0 1\n")
    aged(fstab, 1_600_000_000)
    assert complete(root.base, OWN) == volume
    assert fstab.read_text() == f"{spec} / ext4 defaults 0 1\n"
    assert int(fstab.stat().st_mtime) == 1_600_000_000


def test_a_link_for_fstab_is_refused(root: ImageRoot) -> None:
    (root.base / "etc/fstab").symlink_to("/etc/fstab")
    with pytest.raises(BadInputError, match="/etc/fstab is not a plain file"):
        complete(root.base, OWN)


STATUS = """\
Package: nginx
Status: install ok installed
Provides: httpd, httpd-cgi (= 1)
Description: small
 Package: not-a-field

Package: half
Status: install ok half-configured

Package: held
Status: hold ok installed
"""


def test_what_dpkg_calls_installed() -> None:
    assert set(installed_packages(STATUS)) == {"nginx", "httpd", "httpd-cgi", "held"}
    assert list(installed_packages("")) == []


def profile_with(*packages: str) -> Profile:
    return replace(load_profile("nginx"), packages=packages)


def test_missing_packages_are_named(root: ImageRoot) -> None:
    check_packages(root, profile_with("anything"), Path("mine"))
    (root.base / "var/lib/dpkg").mkdir(parents=True)
    (root.base / "var/lib/dpkg/status").write_text(STATUS)
    check_packages(root, profile_with("nginx", "httpd"), Path("mine"))
    with pytest.raises(BadInputError, match=r"mine lacks packages of the profile nginx: half, zlib1g$"):
        check_packages(root, profile_with("half", "nginx", "zlib1g"), Path("mine"))


def test_what_is_no_root(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="/ is this host's own root"):
        examine(Path("/"))
    (tmp_path / "loop").symlink_to("/")
    with pytest.raises(BadInputError, match="/ is this host's own root"):
        examine(tmp_path / "loop")
    with pytest.raises(BadInputError, match="neither a directory nor a file"):
        examine(tmp_path / "absent")
    with pytest.raises(BadInputError, match="neither a directory nor a file"):
        examine(Path("/dev/null"))
    (tmp_path / "text").write_text("no archive\n" * 100)
    with pytest.raises(BadInputError, match="text is not a tar archive"):
        examine(tmp_path / "text")
    (tmp_path / "empty").touch()
    with pytest.raises(BadInputError, match="empty is not a tar archive"):
        examine(tmp_path / "empty")


@pytest.mark.parametrize("status", ["P\n\n" * 2_000_000, "\n" * 4_000_000])
def test_a_status_file_of_millions_of_packages(status: str) -> None:
    with little_memory(), pytest.raises(BadInputError, match="more than 100000 packages"):
        list(installed_packages(status))
    with little_memory(), pytest.raises(BadInputError, match="more than 100000 packages"):
        _with_stanza(status, guest_package())


def test_a_package_that_provides_millions() -> None:
    status = "Package: a\nStatus: install ok installed\nProvides: " + ",".join(map(str, range(300_000)))
    with little_memory():
        assert {"a", "277777"} == {"a", "b", "277777"}.intersection(installed_packages(status))
