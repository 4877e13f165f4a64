"""What a boot mounts before it starts a service. An early start would write below the mount point."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.mounted import fstab_options, late_places, refuse_mounts, tmp_options
from quickstart.inspect.unit.read import read_unit
from tests.unit.test_unit_sockets import UNITS, link, put

ROOT = "UUID=11111111-1111-1111-1111-111111111111 / ext4 defaults 0 1\n"
OWN = "/etc/systemd/system"
SERVICE = "[Service]\nExecStart=/usr/bin/app\n"


def refused(base: Path, fstab: str = "", service: str = SERVICE) -> str:
    put(base, "/usr/bin/app", "")
    put(base, f"{UNITS}/app.service", service)
    put(base, "/etc/fstab", ROOT + fstab)
    try:
        refuse_mounts(ImageRoot(base), "app.service")
    except UnsupportedUnitError as error:
        return error.message
    return ""


@pytest.mark.parametrize(
    "line",
    [
        "/srv/db /var/lib/mysql none bind 0 0",
        "nas:/export /var/www nfs nofail 0 0",
        "nas:/export /mnt nfs noauto,x-systemd.automount 0 0",
        "LABEL=data /data ext4 nofail 0 2",
        "LABEL=data /media/data ext4 defaults 0 2",
        "LABEL=data /var/lib/app ext4 nofail,x-systemd.before=app.service 0 2",
        "LABEL=data /data ext4 noauto,x-systemd.wanted-by=multi-user.target 0 2",
        "tmpfs /tmp tmpfs nosuid,x-systemd.automount 0 0",
        "/dev/vdb /tmp ext4 nosuid,noexec 0 0",
        "tmpfs /tmp tmpfs uid=5 0 0",
        "tmpfs /var/my\\040app tmpfs defaults 0 0",
        "proc /proc proc hidepid=9 0 0",
        "proc /proc proc hidepid=2,gid=proc 0 0",
        "tmpfs /dev/shm tmpfs defaults,noexec,mode=0700 0 0",
        "/srv/x /opt none bind,x-systemd.automount 0 0",
        "overlay /usr/lib/app overlay lowerdir=/a:/b",
    ],
)
def test_a_line_of_fstab(tmp_path: Path, line: str) -> None:
    place = line.split()[1].replace("\\040", " ")
    assert f"/etc/fstab ({line.split()[0]}) mounts {place}, " in refused(tmp_path, f"{line}\n")
    with pytest.raises(UnsupportedUnitError, match="comes before that"):
        read_unit(ImageRoot(tmp_path), "app.service")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "# /srv/db /var/lib/mysql none bind 0 0",
        "/swapfile none swap sw 0 0",
        "/dev/sr0 /media/cdrom0 udf,iso9660 user,noauto 0 0",
        "nas:/export /mnt nfs noauto 0 0",
        "UUID=2222-3333 /boot/efi vfat umask=0077 0 1",
        "UUID=22222222-2222-2222-2222-222222222222 /data ext4 noauto,nofail 0 2",
        "proc /proc proc defaults 0 0",
        "tmpfs /run/lock tmpfs nodev,nosuid,noexec 0 0",
    ],
)
def test_a_line_that_mounts_nothing_of_a_service_s(tmp_path: Path, line: str) -> None:
    assert refused(tmp_path, f"{line}\n") == ""


@pytest.mark.parametrize(
    "needs",
    [
        "[Unit]\nRequiresMountsFor=/mnt/app/data\n[Service]\n",
        "[Service]\nWorkingDirectory=-/mnt/app\n",
        "[Unit]\nRequiresMountsFor=/srv '/mnt/app'\n[Service]\n",
    ],
)
def test_one_that_the_unit_needs_is_mounted_in_spite_of_noauto(tmp_path: Path, needs: str) -> None:
    line = "/srv/app /mnt/app none bind,noauto 0 0\n"
    assert refused(tmp_path, line) == ""
    assert "mounts /mnt/app" in refused(tmp_path, line, f"{needs}ExecStart=/usr/bin/app\n")


@pytest.mark.parametrize("kind", ["mount", "automount"])
def test_a_mount_unit(tmp_path: Path, kind: str) -> None:
    name = f"var-lib-my\\x2dapp.{kind}"
    put(tmp_path, f"{OWN}/{name}", "[Mount]\nWhat=tmpfs\nWhere=/var/lib/my-app\n")
    assert refused(tmp_path) == ""
    assert "mounts /var/lib/my-app" in refused(tmp_path, "", f"{SERVICE}StateDirectory=my-app/1\n")
    link(tmp_path, f"{OWN}/multi-user.target.wants/{name}", f"../{name}")
    assert f"{name} mounts /var/lib/my-app" in refused(tmp_path)
    (tmp_path / OWN[1:] / name).unlink()
    link(tmp_path, f"{OWN}/{name}", "/dev/null")
    assert refused(tmp_path) == ""


def test_the_pipes_of_nfs(tmp_path: Path) -> None:
    """nfs-common mounts them in each boot, and no other service has files there."""
    name = "var-lib-nfs-rpc_pipefs.mount"
    put(tmp_path, f"{UNITS}/{name}", "[Mount]\nWhat=sunrpc\nWhere=/var/lib/nfs/rpc_pipefs\nType=rpc_pipefs\n")
    link(tmp_path, f"{UNITS}/multi-user.target.wants/{name}", f"../{name}")
    assert refused(tmp_path, "rpc_pipefs /var/lib/nfs/rpc_pipefs rpc_pipefs defaults 0 0\n") == ""
    assert f"{name} mounts" in refused(tmp_path, "", f"{SERVICE}StateDirectory=nfs/rpc_pipefs/x\n")
    put(tmp_path, f"{UNITS}/{name}", "[Mount]\nWhat=/dev/vdb\nWhere=/var/lib/nfs/rpc_pipefs\nType=ext4\n")
    assert f"{name} mounts" in refused(tmp_path)


def test_those_of_systemd(tmp_path: Path) -> None:
    for name in ("-.mount", "dev-hugepages.mount", "proc-sys-fs-binfmt_misc.automount", "tmp.mount"):
        put(tmp_path, f"{UNITS}/{name}", "[Mount]\n")
        link(tmp_path, f"{UNITS}/multi-user.target.wants/{name}", f"../{name}")
    assert refused(tmp_path) == ""
    # As the package's documentation has it for Debian 12.
    put(tmp_path, f"{OWN}/tmp.mount", f"{TMP}noexec\n")
    assert refused(tmp_path) == ""
    assert tmp_options(ImageRoot(tmp_path)) == ("noexec",)
    put(tmp_path, "/usr/local/lib/systemd/system/tmp.mount", f"{TMP}noexec\n")
    (tmp_path / OWN[1:] / "tmp.mount").unlink()
    assert "tmp.mount mounts /tmp" in refused(tmp_path)


TMP = "[Unit]\nConflicts=umount.target\n[Mount]\nWhat=tmpfs\nWhere=/tmp\nType=tmpfs\nOptions="


def test_the_tmpfs_on_tmp(tmp_path: Path) -> None:
    assert tmp_options(ImageRoot(tmp_path)) == ()
    put(tmp_path, f"{UNITS}/tmp.mount", f"{TMP}mode=1777,nosuid,size=50%%\n")
    assert tmp_options(ImageRoot(tmp_path)) == ()
    link(tmp_path, f"{UNITS}/local-fs.target.wants/tmp.mount", "../tmp.mount")
    link(tmp_path, f"{UNITS}/sysinit.target.wants/local-fs.target", "../local-fs.target")
    link(tmp_path, f"{UNITS}/multi-user.target.wants/sysinit.target", "../sysinit.target")
    assert tmp_options(ImageRoot(tmp_path)) == ("mode=1777,nosuid,size=50%",)
    put(tmp_path, f"{UNITS}/tmp.mount", f"{TMP}mode=1777,x-systemd.graceful-option=usrquota\n")
    assert tmp_options(ImageRoot(tmp_path)) == ("mode=1777,usrquota", "mode=1777")
    link(tmp_path, f"{OWN}/tmp.mount", "/dev/null")
    assert tmp_options(ImageRoot(tmp_path)) == ()


def test_a_link_in_place_of_tmp(tmp_path: Path) -> None:
    """systemd would not start tmp.mount, and mount(2) covers what the link leads to."""
    (tmp_path / "var/tmp").mkdir(parents=True)
    link(tmp_path, "/tmp", "var/tmp")
    with pytest.raises(UnsupportedUnitError, match="/tmp is a link"):
        tmp_options(ImageRoot(tmp_path))


@pytest.mark.parametrize(
    "text", [f"{TMP}mode=1777;rm\n", TMP.replace("Type=tmpfs", "Type=ext4") + "mode=1777\n"]
)
def test_an_unusual_mount_of_tmp(tmp_path: Path, text: str) -> None:
    put(tmp_path, f"{UNITS}/tmp.mount", text)
    link(tmp_path, f"{UNITS}/multi-user.target.wants/tmp.mount", "../tmp.mount")
    with pytest.raises(UnsupportedUnitError, match="in an unusual way"):
        tmp_options(ImageRoot(tmp_path))


@pytest.mark.parametrize(
    ("line", "place", "options"),
    [
        ("tmpfs /dev/shm tmpfs defaults,nodev,nosuid,noexec 0 0", "/dev/shm", "noexec"),
        ("tmpfs /dev/shm tmpfs rw,nodev,nosuid,relatime,size=2G 0 0", "/dev/shm", "size=2G"),
        ("tmpfs /dev/shm/ tmpfs defaults", "/dev/shm", ""),
        ("proc /proc proc defaults,hidepid=2,gid=7 0 0", "/proc", "hidepid=2,gid=7"),
        ("proc /proc proc nosuid,nodev,noexec,relatime,hidepid=invisible", "/proc", "hidepid=invisible"),
        (
            "tmpfs /tmp tmpfs defaults,rw,nosuid,nodev,noexec,relatime,size=2G 0 0",
            "/tmp",
            "nosuid,nodev,noexec,relatime,size=2G",
        ),
        ("tmpfs /tmp tmpfs defaults 0 0", "/tmp", ""),
    ],
)
def test_a_line_that_init_follows(tmp_path: Path, line: str, place: str, options: str) -> None:
    assert refused(tmp_path, f"{line}\n") == ""
    root = ImageRoot(tmp_path)
    assert fstab_options(root, place) == options
    assert tmp_options(root) == ((options or "rw",) if place == "/tmp" else ())
    # Two lines for one place are none that can be followed.
    refused(tmp_path, f"{line}\n{line}\n")
    assert fstab_options(ImageRoot(tmp_path), place) is None


@pytest.mark.parametrize("name", [f"{OWN}/tmp.mount", f"{UNITS}/tmp.mount.d/a.conf"])
def test_a_line_for_tmp_that_is_not_the_last_word(tmp_path: Path, name: str) -> None:
    put(tmp_path, name, "[Mount]\nWhat=tmpfs\nWhere=/tmp\nType=tmpfs\n")
    assert "mounts /tmp, " in refused(tmp_path, "tmpfs /tmp tmpfs nosuid 0 0\n")


BOOT = "LABEL=BOOT /boot ext4 defaults 0 2\nLABEL=ESP /boot/efi vfat defaults 0 1\n"


@pytest.mark.parametrize(
    "line",
    [
        "[Unit]\nConditionPathExists=!/boot/app-off\n",
        "[Unit]\nAssertPathExists=|/boot/efi/app\n",
        "EnvironmentFile=-/boot/app.env\n",
        "BindReadOnlyPaths=-/boot/app:/etc/app\n",
        "ExecCondition=/usr/bin/test ! -e /boot/app-off\n",
        "ExecStartPre=/bin/sh -c 'test -e \"/boot/x\"'\n",
        "ExecStartPre=/usr/bin/app --config=/boot/app.conf\n",
        "EnvironmentFile=/etc/app.env\n",
        "ReadWritePaths=/boot\n",
    ],
)
def test_a_file_in_a_file_system_that_comes_later(tmp_path: Path, line: str) -> None:
    """An early start would look for it in the directory of the root volume."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/app.env").symlink_to("/boot/own.env")
    assert refused(tmp_path, service=SERVICE + line) == ""
    assert "mounts /boot" in refused(tmp_path, BOOT, SERVICE + line)
    assert refused(tmp_path, BOOT, f"{SERVICE}ExecStartPre=/usr/bin/app /bootstrap x/boot/y\n") == ""


