"""The data classes of the bench. The classes describe the cells of a matrix, the measurements in each cell, and the
versioned document that contains the cells and the measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

SCHEMA = 5
# Earlier versions wrote these schemas. They are still read, and fields that they do not have are empty.
OLDER_SCHEMAS = (1, 2, 3, 4)
CONFIGURATIONS = ("standard", "standard-tuned", "minimal", "ramboot", "quickstart")
# These configurations boot the distribution's own initramfs and init.
STOCK_CONFIGURATIONS = ("standard", "standard-tuned")
# The kernel's command lines, by the values of kerneloptions.KernelOptions: the distribution's own line, the line of
# `build`, and the experimental set.
COMMAND_LINES = ("stock", "boot", "ours")
# The command line of an artefact, and the names in reports for the lines that are not the distribution's.
BUILT = "boot"
LINE_NAMES: Mapping[str, str] = {
    BUILT: "the kernel options of a build",
    "ours": "our experimental kernel options",
}
# The storages, from the fastest to the slowest. Each has its model in bench/storage.
STORAGES = ("local", "nfs-cached", "ebs-warm", "hdd", "ebs-cold", "nfs-100m")
CLOCKS = ("virtual", "kvm", "wall", "ec2", "ec2-emulated")
# The client's clock, with machines in EC2 or in an emulator of EC2. Such a machine is a disk that boots by itself.
CLOUD_CLOCKS = ("ec2", "ec2-emulated")
_CLOUDS = {"ec2": "EC2", "ec2-emulated": "emulated EC2"}
# A fresh volume of a snapshot, as a machine in EC2 has it.
CLOUD_STORAGE = "ebs-cold"
DELIVERIES = ("fast", "overlay")
# Forms of quickstart's initramfs (docs/internals/payload.md).
PAYLOADS = ("cpio", "gzip", "lz4", "zstd", "squashfs")
FETCHES = ("boot-loader", "read-ahead")
SIZES = ("small", "medium")
# What starts the boot loader of a disk, by the values of model.words.Firmware.
FIRMWARES = ("bios", "uefi")
# The ways to boot a disk that boots by itself: by the stock entry of its boot loader, and by ours.
DISK_CONFIGURATIONS = ("standard", "quickstart")
# How several machines are launched from one volume.
PATTERNS = ("single", "one-by-one", "staggered", "burst")
INSTANCES_MAX = 16
# The limit for all cells of a plan together. At a minute each, this many runs would take ten weeks.
RUNS_MAX = 100_000


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a matrix, which is one combination of the things that the bench varies. Except for ``profile``, the
    value of each text field is one of the words that are defined above in this module.

    ``payload`` is the form of quickstart's initramfs, and ``delivery`` is the way in which the start set reaches the
    application. An empty ``payload`` or ``delivery`` means the default of `build`. The bench launches ``instances``
    machines from one volume, in the launch pattern ``pattern``. Staggered launches are ``stagger_ms`` apart.

    With ``firmware``, the machine boots a disk by the disk's own boot loader. Then ``profile`` is the path of the
    artefact that has the disk. It is also the path of an artefact if the clock is one of ``CLOUD_CLOCKS``; the firmware
    is then what the image of the disk says.
    """

    profile: str
    configuration: str
    command_line: str
    storage: str
    clock: str
    size: str
    payload: str = ""
    delivery: str = ""
    pattern: str = "single"
    instances: int = 1
    stagger_ms: int = 0
    firmware: str = ""

    @property
    def machine(self) -> str:
        """The application, the machine size and the firmware, for the first column of a table."""
        return ", ".join(word for word in (self.profile, self.size, self.firmware) if word)

    @property
    def place(self) -> tuple[str, str, str]:
        """What the cells of one row of figures have in common."""
        return self.profile, self.size, self.firmware

    @property
    def launched(self) -> str:
        """A phrase with the number of machines in a launch and their launch pattern. The result is empty for a launch
        of one machine.
        """
        count = self.instances
        words = {
            "one-by-one": f"{count} one by one",
            "staggered": f"{count}, one every {self.stagger_ms} ms",
            "burst": f"burst of {count}",
        }
        return words.get(self.pattern, "")

    @property
    def called(self) -> str:
        """The configuration's name in a table, with the delivery and the payload that the matrix names for the cell."""
        return ", ".join(word for word in (self.configuration, self.delivery, self.payload) if word)

    def beside(self, configuration: str) -> Cell:
        """The cell with which the report compares this cell. The returned cell has the given ``configuration``, and
        otherwise equals this cell. The returned cell has no payload and no delivery, because only the configuration
        quickstart has a payload and a delivery.
        """
        return replace(self, configuration=configuration, payload="", delivery="")


def on_clock(clock: str) -> str:
    """How times on the clock ``clock`` are named, for a title."""
    return _CLOUDS.get(clock, f"{clock} clock")


def cloud_of(clock: str) -> str:
    """The name of the place where the machines of ``clock`` run, or empty for machines in QEMU."""
    return _CLOUDS.get(clock, "")


def words_of(cell: Cell) -> str:
    """The cell's name, for messages."""
    words = (cell.profile, cell.configuration, cell.command_line, cell.storage, cell.clock, cell.size)
    others = (cell.firmware, cell.delivery, cell.payload, cell.launched)
    return " ".join((*words, *(word for word in others if word)))


