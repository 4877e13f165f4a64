"""Start the operating system of a disk on a copy of the disk, to install quickstart-guest and later our initramfs in
this copy (docs/adr/0027-own-loader.md). QEMU boots the disk's own kernel and initramfs, with a shell as PID 1.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from quickstart.artefact.wholedisk import WHOLE_DISK
from quickstart.engines.launching import launcher_for
from quickstart.errors import ArtefactError, BadInputError, GuestError, HostLacksError
from quickstart.guest import Executes, executing, last_lines
from quickstart.host import door
from quickstart.host.beneath import opened_regular
from quickstart.host.files import free_bytes, full_disk_named, temporary_directory
from quickstart.host.holes import copy_range
from quickstart.host.unchanged import Seen, changed, digest_of_data, seen
from quickstart.host.workspace import workspace
from quickstart.image.kerneloptions import with_options
from quickstart.image.qcow2 import Form, is_qcow2
from quickstart.image.superblock import read_superblock
from quickstart.initramfs.parts import divided
from quickstart.initramfs.payload import can_unpack
from quickstart.initramfs.recorded import record_files
from quickstart.inspect.disk.own import (
    check_image_disk,
    entry_line,
    esp_place,
    has_entry,
    kernel_path,
    menu_entry,
    own_words,
)
from quickstart.inspect.disk.unified import divide
from quickstart.inspect.imageroot import ImageRoot
from quickstart.launch.appliance.appliance import appliance, fetch, look, started, tree
from quickstart.launch.rawdisk import made_raw
from quickstart.model import MIB
from quickstart.model.disk import Inspected, Partition
from quickstart.model.machine import KERNEL_BYTES, machine
from quickstart.model.rootdisk import RootDisk
from quickstart.model.words import FileSystem, KernelOptions, Payload
from quickstart.pack.packing import Packed
from quickstart.reference.guestpkg.package import deb, guest_package
from quickstart.store.context import Context
from quickstart.store.store import source_digest

STAGE = "image"
_ROOT, _BOOT, _ARCHIVE = "root.raw", "boot.raw", "root.tar"
_MAC = "52:54:00:71:73:0c"
_MEMORY_MIB = 1024
_SYSTEM_S = 900.0
_INITRAMFS_BYTES = 256 * MIB
# Files of XFS may share their blocks, and an archive has each of them whole.
_ARCHIVE_RATIO = 2
_SAID_BYTES = 16 * MIB
_FULL_HINT = "free some space there"
_SCRIPTS = resources.files("quickstart.image.targets.disk")
_PREPARED_WITH = (
    *("prepare", "42_quickstart", "systemd-boot", "bless.conf", "confirm", "growroot"),
    *("quickstart-confirm.service", "quickstart-ended.service", "quickstart-growroot.service"),
)


@dataclass(frozen=True, kw_only=True)
class OwnSystem:
    """The operating system on a disk. ``name`` names the disk in messages. ``kernel`` and ``initrd`` are files on the
    host that boot the system. ``root_uuid`` is the UUID of its root volume. ``words`` are further words of the kernel's
    command line.
    """

    name: str
    kernel: Path
    initrd: Path
    root_uuid: str
    words: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ImageDisk:
    """A disk that was examined. ``source`` is the disk. ``path`` is our own copy of the disk, which nobody else can
    change. ``digest`` is the hash of the copy (see ``digest_of_data`` in host/unchanged.py). ``kernel`` and ``initrd``
    are copies of the files that the disk's default entry starts. If these files are in a unified kernel image,
    ``unified`` is a copy of this image.
    """

    source: Path
    seen: Seen
    path: Path
    digest: str
    found: Inspected
    kernel: Path
    initrd: Path
    unified: Path | None

    @property
    def root(self) -> Partition:
        return _partition(self.found, self.found.root)

    @property
    def system(self) -> OwnSystem:
        """The operating system on the disk."""
        return OwnSystem(
            name=str(self.source),
            kernel=self.kernel,
            initrd=self.initrd,
            root_uuid=self.root.uuid,
            words=own_words(self.found),
        )

    @property
    def boot(self) -> Partition | None:
        """The partition that the system mounts on /boot, unless /boot is a directory of the root file system."""
        return None if self.found.boot is None else _partition(self.found, self.found.boot)


@contextmanager
def examined(source: Path, context: Context, *, is_given: bool = False) -> Iterator[ImageDisk]:
    """A context manager that copies the disk at ``source`` to a raw image in the temporary directory, and examines the
    copy. With ``is_given``, a user has given the disk, and it may be a qcow2 image. The disk of an artefact is a raw
    image, whatever its guest has written to its beginning. The disk itself is not changed. The disk's owner may write to
    the disk at any time, so QuickStart hashes, examines and uses only the copy.

    Raises BadInputError when the disk cannot get a fast start, so that `build --image` must refuse the disk.
    """
    with workspace("quickstart-image-") as work:
        copy = work / WHOLE_DISK
        with context.progress.step(f"copy {source.name}"), opened_regular(source) as fd:
            before = seen(fd)
            if is_given and is_qcow2(fd):
                made_raw(source, work, Form.GIVEN).rename(copy)
            else:
                with full_disk_named(temporary_directory(), "the temporary directory", _FULL_HINT):
                    _copy(fd, before.size_bytes, copy)
            # A machine that runs from the disk writes meanwhile, and the copy would be of no one moment.
            if seen(fd) != before:
                raise changed(source)
        with context.progress.step(f"hash {source.name}"), opened_regular(copy) as fd:
            digest = digest_of_data(fd, copy)
        with _appliance(copy, context) as guest:
            found = look(guest)
            check_image_disk(source, found)
            _check_places(found, copy.stat().st_size)
            _check_superblock(source, copy, _partition(found, found.root))
            kernel, initrd, unified = _fetched(guest, found, work)
        yield ImageDisk(
            source=source,
            seen=before,
            path=copy,
            digest=digest,
            found=found,
            kernel=kernel,
            initrd=initrd,
            unified=unified,
        )


def look_into(path: Path, context: Context) -> Inspected:
    """The partitions, the boot loader and the operating system on the disk at ``path``. The appliance, a small guest of
    ours, reads the disk and reports these facts.
    """
    with _appliance(path, context) as guest:
        return look(guest)


@contextmanager
def _appliance(disk: Path, context: Context) -> Iterator[Executes]:
    ours = appliance(context)
    launcher = launcher_for(ours.kernel, context)
    with (
        context.progress.step("read the disk"),
        started(ours, disk, launcher) as guest,
    ):
        yield guest


def _partition(found: Inspected, number: int | None) -> Partition:
    partition = found.partition(number)
    if partition is None:
        raise GuestError("the disk has another partition table now")
    return partition


def _check_places(found: Inspected, size_bytes: int) -> None:
    """Raise GuestError when the appliance, which has read a stranger's disk, names places outside of the disk."""
    ends = [each.begin_bytes + each.size_bytes for each in found.facts.partitions]
    if max((found.facts.size_bytes, *ends)) > size_bytes:
        raise GuestError(f"the appliance names places beyond the disk's {size_bytes} bytes")


