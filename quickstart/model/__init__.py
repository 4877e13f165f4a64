"""Frozen dataclasses that the stages (steps of a build) pass to each other (see ARCHITECTURE.md).

Of QuickStart, this module imports only other modules of the package ``model``. Guest paths are absolute
``PurePosixPath``, and host paths are ``Path``. Sizes are in bytes, and times are integers in nanoseconds.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from quickstart.model.reasons import Reason
from quickstart.model.residency import NO_DATA, DataPrefetch, Resident
from quickstart.model.started import NOTHING_CHANGED, NOTHING_LOADED, Changed, Loaded, Peer
from quickstart.model.superblock import Superblock
from quickstart.model.words import DiskFormat, Early, KernelOptions, Payload, ReadyKind, Target

MIB = 1024 * 1024
# The time of everything in an image that has no time of its own (2014-05-13 16:53:20 UTC). These are the inodes of a
# fresh volume, and the files that were written while the image was made.
IMAGE_TIME_S = 1_400_000_000


# ---------------------------------------------------------------- profile
@dataclass(frozen=True, kw_only=True)
class Readiness:
    """The readiness request of a profile. The guest is *ready* at the first correct answer to this request.

    ``path`` and ``status`` are used for a request of the kind HTTP, ``account`` for MYSQL, and ``command`` for EXEC.
    The request goes to the guest's external address, or to 127.0.0.1 if ``loopback`` is true.
    """

    kind: ReadyKind
    port: int
    path: str
    status: int
    command: str
    timeout_s: int
    loopback: bool = False
    account: str = ""


@dataclass(frozen=True)
class FileRules:
    """Globs for guest paths. ``*`` matches within one name. ``**`` may also match a path of several names (see
    inspect/globs.py). Files that match ``data`` are packed only if ``include`` names them.
    """

    include: tuple[str, ...]
    exclude: tuple[str, ...]
    data: tuple[str, ...]
    secrets: tuple[str, ...]


@dataclass(frozen=True)
class RootBudget:
    """The largest number of read requests, and of bytes read, that `quickstart verify` allows on the root
    volume before ready.
    """

    requests: int = 80
    read_bytes: int = 4_000_000


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One application. ``quickstart.profile`` has validated all values.

    ``unit`` is the unit that answers the readiness request. ``companions`` are the other units of a stack
    (docs/users/stacks.md). ``user_data`` are SHA-256 sums of user data for cloud-init. With ``early = "ask"``, a first
    boot with such user data may start early (docs/users/cloud-init.md).
    """

    name: str
    description: str
    suite: str
    packages: tuple[str, ...]
    unit: str
    run_start_pre: bool
    early: Early
    ready: Readiness
    files: FileRules
    memory_mib: int
    budget_mib: int
    disk_mib: int
    root_budget: RootBudget = RootBudget()
    payload: Payload = Payload.CPIO
    kernel_options: KernelOptions = KernelOptions.BOOT
    companions: tuple[str, ...] = ()
    data_prefetch: DataPrefetch = NO_DATA
    user_data: tuple[str, ...] = ()

    @property
    def units(self) -> tuple[str, ...]:
        """All units that start early, in the order of the profile."""
        return (*self.companions, self.unit)


# ---------------------------------------------------------------- reference image
@dataclass(frozen=True, kw_only=True)
class ReferenceImage:
    """The ordinary root file system and kernel that are booted, traced and later shipped.

    ``tree`` is the root directory, on the host. ``image_hash`` is the SHA-256 over every path, mode, owner, attribute,
    modification time and content in ``tree``. ``kernel`` and ``initrd`` are files in ``tree``. The volume gets the UUID
    and label that the tree's fstab requires. ``origin`` names the source of the image as a pair: ``debootstrap`` with
    the recipe's key, ``directory`` with the directory's hash, or ``tar``, ``disk`` or ``image`` with the file's
    SHA-256.
    """

    tree: Path
    image_hash: str
    kernel: Path
    initrd: Path
    kernel_version: str
    volume_uuid: str
    volume_label: str
    origin: tuple[str, str]


