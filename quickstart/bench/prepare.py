"""Makes what the bench compares: each configuration's kernel, initramfs and root disk, all from one reference image.

What `build` ships is made by the same functions (pipeline, initramfs); an application that cannot be asked from outside has another
image here (profile.BenchLayer). `minimal` is `quickstart` with nothing in its start set, so that the application starts from the
root volume; `ramboot` is the same init with all the files and no volume.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath

from quickstart.artefact.directory import command_line
from quickstart.engines import boot as pipeline
from quickstart.errors import BadInputError
from quickstart.host import door
from quickstart.host.progress import Progress
from quickstart.image.extents import Extent, file_extents, tail_extent
from quickstart.initramfs import ramboot
from quickstart.initramfs.build import Recipe, append_files, write_initramfs
from quickstart.initramfs.layout import HandOff, Served
from quickstart.initramfs.payload import Payload, compressors
from quickstart.initramfs.programs import programs
from quickstart.initramfs.serving import Delivery
from quickstart.inspect.dpkg import installed
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import assignments, unit_texts
from quickstart.measure.configuration import Boot
from quickstart.measure.results import CONFIGURATIONS
from quickstart.model import MIB, Profile, ReferenceImage, RootDisk, StartSet
from quickstart.pack.packing import recipe_of, with_prefetch
from quickstart.pack.startset import compute
from quickstart.profile import BenchLayer
from quickstart.reference.debootstrap import make_reference
from quickstart.reference.variant import TUNED, of_bench, together
from quickstart.store.store import Store, source_digest

_INITRAMFS = "initramfs.img"


def prepare(
    profile: Profile,
    configuration: str,
    store: Store,
    progress: Progress,
    layer: BenchLayer | None = None,
    payload: Payload | None = None,
    delivery: Delivery = pipeline.BuildOptions.delivery,
) -> Boot:
    """How ``configuration`` boots, with the stock command line; what it boots from is made as root, or taken out of the store.

    ``layer`` is what the profile says of the bench: every configuration has it. ``payload``, by default the profile's, and
    ``delivery`` are of `quickstart` alone.
    Raises BadInputError for a configuration that is not known, and what the stages raise.
    """
    if configuration not in CONFIGURATIONS:
        raise BadInputError(
            f"no such configuration: {configuration}", hint=f"known: {', '.join(CONFIGURATIONS)}"
        )
    differing = together(
        TUNED if configuration == "standard-tuned" else None, of_bench(layer) if layer else None
    )
    asked = replace(profile, ready=layer.ready) if layer else profile
    reference = make_reference(asked, store, progress, differing)
    disk = pipeline.make_disk(asked, reference, store, progress)
    if configuration in ("standard", "standard-tuned"):
        # The distribution's initramfs and systemd.
        return _boot(asked, configuration, reference, reference.initrd, disk)
    form = (pipeline.payload_of(profile, payload), delivery)
    return _ours(asked, configuration, reference, disk, form, store, progress)


def _ours(
    profile: Profile,
    configuration: str,
    reference: ReferenceImage,
    disk: RootDisk,
    form: tuple[Payload, Delivery],
    store: Store,
    progress: Progress,
) -> Boot:
    """Our init: what it serves is what the configurations differ in."""
    payload, delivery = form
    traced = pipeline.trace_image(profile, reference, pipeline.TraceOptions(), store, progress)
    inputs = {
        "configuration": configuration,
        "payload": [payload.value, compressors()],
        "delivery": delivery.value,
        "profile": dataclasses.asdict(profile),
        "image": reference.image_hash,
        "superblock": dataclasses.asdict(disk.superblock),
        "traces": [trace.trace_hash for trace in traced.traces],
        "busybox": hashlib.sha256(door.tool_path("busybox").read_bytes()).hexdigest(),
        "cc": hashlib.sha256(door.tool_path("cc").read_bytes()).hexdigest(),
        "recipe": source_digest("quickstart"),
    }
    make_archive = _ARCHIVES[configuration]
    # The order of the disk belongs to what we deliver; `minimal` has the distribution's.
    recipe = (
        pipeline.packed_from(profile, reference, disk, traced, store, progress, delivery)
        if configuration == "quickstart"
        else recipe_of(profile, reference, disk, traced.traces, traced.start_set, programs(store), delivery)
    )

    def make(directory: Path) -> None:
        with progress.step(f"initramfs: {configuration}"):
            make_archive(replace(recipe, payload=payload), traced, directory / _INITRAMFS)

    initramfs = store.get_or_make("boot", inputs, make).path / _INITRAMFS
    boot = _boot(profile, configuration, reference, initramfs, recipe.disk)
    return replace(boot, delivery=delivery.value) if configuration == "quickstart" else boot


def _quickstart(recipe: Recipe, traced: pipeline.Traced, target: Path) -> None:
    recipe = with_prefetch(recipe, traced.traces)
    write_initramfs(replace(recipe, hand_off=HandOff.KEEP), target)


def _minimal(recipe: Recipe, traced: pipeline.Traced, target: Path) -> None:
    write_initramfs(_with_nothing(recipe, Served.VOLUME), target)


def _ramboot(recipe: Recipe, traced: pipeline.Traced, target: Path) -> None:
    # A trace ends at ready, in the middle of what the unit does next: of that there are only some of the files.
    recipe = replace(recipe, unit=replace(recipe.unit, start_post=()))
    made = write_initramfs(_with_nothing(recipe, Served.MEMORY), target)
    root = ImageRoot(recipe.reference.tree)
    everything = compute(traced.traces, root, ramboot.all_rules(recipe.profile.files))
    append_files(made, ramboot.entries(ramboot.paths(everything, traced.traces, root), root))


def _with_nothing(recipe: Recipe, served: Served) -> Recipe:
    return replace(recipe, start_set=StartSet((), ()), served=served, payload=Payload.CPIO)


_Archive = Callable[[Recipe, pipeline.Traced, Path], None]
_ARCHIVES: dict[str, _Archive] = {"quickstart": _quickstart, "minimal": _minimal, "ramboot": _ramboot}


def _boot(
    profile: Profile, configuration: str, reference: ReferenceImage, initramfs: Path, disk: RootDisk
) -> Boot:
    root = ImageRoot(reference.tree)
    cmdline, attached = command_line(disk.superblock.uuid), configuration != "ramboot"
    if not attached:
        # It would be the only word of the command line that names something that is not there.
        cmdline = cmdline.replace(f"root=UUID={disk.superblock.uuid} ro ", "")
    return Boot(
        configuration=configuration,
        command_line="stock",
        kernel=reference.kernel,
        initrds=(initramfs,),
        volume=disk.path,
        fetched=_fetched(disk.path, reference, initramfs),
        attached=attached,
        cmdline=cmdline,
        memory_mib=profile.memory_mib,
        mac=pipeline.MAC,
        ready=profile.ready,
        unit=profile.unit,
        unit_lines=tuple("=".join(each) for each in assignments(unit_texts(root, profile.unit), "[Service]")),
        packages=installed(root),
    )


def _fetched(volume: Path, reference: ReferenceImage, initramfs: Path) -> tuple[Extent, ...]:
    """Where kernel and initramfs lie: the image's own files where they are, ours in one piece at the volume's end."""
    kernel = file_extents(volume, PurePosixPath("/boot", reference.kernel.name))
    if initramfs == reference.initrd:
        return (*kernel, *file_extents(volume, PurePosixPath("/boot", initramfs.name)))
    return (*kernel, tail_extent(volume.stat().st_size, initramfs.stat().st_size, MIB))
