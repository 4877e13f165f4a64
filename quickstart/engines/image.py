"""Run `build --image`. It copies a disk that somebody else has made, and changes the copy so that its application
starts early.

The operating system on the copy makes the changes itself (docs/adr/0027-own-loader.md). For this purpose, it boots
twice in a machine that starts no services. The first boot, before the trace, installs the package quickstart-guest. The
second boot, at the end, installs our initramfs.
"""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from quickstart.artefact import directory as artefacts
from quickstart.artefact import output
from quickstart.artefact.useddisk import examine_disk, reference_of_disk
from quickstart.engines import boot as pipeline
from quickstart.engines.launching import launcher_for
from quickstart.engines.made import up_to_date, write
from quickstart.errors import BadInputError, GuestError
from quickstart.guest import executing
from quickstart.host import door
from quickstart.host.beneath import opened_regular
from quickstart.host.holes import copy_range
from quickstart.host.unchanged import Seen, digest_of_data, seen, unchanged
from quickstart.host.workspace import workspace
from quickstart.image.ext4 import read_superblock
from quickstart.image.kerneloptions import chosen, with_options
from quickstart.initramfs.guestconfig import HandOff
from quickstart.initramfs.payload import check_kernel
from quickstart.initramfs.serving import Delivery
from quickstart.inspect.disk.own import check_image_disk, entry_line, own_words
from quickstart.inspect.imageroot import ImageRoot
from quickstart.launch.appliance.appliance import appliance, fetch, look, started
from quickstart.model import MIB, Profile
from quickstart.model.disk import Inspected, Partition
from quickstart.model.machine import KERNEL_BYTES, machine
from quickstart.model.rootdisk import RootDisk
from quickstart.model.subject import Subject
from quickstart.model.words import DiskFormat, Early, KernelOptions, Target
from quickstart.pack.checks import check_image
from quickstart.pack.packing import Packed, PackOptions, made_of, pack, packing_of
from quickstart.reference.guestpkg.package import deb, guest_package
from quickstart.store.context import Context
from quickstart.store.store import key_of, source_digest

_STAGE = "image"
_DISK, _ROOT = "disk.raw", "root.raw"
_MAC = "52:54:00:71:73:0c"
_MEMORY_MIB = 1024
_SYSTEM_S = 900.0
_INITRAMFS_BYTES = 512 * MIB
_SAID_BYTES = 16 * MIB
_SCRIPTS = resources.files("quickstart.image.targets.disk")
_PREPARED_WITH = (
    *("prepare", "42_quickstart", "confirm"),
    *("quickstart-confirm.service", "quickstart-ended.service"),
)
_FROM_THE_IMAGE = ""


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """The options of `build --image`. ``image`` is the path of the disk. When ``kernel_options`` is None, the profile's
    kernel options apply.
    """

    image: Path
    out: Path
    force: bool = False
    keep: bool = False
    kernel_options: KernelOptions | None = None


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
    found = _look(path, context)
    check_image_disk(path, found)
    return ImageDisk(path, digest, before, found)


def build_image(profile: Profile, options: ImageOptions, context: Context) -> pipeline.Built:
    """Write a copy of the disk to ``options.out``. The copy boots by itself, and starts the profile's units early.
    After an error, ``options.out`` is unchanged.
    """
    if profile.early is Early.NEVER:
        # Otherwise, our entry would be GRUB's default without any benefit, and no trial would show this.
        raise BadInputError(
            f'the profile {profile.name} has early = "never", and --image is for an early start',
            hint='give it early = "seen" or "always"',
        )
    door.need_root("copying the files of a disk with their owners")
    image = examine(options.image, context)
    key = _build_key(profile, options, image)
    with output.settled(options.out):
        if present := up_to_date(options.out, key, options.force, context):
            return pipeline.Built(present, made=False)
        output.check_unused(options.out)
    prepared = _prepared(image, context)
    disk = _root_disk(image, prepared)
    used = examine_disk(disk.path)
    reference = reference_of_disk(used, _FROM_THE_IMAGE, profile.disk_mib * MIB, context)
    reference = dataclasses.replace(reference, origin=(_STAGE, image.digest))
    root = ImageRoot(reference.tree)
    check_image(root, profile)
    check_kernel(root, reference.kernel_version, profile.payload)
    subject = Subject(profile, reference, disk)
    traced = pipeline.trace_disk(subject, pipeline.TraceOptions(keep=options.keep), context)
    form = PackOptions(
        hand_off=HandOff.KEEP,
        delivery=Delivery.OVERLAY,
        payload=profile.payload,
        arranged=False,
        times_of=used,
    )
    packing = packing_of(subject, traced, form, context)

    def made_meanwhile() -> bool:
        return artefacts.check_output(options.out, key, options.force) is not None

    with output.new_directory(options.out, made_meanwhile) as directory:
        with context.progress.step("initramfs"):
            packed = pack(packing, directory / "initramfs.img")
        _copy(prepared / _DISK, directory / _DISK)
        asked = chosen(profile, options.kernel_options)
        _install(directory / _DISK, image, packed, asked, context)
        with context.progress.step("image"):
            made = made_of(
                packed,
                target=Target.DISK,
                disk_format=DiskFormat.RAW,
                build_key=key,
                mac=pipeline.MAC,
                kernel_options=asked,
            )
            installed = read_superblock(directory / _DISK, image.root.begin_bytes)
            made = dataclasses.replace(made, disk=dataclasses.replace(disk, superblock=installed))
            write(directory, made, context.store)
    with output.settled(options.out):
        return pipeline.Built(artefacts.load(options.out), made=True)


