"""A SIGKILL or a full disk in each step, a damaged entry, two builds at once: afterwards OUT is what a clean build makes.

Store and OUTs are on a tmpfs, because the size of a tmpfs is an option of its mount: a test can fill it at
any time.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from quickstart.engines import boot as pipeline
from quickstart.host.progress import Quiet
from quickstart.profile import load_profile
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root
from tests.vm.conftest import BUILD_S, COMMAND, Called, assert_gone, quickstart

CHECKOUT = Path(__file__).parents[2]
# The store's entries, OUT and one that replaces it take 1.4 GiB.
CHEAP_MIB = 2500
# Making a reference asks for 3 GiB free beside what is there; less than 3 GiB of it are ever used.
LONG_MIB = 6000
DISK = "reference: root disk"
# Each with a moment in the middle of it, in seconds.
CHEAP = ((DISK, 0.5), ("trace: parse", 0.2), ("start set", 0.0), ("initramfs", 0.0), ("image", 0.05))
RENAMES = "rename,renameat,renameat2"


@dataclass(frozen=True)
class Ground:
    """A tmpfs at ``place`` with a store and OUTs on it; nothing else than what a test has put there may stay."""

    place: Path
    size_mib: int

    @property
    def store(self) -> Path:
        return self.place / "store"

    @property
    def out(self) -> Path:
        return self.place / "outs" / "out"

    @property
    def environment(self) -> dict[str, str]:
        return {"QUICKSTART_CACHE": str(self.store), "TMPDIR": str(self.place.parent)}

    def build(self, *words: str | Path) -> Called:
        """A whole build by the command."""
        words = ("build", "--no-trial", "--profile", "nginx", "-o", self.out, *words)
        return quickstart(*words, timeout_s=BUILD_S, env=self.environment)

    def meddle(
        self,
        action: str,
        step: str = "",
        delay_s: float = 0,
        under: Sequence[str] = (),
        image: Sequence[str | Path] = (),
    ) -> Called:
        """A build that is killed or gets a full disk (tests/vm/meddled.py); the disk has room again when it has ended.
        ``image`` is a disk with a profile, for `build --image`.
        """
        words: list[str | Path] = [
            "-m",
            "tests.vm.meddled",
            self.out,
            action,
            self.place,
            *([step, str(delay_s)] if step else []),
            *image,
        ]
        done = subprocess.run(
            [*under, sys.executable, *words],
            capture_output=True,
            text=True,
            timeout=BUILD_S,
            check=False,
            cwd=CHECKOUT,
            env={**os.environ, **self.environment},
        )
        mount("-o", f"remount,size={self.size_mib}m", self.place)
        return Called(done.returncode, done.stdout, done.stderr)

    def kill(
        self, step: str, delay_s: float = 0, action: str = "kill", image: Sequence[str | Path] = ()
    ) -> list[int]:
        """SIGKILL in a step: all that the build had started, which is returned, ends with it, and no mount of its own stays."""
        killed = self.meddle(action, step, delay_s, image=image)
        assert killed.status == -signal.SIGKILL, killed.err
        said = [json.loads(line) for line in killed.out.splitlines()]
        assert {"step": step} in said
        below: list[int] = said[-1]["below"]
        assert_gone(below)
        self.assert_no_mounts()
        return below

    def fill(self, step: str, called: str, delay_s: float = 0, image: Sequence[str | Path] = ()) -> None:
        """A disk that is full from a step on: status 3 and one message that names the place, ``called`` so; nothing half-made."""
        failed = self.meddle("fill", step, delay_s, image=image)
        assert failed.status == 3, failed.err
        said = [json.loads(line) for line in failed.out.splitlines()]
        assert {"step": step} in said
        # Another program of the build may have removed a file since: a few bytes are no room.
        assert [each["full"] for each in said if "full" in each and each["full"] < 4096], failed.out
        assert f"no space left for {called}" in failed.err
        assert "free some space" in failed.err
        assert self.leftovers() == []
        self.assert_no_mounts()

    def assert_no_mounts(self) -> None:
        points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        assert [point for point in points if point.startswith(str(self.place))] == [str(self.place)]

    def leftovers(self) -> list[str]:
        """What lies in the store or beside OUT under a name that is not a finished thing's."""
        strangers = [
            path
            for path in self.store.glob("*/*")
            if not re.fullmatch(r"[0-9a-f]{32}(\.lock|\.json)?", path.name)
        ]
        return [str(path) for path in (*strangers, *self.out.parent.glob(".*"))]

    def entry(self, stage: str) -> Path:
        """The one entry of a stage."""
        (found,) = [path for path in (self.store / stage).iterdir() if path.is_dir()]
        return found

    def forget(self, *stages: str) -> None:
        for stage in stages:
            shutil.rmtree(self.store / stage, ignore_errors=True)

    def assert_builds(self, clean: Path) -> Called:
        """A whole build succeeds, its OUT is ``clean`` byte for byte, and nothing of any build before is left."""
        built = self.build()
        assert built.status == 0, built.err
        assert_equal(self.out, clean)
        assert self.leftovers() == []
        self.assert_no_mounts()
        return built


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *words], timeout=60, check=True)


