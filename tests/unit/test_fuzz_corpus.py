"""The committed corpus through all targets: every former finding now ends in a result or in an error of ours.

`make fuzz` finds new inputs.
"""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from quickstart.errors import TraceError
from tests.fuzz.limits import outcome
from tests.fuzz.mutate import mutated
from tests.fuzz.places import joined, parts_of, put_nodes
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parents[1] / "fuzz/corpus"
# qemu.qmp tells its log of each message that is none.
logging.getLogger("qemu.qmp").setLevel(logging.CRITICAL)
logging.getLogger("asyncio").setLevel(logging.CRITICAL)
NAMES = sorted(TARGETS)


def test_every_target_has_inputs_and_every_input_a_target() -> None:
    assert sorted(path.name for path in CORPUS.iterdir()) == sorted(TARGETS)
    assert all(any((CORPUS / name).iterdir()) for name in TARGETS)


@pytest.mark.parametrize("name", NAMES)
def test_the_corpus(tmp_path: Path, name: str) -> None:
    for path in sorted((CORPUS / name).iterdir()):
        assert outcome(TARGETS[name], path.read_bytes(), tmp_path) == "", path


@pytest.mark.parametrize("name", NAMES)
def test_a_few_changed_inputs(tmp_path: Path, name: str) -> None:
    """The same ones each time."""
    chance = random.Random(name)
    seeds = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    for _ in range(8):
        data = mutated(chance.choice(seeds), TARGETS[name].words, 16_000, chance)
        assert outcome(TARGETS[name], data, tmp_path) == ""


def raises(error: BaseException) -> Target:
    def run(data: bytes, place: Path) -> None:
        raise error

    return Target(run)


def test_what_is_a_finding(tmp_path: Path) -> None:
    assert outcome(raises(TraceError("ours")), b"", tmp_path) == ""
    for error in (ValueError("x"), RecursionError(), MemoryError(), KeyError("x"), AssertionError()):
        assert type(error).__name__ in outcome(raises(error), b"", tmp_path)

    def hangs(data: bytes, place: Path) -> None:
        while True:
            pass

    assert "TooLongError" in outcome(Target(hangs), b"", tmp_path, 0.2)


def test_files_of_an_input() -> None:
    names = ("a", "b/c")
    assert parts_of(joined({"a": b"1\n2", "b/c": b""}), names) == {"a": b"1\n2", "b/c": b""}
    assert parts_of(b"x\n%%% ../../etc/passwd\ny\n%%% b/c\nz", names) == {"a": b"x", "b/c": b"z"}


def test_nodes_stay_below_their_root(tmp_path: Path) -> None:
    assert put_nodes(tmp_path, b"d /old") == tmp_path / "nodes"
    put_nodes(
        tmp_path, b"f ../../up\nl /link /etc\nf /link/inside\nd /\nf /a\nf /a/b\nl /z \0\nf " + b"n" * 300
    )
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert found == {"nodes", "nodes/up", "nodes/link", "nodes/a"}
