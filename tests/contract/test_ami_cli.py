"""The verbs `ami` and `ec2 emulator` as a user calls them: what they say, their exit codes, and what they leave."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from quickstart.ec2.create import Created, create
from quickstart.ec2.emulator.server import Emulator
from quickstart.ec2.emulator.signature import EXPIRED_KEY_ID
from quickstart.ec2.emulator.tagging import matches
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


@pytest.fixture
def made(tmp_path: Path, emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Created:
    """The image "web 1" in the emulator."""
    for name, value in environment(emulator).items():
        monkeypatch.setenv(name, value)
    return create(client(emulator), wanted(made_source(tmp_path)), Quiet(), resume=False)


def test_list_show_and_delete(tmp_path: Path, emulator: Emulator, made: Created) -> None:
    variables = environment(emulator)
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


def test_a_snapshot_of_somebody_else_stays(tmp_path: Path, emulator: Emulator, made: Created) -> None:
    """It is in an image of ours, and has not our tags."""
    variables = environment(emulator)
    emulator.account.snapshots[made.snapshot_id].tags.clear()
    called = quickstart(tmp_path, ["ami", "delete", "web 1", "--yes"], variables)
    assert called.returncode == 0
    assert f"kept, because QuickStart has not made them: {made.snapshot_id}" in called.stderr
    assert [*emulator.account.snapshots] == [made.snapshot_id]


def test_an_image_of_somebody_else_stays(tmp_path: Path, emulator: Emulator, made: Created) -> None:
    variables = environment(emulator)
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
    assert emulator.key.secret not in called.stderr


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("foo", "the endpoint"),
        ("http://[::1", "the endpoint"),
        ("http://joe:hunter2@127.0.0.1:9", "user name or password"),
    ],
)
def test_an_endpoint_that_is_none(tmp_path: Path, emulator: Emulator, url: str, said: str) -> None:
    called = quickstart(tmp_path, ["ami", "list", "--endpoint-url", url], environment(emulator))
    assert called.returncode == 2, called.stderr
    assert said in called.stderr
    assert "hunter2" not in called.stderr
    assert "Traceback" not in called.stderr


class Odd(BaseHTTPRequestHandler):
    """Answers that AWS never gives."""

    answers: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


IDENTITY = (
    b"<R><GetCallerIdentityResult><Account>%s</Account></GetCallerIdentityResult>"
    b"<ResponseMetadata><RequestId>0</RequestId></ResponseMetadata></R>"
)


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([b"<html>not you"], id="a page"),
        pytest.param([b"<R><ResponseMetadata/></R>"], id="no account"),
        pytest.param([IDENTITY % b"a\x1b[2J"], id="an odd account"),
        pytest.param(
            [IDENTITY % b"1", b"<R><imagesSet><item><imageId>x</imageId></item></imagesSet></R>"],
            id="an odd id",
        ),
        pytest.param([IDENTITY % b"1", b"<R><imagesSet><item/></imagesSet></R>"], id="no id"),
        pytest.param([IDENTITY % b"1", b"<R><nextToken>1</nextToken></R>"], id="no end"),
    ],
)
def test_odd_answers(tmp_path: Path, emulator: Emulator, answers: list[bytes]) -> None:
    Odd.answers = list(answers)
    server = HTTPServer(("127.0.0.1", 0), Odd)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        called = quickstart(tmp_path, ["ami", "list"], {**environment(emulator), "AWS_ENDPOINT_URL": url})
    finally:
        server.shutdown()
        server.server_close()
    assert called.returncode == 1, called.stderr
    assert "Traceback" not in called.stderr
    assert "\x1b" not in called.stderr


def test_the_emulator_is_for_its_user_only(tmp_path: Path, emulator: Emulator) -> None:
    """Each emulator has its own key. Nothing is read of a body without a length, or with a large one."""
    with emulated(tmp_path) as other:
        assert other.key != emulator.key
    port = int(emulator.url.rpartition(":")[2])
    for header in (b"Transfer-Encoding: chunked", b"Content-Length: 9000000000"):
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as connection:
            connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 411 ")


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("web*", "web 1", True),
        ("w?b 1", "web 1", True),
        ("*1", "web 1", True),
        ("web", "web 1", False),
        ("we\\*", "web", False),
        ("we\\*", "we*", True),
        ("a\\\\b", "a\\b", True),
        ("*a" * 30 + "b", "a" * 200, False),
        ("", "", True),
        ("*", "", True),
    ],
)
def test_patterns_of_filters(pattern: str, text: str, fits: bool) -> None:
    assert matches(pattern, text) is fits


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
