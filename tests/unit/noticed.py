"""How a change of each file or directory of the image is noticed after the build, if `build` decides something by it.

The keys of NOTICED are the paths as the readers have them, in inspect/ and pack/. A reader with a new path needs an entry
(tests/unit/test_noticed.py): otherwise a build refuses by what a file says, and nobody looks at the file at a later boot.
"""

from __future__ import annotations

from dataclasses import dataclass

NEVER_STALE, LIMITS = "docs/users/never-stale.md", "docs/users/limits.md"


@dataclass(frozen=True)
class Compared:
    """It is in the lists that init compares at a boot by rule (c): by its facts, or as a place with all its entries."""


@dataclass(frozen=True)
class Init:
    """A program of part A looks at it in each boot. ``file`` has the words ``words``."""

    file: str
    words: str


@dataclass(frozen=True)
class Stated:
    """Nobody looks at it, and the page for users says so in these words."""

    words: str
    page: str = LIMITS


@dataclass(frozen=True)
class Covered:
    """Whoever changes it also changes ``by``, which has another entry here."""

    by: str
    why: str


@dataclass(frozen=True)
class NoDecision:
    """No later state of the image's file matters to what was decided."""

    why: str


Noticed = Compared | Init | Stated | Covered | NoDecision

_SECOND = "quickstart/initramfs/init/second"
_CONTENTS = "quickstart/initramfs/init/settings-files"
_EARLY_UNITS = "quickstart/initramfs/init/early-units"
_USERS = "quickstart/initramfs/starter/users.c"
_NAMES_A_DIRECTORY = NoDecision("a part of paths, or a directory that a unit's setting names or hides")
_SECRETS = NoDecision("which files are secret, by their names")
_DPKG = NoDecision("which files the packages have brought into the image of the build")
_LISTED = NoDecision("a path in a line of tmpfiles.d(5), which is compared itself")
_BY_PATH = NoDecision("scripts that other programs execute by their paths, looked at in the start set")
_COMMANDS = NoDecision("where a command without a path is looked for; what is found is in the start set")

