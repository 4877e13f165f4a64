"""List the units that a stock boot starts before the application, and for which an early start need not wait.

For each of these units, either no application depends on the unit, or our init prepares the same things as the unit.
The list applies only to unit files as the packages deliver them. The list has complete names, because a pattern such as
``systemd-*`` would also match units that do not come from systemd.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

# In a name, `*` stands for the instance. systemd.directives(7) and the packages' manual pages describe them.
_SERVICES = {
    "devices, modules, disks": """
        blk-availability dm-event dracut-shutdown e2scrub_reap kmod kmod-static-nodes lvm2-lvmpolld lvm2-monitor
        lvm2-pvscan@* mdadm-shutdown modprobe@* nfs-config systemd-backlight@* systemd-binfmt
        systemd-fsck-root systemd-fsck@* systemd-fsckd systemd-growfs-root systemd-growfs@-
        systemd-hibernate-clear systemd-hibernate-resume systemd-hwdb-update systemd-modules-load
        systemd-pstore systemd-remount-fs systemd-repart systemd-rfkill systemd-udev-load-credentials
        systemd-udev-settle systemd-udev-trigger systemd-udevd systemd-zram-setup@* udev""",
    "the console": """
        console-setup keyboard-setup plymouth-quit plymouth-quit-wait plymouth-read-write plymouth-start
        systemd-ask-password-console systemd-ask-password-plymouth systemd-ask-password-wall
        systemd-battery-check systemd-bsod systemd-vconsole-setup""",
    "entropy, the clock of the last boot": """
        fake-hwclock haveged jitterentropy jitterentropy-rngd rng-tools rng-tools-debian rngd
        systemd-boot-random-seed systemd-random-seed""",
    "kernel settings (inspect/unit/sysctl.py), measurements in a TPM": """
        procps systemd-pcrextend@* systemd-pcrfs-root systemd-pcrlock-* systemd-pcrmachine systemd-pcrnvdone
        systemd-pcrphase systemd-pcrphase-sysinit systemd-pcrproduct systemd-sysctl systemd-tpm2-clear
        systemd-tpm2-setup systemd-tpm2-setup-early""",
    "logs, accounts of the boot": """
        rsyslog syslog-ng systemd-boot-update systemd-journal-catalog-update systemd-journal-flush
        systemd-journald systemd-journald@* systemd-update-done systemd-update-utmp systemd-update-utmp-runlevel""",
    "users, directories (the starter makes them as well), the message bus and what it starts": """
        dbus dbus-broker polkit systemd-firstboot systemd-hostnamed systemd-initctl
        systemd-localed systemd-logind systemd-machine-id-commit systemd-oomd systemd-sysusers systemd-timedated
        systemd-tmpfiles-clean systemd-tmpfiles-setup systemd-tmpfiles-setup-dev
        systemd-tmpfiles-setup-dev-early systemd-user-sessions user-runtime-dir@* user@*""",
    "AppArmor (inspect/unit/apparmor.py), the loader's cache": """
        apparmor ldconfig snapd.apparmor""",
    "the network": """
        NetworkManager NetworkManager-dispatcher NetworkManager-wait-online connman dhcpcd ifup@* ifupdown-pre
        ifupdown-wait-online networking resolvconf resolvconf-pull-resolved systemd-network-generator
        systemd-networkd systemd-networkd-persistent-storage systemd-networkd-wait-online
        systemd-networkd-wait-online@* systemd-resolved wpa_supplicant wpa_supplicant@* netplan-ovs-cleanup
        netplan-configure""",
}
# An application can do without these services, unless its own unit names them, or the application uses them for
# look-ups (lookups.py). They are for name servers, the clock, iSCSI, further users, VMware's guest tools and
# cloud-init (docs/users/cloud-init.md).
_ON_DEMAND_SERVICES = """
    avahi-daemon bind9 chrony cloud-config cloud-final cloud-init cloud-init-hotplugd cloud-init-local cloud-init-main
    cloud-init-network dnsmasq iscsid multipathd named nscd nslcd ntp ntpsec open-iscsi open-vm-tools openntpd rpcbind systemd-homed
    systemd-timesyncd systemd-userdbd unbound unscd vgauth"""
# Init mounts these itself, or no application uses them. The tracer of the reference boot makes run-quickstart\x2dtrace.
_MOUNTS = r"""
    - boot boot-efi efi tmp dev-hugepages dev-mqueue proc-fs-nfsd proc-sys-fs-binfmt_misc proc-xen sys-fs-*
    sys-kernel-* run-credentials run-credentials-* run-lock run-quickstart\x2dtrace run-rpc_pipefs run-user
    run-user-* run-vmblock\x2dfuse"""
# systemd-ssh-generator(8): where ssh listens for the machine's own users and its host.
_GENERATED_SOCKETS = frozenset(("sshd-unix-local.socket", "sshd-vsock.socket"))
_ON_DEMAND = frozenset(f"{name}.service" for name in _ON_DEMAND_SERVICES.split())
_NAMES = frozenset(
    (
        *(f"{name}.service" for names in _SERVICES.values() for name in names.split()),
        *_ON_DEMAND,
        *(f"{name}.{kind}" for name in _MOUNTS.split() for kind in ("mount", "automount")),
    )
)
_PATTERNS = tuple(name for name in sorted(_NAMES) if "*" in name)


def is_harmless(name: str) -> bool:
    """Whether the application may start before the unit with this name, provided that the unit's file comes from a
    package.
    """
    return name in _NAMES or any(fnmatchcase(name, pattern) for pattern in _PATTERNS)


def is_generated_socket(name: str) -> bool:
    """Whether ``name`` is a socket unit that systemd's own generator makes at each boot. The commands of such a socket
    unit do not affect the application.
    """
    return name in _GENERATED_SOCKETS


def may_be_generated(name: str) -> bool:
    """Whether a package's generator may make the service at each boot. The result is true for two services:

    - netplan-ovs-cleanup.service, which netplan's generator makes for Open vSwitch (netplan(8))
    - systemd-growfs@-.service, which systemd's generator makes for `x-systemd.growfs` in fstab to enlarge the root file
      system (systemd-fstab-generator(8))
    """
    return name in ("netplan-ovs-cleanup.service", "systemd-growfs@-.service")


def may_be_copied(name: str) -> bool:
    """Whether the application may start before this unit even if the unit's file is the administrator's copy in /etc.
    The result is true only for tmp.mount, because init gets the options of /tmp from that copy
    (inspect/unit/mounted.py).
    """
    return name == "tmp.mount"


def is_asked_for(name: str) -> bool:
    """Whether the unit is harmless only for applications whose own unit does not name this unit in After=. An
    application that names the unit in After= must not start before the unit.
    """
    return name in _ON_DEMAND


def is_only_waiting(name: str) -> bool:
    """Whether the unit only waits for the network. Packages have drop-ins for such units, and these drop-ins name the
    interfaces to wait for.
    """
    return name.partition("@")[0].removesuffix(".service").endswith("-wait-online")
