"""What a read from a real NFS server costs, and what our model of it says (docs/users/storage.md).

sudo .venv/bin/python bench/nfs/measure.py [RUNS]      default: 10; writes figures.json beside this file, in two minutes; then
                                                       the models' figures and docs/users/storage.md's table are to be made to agree

The same client reads the same 64 MiB of random bytes, which the server has in its page cache: from nfs-ganesha behind a wire
of 100 Mbit/s (`wire`), from the same server behind a wire as fast as the host (`no wire`), and from the volume emulator with the
models nfs-100m, nfs-cached and local. The interval is from a request on the NBD socket to its answer. What nfs-100m is made of:
its latency is that of 4 KiB from `no wire` less that from `local`, its bandwidth that of 1 MiB from `wire`, eight in flight.
`best` is of each what the host has disturbed least: the lowest of the runs' median latencies, the highest of their rates; `middle`
is the median of the runs.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from quickstart.host import door
from quickstart.host.workspace import workspace
from quickstart.model import MIB
from quickstart.store.store import Store, default_root
from quickstart.volume.emulator import served, volume_binary
from quickstart.volume.nbd import Command, Connection
from quickstart.volume.nfs import exported
from quickstart.volume.storage import load_model

SIZE_BYTES = 64 * MIB
# By place and reading, of each run what `measure` says.
Found = dict[tuple[str, str], list[dict[str, int]]]


class Place(Protocol):
    """What has an NBD server on a socket."""

    @property
    def socket(self) -> Path: ...


@dataclass(frozen=True)
class Reading:
    """``count`` reads of ``size_bytes`` at places drawn by a fixed seed, ``depth`` in flight."""

    size_bytes: int
    depth: int
    count: int


READINGS = {
    "4 KiB, one": Reading(4096, 1, 400),
    "4 KiB, eight": Reading(4096, 8, 800),
    "128 KiB, one": Reading(128 * 1024, 1, 100),
    "1 MiB, eight": Reading(MIB, 8, 48),
}


def measure(socket: Path, reading: Reading) -> dict[str, int]:
    """Nanoseconds from request to answer, and bytes a second."""
    places = random.Random(1).sample(range(SIZE_BYTES // reading.size_bytes), reading.count)  # noqa: S311
    asked: dict[int, int] = {}
    took_ns: list[int] = []

    with Connection(socket) as client:

        def take() -> None:
            answer = client.receive()
            took_ns.append(time.monotonic_ns() - asked.pop(answer.cookie))

        begin_ns = time.monotonic_ns()
        for place in places:
            now_ns = time.monotonic_ns()
            asked[client.send(Command.READ, place * reading.size_bytes, reading.size_bytes)] = now_ns
            if len(asked) == reading.depth:
                take()
        while asked:
            take()
        whole_ns = time.monotonic_ns() - begin_ns
    return {
        "median_ns": int(statistics.median(took_ns)),
        "bytes_s": reading.count * reading.size_bytes * 10**9 // whole_ns,
    }


def version(*argv: str) -> str:
    done = door.run(argv, timeout_s=60)
    return (done.stdout or done.stderr).decode().partition("\n")[0].strip()


def written(versions: dict[str, str], runs: int, found: Found) -> str:
    """figures.json: what is kept of the runs, a line for each reading."""
    best, middle = {"median_ns": min, "bytes_s": max}, statistics.median
    rows = []
    for (name, label), series in found.items():
        kept = {key: [each[key] for each in series] for key in best}
        row = {
            "place": name,
            "reading": label,
            **{f"best_{key}": best[key](values) for key, values in kept.items()},
            **{f"middle_{key}": int(middle(values)) for key, values in kept.items()},
        }
        rows.append(f"  {json.dumps(row)}")
    head = json.dumps({"schema": 1, "versions": versions, "runs": runs}, indent=1).removesuffix("\n}")
    return head + ',\n "figures": [\n' + ",\n".join(rows) + "\n ]\n}\n"


def main(runs: int) -> None:
    with Store(default_root()) as store, workspace("quickstart-nfs-figures-") as place:
        image = place / "image"
        image.write_bytes(random.Random(1).randbytes(SIZE_BYTES))  # noqa: S311
        binary = volume_binary(store)

        def modelled(name: str) -> Callable[[], AbstractContextManager[Place]]:
            return lambda: served(binary, image, load_model(name))

        places: dict[str, Callable[[], AbstractContextManager[Place]]] = {
            "wire": lambda: exported(image, "100mbit"),
            "no wire": lambda: exported(image, None),
            **{name: modelled(name) for name in ("nfs-100m", "nfs-cached", "local")},
        }
        found: Found = {(name, label): [] for name in places for label in READINGS}
        for _ in range(runs):
            for name, opened in places.items():
                with opened() as volume:
                    for label, reading in READINGS.items():
                        found[name, label].append(measure(volume.socket, reading))
                        print(name, label, found[name, label][-1], flush=True)
    versions = {
        "nfs-ganesha": version("ganesha.nfsd", "-v"),
        "qemu": version("qemu-nbd", "--version"),
        "kernel": version("uname", "-r"),
    }
    Path(__file__).with_name("figures.json").write_text(written(versions, runs, found))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
