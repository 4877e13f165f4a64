"""The verbs `ami` and `ec2 emulator` as a user calls them: what they say, their exit codes, and what they leave."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from quickstart.ec2.create import create
from quickstart.ec2.emulator.server import Emulator
from quickstart.ec2.emulator.signature import EXPIRED_KEY_ID, Key
from quickstart.host.progress import Quiet
from tests.contract.ec2box import client, emulated, environment, made_source, wanted

LIMIT_S = 60.0
WORDS = [sys.executable, "-P", "-c", "from quickstart.cli.main import entry_point; entry_point()"]


def quickstart(
    place: Path, words: list[str], variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """A call of `quickstart` with no variables of AWS but ``variables``."""
    return subprocess.run(
        [*WORDS, *words],
        env={"PATH": os.environ["PATH"], "HOME": str(place), **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Emulator]:
    with emulated(tmp_path) as found:
        yield found


def test_list_show_and_delete(tmp_path: Path, emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = environment(emulator)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    made = create(client(emulator), wanted(made_source(tmp_path)), Quiet(), resume=False)
    listed = quickstart(tmp_path, ["ami", "list", "--json"], variables)
    (image,) = json.loads(listed.stdout)["result"]["images"]
    assert (image["image_id"], image["name"], image["snapshot_ids"]) == (
        *(made.image_id, "web 1", [made.snapshot_id]),
    )
    shown = quickstart(tmp_path, ["ami", "show", "web 1"], variables)
    assert made.image_id in shown.stdout
    asked = quickstart(tmp_path, ["ami", "delete", "web 1"], variables)
    assert (asked.returncode, len(emulator.account.images)) == (2, 1)
    assert "--yes" in asked.stderr
    deleted = quickstart(tmp_path, ["ami", "delete", "web 1", "--yes"], variables)
    assert deleted.returncode == 0, deleted.stderr
    assert f"{made.image_id} {made.snapshot_id}" in deleted.stdout
    assert not emulator.account.images
    assert not emulator.account.snapshots
    again = quickstart(tmp_path, ["ami", "delete", "web 1", "--yes"], variables)
    assert again.returncode == 2
    assert "has made no image web 1" in again.stderr


def test_an_image_of_somebody_else_stays(
    tmp_path: Path, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = environment(emulator)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    made = create(client(emulator), wanted(made_source(tmp_path)), Quiet(), resume=False)
    emulator.account.images[made.image_id].tags.clear()
    emulator.account.snapshots[made.snapshot_id].tags.clear()
    called = quickstart(tmp_path, ["ami", "delete", "web 1", "--yes"], variables)
    assert called.returncode == 2
    assert len(emulator.account.images) == 1


NOBODY = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}


@pytest.mark.parametrize(
    ("changed", "said", "hint"),
    [
        pytest.param({"AWS_REGION": "us-east-1"}, "AuthFailure", "renew them", id="another region"),
        pytest.param(
            {"AWS_SECRET_ACCESS_KEY": "x"}, "SignatureDoesNotMatch", "renew them", id="wrong secret"
        ),
        pytest.param({"AWS_ACCESS_KEY_ID": "AKIA" + "0" * 16}, "AuthFailure", "renew them", id="unknown key"),
        pytest.param({"AWS_ACCESS_KEY_ID": EXPIRED_KEY_ID}, "have expired", "renew them", id="expired"),
        pytest.param(NOBODY, "no credentials", "aws configure", id="no credentials"),
        pytest.param({"AWS_REGION": "", "AWS_DEFAULT_REGION": ""}, "no region", "--region", id="no region"),
        pytest.param({"AWS_PROFILE": "none-such"}, "none-such", "--aws-profile", id="no profile"),
    ],
)
def test_a_wrong_account(
    tmp_path: Path, emulator: Emulator, changed: Mapping[str, str], said: str, hint: str
) -> None:
    given = {**environment(emulator), **changed}
    called = quickstart(tmp_path, ["ami", "list"], {name: value for name, value in given.items() if value})
    assert called.returncode == 2, called.stderr
    first, *rest = called.stderr.splitlines()
    assert said in first
    assert hint in " ".join(rest)
    assert "Traceback" not in called.stderr
    assert Key().secret not in called.stderr


def test_nobody_answers(tmp_path: Path, emulator: Emulator) -> None:
    """The repetitions end. A port of the loopback interface that nobody listens on refuses at once."""
    variables = {**environment(emulator), "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    began_s = time.monotonic()
    called = quickstart(tmp_path, ["ami", "list"], variables)
    assert called.returncode == 1
    assert "got no answer from http://127.0.0.1:9" in called.stderr
    assert time.monotonic() - began_s < LIMIT_S


def test_the_emulator_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    server = subprocess.Popen(
        [*WORDS, "ec2", "emulator", "--json"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        text = ""
        while not text.endswith("}\n") or text.count("{") != text.count("}"):
            line = server.stdout.readline()
            assert line
            text += line
        variables = json.loads(text)["result"]["environment"]
        assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+", variables["AWS_ENDPOINT_URL"])
        called = quickstart(tmp_path, ["ami", "list", "--json"], variables)
        assert json.loads(called.stdout)["result"] == {"images": [], "snapshots": []}
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=LIMIT_S)
    assert server.returncode == 130
    assert not list(tmp_path.glob("quickstart-ec2-*"))


def test_the_policy(tmp_path: Path) -> None:
    called = quickstart(tmp_path, ["ami", "policy"], {})
    assert "ebs:PutSnapshotBlock" in json.loads(called.stdout)["Statement"][0]["Action"]