@pytest.mark.parametrize(
    ("line", "guarded"),
    [
        ("ProtectSystem=full", ["/boot"]),
        ("ProtectSystem=strict", ["/boot"]),
        ("ReadOnlyPaths=/boot/efi", ["/boot"]),
        ("InaccessiblePaths=-/boot/grub", ["/boot"]),
        ("NoExecPaths=/", ["/boot"]),
        ("ReadOnlyPaths=/etc", []),
        ("PrivateTmp=yes", []),
    ],
)
def test_a_place_that_the_unit_may_not_write_to(tmp_path: Path, line: str, guarded: list[str]) -> None:
    """What is mounted there later is kept away from the unit."""

    def guards(fstab: str) -> list[str]:
        assert refused(tmp_path, fstab, f"{SERVICE}{line}\n") == ""
        unit = read_unit(ImageRoot(tmp_path), "app.service")
        return [record[1] for record in unit.settings if record[0] == "guard"]

    assert guards(BOOT) == guarded
    # Another unit may need it.
    assert guards("LABEL=BOOT /boot ext4 noauto 0 2\n") == guarded
    assert guards("") == []
    assert late_places(ImageRoot(tmp_path)) == ()


def test_a_place_by_another_name(tmp_path: Path) -> None:
    (tmp_path / "boot/efi").mkdir(parents=True)
    (tmp_path / "efi").symlink_to("boot/efi")
    (tmp_path / "var/lib/app").mkdir(parents=True)
    (tmp_path / "boot/data").symlink_to("/var/lib/app")
    line = "LABEL=ESP /boot/efi vfat defaults 0 1\n"
    assert refused(tmp_path, line, f"{SERVICE}ReadOnlyPaths=/efi\n") == ""
    unit = read_unit(ImageRoot(tmp_path), "app.service")
    assert ("guard", "/boot/efi") in unit.settings
    assert "mounts /var/lib/app" in refused(tmp_path, "LABEL=x /boot/data ext4 defaults 0 2\n")


def test_a_directory_above_it_that_is_bound_elsewhere(tmp_path: Path) -> None:
    for kind, more, is_refused in (
        ("BindReadOnlyPaths", "", True),
        ("BindPaths", "", False),
        ("BindPaths", "ReadOnlyPaths=/host\n", True),
    ):
        assert refused(tmp_path, BOOT, f"{SERVICE}{kind}=/:/host\n{more}") == ""
        if not is_refused:
            read_unit(ImageRoot(tmp_path), "app.service")
            continue
        with pytest.raises(UnsupportedUnitError, match="restricts a bind mount of /, and /boot in it"):
            read_unit(ImageRoot(tmp_path), "app.service")


def test_the_places_that_come_later(tmp_path: Path) -> None:
    refused(tmp_path, "LABEL=ESP /efi vfat defaults 0 1\n" + BOOT)
    assert [str(each) for each in late_places(ImageRoot(tmp_path))] == ["/boot", "/efi"]
