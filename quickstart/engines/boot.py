"""Run `build` and `trace` as sequences of steps: profile → reference → trace → start set → initramfs → image."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from quickstart.artefact import directory as artefacts
from quickstart.artefact import output
from quickstart.engines.launching import launcher_for
from quickstart.engines.made import make_artefact, up_to_date
from quickstart.errors import TraceError, UnsupportedUnitError
from quickstart.host import door
from quickstart.host.progress import Progress
from quickstart.image.ext4 import created_of, disk_recipe, write_disk
from quickstart.image.kerneloptions import chosen
from quickstart.image.superblock import read_superblock
from quickstart.initramfs.guestconfig import HandOff
from quickstart.initramfs.payload import check_kernel, compressors
from quickstart.initramfs.serving import Delivery, without_hidden
from quickstart.inspect.cloudinit import early_start
from quickstart.inspect.firstboot import first_boot
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import read_stack, unit_texts
from quickstart.model import MIB, Artefact, FileRules, Network, Profile, ReferenceImage, StartSet, Trace
from quickstart.model.machine import Machine, NetworkAccess, machine
from quickstart.model.rootdisk import RootDisk
from quickstart.model.subject import Subject, Traced
from quickstart.model.words import DiskFormat, Early, KernelOptions, Payload, Target
from quickstart.pack.checks import check_image
from quickstart.pack.packing import Packed, PackOptions, made_of, packing_of
from quickstart.pack.startset import check_includes, compute
from quickstart.reference import entry
from quickstart.reference.debootstrap import make_reference, reference_inputs
from quickstart.reference.rootfs import Rootfs, examine, reference_of, rootfs_inputs
from quickstart.store.context import Context
from quickstart.store.store import Store, key_of, source_digest
from quickstart.trace import record
from quickstart.trace.load import load_trace

_TOOLS = (
    *("mkfs.ext4", "debugfs", "e2fsck", "qemu-system-x86_64", "setpriv"),
    *("busybox", "strace", "cc", "musl-gcc", "cp"),
)
_ROOT_STEP = "making and tracing an image (debootstrap, chroot, owners in the root disk)"
_NEVER_SEEN = (
    "cloud-init is in the image and quickstart-guest, which notes where it has been, is not: each boot will be a stock one "
    '(docs/users/cloud-init.md; early = "always" in the profile starts early all the same)'
)
MAC = "52:54:00:71:73:02"


@dataclass(frozen=True)
class TraceOptions:
    """The options of a trace. ``traces`` is the number of traced boots. ``rootfs`` is a user's own root file system,
    which is used instead of running debootstrap. With ``keep``, the guests' workspaces (temporary directories with
    logs) are not removed. ``guest_package`` says whether the image gets our Debian package quickstart-guest.
    """

    traces: int = 1
    rootfs: Path | None = None
    keep: bool = False
    guest_package: bool = True


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """The options of a build. When ``payload`` or ``kernel_options`` is None, the profile's value applies."""

    out: Path
    disk_format: DiskFormat = DiskFormat.RAW
    target: Target = Target.QEMU
    force: bool = False
    tracing: TraceOptions = TraceOptions()
    hand_off: HandOff = HandOff.KEEP
    delivery: Delivery = Delivery.OVERLAY
    payload: Payload | None = None
    kernel_options: KernelOptions | None = None


@dataclass(frozen=True)
class Built:
    """The result of a build. ``made`` is False when OUT was already up to date."""

    artefact: Artefact
    made: bool


@dataclass(frozen=True)
class Plan:
    """The steps of a build whose keys in the store are already known. Each step is a tuple (name of the step, key,
    whether the store has the result of the step).
    """

    stages: tuple[tuple[str, str, bool], ...]


