"""Find what a stock boot, which is the distribution's own boot, does before it starts a service. The boot sets up
mounts, kernel settings, the network and the packet filter.

An early start takes place before all of these steps. Init allows an early start as long as the configuration of these
steps has not changed since the build (docs/users/never-stale.md explains how init finds changes). The build refuses an
image with an enabled packet filter, because an application that starts early would be open to the network before the
filter is active.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.cloudinit import has_cloud_init
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.aliases import UnitNames
from quickstart.inspect.unit.files import (
    UNIT_PATHS,
    all_names,
    assignments,
    directives,
    drop_in_places,
    names_of,
    names_with_directories,
    unit_file,
    unit_files,
    unit_texts,
)
from quickstart.inspect.unit.hooks import HOOKS, OWN_HOOKS, OWN_NAME_SERVERS, OWN_RULES, RESOLVCONF
from quickstart.inspect.unit.linked import PULLING_DIRECTORIES, enabled_services, may_start
from quickstart.inspect.unit.order import owned_texts
from quickstart.inspect.unit.policies import (
    AUDIT_LINKS,
    AUDITORS,
    CREDENTIALS,
    EARLY_POLICY,
    IMA_POLICY,
    IPE_PLACES,
    MODULE_PLACES,
    TOMOYO_LOADER,
)
from quickstart.inspect.unit.pulled import started_of
from quickstart.inspect.unit.sysctl import ADMINISTRATORS, ADMINISTRATORS_UNITS, SERVICE, unpacked_files
from quickstart.inspect.unit.words import names_in

_OWN = PurePosixPath("/etc/systemd/system")
# Before systemd starts a service with default settings, it starts what these targets pull in (systemd.special(7)).
_EARLY_TARGETS = ("local-fs.target", "sysinit.target", "basic.target", "network-pre.target")
# The usual goals of a boot. Each package with a service adds a link to them, so only the drop-ins of these targets
# count.
_GOALS = ("multi-user.target", "graphical.target")
# sysctl.d(5). The packages' own files below /usr/lib are not listed, because each upgrade writes them again.
_KERNEL_FILES = ("/etc/sysctl.conf", str(IMA_POLICY), str(TOMOYO_LOADER))
# Where an administrator puts files of NAME.d. The packages' own ones are not listed, for the same reason.
_OWN_PLACES = ("/etc", "/usr/local/lib")
# cloud-init writes these files on an instance's first boot. That machine still starts early afterwards. Init checks
# its fstab.
_CLOUD_FILES = ("/etc/fstab", "/etc/network/interfaces")
_CLOUD_PLACES = ("/etc/network/interfaces.d", "/etc/systemd/network", "/etc/netplan", "/etc/udev/rules.d")
_MACHINE_FILES = (
    *("/etc/crypttab", "/etc/dhcp/dhclient.conf"),
    *("/etc/dhcpcd.conf", "/etc/udhcpc/default.script", "/etc/systemd/networkd.conf"),
    *map(str, (*OWN_HOOKS, *OWN_NAME_SERVERS)),
    *("/etc/default/networking", "/etc/rc.local", "/etc/modules"),
    # What dracut is to put into the image's own initramfs (dracut.conf(5)).
    "/etc/dracut.conf",
    # systemd.offline-updates(7): a boot that updates the machine does not start the application.
    *("/system-update", "/etc/system-update"),
    # Whoever removes this file wants cloud-init to run.
    "/etc/cloud/cloud-init.disabled",
    # Its bootcmd runs at each boot.
    "/etc/cloud/cloud.cfg",
    # An early start comes before the packages' own units of these names. With other commands, they may filter packets.
    *(f"/usr/lib/systemd/system/{name}.service" for name in ("ifup@", "networking", "systemd-networkd")),
)
# What is in these directories replaces directories of /usr and /etc, after an early start (systemd-sysext(8),
# systemd-confext(8)).
EXTENSIONS = (
    *("/etc/extensions", "/var/lib/extensions", "/usr/lib/extensions", "/usr/local/lib/extensions"),
    *("/var/lib/confexts", "/usr/lib/confexts", "/usr/local/lib/confexts"),
)
# The administrator's scripts for the image's own initramfs (initramfs-tools(7)). The packages' own scripts change
# with upgrades.
_INITRAMFS_SCRIPTS = tuple(
    f"/etc/initramfs-tools/scripts/{stage}"
    for stage in (
        "init-top",
        "init-premount",
        "local-top",
        "local-block",
        "local-premount",
        "local-bottom",
        "init-bottom",
    )
)
_DRACUT = "/etc/dracut.conf.d"
# overlayroot, bilibop-lockfs and fsprotect mount something else over the root volume, by scripts in the image's initramfs.
# A package that is installed later comes with its file.
ROOT_FILES = (
    "/etc/overlayroot.conf",
    "/etc/overlayroot.local.conf",
    "/etc/bilibop/bilibop.conf",
    "/etc/default/fsprotect",
)
# systemd.network(5), systemd.link(5)
OWN_NETWORKS = (PurePosixPath("/etc/systemd/network"), PurePosixPath("/usr/local/lib/systemd/network"))
_PACKAGES_NETWORKS = PurePosixPath("/usr/lib/systemd/network")
# hwclock(8): its third line says whether the hardware clock has the local time.
_CLOCK = PurePosixPath("/etc/adjtime")
# Packet filters that are enabled for multi-user.target, and not for one of the early targets.
_FILTERS = ("ferm", "firewalld", "ipset", "iptables", "netfilter-persistent", "nftables", "shorewall", "ufw")
_NETWORK_PRE = "network-pre.target"
# Like a filter, these units start before the network (systemd.special(7), network-pre.target), but they filter
# nothing.
_NO_FILTERS = ("cloud-", "systemd-")
# Debian with a desktop has some four hundred, with less than a MiB together.
_MOST_SERVICES = 2048
_MOST_BYTES = 16 << 20
# Looking up a file takes as long as reading this many bytes of text. Without this number, a drop-in of all services
# could be read any number of times.
_BYTES_OF_A_FILE = 512


def settling_files(root: ImageRoot) -> Iterator[PurePosixPath]:
    """The configuration files, existing or not, by which a boot prepares the machine for services."""
    yield from map(PurePosixPath, (*_KERNEL_FILES, *_MACHINE_FILES, *ROOT_FILES))
    yield from (directory / SERVICE for directory in ADMINISTRATORS_UNITS)
    yield from (_OWN / f"multi-user.target.wants/{name}.service" for name in (*AUDITORS, *_FILTERS))
    yield from AUDIT_LINKS
    # A resolvconf that is installed later writes /etc/resolv.conf in its own way.
    yield from (path for path in RESOLVCONF if root.resolve(path).canonical is None)
    yield from _filters_links(root)
    yield from sorted(unpacked_files(root))
    if not has_cloud_init(root):
        yield from map(PurePosixPath, _CLOUD_FILES)


def settling_places(root: ImageRoot) -> Iterator[PurePosixPath]:
    """The directories, existing or not, whose entries are configuration files by which a boot prepares the
    machine.
    """
    yield from map(
        PurePosixPath, (*ADMINISTRATORS, *MODULE_PLACES, *EXTENSIONS, *_INITRAMFS_SCRIPTS, _DRACUT)
    )
    # They load modules and make users before a service starts.
    yield from (
        PurePosixPath(place) / f"{name}.d" for place in _OWN_PLACES for name in ("modules-load", "sysusers")
    )
    # From the templates, cloud-init may write /etc/hosts again at each boot (manage_etc_hosts).
    yield from map(PurePosixPath, ("/etc/cloud/cloud.cfg.d", "/etc/cloud/handlers", "/etc/cloud/templates"))
    # The rules in /etc are not listed here, because cloud-init may also write them.
    yield from OWN_RULES[1:]
    yield EARLY_POLICY
    yield from (*IPE_PLACES, *CREDENTIALS)
    yield from HOOKS
    # The administrator's own units and masks. Such a unit may order itself before a service, and may be enabled for
    # any target.
    yield from ADMINISTRATORS_UNITS
    names = [name for each in (SERVICE, *_EARLY_TARGETS, *_GOALS) for name in drop_in_places(root, each)]
    names += [f"{target}.{kind}" for target in _EARLY_TARGETS for kind in PULLING_DIRECTORIES]
    yield from (directory / name for directory in ADMINISTRATORS_UNITS for name in dict.fromkeys(names))
    yield from map(PurePosixPath, ("/etc/systemd/networkd.conf.d", "/usr/local/lib/systemd/networkd.conf.d"))
    yield PurePosixPath("/usr/local/lib/systemd/network")
    yield from _network_drop_ins(root)
    if not has_cloud_init(root):
        yield from map(PurePosixPath, _CLOUD_PLACES)


def _network_drop_ins(root: ImageRoot) -> Iterator[PurePosixPath]:
    """The administrator's directories, existing or not, with drop-ins for the .network and .link files of the image.
    `networkctl edit` makes such drop-ins (networkctl(1)).
    """
    for own in OWN_NETWORKS:
        for kind in ("network", "link"):
            yield from root.glob(own / f"*.{kind}.d")
            for place in (*OWN_NETWORKS, _PACKAGES_NETWORKS):
                yield from (own / f"{path.name}.d" for path in root.glob(place / f"*.{kind}"))


def refuse_filters(root: ImageRoot, unit: str) -> None:
    """Raise UnsupportedUnitError when an enabled service starts before the network, as a packet filter does. An
    application that starts early would answer requests before such a service is active.
    """
    enabled = {name for name in enabled_services(root) if _may_filter(name)}
    found = [name for name, _ in _before_the_network(root, enabled, all_are_there=True)]
    # A service that another unit pulls in by its own directives is in no directory of links.
    named = {name for _, names, text in owned_texts(root) if _may_name_it(text) for name in names} - enabled
    may = _before_the_network(root, {name for name in named if _may_filter(name) and may_start(root, name)})
    for name in (*found, *sorted(started_of(root, (name for name, _ in may)))):
        raise UnsupportedUnitError(
            f"{unit} cannot be started early: {name} is enabled and goes before the network, as a packet filter does",
            hint="disable that service in the image, and filter outside of the machine",
        )


def _before_the_network(
    root: ImageRoot, names: set[str], *, all_are_there: bool = False
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The services in ``names`` that are ordered before the network by their own Before=, each with the texts
    of its files.

    The result does not have a service that is masked or has no file. With ``all_are_there``, the function raises
    UnsupportedUnitError for such a service. It also raises UnsupportedUnitError when there are more services or more
    text than the limits allow. The text has a limit because many names may be links to one long file.
    """
    if len(names) > _MOST_SERVICES:
        raise UnsupportedUnitError(
            f"the image has {len(names)} services; up to {_MOST_SERVICES} are looked at"
        )
    left_bytes = _MOST_BYTES
    said = {owner for _, (owner, *_), text in owned_texts(root) if _may_name_it(text)}
    known = all_names(root, ".service")
    for name in sorted(names):
        try:
            if not _has_texts_of(root, name, said, known):
                # The unit must also exist in this case.
                unit_file(root, name)
                continue
            files = unit_files(root, name)
        except UnsupportedUnitError:
            if all_are_there:
                raise
            # A change of this unit's files is noticed in another way.
            continue
        left_bytes -= sum(root.host(file).stat().st_size + _BYTES_OF_A_FILE for file in files)
        if left_bytes < 0:
            raise UnsupportedUnitError(
                f"the image's services and their drop-ins have more than {_MOST_BYTES} bytes, up to {name}"
            )
        texts = unit_texts(root, name)
        # An empty Before= takes nothing back.
        before = (value for key, value in assignments(texts, "[Unit]") if key == "Before")
        if any(_NETWORK_PRE in names_in(name, value) for value in before):
            yield name, texts


