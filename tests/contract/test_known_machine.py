"""Init decides whether cloud-init has already run on this machine. The host's BusyBox runs it in a root of its own (as root)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.knownmachine import DMI, MINE, NO_NAME, NOT_YET, OTHER, XEN, ZERO, asked


@pytest.mark.parametrize(
    ("early", "link", "named", "answer"),
    [
        ("always", "", {}, "known"),
        ("seen", f"1:{MINE}", {DMI: MINE}, "known"),
        ("seen", "", {DMI: MINE}, NOT_YET),
        ("seen", f"1:{OTHER}", {DMI: MINE}, NOT_YET),
        ("seen", MINE, {DMI: MINE}, NOT_YET),
        ("seen", f"1:{OTHER}", {XEN: OTHER}, "known"),
        ("seen", f"1:{OTHER}", {DMI: ZERO, XEN: OTHER}, "known"),
        # As the tool in the machine has it: SMBIOS's comes first.
        ("seen", f"1:{MINE}", {DMI: MINE, XEN: OTHER}, "known"),
        ("seen", f"1:{OTHER}", {DMI: MINE, XEN: OTHER}, NOT_YET),
        ("seen", "1:", {}, NO_NAME),
        ("seen", f"1:{ZERO}", {DMI: ZERO}, NO_NAME),
        ("seen", f"1:{ZERO}", {XEN: ZERO}, NO_NAME),
        ("seen", "1:", {DMI: ""}, NO_NAME),
    ],
)
def test_known(early: str, link: str, named: dict[str, str], answer: str, tmp_path: Path) -> None:
    assert asked(tmp_path, early, link, named) == answer


@pytest.mark.parametrize(
    ("line", "is_known"),
    [
        ("", True),
        ("# /dev/vdb /srv ext4 defaults 0 2", True),
        ("UUID=1 / ext4 rw,discard 0 1\nUUID=2 /boot/efi vfat umask=077 0 1\n/swap none swap sw 0 0", True),
        ("proc /proc proc defaults 0 0\n/dev/sr0 /media/cdrom0 udf,iso9660 user,noauto 0 0", True),
        # systemd mounts it where a unit needs it.
        ("/dev/vdb /srv ext4 noauto 0 0", False),
        ("/dev/vdb /mnt ext4 noauto 0 2", False),
        ("tmpfs /run/app tmpfs defaults 0 0", False),
        # As cloud-init writes the user data's `mounts`.
        (
            "/dev/vdb /var/lib/mysql auto defaults,nofail,x-systemd.requires=cloud-init.service,_netdev 0 2",
            False,
        ),
        ("nas:/x /srv nfs noauto,x-systemd.automount 0 0", False),
        ("proc /proc proc hidepid=2 0 0", False),
        # The unit has no guard against these.
        ("UUID=2 /boot ext4 defaults 0 2", False),
        ("UUID=2 /efi vfat defaults 0 2", False),
        ("UUID=2 /boot/efi/../x vfat defaults 0 2", False),
        ("UUID=2 /boot/efi/x vfat defaults 0 2", True),
        # Two dots, to systemd (fstab(5)).
        ("UUID=2 /boot/efi/\\056\\056/x vfat defaults 0 2", False),
        ("UUID=2 /srv ext4 noauto,auto 0 2", False),
        ("UUID=2 /srv ext4 noauto,comment=systemd.automount 0 2", False),
        ("UUID=1 / ext4 rw 0 1\n/dev/vdb /srv ext4 defaults 0 2", False),
        ("/dev/vdb /srv/dev/data ext4 defaults 0 2", False),
        ("/dev/vdb /srv/none ext4 defaults 0 2", False),
        ("tmpfs /srv/run/x tmpfs defaults 0 0", False),
        ("PARTUUID=1 / ext4 rw,discard,errors=remount-ro,x-systemd.growfs 0 1", True),
    ],
)
def test_a_mount_that_the_build_has_not_seen(line: str, is_known: bool, tmp_path: Path) -> None:
    answer = asked(tmp_path, "seen", f"1:{MINE}", {DMI: MINE}, f"{line}\n")
    assert answer == ("known" if is_known else f"/etc/fstab mounts {line.splitlines()[-1].split()[1]}")


@pytest.mark.parametrize("early", ["seen", "always"])
@pytest.mark.parametrize("target", ["/srv/fstab", "../srv/fstab"])
def test_an_fstab_that_is_a_link(early: str, target: str, tmp_path: Path) -> None:
    """To init, whose root is another one, an absolute link leads nowhere."""
    etc = tmp_path / "newroot/etc"
    etc.mkdir(parents=True)
    (etc / "fstab").symlink_to(target)
    assert asked(tmp_path, early, f"1:{MINE}", {DMI: MINE}) == "/etc/fstab is a link"


@pytest.mark.parametrize("option", ["noexec", "nodev", "nosuid", "ro", "usrquota", "data=journal", "noauto"])
def test_an_option_of_the_root_that_the_build_has_not_seen(option: str, tmp_path: Path) -> None:
    fstab = f"UUID=1 / ext4 errors=remount-ro,{option} 0 1\n"
    assert asked(tmp_path, "seen", f"1:{MINE}", {DMI: MINE}, fstab) == f"/etc/fstab mounts / with {option}"


def test_an_option_of_the_root_that_the_build_has_seen(tmp_path: Path) -> None:
    fstab = "UUID=1 / ext4 rw,data=ordered 0 1\n"
    answer = asked(tmp_path, "seen", f"1:{MINE}", {DMI: MINE}, fstab, root_options="data=ordered,discard")
    assert answer == "known"


def test_an_option_of_the_root_that_fstab_has_no_more(tmp_path: Path) -> None:
    """An early start would go on with it."""
    fstab = "UUID=1 / ext4 rw 0 1\n"
    answer = asked(tmp_path, "seen", f"1:{MINE}", {DMI: MINE}, fstab, root_options="rw,nosuid")
    assert answer == "/etc/fstab no longer mounts / with nosuid"


@pytest.mark.parametrize("early", ["seen", "always"])
def test_a_mask_of_a_rule(early: str, tmp_path: Path) -> None:
    """Debian's cloud images have one, for the names of network cards."""
    rules = tmp_path / "newroot/etc/udev/rules.d"
    rules.mkdir(parents=True)
    (rules / "80-net-setup-link.rules").symlink_to("/dev/null")
    assert asked(tmp_path, early, f"1:{MINE}", {DMI: MINE}) == "known"


@pytest.mark.parametrize("early", ["seen", "always"])
def test_the_last_line_and_slashes_at_its_end_count(early: str, tmp_path: Path) -> None:
    """Also where the profile or the command line says that cloud-init does not matter."""
    fstab = "UUID=1 / ext4 rw 0 1\nfs-1:/ /var/lib/mysql/ efs defaults 0 0"
    assert asked(tmp_path, early, f"1:{MINE}", {DMI: MINE}, fstab) == "/etc/fstab mounts /var/lib/mysql"
