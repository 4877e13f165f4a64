"""Make the initramfs of an artefact again, for the present state of the artefact's disk. The steps are the same as in
`build`, but the disk's content becomes the reference image.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

from quickstart.artefact import directory as artefacts
from quickstart.artefact import output
from quickstart.artefact.manifest import read_manifest
from quickstart.artefact.useddisk import UsedDisk, examine_disk, reference_of_disk
from quickstart.engines import boot as pipeline
from quickstart.engines.image import rebuild_image
from quickstart.engines.made import is_remembered, make_artefact
from quickstart.errors import BadInputError, OutputExistsError
from quickstart.host import door
from quickstart.host.unchanged import check_unchanged
from quickstart.image.superblock import read_superblock
from quickstart.initramfs.guestconfig import HandOff
from quickstart.initramfs.payload import check_kernel
from quickstart.initramfs.serving import Delivery
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import MIB, Artefact, Profile
from quickstart.model.rootdisk import RootDisk
from quickstart.model.subject import Subject
from quickstart.model.words import DiskFormat, KernelOptions, Payload, Target
from quickstart.pack.checks import check_image
from quickstart.pack.packing import Packed, Packing, PackOptions, made_of, packing_of
from quickstart.store.context import Context
from quickstart.store.store import key_of, source_digest

_TOOLS = ("unshare", "qemu-system-x86_64", "setpriv", "busybox", "strace", "cc", "musl-gcc")
# fstab decides how the volume is found. No remaining step reads the label.
_LABEL = ""


def rebuild(
    out: Path,
    profile: Profile,
    context: Context,
    *,
    keep: bool = False,
    kernel_options: KernelOptions | None = None,
) -> pipeline.Built:
    """Replace all files of the artefact ``out`` except its root disk, which is not changed. After an error, ``out`` is
    unchanged.

    When ``kernel_options`` is None, the kernel options of ``out`` are kept. Raises BadInputError for a disk that is not
    raw or was not shut down properly. Raises OutputExistsError when a machine is running from the disk.
    """
    before = _artefact(out, profile)
    manifest = read_manifest(out)
    options = kernel_options or KernelOptions(manifest.kernel_options)
    if before.target is Target.DISK:
        return rebuild_image(before, profile, context, keep=keep, kernel_options=options)
    door.need_root("copying a root file system with its owners")
    door.need_tools(*_TOOLS)
    with context.progress.step(f"hash {before.disk.name}"):
        used = examine_disk(before.disk)
    key = _key(profile, used, options)
    # Somebody else can compute the key, too. So an equal key shows only for our own artefacts that they are
    # up to date.
    if before.build_key == key and is_remembered(out, context.store):
        return pipeline.Built(before, made=False)
    form = PackOptions(
        hand_off=HandOff(manifest.hand_off),
        delivery=Delivery(manifest.delivery),
        payload=Payload(manifest.payload),
        arranged=False,
        times_of=used,
    )
    packing = _packing(before, profile, used, form, context, keep)

    def facts(packed: Packed, directory: Path) -> artefacts.Made:
        # The new OUT gets another name for the same file, so the disk itself stays. No machine starts from
        # it meanwhile.
        artefacts.keep_disk(before.disk, directory)
        return made_of(
            packed,
            target=before.target,
            disk_format=DiskFormat.RAW,
            build_key=key,
            mac=before.mac,
            kernel_options=options,
            uuid=before.uuid,
        )

    used_meanwhile = partial(_used_meanwhile, before, used)
    made = make_artefact(out, packing, facts, context, keep_present=used_meanwhile)
    return pipeline.Built(made, made=True)


def _packing(
    before: Artefact, profile: Profile, used: UsedDisk, form: PackOptions, context: Context, keep: bool
) -> Packing:
    """The input of ``pack`` for the used disk. The disk's content becomes the reference image, and a boot from the
    used disk is traced.
    """
    reference = reference_of_disk(used, _LABEL, profile.disk_mib * MIB, context)
    root = ImageRoot(reference.tree)
    check_image(root, profile)
    door.need_tools(*form.payload.tools)
    check_kernel(root, reference.kernel_version, form.payload)
    disk = RootDisk(path=before.disk, size_bytes=before.disk.stat().st_size, superblock=used.superblock)
    subject = Subject(profile, reference, disk)
    traced = pipeline.trace_disk(subject, pipeline.TraceOptions(keep=keep), context)
    return packing_of(subject, traced, form, context)


def _used_meanwhile(before: Artefact, used: UsedDisk) -> bool:
    """Raise OutputExistsError when somebody has written to the disk after it was examined. Otherwise, return False. The
    rebuild passes the function _used_meanwhile to `output.new_directory`, which replaces OUT when _used_meanwhile
    returns False.
    """
    if read_superblock(before.disk) != used.superblock:
        raise OutputExistsError(f"{before.disk} was used meanwhile", hint="rebuild again")
    check_unchanged(before.disk, used.seen)
    return False


def _artefact(out: Path, profile: Profile) -> Artefact:
    """The artefact at ``out``. Raises BadInputError when the artefact cannot be rebuilt for ``profile``."""
    with output.settled(out):
        output.check_own(out)
        output.check_unused(out)
        before = artefacts.load(out)
    if before.disk_format != DiskFormat.RAW:
        raise BadInputError(
            f"{before.disk} is not raw", hint="qemu-img convert -O raw, and build with --rootfs"
        )
    if profile.name != before.profile_name:
        raise BadInputError(f"{out} is of the profile {before.profile_name}, not {profile.name}")
    return before


def _key(profile: Profile, used: UsedDisk, options: KernelOptions) -> str:
    inputs = {
        "profile": dataclasses.asdict(profile),
        "kernel_options": options.value,
        "disk": used.digest,
        "tool": source_digest("quickstart"),
    }
    return key_of("rebuild", inputs)
