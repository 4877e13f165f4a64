"""`bench --backend ec2` against the emulator. No machine boots here (machinebox.py), and no disk is prepared: what a series
makes of a machine's answer and console, what it costs at most, and that nothing is left.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quickstart.bench import cloud, series
from quickstart.bench.cloud import CloudOptions, CloudRunner, machine_hours
from quickstart.cli.cloud.benching import clock_of
from quickstart.ec2 import waiting
from quickstart.ec2.aws import Aws, Place, connected
from quickstart.ec2.emulator.server import Emulator
from quickstart.ec2.upload import DEFAULT_WORKERS
from quickstart.errors import BadInputError, DeniedError
from quickstart.host.progress import Quiet
from quickstart.launch.spoken import BEGIN
from quickstart.measure.configuration import Boot
from quickstart.measure.matrix import Matrix, matrix_of_options
from quickstart.measure.results import Results
from quickstart.model import Readiness
from quickstart.model.disk import Loader
from quickstart.model.words import ReadyKind
from quickstart.report import document
from quickstart.report.report import write_report
from quickstart.store.store import Store
from tests.contract.ec2box import (
    PATIENCE,
    ROOT_AT_BYTES,
    client,
    emulated,
    environment,
    left_in,
    made_source,
    own,
    run,
)
from tests.contract.machinebox import WEB, StandIns
from tests.contract.test_ami_cli import quickstart
from tests.contract.test_ami_run import wait_until_gone

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


@pytest.fixture(name="account")
def _account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    monkeypatch.setenv("HOME", str(tmp_path))
    source = made_source(tmp_path)
    source.out.rename(tmp_path / "web")
    _without_machines(monkeypatch, source.root_at_bytes, tmp_path)
    standing = StandIns(serves=True, said=console())
    with (
        emulated(tmp_path, hypervisor=standing) as emulator,
        Store(tmp_path / "store", lambda text: None) as store,
    ):
        own(monkeypatch, emulator)
        yield Account(client(emulator, DEFAULT_WORKERS), emulator, standing, store, tmp_path)


def _without_machines(monkeypatch: pytest.MonkeyPatch, root_at_bytes: int, place: Path) -> None:
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


def test_a_series_measures_fresh_machines_and_leaves_nothing(account: Account) -> None:
    matrix = matrix_of()
    runner = account.runner(matrix)
    before_ns = time.monotonic_ns()
    results = account.measure(matrix, runner)
    took_ns = time.monotonic_ns() - before_ns
    assert [sample.cell.configuration for sample in results.samples] == [
        *("standard", "quickstart", "quickstart", "standard")
    ]
    for sample in results.samples:
        assert sample.censored == ""
        assert sample.t_app_ns == READY_NS
        assert sample.t_pr_ns + sample.t_app_ns == sample.t_total_ns
        assert 0 < sample.t_total_ns < took_ns
        assert (sample.guest.requests, sample.guest.read_bytes) == (120, 8000 * 512)
    assert series.invalid(results) == ()
    # Each run had a machine and a volume of its own, by the image of its configuration.
    assert len(account.standing.seen) == 4
    images = [each.order.image.id for each in account.emulator.fleet.instances.values()]
    assert images[0] == images[3] != images[1] == images[2]
    assert results.circumstances.versions["machine small"] == "t3.small"
    assert results.circumstances.host["cloud"] == "emulated EC2"
    assert account.aws.account not in document.text_of(results)
    assert len(account.emulator.account.images) == 2
    runner.remove_images()
    wait_until_gone(account.emulator)
    assert left_in(account.emulator) == []
    write_report(results, (), account.place / "results")
    report = (account.place / "results/report.html").read_text()
    assert "<title>QuickStart bench: options (emulated EC2)</title>" in report
    assert "From launch to ready: ebs-cold, small machine, emulated EC2" in report


@pytest.mark.parametrize(
    ("said", "reasons"),
    [
        pytest.param(
            console("quickstart: fallback 1: /etc/x is not as it was packed; the stock init takes over"),
            ["", "the fast start did not happen: quickstart: fallback 1"],
            id="a fallback",
        ),
        pytest.param(
            console("Debian GNU/Linux"),
            ["", "the fast start did not happen: the console does not say"],
            id="the stock entry",
        ),
        pytest.param(
            console().replace(f"ready {READY_NS}".encode(), b"ready 90000000000"),
            ["the application answered before its machine could"] * 2,
            id="another program's answer",
        ),
        pytest.param(
            f"{BEGIN}beacon 900 ens5 172.31.0.15\r\n{STARTED}\r\n".encode() + console("a kernel panic"),
            ["", "the fast start did not happen: the console does not say"],
            id="the stock entry after a crash",
        ),
        pytest.param(
            console(after=f"{STARTED[:40]}[    1.234567] nvme: x\r\n{STARTED[40:]}"),
            ["", ""],
            id="a torn line",
        ),
        pytest.param(b"login: ", ["the launch agent's words are not"] * 2, id="no agent"),
        pytest.param(
            console().replace(b"ready 2", b"ready x"),
            ["the launch agent's words are not"] * 2,
            id="odd words",
        ),
        pytest.param(
            console().replace(b"nvme0n1", b"nvme9n1"),
            ["the guest's /proc/diskstats has no nvme0n1"] * 2,
            id="no disk",
        ),
    ],
)
def test_what_is_no_measurement_is_censored(account: Account, said: bytes, reasons: list[str]) -> None:
    account.standing.said = said
    matrix = matrix_of(runs=1)
    results = account.measure(matrix, account.runner(matrix))
    for sample, reason in zip(results.samples, reasons, strict=True):
        assert sample.censored.startswith(reason), sample.censored
        assert bool(sample.censored) == bool(reason)
    wait_until_gone(account.emulator)


def test_a_launch_that_ec2_did_not_take_at_once_is_made_again(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows which of the calls has started the machine, so its times are none."""
    whole, launches = Aws.call, 0

    def twice(self: Aws, service: str, name: str, **parameters: Any) -> dict[str, Any]:
        nonlocal launches
        if name == "run_instances":
            launches += 1
            if launches == 1:
                parameters["tried"](time.monotonic_ns())
        return whole(self, service, name, **parameters)

    monkeypatch.setattr(Aws, "call", twice)
    matrix = matrix_of(runs=1)
    results = account.measure(matrix, account.runner(matrix))
    assert [sample.censored for sample in results.samples] == ["", ""]
    assert launches == len(account.standing.seen) == 3
    wait_until_gone(account.emulator)


