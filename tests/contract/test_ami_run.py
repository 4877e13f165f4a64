"""`ami run` and `ami cleanup` against the emulator: what they say, their exit codes, and that nothing is left running."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quickstart.ec2 import machines
from quickstart.ec2.aws import Aws, Patience
from quickstart.ec2.create import create
from quickstart.ec2.emulator.faults import Trouble
from quickstart.ec2.emulator.fleet import State
from quickstart.ec2.emulator.server import Emulator
from quickstart.ec2.images import Waiting
from quickstart.ec2.policy import policy
from quickstart.errors import CloudError, DeniedError, UnavailableError
from quickstart.host.progress import Quiet
from tests.contract.ec2box import emulated, environment, made_source, own, wanted
from tests.contract.machinebox import WEB, Account, StandIns, id_of
from tests.contract.test_ami_cli import WORDS, quickstart

LIMIT_S = 60.0
SECRET = "hunter2-of-the-user-data"  # noqa: S105 - of nobody


@pytest.fixture(name="account")
def _account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    monkeypatch.setenv("HOME", str(tmp_path))
    source = dataclasses.replace(made_source(tmp_path), ready="http:80/ 200")
    standing = StandIns(serves=True, fails="t3.nano", ends="t3.medium")
    with emulated(tmp_path, Trouble(throttled=0.01, unavailable=0.01), hypervisor=standing) as emulator:
        aws = own(monkeypatch, emulator)
        made = create(aws, wanted(source), Quiet(), resume=False)
        yield Account(aws, emulator, standing, made, source.disk)


def running(emulator: Emulator) -> list[str]:
    return [each.id for each in emulator.fleet.instances.values() if each.state is not State.TERMINATED]


def wait_until_gone(emulator: Emulator) -> None:
    end_s = time.monotonic() + LIMIT_S
    while running(emulator):
        assert time.monotonic() < end_s, "a machine still runs"
        time.sleep(0.05)
    assert emulator.fleet.volumes == {}


def test_a_machine_answers_and_is_gone(tmp_path: Path, account: Account) -> None:
    data = tmp_path / "data"
    data.write_text(f"#cloud-config\npassword: {SECRET}\n")
    words = ["ami", "run", "web 1", "--check", "--security-group", WEB, "--user-data", str(data), "--json"]
    called = quickstart(tmp_path, words, environment(account.emulator))
    assert called.returncode == 0, called.stderr
    result = json.loads(called.stdout)["result"]
    assert result["image_id"] == account.image.image_id
    assert result["url"] == f"http://{result['address']}/"
    assert 0 < result["running_ns"] < result["ready_ns"]
    wait_until_gone(account.emulator)
    (hardware,) = account.standing.seen
    assert hardware.metadata.user_data == data.read_bytes()
    assert hardware.type.name == "t3.small"
    (instance,) = account.emulator.fleet.instances.values()
    assert instance.tags["Name"] == "quickstart web 1"
    assert instance.order.metadata_options["HttpTokens"] == "required"
    # The token makes a repeated call start one machine only.
    assert instance.order.given["ClientToken"] == f"quickstart-{instance.tags[machines.RUN_TAG]}"
    for text in (called.stdout, called.stderr, str(instance.tags)):
        assert SECRET not in text
        assert account.emulator.key.secret not in text


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        pytest.param(["--type", "t3.nano"], 1, "Server.InternalError", id="it cannot start"),
        pytest.param(["--type", "t3.medium"], 1, "Instance initiated shutdown", id="it switches itself off"),
        pytest.param(["--type", "m1.small"], 1, "no instance type m1.small", id="a type that is not there"),
        pytest.param(
            ["--ready", "tcp:81", "--timeout", "3"], 1, "gave no right answer in time", id="no answer"
        ),
        pytest.param(
            ["--ready", "http:80/ 404", "--timeout", "3"], 1, "--security-group", id="a wrong answer"
        ),
        pytest.param(
            ["--security-group", "sg-1"], 1, "InvalidGroup.NotFound", id="a group that is not there"
        ),
        pytest.param(["--ready", "exec:true"], 2, "is no readiness request", id="no request"),
        pytest.param(["--user-data", "/none"], 3, "/none", id="no file"),
    ],
)
def test_what_goes_wrong_leaves_no_machine(
    tmp_path: Path, account: Account, words: list[str], status: int, said: str
) -> None:
    called = quickstart(tmp_path, ["ami", "run", "web 1", "--check", *words], environment(account.emulator))
    assert said in called.stderr, called.stderr
    assert called.returncode == status, called.stderr
    assert "Traceback" not in called.stderr
    wait_until_gone(account.emulator)


def started(place: Path, account: Account, words: list[str], until: str) -> subprocess.Popen[str]:
    """`ami run`, once its machine runs and it has said ``until``."""
    process = subprocess.Popen(
        [*WORDS, "ami", "run", "web 1", *words],
        env={"PATH": os.environ["PATH"], "HOME": str(place), **environment(account.emulator)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        # A test under make has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stderr is not None
    # It ends when the process does.
    assert any(until in line for line in process.stderr)
    return process


@pytest.mark.parametrize(
    ("words", "until", "status"),
    [
        pytest.param(["--security-group", WEB], "Ctrl-C ends the machine", 0, id="ready"),
        pytest.param(["--ready", "tcp:81"], "starts (", 130, id="waits"),
    ],
)
def test_ctrl_c_ends_the_machine(
    tmp_path: Path, account: Account, words: list[str], until: str, status: int
) -> None:
    with started(tmp_path, account, words, until) as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == status
    wait_until_gone(account.emulator)


def test_cleanup_ends_what_a_killed_run_has_left_and_nothing_else(tmp_path: Path, account: Account) -> None:
    other = id_of(account.run())
    account.wait(other, "running")
    with started(tmp_path, account, ["--ready", "tcp:81"], "starts (") as process:
        process.kill()
    variables = environment(account.emulator)
    asked = quickstart(tmp_path, ["ami", "cleanup"], variables)
    assert (asked.returncode, len(running(account.emulator))) == (2, 2)
    assert "--yes" in asked.stderr
    ended = quickstart(tmp_path, ["ami", "cleanup", "--yes", "--json"], variables)
    assert ended.returncode == 0, ended.stderr
    (row,) = json.loads(ended.stdout)["result"]["ended"]
    assert row["instance_id"] != other
    account.wait(row["instance_id"], "terminated")
    assert running(account.emulator) == [other]
    again = quickstart(tmp_path, ["ami", "cleanup", "--yes", "--json"], variables)
    assert json.loads(again.stdout)["result"]["ended"] == []


def _wanted(account: Account) -> machines.Wanted:
    return machines.Wanted(
        image_id=account.image.image_id, image_name="web 1", root_device="/dev/xvda", type="t3.micro"
    )


def test_a_lost_answer_leaves_no_machine(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Aws.call

    def losing(self: Aws, service: str, name: str, **parameters: Any) -> dict[str, Any]:
        answer = whole(self, service, name, **parameters)
        if name == "run_instances":
            raise UnavailableError("no answer", code="")
        return answer

    monkeypatch.setattr(Aws, "call", losing)
    with pytest.raises(UnavailableError), machines.launched(account.aws, _wanted(account), Quiet()):
        raise AssertionError("nothing was launched")
    wait_until_gone(account.emulator)
    assert len(account.emulator.fleet.instances) == 1


def test_when_the_end_is_refused_it_is_said(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, notes = Aws.call, []

    class Noting(Quiet):
        def note(self, text: str) -> None:
            notes.append(text)

    def refusing(self: Aws, service: str, name: str, **parameters: Any) -> dict[str, Any]:
        if name == "terminate_instances":
            raise DeniedError("ec2:TerminateInstances", "")
        return whole(self, service, name, **parameters)

    with monkeypatch.context() as patched, pytest.raises(CloudError):
        patched.setattr(Aws, "call", refusing)
        with machines.launched(account.aws, _wanted(account), Noting()) as identifier:
            pass
    assert notes == [f"{identifier} may still run: `quickstart ami cleanup` ends what is left"]


def test_a_machine_that_ec2_says_it_does_not_know_is_not_taken_for_ended(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    identifier = id_of(account.run())
    account.wait(identifier, "running")
    whole = Aws.call

    def unknown(self: Aws, service: str, name: str, **parameters: Any) -> dict[str, Any]:
        if name == "terminate_instances":
            raise CloudError("not found", code="InvalidInstanceID.NotFound")
        return whole(self, service, name, **parameters)

    with monkeypatch.context() as patched, pytest.raises(CloudError, match="not found"):
        patched.setattr(Aws, "call", unknown)
        machines.terminate(account.aws, [identifier])
    # One that is really gone is no error, and does not keep the others running.
    machines.terminate(replace(account.aws, patience=Patience(tries=1)), ["i-00000000000000000", identifier])
    wait_until_gone(account.emulator)


def test_ctrl_c_while_a_machine_is_being_ended_ends_it(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, seen = Aws.call, []

    def interrupted(self: Aws, service: str, name: str, **parameters: Any) -> dict[str, Any]:
        seen.append(name)
        if seen.count("terminate_instances") == 1 and name == "terminate_instances":
            raise KeyboardInterrupt
        return whole(self, service, name, **parameters)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Aws, "call", interrupted)
        with machines.launched(account.aws, _wanted(account), Quiet()):
            pass
    wait_until_gone(account.emulator)


def test_a_refusal_after_a_lost_answer_leaves_no_machine(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Aws.call

    def losing(self: Aws, service: str, name: str, **parameters: Any) -> dict[str, Any]:
        answer = whole(self, service, name, **parameters)
        if name == "run_instances":
            parameters["tried"](time.monotonic_ns())
            raise DeniedError("ec2:RunInstances", "")
        return answer

    with monkeypatch.context() as patched, pytest.raises(DeniedError):
        patched.setattr(Aws, "call", losing)
        with machines.launched(account.aws, _wanted(account), Quiet()):
            raise AssertionError("nothing was launched")
    wait_until_gone(account.emulator)
    assert len(account.emulator.fleet.instances) == 1


def test_the_policy_is_enough_and_not_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    source = dataclasses.replace(made_source(tmp_path), ready="http:80/ 200")
    document: dict[str, Any] = dict(policy(machines=True))
    standing = StandIns(serves=True)
    with emulated(tmp_path, policy=document, hypervisor=standing) as emulator:
        variables: Mapping[str, str] = environment(emulator)
        create(own(monkeypatch, emulator), wanted(source), Quiet(), resume=False)
        words = ["ami", "run", "web 1", "--check", "--security-group", WEB]
        assert quickstart(tmp_path, words, variables).returncode == 0
        # The emulator looks at the document at each call.
        document["Statement"][0]["Action"].remove("ec2:RunInstances")
        denied = quickstart(tmp_path, words, variables)
        assert denied.returncode != 0
        assert "no permission for ec2:RunInstances" in denied.stderr
        assert "--machines" in denied.stderr
        wait_until_gone(emulator)


def test_a_private_address_counts_only_when_no_public_one_comes(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else may have it in the client's own network."""
    now_s, states = 0.0, iter(["pending"] * 40 + ["running"] * 40)

    def shown(self: Aws, service: str, name: str, **parameters: Any) -> dict[str, Any]:
        instance = {
            "InstanceId": "i-00000000000000001",
            "State": {"Name": next(states)},
            "PrivateIpAddress": "10.0.0.9",
        }
        return {"Reservations": [{"Instances": [instance]}]}

    def sleep(pause_s: float) -> None:
        nonlocal now_s
        now_s += pause_s

    monkeypatch.setattr(Aws, "call", shown)
    waiting = Waiting(poll_s=1.0, limit_s=100.0, now=lambda: now_s)
    found = machines.wait_for_start(replace(account.aws, sleep=sleep), "i-00000000000000001", waiting)
    assert (found.address, found.has_public_address, now_s) == ("10.0.0.9", False, 55.0)