# ---------------------------------------------------------------- trace
class Op(enum.Enum):
    """The kind of a process's action on a path. ``MAP`` is an executable mapping."""

    EXEC = "exec"
    MAP = "map"
    OPEN = "open"
    WRITE = "write"
    LOOKUP = "lookup"
    LIST = "list"


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """The first action of the kind ``op`` by a program of the unit on ``path``, which is absolute. ``error`` is
    the errno's name, or None.

    ``line`` is the number of the line in strace's log, counted from 1. ``pid`` is the process ID in the guest.
    ``program`` is the name of the last program that the process executed. ``made`` says that, before this action, the
    boot had made, changed or removed the file at ``path``, so ``path`` may differ from the image. ``real`` is the
    kernel's path of the opened file, or None if this path equals ``path``. ``bare`` says that the process does not have
    the environment that systemd gave to the unit, so PATH and LD_LIBRARY_PATH do not lead the process to /fast.
    """

    line: int
    pid: int
    program: str
    op: Op
    path: PurePosixPath
    error: str | None
    made: bool = False
    real: PurePosixPath | None = None
    bare: bool = False


@dataclass(frozen=True)
class Mapped:
    """A file that a process of the unit had mapped for execution when the guest was ready (/proc/PID/maps)."""

    pid: int
    program: str
    path: PurePosixPath


