"""Read and write a reference image in the store. The image consists of its tree, and a file with the tree's hash, the
UUID and label of the root volume, and the device nodes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path, PurePosixPath

from quickstart.errors import ReferenceImageError
from quickstart.inspect.foreign.members import DeviceNode
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import ReferenceImage
from quickstart.parse.printable import brief
from quickstart.store.store import Store
from quickstart.store.treehash import tree_hash

_FACTS = "image.json"


def write_facts(
    directory: Path, volume_uuid: str, volume_label: str, devices: tuple[DeviceNode, ...] = ()
) -> None:
    """Hash the tree ``root`` in ``directory`` together with ``devices``, and write the file that ``load`` reads."""
    image_hash, nodes = tree_hash(directory / "root"), [asdict(node) for node in devices]
    if nodes:
        image_hash = hashlib.sha256(f"{image_hash}\0{json.dumps(nodes, sort_keys=True)}".encode()).hexdigest()
    facts = {"image_hash": image_hash, "uuid": volume_uuid, "label": volume_label, "devices": nodes}
    (directory / _FACTS).write_text(json.dumps(facts))


def lacking(root: ImageRoot) -> str | None:
    """A text that names the file that ``root`` lacks. An image needs a kernel, and the initramfs of its newest kernel.
    The result is None when ``root`` has both files.
    """
    version = newest_kernel(root)
    if version is None:
        return "kernel in /boot"
    initrd = f"/boot/initrd.img-{version}"
    return None if root.resolve(PurePosixPath(initrd)).canonical else brief(initrd)


def load(directory: Path, origin: tuple[str, str]) -> ReferenceImage:
    """The reference image in ``directory``. Raises ReferenceImageError when the image lacks a kernel or the
    initramfs of its newest kernel.
    """
    root = ImageRoot(directory / "root")
    version = newest_kernel(root)
    if version is None:
        raise ReferenceImageError(
            f"{root.base} has no kernel in /boot", hint="remove this entry and build again"
        )
    facts = json.loads((directory / _FACTS).read_text())
    return ReferenceImage(
        tree=root.base,
        image_hash=facts["image_hash"],
        kernel=_host_file(root, f"/boot/vmlinuz-{version}"),
        initrd=_host_file(root, f"/boot/initrd.img-{version}"),
        kernel_version=version,
        volume_uuid=facts["uuid"],
        volume_label=facts["label"],
        origin=origin,
    )


def devices_of(image: ReferenceImage) -> tuple[DeviceNode, ...]:
    """The device nodes that the root disk has in addition to the files of the tree."""
    facts = json.loads((image.tree.parent / _FACTS).read_text())
    return tuple(DeviceNode(**node) for node in facts.get("devices", ()))


def find(store: Store, inputs: Mapping[str, object]) -> ReferenceImage | None:
    """The reference image for ``inputs``, or None when the store does not have this image. The content of the image is
    not compared with its hash.
    """
    path = store.find("reference", inputs)
    try:
        return load(path, ("", "")) if path else None
    except (OSError, ValueError, KeyError, ReferenceImageError):
        return None


def newest_kernel(root: ImageRoot) -> str | None:
    """The highest VERSION of the files /boot/vmlinuz-VERSION, or None when there is no such file."""
    found = root.glob(PurePosixPath("/boot/vmlinuz-*"))
    return max((path.name.removeprefix("vmlinuz-") for path in found), key=version_key, default=None)


def version_key(version: str) -> tuple[str | int, ...]:
    """A sort key for kernel versions. Versions that are sorted by this key have the order of deb-version(7). Numbers
    are compared by value. ``~`` sorts before the end of the text, and the end sorts before everything else.
    """
    parts = re.split(r"(\d+)", version.replace("~", "\0") + "\1")
    return tuple(int(part) if index % 2 else part for index, part in enumerate(parts))


def _host_file(root: ImageRoot, name: str) -> Path:
    canonical = root.resolve(PurePosixPath(name)).canonical
    if canonical is None:
        raise ReferenceImageError(f"{root.base} has no {name}", hint="remove this entry and build again")
    return root.host(canonical)
