"""Run `build --image`. `build --image` copies a disk that somebody else has made, and changes the copy so that its
application starts early.

The operating system on the copy makes the changes itself (docs/adr/0027-own-loader.md). For this purpose, it boots
twice in a machine that starts no services. The first boot, before the trace, installs the package quickstart-guest. The
second boot, at the end, installs our initramfs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quickstart.artefact import directory as artefacts
from quickstart.artefact import output
from quickstart.artefact.useddisk import UsedDisk, examine_disk, reference_of_disk
from quickstart.artefact.wholedisk import WHOLE_DISK
from quickstart.engines import boot as pipeline
from quickstart.engines.made import is_remembered, make_artefact, up_to_date
from quickstart.engines.ownsystem import (
    STAGE,
    ImageDisk,
    copy_disk,
    examined,
    install,
    prepared,
    prepared_once,
)
from quickstart.errors import BadInputError
from quickstart.host import door
from quickstart.host.beneath import opened_regular
from quickstart.host.unchanged import check_unchanged, digest_of_data
from quickstart.host.workspace import workspace
from quickstart.image.kerneloptions import chosen
from quickstart.image.qcow2 import is_qcow2
from quickstart.image.superblock import read_superblock
from quickstart.initramfs.guestconfig import HandOff
from quickstart.initramfs.payload import check_kernel
from quickstart.initramfs.serving import Delivery
from quickstart.inspect.firstboot import first_boot, is_unborn
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import MIB, Artefact, Profile, ReferenceImage
from quickstart.model.rootdisk import RootDisk
from quickstart.model.subject import Subject
from quickstart.model.words import DiskFormat, Early, KernelOptions, Payload, Target
from quickstart.pack.checks import check_image
from quickstart.pack.packing import Packed, Packing, PackOptions, made_of, packing_of
from quickstart.store.context import Context
from quickstart.store.store import key_of, source_digest

_FROM_THE_IMAGE = ""
_ROOT_STEP = "copying the files of a disk with their owners"


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


def build_image(profile: Profile, options: ImageOptions, context: Context) -> pipeline.Built:
    """Write a copy of the disk to ``options.out``. The copy boots by itself, and starts the profile's units early.
    After an error, ``options.out`` is unchanged.
    """
    check_early(profile)
    door.need_root(_ROOT_STEP)
    with opened_regular(options.image) as fd:
        # Of a qcow2 image, only the hash of our raw copy counts.
        if not is_qcow2(fd):
            with context.progress.step(f"hash {options.image.name}"):
                digest = digest_of_data(fd, options.image)
            # Its owner may change the disk after this. Then the hash of our own copy decides, below.
            if present := _present(options, image_key(profile, options, digest), context):
                return present
    with examined(options.image, context, is_given=True) as image:
        return build_examined(profile, options, image, context)


def build_examined(
    profile: Profile, options: ImageOptions, image: ImageDisk, context: Context
) -> pipeline.Built:
    """Do the same as ``build_image`` with ``image``, the disk of ``options``, which was examined before."""
    key = image_key(profile, options, image.digest)
    if present := _present(options, key, context):
        return present

    def made_meanwhile() -> bool:
        return artefacts.check_output(options.out, key, options.force) is not None

    plan = _Plan(profile=profile, options=options, image=image, key=key)
    return _make(plan, prepared(image, context), made_meanwhile, context)


def _present(options: ImageOptions, key: str, context: Context) -> pipeline.Built | None:
    """OUT, if it is up to date. Raises OutputExistsError when OUT must not be replaced."""
    with output.settled(options.out):
        if present := up_to_date(options.out, key, options.force, context):
            return pipeline.Built(present, made=False)
        output.check_unused(options.out)
    return None


def rebuild_image(
    before: Artefact, profile: Profile, context: Context, *, keep: bool, kernel_options: KernelOptions
) -> pipeline.Built:
    """Make the artefact ``before`` again, in the same directory, from the present state of its disk. The new artefact
    has a copy of the disk. The operating system on this copy has installed the new initramfs in the copy. After an
    error, the directory is unchanged.
    """
    check_early(profile)
    door.need_root(_ROOT_STEP)
    key = _rebuild_key(before, profile, kernel_options)
    if (
        before.build_key == key
        and artefacts.is_as_built(before)
        and is_remembered(before.directory, context.store)
    ):
        return pipeline.Built(before, made=False)
    options = ImageOptions(image=before.disk, out=before.directory, keep=keep, kernel_options=kernel_options)
    with examined(before.disk, context) as image, workspace("quickstart-prepared-") as place:

        def used_meanwhile() -> bool:
            check_unchanged(before.disk, image.seen)
            return False

        plan = _Plan(profile=profile, options=options, image=image, key=key, before=before)
        return _make(plan, prepared_once(image, place, context), used_meanwhile, context)


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """The inputs of a build. ``key`` is its build key. ``before`` is the artefact that a rebuild makes again."""

    profile: Profile
    options: ImageOptions
    image: ImageDisk
    key: str
    before: Artefact | None = None

    @property
    def kernel_options(self) -> KernelOptions:
        return chosen(self.profile, self.options.kernel_options)

    @property
    def origin(self) -> tuple[str, str]:
        """The entries kind and hash of the manifest's reference."""
        return STAGE if self.before is None else artefacts.USED_DISK, self.image.digest


