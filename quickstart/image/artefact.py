"""What is in OUT: written, read back and checked (docs/artefact.md)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import struct
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from quickstart import __version__
from quickstart.cloudinit import ALWAYS, SEEN, early_start, has_cloud_init
from quickstart.errors import ArtefactError, BadInputError, OutputExistsError
from quickstart.host import door
from quickstart.image.ext4 import read_superblock
from quickstart.imageroot import ImageRoot
from quickstart.model import (
    Artefact,
    Initramfs,
    Profile,
    Readiness,
    ReferenceImage,
    RootDisk,
    StartSet,
    Superblock,
    Trace,
)

SCHEMA = 1
DISK_FORMATS = ("raw", "qcow2")
START_SET = "start-set.json"
# The kind of a reference image that was taken out of an artefact's own disk: what that holds is a machine's.
USED_DISK = "disk"
_MANIFEST = "manifest.json"
# A damaged OUT is not replaced by itself: its root disk may hold what a machine wrote.
REBUILD = "build it again with --force, which throws its root disk away"
_RUN_SCRIPT = "run.sh"
_SUMMED = ("vmlinuz", "initrd.img", "initramfs.img", _RUN_SCRIPT)
_NAMES = frozenset({_MANIFEST, START_SET, *_SUMMED, *(f"root.{name}" for name in DISK_FORMATS)})
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_UUID = re.compile(r"([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})?")
# Of the machines that boot an artefact; any fixed one will do.
_MACHINES = UUID("3c1f7c56-6d0a-4d8c-9c55-0d1f1f6a2b01")
# docs/interop/qcow2.txt of QEMU: magic and version, then the place of the backing file's name; incompatible features from 72 on.
_QCOW2_HEADER = struct.Struct(">4sIQ56xQ")
_QCOW2_EXTERNAL_DATA = 0x4


def check_output(out: Path, build_key: str, force: bool) -> Artefact | None:
    """The artefact at ``out`` when it is what would be built; None when ``out`` is free or may be replaced.

    Raises OutputExistsError for what is not an artefact, and for one whose root disk has been used since it was built: a build
    does not throw away what a machine wrote.
    """
    if not out.exists():
        return None
    if not is_artefact(out):
        raise OutputExistsError(
            f"{out} exists and is not an artefact of quickstart", hint="choose another -o"
        )
    if strange := sorted({path.name for path in out.iterdir()} - _NAMES):
        raise OutputExistsError(
            f"{out} holds more than an artefact: {', '.join(strange)}",
            hint="move that away, or choose another -o",
        )
    if force:
        return None
    try:
        artefact = load(out)
        if artefact.build_key == build_key:
            _check_sums(artefact)
            return artefact
    except ArtefactError as error:
        raise OutputExistsError(
            f"{out} is damaged: {error.message}", hint="--force replaces it, its root disk too"
        ) from error
    if (
        _is_rebuilt(artefact)
        or artefact.disk_format != "raw"
        or read_superblock(artefact.disk) != artefact.superblock
    ):
        raise OutputExistsError(
            f"{out} is another build, and its root disk may have been used since",
            hint="choose another -o, or --force to throw it away",
        )
    return None


def _is_rebuilt(artefact: Artefact) -> bool:
    """Whether its superblock was taken when the disk had been used already (docs/never-stale.md)."""
    reference = read_manifest(artefact).get("reference")
    return isinstance(reference, dict) and reference.get("kind") == USED_DISK


def _check_sums(artefact: Artefact) -> None:
    """Raise ArtefactError when a file is not what was built; the root disk and run.sh are the user's."""
    facts = read_manifest(artefact)["files"]
    for name in _SUMMED:
        if name != _RUN_SCRIPT and _file_facts(artefact.directory / name) != facts[name]:
            raise ArtefactError(f"{name} is not what was built", hint=REBUILD)
    if not (artefact.directory / START_SET).is_file():
        raise ArtefactError(f"{START_SET} is missing", hint=REBUILD)


@dataclasses.dataclass(frozen=True)
class Made:
    """All that an artefact says of itself; ``hand_off``, ``delivery`` and ``payload`` are the words of `build`'s options.

    ``uuid`` is the machine's that the disk is of already; without one an image with cloud-init gets one by its build.
    """

    profile: Profile
    reference: ReferenceImage
    disk: RootDisk
    disk_format: str
    traces: tuple[Trace, ...]
    start_set: StartSet
    initramfs: Initramfs
    build_key: str
    mac: str
    hand_off: str
    delivery: str
    payload: str
    uuid: str = ""


