"""A bench in EC2 that gets SIGKILL at any call: `bench cleanup` leaves nothing in the account."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quickstart.bench import series
from quickstart.bench.cloud import CloudOptions, CloudRunner
from quickstart.ec2.aws import Aws, Place, connected
from quickstart.ec2.upload import DEFAULT_WORKERS
from quickstart.host.progress import Quiet
from quickstart.store.store import Store
from tests.contract.cloudbox import (
    REPOSITORY,
    Account,
    made_account,
    matrix_of,
    without_machines,
)
from tests.contract.ec2box import (
    PATIENCE,
    ROOT_AT_BYTES,
    environment,
    left_in,
)
from tests.contract.machinebox import WEB
from tests.contract.test_ami_cli import quickstart
from tests.contract.test_ami_run import wait_until_gone


@pytest.fixture(name="account")
def _account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    with made_account(tmp_path, monkeypatch) as account:
        yield account


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
        without_machines(patched, ROOT_AT_BYTES, place)
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
        "from pathlib import Path; from tests.contract.test_bench_cloud_killed import series_that_kills_itself; "
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
