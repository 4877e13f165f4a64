"""One run's times from what was stamped (pure; paper section 4.1)."""

from __future__ import annotations

from quickstart.model import Measurement, Readied


def measure(readied: Readied, configuration: str, accelerator: str) -> Measurement:
    """T_pr = (T_beacon - T_launch) - uptime; T_app = (T_probe - T_launch) - T_pr; T_total = T_probe - T_launch."""
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
