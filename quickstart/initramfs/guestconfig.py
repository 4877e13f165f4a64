"""Define the configuration of init for one image, and write it as texts for init's scripts. The functions are pure."""

from __future__ import annotations

import enum
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from quickstart.initramfs.facts import NOTHING, Watched
from quickstart.inspect.unit.before import ROOT_FILES
from quickstart.inspect.unit.bus import is_bus
from quickstart.inspect.unit.dhcpconf import NOTHING_SENT, Sent
from quickstart.inspect.unit.model import UnitStart
from quickstart.inspect.unit.sysctl import HiddenSetting, KernelSetting
from quickstart.model import Readiness
from quickstart.model.superblock import Superblock
from quickstart.model.words import Early, ReadyKind

# What a shell takes for one word. A line of fstab for another place leads to a stock boot.
_PLAIN_PLACE = re.compile(r"[A-Za-z0-9/_.-]+")


class Served(enum.Enum):
    """Where the application's files come from. An artefact (the result of `quickstart build`) always has the value
    FAST. The other values exist only for configurations of the bench.
    """

    FAST = "/fast"
    VOLUME = "the root volume"
    MEMORY = "memory"


class HandOff(enum.Enum):
    """What init does once the application is ready. The value of each member is a word in init's configuration."""

    STAY = "no"
    """Init stays PID 1 and runs only the application, like the minimal system of the paper on which QuickStart
    is based (README.md).
    """
    KEEP = "keep"
    """The distribution's init takes over; /fast stays in memory."""
    RELEASE = "release"
    """As KEEP, but the memory of /fast is freed once the machine has settled."""


@dataclass(frozen=True, kw_only=True)
class Cards:
    """Network cards, as patterns of MAC addresses. Some files of the image give names to cards by their MAC addresses
    (udev(7), systemd.link(5)). ``own`` are the cards that get the same name as the card of the traced boot. If the
    card of the traced boot is not one of these cards, ``own`` is empty. ``others`` are the cards that get another
    name.
    """

    own: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


