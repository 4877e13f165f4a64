"""What the tests of `bench --backend ec2` share. No machine boots (machinebox.py), and no disk is prepared."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quickstart.bench import cloud, series
from quickstart.bench.cloud import CloudOptions, CloudRunner
from quickstart.ec2.aws import Aws
from quickstart.ec2.emulator.server import Emulator
from quickstart.ec2.upload import DEFAULT_WORKERS
from quickstart.host.progress import Quiet
from quickstart.launch.spoken import BEGIN
from quickstart.measure.configuration import Boot
from quickstart.measure.matrix import Matrix, matrix_of_options
from quickstart.measure.results import Results
from quickstart.model import Readiness
from quickstart.model.disk import Loader
from quickstart.model.words import ReadyKind
from quickstart.store.store import Store
from tests.contract.ec2box import (
    client,
    emulated,
    made_source,
    own,
    run,
)
from tests.contract.machinebox import WEB, StandIns

DISKSTATS = " 259 0 nvme0n1 120 0 8000 5 0 0 0 0 0 0 0 0 0 0 0\n"
COUNTERS = f"cpu  1 2 3 4 5 6 7 8 9 10\n{DISKSTATS}"
BEACON_NS, READY_NS = 1_000_000, 2_000_000
REPOSITORY = Path(__file__).parents[2]


STARTED = "quickstart: hand-off: nginx.service was started from /fast, its process is 400"


def console(*before: str, after: str = "") -> bytes:
    """The console of a machine whose agent was ready READY_NS after its start. By default, init has started the
    application early.
    """
    after = after or ("" if before else STARTED)
    said = [
        f"beacon {BEACON_NS} ens5 172.31.0.15",
        f"ready {READY_NS} HTTP/1.1 200 OK",
        f"counters {READY_NS + 1} 99 {len(COUNTERS)}",
        *COUNTERS.splitlines(),
    ]
    agent = "".join(f"\r\n{BEGIN}{line}\r\n" for line in said)
    return "".join((*(f"{line}\r\n" for line in before), agent, f"\r\n{after}\r\nweb login: ")).encode()


@dataclasses.dataclass(frozen=True)
class Account:
    """A client and the emulator that it calls, with a store and a directory for results."""

    aws: Aws
    emulator: Emulator
    standing: StandIns
    store: Store
    place: Path

    def runner(self, matrix: Matrix, **others: Any) -> CloudRunner:
        options = CloudOptions(group_ids=(WEB,), **others)
        return CloudRunner(matrix=matrix, aws=self.aws, options=options, store=self.store, progress=Quiet())

    def measure(self, matrix: Matrix, runner: CloudRunner) -> Results:
        asked = series.Bench(matrix, self.place / "results", ("quickstart", "bench"), "2026-12-01T00:00:00Z")
        return series.run_matrix(asked, runner, Quiet())


def matrix_of(clock: str = "ec2-emulated", **others: Any) -> Matrix:
    block: dict[str, Any] = {
        "disks": ["web"],
        "configurations": ["standard", "quickstart"],
        "storages": ["ebs-cold"],
        "clocks": [clock],
        "runs": 2,
        "timeout_s": 20,
    }
    return matrix_of_options(block | others, [])


def without_machines(monkeypatch: pytest.MonkeyPatch, root_at_bytes: int, place: Path) -> None:
    """The disk of OUT stands for the prepared copies of both configurations. They differ by a block behind the root."""
    (place / "kernel").write_bytes(b"kernel")
    (place / "initramfs").write_bytes(b"initramfs")

    def prepared(cell: Any, context: Any, port: str) -> Boot:
        assert port == "console"
        volume = place / f"{cell.configuration}.raw"
        run("cp", "--sparse=always", place / "web/disk.raw", volume)
        with volume.open("ab") as file:
            file.write(cell.configuration.encode().ljust(512, b"\0"))
        ready = Readiness(
            kind=ReadyKind.HTTP, port=80, path="/", status=200, command="", timeout_s=20, loopback=False
        )
        return Boot(
            configuration=cell.configuration,
            command_line=cell.command_line,
            kernel=place / "kernel",
            initrds=(place / "initramfs",),
            volume=volume,
            fetched=(),
            attached=True,
            cmdline="ro",
            memory_mib=1024,
            mac="",
            ready=ready,
            unit="nginx.service",
            delivery="overlay" if cell.configuration == "quickstart" else "",
            root_at_bytes=root_at_bytes,
        )

    found = SimpleNamespace(loaders=(Loader.SYSTEMD_BOOT,), facts=SimpleNamespace(partitions=()))
    monkeypatch.setattr(cloud, "prepare_disk", prepared)
    monkeypatch.setattr(cloud, "look_into", lambda disk, context: found)
    monkeypatch.setattr(
        "quickstart.artefact.directory.load", lambda out: SimpleNamespace(profile_name="nginx")
    )
    monkeypatch.setattr(cloud, "_WORDS_S", 2.0)
    monkeypatch.setattr(cloud, "_STATE_PAUSE_S", 0.05)
    monkeypatch.chdir(place)


@contextmanager
def made_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    """An account with the disk of OUT beside it, and stand-ins that answer."""
    monkeypatch.setenv("HOME", str(tmp_path))
    source = made_source(tmp_path)
    source.out.rename(tmp_path / "web")
    without_machines(monkeypatch, source.root_at_bytes, tmp_path)
    standing = StandIns(serves=True, said=console())
    with (
        emulated(tmp_path, hypervisor=standing) as emulator,
        Store(tmp_path / "store", lambda text: None) as store,
    ):
        own(monkeypatch, emulator)
        yield Account(client(emulator, DEFAULT_WORKERS), emulator, standing, store, tmp_path)
