"""Write, read and check the files of an artefact's directory, OUT (docs/users/artefact.md)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from uuid import UUID, uuid5

from quickstart import __version__
from quickstart.artefact.manifest import (
    MANIFEST,
    REBUILD,
    SCHEMA,
    START_SET,
    Manifest,
    is_ours,
    read_manifest,
    validated,
)
from quickstart.artefact.sums import RUN_SCRIPT, check_sums, file_facts, opened_file
from quickstart.artefact.wholedisk import WHOLE_DISK
from quickstart.errors import ArtefactError, BadInputError, OutputExistsError
from quickstart.host import door
from quickstart.host.beneath import opened_regular
from quickstart.host.files import copy_as_open
from quickstart.image import qcow2
from quickstart.image.kerneloptions import stock_line, with_options
from quickstart.image.superblock import read_superblock
from quickstart.inspect.cloudinit import early_start, has_cloud_init
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import (
    Artefact,
    Initramfs,
    Profile,
    ReferenceImage,
    StartSet,
    Trace,
)
from quickstart.model.rootdisk import RootDisk
from quickstart.model.words import DiskFormat, Early, KernelOptions, Target
from quickstart.parse.printable import brief

# The kind of a reference image that was taken from an artefact's own disk. Such a disk may hold a machine's
# data.
USED_DISK = "disk"
_SUMMED = ("vmlinuz", "initrd.img", "initramfs.img", RUN_SCRIPT)
_NAMES = frozenset({MANIFEST, START_SET, *_SUMMED, WHOLE_DISK, *(f"root.{name}" for name in DiskFormat)})
_MOST_NAMED = 20
# The namespace for the UUIDs of machines that boot an artefact. Any fixed UUID will do.
_MACHINES = UUID("3c1f7c56-6d0a-4d8c-9c55-0d1f1f6a2b01")


def check_output(out: Path, build_key: str, force: bool) -> Artefact | None:
    """The artefact at ``out``, if a new build would make an equal artefact. ``build_key`` is the key of the new build,
    which an equal artefact has recorded. The result is None when ``out`` does not exist or may be replaced.

    Raises OutputExistsError when ``out`` is not an artefact, or has files that do not belong to an artefact. Without
    ``force``, also raises OutputExistsError when the artefact belongs to another user or is damaged, and when a machine
    may have used the root disk, so that the disk may hold the machine's data.
    """
    if not out.exists():
        if out.is_symlink():
            raise OutputExistsError(
                f"{out} is a link that leads nowhere", hint="remove it, or choose another -o"
            )
        return None
    if not is_artefact(out):
        raise OutputExistsError(
            f"{out} exists and is not an artefact of quickstart", hint="choose another -o"
        )
    if strange := sorted({path.name for path in out.iterdir()} - _NAMES):
        raise OutputExistsError(
            f"{out} holds more than an artefact: {', '.join(map(brief, strange[:_MOST_NAMED]))}",
            hint="move that away, or choose another -o",
        )
    if force:
        return None
    _check_owner(out)
    try:
        artefact = load(out)
        if artefact.build_key == build_key:
            check_sums(artefact.directory)
            return artefact
    except BadInputError as error:
        raise OutputExistsError(
            f"{out} is damaged: {error.message}", hint="--force replaces it, its root disk too"
        ) from error
    if may_be_used(artefact):
        raise OutputExistsError(
            f"{out} is another build, and its root disk may have been used since",
            hint="choose another -o, or --force to throw it away",
        )
    return None


def _check_owner(out: Path) -> None:
    """Raise OutputExistsError when ``out`` belongs to another user, who may have written the manifest."""
    for uid in (out.lstat().st_uid, out.stat().st_uid):
        if uid not in (os.geteuid(), 0):
            raise OutputExistsError(
                f"{out} belongs to another user ({uid}), who may have made it",
                hint="choose another -o, or --force to replace it",
            )


def may_be_used(artefact: Artefact) -> bool:
    """Whether a machine may have written to the artefact's disk. Always True for a disk that is not a raw image."""
    return _is_rebuilt(artefact) or artefact.disk_format != DiskFormat.RAW or not is_as_built(artefact)