NOTICED: dict[str, Noticed] = {
    # What a boot does before a service.
    "/etc/adjtime": Init(_CONTENTS, "etc/adjtime"),
    "/etc/crypttab": Compared(),
    "/etc/dracut.conf": Compared(),
    "/etc/dracut.conf.d": Compared(),
    "/etc/fstab": Compared(),
    "/etc/X11": Stated("a directory /etc/X11 that comes after the build", NEVER_STALE),
    "/etc/rc.local": Compared(),
    "/etc/system-update": Compared(),
    "/system-update": Compared(),
    "/etc/ima/ima-policy": Compared(),
    **{
        f"{place}/credstore{kind}": Compared()
        for place in ("/etc", "/usr/local/lib", "/usr/lib")
        for kind in ("", ".encrypted")
    },
    "/etc/ipe": Compared(),
    "/usr/local/lib/ipe": Compared(),
    "/usr/lib/ipe": Compared(),
    "/usr/sbin/tomoyo-init": Compared(),
    "/etc/apparmor/earlypolicy": Compared(),
    "/etc/initramfs-tools/scripts/": Compared(),
    "/etc/overlayroot.conf": Compared(),
    "/etc/overlayroot.local.conf": Compared(),
    "/etc/bilibop/bilibop.conf": Compared(),
    "/etc/default/fsprotect": Compared(),
    "/etc/extensions": Compared(),
    "/var/lib/extensions": Compared(),
    "/usr/lib/extensions": Compared(),
    "/usr/local/lib/extensions": Compared(),
    "/var/lib/confexts": Compared(),
    "/usr/lib/confexts": Compared(),
    "/usr/local/lib/confexts": Compared(),
    # Kernel settings and modules.
    "/etc/modules": Compared(),
    "/etc/sysctl.conf": Compared(),
    "/etc/sysctl.d": Compared(),
    "/usr/local/lib/sysctl.d": Compared(),
    "/usr/lib/sysctl.d": Init(_CONTENTS, "usr/lib/sysctl.d/*.conf"),
    "/lib/sysctl.d": Covered("/lib/systemd/system", "a link to /usr/lib"),
    "/etc/modprobe.d": Compared(),
    "/usr/local/lib/modprobe.d": Compared(),
    "/usr/lib/modprobe.d": Stated("A change in /usr/lib/modprobe.d is not noticed"),
    "/lib/modprobe.d": Covered("/lib/systemd/system", "a link to /usr/lib"),
    # The network.
    "/etc/network/interfaces": Compared(),
    "/etc/network/interfaces.d": Compared(),
    "/etc/network/if-pre-up.d": Compared(),
    "/etc/network/if-up.d": Compared(),
    "/etc/default/networking": Compared(),
    "/etc/netplan": Compared(),
    "/etc/netplan/*.yaml": Compared(),
    "/usr/lib/netplan/*.yaml": Stated("/usr/lib/netplan"),
    "/etc/systemd/network": Compared(),
    "/usr/local/lib/systemd/network": Compared(),
    "/usr/lib/systemd/network": Stated("A change in /usr/lib/systemd/network"),
    "/etc/systemd/networkd.conf": Compared(),
    "/etc/systemd/networkd.conf.d": Compared(),
    "/usr/local/lib/systemd/networkd.conf.d": Compared(),
    "/sbin/init": Init(_CONTENTS, "OTHER  sbin/init"),
    "/usr/sbin/init": Init(_CONTENTS, "OTHER  sbin/init"),
    "/etc/systemd/system/network-online.target.wants": Init(_EARLY_UNITS, ".wants"),
    "/etc/dhcp/dhclient.conf": Compared(),
    "/etc/dhcp/dhclient-": Compared(),
    "/etc/dhcp/dhclient-enter-hooks": Compared(),
    "/etc/dhcp/dhclient-exit-hooks": Compared(),
    "/etc/dhcpcd.conf": Compared(),
    "/etc/dhcpcd.enter-hook": Compared(),
    "/etc/dhcpcd.exit-hook": Compared(),
    "/usr/lib/dhcpcd/dhcpcd-hooks": Compared(),
    "/etc/udhcpc/default.script": Compared(),
    "/sbin/dhclient": Covered("/etc/dhcp/dhclient.conf", "comes with its package"),
    "/sbin/dhcpcd": Covered("/etc/dhcpcd.conf", "comes with its package"),
    "/sbin/udhcpc": Covered("/etc/udhcpc/default.script", "comes with its package"),
    "/etc/resolv.conf": Init(_SECOND, "/etc/resolv.conf"),
    "/etc/resolv.conf.head": Compared(),
    "/etc/resolv.conf.tail": Compared(),
    "/usr/lib/systemd/systemd-resolved": Covered("/etc/resolv.conf", "its package makes the file a link"),
    "/etc/udev/rules.d": Compared(),
    "/usr/local/lib/udev/rules.d": Compared(),
    "/usr/lib/udev/rules.d": Stated("A change in /usr/lib/udev/rules.d"),
    # cloud-init.
    "/etc/cloud": Compared(),
    "/etc/cloud/cloud-init.disabled": Compared(),
    "/etc/cloud/cloud.cfg": Compared(),
    "/etc/cloud/cloud.cfg.d": Compared(),
    "/etc/cloud/ds-identify.cfg": Init(
        "quickstart/initramfs/init/datasource", "/newroot/etc/cloud/ds-identify.cfg"
    ),
    "/etc/cloud/handlers": Compared(),
    "/etc/cloud/templates": Compared(),
    # Units.
    "/etc/systemd": Compared(),
    "/usr/local/lib/systemd": Compared(),
    "/usr/lib/systemd": Compared(),
    "/etc/systemd/system": Compared(),
    "/etc/systemd/system/": Compared(),
    "/etc/systemd/system.attached": Compared(),
    "/etc/systemd/system.control": Compared(),
    "/usr/local/lib/systemd/system": Compared(),
    "/usr/lib/systemd/system": Init(_EARLY_UNITS, "usr/lib/systemd/system"),
    "/usr/lib/systemd/system/": Compared(),
    "/lib/systemd/system": NoDecision(
        "of a machine whose /lib became a directory, dpkg's database is broken"
    ),
    "/lib/systemd/system/": NoDecision("names of units in a log"),
    "/etc/systemd/system-generators": Compared(),
    "/usr/local/lib/systemd/system-generators": Compared(),
    "/usr/lib/systemd/system-generators": Stated("generators of packages", NEVER_STALE),
    "/etc/init.d": Init(_EARLY_UNITS, "init.d"),
    "/etc/tmpfiles.d": Compared(),
    "/usr/local/lib/tmpfiles.d": Compared(),
    "/usr/lib/tmpfiles.d": Stated("other lines of a package's own tmpfiles.d", NEVER_STALE),
    "/etc/ld.so.cache": Init(_CONTENTS, "etc/ld.so.cache"),
    "/etc/ld.so.conf": Compared(),
    # What only some units need.
    "/usr/sbin/apparmor_parser": Compared(),
    "/etc/apparmor.d": Compared(),
    "/etc/ssh/sshd_config": Compared(),
    "/usr/lib/systemd/system-generators/sshd-socket-generator": Stated("generators of packages", NEVER_STALE),
    "/etc/nsswitch.conf": Compared(),
    "/etc/userdb": Compared(),
    "/usr/local/lib/userdb": Compared(),
    "/usr/lib/userdb": Compared(),
    "/etc/docker/daemon.json": Compared(),
    "/var/lib/docker{,/*.*}": Init("quickstart/inspect/unit/containers.py", '"PathExistsGlob"'),
    "/etc/binfmt.d": Compared(),
    "/usr/local/lib/binfmt.d": Compared(),
    "/usr/lib/binfmt.d": Compared(),
    "/etc/default/openvpn": Compared(),
    "/etc/openvpn/": Init("quickstart/inspect/unit/instances.py", '"PathExists"'),
    "/etc/openvpn/*.conf": Init("quickstart/inspect/unit/instances.py", '"openvpn": f"/etc/openvpn/'),
    "/etc/postgresql": Compared(),
    "/etc/postgresql/": Compared(),
    "/etc/postgresql/*/*/postgresql.conf": Init(
        "quickstart/inspect/unit/instances.py", '"postgresql": f"/etc/'
    ),
    "/usr/lib/postgresql": NoDecision("has the instance's program, without which it does not start"),
    "/etc/tor/torrc": Init("quickstart/inspect/unit/instances.py", '"tor": str(_TORRC)'),
    "/etc/tor/instances/": Init(
        "quickstart/inspect/unit/instances.py", "/etc/tor/instances/{instance}/torrc"
    ),
    "/etc/tor/instances/*/torrc": Init(
        "quickstart/inspect/unit/instances.py", "/etc/tor/instances/{instance}/torrc"
    ),
    "/etc/postfix/main.cf": Stated("postfix no longer names the instance"),
    "/usr/share/dbus-1": Stated("must stay absent", NEVER_STALE),
    "/usr/lib/systemd/systemd": Stated("After an upgrade of systemd to another release"),
    "/usr/lib/systemd/systemd-executor": Stated("After an upgrade of systemd to another release"),
    "/usr/lib/x86_64-linux-gnu/systemd": Stated("After an upgrade of systemd to another release"),
    # What the starter and init read in each boot.
    "/etc/passwd": Init(_USERS, "/etc/passwd"),
    "/etc/group": Init(_USERS, "/etc/group"),
    "/etc/hostname": Init(_SECOND, "/etc/hostname"),
    "/etc/default/locale": Init("quickstart/initramfs/starter/environment.c", "/etc/default/locale"),
    "/etc/locale.conf": Init("quickstart/initramfs/starter/environment.c", "/etc/locale.conf"),
    "/etc/machine-id": Init(_SECOND, "/etc/machine-id"),
    "/var/lib/dbus/machine-id": Init(_SECOND, "/var/lib/dbus/machine-id"),
    # Nothing is decided by what is there later.
    **dict.fromkeys(
        (
            *(
                "/bin",
                "/sbin",
                "/usr/bin",
                "/usr/sbin",
                "/usr/local/bin",
                "/usr/local/sbin",
                "/sbin/",
                "/usr/",
            ),
            *("/bin/true", "/usr/bin/true"),
        ),
        _COMMANDS,
    ),
    **dict.fromkeys(
        (
            *(
                "/boot",
                "/etc",
                "/lib",
                "/lib64",
                "/lib32",
                "/libx32",
                "/usr",
                "/usr/games",
                "/usr/lib",
                "/usr/lib32",
                "/usr/lib64",
            ),
            *("/usr/libexec", "/usr/libx32", "/usr/lib/x86_64-linux-gnu", "/usr/local", "/usr/local/lib"),
            *("/usr/share", "/lib/modules", "/usr/lib/modules", "/var", "/var/cache", "/var/lib", "/var/log"),
            *("/var/lock", "/var/run", "/var/run/", "/var/tmp", "/var/tmp/", "/var/tmp/systemd-private-"),
            "/var/log/quickstart.log",
        ),
        _NAMES_A_DIRECTORY,
    ),
    **dict.fromkeys(
        (
            *("/etc/", "/etc/mtab", "/etc/vconsole.conf", "/fastboot", "/forcefsck", "/forcequotacheck"),
            *("/var/lib/systemd/", "/var/lib/systemd/coredump/.#*", "/var/log/journal/"),
        ),
        _LISTED,
    ),
    **dict.fromkeys(
        (
            *("/etc/gshadow*", "/etc/security/opasswd", "/etc/shadow*", "/etc/ssh/ssh_host_*_key"),
            "/etc/ssl/private/**",
        ),
        _SECRETS,
    ),
    **dict.fromkeys(
        ("/etc/hosts", "/etc/ssh/ssh_host_*"),
        NoDecision("whether the application of the build opens it before it is ready"),
    ),
    "/var/lock/": NoDecision("a part of addresses of sockets"),
    **dict.fromkeys(
        ("/etc/alternatives", "/var/lib/dpkg", "/var/lib/dpkg/info", "/var/lib/dpkg/status"), _DPKG
    ),
    **dict.fromkeys(
        (
            *(
                "/etc/cron.*/*",
                "/etc/dhcp/dhclient-*-hooks.d/*",
                "/etc/logrotate.d/*",
                "/etc/network/if-*.d/*",
            ),
            "/etc/ppp/ip*.d/*",
        ),
        _BY_PATH,
    ),
}
