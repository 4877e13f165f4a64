"""Fixtures that several contract tests share: the launch agent, the starter, the volume emulator, a confined image."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quickstart.reference import confine
from quickstart.store.store import Store
from quickstart.volume.emulator import volume_binary
from tests.contract.agentbox import INTERVAL_MS, SECONDS, Namespaces, Peer, Start
from tests.contract.confinebox import PROBE, Box, furnish
from tests.contract.starterbox import Units
from tests.contract.strangers import STRANGER
from tests.contract.volumebox import IMAGE_BYTES
from tests.cprograms import PROGRAMS, STRICT, strictly_compiled
from tests.sanitize.build import program


@pytest.fixture(scope="session")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return strictly_compiled(PROGRAMS["agent"], tmp_path_factory.mktemp("agent") / "agent")


@pytest.fixture
def space() -> Iterator[Namespaces]:
    space = Namespaces()
    try:
        yield space
    finally:
        space.close()


@pytest.fixture
def start(agent: Path, space: Namespaces, tmp_path: Path) -> Iterator[Start]:
    """Starts an agent with these READY words and returns its peer after the hello."""
    with contextlib.ExitStack() as stack:

        def start_agent(*ready: str) -> Peer:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(tmp_path / "port"))
            listener.listen()
            listener.settimeout(SECONDS)
            command = [str(agent), str(tmp_path / "port"), str(INTERVAL_MS), *(ready or ("none",))]
            process = subprocess.Popen(space.inside(*command))
            stack.callback(process.wait, SECONDS)
            stack.callback(process.kill)
            peer = Peer(process, stack.enter_context(listener.accept()[0]).fileno())
            assert peer.message() == ("hello 2", b"")
            return peer

        yield start_agent


@pytest.fixture(scope="session")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return strictly_compiled(PROGRAMS["starter"], tmp_path_factory.mktemp("starter") / "starter")


@pytest.fixture
def units(starter: Path, tmp_path: Path) -> Units:
    return Units(starter, tmp_path)


@pytest.fixture(scope="session")
def caretaker(starter: Path) -> Path:
    """The starter by its other name."""
    path = starter.with_name("caretaker")
    path.symlink_to(starter.name)
    return path


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with Store(tmp_path_factory.mktemp("store")) as store:
        yield volume_binary(store)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A volume's image, no two blocks alike; it must be the same in the end."""
    path = tmp_path_factory.mktemp("image") / "image.raw"
    path.write_bytes(random.Random(7).randbytes(IMAGE_BYTES))
    path.chmod(0o444)
    before = path.read_bytes()
    yield path
    assert path.read_bytes() == before


@pytest.fixture(scope="module")
def confiner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with Store(tmp_path_factory.mktemp("store")) as store:
        yield confine.confiner(store)


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("probe") / "probe"
    subprocess.run([confine.COMPILER, *STRICT, *confine.FLAGS, "-o", made, PROBE], check=True, timeout=120)
    return made


@pytest.fixture
def tree(tmp_path: Path, probe: Path) -> Path:
    """An image with a shell and the probe of confinebox.py."""
    assert os.geteuid() == 0, "a root of its own needs root: run the tests with sudo"
    return furnish(tmp_path / "image", probe)


@pytest.fixture
def box(tree: Path, confiner: Path, tmp_path: Path) -> Box:
    return Box(tree, confiner, tmp_path / "log")


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Each program compiled when it is first asked for."""
    directory = tmp_path_factory.mktemp("sanitized")
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = program(name, directory)
        return made[name]

    return make


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A directory of another user."""
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they give files to others")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, STRANGER, STRANGER)
    return theirs