class Naming(enum.Enum):
    """Where init may find a host name for a machine that has no host name in its own configuration. The value of each
    member is a value of the variable NAMING in init's configuration. The function take_from_lease in
    initramfs/init/second reads this variable.
    """

    NOWHERE = ""
    LEASE = "lease"
    """From the DHCP lease, if the lease has a host name."""
    CLIENT = "client"
    """From the configuration of the image's DHCP client."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """What init gives to a machine before it starts the application, such as the machine-id, the name servers and the
    network. pack/given.py finds out which of these matter to the application before it is ready.

    ``machine_id`` says that the application reads the machine-id. In this case, init writes a machine-id, in the same
    way as systemd, if the machine has none yet. ``name_servers`` says that the application reads the name servers. In
    this case, init writes the name servers of its DHCP lease before it starts the application. ``network`` says that a
    stock boot (the distribution's own boot) waits for the network. In this case, init waits for its DHCP lease.

    ``udev`` says that the application looks for udev's directory of devices. In this case, init makes the directory.
    ``naming`` says where init may find a host name for a machine without a name. ``cards`` says which network cards
    have which name.

    With ``name_servers`` or ``network``, init writes the lease's name servers to /etc/resolv.conf before it starts the
    application. Init writes this file only if the machine's own DHCP client would write the name servers to the file,
    too (see take_resolver in initramfs/init/second).
    """

    machine_id: bool = False
    name_servers: bool = False
    network: bool = False
    udev: bool = False
    naming: Naming = Naming.NOWHERE
    cards: Cards = Cards()


@dataclass(frozen=True, kw_only=True)
class GuestConfig:
    """The configuration of init for one image. ``build`` is the build ID, which both parts of the initramfs contain.
    ``ready`` is the readiness request of the profile. ``network`` is the image's network service, or empty when init
    does not hand the machine over to systemd (see takeover.network_service). ``early`` says which machines start the
    application early (see cloudinit.early_start). ``user_data`` are the SHA-256 sums of the user data for cloud-init
    that do not matter to the application. ``ec2_alone`` says whether cloud-init asks for EC2's metadata service in any
    machine (see cloudinit.asks_ec2_anywhere). ``image`` is the type of the file system image in part B of the initramfs, or
    empty when part B has plain files. ``bound`` are the packed files that are bind-mounted over the volume's files, by
    the name of the unit (see serving.bound_files). ``watched`` has the paths that init compares with the volume in
    addition to the packed files.

    ``settings`` are the kernel settings in the image's sysctl.d(5) and tmpfiles.d(5). ``content_sums`` are the
    checksums of the packages' files that contain such kernel settings (see sysctl.content_sums). ``confined`` are the
    paths to which the image's AppArmor profiles attach (see apparmor.confined_paths). ``raises_nr_open`` says whether
    the image's systemd raises fs.nr_open when it starts, and ``stops_core_dumps`` whether it sets kernel.core_pattern.

    ``tmp_options`` are the option strings for the tmpfs on /tmp. Init tries these strings in order until a mount
    succeeds (inspect/unit/mounted.py). ``shm_options`` and ``proc_options`` are further mount options for /dev/shm and
    /proc. ``nologin`` says whether ordinary users cannot log in during the boot (pam_nologin(8)). ``cloud_init`` says
    whether the image has cloud-init, which writes a part of a machine's configuration, such as the network's.

    ``resolver`` says whether the image's DHCP client writes /etc/resolv.conf. ``leaves_ipv6`` says whether init leaves
    the card's IPv6 addresses to networkd or dhcpcd. ``client`` is the name of the image's DHCP client if this client
    sends a client identifier, and otherwise empty (see dhcpclient.client_with_identifier). ``metric`` is the metric of
    the default route that this client sets. ``sent`` says which options the image's own DHCP client sends (see
    dhcpclient.sent_by_client). ``given`` says what the application needs before it is ready, such as the machine-id and
    the name servers. ``is_disabled`` says whether somebody has called `quickstart disable` in the machine whose
    disk is the image. ``late_places`` are the places at and below /boot and /efi at which systemd may mount a file system
    after the early start (see mounted.late_places).
    """

    build: str
    superblock: Superblock
    root_fstype: str
    root_flags: str
    root_options: str
    interface: str
    unit: UnitStart
    ready: Readiness
    hand_off: HandOff
    network: str
    early: Early = Early.ALWAYS
    user_data: tuple[str, ...] = ()
    ec2_alone: bool = False
    served: Served = Served.FAST
    bound: Mapping[str, tuple[PurePosixPath, ...]] = field(default_factory=dict)
    image: str = ""
    watched: Watched = NOTHING
    settings: tuple[KernelSetting, ...] = ()
    content_sums: bytes = b""
    confined: bytes = b""
    raises_nr_open: bool = False
    stops_core_dumps: bool = False
    tmp_options: tuple[str, ...] = ()
    shm_options: str = ""
    proc_options: str = ""
    nologin: bool = False
    cloud_init: bool = False
    resolver: bool = False
    leaves_ipv6: bool = False
    client: str = ""
    metric: str = ""
    sent: Sent = NOTHING_SENT
    given: Given = field(default_factory=Given)
    is_disabled: bool = False
    late_places: tuple[PurePosixPath, ...] = ()


def late_binds_text(unit: UnitStart) -> str:
    """The late binds of ``unit`` as a text for the script `adopt`. A late bind is a bind mount that must wait until
    systemd runs (inspect.unit.model.LateBind). Each line has four words separated by tabs: `ro` or `rw`, `required` or
    `optional`, the source, and the target.
    """
    rows = (
        (
            "ro" if each.read_only else "rw",
            "required" if each.required else "optional",
            each.source,
            each.target,
        )
        for each in unit.late_binds
    )
    return "".join("\t".join(row) + "\n" for row in rows)


def settings_text(settings: Iterable[KernelSetting]) -> str:
    """The kernel settings as shell text for init's script `second`. Each setting has a line `setting KEY VALUE
    [SPARED…]`. KEY has the form of the field ``key`` of the class KernelSetting (inspect/unit/sysctl.py), and may be a
    pattern. SPARED are paths that match KEY, but that the setting does not change. The settings of a file that is not
    world-readable are not in the text. Instead of these settings, the text has one line `settings_of PATH` for the
    file.
    """
    lines: dict[str, None] = {}
    for each in settings:
        if isinstance(each, HiddenSetting):
            lines.setdefault(". $Q/settings-of")
            lines.setdefault(shlex.join(("settings_of", each.file)))
        else:
            lines.setdefault(shlex.join(("setting", each.key, each.value, *each.spared)))
    return "".join(f"{line}\n" for line in lines)


def config_text(config: GuestConfig) -> str:
    """The configuration of init, as assignments of shell variables."""
    values = {
        "BUILD": config.build,
        "ROOT_UUID": config.superblock.uuid,
        "ROOT_CREATED": str(config.superblock.created_s),
        "ROOT_FSTYPE": config.root_fstype,
        "OWN_FLAGS": config.root_flags,
        "ROOT_OPTIONS": config.root_options,
        # Init looks for the link of `quickstart disable` only on a volume that differs from the build's.
        "BUILD_MOUNTS": "" if config.is_disabled else str(config.superblock.mount_count),
        "BUILD_WTIME": str(config.superblock.write_time_s),
        "INTERFACE": config.interface,
        **_unit_values(config.unit),
        **_companion_sockets(config.unit),
        # The directories of the companions, by number, in the order in which they start (docs/adr/0016-stacks.md).
        "COMPANIONS": " ".join(str(number + 1) for number in range(len(config.unit.companions))),
        "COMPANION_UNITS": " ".join(each.unit for each in config.unit.companions),
        "GROUPS_OF_ALL": " ".join(each.group for each in config.unit.all_units),
        "SERVED": config.served.value,
        "HAND_OFF": config.hand_off.value,
        "NETWORK": config.network,
        "EARLY": config.early,
        "USER_DATA": " ".join(config.user_data),
        "LATE_PLACES": " ".join(
            each for each in map(str, config.late_places) if _PLAIN_PLACE.fullmatch(each)
        ),
        "EC2_ALONE": "yes" if config.ec2_alone else "",
        "IMAGE": config.image,
        "RAISES_NR_OPEN": "yes" if config.raises_nr_open else "",
        "STOPS_CORE_DUMPS": "yes" if config.stops_core_dumps else "",
        "TMP_OPTIONS": " ".join(config.tmp_options),
        "SHM_OPTIONS": config.shm_options,
        "PROC_OPTIONS": config.proc_options,
        "CLOUD_INIT": "yes" if config.cloud_init else "",
        "RESOLVER": "yes" if config.resolver else "",
        "CLIENT": config.client,
        "METRIC": config.metric,
        "LEAVES_IPV6": "yes" if config.leaves_ipv6 else "",
        **_given_values(config.given),
        "NAME_RULE": config.sent.name.rule.value,
        "FIXED_NAME": config.sent.name.fixed,
        "ROUTES": "yes" if config.sent.routes else "",
        "SEARCH": config.sent.search.value,
        "NOLOGIN": "yes" if config.nologin else "",
        "ROOT_FILES": " ".join(path.lstrip("/") for path in ROOT_FILES),
        **_ready_values(config.ready),
    }
    return _assignments(values)


def _given_values(given: Given) -> dict[str, str]:
    """What init gives to the machine before it starts the application."""
    return {
        "READS_MACHINE_ID": "yes" if given.machine_id else "",
        "READS_NAME_SERVERS": "yes" if given.name_servers else "",
        "USES_NETWORK": "yes" if given.network else "",
        # udev(7); a stock boot has it from the distribution's initramfs on.
        "UDEV_DATA": "/run/udev/data" if given.udev else "",
        "OWN_CARDS": " ".join(given.cards.own),
        "OTHER_CARDS": " ".join(given.cards.others),
        "NAMING": given.naming.value,
    }


def _ready_values(ready: Readiness) -> dict[str, str]:
    """How init finds out that the application is ready."""
    return {
        # As in /proc/net/tcp (proc(5)).
        "READY_PORT": f"{ready.port:04X}" if ready.port else "",
        # `caretaker ask` has no other request than HTTP's.
        "READY_PATH": ready.path if ready.kind is ReadyKind.HTTP else "",
        "READY_STATUS": str(ready.status),
        "READY_ADDRESS": "loopback" if ready.loopback else "external",
    }


def unit_config_text(unit: UnitStart) -> str:
    """The configuration of one companion, as assignments of shell variables. A companion is a service of the profile
    that starts early but does not answer the readiness request.
    """
    # Init watches the bus until systemd is connected to it. The shell that reads this already has the settings of the
    # last unit.
    return _assignments({**_unit_values(unit), **({"BUS": "yes", "ON_BUS": ""} if is_bus(unit) else {})})


def _unit_values(unit: UnitStart) -> Mapping[str, str]:
    return {
        "UNIT": unit.unit,
        "UNIT_TYPE": unit.type,
        "UNIT_GROUP": unit.group,
        "PID_FILE": str(unit.pid_file or ""),
        # PID 1 holds the sockets as descriptors from 3 on, journald's last (docs/internals/sockets.md).
        "SOCKETS": str(len(unit.sockets)),
        "JOURNAL_SOCKETS": str(len(unit.journal_sockets)),
        "SOCKET_UNITS": " ".join(dict.fromkeys(socket.unit for socket in unit.sockets)),
        # These sockets stay in /run at a fallback, because PID 1 holds them for the stock init.
        "JOURNAL_PATHS": " ".join(str(each.path) for each in unit.journal_sockets if each.path),
        **({"ON_BUS": "yes"} if unit.on_bus else {}),
    }


def _companion_sockets(unit: UnitStart) -> Mapping[str, str]:
    """The variable of init's configuration that says how many sockets each companion gets. The result is empty when no
    companion gets a socket.
    """
    if not any(each.sockets for each in unit.companions):
        return {}
    return {"COMPANION_SOCKETS": " ".join(str(len(each.sockets)) for each in unit.companions)}


def _assignments(values: Mapping[str, str]) -> str:
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
