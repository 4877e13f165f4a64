"""The installed command and one nginx artefact for all VM tests, built for real on first use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest

from quickstart.artefact import directory as artefacts
from quickstart.artefact.manifest import read_manifest
from quickstart.engines.launching import launchers
from quickstart.image.extents import file_extents, tail_extent
from quickstart.launch.drain import whole_text
from quickstart.measure.configuration import Boot
from quickstart.measure.run import Bench
from quickstart.model import MIB
from quickstart.store.store import Store, default_root
from quickstart.volume.emulator import volume_binary
from tests.conftest import NO_ROOT

if TYPE_CHECKING:
    from tests.vm.imaging import Made

COMMAND = Path(sys.executable).with_name("quickstart")
BUILD_S = 1500.0
BOOT_S = 300.0
# A boot that is measured, from a slow volume.
MEASURED_S = 600.0
# Init stays PID 1: for what is not about the hand-off, and sooner done.
STAY = ("--append", "quickstart=stay")
# The command is to see the machine while the distribution's boot goes on.
EARLY = ("--when", "ready")
# Whether UNIT's process is that of the early start; behind tests/vm/guest/settled.sh.
ADOPTED = """\
# A service may answer before it says that it is ready.
for _ in $(seq 3000); do [ ! -s /run/quickstart/main.pid ] || break; sleep 0.1; done
early=$(cat /run/quickstart/main.pid)
wait_settled
systemctl is-system-running --wait
[ "$(systemctl show -P MainPID UNIT)" = "$early" ] && echo same
systemctl is-active UNIT
"""


@dataclass(frozen=True)
class Called:
    """One call of the command: exit status, stdout, stderr."""

    status: int
    out: str
    err: str

    @property
    def console(self) -> str:
        """stderr of `run --console`: the guest's console, its lines without what printk wrote into them, and the notes of `run`."""
        return whole_text(self.err.encode())

    @property
    def result(self) -> dict[str, Any]:
        document = json.loads(self.out)
        assert document["schema"] == 1
        assert document["ok"], document
        found: dict[str, Any] = document["result"]
        return found

    @property
    def error(self) -> dict[str, Any]:
        document = json.loads(self.out)
        assert document["schema"] == 1
        assert not document["ok"], document
        found: dict[str, Any] = document["error"]
        return found

    @property
    def error_text(self) -> str:
        """The error's message with all its details."""
        return "\n".join((self.error["message"], *self.error.get("details", ())))


def quickstart(*words: str | Path, timeout_s: float = BOOT_S, env: dict[str, str] | None = None) -> Called:
    """Run the installed command as a user would."""
    done = subprocess.run(
        [str(COMMAND), *(str(word) for word in words)],
        capture_output=True,
        timeout=timeout_s,
        env={**os.environ, **(env or {})},
        check=False,
    )
    return Called(done.returncode, done.stdout.decode(), done.stderr.decode())


def host(*words: str | Path) -> str:
    """The output of a program of the host; it has to succeed."""
    done = subprocess.run([str(word) for word in words], capture_output=True, timeout=120, check=True)
    return done.stdout.decode(errors="replace")


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with Store(default_root(), print) as found:
        yield found


@pytest.fixture(scope="module")
def layout_disk(
    request: pytest.FixtureRequest, store: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Made]:
    """The disk of `build --image` of a look-alike with the layout that the test names (imaging.with_layout)."""
    from tests.vm.imaging import image_made

    with image_made(store, tmp_path_factory.mktemp(request.param), request.param) as made:
        yield made


@pytest.fixture(scope="session", autouse=True)
def _root() -> None:
    assert os.geteuid() == 0, NO_ROOT


@pytest.fixture(scope="session")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An nginx artefact whose disk no test may change: boot it with --snapshot, or take `used`."""
    out = tmp_path_factory.mktemp("vm") / "nginx"
    # How long a boot takes decides no test, so there is no trial.
    built = quickstart("build", "--no-trial", "--profile", "nginx", "-o", out, "--json", timeout_s=BUILD_S)
    assert built.status == 0, built.err
    assert built.result["made"]
    return out


@pytest.fixture(scope="session")
def bench() -> Iterator[Bench]:
    with Store(default_root(), print) as store:
        yield Bench(launchers=launchers(store), volume=volume_binary(store), limit_s=MEASURED_S)


@pytest.fixture(scope="session")
def boot(artefact: Path) -> Boot:
    """A boot of ``artefact`` as the bench has it."""
    found = artefacts.load(artefact)
    kernel = PurePosixPath(f"/boot/vmlinuz-{read_manifest(artefact).kernel_version}")
    initramfs = tail_extent(found.disk.stat().st_size, found.initramfs_bytes, MIB)
    return Boot(
        configuration="quickstart",
        command_line="stock",
        kernel=found.kernel,
        initrds=(found.initramfs,),
        fetched=(*file_extents(found.disk, kernel), initramfs),
        volume=found.disk,
        attached=True,
        cmdline=found.cmdline,
        memory_mib=found.memory_mib,
        mac=found.mac,
        ready=found.ready,
        unit="nginx.service",
    )


@pytest.fixture
def used(artefact: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the artefact whose disk a test may write to."""
    copy = tmp_path / "nginx"
    host("cp", "-a", "--sparse=always", artefact, copy)
    yield copy
    host("rm", "-r", copy)


def guest_file(artefact: Path, path: str) -> str:
    """A file of the root disk as it lies there, read without mounting it."""
    return host("debugfs", "-R", f"cat {path}", artefact / "root.raw")


def children(pid: int) -> list[int]:
    """The processes whose parent is ``pid``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            stat = path.read_text()
        except OSError:
            continue
        if int(stat.rpartition(")")[2].split()[1]) == pid:
            found.append(int(path.parent.name))
    return found


def assert_gone(pids: list[int]) -> None:
    """Every one of the processes has ended, or ends within seconds."""
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