def is_as_built(artefact: Artefact) -> bool:
    """Whether nobody has mounted the root volume for writing since the build. The artefact's disk must be raw."""
    return read_superblock(artefact.disk, artefact.root_at_bytes) == artefact.superblock


def _is_rebuilt(artefact: Artefact) -> bool:
    """Whether a rebuild made the artefact. The root disk of a rebuilt artefact was in use before the rebuild
    (docs/users/never-stale.md).
    """
    reference = read_manifest(artefact.directory).reference
    return reference is not None and reference.kind == USED_DISK


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """All facts that an artefact records about itself. ``hand_off``, ``delivery`` and ``payload`` have the
    string values of the enums HandOff, Delivery and Payload.

    ``kernel_options`` are the options on the kernel's command line for a fast start. After a rebuild, ``uuid`` is the
    UUID of the machine that has used the disk. When ``uuid`` is empty and the image has cloud-init, ``write`` computes
    a UUID from ``build_key``.
    """

    profile: Profile
    reference: ReferenceImage
    disk: RootDisk
    disk_format: DiskFormat
    traces: tuple[Trace, ...]
    start_set: StartSet
    initramfs: Initramfs
    build_key: str
    mac: str
    hand_off: str
    delivery: str
    payload: str
    kernel_options: KernelOptions
    target: Target
    uuid: str = ""


def write(directory: Path, made: Made) -> None:
    """Write the artefact's files into ``directory``, which already has the initramfs. If ``directory`` does not have
    the disk yet, the function copies the disk into ``directory``.
    """
    profile, reference, disk, disk_format = made.profile, made.reference, made.disk, made.disk_format
    name = WHOLE_DISK if made.target is Target.DISK else f"root.{disk_format}"
    if not (directory / name).exists():
        _copy_disk(disk.attached, directory / name, disk_format)
    copy_as_open(reference.kernel, directory / "vmlinuz", reference.tree)
    copy_as_open(reference.initrd, directory / "initrd.img", reference.tree)
    stock = " ".join((stock_line(disk.superblock.uuid), *disk.options))
    uuid = made.uuid or str(uuid5(_MACHINES, made.build_key))
    early = _early_facts(ImageRoot(reference.tree), profile, uuid)
    files = {name: file_facts(directory / name) for name in _SUMMED if name != RUN_SCRIPT}
    manifest: dict[str, object] = {
        "schema": SCHEMA,
        "quickstart": __version__,
        "build_key": made.build_key,
        "profile": profile.name,
        **_origin(reference, made.traces),
        "unit": profile.unit,
        "companions": list(profile.companions),
        "delivery": made.delivery,
        "payload": made.payload,
        "target": made.target.value,
        "hand_off": made.hand_off,
        **early,
        "ready": dataclasses.asdict(profile.ready),
        "kernel_options": made.kernel_options.value,
        "cmdline": with_options(stock, made.kernel_options),
        "stock_cmdline": stock,
        "memory_mib": profile.memory_mib,
        "mac": made.mac,
        "disk": {
            "name": name,
            "format": disk_format,
            "size_bytes": (directory / name).stat().st_size if disk.whole else disk.size_bytes,
            **({"root_at_bytes": disk.at_bytes} if disk.whole else {}),
        },
        "superblock": dataclasses.asdict(disk.superblock),
        "busybox_sha256": hashlib.sha256(door.tool_path("busybox").read_bytes()).hexdigest(),
        "files": files,
        **_sizes(made.initramfs, made.start_set),
        "secrets": list(profile.files.secrets),
        "budget": dataclasses.asdict(profile.root_budget),
    }
    write_start_set(directory, made.start_set, made.traces)
    # An artefact with a manifest that cannot be read again must not become OUT.
    _write_run_script(directory, validated(manifest, directory / MANIFEST))
    files[RUN_SCRIPT] = file_facts(directory / RUN_SCRIPT)
    _write_json(directory / MANIFEST, manifest)


