"""Boot `standard` and `standard-tuned` once each and write what they consist of (as root; minutes).

sudo .venv/bin/python bench/baseline/record.py [PROFILE] [DIRECTORY]

Writes into DIRECTORY; by default nginx, and the directory of this file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from quickstart.bench.prepare import prepare
from quickstart.engines.launching import launcher_on
from quickstart.host.progress import Quiet
from quickstart.launch.accel import Accelerator
from quickstart.measure import baseline
from quickstart.measure.configuration import machine_of
from quickstart.profile import load_profile
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root

# The virtual clock: guest time is instructions at 1 ns each, whatever else this host does.
_QEMU = ("-accel", "tcg,thread=single", "-icount", "shift=0,sleep=on,align=off", "-cpu", "max")
VIRTUAL = Accelerator("tcg, icount shift=0", _QEMU, "it repeats")
NAMES = {"standard": "{}-standard.json", "standard-tuned": "{}-tuned.json"}


def main(name: str = "nginx", directory: str = str(Path(__file__).parent)) -> None:
    profile = load_profile(name)
    with Store(default_root()) as store:
        for configuration, file in NAMES.items():
            boot = prepare(profile, configuration, Context(store, Quiet()))
            launcher = launcher_on(VIRTUAL, store)
            with launcher.launch(machine_of(boot), profile.ready) as guest:
                readied = guest.wait_ready(profile.ready.timeout_s)
                document = baseline.record(guest, profile, boot, readied, VIRTUAL.name)
            target = Path(directory, file.format(profile.name))
            target.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
            print(f"{target.name}: {document['state']}, {len(document['packages'])} packages")


if __name__ == "__main__":
    main(*sys.argv[1:])