@dataclass(frozen=True)
class Planned:
    """A cell of a matrix with its number of runs and its time limit. The time limit is the time in seconds, on the
    host's clock, after which the bench gives up a run.
    """

    cell: Cell
    runs: int
    timeout_s: int


@dataclass(frozen=True)
class Phase:
    """A phase of the boot, with its begin and its end. These are uptimes in nanoseconds on the guest's clock. Uptimes
    are negative before the kernel's clock begins.
    """

    name: str
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class Reads:
    """The number of read requests before ready, and the number of bytes that these requests read."""

    requests: int
    read_bytes: int


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The result of one run of a cell (section 4.1 of the QuickStart paper). When the guest did not become ready, the
    run is censored. A censored run has no times, but statistics count it as later than every other run.

    The provisioning time ``t_pr_ns``, the application time ``t_app_ns`` and their sum ``t_total_ns`` are on the cell's
    clock. ``uptime_ns`` and ``ready_uptime_ns`` are on the same clock. ``uptime_ns`` is the guest's uptime at the
    beacon, the message in which the guest reports its address. ``ready_uptime_ns`` is the guest's uptime at the first
    correct answer. ``fetch_ns`` is the part of the provisioning time in which kernel and initramfs are fetched from the
    volume. ``before_kernel_ns`` is the time from the machine's start to the kernel's uptime 0. This time may be
    negative (docs/users/times.md). ``overlap_ns`` is the longest time of I/O that the virtual clock may have failed to
    count. On other clocks, ``overlap_ns`` is 0. The reads in ``volume`` come from the volume's log, and the reads in
    ``guest`` come from the guest's /proc/diskstats.

    ``delivery`` is the way in which the start set reached the application, or empty. ``units`` are the services that
    systemd started before ready. The phase of a service lasts from the service's first process until the service was
    active. ``took_ns`` is the run's duration on the host's clock. The bench uses this duration only to estimate its
    remaining time.

    A machine that boots a disk by the disk's own boot loader has three more numbers. ``firmware_ns`` is the time from
    the machine's start to the loader's first read of the volume. No other time includes it. ``loader`` are the reads
    from then until the kernel starts, and ``fetch_ns`` is the time of these reads.

    A run that launches several machines gives a sample for each machine. ``instance`` is the machine's number from 1,
    and ``launched_ns`` is the time from the launch of the first machine to the launch of this machine. The storage was
    ``dilation_percent`` / 100 times as slow as its model, and all times except ``took_ns`` have been divided by this
    factor.
    """

    cell: Cell
    number: int
    censored: str
    delivery: str = ""
    t_pr_ns: int = 0
    t_app_ns: int = 0
    t_total_ns: int = 0
    uptime_ns: int = 0
    ready_uptime_ns: int = 0
    fetch_ns: int = 0
    before_kernel_ns: int = 0
    overlap_ns: int = 0
    volume: Reads = Reads(0, 0)
    guest: Reads = Reads(0, 0)
    initramfs_bytes: int = 0
    phases: tuple[Phase, ...] = ()
    units: tuple[Phase, ...] = ()
    took_ns: int = 0
    instance: int = 1
    launched_ns: int = 0
    dilation_percent: int = 100
    firmware_ns: int = 0
    loader: Reads = Reads(0, 0)


@dataclass(frozen=True, kw_only=True)
class Booted:
    """What a configuration of a profile boots. `bench compare` uses these facts to name possible causes of a difference
    (docs/users/compare.md).

    ``initramfs`` is the SHA-256 of the initramfs, a key of `Facts.contents`. ``image`` is the volume's UUID, a key of
    `Facts.packages`. ``command_lines`` are the kernel's command lines, by their names in results.COMMAND_LINES.
    ``unit_lines`` are the [Service] assignments of the application's ``unit``, including the unit's drop-ins.
    """

    kernel: str
    initramfs: str
    image: str
    command_lines: Mapping[str, str]
    unit: str
    unit_lines: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """The facts about everything that the configurations boot.

    The keys of ``boots`` have the form PROFILE/CONFIGURATION, like those of `Circumstances.artefacts`. ``contents`` has
    the regular files of each initramfs, with their unpacked sizes. ``packages`` has the packages of each image, with
    their versions. Facts that were not recorded are missing.
    """

    boots: Mapping[str, Booted] = field(default_factory=dict)
    contents: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    packages: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """Everything on which the numbers depend, except the matrix. Samples with different circumstances are never
    combined.

    ``host`` has facts about the machine on which the bench runs (kernel, CPU model, cores, memory, accelerator).
    ``versions`` has the versions of quickstart, QEMU, guest kernels and packages. ``artefacts`` has the hashes of
    images and initramfs. ``poll_interval_ms`` is the interval at which the launch agent, our program in the guest,
    sends the readiness request. ``facts`` describe the contents of the artefacts.
    """

    host: Mapping[str, str]
    versions: Mapping[str, str]
    artefacts: Mapping[str, str]
    poll_interval_ms: int
    facts: Facts = Facts()


@dataclass(frozen=True, kw_only=True)
class Results:
    """The results of one `quickstart bench`, with everything that is needed to repeat it.

    ``name`` is the name of the matrix, and ``plan`` has all its cells. ``command`` is the exact command line,
    and ``began`` is the time when it was called (UTC, RFC 3339). ``samples`` are in the order in which they
    were run.
    """

    name: str
    command: tuple[str, ...]
    began: str
    circumstances: Circumstances
    plan: tuple[Planned, ...]
    samples: tuple[Sample, ...]
