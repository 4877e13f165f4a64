"""What memory a fast start keeps, by the form of its initramfs (docs/internals/payload.md).

sudo .venv/bin/python bench/payload/measure.py [PROFILE] [RUNS] [DIRECTORY]

Writes DIRECTORY/PROFILE.json; by default nginx, 3, and the directory of this file.

The virtual clock, size small, the root on a local file, our command line, `quickstart=stay`: no systemd is in the way. Asked a
second after ready, once the page cache has been dropped: what is left of it, `cached`, is what the kernel cannot give back while
the application runs, `unevictable` the initramfs's part of that. `slab` is the kernel's own, a mounted file system's too. What is
free at all differs by several MB between two runs of the same, and says nothing.
"""

from __future__ import annotations

import dataclasses
import io
import json
import statistics
import sys
from pathlib import Path

from quickstart import __version__
from quickstart.bench import prepare
from quickstart.engines.launching import launcher_on
from quickstart.guest import executing
from quickstart.host.progress import Quiet
from quickstart.initramfs.payload import compressors
from quickstart.measure import clock
from quickstart.measure.configuration import Boot, machine_of, with_command_line
from quickstart.model import Profile
from quickstart.model.words import Payload
from quickstart.profile import load_bench, load_profile
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root, source_digest

LIMIT_S = 300.0
# In the order of /proc/meminfo.
KEYS = ("cached_bytes", "unevictable_bytes", "slab_bytes")
ASK = """
sleep 1
sync
echo 3 >/proc/sys/vm/drop_caches
sleep 1
sed -n 's/^\\(Cached\\|Unevictable\\|Slab\\): *\\([0-9]*\\) kB/\\2/p' /proc/meminfo
"""


def run(profile: Profile, boot: Boot, store: Store) -> dict[str, int]:
    size = clock.virtual("small")
    launcher = launcher_on(size.accelerator, store)
    said = io.BytesIO()
    cell = dataclasses.replace(boot, cmdline=f"{boot.cmdline} quickstart=stay", memory_mib=size.memory_mib)
    with launcher.launch(machine_of(cell), boot.ready) as launched:
        guest = executing(launched)
        guest.wait_ready(LIMIT_S)
        guest.execute(ASK, said, io.BytesIO(), LIMIT_S)
    return dict(zip(KEYS, (1024 * int(each) for each in said.getvalue().split()), strict=True))


def main(name: str = "nginx", runs: str = "3", directory: str = str(Path(__file__).parent)) -> None:
    profile = load_profile(name)
    found: dict[str, list[dict[str, int]]] = {each.value: [] for each in Payload}
    sizes: dict[str, int] = {}
    with Store(default_root()) as store:
        layer = load_bench(name)
        boots = {
            each.value: with_command_line(
                prepare.prepare(profile, "quickstart", Context(store, Quiet()), layer, each), "ours"
            )
            for each in Payload
        }
        for _ in range(int(runs)):
            for label, boot in boots.items():
                sizes[label] = boot.initramfs_bytes
                found[label].append(run(profile, boot, store))
                print(label, found[label][-1], flush=True)
    document = {
        "schema": 1,
        "quickstart": f"{__version__}, source {source_digest('quickstart')[:16]}",
        "compressors": compressors(),
        "clock": "virtual",
        "size": "small",
        "initramfs_bytes": sizes,
        "runs": found,
        "medians": {
            label: {key: int(statistics.median(each[key] for each in samples)) for key in KEYS}
            for label, samples in found.items()
        },
    }
    target = Path(directory, f"{profile.name}.json")
    target.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document["medians"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