def _build_key(profile: Profile, options: ImageOptions, image: ImageDisk) -> str:
    inputs = {
        "profile": dataclasses.asdict(profile),
        "image": image.digest,
        "kernel_options": chosen(profile, options.kernel_options).value,
        "tool": source_digest("quickstart"),
    }
    return key_of("image", inputs)


def _look(path: Path, context: Context) -> Inspected:
    ours = appliance(context)
    launcher = launcher_for(ours.kernel, context)
    with (
        context.progress.step("read the disk"),
        started(ours, path, DiskFormat.RAW, launcher) as guest,
    ):
        return look(guest)


def _root_disk(image: ImageDisk, prepared: Path) -> RootDisk:
    return RootDisk(
        path=prepared / _ROOT,
        size_bytes=image.root.size_bytes,
        superblock=read_superblock(prepared / _ROOT),
        whole=prepared / _DISK,
        at_bytes=image.root.begin_bytes,
        options=own_words(image.found),
    )


def _prepared(image: ImageDisk, context: Context) -> Path:
    """A directory with two files: a copy of the disk in which the package quickstart-guest is installed, and a copy of
    the root partition of this disk. If the store does not have this directory, it is made now.
    """
    inputs = {
        "digest": image.digest,
        "recipe": source_digest(
            "quickstart.engines.image", "quickstart.image.targets", "quickstart.reference.guestpkg"
        ),
    }

    def make(directory: Path) -> None:
        disk = directory / _DISK
        with context.progress.step(f"copy {image.path.name}"), unchanged(image.path, image.seen):
            _copy(image.path, disk)
        files: dict[str, bytes | Path] = {name: _script(name) for name in _PREPARED_WITH}
        files["quickstart-guest.deb"] = deb(guest_package())
        with context.progress.step("install quickstart-guest in the copy"):
            _in_own_system(disk, image, "prepare", files, context)
        with disk.open("rb") as source, (directory / _ROOT).open("xb") as target:
            os.fchmod(target.fileno(), 0o600)
            copy_range(source.fileno(), image.root.begin_bytes, image.root.size_bytes, target.fileno())

    return context.store.get_or_make(_STAGE, inputs, make).path


def _install(disk: Path, image: ImageDisk, packed: Packed, asked: KernelOptions, context: Context) -> None:
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
    }
    with context.progress.step("install the initramfs in the copy"):
        _in_own_system(disk, image, "install", files, context)
    root = next(each for each in _look(disk, context).facts.partitions if each.number == image.found.root)
    config = root.content.files.get(entry.config, b"") if root.content else b""
    if b"--id quickstart {" not in config:
        raise GuestError(
            f"update-grub of {image.path} has written no entry for QuickStart",
            hint="is the kernel of the default entry the newest one?",
        )


def _in_own_system(
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
    """The kernel and the initramfs of the boot loader's default entry, as files in ``work``."""
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


def _copy(source: Path, target: Path) -> None:
    door.run(["cp", "--reflink=auto", "--sparse=always", source, target], timeout_s=3600)
    # The disk contains /etc/shadow, so other users must not read it.
    target.chmod(0o600)