def write(directory: Path, made: Made) -> None:
    """Fill ``directory``; the initramfs is in it already, and the root disk when it is to stay the one that it was."""
    profile, reference, disk, disk_format = made.profile, made.reference, made.disk, made.disk_format
    if not (directory / f"root.{disk_format}").exists():
        _copy_disk(disk.path, directory / f"root.{disk_format}", disk_format)
    shutil.copyfile(reference.kernel, directory / "vmlinuz")
    shutil.copyfile(reference.initrd, directory / "initrd.img")
    cmdline = command_line(disk.superblock.uuid)
    uuid = made.uuid or str(uuid5(_MACHINES, made.build_key))
    early = _early_facts(ImageRoot(reference.tree), profile, uuid)
    _write_run_script(directory, profile, disk_format, cmdline, made.mac, str(early["uuid"]))
    manifest: dict[str, object] = {
        "schema": SCHEMA,
        "quickstart": __version__,
        "build_key": made.build_key,
        "profile": profile.name,
        **_origin(reference, made.traces),
        "unit": profile.unit,
        "delivery": made.delivery,
        "payload": made.payload,
        "target": "qemu",
        "hand_off": made.hand_off,
        **early,
        "ready": dataclasses.asdict(profile.ready),
        "cmdline": cmdline,
        "memory_mib": profile.memory_mib,
        "mac": made.mac,
        "disk": {"name": f"root.{disk_format}", "format": disk_format, "size_bytes": disk.size_bytes},
        "superblock": dataclasses.asdict(disk.superblock),
        "busybox_sha256": hashlib.sha256(door.tool_path("busybox").read_bytes()).hexdigest(),
        "files": {name: _file_facts(directory / name) for name in _SUMMED},
        **_sizes(made.initramfs, made.start_set),
        "secrets": list(profile.files.secrets),
        "budget": dataclasses.asdict(profile.root_budget),
    }
    write_start_set(directory, made.start_set, made.traces)
    _write_json(directory / _MANIFEST, manifest)


def _origin(reference: ReferenceImage, traces: Sequence[Trace]) -> Mapping[str, object]:
    """Where the image came from, and what was seen of it."""
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
    """When the image starts early, and the machine's identity, by which that is told where cloud-init is."""
    cloud_init = has_cloud_init(root)
    return {
        "cloud_init": cloud_init,
        "early": early_start(root, profile.early),
        "uuid": uuid if cloud_init else "",
    }


def command_line(root_uuid: str) -> str:
    """The kernel's command line of an artefact whose root volume has this UUID."""
    return f"console=ttyS0 root=UUID={root_uuid} ro panic=10"


def write_start_set(directory: Path, start_set: StartSet, traces: Sequence[Trace]) -> None:
    """Write ``start-set.json`` (docs/artefact.md)."""
    _write_json(directory / START_SET, start_set_document(start_set, traces))


def start_set_document(start_set: StartSet, traces: Sequence[Trace]) -> Mapping[str, object]:
    """The start set with its reasons, what was kept out, and what the traces say beside it, as JSON values."""
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
                "reasons": [f"{reason.source}: {reason.detail}" for reason in file.reasons],
            }
            for file in start_set.files
        ],
        "excluded": [{"path": str(each.path), "rule": each.rule} for each in start_set.excluded],
    }


def _write_json(path: Path, document: Mapping[str, object]) -> None:
    path.write_text(json.dumps(document, indent=1, sort_keys=True, ensure_ascii=True) + "\n")


