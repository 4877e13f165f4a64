"""Make the kernel, initramfs and root disk of each configuration that the bench compares, all from one
reference image.

This module makes these files with functions that the verb `build` also uses, for example functions of the packages
engines/ and pack/.

Some applications do not accept requests from outside the guest. For such an application, the bench uses a variant of
the image, that is, an image with a few changes (see BenchLayer in profile.py). The configuration `minimal` uses
QuickStart's init and an empty start set, so the application starts from the root volume. The configuration `ramboot`
uses QuickStart's init, with all files of the application in memory and no root volume.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import replace
from pathlib import Path, PurePosixPath

from quickstart.engines import boot as pipeline
from quickstart.errors import BadInputError
from quickstart.host import door
from quickstart.image.extents import Extent, file_extents, tail_extent
from quickstart.image.kerneloptions import stock_line
from quickstart.initramfs.guestconfig import HandOff, Served
from quickstart.initramfs.payload import compressors
from quickstart.initramfs.serving import Delivery
from quickstart.inspect.dpkg import installed
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import assignments, unit_texts
from quickstart.measure.configuration import Boot
from quickstart.measure.results import CONFIGURATIONS, STOCK_CONFIGURATIONS
from quickstart.model import MIB, Profile, ReferenceImage
from quickstart.model.subject import Subject
from quickstart.model.words import Payload
from quickstart.pack.packing import PackOptions, pack, packing_of
from quickstart.profile import BenchLayer
from quickstart.reference.debootstrap import make_reference
from quickstart.reference.variant import TUNED, of_bench, together
from quickstart.store.context import Context
from quickstart.store.store import source_digest

_INITRAMFS = "initramfs.img"
# These configurations lack what only `quickstart` delivers. The disk has the distribution's order, and
# there is no hand-off.
_COMPARED = {
    "minimal": PackOptions(served=Served.VOLUME, hand_off=HandOff.STAY, arranged=False),
    "ramboot": PackOptions(served=Served.MEMORY, hand_off=HandOff.STAY, arranged=False),
}


def prepare(
    profile: Profile,
    configuration: str,
    context: Context,
    layer: BenchLayer | None = None,
    payload: Payload | None = None,
    delivery: Delivery = pipeline.BuildOptions.delivery,
) -> Boot:
    """The files and settings that a machine needs to boot ``configuration`` with the stock command line. The function
    makes the files that the store does not have. Making these files needs root.

    ``layer`` is the profile's bench layer, that is, changes of the image with which the application answers the bench.
    The function adds the layer to the image in every configuration. ``payload`` is the form of the initramfs (by
    default the profile's payload), and ``delivery`` is the way in which packed files reach the application. The
    function uses ``payload`` and ``delivery`` only for the configuration `quickstart`. Raises BadInputError for an
    unknown configuration, and passes on the errors of the stages that make the files.
    """
    if configuration not in CONFIGURATIONS:
        raise BadInputError(
            f"no such configuration: {configuration}", hint=f"known: {', '.join(CONFIGURATIONS)}"
        )
    differing = together(
        TUNED if configuration == "standard-tuned" else None, of_bench(layer) if layer else None
    )
    asked = replace(profile, ready=layer.ready) if layer else profile
    reference = make_reference(asked, context, differing)
    subject = pipeline.subject_of(asked, reference, context)
    if configuration in STOCK_CONFIGURATIONS:
        # The distribution's initramfs and systemd.
        return _boot(subject, configuration, reference.initrd)
    if configuration != "quickstart":
        return _ours(subject, configuration, _COMPARED[configuration], context)
    form = PackOptions(payload=pipeline.payload_of(profile, payload), delivery=delivery)
    return replace(_ours(subject, configuration, form, context), delivery=delivery.value)


def _ours(subject: Subject, configuration: str, form: PackOptions, context: Context) -> Boot:
    """The files and settings that a machine needs to boot a configuration that uses QuickStart's init. These are the
    configurations `minimal`, `ramboot` and `quickstart`. ``form`` has the options by which these configurations differ.
    One of these options says whether the application gets its files from /fast, from the root volume or from memory.
    """
    traced = pipeline.trace_image(subject.profile, subject.reference, pipeline.TraceOptions(), context)
    inputs = {
        "configuration": configuration,
        "payload": [form.payload.value, compressors()],
        "delivery": form.delivery.value,
        "profile": dataclasses.asdict(subject.profile),
        "image": subject.reference.image_hash,
        "superblock": dataclasses.asdict(subject.disk.superblock),
        "traces": [trace.trace_hash for trace in traced.traces],
        "busybox": hashlib.sha256(door.tool_path("busybox").read_bytes()).hexdigest(),
        "cc": hashlib.sha256(door.tool_path("cc").read_bytes()).hexdigest(),
        "recipe": source_digest("quickstart"),
    }
    packing = packing_of(subject, traced, form, context)

    def make(directory: Path) -> None:
        with context.progress.step(f"initramfs: {configuration}"):
            pack(packing, directory / _INITRAMFS)

    initramfs = context.store.get_or_make("boot", inputs, make).path / _INITRAMFS
    return _boot(replace(subject, disk=packing.recipe.disk), configuration, initramfs)


def _boot(subject: Subject, configuration: str, initramfs: Path) -> Boot:
    profile, reference, disk = subject.profile, subject.reference, subject.disk
    root = ImageRoot(reference.tree)
    cmdline, attached = stock_line(disk.superblock.uuid), configuration != "ramboot"
    if not attached:
        # This word would name a disk that does not exist.
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
        unit_lines=tuple(
            "=".join(each)
            for unit in profile.units
            for each in assignments(unit_texts(root, unit), "[Service]")
        ),
        packages=installed(root),
    )


def _fetched(volume: Path, reference: ReferenceImage, initramfs: Path) -> tuple[Extent, ...]:
    """The extents on the volume from which a boot loader would read the kernel and the initramfs, as (offset, length)
    in bytes. The kernel and the stock initramfs are files of the image, so the result has the extents of these files.
    QuickStart's initramfs is not in the image, so a range at the end of the volume stands for this initramfs.
    """
    kernel = file_extents(volume, PurePosixPath("/boot", reference.kernel.name))
    if initramfs == reference.initrd:
        return (*kernel, *file_extents(volume, PurePosixPath("/boot", initramfs.name)))
    return (*kernel, tail_extent(volume.stat().st_size, initramfs.stat().st_size, MIB))
