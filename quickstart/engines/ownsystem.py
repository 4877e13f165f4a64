"""Let the system on a disk work on a copy of the disk: install quickstart-guest, and later our initramfs
(docs/adr/0027-own-loader.md). The disk's kernel and initramfs boot in our QEMU, with a shell as PID 1.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from quickstart.artefact.wholedisk import WHOLE_DISK
from quickstart.engines.launching import launcher_for
from quickstart.errors import BadInputError, GuestError
from quickstart.guest import executing
from quickstart.host import door
from quickstart.host.beneath import opened_regular
from quickstart.host.holes import copy_range
from quickstart.host.unchanged import Seen, digest_of_data, seen, unchanged
from quickstart.host.workspace import workspace
from quickstart.image.ext4 import read_superblock
from quickstart.image.kerneloptions import with_options
from quickstart.initramfs.recorded import record_files
from quickstart.inspect.disk.own import check_image_disk, entry_line, own_words
from quickstart.launch.appliance.appliance import appliance, fetch, look, started
from quickstart.model import MIB
from quickstart.model.disk import Inspected, Partition
from quickstart.model.machine import KERNEL_BYTES, machine
from quickstart.model.rootdisk import RootDisk
from quickstart.model.words import DiskFormat, KernelOptions
from quickstart.pack.packing import Packed
from quickstart.reference.guestpkg.package import deb, guest_package
from quickstart.store.context import Context
from quickstart.store.store import source_digest

STAGE = "image"
_ROOT = "root.raw"
_MAC = "52:54:00:71:73:0c"
_MEMORY_MIB = 1024
_SYSTEM_S = 900.0
_INITRAMFS_BYTES = 512 * MIB
_SAID_BYTES = 16 * MIB
_SCRIPTS = resources.files("quickstart.image.targets.disk")
_PREPARED_WITH = (
    *("prepare", "42_quickstart", "confirm", "growroot"),
    *("quickstart-confirm.service", "quickstart-ended.service", "quickstart-growroot.service"),
)


@dataclass(frozen=True)
class ImageDisk:
    """A disk that was examined. ``digest`` is the hash of its bytes (see ``digest_of_data`` in host/unchanged.py)."""

    path: Path
    digest: str
    seen: Seen
    found: Inspected

    @property
    def root(self) -> Partition:
        return next(each for each in self.found.facts.partitions if each.number == self.found.root)


def examine(path: Path, context: Context) -> ImageDisk:
    """Examine the disk at ``path``, without changing it. Raises BadInputError when `build --image` cannot make the disk
    fast, and must refuse it.
    """
    with opened_regular(path) as fd:
        before = seen(fd)
        with context.progress.step(f"hash {path.name}"), unchanged(path, before):
            digest = digest_of_data(fd, path)
    found = look_into(path, context)
    check_image_disk(path, found)
    return ImageDisk(path, digest, before, found)


def look_into(path: Path, context: Context) -> Inspected:
    """The partitions, the boot loader and the system on the disk at ``path``, as our appliance sees them."""
    ours = appliance(context)
    launcher = launcher_for(ours.kernel, context)
    with (
        context.progress.step("read the disk"),
        started(ours, path, DiskFormat.RAW, launcher) as guest,
    ):
        return look(guest)


def prepared(image: ImageDisk, context: Context) -> RootDisk:
    """A copy of the disk in which the package quickstart-guest is installed, and a copy of the root partition of this
    disk. If the store does not have the copies, they are made now.
    """
    inputs = {
        "digest": image.digest,
        "recipe": source_digest(
            "quickstart.engines.ownsystem", "quickstart.image.targets", "quickstart.reference.guestpkg"
        ),
    }

    def make(directory: Path) -> None:
        disk = directory / WHOLE_DISK
        with context.progress.step(f"copy {image.path.name}"), unchanged(image.path, image.seen):
            copy_disk(image.path, disk)
        files: dict[str, bytes | Path] = {name: _script(name) for name in _PREPARED_WITH}
        files["quickstart-guest.deb"] = deb(guest_package())
        with context.progress.step("install quickstart-guest in the copy"):
            execute_in(disk, image, "prepare", files, context)
        with disk.open("rb") as source, (directory / _ROOT).open("xb") as target:
            os.fchmod(target.fileno(), 0o600)
            copy_range(source.fileno(), image.root.begin_bytes, image.root.size_bytes, target.fileno())

    place = context.store.get_or_make(STAGE, inputs, make).path
    return RootDisk(
        path=place / _ROOT,
        size_bytes=image.root.size_bytes,
        superblock=read_superblock(place / _ROOT),
        whole=place / WHOLE_DISK,
        at_bytes=image.root.begin_bytes,
        options=own_words(image.found),
    )


def install(disk: Path, image: ImageDisk, packed: Packed, asked: KernelOptions, context: Context) -> None:
    """Let the operating system on the disk install our initramfs. Then check that the boot loader's configuration has
    our entry.
    """
    entry = image.found.entry
    if entry is None:
        raise AssertionError(f"{image.path} has no entry")
    line = with_options(entry_line(entry.command_line, packed.recipe.disk.superblock.uuid), asked)
    files: dict[str, bytes | Path] = {
        "install": _script("install"),
        "initramfs.img": packed.initramfs.path,
        "entry": f"{entry.kernel}\n{line}\n".encode(),
        **{f"packed/{name}": data for name, data in record_files(packed.initramfs.path).items()},
    }
    with context.progress.step("install the initramfs in the copy"):
        execute_in(disk, image, "install", files, context)
    root = next(each for each in look_into(disk, context).facts.partitions if each.number == image.found.root)
    config = root.content.files.get(entry.config, b"") if root.content else b""
    if b"--id quickstart {" not in config:
        raise GuestError(
            f"update-grub of {image.path} has written no entry for QuickStart",
            hint="is the kernel of the default entry the newest one?",
        )


def execute_in(
    disk: Path, image: ImageDisk, script: str, files: Mapping[str, bytes | Path], context: Context
) -> None:
    """Run ``script``, one of ``files``, as root in the operating system on ``disk``. The kernel and the initramfs of
    this system boot. Then a shell is PID 1 instead of systemd, so that no service runs.

    Raises GuestError when the script does not end with status 0.
    """
    out = io.BytesIO()
    with workspace("quickstart-image-") as work:
        kernel, initrd = _fetched(disk, image, work, context)
        described = machine(
            "own-system",
            kernel=kernel,
            initrds=(initrd,),
            cmdline=" ".join(
                (
                    f"console=ttyS0 panic=-1 root=UUID={image.root.uuid} ro",
                    *own_words(image.found),
                    'init=/bin/sh -- -c "modprobe virtio_console; exec sleep infinity"',
                )
            ),
            memory_mib=_MEMORY_MIB,
            mac=_MAC,
            disk=disk,
            keeps_writes=True,
        )
        given = {
            "busybox": door.tool_path("busybox"),
            "hooks/20-image": _script("hook"),
            **{f"image/{name}": content for name, content in files.items()},
        }
        launcher = launcher_for(kernel, context)
        with launcher.launch(described, None, given) as launched:
            command = f"sh /run/quickstart-image/{script}"
            status = executing(launched).execute(command, out, out, _SYSTEM_S, _SAID_BYTES)
    if status != 0:
        text = out.getvalue().decode(errors="replace")
        raise GuestError(
            f"`{script}` in the system of {image.path} ended with {status}", details=text.splitlines()[-20:]
        )


def _fetched(disk: Path, image: ImageDisk, work: Path, context: Context) -> tuple[Path, Path]:
    """The kernel and the initramfs of the default entry, in ``work``."""
    entry, ours = image.found.entry, appliance(context)
    if entry is None or len(entry.initramfs) != 1:
        raise BadInputError(f"the default entry of {image.path} has no single initramfs")
    launcher = launcher_for(ours.kernel, context)
    with started(ours, disk, DiskFormat.RAW, launcher) as guest:
        for path, name, most_bytes in (
            (entry.kernel, "kernel", KERNEL_BYTES),
            (entry.initramfs[0], "initrd", _INITRAMFS_BYTES),
        ):
            with (work / name).open("xb") as file:
                fetch(guest, image.root, path, file, most_bytes)
    return work / "kernel", work / "initrd"


def _script(name: str) -> bytes:
    return _SCRIPTS.joinpath(name).read_bytes()


def copy_disk(source: Path, target: Path) -> None:
    door.run(["cp", "--reflink=auto", "--sparse=always", source, target], timeout_s=3600)
    # It holds /etc/shadow.
    target.chmod(0o600)