def _file_facts(path: Path) -> Mapping[str, object]:
    with path.open("rb") as file:
        return {"size_bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _copy_disk(source: Path, target: Path, disk_format: str) -> None:
    if disk_format == "raw":
        door.run(["cp", "--reflink=auto", "--sparse=always", source, target], timeout_s=1800)
    else:
        door.run(["qemu-img", "convert", "-f", "raw", "-O", disk_format, source, target], timeout_s=1800)
    # It holds /etc/shadow.
    target.chmod(0o600)


def _write_run_script(
    directory: Path, profile: Profile, disk_format: str, cmdline: str, mac: str, uuid: str
) -> None:
    text = resources.files("quickstart.image").joinpath("run.sh").read_text()
    values = {
        "NAME": profile.name,
        "MEMORY": str(profile.memory_mib),
        "CMDLINE": cmdline,
        "DISK": f"root.{disk_format}",
        "FORMAT": disk_format,
        "GUEST_PORT": str(profile.ready.port or 80),
        "MAC": mac,
        "UUID": f" -uuid {uuid}" if uuid else "",
    }
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    path = directory / _RUN_SCRIPT
    path.write_text(text)
    path.chmod(0o755)


def is_artefact(directory: Path) -> bool:
    """Whether ``directory`` is an artefact, perhaps a damaged one: not only we write a manifest.json.

    Its manifest has our keys; or, when it cannot be read, the directory holds an initramfs and nothing but files of ours.
    """
    path = directory / _MANIFEST
    try:
        manifest = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        names = {each.name for each in directory.iterdir()} if directory.is_dir() else set()
        return path.is_file() and "initramfs.img" in names and names <= _NAMES
    return isinstance(manifest, dict) and {"schema", "quickstart", "build_key"} <= manifest.keys()


def load(directory: Path) -> Artefact:
    """The artefact in ``directory``; raises BadInputError when there is none, ArtefactError when it is damaged."""
    path = directory / _MANIFEST
    if not path.is_file():
        raise BadInputError(
            f"{directory} is not an artefact: it has no {_MANIFEST}",
            hint="quickstart build --profile nginx makes one",
        )
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        if manifest["schema"] != SCHEMA:
            raise ArtefactError(f"{path} has schema {manifest['schema']}, this quickstart knows {SCHEMA}")
        artefact = _from_manifest(directory, manifest)
        # The script may be changed as one likes.
        sizes = {name: int(manifest["files"][name]["size_bytes"]) for name in _SUMMED if name != _RUN_SCRIPT}
        disk_bytes = int(manifest["disk"]["size_bytes"]) if artefact.disk_format == "raw" else 0
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtefactError(f"{path} is damaged: {error!r}", hint=REBUILD) from error
    for name, size in sizes.items():
        if not (directory / name).is_file() or (directory / name).stat().st_size != size:
            raise ArtefactError(f"{directory / name} is missing or cut", hint=REBUILD)
    # It may have been made larger since.
    if not artefact.disk.is_file() or artefact.disk.stat().st_size < disk_bytes:
        raise ArtefactError(f"{artefact.disk} is missing or cut", hint=REBUILD)
    if artefact.disk_format == "qcow2":
        _check_qcow2(artefact.disk)
    return artefact


def _check_qcow2(path: Path) -> None:
    """Raise ArtefactError for a disk that would bring other files of this host into the guest."""
    with path.open("rb") as file:
        header = file.read(_QCOW2_HEADER.size)
    if len(header) < _QCOW2_HEADER.size or header[:4] != b"QFI\xfb":
        raise ArtefactError(f"{path} is no qcow2 image", hint=REBUILD)
    _, version, backing_file_at, incompatible = _QCOW2_HEADER.unpack(header)
    if backing_file_at or (version >= 3 and incompatible & _QCOW2_EXTERNAL_DATA):
        raise ArtefactError(f"{path} rests on another file (backing or data file)", hint=REBUILD)


def read_manifest(artefact: Artefact) -> Mapping[str, Any]:
    """The manifest of an artefact that `load` has found whole (docs/artefact.md)."""
    manifest: dict[str, Any] = json.loads((artefact.directory / _MANIFEST).read_text())
    return manifest


def _from_manifest(directory: Path, manifest: Mapping[str, Any]) -> Artefact:
    """The manifest's facts, of which some become words of QEMU's command line; ValueError for those that cannot be ours."""
    disk_format, name = manifest["disk"]["format"], manifest["disk"]["name"]
    if disk_format not in DISK_FORMATS or name != f"root.{disk_format}":
        raise ValueError(f"no root disk of ours: {name}, {disk_format}")
    if not _MAC.fullmatch(manifest["mac"]) or type(manifest["memory_mib"]) is not int:
        raise ValueError("mac or memory_mib is none")
    # An OUT of an earlier quickstart says nothing of these.
    cloud_init, early = manifest.get("cloud_init", False), manifest.get("early", ALWAYS)
    uuid = manifest.get("uuid", "")
    if type(cloud_init) is not bool or early not in (ALWAYS, SEEN) or not _UUID.fullmatch(uuid):
        raise ValueError("cloud_init, early or uuid is none")
    return Artefact(
        directory=directory,
        profile_name=manifest["profile"],
        ready=Readiness(**manifest["ready"]),
        disk=directory / name,
        disk_format=disk_format,
        superblock=Superblock(**manifest["superblock"]),
        kernel=directory / "vmlinuz",
        initramfs=directory / "initramfs.img",
        stock_initrd=directory / "initrd.img",
        cmdline=manifest["cmdline"],
        memory_mib=manifest["memory_mib"],
        mac=manifest["mac"],
        build_key=manifest["build_key"],
        initramfs_bytes=manifest["initramfs_bytes"],
        start_set_files=manifest["start_set_files"],
        start_set_bytes=manifest["start_set_bytes"],
        cloud_init=cloud_init,
        early=early,
        uuid=uuid,
    )
