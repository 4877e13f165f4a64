"""A SIGKILL or a full disk in each step of `build --image`: there is no OUT then, and a later build makes a whole one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from quickstart.cli.output import Display, Plain
from quickstart.engines.image import ImageOptions, build_image
from quickstart.profile import load_profile
from quickstart.store.context import Context
from quickstart.store.store import Entry, Store, default_root
from tests.images.lookalike import DISK_NAME, look_alike
from tests.vm.conftest import BUILD_S, quickstart
from tests.vm.imaging import PROFILE
from tests.vm.test_inspect import digest
from tests.vm.test_kill import Ground, copy, ground_of

pytestmark = pytest.mark.full

# The disk and its root in the store, its files, OUT, and one that replaces it. Each has about 1 GiB of data.
SIZE_MIB = 9000
# The stages of the store that such a build makes. All others are given to the tests' own store.
IMAGE, REFERENCE = "image", "reference"
# The step, seconds to the SIGKILL, the stages that are to be made again, and what is full: None where no step writes to the
# tmpfs, or where another step stands for it.
STEPS = (
    (f"copy {DISK_NAME}", 0.3, (), None),
    (f"hash {DISK_NAME}", 0.3, (), None),
    ("read the disk", 2.0, (), None),
    ("install quickstart-guest in the copy", 5.0, (IMAGE,), "store"),
    ("reference: hash the image", 0.1, (REFERENCE,), "store"),
    ("initramfs", 0.0, (), "OUT"),
    ("install the initramfs in the copy", 5.0, (), "OUT"),
    ("image", 0.1, (), None),
)


class NotingStore(Store):
    """The ordinary store. ``used`` are the entries that a build needs."""

    def __init__(self) -> None:
        super().__init__(default_root())
        self.used: set[Path] = set()

    def get_or_make(self, stage: str, inputs: Mapping[str, object], make: Callable[[Path], None]) -> Entry:
        entry = super().get_or_make(stage, inputs, make)
        self.used.add(entry.path)
        return entry


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """A store of the tests' own with all that a build needs, made by a build in the ordinary store."""
    place = tmp_path_factory.mktemp("image-kill")
    (place / "profile.toml").write_text(PROFILE)
    with NotingStore() as store, ground_of(place / "disk", SIZE_MIB) as ground:
        context = Context(store, Display(Plain(stderr=True)))
        disk = look_alike(context).disk
        store.used.clear()
        build_image(load_profile(str(place)), ImageOptions(image=disk, out=place / "first"), context)
        for entry in sorted(store.used):
            (ground.store / entry.parent.name).mkdir(exist_ok=True)
            copy(entry, ground.store / entry.parent.name)
        yield ground


def test_each_step(ground: Ground, store: Store) -> None:
    disk = look_alike(Context(store, Display(Plain(stderr=True)))).disk
    profile = ground.place.parent
    before = digest(disk)
    for step, kill_s, again, full in STEPS:
        ground.forget(*again)
        ground.kill(step, kill_s, image=(disk, profile))
        assert not ground.out.exists()
        if full is not None:
            place = f"the store {ground.store}" if full == "store" else f"OUT in {ground.out.parent}"
            ground.forget(*again)
            ground.fill(step, place, image=(disk, profile))
            assert not ground.out.exists()
    assert digest(disk) == before
    words = ("build", "--profile", profile, "--image", disk, "-o", ground.out)
    built = quickstart(*words, timeout_s=BUILD_S, env=ground.environment)
    assert built.status == 0, built.err
    assert ground.leftovers() == []
    booted = quickstart("run", ground.out, "--snapshot", "--check", "--json", env=ground.environment)
    assert booted.result["fallback"] in ("", None)


def test_a_disk_without_room(ground: Ground, tmp_path: Path) -> None:
    """The file system of TMPDIR is too small for the copy."""
    disk = tmp_path / DISK_NAME
    with disk.open("xb") as file:
        file.write(b"x" * (1 << 20))
        file.truncate(64 << 20)
    with ground_of(tmp_path / "small", 1) as small:
        words = ("build", "--profile", ground.place.parent, "--image", disk, "-o", tmp_path / "out")
        called = quickstart(*words, env={"TMPDIR": str(small.place)})
    assert called.status == 3, called.err
    assert "no space left for the temporary directory" in called.err
    assert not (tmp_path / "out").exists()