def test_two_benches_of_one_disk_have_images_of_their_own(account: Account) -> None:
    matrix = matrix_of(runs=1)
    one, two = (account.runner(matrix, owner=name) for name in ("a", "b"))
    account.measure(matrix, one)
    again = dataclasses.replace(account, place=account.place / "again")
    again.measure(matrix, two)
    one.remove_images()
    assert len(account.emulator.account.images) == 2


def test_with_user_data_a_stock_boot_is_no_fault(account: Account) -> None:
    account.standing.said = console(
        "quickstart: fallback 1: cloud-init has not been through this machine yet"
    )
    matrix = matrix_of(runs=1)
    results = account.measure(matrix, account.runner(matrix, user_data=b"hunter2"))
    assert [sample.censored for sample in results.samples] == ["", ""]
    assert [each.metadata.user_data for each in account.standing.seen] == [b"hunter2"] * 2
    assert "7 bytes, SHA-256 f52fbd32b2b3b86f" in results.circumstances.versions["user data"]
    assert "hunter2" not in document.text_of(results)


def test_a_machine_that_does_not_start_and_one_that_nobody_may_start(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.standing.fails = "t3.small"
    matrix = matrix_of(runs=1)
    results = account.measure(matrix, account.runner(matrix))
    assert all("Server.InternalError" in sample.censored for sample in results.samples)
    whole = Aws.call

    def denied(self: Aws, service: str, name: str, **parameters: Any) -> dict[str, Any]:
        if name == "run_instances":
            raise DeniedError("ec2:RunInstances", "")
        return whole(self, service, name, **parameters)

    again = dataclasses.replace(account, place=account.place / "again")
    with monkeypatch.context() as patched, pytest.raises(DeniedError):
        patched.setattr(Aws, "call", denied)
        again.measure(matrix, again.runner(matrix))
    # The next call goes on with the same images.
    assert len(account.emulator.account.images) == 2
    variables = environment(account.emulator)
    asked = quickstart(account.place, ["bench", "cleanup"], variables)
    assert (asked.returncode, len(account.emulator.account.images)) == (2, 2), asked.stderr
    removed = quickstart(account.place, ["bench", "cleanup", "--yes", "--json"], variables)
    assert removed.returncode == 0, removed.stderr
    assert len(json.loads(removed.stdout)["result"]["removed"]) == 4
    assert left_in(account.emulator) == []


def test_an_interrupted_series_ends_its_machine_and_goes_on(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = matrix_of()
    whole, calls = waiting.wait_for_words, 0

    def interrupted(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return whole(*given)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(cloud, "wait_for_words", interrupted)
        account.measure(matrix, account.runner(matrix))
    wait_until_gone(account.emulator)
    starts = account.emulator.calls["StartSnapshot"]
    results = account.measure(matrix, account.runner(matrix))
    assert len(results.samples) == 4
    assert account.emulator.calls["StartSnapshot"] == starts == 2


def test_what_is_refused_before_anything_is_written(account: Account) -> None:
    with pytest.raises(BadInputError, match="emulated EC2, and the clock is ec2"):
        matrix = matrix_of("ec2")
        account.measure(matrix, account.runner(matrix))
    matrix = matrix_of(runs=100)
    assert machine_hours(matrix) > 1
    with pytest.raises(BadInputError, match=r"may use .* machine hours") as caught:
        account.measure(matrix, account.runner(matrix, most_machine_hours=1.0))
    with pytest.raises(BadInputError, match="the limit is nan"):
        account.measure(matrix, account.runner(matrix, most_machine_hours=float("nan")))
    assert "--max-machine-hours" in (caught.value.hint or "")
    assert left_in(account.emulator) == []
    assert clock_of(account.aws) == "ec2-emulated"
    assert not (account.place / "results/results.json").exists()


# The calls at which a series is killed: before AWS gets the call, or before its answer is noted.
KILLED = [
    (name, number, when)
    for when in ("before", "after")
    for name, number in (
        ("start_snapshot", 1),
        ("put_snapshot_block", 9),
        ("complete_snapshot", 2),
        ("register_image", 1),
        ("run_instances", 1),
        ("describe_instances", 2),
        ("get_console_output", 2),
        ("terminate_instances", 1),
        ("run_instances", 4),
        ("deregister_image", 1),
        ("delete_snapshot", 2),
    )
]


def series_that_kills_itself(place: Path, operation: str, number: int, when: str) -> None:
    """A program of its own: a whole series, which gets SIGKILL at the given call."""
    whole, seen = Aws.call, 0
    lock = threading.Lock()

    def call(self: Aws, service: str, name: str, **parameters: Any) -> dict[str, Any]:
        nonlocal seen
        with lock:
            seen += name == operation
            is_now = name == operation and seen == number
        if is_now and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = whole(self, service, name, **parameters)
        if is_now:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    with pytest.MonkeyPatch.context() as patched, Store(place / "store", lambda text: None) as store:
        _without_machines(patched, ROOT_AT_BYTES, place)
        patched.setattr(Aws, "call", call)
        aws = connected(Place(), DEFAULT_WORKERS, PATIENCE)
        options = CloudOptions(group_ids=(WEB,))
        matrix = matrix_of()
        runner = CloudRunner(matrix=matrix, aws=aws, options=options, store=store, progress=Quiet())
        asked = series.Bench(matrix, place / "results", ("quickstart", "bench"), "2026-12-01T00:00:00Z")
        series.run_matrix(asked, runner, Quiet())
        runner.remove_images()


@pytest.mark.full
@pytest.mark.parametrize(("operation", "number", "when"), KILLED)
def test_cleanup_leaves_nothing_of_a_series_that_was_killed(
    account: Account, operation: str, number: int, when: str
) -> None:
    words = f"Path({str(account.place)!r}), {operation!r}, {number}, {when!r}"
    program = (
        "from pathlib import Path; from tests.contract.test_bench_cloud import series_that_kills_itself; "
        f"series_that_kills_itself({words})"
    )
    variables = environment(account.emulator)
    home = {"PATH": os.environ["PATH"], "HOME": str(account.place), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**home, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    removed = quickstart(account.place, ["bench", "cleanup", "--yes", "--json"], variables)
    assert removed.returncode == 0, removed.stderr
    wait_until_gone(account.emulator)
    assert left_in(account.emulator) == []
