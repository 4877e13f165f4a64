"""`bench --backend ec2` against the emulator. No machine boots here (machinebox.py), and no disk is prepared: what a series
makes of a machine's answer and console, what it costs at most, and that nothing is left.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quickstart.bench import cloud, series
from quickstart.bench.cloud import clock_of, machine_hours
from quickstart.cli.cloud.ami import check_name
from quickstart.ec2 import waiting
from quickstart.ec2.aws import Aws
from quickstart.errors import BadInputError, DeniedError
from quickstart.launch.spoken import BEGIN
from quickstart.report import document
from quickstart.report.report import write_report
from tests.contract.cloudbox import (
    READY_NS,
    STARTED,
    Account,
    console,
    made_account,
    matrix_of,
)
from tests.contract.ec2box import (
    environment,
    left_in,
)
from tests.contract.test_ami_cli import quickstart
from tests.contract.test_ami_run import wait_until_gone


@pytest.fixture(name="account")
def _account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    with made_account(tmp_path, monkeypatch) as account:
        yield account


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


DISK = ("bench", "--disk", "web", "--configuration", "standard")
ON_EC2 = ("--clock", "ec2-emulated", "--storage", "ebs-cold")
IN_QEMU = ("--clock", "virtual", "--storage", "ebs-cold", "--firmware", "uefi")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param([*DISK, *ON_EC2], "--backend ec2 starts them", id="a clock alone starts nothing"),
        pytest.param([*DISK, *IN_QEMU, "--subnet", "subnet-1"], "an option is for EC2", id="an option"),
        pytest.param([*DISK, *IN_QEMU, "--backend", "ec2"], "an option is for EC2", id="the backend"),
        pytest.param(["ami", "run", "web 1", "--timeout", "nan"], "is no time", id="no time"),
    ],
)
def test_words_that_contradict_each_other_start_nothing(
    account: Account, words: list[str], said: str
) -> None:
    called = quickstart(account.place, words, environment(account.emulator))
    assert called.returncode == 2, called.stderr
    assert said in called.stderr
    assert left_in(account.emulator) == []


def test_no_image_of_a_user_has_a_name_of_the_benchs() -> None:
    check_name("quickstart bench")
    with pytest.raises(BadInputError, match="`bench cleanup` removes them"):
        check_name("quickstart-bench-x")