def _check_superblock(source: Path, copy: Path, root: Partition) -> None:
    """Raise BadInputError when ``copy``, our copy of the disk ``source``, has a root file system that the appliance can
    mount, and init cannot.
    """
    try:
        read_superblock(copy, root.begin_bytes)
    except ArtefactError as error:
        reason = error.message.replace(str(copy), f"the root partition of {source}")
        raise BadInputError(reason, hint=error.hint) from error


def prepared(image: ImageDisk, context: Context) -> RootDisk:
    """A copy of the disk in which the package quickstart-guest is installed, and a copy of the root partition of this
    new disk. If the store does not have the two copies, this function makes them.
    """
    inputs = {
        "digest": image.digest,
        "recipe": source_digest(
            "quickstart.engines.ownsystem",
            "quickstart.image.targets",
            "quickstart.launch.appliance",
            "quickstart.reference.guestpkg",
        ),
    }
    return _prepared_in(
        context.store.get_or_make(STAGE, inputs, lambda place: _prepare(image, place, context)).path, image
    )


def prepared_once(image: ImageDisk, place: Path, context: Context) -> RootDisk:
    """The two copies that `prepared` makes, but in the directory ``place`` and not in the store. This function is for
    the disk of a machine that has already run. The machine's data must not stay in the store.
    """
    _prepare(image, place, context)
    return _prepared_in(place, image)


