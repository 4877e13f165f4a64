"""Measure the cells of a matrix on this host, in QEMU. A cell is one combination to measure, for example of application
and configuration. The class QemuRunner implements Runner in bench/series.py. The module makes each image and initramfs
only once, and then all runs boot the same files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from quickstart import __version__
from quickstart.bench.disks import prepare_disk
from quickstart.bench.prepare import prepare
from quickstart.engines.boot import BuildOptions
from quickstart.engines.launching import launchers
from quickstart.errors import BadInputError
from quickstart.host import door
from quickstart.host.progress import Progress
from quickstart.host.userns import is_host_root
from quickstart.image.superblock import read_superblock
from quickstart.initramfs.contents import file_sizes
from quickstart.initramfs.payload import compressors
from quickstart.initramfs.serving import Delivery
from quickstart.launch.archive import PROBE_INTERVAL_MS
from quickstart.launch.arguments import Files, machine_arguments
from quickstart.measure import launches, run
from quickstart.measure.clock import clock_of, sized
from quickstart.measure.configuration import Boot, machine_of, with_command_line
from quickstart.measure.loader import LoaderTimes
from quickstart.measure.matrix import Matrix
from quickstart.measure.results import COMMAND_LINES, Booted, Cell, Circumstances, Facts, Sample
from quickstart.measure.run import Bench
from quickstart.model import Profile
from quickstart.model.words import Payload
from quickstart.profile import (
    BenchLayer,
    known_profiles,
    load_bench,
    load_bench_judged,
    load_profile,
    profile_file,
)
from quickstart.store.context import Context
from quickstart.store.store import Store, source_digest
from quickstart.volume.emulator import volume_binary
from quickstart.volume.nfs import nfs_server
from quickstart.volume.storage import load_model

# The files of a machine that is never started, and whose arguments are only recorded.
_NO_FILES = Files((Path("kernel"), Path("initrd")), None)
# The storage model that answers at once.
_PROMPT = "local"
# Profile, firmware, configuration, and the delivery and payload that the matrix gives.
_Key = tuple[str, str, str, str, str]


@dataclass(kw_only=True)
class QemuRunner:
    """The runner for QEMU. The matrix is the list of measurements. For each combination of profile, configuration,
    delivery and payload in the matrix, the runner makes the kernel, initramfs and disk only once. All runs of the
    combination boot these files.
    """

    matrix: Matrix
    store: Store
    progress: Progress
    _boots: dict[_Key, Boot] = field(default_factory=dict)
    _loaders: dict[tuple[_Key, str], LoaderTimes] = field(default_factory=dict)

    def circumstances(self) -> Circumstances:
        """Make the images and initramfs that are missing, and return all facts on which the measured times depend."""
        on_nfs = any(
            load_model(each.cell.storage).nfs_rate and each.cell.clock != "virtual"
            for each in self.matrix.plan
        )
        # This is checked before any costly work.
        served_by = {"nfs server": nfs_server()} if on_nfs else {}
        profiles: dict[str, Profile] = {}
        for each in self.matrix.plan:
            if each.cell.instances > 1:
                launches.demand_room(each.cell)
        for cell in (each.cell for each in self.matrix.plan):
            key = _key(cell)
            if cell.firmware:
                if key not in self._boots:
                    self._boots[key] = prepare_disk(cell, Context(self.store, self.progress))
                continue
            profile = profiles.setdefault(cell.profile, load_profile(cell.profile))
            if key not in self._boots:
                layer = _bench_layer(cell.profile)
                form = Payload(cell.payload) if cell.payload else None
                delivery = Delivery(cell.delivery) if cell.delivery else BuildOptions.delivery
                self._boots[key] = prepare(
                    profile, cell.configuration, Context(self.store, self.progress), layer, form, delivery
                )
        qemu = door.run(["qemu-system-x86_64", "--version"], timeout_s=30).stdout.decode().splitlines()[0]
        kernels = {name: boot.kernel.name for (name, *_), boot in self._boots.items()}
        return Circumstances(
            host=host_facts(),
            versions={
                "quickstart": f"{__version__}, source {source_digest('quickstart')[:16]}",
                "qemu": qemu,
                "fetch": self.matrix.fetch,
                **{
                    f"payload {each.name}": f"{each.payload} where none is asked for"
                    for each in profiles.values()
                },
                "compressors": compressors(),
                **{f"kernel {k}": v for k, v in kernels.items()},
                **self._machines(),
                **served_by,
            },
            artefacts=dict(artefacts_of(key, boot) for key, boot in sorted(self._boots.items())),
            poll_interval_ms=PROBE_INTERVAL_MS,
            facts=facts_of(self._boots),
        )

    def _machines(self) -> dict[str, str]:
        """For each combination of clock and size, the QEMU options of the machine, as one text. Times of machines with
        different options must not be compared.
        """
        found: dict[str, str] = {}
        for cell in (each.cell for each in self.matrix.plan):
            if f"machine {cell.clock} {cell.size}" not in found:
                boot = self._boots[_key(cell)]
                clock = clock_of(cell.clock, cell.size, boot.kernel, self.store)
                started = dataclasses.replace(machine_of(boot), firmware=None)
                words = machine_arguments(sized(started, clock), clock.accelerator, _NO_FILES)
                found[f"machine {cell.clock} {cell.size}"] = " ".join(_of_the_machine(words))
        return found

    def run(self, cell: Cell, number: int, timeout_s: int) -> tuple[Sample, ...]:
        """The samples of one run of ``cell``. The module measure/run.py makes a run of one machine, and
        measure/launches.py makes a run of several machines.
        """
        boot = with_command_line(self._boots[_key(cell)], cell.command_line)
        bench = Bench(
            launchers=launchers(self.store),
            volume=volume_binary(self.store),
            limit_s=float(timeout_s),
            fetching=run.FETCHING[self.matrix.fetch],
        )
        clock = clock_of(cell.clock, cell.size, boot.kernel, self.store)
        patient = dataclasses.replace(boot, ready=dataclasses.replace(boot.ready, timeout_s=timeout_s))
        model = load_model(cell.storage)
        if cell.instances > 1:
            return launches.launch(bench, patient, clock, model, cell, number)
        computing = None
        if cell.firmware and clock.name == "virtual":
            computing = partial(self._loader_times, bench, patient, cell)
        return (run.run_once(bench, patient, clock, model, cell, number, computing),)

    def _loader_times(self, bench: Bench, boot: Boot, cell: Cell) -> LoaderTimes:
        """The computing times of the boot loader of a cell on the virtual clock, which are measured only once."""
        key = _key(cell), cell.size
        if key not in self._loaders:
            with self.progress.step(f"the boot loader of {cell.profile}, {cell.configuration}"):
                self._loaders[key] = run.calibrate(bench, boot, cell.size, load_model(_PROMPT))
        return self._loaders[key]


def _bench_layer(name: str) -> BenchLayer | None:
    """The bench layer of the profile ``name``, that is, changes of the image with which the application answers the
    bench. The profile's file is read only once, so the text that is checked is also the text that is used.

    Raises BadInputError when QuickStart runs as root of the host and another user could have written the layer's
    commands. The confiner, our C program, also restricts these commands to the image (see reference/confine.py), so
    this check is a second barrier.
    """
    if name in known_profiles() or not is_host_root():
        return load_bench(name)
    layer, doubt = load_bench_judged(name)
    if layer is not None and layer.commands and doubt:
        raise BadInputError(
            f"{profile_file(name)} has bench.commands, which root would run, and others can write to {doubt}",
            hint="run the bench as an ordinary user; or read the file, and copy it to where root alone can write",
        )
    return layer


def _key(cell: Cell) -> _Key:
    return cell.profile, cell.firmware, cell.configuration, cell.delivery, cell.payload


def _named(key: _Key) -> str:
    return "/".join(word for word in key if word)


def artefacts_of(key: _Key, boot: Boot) -> tuple[str, str]:
    """Return two values: the name of a boot, and a text that identifies the booted files. The text has a hash of the
    kernel and the initramfs, and the UUID of the volume's file system, which depends on the inputs of the reference
    image.
    """
    digest = hashlib.sha256()
    for path in (boot.kernel, *boot.initrds):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return _named(key), f"{digest.hexdigest()} on {read_superblock(boot.volume, boot.root_at_bytes).uuid}"


def _of_the_machine(words: Sequence[str]) -> Iterator[str]:
    """The options in ``words``, as ``OPTION VALUE``, that are the same for all machines of one clock and size."""
    wanted = {"-M", "-accel", "-icount", "-cpu", "-rtc", "-seed", "-smp", "-m"}
    for option, value in itertools.pairwise(words):
        if option in wanted:
            yield f"{option} {value}"


def facts_of(boots: Mapping[_Key, Boot]) -> Facts:
    """The facts about the kernels, initramfs, images and units that are booted. An initramfs or image that several
    configurations share is listed once.
    """
    booted: dict[str, Booted] = {}
    contents: dict[str, Mapping[str, int]] = {}
    packages: dict[str, Mapping[str, str]] = {}
    for key, boot in sorted(boots.items()):
        (initrd,) = boot.initrds
        with initrd.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest not in contents and (sizes := file_sizes(initrd)) is not None:
            contents[digest] = sizes
        image = read_superblock(boot.volume, boot.root_at_bytes).uuid
        packages[image] = boot.packages
        booted[_named(key)] = Booted(
            kernel=boot.kernel.name,
            initramfs=digest,
            image=image,
            command_lines={line: with_command_line(boot, line).cmdline for line in COMMAND_LINES},
            unit=boot.unit,
            unit_lines=boot.unit_lines,
        )
    return Facts(booted, contents, packages)


def host_facts() -> dict[str, str]:
    """The facts about this host that do not change between two calls of `bench`."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": model[1] if model else "",
        "cores": str(os.cpu_count()),
        "memory_mib": str(int(memory[1]) // 1024 if memory else 0),
    }