@dataclass(frozen=True)
class NetworkFacts:
    """The external interface, as the reference boot's DHCP client and udev configured it."""

    interface: str
    mac: str
    address: str


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The files that the unit's programs used in a reference boot, and further facts about this boot. ``events`` are
    the actions of the unit's programs in the order of strace's log, without duplicates. ``processes`` is the number of
    the unit's processes. ``blind`` names the programs that set up an io_uring. strace may not see which files these
    programs use. ``mapped`` are the files that were mapped for execution at ready. ``ldd`` maps an ELF file to the
    libraries that ldd named for this file.

    ``modules_before`` are the kernel modules that were loaded when PID 1 began, and ``modules`` the kernel modules that
    were loaded at ready. ``loaded`` has the units, the mounted root and the network at ready. ``resident`` has the
    parts of large files that were in the page cache at ready. ``first_reads`` are the volume's ranges (offset, length)
    that were read between ready and the end of the profile's command ``first_requests``. The class UnitLog in
    trace/collect.py describes ``uses_network``, ``changed`` and ``peers``. ``trace_hash`` is the SHA-256 of the logs.
    """

    events: tuple[Event, ...]
    processes: int
    blind: tuple[str, ...]
    mapped: tuple[Mapped, ...]
    ldd: Mapping[PurePosixPath, tuple[PurePosixPath, ...]]
    modules_before: tuple[str, ...]
    modules: tuple[str, ...]
    network: NetworkFacts
    trace_hash: str
    ready_uptime_ns: int
    log_lines: int
    resident: tuple[Resident, ...] = ()
    loaded: Loaded = NOTHING_LOADED
    uses_network: bool = False
    changed: Changed = NOTHING_CHANGED
    peers: tuple[Peer, ...] = ()
    first_reads: tuple[tuple[int, int], ...] = ()


# ---------------------------------------------------------------- start set
class FileKind(enum.Enum):
    """The kind of a file of the start set. ``LEFT`` is a regular file or a symbolic link that stays on the root
    volume. In the archive, a symbolic link to the volume's path takes the place of this file. When the file
    that stays is itself a link, ``StartFile.target`` is that link's target.
    """

    FILE = "file"
    SYMLINK = "symlink"
    DIRECTORY = "directory"
    LEFT = "left"


@dataclass(frozen=True, kw_only=True)
class StartFile:
    """The facts about a file of the start set in the image. ``path`` is the file's canonical guest path. ``package`` is
    the package that contains the file, or empty.

    For a hard link, ``hard_link_to`` is the first path of the same file, or None if ``path`` is the first.
    ``seen_in`` is the number of traces in which a process of the unit used the file. ``seen_in`` is 0 for a
    file that only other files need.
    """

    path: PurePosixPath
    kind: FileKind
    mode: int
    size_bytes: int
    mtime_s: int
    ctime_s: int
    target: str
    interpreter: str
    reasons: tuple[Reason, ...]
    seen_in: int = 0
    package: str = ""
    hard_link_to: PurePosixPath | None = None


@dataclass(frozen=True)
class Exclusion:
    """A traced file that is not packed, and the rule that excludes it."""

    path: PurePosixPath
    rule: str


@dataclass(frozen=True)
class StartSet:
    """The files that the application needs to become ready, sorted by path, and the excluded files.
    ``traces`` is the number of traces from which the set was computed.
    """

    files: tuple[StartFile, ...]
    excluded: tuple[Exclusion, ...]
    traces: int = 1

    @property
    def size_bytes(self) -> int:
        files = (file for file in self.files if file.kind is FileKind.FILE and not file.hard_link_to)
        return sum(file.size_bytes for file in files)

    @property
    def regular_files(self) -> int:
        return sum(1 for file in self.files if file.kind is FileKind.FILE)


# ---------------------------------------------------------------- initramfs and artefact
@dataclass(frozen=True, kw_only=True)
class Initramfs:
    """Our initramfs, in the form in which it is stored. It consists of part A (init, BusyBox, modules) and part B
    (the start set). Both parts are newc archives, possibly compressed.
    """

    path: Path
    size_bytes: int
    part_a_bytes: int
    part_b_bytes: int
    unpacked_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Artefact:
    """An artefact, the directory OUT: the root disk, the kernel, our initramfs, the stock initramfs and
    ``manifest.json`` (docs/users/artefact.md).

    ``superblock`` is the root disk's superblock as the build wrote it. ``uuid`` is the machine's UUID, or
    empty. ``cmdline`` is the kernel command line for our initramfs, with our kernel options.
    ``stock_cmdline`` is the command line for ``stock_initrd``. The root volume begins at byte ``root_at_bytes`` of
    ``disk``.
    """

    directory: Path
    profile_name: str
    ready: Readiness
    disk: Path
    disk_format: DiskFormat
    superblock: Superblock
    kernel: Path
    initramfs: Path
    stock_initrd: Path
    cmdline: str
    stock_cmdline: str
    memory_mib: int
    mac: str
    build_key: str
    initramfs_bytes: int
    start_set_files: int
    start_set_bytes: int
    cloud_init: bool = False
    early: Early = Early.ALWAYS
    uuid: str = ""
    file_bytes: tuple[tuple[Path, int], ...] = ()
    target: Target = Target.QEMU
    root_at_bytes: int = 0


# ---------------------------------------------------------------- launch
class Network(enum.Enum):
    """Whether a guest can reach other machines over its network. With an open network, the guest can reach everything
    that the host can reach, including the host's loopback. With a closed network, the guest can reach nothing. The
    guest still gets an address by DHCP, and the host reaches the forwarded port.
    """

    CLOSED = "closed"
    OPEN = "open"


@dataclass(frozen=True)
class Beacon:
    """The first message of the guest after its external network address exists (section 4.1 of the paper)."""

    uptime_ns: int
    interface: str
    address: str
    received_ns: int


@dataclass(frozen=True)
class ReadyStamp:
    """The first correct answer to the readiness request. ``uptime_ns`` is the guest's uptime at this moment, and
    ``received_ns`` is the time on the client's clock when the guest's message about the answer arrived.
    """

    uptime_ns: int
    answer: str
    received_ns: int


@dataclass(frozen=True)
class RootIo:
    """The requests that reached the root volume, as the host counted them."""

    reads: int
    read_bytes: int
    writes: int
    write_bytes: int


@dataclass(frozen=True)
class Counters:
    """The guest's counters when the guest was ready. ``tsc`` is the CPU's time stamp counter at the uptime
    ``uptime_ns``.

    ``text`` has the first line of /proc/stat, and then /proc/diskstats.
    """

    uptime_ns: int
    tsc: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Readied:
    """The facts about a launch whose guest became ready."""

    launch_ns: int
    beacon: Beacon
    ready: ReadyStamp
    root_io: RootIo
    counters: Counters