def _prepare(image: ImageDisk, place: Path, context: Context) -> None:
    disk = place / WHOLE_DISK
    copy_disk(image.path, disk)
    files: dict[str, bytes | Path] = {name: script_of(name) for name in _PREPARED_WITH}
    files["quickstart-guest.deb"] = deb(guest_package())
    files |= esp_place(image.found)
    with context.progress.step("install quickstart-guest in the copy"):
        execute_in(disk, image.system, "prepare", files, context)
    with opened_regular(disk) as fd:
        _copy(fd, image.root.size_bytes, place / _ROOT, image.root.begin_bytes)
        if image.boot:
            _copy(fd, image.boot.size_bytes, place / _BOOT, image.boot.begin_bytes)
    if image.root.kind != FileSystem.EXT4:
        with _appliance(disk, context) as guest, (place / _ARCHIVE).open("xb") as file:
            # It holds /etc/shadow.
            os.fchmod(file.fileno(), 0o600)
            tree(guest, image.root, file, _ARCHIVE_RATIO * image.root.size_bytes)


def _prepared_in(place: Path, image: ImageDisk) -> RootDisk:
    return RootDisk(
        path=place / _ROOT,
        size_bytes=image.root.size_bytes,
        superblock=read_superblock(place / _ROOT),
        whole=place / WHOLE_DISK,
        at_bytes=image.root.begin_bytes,
        boot=place / _BOOT if image.boot else None,
        archive=place / _ARCHIVE if image.root.kind != FileSystem.EXT4 else None,
        options=own_words(image.found),
    )


def install(disk: Path, image: ImageDisk, packed: Packed, asked: KernelOptions, context: Context) -> None:
    """Let the operating system on the disk install our initramfs. Then check that the boot loader's configuration has
    an entry for QuickStart.
    """
    entry = image.found.entry
    if entry is None:
        raise AssertionError(f"{image.source} has no entry")
    line = with_options(entry_line(entry.command_line, packed.recipe.disk.superblock.uuid), asked)
    files: dict[str, bytes | Path] = {
        "install": script_of("install"),
        "entry": f"{kernel_path(image.found)}\n{line}\n{entry.kernel} {entry.command_line}".rstrip().encode()
        + b"\n",
        "quickstart.conf": menu_entry(entry, line).encode(),
        **esp_place(image.found),
        **({"vmlinuz": image.kernel} if entry.is_unified else {}),
        **{f"packed/{name}": data for name, data in record_files(packed.initramfs.path).items()},
    }
    with workspace("quickstart-parts-") as place, context.progress.step("install the initramfs in the copy"):
        parts = divided(packed.initramfs, packed.recipe.payload, _loaded_form(packed), place)
        execute_in(disk, image.system, "install", {**files, **parts}, context)
    content = _partition(look_into(disk, context), entry.partition).content
    if content is None or not has_entry(content, entry):
        raise GuestError(
            f"the boot loader of {image.source} has no entry for QuickStart",
            hint="is the kernel of the default entry the newest one in /boot?",
        )