def build_key(profile: Profile, options: BuildOptions, rootfs: Rootfs | None) -> str:
    """The key of a build: a hash of all its inputs, such as the profile, the user's own root file system,
    QuickStart's code, the disk format and the number of traces.
    """
    inputs = {
        "profile": asdict(profile),
        "tool": source_digest("quickstart"),
        "tracers": record.tracers_digest(),
        "format": options.disk_format,
        "target": options.target.value,
        "traces": options.tracing.traces,
        "rootfs": rootfs_inputs(rootfs) if rootfs else None,
        "hand_off": options.hand_off.value,
        "delivery": options.delivery.value,
        "payload": [payload_of(profile, options.payload).value, compressors()],
        "kernel_options": chosen(profile, options.kernel_options).value,
        "guest_package": options.tracing.guest_package,
        # Bytes of part A depend on both tools: part A contains BusyBox unchanged, and cc compiles starter and checker.
        **{name: hashlib.sha256(door.tool_path(name).read_bytes()).hexdigest() for name in ("busybox", "cc")},
    }
    return key_of("build", inputs)


def payload_of(profile: Profile, asked: Payload | None) -> Payload:
    """The payload (form of the initramfs) of a build: ``asked``, or the profile's payload if ``asked`` is None."""
    return asked or profile.payload


def plan(profile: Profile, options: TraceOptions, store: Store) -> Plan:
    """The stages (steps) of a build of ``profile``. When the store does not have the reference image, the result has
    only the stage ``reference``, because the keys of the later stages depend on the image. This function changes
    nothing.
    """
    rootfs = examine(options.rootfs) if options.rootfs else None
    reference = _reference_inputs(profile, rootfs, options)
    image = entry.find(store, reference)
    stages = [("reference", key_of("reference", reference), image is not None)]
    if image:
        rest = [("disk", _disk_inputs(profile, image))]
        rest += [("trace", _trace_inputs(profile, image, number)) for number in range(1, options.traces + 1)]
        stages += [(name, key_of(name, each), store.find(name, each) is not None) for name, each in rest]
    return Plan(tuple(stages))


def in_store(
    profile: Profile, options: TraceOptions, store: Store
) -> tuple[ReferenceImage | None, StartSet | None]:
    """The reference image and the start set of ``profile``. The image is None when the store does not have the image.
    The start set is None when the store does not have all traces. This function changes nothing.
    """
    rootfs = examine(options.rootfs) if options.rootfs else None
    image = entry.find(store, _reference_inputs(profile, rootfs, options))
    if image is None:
        return None, None
    numbers = range(1, options.traces + 1)
    kept = [store.find("trace", _trace_inputs(profile, image, number)) for number in numbers]
    traces = [load_trace(path, *profile.units) for path in kept if path is not None]
    if len(traces) < len(kept):
        return image, None
    return image, compute(traces, ImageRoot(image.tree), rules_of(profile, image))


def rules_of(profile: Profile, reference: ReferenceImage) -> FileRules:
    """The profile's file rules, and further rules that exclude files which the unit hides by its own mounts. If the
    unit cannot start early, the result has only the profile's rules.
    """
    root = ImageRoot(reference.tree)
    try:
        unit = read_stack(root, profile.units, profile.run_start_pre)
    except UnsupportedUnitError:
        return profile.files
    return without_hidden(profile.files, root, unit)


def build(
    profile: Profile, options: BuildOptions, context: Context, *, rootfs: Rootfs | None = None
) -> Built:
    """Build the artefact of ``profile`` at ``options.out``, unless an artefact that is up to date is already
    there. After an error, ``options.out`` is unchanged. ``rootfs`` is the user's own root file system, if the
    caller has already hashed it.
    """
    rootfs = rootfs or rootfs_of(options.tracing, context.progress)
    key = build_key(profile, options, rootfs)
    with output.settled(options.out):
        if present := up_to_date(options.out, key, options.force, context):
            return Built(present, made=False)
        output.check_unused(options.out)
    door.need_root(_ROOT_STEP)
    door.need_tools(*build_tools(profile, options, context.store))
    reference = _reference(profile, rootfs, options.tracing, context)
    _check_image(reference, profile, options, context)
    subject = subject_of(profile, reference, context)
    traced = trace_disk(subject, options.tracing, context)
    form = PackOptions(
        hand_off=options.hand_off, delivery=options.delivery, payload=payload_of(profile, options.payload)
    )
    packing = packing_of(subject, traced, form, context)
    packed_early = packing.recipe.profile.early
    if profile.early is Early.ASK and (
        line := first_boot(ImageRoot(reference.tree), Early.ASK, packed_early)
    ):
        context.progress.note(line)

    def made_meanwhile() -> bool:
        # A parallel build may have made OUT, and a machine may run from it by now.
        return artefacts.check_output(options.out, key, options.force) is not None

    def facts(packed: Packed, _: Path) -> artefacts.Made:
        return made_of(
            packed,
            target=options.target,
            disk_format=options.disk_format,
            build_key=key,
            mac=MAC,
            kernel_options=chosen(profile, options.kernel_options),
        )

    return Built(make_artefact(options.out, packing, facts, context, keep_present=made_meanwhile), made=True)


