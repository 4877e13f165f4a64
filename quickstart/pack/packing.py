"""From traces and start set to what is packed: the recipe of the archive, the disk's order, what init asks for beforehand."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from quickstart.artefact.directory import Made
from quickstart.host import door
from quickstart.host.progress import Progress
from quickstart.image.arrange import move, plan_moves
from quickstart.image.blockmap import read_block_map
from quickstart.image.ext4 import block_groups, read_superblock
from quickstart.initramfs.build import Recipe
from quickstart.initramfs.facts import watched
from quickstart.initramfs.programs import Programs
from quickstart.initramfs.serving import Delivery
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import read_unit
from quickstart.model import Initramfs, Profile, ReferenceImage, RootDisk, StartSet, Trace
from quickstart.pack.prefetch import Foreseen, foresee, plan
from quickstart.store.store import Store, source_digest

_DISK = "root.raw"


def recipe_of(
    profile: Profile,
    reference: ReferenceImage,
    disk: RootDisk,
    traces: Sequence[Trace],
    start_set: StartSet,
    ours: Programs,
    delivery: Delivery = Delivery.OVERLAY,
) -> Recipe:
    """What ``build`` packs, without a hand-off and without a prefetch."""
    root = ImageRoot(reference.tree)
    recipe = Recipe(
        profile,
        reference,
        disk,
        traces[0].network.interface,
        start_set,
        read_unit(root, profile.unit, profile.run_start_pre),
        ours,
        delivery=delivery,
    )
    beside = watched(root, profile.unit, start_set, recipe.bound)
    return dataclasses.replace(recipe, watched=beside)


def with_prefetch(recipe: Recipe, traces: Sequence[Trace]) -> Recipe:
    """With what init asks the recipe's disk for at once, as that is."""
    found = plan(_foreseen(recipe, traces), read_block_map(recipe.disk.path))
    return dataclasses.replace(recipe, prefetch=found)


def with_arranged_disk(recipe: Recipe, traces: Sequence[Trace], store: Store, progress: Progress) -> Recipe:
    """With a disk on which what the application comes to lies side by side, out of the store or made now.

    It is the same volume by all that can be seen of it: files, inodes, superblock.
    """
    foreseen = _foreseen(recipe, traces)
    inputs = {
        "image": recipe.reference.image_hash,
        "superblock": dataclasses.asdict(recipe.disk.superblock),
        "size_bytes": recipe.disk.size_bytes,
        "directories": sorted(map(str, foreseen.directories)),
        "files": sorted(map(str, foreseen.files)),
        "recipe": source_digest("quickstart.image.arrange", "quickstart.image.ext4"),
    }

    def make(directory: Path) -> None:
        with progress.step("root disk in order"):
            _arrange(recipe.disk.path, directory / _DISK, foreseen)

    path = store.get_or_make("arranged", inputs, make).path / _DISK
    disk = RootDisk(path, recipe.disk.size_bytes, read_superblock(path))
    return dataclasses.replace(recipe, disk=disk)


def made_of(
    recipe: Recipe,
    traces: Sequence[Trace],
    initramfs: Initramfs,
    disk_format: str,
    build_key: str,
    mac: str,
    uuid: str = "",
) -> Made:
    """What the artefact of this recipe says of itself; ``uuid`` as in Made."""
    return Made(
        profile=recipe.profile,
        reference=recipe.reference,
        disk=recipe.disk,
        disk_format=disk_format,
        traces=tuple(traces),
        start_set=recipe.start_set,
        initramfs=initramfs,
        build_key=build_key,
        mac=mac,
        hand_off=recipe.hand_off.value,
        delivery=recipe.delivery.value,
        payload=recipe.payload.value,
        uuid=uuid,
    )


def _foreseen(recipe: Recipe, traces: Sequence[Trace]) -> Foreseen:
    return foresee(traces, recipe.start_set, ImageRoot(recipe.reference.tree), recipe.bound)


def _arrange(source: Path, target: Path, foreseen: Foreseen) -> None:
    door.run(["cp", "--reflink=auto", "--sparse=always", source, target], timeout_s=1800)
    target.chmod(0o600)
    blocks, groups = read_block_map(target), block_groups(target)
    move(target, blocks.block_bytes, groups, plan_moves(blocks, groups, foreseen.directories, foreseen.files))