def _make(plan: _Plan, disk: RootDisk, keep_present: Callable[[], bool], context: Context) -> pipeline.Built:
    """Make the artefact of ``plan`` from the prepared ``disk``. `output.new_directory` calls ``keep_present`` before it
    replaces OUT.
    """
    image = plan.image
    packing = _packing(plan, disk, context)

    def facts(packed: Packed, directory: Path) -> artefacts.Made:
        copy_disk(disk.attached, directory / WHOLE_DISK)
        install(directory / WHOLE_DISK, image, packed, plan.kernel_options, context)
        installed = read_superblock(directory / WHOLE_DISK, image.root.begin_bytes)
        made = made_of(
            packed,
            target=Target.DISK,
            disk_format=DiskFormat.RAW,
            build_key=plan.key,
            mac=plan.before.mac if plan.before else pipeline.MAC,
            kernel_options=plan.kernel_options,
            uuid=plan.before.uuid if plan.before else "",
        )
        return dataclasses.replace(made, disk=dataclasses.replace(made.disk, superblock=installed))

    made = make_artefact(plan.options.out, packing, facts, context, keep_present=keep_present)
    return pipeline.Built(made, made=True)


def _packing(plan: _Plan, disk: RootDisk, context: Context) -> Packing:
    """The input of ``pack``. The files of the disk become the reference image, and a boot of the disk is traced."""
    profile = plan.profile
    brought = brought_home(plan.image, disk, plan.origin, profile.disk_mib * MIB, context)
    reference = brought.reference
    root = ImageRoot(reference.tree)
    check_image(root, profile)
    payload = disk_payload(profile)
    check_kernel(root, reference.kernel_version, payload)
    subject = Subject(profile, reference, disk)
    traced = pipeline.trace_disk(subject, pipeline.TraceOptions(keep=plan.options.keep), context)
    packing = packing_of(subject, traced, brought.form(payload), context)
    if line := first_boot(root, profile.early, packing.recipe.profile.early):
        context.progress.note(line)
    return packing


def disk_payload(profile: Profile) -> Payload:
    """The form of the initramfs on a disk that boots by itself. The forms that are compressed streams are for a boot
    loader that reads part B. Here, init reads part B, and unpacks only the form `cpio` (docs/adr/0029-late.md).
    """
    return profile.payload if profile.payload is Payload.SQUASHFS else Payload.CPIO


@dataclass(frozen=True)
class Brought:
    """The files of a prepared disk as a reference image, and the root partition that they come from."""

    reference: ReferenceImage
    used: UsedDisk

    def form(self, payload: Payload) -> PackOptions:
        """The options for packing an application of this disk."""
        return PackOptions(
            hand_off=HandOff.KEEP,
            delivery=Delivery.OVERLAY,
            payload=payload,
            arranged=False,
            times_of=self.used,
        )


def brought_home(
    image: ImageDisk, disk: RootDisk, origin: tuple[str, str], planned_bytes: int, context: Context
) -> Brought:
    """The files of ``disk``, the prepared copy of ``image``, as a reference image. ``origin`` is the kind and the hash
    of the disk. ``planned_bytes`` is the size of the root disk in the profile.

    Raises BadInputError for a disk whose next boot would be systemd's first boot.
    """
    used = examine_disk(disk.path, disk.archive)
    boot = examine_disk(disk.boot) if disk.boot else None
    reference = reference_of_disk(used, _FROM_THE_IMAGE, planned_bytes, context, boot)
    if is_unborn(ImageRoot(reference.tree)):
        # Every boot would differ from what is recorded, until systemd has written the file.
        raise BadInputError(
            f"/etc/machine-id of {image.source} asks for a first boot, in which systemd enables units by its presets",
            hint="make it an empty file in the image: then a copy still gets an identity of its own",
        )
    return Brought(dataclasses.replace(reference, origin=origin), used)


def check_early(profile: Profile) -> None:
    """Raise BadInputError when the profile forbids an early start."""
    if profile.early is Early.NEVER:
        # Otherwise, our entry would be GRUB's default without any benefit, and no trial would show this.
        raise BadInputError(
            f'the profile {profile.name} has early = "never", and a disk that boots by itself is for an early start',
            hint='give it early = "seen", "ask" or "always"',
        )


def _rebuild_key(before: Artefact, profile: Profile, options: KernelOptions) -> str:
    """The key of a rebuild. It does not name the disk's state, because the rebuild itself changes this state; the
    superblock in the manifest does (artefact.directory.is_as_built).
    """
    inputs = {
        "profile": dataclasses.asdict(profile),
        "kernel_options": options.value,
        "machine": [before.uuid, before.mac],
        "tool": source_digest("quickstart"),
    }
    return key_of("rebuild-image", inputs)


def image_key(profile: Profile, options: ImageOptions, digest: str) -> str:
    """The key of a build: a hash of all its inputs. ``digest`` is the hash of the disk."""
    inputs = {
        "profile": dataclasses.asdict(profile),
        "image": digest,
        "kernel_options": chosen(profile, options.kernel_options).value,
        "tool": source_digest("quickstart"),
    }
    return key_of("image", inputs)