def _may_name_it(text: str) -> bool:
    """Whether a unit's text may order the unit before the network, by name or with a specifier."""
    return _NETWORK_PRE in text or ("Before" in text and "%" in text)


def _has_texts_of(root: ImageRoot, unit: str, owners: Collection[str], known: UnitNames) -> bool:
    """Whether ``owners`` has a name under which files or drop-ins apply to ``unit``. Such a name is that of the unit,
    of an alias or of the template. It may also be a prefix of the unit's name (``app-.service``) or the unit's type
    (``service``).
    """
    return any(
        name in owners
        for each in names_of(root, unit, known)
        for name in (each, *names_with_directories(each))
    )


def _filters_links(root: ImageRoot) -> Iterator[PurePosixPath]:
    """The paths of the links that `systemctl enable` would make for those services of the image that start
    before the network.
    """
    names = {path.name for place in UNIT_PATHS for path in root.glob(PurePosixPath(place) / "*.service")}
    ours = {name for name in names if not name.startswith(_NO_FILTERS)}
    for name, texts in _before_the_network(root, ours):
        install = directives(assignments(texts, "[Install]"))
        for kind, key in zip(PULLING_DIRECTORIES, ("WantedBy", "RequiredBy", "UpheldBy"), strict=True):
            targets = " ".join(install.get(key, ())).split()
            yield from (_OWN / f"{target}.{kind}" / name for target in targets if "/" not in target)


