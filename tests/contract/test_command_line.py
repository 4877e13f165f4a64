"""What init reads from the kernel's command line and the superblock. The host's BusyBox runs it in a root of its own (as root)."""

from __future__ import annotations

import subprocess
import time
from importlib import resources
from pathlib import Path

import pytest

from quickstart.image.ext4 import write_disk
from quickstart.model import IMAGE_TIME_S
from tests.contract.firstbox import said

UNIT = "nginx.service"
USUAL = "BOOT_IMAGE=/vmlinuz root=UUID=0123 ro quiet console=ttyS0 panic=10"


def unwanted(root: Path, line: str, policy: str = "") -> str:
    """Why init boots the stock way at once with that command line; empty when it does not."""
    (root / "proc").mkdir()
    (root / "proc/cmdline").write_text(f"{line}\n")
    (root / "sys/fs" / policy).mkdir(parents=True)
    return said(root, f'UNIT={UNIT}; read_command_line; confined_by_policy; echo "$unwanted"')


@pytest.mark.parametrize(
    "words",
    [
        USUAL,
        f"{USUAL} quickstart=stay",
        f"{USUAL} systemd.mask=serial-getty@ttyS0.service systemd.show_status=false",
        f'{USUAL} dyndbg="file a.c +p" noresume udev.log_level=3 net.ifnames=0',
        "",
    ],
)
def test_what_asks_for_nothing(tmp_path: Path, words: str) -> None:
    assert unwanted(tmp_path, words) == ""


@pytest.mark.parametrize(
    "word",
    [
        *("cc:{runcmd:[]}", "url=http://x/", "cloud-config-url=http://x/", "network-config=eA=="),
        *("ip=dhcp", "ifname=lan0:52:54:00:12:34:56", "vlan=v5:ens3", "BOOTIF=01-52"),
        *("resume=/dev/vdb", "resume_offset=1", "udev.blockdev_read_only"),
        # Another source of cloud-init's data, which makes another instance of the machine.
        *("ds=nocloud;s=http://x/", "ci.ds=Ec2", "ci.datasource=Ec2", "ci.di.policy=enabled"),
        *("ci.datasource.ec2.strict_id=false", "scaleway", "vultr"),
    ],
)
def test_what_asks_for_another_network_configuration_or_session(tmp_path: Path, word: str) -> None:
    assert unwanted(tmp_path, f"{USUAL} {word}") == word