def _origin(reference: ReferenceImage, traces: Sequence[Trace]) -> Mapping[str, object]:
    """The manifest's entries about the origin of the reference image and about the image's reference boots."""
    return {
        "reference": dict(zip(("kind", "hash"), reference.origin, strict=True)),
        "kernel_version": reference.kernel_version,
        "image_hash": reference.image_hash,
        "trace_hashes": [trace.trace_hash for trace in traces],
        "interface": traces[0].network.interface,
    }


def _sizes(initramfs: Initramfs, start_set: StartSet) -> Mapping[str, int]:
    return {
        "initramfs_bytes": initramfs.size_bytes,
        "initramfs_part_a_bytes": initramfs.part_a_bytes,
        "initramfs_part_b_bytes": initramfs.part_b_bytes,
        "initramfs_unpacked_bytes": initramfs.unpacked_bytes,
        "start_set_files": start_set.regular_files,
        "start_set_bytes": start_set.size_bytes,
    }


def _early_facts(root: ImageRoot, profile: Profile, uuid: str) -> Mapping[str, object]:
    """The manifest's entries about cloud-init. These entries say whether the image has cloud-init, which machines start
    early, and which UUID the machine has.
    """
    cloud_init = has_cloud_init(root)
    return {
        "cloud_init": cloud_init,
        "early": early_start(root, profile.early),
        "uuid": uuid if cloud_init else "",
    }


def write_start_set(directory: Path, start_set: StartSet, traces: Sequence[Trace]) -> None:
    """Write ``start-set.json`` (docs/users/artefact.md)."""
    _write_json(directory / START_SET, start_set_document(start_set, traces))


def start_set_document(start_set: StartSet, traces: Sequence[Trace]) -> Mapping[str, object]:
    """The content of start-set.json as JSON values: the start set with the reasons for each file, the excluded files,
    and other facts from the traces.
    """
    return {
        "schema": SCHEMA,
        "traces": start_set.traces,
        "blind": sorted({program for trace in traces for program in trace.blind}),
        "modules": {
            "before": sorted({name for trace in traces for name in trace.modules_before}),
            "at_ready": sorted({name for trace in traces for name in trace.modules}),
        },
        "files": [
            {
                "path": str(file.path),
                "kind": file.kind.value,
                "size_bytes": file.size_bytes,
                "target": file.target,
                "seen_in": file.seen_in,
                "package": file.package,
                "reasons": [reason.text for reason in file.reasons],
                **({"hard_link_to": str(file.hard_link_to)} if file.hard_link_to else {}),
            }
            for file in start_set.files
        ],
        "excluded": [{"path": str(each.path), "rule": each.rule} for each in start_set.excluded],
    }


def _write_json(path: Path, document: Mapping[str, object]) -> None:
    path.write_text(json.dumps(document, indent=1, sort_keys=True, ensure_ascii=True) + "\n")


def _copy_disk(source: Path, target: Path, disk_format: DiskFormat) -> None:
    if disk_format == DiskFormat.RAW:
        door.run(["cp", "--reflink=auto", "--sparse=always", source, target], timeout_s=1800)
    else:
        door.run(["qemu-img", "convert", "-f", "raw", "-O", disk_format, source, target], timeout_s=1800)
    # It holds /etc/shadow.
    target.chmod(0o600)


def run_script(manifest: Manifest) -> str:
    """The text of run.sh for the manifest. This function writes the manifest's values into the text without escaping
    them, because the class Manifest accepts no value that a shell would interpret.
    """
    text = resources.files("quickstart.artefact").joinpath(RUN_SCRIPT).read_text()
    values = {
        "NAME": manifest.profile,
        "DEFAULT": "stock" if Early(manifest.early) is Early.NEVER else "fast",
        "MEMORY": str(manifest.memory_mib),
        "CMDLINE": manifest.cmdline,
        "STOCK_CMDLINE": manifest.stock_line,
        "DISK": manifest.disk.name,
        "FORMAT": manifest.disk.format,
        "GUEST_PORT": str(manifest.ready.port or 80),
        "MAC": manifest.mac,
        "UUID": f" -uuid {manifest.uuid}" if manifest.uuid else "",
    }
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def _write_run_script(directory: Path, manifest: Manifest) -> None:
    path = directory / RUN_SCRIPT
    path.write_text(run_script(manifest))
    path.chmod(0o755)