def refuse_local_clock(root: ImageRoot, unit: str) -> None:
    """Raise UnsupportedUnitError when the hardware clock has the local time. systemd corrects the kernel's clock when
    systemd becomes PID 1. So the clock would be hours off for an application that starts earlier. The hardware clock
    counts as local when one of the first three lines of /etc/adjtime has the word LOCAL. systemd reads only the third
    line. But systemd also ends a line at a carriage return, so its third line may be part of an earlier line.

    If the word LOCAL is added to the file later, the machine boots the stock way, because init's script
    ``settings-files`` checks /etc/adjtime by the same rule at each boot. The script does not follow links, so the
    machine also boots the stock way if a link is in place of the file.
    """
    if root.link_target(_CLOCK) is not None:
        raise UnsupportedUnitError(
            f"{unit} cannot be started early: {_CLOCK} is a link, and init would not find what it leads to",
            hint=f"make {_CLOCK} a file",
        )
    file = root.resolve(_CLOCK).canonical
    text = root.read_text(file) if file is not None and root.host(file).is_file() else ""
    if any("LOCAL" in line for line in text.split("\n")[:3]):
        raise UnsupportedUnitError(
            f"{unit} cannot be started early: {_CLOCK} says that the hardware clock has the local time",
            hint="let the hardware clock have UTC, and write this into the file",
        )


def refuse_split_usr(root: ImageRoot, unit: str) -> None:
    """Raise UnsupportedUnitError when /lib is a directory instead of a link to /usr/lib. QuickStart's unit reader would
    not see the units in /lib/systemd/system.
    """
    lib = root.resolve(PurePosixPath("/lib/systemd/system")).canonical
    if lib is not None and lib != PurePosixPath("/usr/lib/systemd/system"):
        raise UnsupportedUnitError(
            f"{unit} cannot be started early: /lib/systemd/system is not in /usr/lib",
            hint="install usrmerge in the image",
        )


def _may_filter(unit: str) -> bool:
    return not unit.startswith(_NO_FILTERS)
