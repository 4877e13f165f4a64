"""Make the finished initramfs from a subject and its traces. A subject is a profile with its reference image and root
disk. Only this module has the steps of packing and their order.

The function ``packing_of`` makes the recipe, which describes the initramfs, and the root disk that belongs to this
initramfs. The function ``pack`` writes the initramfs. All verbs of the command line pack in this way. Only their
``PackOptions`` differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from quickstart.artefact.directory import Made
from quickstart.artefact.useddisk import UsedDisk, with_times_of
from quickstart.host import door
from quickstart.host.cpulimit import START_SET_LIMIT_S, cpu_limit
from quickstart.image.arrange import move, plan_moves
from quickstart.image.blockmap import read_block_map
from quickstart.image.ext4 import block_groups, disk_recipe
from quickstart.image.superblock import read_superblock
from quickstart.image.volumemap import volume_map
from quickstart.initramfs import ramboot
from quickstart.initramfs.build import Recipe, append_files, write_initramfs
from quickstart.initramfs.description import started_by_interpreter
from quickstart.initramfs.facts import watched
from quickstart.initramfs.guestconfig import HandOff, Served
from quickstart.initramfs.programs import programs
from quickstart.initramfs.serving import Delivery
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import read_stack
from quickstart.inspect.unit.hidden import hidden_paths
from quickstart.inspect.unit.model import UnitStart
from quickstart.model import Initramfs, StartSet, Trace
from quickstart.model.rootdisk import RootDisk, subvolume
from quickstart.model.subject import Subject, Traced
from quickstart.model.words import DiskFormat, FileSystem, KernelOptions, Payload, Target
from quickstart.pack.account import refuse_other_files
from quickstart.pack.earlier import refuse_earlier
from quickstart.pack.edited import refuse_edited
from quickstart.pack.firstreads import data_read, plan_later
from quickstart.pack.given import (
    early_for,
    needed_before_ready,
    refuse_addresses_too_early,
    refuse_names_too_early,
)
from quickstart.pack.groups import refuse_controllers_of_own, refuse_wrapped_docker, told_of_systemd
from quickstart.pack.leave import leave
from quickstart.pack.network import refuse_other_network
from quickstart.pack.nodes import refuse_late_nodes
from quickstart.pack.others import refuse_made_before
from quickstart.pack.parts import Part
from quickstart.pack.peers import partners, refuse_peers
from quickstart.pack.prefetch import Foreseen, foresee, plan
from quickstart.pack.shadow import executed, searched, without_shadowing
from quickstart.pack.startset import compute
from quickstart.pack.undone import refuse_undone_settings
from quickstart.store.context import Context

_DISK = "root.raw"
_EMPTY = StartSet((), ())
_NO_MAP = "the root file system is {}, and QuickStart finds the data that prefetch.data names only on ext4"
_NO_DATA = "the first requests read nothing from the files that prefetch.data names, so no boot prefetches data for them"


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """The options for packing a subject. The defaults are those of ``build``, with the payload ``cpio``.

    With ``arranged``, the initramfs belongs to a copy of the root disk on which the application's files are next to
    each other. ``times_of`` is the disk of a machine that has already run. Packed files get the times that the same
    files have on this disk. ``served`` has values other than FAST only for configurations that the bench compares. With
    VOLUME, the initramfs does not have the start set. With MEMORY, the initramfs has every file that the application
    opens. There is no prefetch plan with VOLUME or with MEMORY.
    """

    hand_off: HandOff = HandOff.KEEP
    delivery: Delivery = Delivery.OVERLAY
    payload: Payload = Payload.CPIO
    served: Served = Served.FAST
    arranged: bool = True
    times_of: UsedDisk | None = None


@dataclass(frozen=True)
class Packing:
    """The input of ``pack``. ``recipe`` describes the initramfs, without the prefetch plan, which ``pack`` adds.
    ``traces`` are the traces from which the recipe was made. ``data`` has the parts of data files that the first
    requests read.
    """

    recipe: Recipe
    traces: tuple[Trace, ...]
    data: Mapping[PurePosixPath, tuple[Part, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Packed:
    """The result of ``pack``. It has the recipe with its prefetch plan, the traces from which the recipe was made, and
    the initramfs.
    """

    recipe: Recipe
    traces: tuple[Trace, ...]
    initramfs: Initramfs


def packing_of(subject: Subject, traced: Traced, options: PackOptions, context: Context) -> Packing:
    """The recipe of the initramfs, with the traces and with the data that the first requests read. ``recipe.disk`` is
    the root disk of the machine that boots from the initramfs. If the store does not have this disk, the function makes
    it.

    Raises UnsupportedUnitError when a unit cannot start early, StartSetError when the start set cannot be packed, and
    BadInputError when a file is missing on the used disk ``options.times_of``.
    """
    used = options.times_of
    start_set = with_times_of(traced.start_set, used) if used else traced.start_set
    with cpu_limit("the image and the log of its boot", START_SET_LIMIT_S):
        recipe = _recipe(subject, traced, start_set, options, context)
    if used:
        files = with_times_of(StartSet(recipe.watched.files, ()), used).files
        recipe = dataclasses.replace(recipe, watched=dataclasses.replace(recipe.watched, files=files))
    if options.arranged:
        recipe = _with_arranged_disk(recipe, traced.traces, context)
    if options.served is not Served.FAST:
        recipe = dataclasses.replace(recipe, start_set=_EMPTY, served=options.served)
    if options.served is Served.MEMORY:
        # A trace ends at ready, while the unit's next commands run. So the trace has only some of the files of these
        # commands.
        companions = tuple(dataclasses.replace(each, start_post=()) for each in recipe.unit.companions)
        unit = dataclasses.replace(recipe.unit, start_post=(), companions=companions)
        recipe = dataclasses.replace(recipe, unit=unit)
    return Packing(recipe, traced.traces, data_of(subject, traced, context))


def data_of(subject: Subject, traced: Traced, context: Context) -> Mapping[PurePosixPath, tuple[Part, ...]]:
    """The parts of data files that the profile's first requests read. The result is empty when the profile does not
    name any data to prefetch.
    """
    if not subject.profile.data_prefetch.data:
        return {}
    if (file_system := subject.disk.superblock.file_system) is not FileSystem.EXT4:
        context.progress.note(_NO_MAP.format(file_system))
        return {}
    with cpu_limit("the image and the log of its boot", START_SET_LIMIT_S):
        # The traces have places on the disk that was traced. An arranged disk has other blocks at these places.
        data = data_read(subject.profile, traced.traces, volume_map(subject.disk))
    if not data:
        context.progress.note(_NO_DATA)
    return data


def pack(packing: Packing, target: Path) -> Packed:
    """Plan the prefetch from the recipe's disk, and write the initramfs to ``target``. Raises the errors of
    ``write_initramfs``.
    """
    recipe, traces = packing.recipe, packing.traces
    if recipe.served is Served.FAST:
        blocks = volume_map(recipe.disk)
        found = plan(_foreseen(recipe, traces), blocks)
        found = dataclasses.replace(found, later=plan_later(packing.data, found, blocks))
        recipe = dataclasses.replace(recipe, prefetch=found)
    initramfs = write_initramfs(recipe, target)
    if recipe.served is Served.MEMORY:
        root = ImageRoot(recipe.reference.tree)
        everything = compute(traces, root, ramboot.all_rules(recipe.profile.files))
        initramfs = append_files(initramfs, ramboot.entries(ramboot.paths(everything, traces, root), root))
    return Packed(recipe, traces, initramfs)


def _recipe(
    subject: Subject, traced: Traced, start_set: StartSet, options: PackOptions, context: Context
) -> Recipe:
    root, units = ImageRoot(subject.reference.tree), subject.profile.units
    unit = read_stack(root, units, subject.profile.run_start_pre)
    refuse_earlier(traced.traces, units, root, subvolume(subject.disk.root_flags))
    _refuse_traced(traced.traces, unit, units, root)
    # Without a hand-off, systemd never runs, so a program cannot call it.
    if options.hand_off is not HandOff.STAY:
        unit = told_of_systemd(traced.traces, unit)
    start_set = leave(start_set, traced.traces, root, unit, overlay=options.delivery is Delivery.OVERLAY)
    programs_run = executed(traced.traces, root)
    directories = searched(start_set, programs_run, root)
    start_set = without_shadowing(start_set, root, directories)
    recipe = Recipe(
        profile=dataclasses.replace(
            subject.profile, early=early_for(traced.traces, subject.profile.early, root)
        ),
        reference=subject.reference,
        disk=subject.disk,
        interface=traced.traces[0].network.interface,
        start_set=start_set,
        unit=unit,
        programs=programs(context.store),
        hand_off=options.hand_off,
        delivery=options.delivery,
        payload=options.payload,
        given=needed_before_ready(traced.traces, units, root),
    )
    return dataclasses.replace(
        recipe,
        watched=watched(
            root,
            units,
            start_set,
            recipe.bound,
            executed=programs_run,
            searched=directories,
            absent=partners(traced.traces),
            hidden=hidden_paths(unit, root),
        ),
    )


def _refuse_traced(traces: Sequence[Trace], unit: UnitStart, units: Sequence[str], root: ImageRoot) -> None:
    """Raise UnsupportedUnitError when the traced boots show something that an early start of ``units``, with the last
    unit ``unit``, could not repeat.
    """
    refuse_edited(traces, units, root)
    refuse_other_files(traces, unit, root)
    refuse_other_network(traces, unit.unit)
    refuse_made_before(traces, unit, root)
    refuse_late_nodes(traces, unit.unit)
    refuse_controllers_of_own(traces, unit.unit)
    refuse_wrapped_docker(traces, unit)
    refuse_undone_settings(traces, unit.unit, root)
    refuse_peers(traces, unit, root)
    refuse_names_too_early(traces, units, root)
    refuse_addresses_too_early(traces, units, root)


def _with_arranged_disk(recipe: Recipe, traces: Sequence[Trace], context: Context) -> Recipe:
    """Return the recipe with a root disk on which the application's files are next to each other. If the store does not
    have this disk, the function makes it. The disk has the same files, inodes and superblock as the disk of ``recipe``.
    """
    foreseen = _foreseen(recipe, traces)
    inputs = arranged_inputs(recipe, foreseen)

    def make(directory: Path) -> None:
        with context.progress.step("root disk in order"):
            _arrange(recipe.disk.path, directory / _DISK, foreseen)

    path = context.store.get_or_make("arranged", inputs, make).path / _DISK
    disk = RootDisk(path=path, size_bytes=recipe.disk.size_bytes, superblock=read_superblock(path))
    return dataclasses.replace(recipe, disk=disk)


def arranged_inputs(recipe: Recipe, foreseen: Foreseen) -> Mapping[str, object]:
    """The inputs of the stage that makes the arranged disk, a root disk on which the files that a boot reads are next
    to each other. The store uses the inputs to find a disk that was made from the same inputs.
    """
    return {
        "image": recipe.reference.image_hash,
        "superblock": dataclasses.asdict(recipe.disk.superblock),
        "size_bytes": recipe.disk.size_bytes,
        "arranged": [sorted(map(str, paths)) for paths in foreseen.arranged],
        **disk_recipe(),
    }


def made_of(
    packed: Packed,
    *,
    target: Target,
    disk_format: DiskFormat,
    build_key: str,
    mac: str,
    kernel_options: KernelOptions,
    uuid: str = "",
) -> Made:
    """The facts about the artefact that has the initramfs in ``packed``. ``kernel_options`` and ``uuid`` have the same
    meaning as in the class `Made` (artefact/directory.py).
    """
    recipe = packed.recipe
    return Made(
        profile=recipe.profile,
        reference=recipe.reference,
        disk=recipe.disk,
        disk_format=disk_format,
        traces=packed.traces,
        start_set=recipe.start_set,
        initramfs=packed.initramfs,
        build_key=build_key,
        mac=mac,
        hand_off=recipe.hand_off.value,
        delivery=recipe.delivery.value,
        payload=recipe.payload.value,
        kernel_options=kernel_options,
        target=target,
        uuid=uuid,
    )


def _foreseen(recipe: Recipe, traces: Sequence[Trace]) -> Foreseen:
    root = ImageRoot(recipe.reference.tree)
    interpreted = started_by_interpreter(recipe.unit, recipe.start_set, root)
    return foresee(traces, recipe.start_set, root, recipe.bound, interpreted)


def _arrange(source: Path, target: Path, foreseen: Foreseen) -> None:
    door.run(["cp", "--reflink=auto", "--sparse=always", source, target], timeout_s=1800)
    target.chmod(0o600)
    blocks, groups = read_block_map(target), block_groups(target)
    move(target, blocks.block_bytes, groups, plan_moves(blocks, groups, *foreseen.arranged))
