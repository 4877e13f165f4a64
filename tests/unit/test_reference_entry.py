"""The files beside a reference image's tree in the store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from quickstart.inspect.foreign.members import DeviceNode
from quickstart.model import ReferenceImage
from quickstart.reference import entry

NODE = DeviceNode(path="srv/\udcff", mode=0o20666, uid=0, gid=5, major=1, minor=3, mtime_s=7)
UUID = "11111111-2222-3333-4444-555555555555"


def kept(directory: Path, *devices: DeviceNode) -> ReferenceImage:
    (directory / "root/boot").mkdir(parents=True, exist_ok=True)
    for name in ("vmlinuz-6.1", "initrd.img-6.1"):
        (directory / "root/boot" / name).touch()
    entry.write_facts(directory, UUID, "root", devices)
    return entry.load(directory, ("tar", "0"))


def test_device_nodes_are_kept_and_count_in_the_hash(tmp_path: Path) -> None:
    without = kept(tmp_path)
    found = kept(tmp_path, NODE)
    assert entry.devices_of(found) == (NODE,)
    other = kept(tmp_path, replace(NODE, minor=4))
    assert len({without.image_hash, found.image_hash, other.image_hash}) == 3


def test_an_image_of_before_has_none(tmp_path: Path) -> None:
    assert entry.devices_of(kept(tmp_path)) == ()
    facts = json.loads((tmp_path / "image.json").read_text())
    del facts["devices"]
    (tmp_path / "image.json").write_text(json.dumps(facts))
    assert entry.devices_of(entry.load(tmp_path, ("tar", "0"))) == ()