def _loaded_form(packed: Packed) -> Payload:
    """The form of what a boot loader reads. LZ4 costs the kernel the least time (docs/internals/payload.md)."""
    reference = packed.recipe.reference
    root = ImageRoot(reference.tree)
    return Payload.LZ4 if can_unpack(root, reference.kernel_version, Payload.LZ4) else Payload.CPIO


def execute_in(
    disk: Path, system: OwnSystem, script: str, files: Mapping[str, bytes | Path], context: Context
) -> None:
    """Run ``script``, one of ``files``, as root in the operating system on ``disk``. The machine boots with the kernel
    and the initramfs of this system. PID 1 is a shell instead of systemd, so no service runs.

    Raises GuestError when the script does not end with status 0.
    """
    described = machine(
        "own-system",
        kernel=system.kernel,
        initrds=(system.initrd,),
        cmdline=" ".join(
            (
                f"console=ttyS0 panic=-1 root=UUID={system.root_uuid} ro",
                *system.words,
                # The agent executes commands as soon as it has a port, so the port has to come after the root.
                "rd.driver.blacklist=virtio_console",
                'init=/bin/sh -- -c "modprobe virtio_console; exec sleep infinity"',
            )
        ),
        memory_mib=_MEMORY_MIB,
        mac=_MAC,
        disk=disk,
        keeps_writes=True,
        reports_full_disk=True,
    )
    given = {
        "busybox": door.tool_path("busybox"),
        "hooks/20-image": script_of("hook"),
        **{f"image/{name}": content for name, content in files.items()},
    }
    out = io.BytesIO()
    launcher = launcher_for(system.kernel, context)
    with launcher.launch(described, None, given) as launched:
        command = f"sh /run/quickstart-image/{script}"
        status = executing(launched).execute(command, out, out, _SYSTEM_S, _SAID_BYTES)
    if status != 0:
        raise GuestError(
            f"`{script}` in the system of {system.name} ended with {status}", details=last_lines(out)
        )


def _fetched(guest: Executes, found: Inspected, work: Path) -> tuple[Path, Path, Path | None]:
    """Copy the kernel and the initramfs of the default entry into ``work``, and the unified kernel image that has both."""
    entry = found.entry
    if entry is None or len(entry.initramfs) != 1:
        raise BadInputError("the default entry of the disk has no single initramfs")
    kernel, initrd = work / "kernel", work / "initrd"
    if entry.is_unified:
        unified = work / "unified"
        with unified.open("xb") as file:
            fetch(
                guest, _partition(found, entry.partition), entry.kernel, file, KERNEL_BYTES + _INITRAMFS_BYTES
            )
        divide(unified, kernel, initrd)
        return kernel, initrd, unified
    for path, copy, most_bytes in (
        (entry.kernel, kernel, KERNEL_BYTES),
        (entry.initramfs[0], initrd, _INITRAMFS_BYTES),
    ):
        with copy.open("xb") as file:
            fetch(guest, _partition(found, entry.partition), path, file, most_bytes)
    return kernel, initrd, None


def script_of(name: str) -> bytes:
    """The file ``name`` of image/targets/disk."""
    return _SCRIPTS.joinpath(name).read_bytes()


def copy_disk(source: Path, target: Path) -> None:
    """Copy a disk of ours to the new file ``target``. Later, the operating system on the disk writes to this copy.
    Raises HostLacksError when the file system of ``target`` has too little space for everything that this operating
    system could write.
    """
    size_bytes = source.stat().st_size
    if free_bytes(target.parent) < size_bytes:
        raise HostLacksError(
            f"the disk has {size_bytes} bytes, which its system could fill, and {target.parent} has less free space",
            hint=_FULL_HINT,
        )
    with opened_regular(source) as fd:
        _copy(fd, size_bytes, target)


def _copy(source: int, size_bytes: int, target: Path, begin_bytes: int = 0) -> None:
    with target.open("xb") as file:
        # It holds /etc/shadow.
        os.fchmod(file.fileno(), 0o600)
        copy_range(source, begin_bytes, size_bytes, file.fileno())