@contextmanager
def ground_of(place: Path, size_mib: int) -> Iterator[Ground]:
    place.mkdir()
    mount("-t", "tmpfs", "-o", f"size={size_mib}m", "none", place)
    try:
        ground = Ground(place, size_mib)
        ground.store.mkdir()
        ground.out.parent.mkdir()
        yield ground
    finally:
        subprocess.run(["umount", place], timeout=60, check=True)


def assert_equal(out: Path, clean: Path) -> None:
    """The same names, modes and bytes."""
    assert facts(out) == facts(clean)
    for name in facts(clean):
        subprocess.run(["cmp", out / name, clean / name], timeout=120, check=True)


def facts(directory: Path) -> dict[str, int]:
    return {path.name: path.lstat().st_mode for path in directory.iterdir()}


@pytest.fixture(scope="module")
def stocked(artefact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """A store of the tests' own with what the artefact was made of, but the base."""
    profile = load_profile("nginx")
    with (
        ground_of(tmp_path_factory.mktemp("kill") / "disk", CHEAP_MIB) as ground,
        Store(default_root()) as store,
    ):
        # While this store is open nothing of it is removed.
        pipeline.trace(profile, pipeline.TraceOptions(), Context(store, Quiet()))
        for stage, key, _ in pipeline.plan(profile, pipeline.TraceOptions(), store).stages:
            (ground.store / stage).mkdir()
            copy(store.root / stage / key, ground.store / stage)
        for stage in ("agent", "verdicts"):
            if (store.root / stage).exists():
                copy(store.root / stage, ground.store)
        yield ground


def copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", "--reflink=auto", source, target], timeout=300, check=True)


@pytest.fixture
def ground(stocked: Ground) -> Iterator[Ground]:
    """The stocked store, and no OUT."""
    yield stocked
    shutil.rmtree(stocked.out.parent)
    stocked.out.parent.mkdir()


@pytest.mark.parametrize(("step", "middle_s"), CHEAP)
def test_a_build_killed_in_a_step(ground: Ground, artefact: Path, step: str, middle_s: float) -> None:
    for delay_s in sorted({0, middle_s}):
        if step == DISK:
            ground.forget("disk")
        ground.kill(step, delay_s)
        assert not ground.out.exists()
    ground.assert_builds(artefact)


def test_a_build_killed_before_the_exchange(ground: Ground, artefact: Path) -> None:
    """The old OUT and the new one change names by the only rename."""
    copy(artefact, ground.out)
    script = ground.out / "run.sh"
    # A file that its owner may change: it tells the old OUT from a new one.
    script.write_text(f"{script.read_text()}# before\n")
    # strace(1) ends it as it enters the call, which is not done any more.
    under = ("strace", "-qqq", "-o", "/dev/null", "-e", f"trace={RENAMES}")
    killed = ground.meddle("kill", under=(*under, "-e", f"inject={RENAMES}:signal=SIGKILL:when=1"))
    assert killed.status == -signal.SIGKILL, killed.err
    assert ground.leftovers() != []
    assert "# before" in script.read_text()
    built = ground.build()
    assert built.status == 0, built.err
    assert "# before" in script.read_text()
    forced = ground.build("--force")
    assert forced.status == 0, forced.err
    assert_equal(ground.out, artefact)
    assert ground.leftovers() == []


@pytest.mark.parametrize("step", [step for step, _ in CHEAP])
def test_a_disk_that_gets_full_in_a_step(ground: Ground, artefact: Path, step: str) -> None:
    if step == DISK:
        ground.forget("disk")
    ground.fill(step, f"the store {ground.store}" if step == DISK else f"OUT in {ground.out.parent}")
    assert not ground.out.exists()
    ground.assert_builds(artefact)


def test_a_disk_that_gets_full_after_the_last_byte(ground: Ground, artefact: Path) -> None:
    built = ground.meddle("fill", "after image")
    assert built.status == 0, built.err
    assert '{"full": 0}' in built.out
    ground.assert_builds(artefact)


@pytest.mark.parametrize("names", [("out", "other"), ("out", "out")])
def test_two_builds_at_once(ground: Ground, artefact: Path, names: tuple[str, str]) -> None:
    ground.forget("disk")
    outs = [ground.out.with_name(name) for name in names]
    builds = [
        subprocess.Popen(
            [COMMAND, "build", "--no-trial", "--profile", "nginx", "-o", out],
            env={**os.environ, **ground.environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for out in outs
    ]
    said = [build.communicate(timeout=BUILD_S)[1] for build in builds]
    assert [build.returncode for build in builds] == [0, 0], said
    for out in outs:
        assert_equal(out, artefact)
    assert ground.leftovers() == []


def test_a_damaged_root_disk_in_the_store_is_made_again(ground: Ground, artefact: Path) -> None:
    damage(ground.entry("disk") / "root.raw")
    assert told_of_damage(ground.assert_builds(artefact)) == ["disk"]


def damage(path: Path) -> None:
    """Change the byte in the middle of a file."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def told_of_damage(called: Called) -> list[str]:
    """The stages whose entries the build said to be damaged, in one line each."""
    lines = [line for line in called.err.splitlines() if "damaged" in line]
    whole = r" *store entry (\w+)/[0-9a-f]{32} is damaged \(its files are not what was made\): made again"
    found = [re.fullmatch(whole, line) for line in lines]
    return [
        match[1] if match else f"not a line of it: {line}" for match, line in zip(found, lines, strict=True)
    ]


# ---------------------------------------------------------------- what takes longer

# Step; seconds to the SIGKILL; seconds to the full disk, None where a step before or after it stands for it.
BASE = (("reference: debootstrap bookworm", 4.0, 2.0), ("reference: kernel, systemd, ssh, cron", 8.0, 5.0))
REFERENCE = (
    ("reference: copy the base", 0.2, 0.2),
    ("reference: install nginx", 1.0, 0.0),
    ("reference: the distribution's initramfs", 1.0, 0.0),
    ("reference: hash the image", 0.2, 0.0),
)
TRACE = (
    ("choose an accelerator", 0.0, None),
    ("trace: reference boot under strace", 3.0, 0.0),
    ("trace: bring the logs home", 0.2, None),
    ("trace: ldd in the guest", 0.0, 0.0),
)
# Steps in which no other process has to run.
ALONE = ("reference: hash the image", "choose an accelerator")


@pytest.mark.full
def test_the_long_steps_of_an_empty_store(tmp_path: Path) -> None:
    """SIGKILL and a full disk in each of them, every time in the same store; then a whole build, with two damaged entries."""
    clean = Ground(tmp_path / "clean", 0)
    clean.out.parent.mkdir(parents=True)
    words: list[str | Path] = [COMMAND, "build", "--no-trial", "--profile", "nginx", "-o", clean.out]
    with (
        ground_of(tmp_path / "disk", LONG_MIB) as ground,
        (tmp_path / "clean.log").open("wb") as log,
        subprocess.Popen(words, env={**os.environ, **clean.environment}, stdout=log, stderr=log) as beside,
    ):
        for step, kill_s, fill_s in (*BASE, *REFERENCE, *TRACE):
            below = ground.kill(step, kill_s, "kill" if step in ALONE else "kill-at-work")
            assert below or step in ALONE, step
            if fill_s is not None:
                ground.fill(step, f"the store {ground.store}", fill_s)
            assert not ground.out.exists()
        assert beside.wait(BUILD_S) == 0, (tmp_path / "clean.log").read_text()
        damage(ground.entry("reference") / "root/usr/sbin/nginx")
        # The same image has the same key, so a whole trace can be given to the store that has none.
        trace = ground.store / "trace"
        copy(clean.entry("trace"), trace)
        with (ground.entry("trace") / "strace.log").open("r+b") as file:
            file.truncate(10**6)
        built = ground.build()
        assert built.status == 0, built.err
        assert told_of_damage(built) == ["reference", "trace"]
        assert ground.leftovers() == []
        assert facts(ground.out) == facts(clean.out)
        for name in ("root.raw", "initramfs.img", "vmlinuz", "initrd.img", "run.sh"):
            subprocess.run(["cmp", ground.out / name, clean.out / name], timeout=120, check=True)
        assert without_trace(ground.out) == without_trace(clean.out)
        booted = quickstart("run", ground.out, "--check", env=ground.environment)
        assert booted.status == 0, booted.err


def without_trace(out: Path) -> tuple[object, object]:
    """Manifest and start-set.json without what differs from boot to boot.

    The traces' hashes, the lines of their logs, and the modules that systemd had loaded beside the unit by then.
    """
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest.pop("trace_hashes")
    start_set = json.loads(re.sub(r" \(line \d+\)", "", (out / "start-set.json").read_text()))
    assert start_set["modules"].pop("at_ready")
    return manifest, start_set