def is_artefact(directory: Path) -> bool:
    """Whether ``directory`` is an artefact, possibly a damaged artefact. A directory with a file manifest.json is not
    always an artefact, because other programs also write files with this name.

    If manifest.json can be parsed, the result is True only if it has the keys of QuickStart's manifest. If
    manifest.json cannot be parsed, the result is True only if ``directory`` has an initramfs.img, and has only files
    with names of an artefact's files.
    """
    ours = is_ours(directory)
    if ours is not None:
        return ours
    names = {each.name for each in directory.iterdir()}
    return "initramfs.img" in names and names <= _NAMES


def load(directory: Path) -> Artefact:
    """The artefact in ``directory``. The artefact's files must be regular and as large as the manifest says
    (docs/users/artefact.md). Raises BadInputError when there is no artefact, or when a file of the artefact is a link,
    a pipe or a device. Raises ArtefactError when the artefact is damaged.
    """
    manifest = read_manifest(directory)
    for name, fact in manifest.facts.items():
        # The script may be changed as one likes.
        if name != RUN_SCRIPT:
            with opened_file(directory / name) as fd:
                if os.fstat(fd).st_size != fact.size_bytes:
                    raise ArtefactError(f"{directory / name} is missing or cut", hint=REBUILD)
    _check_disk(directory / manifest.disk.name, manifest)
    return _artefact(directory, manifest)


def _check_disk(path: Path, manifest: Manifest) -> None:
    """Raise ArtefactError for a disk that is smaller than at the time of the build (a larger disk is allowed). Also
    raise ArtefactError for a disk that would give the guest access to other files of this host.

    A raw disk is safe with any content. QuickStart tells QEMU that the format is raw, so QEMU does not guess the
    format from the first bytes of the disk.
    """
    with opened_file(path) as fd:
        size_bytes = os.fstat(fd).st_size
        if manifest.disk.format == "qcow2":
            try:
                size_bytes = qcow2.virtual_bytes(fd)
            except ValueError as error:
                raise ArtefactError(f"{path} is not a disk of ours: {error}", hint=REBUILD) from error
    if size_bytes < manifest.disk.size_bytes:
        raise ArtefactError(f"{path} is missing or cut", hint=REBUILD)


def _artefact(directory: Path, manifest: Manifest) -> Artefact:
    return Artefact(
        directory=directory,
        profile_name=manifest.profile,
        ready=manifest.readiness,
        disk=directory / manifest.disk.name,
        disk_format=DiskFormat(manifest.disk.format),
        superblock=manifest.built_superblock,
        kernel=directory / "vmlinuz",
        initramfs=directory / "initramfs.img",
        stock_initrd=directory / "initrd.img",
        cmdline=manifest.cmdline,
        stock_cmdline=manifest.stock_line,
        memory_mib=manifest.memory_mib,
        mac=manifest.mac,
        build_key=manifest.build_key,
        initramfs_bytes=manifest.initramfs_bytes,
        start_set_files=manifest.start_set_files,
        start_set_bytes=manifest.start_set_bytes,
        cloud_init=manifest.cloud_init,
        early=Early(manifest.early),
        uuid=manifest.uuid,
        file_bytes=tuple((directory / name, fact.size_bytes) for name, fact in manifest.facts.items()),
        target=Target(manifest.target),
        root_at_bytes=manifest.disk.root_at_bytes,
    )


def keep_disk(disk: Path, directory: Path) -> None:
    """Make a hard link to ``disk`` in ``directory``. Raises BadInputError when ``disk`` is not a regular file."""
    os.link(disk, directory / disk.name, follow_symlinks=False)
    with opened_regular(directory / disk.name):
        pass
