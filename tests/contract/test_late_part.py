"""Init brings part B into memory from the root volume (bring_part_b in init/first), with BusyBox, checker and prefetcher."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.host import door
from quickstart.initramfs.digests import list_bytes, listed
from quickstart.initramfs.newc import CpioEntry, directory, hard_link, regular, symlink, write_archive
from quickstart.initramfs.programs import freestanding
from quickstart.store.store import Store
from tests.contract.initscript import INIT, function

BUILD = "b1"
NAME = ".quickstart-start-set"
# More than a request of the volume, and what an archive of a start set has: a program, a link, another name of the same file.
LIBRARY = replace(regular("fast/usr/lib/libx.so.1", bytes(range(256)) * 8192, 0o755), names=2)
ENTRIES: tuple[CpioEntry, ...] = (
    directory("fast"),
    directory("fast/usr"),
    directory("fast/usr/lib"),
    LIBRARY,
    hard_link("fast/usr/lib/liby.so", LIBRARY),
    symlink("fast/usr/lib/libz.so", "libx.so.1"),
    symlink("fast/etc", "/etc"),
    regular("fast/usr/lib/a name", b"", 0o640),
    directory("fast/quickstart"),
    regular("fast/quickstart/part-b", f"{BUILD}\n".encode(), 0o644),
)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    with Store(tmp_path_factory.mktemp("store")) as store:
        yield freestanding(store, "checker"), freestanding(store, "prefetcher")


@pytest.fixture
def box(tmp_path: Path, programs: tuple[Path, Path]) -> Path:
    """A root like the initramfs after the kernel has unpacked part A, with a root volume at /newroot."""
    ours = tmp_path / "fast/quickstart"
    for place in ("fast/quickstart/bin", "fast/quickstart/run", "newroot", "dev"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
    shutil.copy(door.tool_path("busybox"), ours / "busybox")
    for program in programs:
        shutil.copy(program, ours / "bin" / program.name)
    for applet in ("stat", "kill", "cat"):
        (ours / "bin" / applet).symlink_to("../busybox")
    # The kernel's log, the volume, and the plan's empty list.
    for name in ("dev/kmsg", "dev/vda", "dev/null"):
        (tmp_path / name).write_bytes(b"")
    (ours / "digests").write_bytes(list_bytes(listed(ENTRIES)))
    with (tmp_path / "newroot" / NAME).open("wb") as file:
        write_archive(file, ENTRIES)
    return tmp_path


def bring(box: Path) -> tuple[int, str]:
    """The exit status of what init waits for, and what it says to be damaged."""
    late = next(line for line in (INIT / "first").read_text().splitlines() if line.startswith("LATE="))
    script = f"""
Q=/fast/quickstart PATH=/fast/quickstart/bin BUILD={BUILD} DEVICE=/dev/vda
{late}
{function("first", "bring_part_b")}
bring_part_b &
wait $!
"""
    words = (
        "unshare",
        "--user",
        "--map-root-user",
        "chroot",
        str(box),
        "/fast/quickstart/busybox",
        "sh",
        "-uc",
        script,
    )
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    damage = box / "fast/quickstart/damage"
    return done.returncode, damage.read_text().strip() if damage.exists() else ""


def test_all_members_come_as_they_were_packed(box: Path) -> None:
    assert bring(box) == (0, "")
    found = box / "fast/usr/lib"
    assert (found / "libx.so.1").read_bytes() == bytes(range(256)) * 8192
    assert (found / "libx.so.1").stat().st_ino == (found / "liby.so").stat().st_ino
    assert (found / "libz.so").readlink() == Path("libx.so.1")
    assert (box / "fast/etc").readlink() == Path("/etc")
    # Part B has no times, whichever program unpacks it.
    assert (found / "libx.so.1").stat().st_mtime == 0


def test_without_the_file(box: Path) -> None:
    (box / "newroot" / NAME).unlink()
    assert bring(box) == (1, "it is neither in the initramfs nor on the root volume")


def test_a_link_is_not_followed(box: Path) -> None:
    file = box / "newroot" / NAME
    file.rename(box / "newroot/elsewhere")
    file.symlink_to("elsewhere")
    assert bring(box) == (1, "it is neither in the initramfs nor on the root volume")


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.99])
def test_a_file_that_is_cut_off(box: Path, kept: float) -> None:
    file = box / "newroot" / NAME
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * kept)])
    status, damage = bring(box)
    assert status == 1
    assert damage == f"/{NAME} is not whole, or of another build"


def test_a_changed_byte(box: Path) -> None:
    file = box / "newroot" / NAME
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert bring(box) == (1, "/fast/usr/lib/libx.so.1 (content)")


def test_another_build(box: Path) -> None:
    others = (*ENTRIES[:-1], regular("fast/quickstart/part-b", b"b2\n", 0o644))
    with (box / "newroot" / NAME).open("wb") as file:
        write_archive(file, others)
    assert bring(box) == (1, f"/{NAME} is not whole, or of another build")