def _check_image(
    reference: ReferenceImage, profile: Profile, options: BuildOptions, context: Context
) -> None:
    """Raise an error when the image does not fit the profile. Show a note when the image has cloud-init, but not the
    package quickstart-guest, which records that cloud-init has completed a boot.
    """
    root = ImageRoot(reference.tree)
    check_image(root, profile)
    check_kernel(root, reference.kernel_version, payload_of(profile, options.payload))
    if not options.tracing.guest_package and early_start(root, profile.early) in (Early.SEEN, Early.ASK):
        context.progress.note(_NEVER_SEEN)


def build_tools(profile: Profile, options: BuildOptions, store: Store) -> tuple[str, ...]:
    """The programs that the stages of a build with these options need on the host."""
    own = ("qemu-img",) if options.disk_format == DiskFormat.QCOW2 else ()
    return (*_trace_tools(profile, options.tracing, store), *own, *payload_of(profile, options.payload).tools)


def _trace_tools(profile: Profile, options: TraceOptions, store: Store) -> tuple[str, ...]:
    if options.rootfs is not None:
        # The first bytes of an archive decide which decompressor is needed (reference/rootfs.py).
        return (*_TOOLS, *(() if options.rootfs.is_dir() else ("tar",)))
    have = store.find("reference", _reference_inputs(profile, None, options)) is not None
    return (*_TOOLS, *(() if have else ("debootstrap", "gpgv", "unshare", "chroot")))


def reference_image(profile: Profile, options: TraceOptions, context: Context) -> ReferenceImage:
    """The image that a trace of ``profile`` boots. The function first checks that we are root, and that the host has
    the tools for all steps up to the trace.
    """
    door.need_root(_ROOT_STEP)
    door.need_tools(*_trace_tools(profile, options, context.store))
    return _reference(profile, rootfs_of(options, context.progress), options, context)


def trace(profile: Profile, options: TraceOptions, context: Context) -> Traced:
    """The start set of ``profile`` with its traces. The function ignores unsupported directives of the unit, so it also
    works for a unit that cannot start early.
    """
    return trace_image(profile, reference_image(profile, options, context), options, context)


def trace_image(
    profile: Profile, reference: ReferenceImage, options: TraceOptions, context: Context
) -> Traced:
    """The start set of ``profile`` in the existing image ``reference``, with its traces."""
    door.need_root(_ROOT_STEP)
    door.need_tools(*_TOOLS)
    for unit in profile.units:
        unit_texts(ImageRoot(reference.tree), unit)
    check_includes(ImageRoot(reference.tree), profile.files)
    return trace_disk(subject_of(profile, reference, context), options, context)


def trace_disk(subject: Subject, options: TraceOptions, context: Context) -> Traced:
    """The start set of ``subject``, and the traces from which the start set is computed. If the store does not have a
    trace, the function records the trace.
    """
    traces = tuple(
        make_trace(subject, number, context, options.keep) for number in range(1, options.traces + 1)
    )
    names = sorted({each.network.interface for each in traces})
    if len(names) > 1:
        raise TraceError(f"the network interface has another name in each trace: {', '.join(names)}")
    with context.progress.step("start set"):
        rules = rules_of(subject.profile, subject.reference)
        start_set = compute(traces, ImageRoot(subject.reference.tree), rules)
    for program in sorted({program for each in traces for program in each.blind}):
        context.progress.note(f"{program} uses io_uring: what it opens by that is not in the trace")
    return Traced(start_set, traces)


