"""When is the whole machine there, and what memory does it take: `standard` against `quickstart` with and without --release.

sudo .venv/bin/python bench/settle/measure.py [PROFILE] [RUNS] [DIRECTORY]

Writes DIRECTORY/PROFILE.json; by default nginx, 3, and the directory of this file.

The virtual clock, size small, the root on a local file, stock command line; runs are interleaved. The end of the boot is what
systemd calls so: its start-up has finished, the last job of it being ours where there was a hand-off (systemd-analyze(1)).
"""

from __future__ import annotations

import io
import json
import statistics
import sys
import tempfile
from pathlib import Path

from quickstart import __version__
from quickstart.bench import prepare
from quickstart.engines import boot as pipeline
from quickstart.engines.launching import launcher_on
from quickstart.guest import executing
from quickstart.host.progress import Quiet
from quickstart.image.kerneloptions import stock_line
from quickstart.initramfs.guestconfig import HandOff
from quickstart.measure import clock
from quickstart.model import Profile
from quickstart.model.machine import Machine, machine
from quickstart.pack.packing import PackOptions, pack, packing_of
from quickstart.profile import load_profile
from quickstart.reference.debootstrap import make_reference
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root, source_digest

LIMIT_S = 900.0
# Settling is part of systemd's start-up. Memory is what is there without the page cache, a while later.
ASK = """
until systemctl is-system-running --wait 2>/dev/null | grep -e running -e degraded; do sleep 0.2; done
systemctl show -P FinishTimestampMonotonic
systemctl restart UNIT
sleep 5
sync
echo 3 >/proc/sys/vm/drop_caches
sleep 1
sed -n 's/^MemAvailable: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo
"""


def machines(profile: Profile, store: Store, place: Path) -> dict[str, Machine]:
    """What is booted, by name."""
    context = Context(store, Quiet())
    standard = prepare.prepare(profile, "standard", context)
    size = clock.virtual("small")
    reference = make_reference(profile, context)
    subject = pipeline.subject_of(profile, reference, context)
    traced = pipeline.trace_disk(subject, pipeline.TraceOptions(), context)
    # Ours has the disk whose blocks it asks for beforehand; the distribution's has the distribution's.
    parts = {"standard": (reference.initrd, subject.disk)}
    for name, hand_off in (("quickstart", HandOff.KEEP), ("quickstart --release", HandOff.RELEASE)):
        packing = packing_of(subject, traced, PackOptions(hand_off=hand_off), context)
        packed = pack(packing, place / f"{hand_off.value}.img")
        parts[name] = (packed.initramfs.path, packed.recipe.disk)
    return {
        name: machine(
            "settle",
            memory_mib=size.memory_mib,
            kernel=standard.kernel,
            initrds=(initrd,),
            cmdline=stock_line(volume.superblock.uuid),
            disk=volume.path,
            mac=pipeline.MAC,
        )
        for name, (initrd, volume) in parts.items()
    }


def run(profile: Profile, booted: Machine, store: Store) -> dict[str, int | str]:
    launcher = launcher_on(clock.virtual("small").accelerator, store)
    said = io.BytesIO()
    with launcher.launch(booted, profile.ready) as launched:
        guest = executing(launched)
        readied = guest.wait_ready(LIMIT_S)
        guest.execute(ASK.replace("UNIT", profile.unit), said, io.BytesIO(), LIMIT_S)
    state, finished_us, available_kib = said.getvalue().decode().split()
    return {
        "state": state,
        "t_app_ns": readied.ready.uptime_ns,
        "settled_uptime_ns": int(finished_us) * 1000,
        "memory_available_bytes": int(available_kib) * 1024,
    }


def main(name: str = "nginx", runs: str = "3", directory: str = str(Path(__file__).parent)) -> None:
    profile = load_profile(name)
    found: dict[str, list[dict[str, int | str]]] = {}
    with Store(default_root()) as store, tempfile.TemporaryDirectory(prefix="quickstart-settle.") as place:
        described = machines(profile, store, Path(place))
        for _ in range(int(runs)):
            for label, booted in described.items():
                found.setdefault(label, []).append(run(profile, booted, store))
                print(label, found[label][-1], flush=True)
    medians = {
        label: {
            key: int(statistics.median(int(each[key]) for each in samples))
            for key in ("t_app_ns", "settled_uptime_ns", "memory_available_bytes")
        }
        for label, samples in found.items()
    }
    document = {
        "schema": 1,
        "quickstart": f"{__version__}, source {source_digest('quickstart')[:16]}",
        "clock": "virtual",
        "size": "small",
        "storage": "a local file",
        "runs": found,
        "medians": medians,
        "settled_over_standard": {
            label: round(medians[label]["settled_uptime_ns"] / medians["standard"]["settled_uptime_ns"], 4)
            for label in medians
        },
    }
    target = Path(directory, f"{profile.name}.json")
    target.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document["settled_over_standard"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
