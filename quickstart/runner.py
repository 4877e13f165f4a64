"""What measures a matrix's cells on this host: images and initramfs made once, then runs in QEMU (bench.Runner)."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import re
from dataclasses import dataclass, field
from pathlib import Path

from quickstart import __version__
from quickstart.host import door
from quickstart.image.ext4 import read_superblock
from quickstart.initramfs.build import Recipe
from quickstart.initramfs.payload import Payload, compressors
from quickstart.launch.payload import PROBE_INTERVAL_MS, agent_binary
from quickstart.measure import run
from quickstart.measure.clock import clock_of
from quickstart.measure.configuration import Boot, with_command_line
from quickstart.measure.matrix import Matrix
from quickstart.measure.results import Cell, Circumstances, Sample
from quickstart.measure.storage import load_model
from quickstart.measure.volume import volume_binary
from quickstart.model import Profile
from quickstart.prepare import prepare
from quickstart.profile import load_bench, load_profile
from quickstart.progress import Progress
from quickstart.store import Store, source_digest


@dataclass
class QemuRunner:
    """Prepares each (profile, configuration, payload) of the matrix once; a run takes what is there."""

    matrix: Matrix
    store: Store
    progress: Progress
    _boots: dict[tuple[str, str, str], Boot] = field(default_factory=dict)

    def circumstances(self) -> Circumstances:
        """Make what is not there yet, and say what the numbers depend on."""
        profiles: dict[str, Profile] = {}
        for cell in (each.cell for each in self.matrix.plan):
            profile = profiles.setdefault(cell.profile, load_profile(cell.profile))
            key = _key(cell)
            if key not in self._boots:
                layer = load_bench(cell.profile)
                form = Payload(cell.payload) if cell.payload else Recipe.payload
                self._boots[key] = prepare(
                    profile, cell.configuration, self.store, self.progress, layer, form
                )
        qemu = door.run(["qemu-system-x86_64", "--version"], timeout_s=30).stdout.decode().splitlines()[0]
        kernels = {name: boot.kernel.name for (name, *_), boot in self._boots.items()}
        return Circumstances(
            host=_host(),
            versions={
                "quickstart": f"{__version__}, source {source_digest('quickstart')[:16]}",
                "qemu": qemu,
                "fetch": self.matrix.fetch,
                "payload": f"{Recipe.payload.value} where none is asked for; {compressors()}",
                **{f"kernel {k}": v for k, v in kernels.items()},
            },
            artefacts=dict(_artefacts(key, boot) for key, boot in sorted(self._boots.items())),
            poll_interval_ms=PROBE_INTERVAL_MS,
        )

    def run(self, cell: Cell, number: int, timeout_s: int) -> Sample:
        """One run of ``cell`` (measure.run)."""
        boot = with_command_line(self._boots[_key(cell)], cell.command_line)
        bench = run.Bench(
            agent_binary(self.store),
            volume_binary(self.store),
            float(timeout_s),
            run.FETCHING[self.matrix.fetch],
        )
        clock = clock_of(cell.clock, cell.size, boot.kernel, self.store)
        patient = dataclasses.replace(boot, ready=dataclasses.replace(boot.ready, timeout_s=timeout_s))
        return run.run_once(bench, patient, clock, load_model(cell.storage), cell, number)


def _key(cell: Cell) -> tuple[str, str, str]:
    return cell.profile, cell.configuration, cell.payload


def _artefacts(key: tuple[str, str, str], boot: Boot) -> tuple[str, str]:
    """By its content what is booted, by its superblock's UUID (a hash of its recipe) the volume."""
    digest = hashlib.sha256()
    for path in (boot.kernel, *boot.initrds):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return "/".join(key).rstrip("/"), f"{digest.hexdigest()} on {read_superblock(boot.volume).uuid}"


def _host() -> dict[str, str]:
    """Facts of this machine that do not change between two calls."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": model[1] if model else "",
        "cores": str(os.cpu_count()),
        "memory_mib": str(int(memory[1]) // 1024 if memory else 0),
    }
