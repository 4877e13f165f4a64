"""An artefact's initramfs made anew for its disk as it is now: what `build` does, with the disk as the reference image."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from quickstart.artefact import directory as artefacts
from quickstart.artefact import output
from quickstart.artefact.manifest import read_manifest
from quickstart.artefact.useddisk import UsedDisk, examine_disk, reference_of_disk, with_times_of
from quickstart.engines import boot as pipeline
from quickstart.errors import BadInputError, OutputExistsError
from quickstart.host import door
from quickstart.host.progress import Progress
from quickstart.image.ext4 import read_superblock
from quickstart.initramfs.build import write_initramfs
from quickstart.initramfs.layout import HandOff
from quickstart.initramfs.payload import Payload, check_kernel
from quickstart.initramfs.programs import programs
from quickstart.initramfs.serving import Delivery
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import read_unit
from quickstart.model import Artefact, Profile, RootDisk, StartSet
from quickstart.pack.packing import made_of, recipe_of, with_prefetch
from quickstart.pack.startset import check_includes
from quickstart.store.store import Store, key_of, source_digest

_TOOLS = ("unshare", "qemu-system-x86_64", "setpriv", "busybox", "strace", "cc", "musl-gcc")
# fstab decides how the volume is found; of what reads the label nothing is left to make.
_LABEL = ""


def rebuild(
    out: Path, profile: Profile, store: Store, progress: Progress, *, keep: bool = False
) -> pipeline.Built:
    """Replace all of ``out`` but its root disk, which is not written to; every error leaves ``out`` as it was.

    Raises BadInputError for a disk that is not raw or was not shut down in order, OutputExistsError while a machine runs from it.
    """
    before = _artefact(out, profile)
    door.need_root("copying a root file system with its owners")
    door.need_tools(*_TOOLS)
    with progress.step(f"hash {before.disk.name}"):
        used = examine_disk(before.disk, read_superblock(before.disk))
    key = _key(profile, used)
    if before.build_key == key:
        return pipeline.Built(before, made=False)
    reference = reference_of_disk(used, _LABEL, store, progress)
    read_unit(ImageRoot(reference.tree), profile.unit, profile.run_start_pre)
    ours = programs(store)
    manifest = read_manifest(out)
    hand_off, delivery = HandOff(manifest.hand_off), Delivery(manifest.delivery)
    payload = Payload(manifest.payload)
    door.need_tools(*payload.tools)
    check_includes(ImageRoot(reference.tree), profile.files)
    check_kernel(ImageRoot(reference.tree), reference.kernel_version, payload)
    disk = RootDisk(before.disk, before.disk.stat().st_size, used.superblock)
    options = pipeline.TraceOptions(keep=keep)
    traced = pipeline.trace_disk(profile, reference, disk, options, store, progress)
    start_set = with_times_of(traced.start_set, before.disk)

    def used_meanwhile() -> bool:
        if read_superblock(out / before.disk.name) != used.superblock:
            raise OutputExistsError(f"{before.disk} was used meanwhile", hint="rebuild again")
        return False

    with output.new_directory(out, used_meanwhile) as directory:
        # Another name of the same file: the disk itself goes on.
        artefacts.keep_disk(before.disk, directory)
        with progress.step("initramfs"):
            recipe = recipe_of(profile, reference, disk, traced.traces, start_set, ours, delivery)
            there = with_times_of(StartSet(recipe.watched.files, ()), before.disk).files
            recipe = dataclasses.replace(recipe, watched=dataclasses.replace(recipe.watched, files=there))
            recipe = with_prefetch(recipe, traced.traces)
            recipe = dataclasses.replace(recipe, hand_off=hand_off, payload=payload)
            initramfs = write_initramfs(recipe, directory / "initramfs.img")
        made = made_of(recipe, traced.traces, initramfs, "raw", key, before.mac, before.uuid)
        artefacts.write(directory, made)
    with output.settled(out):
        return pipeline.Built(artefacts.load(out), made=True)


def _artefact(out: Path, profile: Profile) -> Artefact:
    """What is at ``out``, where it can be rebuilt for ``profile``."""
    with output.settled(out):
        output.check_unused(out)
        before = artefacts.load(out)
    if before.disk_format != "raw":
        raise BadInputError(
            f"{before.disk} is not raw", hint="qemu-img convert -O raw, and build with --rootfs"
        )
    if profile.name != before.profile_name:
        raise BadInputError(f"{out} is of the profile {before.profile_name}, not {profile.name}")
    return before


def _key(profile: Profile, used: UsedDisk) -> str:
    inputs = {
        "profile": dataclasses.asdict(profile),
        "disk": used.digest,
        "tool": source_digest("quickstart"),
    }
    return key_of("rebuild", inputs)
