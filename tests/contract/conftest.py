"""What several contract tests start: the launch agent, the starter."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.agentbox import FLAGS, INTERVAL_MS, SECONDS, SOURCES, Namespaces, Peer, Start
from tests.contract.starterbox import compiled


@pytest.fixture(scope="session")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.fail("no C compiler: apt-get install gcc libc6-dev")
    program = tmp_path_factory.mktemp("agent") / "agent"
    build = subprocess.run(
        [compiler, *FLAGS, "-o", program, *SOURCES], capture_output=True, text=True, timeout=120
    )
    assert build.returncode == 0, build.stderr + "\n(missing libc? apt-get install gcc libc6-dev)"
    return program


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
    return compiled(tmp_path_factory.mktemp("starter") / "starter")
