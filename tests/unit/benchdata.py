"""Made-up results for tests of the code that processes samples. Their host says that nobody measured them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from quickstart.measure.results import (
    Booted,
    Cell,
    Circumstances,
    Facts,
    Phase,
    Planned,
    Reads,
    Results,
    Sample,
)

S = 10**9
CELL = Cell(
    profile="nginx",
    configuration="quickstart",
    command_line="stock",
    storage="ebs-warm",
    clock="virtual",
    size="small",
)
# configuration → T_pr, T_app in seconds, reads; about what FACTS of the prototypes were.
_SHAPE = {
    "standard": (1.9, 15.6, 1950),
    "standard-tuned": (1.6, 11.2, 1400),
    "minimal": (0.9, 4.35, 302),
    "ramboot": (1.4, 2.08, 3),
    "quickstart": (1.5, 2.67, 70),
}
_WEIGHT = {"sshd": 0.9, "nginx": 1.0, "apache": 1.4, "mysql": 1.9}
_STORAGE = {"local": 0.7, "nfs-cached": 0.7, "ebs-warm": 1.0, "hdd": 1.8, "ebs-cold": 2.4, "nfs-100m": 3.0}


def sample(cell: Cell = CELL, number: int = 1, t_app_ns: int = 2 * S, **fields: object) -> Sample:
    """A run that got ready; its numbers hold."""
    t_pr_ns = fields.pop("t_pr_ns", S)
    assert isinstance(t_pr_ns, int)
    numbers = {
        "t_pr_ns": t_pr_ns,
        "t_app_ns": t_app_ns,
        "t_total_ns": t_pr_ns + t_app_ns,
        "ready_uptime_ns": t_app_ns,
    }
    delivery = "fast" if cell.configuration == "quickstart" else ""
    return Sample(cell=cell, number=number, censored="", delivery=delivery, **{**numbers, **fields})  # type: ignore[arg-type]


def censored(cell: Cell = CELL, number: int = 1, why: str = "not ready in 600 s") -> Sample:
    return Sample(
        cell=cell, number=number, censored=why, delivery="fast" if cell.configuration == "quickstart" else ""
    )


def results_of(plan: Sequence[Planned], samples: Sequence[Sample], name: str = "synthetic") -> Results:
    return Results(
        name=name,
        command=("quickstart", "bench", "a matrix.toml", "-o", "out"),
        began="2026-01-02T03:04:05Z",
        circumstances=circumstances(),
        plan=tuple(plan),
        samples=tuple(samples),
    )


def circumstances() -> Circumstances:
    return Circumstances(
        host={
            "cpu": "SYNTHETIC: nobody measured this",
            "kernel": "6.1.0 <synthetic>",
            "cores": "2",
            "memory_mib": "16000",
        },
        versions={"quickstart": "0.1.0", "qemu": "7.2.0", "kernel": "6.1.0-44-cloud-amd64"},
        artefacts={"nginx/reference": "0" * 64, "nginx/initramfs": "1" * 64},
        poll_interval_ms=10,
        facts=facts(),
    )


def facts() -> Facts:
    lines = {
        "stock": "console=ttyS0 root=UUID=an-image ro",
        "ours": "console=ttyS0 root=UUID=an-image ro cryptomgr.notests",
    }
    unit = ("Type=forking", "ExecStart=/usr/sbin/nginx")
    boots = {
        f"nginx/{name}": Booted(
            kernel="vmlinuz-6.1.0-44-cloud-amd64",
            initramfs=archive,
            image="an-image",
            command_lines=lines,
            unit="nginx.service",
            unit_lines=unit,
        )
        for name, archive in (("standard", "initrd"), ("minimal", "small"), ("quickstart", "fast"))
    }
    contents = {
        "initrd": {"init": 9000, "usr/bin/udevadm": 900_000},
        "small": {"init": 9000},
        "fast": {"init": 9000, "fast/usr/sbin/nginx": 1_200_000},
    }
    return Facts(boots, contents, {"an-image": {"nginx": "1.22.1-9", "libc6": "2.36-9"}})


def realistic(
    *,
    profiles: Sequence[str] = ("nginx",),
    configurations: Sequence[str] = ("standard", "minimal", "quickstart"),
    lines: Sequence[str] = ("stock",),
    storages: Sequence[str] = ("ebs-warm",),
    clocks: Sequence[str] = ("virtual",),
    sizes: Sequence[str] = ("small",),
    runs: int = 3,
    holes: bool = False,
) -> Results:
    """A whole bench; with ``holes`` one cell is censored, one in part, and one was not run."""
    chance = random.Random(7)
    axes = (clocks, storages, sizes, profiles, configurations, lines)
    cells = [
        Cell(profile=p, configuration=c, command_line=line, storage=st, clock=clock, size=size)
        for clock, st, size, p, c, line in itertools.product(*axes)
    ]
    samples = [_run(cell, number, chance) for number in range(1, runs + 1) for cell in cells]
    if holes:
        dead, half, absent = cells[0], cells[1], cells[-1]
        samples = [each for each in samples if each.cell != absent]
        samples = [
            censored(each.cell, each.number)
            if each.cell == dead or (each.cell == half and each.number == 1)
            else each
            for each in samples
        ]
    return results_of([Planned(cell, runs, 600) for cell in cells], samples)


def _run(cell: Cell, number: int, chance: random.Random) -> Sample:
    pr_s, app_s, reads = _SHAPE[cell.configuration]
    noise = 1 + chance.uniform(-0.002, 0.002) * (1 if cell.clock == "virtual" else 30)
    weight = _WEIGHT.get(cell.profile, 1) * noise * (0.6 if cell.size == "medium" else 1)
    weight *= 1 + (_STORAGE[cell.storage] - 1) * min(1.0, reads / 500)
    less_s = 0.9 if cell.command_line == "ours" else 0.0
    t_app_ns = int((app_s * weight - less_s * weight) * S)
    counted = Reads(reads, reads * 70_000)
    return sample(
        cell,
        number,
        t_app_ns,
        t_pr_ns=int(pr_s * _STORAGE[cell.storage] * S),
        uptime_ns=int(t_app_ns * 0.6),
        fetch_ns=int(pr_s * S / 2),
        before_kernel_ns=int(0.3 * S),
        overlap_ns=int(0.08 * S) if cell.clock == "virtual" else 0,
        volume=counted,
        guest=counted,
        initramfs_bytes=(30 if cell.configuration in ("quickstart", "ramboot") else 12) * 1024 * 1024,
        phases=_phases(cell, t_app_ns),
        took_ns=8 * S,
    )


def _phases(cell: Cell, ready_ns: int) -> tuple[Phase, ...]:
    ours = ("init", "modules", "root mount", "application start", "ready")
    names = (
        ours if cell.configuration != "standard" else ("initramfs", "systemd", "application start", "ready")
    )
    kernel_ns = min(int(1.68 * S), ready_ns // 2)
    cuts = [0.0, 0.1, 0.35, 0.5, 0.92, 1.0] if names == ours else [0.0, 0.2, 0.8, 0.97, 1.0]
    at = [kernel_ns + int((ready_ns - kernel_ns) * cut) for cut in cuts]
    found = [Phase("before kernel", -int(0.3 * S), 0), Phase("kernel", 0, kernel_ns)]
    found += [Phase(name, at[index], at[index + 1]) for index, name in enumerate(names)]
    return (*found, Phase("network", at[1], at[3]))
