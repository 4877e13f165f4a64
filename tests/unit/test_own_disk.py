"""A disk of our own: its partitions, and what it needs of a root file system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from quickstart.cli.main import group
from quickstart.engines.owndisk import OwnDiskOptions, OwnLoader, check_loader, esp_id, partitions
from quickstart.errors import BadInputError
from quickstart.host.holes import CHUNK_BYTES
from quickstart.image.gpt import ESP, ROOT_X86_64, gpt
from quickstart.image.partitioned import Filled, write_partitioned
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import MIB, ReferenceImage
from tests.unit.test_gpt import DISK as IDENTIFIER
from tests.unit.test_gpt import partition

REFERENCE = ReferenceImage(
    tree=Path("/none"),
    image_hash="",
    kernel=Path("/none"),
    initrd=Path("/none"),
    kernel_version="6.1.0-1",
    volume_uuid=str(IDENTIFIER),
    volume_label="",
    origin=("debootstrap", ""),
)


def test_a_disk_has_its_table_twice_and_what_is_in_its_partitions(tmp_path: Path) -> None:
    content = os.urandom(MIB) + bytes(CHUNK_BYTES) + os.urandom(5000)
    (tmp_path / "content").write_bytes(content)
    full, empty = partition(1, 4, 3), partition(15, 1, 3)
    disk, size_bytes = tmp_path / "disk", 8 * MIB
    write_partitioned(disk, [Filled(full, tmp_path / "content"), Filled(empty)], size_bytes, IDENTIFIER)
    table, written = gpt([full, empty], size_bytes, IDENTIFIER), disk.read_bytes()
    assert len(written) == size_bytes
    assert written.startswith(table.first)
    assert written.endswith(table.last)
    assert written[4 * MIB : 7 * MIB] == content.ljust(3 * MIB, b"\0")
    assert not written[MIB : 4 * MIB].strip(b"\0")
    assert disk.stat().st_mode & 0o777 == 0o600
    assert disk.stat().st_blocks * 512 < 3 * MIB


def test_content_that_is_larger_than_its_partition(tmp_path: Path) -> None:
    """It would be written over the next partition."""
    (tmp_path / "content").write_bytes(bytes(MIB + 1))
    with pytest.raises(ValueError, match="its partition"):
        write_partitioned(
            tmp_path / "disk", [Filled(partition(1, 1, 1), tmp_path / "content")], 4 * MIB, IDENTIFIER
        )


@pytest.mark.parametrize("loader", OwnLoader)
def test_the_root_is_the_last_partition(loader: OwnLoader) -> None:
    """Only the last partition can grow."""
    made = partitions(REFERENCE, 2048, loader)
    assert gpt(made, made[-1].begin_bytes + made[-1].size_bytes + MIB, IDENTIFIER)
    assert (made[-1].number, made[-1].type_id, made[-1].size_bytes) == (1, ROOT_X86_64, 2048 * MIB)
    assert [each.number for each in made if each.type_id == ESP] == [15]
    assert (14 in [each.number for each in made]) is (loader is OwnLoader.GRUB)
    assert len({each.identifier for each in made}) == len(made)


def test_the_serial_number_is_as_fstab_names_it() -> None:
    first, dash, last = esp_id(REFERENCE).partition("-")
    assert (len(first), dash, len(last)) == (4, "-", 4)
    assert first + last == f"{int(first + last, 16):08X}"


def test_the_loader_of_an_option() -> None:
    assert OwnDiskOptions(out=Path("x")).loader is OwnLoader.SYSTEMD_BOOT
    assert OwnDiskOptions(out=Path("x"), bios=True).loader is OwnLoader.GRUB


def test_a_root_without_the_loader_is_refused_with_the_package(tmp_path: Path) -> None:
    tree = tmp_path / "root"
    with pytest.raises(BadInputError, match="has no /usr/bin/bootctl") as raised:
        check_loader(ImageRoot(_with(tree)), OwnLoader.SYSTEMD_BOOT, tree)
    assert raised.value.hint == "install systemd-boot in it"
    _with(tree, "usr/bin/bootctl", "usr/bin/kernel-install", "usr/lib/systemd/boot/efi/systemd-bootx64.efi")
    check_loader(ImageRoot(tree), OwnLoader.SYSTEMD_BOOT, tree)
    with pytest.raises(BadInputError, match="grub-install"):
        check_loader(ImageRoot(tree), OwnLoader.GRUB, tree)


def _with(tree: Path, *names: str) -> Path:
    tree.mkdir(exist_ok=True)
    for name in names:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()
    return tree


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--target", "disk", "--format", "qcow2"), "--format is not for --target disk"),
        (("--target", "disk", "--no-hand-off"), "--no-hand-off is not for --target disk"),
        (("--target", "disk", "--dry-run"), "--dry-run is not for --target disk"),
        (("--target", "disk", "--traces", "2"), "--traces is not for --target disk"),
        (("--target", "disk", "--release"), "--release is not for --target disk"),
        (("--target", "disk", "--no-guest-package"), "--no-guest-package is not for --target disk"),
        (("--target", "disk", "--delivery", "fast"), "--delivery is not for --target disk"),
        (("--target", "disk", "--payload", "lz4"), "--payload is not for --target disk"),
        (("--bios",), "--bios is for --target disk only"),
        (("--image", "x", "--bios"), "--bios is not for --image"),
        (("--image", "x", "--target", "disk"), "--target is not for --image"),
    ],
)
def test_options_that_do_not_go_together(words: tuple[str, ...], why: str, tmp_path: Path) -> None:
    called = CliRunner().invoke(group, ["build", "--profile", "nginx", "-o", str(tmp_path / "out"), *words])
    assert called.exit_code == 2
    assert why in called.output
    assert not (tmp_path / "out").exists()