@pytest.mark.parametrize(
    ("word", "own"),
    [
        ("overlayroot=tmpfs", "overlayroot=tmpfs"),
        ("rd.live.overlay=/dev/vdb", "rd.live.overlay=/dev/vdb"),
        ("overlayroot_cfgdisk=LABEL=x", "overlayroot_cfgdisk=LABEL=x"),
        ("lockfs", "lockfs"),
        ("fsprotect=1G", "fsprotect=1G"),
        ("overlayroot=disabled", ""),
        ("overlayroot=", ""),
    ],
)
def test_what_the_image_s_own_initramfs_is_asked_for(tmp_path: Path, word: str, own: str) -> None:
    """Fallback 1 does not run its scripts."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cmdline").write_text(f"{USUAL} {word} quiet\n")
    assert said(tmp_path, f'UNIT={UNIT}; read_command_line; echo "$own_initramfs"') == own
    init = resources.files("quickstart.initramfs").joinpath("init", "init").read_text()
    assert '\n[ -z "$own_initramfs" ] || give_up "' in init


@pytest.mark.parametrize(
    ("text", "is_wanted"),
    [
        ('overlayroot_cfgdisk="disabled"\noverlayroot=""\n', False),
        ('overlayroot="disabled"\n', False),
        ('# overlayroot="tmpfs"\n', False),
        ('overlayroot="tmpfs"\n', True),
        ("overlayroot=device:dev=/dev/vdb\n", True),
        ("BILIBOP_LOCKFS=true\n", True),
    ],
)
def test_only_the_image_s_own_initramfs_can_obey_it(tmp_path: Path, text: str, is_wanted: bool) -> None:
    """Fallback 1 does not run its scripts, so each way to it asks."""
    (tmp_path / "newroot/etc").mkdir(parents=True)
    (tmp_path / "newroot/etc/overlayroot.conf").write_text(text)
    script = 'ROOT_FILES="etc/overlayroot.conf etc/other.conf"; wants_own_initramfs /newroot && echo yes || echo no'
    assert said(tmp_path, script) == ("yes" if is_wanted else "no")
    first = resources.files("quickstart.initramfs").joinpath("init", "first").read_text()
    boot_stock = first.partition("\nboot_stock() {\n")[2]
    assert "\t! wants_own_initramfs /newroot || give_up " in boot_stock.partition("\n}\n")[0]


@pytest.mark.parametrize("ending", ["", "\nquiet"])
def test_a_line_break_hides_no_word(tmp_path: Path, ending: str) -> None:
    """The kernel and systemd separate words at it, and whoever writes a long line may break it."""
    assert unwanted(tmp_path, f"{USUAL}\nsystemd.mask=nginx.service{ending}") == "systemd.mask=nginx.service"


def test_a_carriage_return_hides_no_word(tmp_path: Path) -> None:
    assert "control character" in unwanted(tmp_path, f"{USUAL} a\rsystemd.mask=nginx.service")


@pytest.mark.parametrize(
    "word",
    [
        *("quickstart=off", "single", "s", "S", "1", "-s", "-b", "emergency", "rescue", "recovery"),
        *("systemd.unit=rescue.target", "init=/bin/sh", "root=/dev/vdb1"),
        # The unit by both of its names, who pulls it in, and what init does itself or the unit may require.
        *("systemd.mask=nginx", "systemd.mask=nginx.service", "systemd.mask=multi-user.target"),
        *("systemd.mask=networking.service", "systemd.mask=data.mount"),
        # Of the root volume, before it is mounted or by its mount.
        *("fsck.mode=force", "forcefsck", "rootflags=noexec", "quotacheck.mode=force"),
        # systemd mounts nothing of fstab then.
        *("fstab=no", "fstab=0", "systemd.fstab=no"),
        # To modprobe(8), which init does not use.
        *("modprobe.blacklist=squashfs,erofs", "blacklist=squashfs"),
        # What the distribution's initramfs takes from all processes.
        "drop_capabilities=cap_sys_module",
        # A drop-in of the unit, and policies that come with the stock init.
        *("systemd.set_credential=systemd.unit-dropin.nginx:x", "systemd.set-credential-binary=a:eA=="),
        # Presets enable units before any starts.
        *("systemd.condition-first-boot=1", "systemd.condition_first_boot"),
        # It would be another machine; cloud-init would run in spite of cloud-init.disabled.
        *("systemd.clock-usec=1700000000000000", "systemd.clock_usec=1"),
        *("rd.break", "rd.luks=0", "rd.route=10.0.0.0/8:10.0.2.2"),
        "systemd.pull=tar,sysext,verify=no:x:https://example.com/x.tar",
        *("systemd.machine_id=0123456789abcdef0123456789abcdef", "cloud-init=enabled"),
        *("TOMOYO_loader=/x", "TOMOYO_trigger=/x", "ipe.enforce=0"),
        *("security=tomoyo", "lsm=landlock,yama,tomoyo", "ima_policy=tcb", "ima_appraise=enforce"),
        # The kernel takes a hyphen for an underscore.
        *(
            "ima-policy=appraise_tcb",
            "ima-appraise=enforce",
            "ima_tcb",
            "ima-tcb",
            "ima_appraise_tcb",
            "ima-appraise-tcb",
        ),
    ],
)
def test_what_asks_for_the_stock_boot(tmp_path: Path, word: str) -> None:
    assert unwanted(tmp_path, f"{USUAL} {word} quiet") == word


@pytest.mark.parametrize(
    ("word", "dropped"),
    [
        ("drop_capabilities=cap_sys_module,CAP_NET_RAW", "sys_module,NET_RAW"),
        ("drop_capabilities=chown,cap_12", "chown,cap_12"),
        ("quiet", ""),
    ],
)
def test_capabilities_that_nobody_is_to_have(tmp_path: Path, word: str, dropped: str) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cmdline").write_text(f"{USUAL} {word}\n")
    assert said(tmp_path, f'UNIT={UNIT}; read_command_line; echo "$dropped"') == dropped


@pytest.mark.parametrize(
    ("quoted", "word"),
    [
        ('"systemd.mask=nginx.service"', "systemd.mask=nginx.service"),
        ("systemd.mask='nginx'", "systemd.mask=nginx"),
        ('"rescue"', "rescue"),
        ('"quickstart=off and more"', "quickstart=off"),
        ("sys\"temd.unit=a\"'.target'", "systemd.unit=a.target"),
    ],
)
def test_quotes_hide_nothing(tmp_path: Path, quoted: str, word: str) -> None:
    assert unwanted(tmp_path, f"{quoted} {USUAL}") == word


@pytest.mark.parametrize(
    ("strings", "is_unwanted"), [("\0OEM\0", False), ("\0io.systemd.credential:a=b\0", True)]
)
def test_credentials_of_the_firmware(tmp_path: Path, strings: str, is_unwanted: bool) -> None:
    (tmp_path / "DMI").write_text(strings)
    answer = said(tmp_path, 'unwanted=; DMI=/DMI; confined_by_policy; echo "$unwanted"')
    assert answer == ("the machine's SMBIOS has credentials for systemd" if is_unwanted else "")


@pytest.mark.parametrize("policy", ["selinux", "smackfs"])
def test_a_policy_that_comes_with_systemd(tmp_path: Path, policy: str) -> None:
    """The kernel makes the directory when that access control is on (sel_init of selinuxfs, smk_init of smackfs)."""
    assert unwanted(tmp_path, USUAL, policy) == (
        f"the kernel confines services ({policy}), and its policy comes with the stock init"
    )


@pytest.mark.parametrize(
    ("settings", "age_s", "why"),
    [
        # mke2fs's own: no check by count or age.
        (("-C", "500"), 10**9, ""),
        (("-c", "30", "-C", "29"), 0, ""),
        (("-c", "30", "-C", "30"), 0, "the root volume is due for a check (mount 30)"),
        (("-c", "0", "-C", "16000"), 0, ""),
        (("-i", "10d", "-C", "1"), 9 * 86400, ""),
        (("-i", "10d", "-C", "1"), 11 * 86400, "the root volume is due for a check (by its age)"),
        (("-E", "force_fsck"), 0, "the root volume needs a check (state 0003)"),
    ],
)
def test_a_check_that_is_due(tmp_path: Path, settings: tuple[str, ...], age_s: int, why: str) -> None:
    """systemd-fsck-root.service checks no volume that is mounted for writing already; e2fsck(8) says when it would."""
    disk = tmp_path / "disk"
    subprocess.run(["mke2fs", "-q", "-t", "ext4", disk, "4M"], check=True, timeout=60)
    subprocess.run(["tune2fs", *settings, disk], check=True, timeout=60, stdout=subprocess.DEVNULL)
    clock = tmp_path / "sys/class/rtc/rtc0"
    clock.mkdir(parents=True)
    (clock / "since_epoch").write_text(f"{int(time.time()) + age_s}\n")
    assert said(tmp_path, 'unwanted=; read_superblock /disk; needs_check; echo "$unwanted"') == why


@pytest.mark.parametrize("created_s", [IMAGE_TIME_S, IMAGE_TIME_S + (1 << 28) - 1])
def test_a_volume_of_another_build_with_the_same_uuid(tmp_path: Path, created_s: int) -> None:
    """Its mounts and its time of writing are those of any fresh disk; the time of mkfs tells it."""
    identity = "00112233-4455-6677-8899-aabbccddeeff"
    (tmp_path / "tree").mkdir()
    disk = write_disk(tmp_path / "tree", tmp_path / "disk", 16, identity, "root", created_s=created_s)
    assert disk.superblock.created_s == created_s
    (tmp_path / "sys/class/block/disk").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    disk.path.rename(tmp_path / "dev/disk")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/uptime").write_text("1.00 1.00\n")

    def unwanted(created: int) -> str:
        given = f"unwanted= ROOT_DEVICE= ROOT_UUID={identity} ROOT_CREATED={created} SERVED=memory BUILD_WTIME={IMAGE_TIME_S}"
        return said(tmp_path, f'{given}; load() {{ :; }}; mount() {{ :; }}; mount_root; echo "$unwanted"')

    assert unwanted(created_s) == ""
    assert unwanted(created_s - 1) == "the root volume is that of another build"
    # The volume of another build beside it, as a backup, comes first.
    (tmp_path / "sys/class/block/bdisk").mkdir()
    other = write_disk(tmp_path / "tree", tmp_path / "other", 16, identity, "root", created_s=created_s - 1)
    other.path.rename(tmp_path / "dev/bdisk")
    assert unwanted(created_s) == ""


@pytest.mark.parametrize(
    ("behind_s", "why"),
    [
        # An hour of summer time, a slow clock; a dead battery.
        (-(10**6), ""),
        (86400 + 14 * 3600, ""),
        (3 * 86400, "the clock is more than two days behind the root volume"),
        # A machine that was left alone; and a clock that systemd does not believe.
        (-4 * 31557600, ""),
        (-6 * 31557600, "the clock is years ahead of the root volume"),
    ],
)
@pytest.mark.parametrize("variable", ["", "unset EPOCHSECONDS; "])
def test_a_clock_that_has_lost_the_time(tmp_path: Path, behind_s: int, why: str, variable: str) -> None:
    """A stock boot sets it before it starts a service."""
    clock = tmp_path / "sys/class/rtc/rtc0"
    clock.mkdir(parents=True)
    (clock / "since_epoch").write_text(f"{int(time.time())}\n")
    volume = "SB_STATE=0001 SB_MOST_MOUNTS=0 SB_MOUNTS=1 SB_CHECKED=0 SB_INTERVAL=0"
    script = f"{variable}unwanted= {volume} SB_WTIME={int(time.time()) + behind_s}"
    assert said(tmp_path, f'{script}; needs_check; echo "$unwanted"') == why


def test_the_time_of_a_build_says_nothing_of_the_clock(tmp_path: Path) -> None:
    volume = f"SB_STATE=0001 SB_MOST_MOUNTS=0 SB_MOUNTS=0 SB_CHECKED=0 SB_INTERVAL=0 SB_WTIME={IMAGE_TIME_S}"
    script = f'unwanted= {volume} BUILD_WTIME={IMAGE_TIME_S}; needs_check; echo "$unwanted"'
    assert said(tmp_path, script) == ""
