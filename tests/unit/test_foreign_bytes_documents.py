"""Bytes of documents that strangers wrote, and of a volume that lies: parsing takes time and memory in proportion
to their length, and ends in a result or a typed error.

Each input here once took minutes or gigabytes or ended in a traceback, or is similar to one that did.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from quickstart.errors import (
    BadInputError,
    MatrixError,
    ProfileError,
    ResultsError,
    StorageModelError,
    VolumeError,
)
from quickstart.measure.matrix import parse_matrix
from quickstart.parse.faults import MAX_LINES
from quickstart.profile import load_profile, parse_profile
from quickstart.report import document
from quickstart.volume.nbd import Connection
from quickstart.volume.storage import parse_model
from tests.unit.hostile import DIGITS, bounded
from tests.unit.smallprofile import SMALL

# ---------------------------------------------------------------- documents

TOML = {
    "deep": "x = " + "[" * 5000,
    "dots": ".".join("a" * 20_000) + " = 1",
    "digits": "x = " + "9" * 4301,
    "hexadecimal": "x = 0x" + "f" * 20_000,
    "date": "x = 1979-99-99",
}


@pytest.mark.parametrize("name", sorted(TOML))
def test_toml_of_a_stranger(tmp_path: Path, name: str) -> None:
    text = TOML[name]
    with bounded(), pytest.raises(ProfileError, match="not TOML"):
        parse_profile(text, "x")
    with bounded(), pytest.raises(StorageModelError, match="not TOML"):
        parse_model(text, "x")
    with bounded(), pytest.raises(MatrixError, match="not TOML"):
        parse_matrix(text, "x", ())


def test_a_profile_that_is_no_plain_file(tmp_path: Path) -> None:
    (tmp_path / "profile.toml").symlink_to("/dev/zero")
    with bounded(), pytest.raises(BadInputError, match="not a regular file"):
        load_profile(str(tmp_path))


def test_more_faults_than_anybody_reads() -> None:
    text = "".join(f"a{n} = 1\n" for n in range(15_000)) + SMALL
    with bounded(), pytest.raises(ProfileError) as caught:
        parse_profile(text, "x")
    assert len(caught.value.problems) == MAX_LINES + 1
    assert caught.value.problems[-1] == "and 14900 more"
    with pytest.raises(ProfileError) as caught:
        parse_profile("x" * 100_000 + " = 1\n" + SMALL, "x")
    assert len(caught.value.message) < 1000


MATRIX = 'schema = 1\nname = "x"\n[[block]]\nprofiles = {}\nconfigurations = {}\nstorages = ["local"]\nclocks = ["wall"]\n'


@pytest.mark.parametrize(
    ("profiles", "configurations", "what"),
    [
        (["app"] * 30_000, ["quickstart"], "'app' again"),
        (
            [f"./{n}" for n in range(20_000)],
            ["quickstart", "standard", "minimal", "ramboot"] * 2,
            "runs, and",
        ),
        ([f"no{n}" for n in range(20_000)], ["quickstart"], "no profile 'no0'"),
        (["app"], ["quickstart"] * 17_000, "'quickstart' again"),
    ],
)
def test_a_matrix_of_more_than_can_be_measured(
    profiles: list[str], configurations: list[str], what: str
) -> None:
    text = MATRIX.format(json.dumps(profiles), json.dumps(configurations))
    with bounded(), pytest.raises(MatrixError, match=what) as caught:
        parse_matrix(text, "x", ("app",))
    assert len(caught.value.problems) <= MAX_LINES + 1


def test_blocks_whose_lists_multiply() -> None:
    lists = {
        "configurations": ["quickstart"],
        "command_lines": ["stock"],
        "clocks": ["wall"],
        "sizes": ["small"],
        "payloads": ["cpio"],
        "patterns": ["single"],
    }
    rows = "".join(f"{key} = {json.dumps(words * 1000)}\n" for key, words in lists.items())
    text = f'schema = 1\nname = "x"\n[[block]]\nprofiles = ["app"]\nstorages = ["local"]\n{rows}'
    with bounded(), pytest.raises(MatrixError, match="again"):
        parse_matrix(text, "x", ("app",))


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"schema": ' + DIGITS + "}", '{"plan": [' + "{}," * 20_000 + "{}]}", "\ud800", "NaN"],
)
def test_results_that_are_none(text: str) -> None:
    with bounded(), pytest.raises(ResultsError) as caught:
        document.parse(text, "x")
    assert len(caught.value.problems) <= MAX_LINES + 1


@pytest.mark.parametrize(
    "text",
    [
        '{"plan": [' + "1," * 200_000 + "1]}",
        '{"runs": [' + "{}," * 200_000 + "{}]}",
        '{"runs": [' + "{}," * 2_000_000 + "{}]}",
        '{"host": {' + ",".join(f'"{n}":1' for n in range(200_000)) + "}}",
        "{" + ",".join(f'"{n}":1' for n in range(200_000)) + "}",
        '{"plan": [{"pattern": "' + "x" * (20 << 20) + '"}]}',
    ],
)
def test_results_with_more_faults_than_memory(text: str) -> None:
    with bounded(mib=512), pytest.raises(ResultsError) as caught:
        document.parse(text, "x")
    assert len(caught.value.message) < 20_000


# ---------------------------------------------------------------- a volume that lies

HELLO = struct.pack(">QQH", 0x4E42444D41474943, 0x49484156454F5054, 3)


def info(kind: int = 3, length: int = 0, magic: int = 0x3E889045565A9) -> bytes:
    return struct.pack(">QIII", magic, 7, kind, length)


@contextlib.contextmanager
def volume(place: Path, said: bytes) -> Iterator[Path]:
    """A server that says ``said`` to whoever comes, again and again until he goes."""
    path = place / "socket"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(1)

        def serve() -> None:
            with contextlib.suppress(OSError), listening.accept()[0] as client:
                client.settimeout(20)
                client.sendall(HELLO)
                while True:
                    client.sendall(said)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield path
    thread.join()


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (info(), "not the NBD protocol"),
        (info(magic=1), "not the NBD protocol"),
        (info(length=2**32 - 1), "not the NBD protocol"),
        (info(kind=0x80000001), "refuses its default export"),
    ],
)
def test_a_volume_that_never_comes_to_the_point(tmp_path: Path, said: bytes, what: str) -> None:
    with volume(tmp_path, said) as path, bounded(), pytest.raises(VolumeError, match=what):
        Connection(path, limit_s=10)