def rootfs_of(options: TraceOptions, progress: Progress) -> Rootfs | None:
    """The user's own root file system with its hash, or None."""
    if options.rootfs is None:
        return None
    with progress.step(f"hash {options.rootfs}"):
        return examine(options.rootfs)


def _reference_inputs(profile: Profile, rootfs: Rootfs | None, options: TraceOptions) -> Mapping[str, object]:
    if rootfs:
        return rootfs_inputs(rootfs, guest_package=options.guest_package)
    return reference_inputs(profile, guest_package=options.guest_package)


def _reference(
    profile: Profile, rootfs: Rootfs | None, options: TraceOptions, context: Context
) -> ReferenceImage:
    wanted = options.guest_package
    if rootfs:
        return reference_of(profile, rootfs, context, guest_package=wanted)
    return make_reference(profile, context, guest_package=wanted)


def _disk_inputs(profile: Profile, reference: ReferenceImage) -> Mapping[str, object]:
    return {
        "image": reference.image_hash,
        "size_mib": profile.disk_mib,
        "volume": [reference.volume_uuid, reference.volume_label],
        **disk_recipe(),
    }


def subject_of(profile: Profile, reference: ReferenceImage, context: Context) -> Subject:
    """The profile, its reference image and the image's root disk, from the store or written now."""

    def make(directory: Path) -> None:
        with context.progress.step("reference: root disk"):
            write_disk(
                reference.tree,
                directory / "root.raw",
                profile.disk_mib,
                reference.volume_uuid,
                reference.volume_label,
                entry.devices_of(reference),
                created_s=created_of(reference.image_hash),
            )

    path = context.store.get_or_make("disk", _disk_inputs(profile, reference), make).path / "root.raw"
    size_bytes, superblock = profile.disk_mib * MIB, read_superblock(path)
    return Subject(profile, reference, RootDisk(path=path, size_bytes=size_bytes, superblock=superblock))


def _trace_inputs(profile: Profile, reference: ReferenceImage, number: int) -> Mapping[str, object]:
    return {
        "number": number,
        "image": reference.image_hash,
        "disk": key_of("disk", _disk_inputs(profile, reference)),
        "units": list(profile.units),
        # How long to wait for ready does not change what is traced.
        "ready": asdict(replace(profile.ready, timeout_s=0)),
        "memory_mib": profile.memory_mib,
        "tracers": record.tracers_digest(),
        "recipe": source_digest("quickstart.trace", "quickstart.launch"),
        **({"first_requests": requests} if (requests := profile.data_prefetch.first_requests) else {}),
    }


def make_trace(subject: Subject, number: int, context: Context, keep: bool) -> Trace:
    """The trace of reference boot ``number``, counted from 1. If the store does not have the trace, the function boots
    the image and records the trace.
    """

    def make(directory: Path) -> None:
        launcher = launcher_for(subject.reference.kernel, context, keep=keep)
        programs = record.tracer_programs(context.store)
        record.record(subject, launcher, programs, directory, context.progress)

    inputs = {**_trace_inputs(subject.profile, subject.reference, number), **subject.whole_inputs}
    path = context.store.get_or_make("trace", inputs, make).path
    with context.progress.step("trace: parse"):
        return load_trace(path, *subject.profile.units)


def machine_of(
    artefact: Artefact,
    *,
    stock: bool,
    snapshot: bool,
    port: int | None,
    extra_cmdline: str = "",
    network: Network = Network.CLOSED,
) -> Machine:
    """The machine that boots ``artefact`` with our initramfs, or, with ``stock``, with the distribution's initramfs."""
    return machine(
        artefact.profile_name,
        memory_mib=artefact.memory_mib,
        kernel=artefact.kernel,
        initrds=(artefact.stock_initrd if stock else artefact.initramfs,),
        cmdline=f"{artefact.stock_cmdline if stock else artefact.cmdline} {extra_cmdline}",
        disk=artefact.disk,
        disk_format=artefact.disk_format,
        keeps_writes=not snapshot,
        mac=artefact.mac,
        access=NetworkAccess(port, artefact.ready, network),
        uuid=artefact.uuid,
        file_bytes=artefact.file_bytes,
    )
