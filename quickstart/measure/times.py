"""Compute the times of one run from its time stamps (pure; section 4.1 of the QuickStart paper)."""

from __future__ import annotations

from dataclasses import dataclass

from quickstart.model import Readied


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The times of one run (section 4.1 of the QuickStart paper). Durations are in nanoseconds on the client's clock,
    and uptimes are in nanoseconds on the guest's clock. The client is the program on the host that launches the
    machine.

    ``uptime_ns`` is the guest's uptime in the beacon, the message in which the guest reports its address.
    ``ready_uptime_ns`` is the guest's uptime at the first correct answer.
    """

    configuration: str
    clock: str
    accelerator: str
    t_pr_ns: int
    t_app_ns: int
    t_total_ns: int
    uptime_ns: int
    ready_uptime_ns: int
    root_reads: int
    root_read_bytes: int
    answer: str


@dataclass(frozen=True)
class Times:
    """The times of a bench run in ns. ``before_kernel_ns`` is the provisioning time T_pr without the time for fetching
    kernel and initramfs.
    """

    t_pr_ns: int
    t_app_ns: int
    t_total_ns: int
    before_kernel_ns: int


def virtual_times(readied: Readied, fetch_ns: int) -> Times:
    """The times on the guest's clock. The application time T_app is the guest's uptime at ready.

    With QEMU's option -icount, the time stamp counter advances by one for each virtual nanosecond from the machine's
    start (cpus_get_elapsed_ticks in QEMU's softmmu/cpus.c). So the difference between the counter and the uptime is the
    time before the kernel's clock began.
    """
    before_kernel_ns = readied.counters.tsc - readied.counters.uptime_ns
    t_pr_ns, t_app_ns = fetch_ns + before_kernel_ns, readied.ready.uptime_ns
    return Times(t_pr_ns, t_app_ns, t_pr_ns + t_app_ns, before_kernel_ns)


def client_times(readied: Readied, fetch_ns: int) -> Times:
    """The times on the clock of the client, which is the program on the host that launches the machine (section 4.1 of
    the QuickStart paper). T_launch, the moment of the launch, is before the fetch of kernel and initramfs.

    The result does not include the time of our own work between the fetch and QEMU's start (joining files for QEMU). So
    QEMU counts as started right after the fetch.
    """
    t_launch_ns = readied.launch_ns - fetch_ns
    t_pr_ns = (readied.beacon.received_ns - t_launch_ns) - readied.beacon.uptime_ns
    t_total_ns = readied.ready.received_ns - t_launch_ns
    return Times(t_pr_ns, t_total_ns - t_pr_ns, t_total_ns, t_pr_ns - fetch_ns)


def measure(readied: Readied, configuration: str, accelerator: str) -> Measurement:
    """The measurement of one run. T_launch is the moment of the launch. T_beacon and T_probe are the moments when the
    guest's beacon and its message about the first correct answer arrive. The formulas are:

    - T_pr = (T_beacon - T_launch) - uptime at the beacon
    - T_app = (T_probe - T_launch) - T_pr
    - T_total = T_probe - T_launch
    """
    t_pr_ns = (readied.beacon.received_ns - readied.launch_ns) - readied.beacon.uptime_ns
    t_total_ns = readied.ready.received_ns - readied.launch_ns
    return Measurement(
        configuration=configuration,
        clock="kvm" if accelerator == "kvm" else "wall",
        accelerator=accelerator,
        t_pr_ns=t_pr_ns,
        t_app_ns=t_total_ns - t_pr_ns,
        t_total_ns=t_total_ns,
        uptime_ns=readied.beacon.uptime_ns,
        ready_uptime_ns=readied.ready.uptime_ns,
        root_reads=readied.root_io.reads,
        root_read_bytes=readied.root_io.read_bytes,
        answer=readied.ready.answer,
    )
