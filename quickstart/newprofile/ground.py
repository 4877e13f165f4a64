"""Describe the image for which `profile new` writes a profile: an image of Debian packages, a user's own root file
system, or a disk that somebody else has made (`--image`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from quickstart.engines import boot as pipeline
from quickstart.engines.boot import BuildOptions, TraceOptions
from quickstart.engines.image import ImageOptions, brought_home, build_examined, image_key
from quickstart.engines.ownsystem import STAGE, examined, prepared
from quickstart.errors import BadInputError
from quickstart.host import door
from quickstart.host.cpulimit import cpu_limit
from quickstart.inspect.dpkg import owners
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import unit_file
from quickstart.model import MIB, Artefact, Profile, ReferenceImage
from quickstart.model.subject import Subject
from quickstart.model.words import ImageSource
from quickstart.newprofile import findings
from quickstart.newprofile.reads import Reads, measured
from quickstart.newprofile.size import tree_bytes
from quickstart.pack.packing import PackOptions
from quickstart.store.context import Context

_ROOT_STEP = "copying the files of a disk with their owners"


@dataclass(frozen=True, kw_only=True)
class Ground:
    """The image of a new profile. ``disk_mib`` is the size of its root disk. ``subject`` gives a profile together with
    the image and the root disk. ``form`` has the options for packing on trial. ``measured`` gives the reads of a trial
    boot of a profile. ``source`` says where the image comes from.
    """

    reference: ReferenceImage
    disk_mib: int
    subject: Callable[[Profile], Subject]
    form: PackOptions
    measured: Callable[[Profile], Reads]
    source: ImageSource

    @property
    def root(self) -> ImageRoot:
        """The files of the image."""
        return ImageRoot(self.reference.tree)


def of_packages(draft: Profile, options: TraceOptions, context: Context) -> Ground:
    """The image of the packages in ``draft``, or the user's own root file system in ``options``."""
    reference = pipeline.reference_image(draft, options, context)

    def subject(profile: Profile) -> Subject:
        return pipeline.subject_of(profile, reference, context)

    def reads(profile: Profile) -> Reads:
        how = BuildOptions(out=Path("out"), tracing=options)
        key = pipeline.build_key(profile, how, pipeline.rootfs_of(options, context.progress))

        def build(out: Path) -> Artefact:
            return pipeline.build(profile, replace(how, out=out), context).artefact

        return measured(profile.unit, key, build, options.keep, context)

    return Ground(
        reference=reference,
        disk_mib=findings.disk_mib(tree_bytes(ImageRoot(reference.tree))),
        subject=subject,
        form=PackOptions(),
        measured=reads,
        source=ImageSource.ROOTFS if options.rootfs else ImageSource.PACKAGES,
    )


@contextmanager
def of_disk(path: Path, options: TraceOptions, context: Context) -> Iterator[Ground]:
    """The system on a disk that somebody else has made. The disk is not changed. All work happens on copies.

    Raises BadInputError when `build --image` cannot make the disk fast.
    """
    door.need_root(_ROOT_STEP)
    with examined(path, context, is_given=True) as image:
        disk = prepared(image, context)
        brought = brought_home(image, disk, (STAGE, image.digest), disk.size_bytes, context)

        def reads(profile: Profile) -> Reads:
            how = ImageOptions(image=path, out=Path("out"), keep=options.keep)

            def build(out: Path) -> Artefact:
                return build_examined(profile, replace(how, out=out), image, context).artefact

            return measured(profile.unit, image_key(profile, how, image.digest), build, options.keep, context)

        yield Ground(
            reference=brought.reference,
            disk_mib=disk.size_bytes // MIB,
            subject=lambda profile: Subject(profile, brought.reference, disk),
            form=brought.form(PackOptions().payload),
            measured=reads,
            source=ImageSource.DISK,
        )


def packages_of(root: ImageRoot, units: Sequence[str]) -> tuple[str, ...]:
    """The Debian packages that the files of ``units`` come from. Raises BadInputError for a unit that no package has
    brought, and UnsupportedUnitError for a unit that the image does not have.
    """
    found: set[str] = set()
    with cpu_limit("the image"):
        owned = {unit: owners(root, [unit_file(root, unit)]) for unit in units}
    for unit in units:
        names = {owner.package for owner in owned[unit].values()}
        if not names:
            raise BadInputError(
                f"no package of the image has brought {unit}",
                hint="name the package of the service's program: --package P",
            )
        found |= names
    return tuple(sorted(found))
