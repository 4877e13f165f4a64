"""The steps of packing, from a subject and a made-up trace to the recipe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from quickstart.errors import BadInputError, UnsupportedUnitError
from quickstart.initramfs.guestconfig import HandOff
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import Op, ReferenceImage
from quickstart.model.rootdisk import RootDisk
from quickstart.model.subject import Subject, Traced
from quickstart.model.superblock import Superblock
from quickstart.pack import packing
from quickstart.pack.checks import check_image
from quickstart.pack.packing import PackOptions, packing_of
from quickstart.pack.startset import compute
from quickstart.profile import load_profile
from quickstart.store.context import Context
from tests.unit.elfbuilder import LD_SO, MULTIARCH, elf
from tests.unit.imagebuilder import RULES, Image, P, excluded, programs_in, trace
from tests.unit.test_packed_facts import TEXT, UNIT
from tests.unit.unitreader import put

CONTEXT = cast(Context, type("Nothing", (), {"store": None}))
SYSTEMS, HELPER = f"{MULTIARCH}/libssl.so.3", "/opt/app/bin/helper"


@pytest.fixture
def packed(image: Image, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> packing.Packing:
    """A child of the unit is not readable by all, so it is not in the start set."""
    monkeypatch.setattr(packing, "programs", lambda store: programs_in(tmp_path))
    monkeypatch.setattr(packing, "refuse_earlier", lambda *given: None)
    monkeypatch.setattr(packing, "refuse_edited", lambda *given: None)
    monkeypatch.setattr(packing, "refuse_other_network", lambda *given: None)
    put(image.base, UNIT, TEXT)
    image.link("/etc/systemd/system/multi-user.target.wants/app.service", UNIT)
    image.file("/etc/machine-id", "")
    image.file("/etc/fstab", "")
    image.file("/usr/bin/tool", elf(["libssl.so.3"], interpreter=LD_SO), 0o755)
    image.file(SYSTEMS, elf(soname="libssl.so.3"))
    image.file(HELPER, elf(["libssl.so.3"], interpreter=LD_SO, runpath="/opt/app/lib:/opt/new"), 0o711)
    image.file("/opt/app/lib/libssl.so.3", elf(soname="libssl.so.3"))
    return packing_of(*given(image), PackOptions(arranged=False), CONTEXT)


def given(image: Image) -> tuple[Subject, Traced]:
    profile = replace(load_profile("nginx"), unit="app.service")
    reference = ReferenceImage(
        tree=image.base, image_hash="0", kernel=image.base, initrd=image.base, kernel_version="6",
        volume_uuid="", volume_label="", origin=("directory", "0"),
    )  # fmt: skip
    superblock = Superblock(
        uuid="", mount_count=0, write_time_s=0, clean=True, needs_recovery=False, has_errors=False
    )
    traces = (
        trace((Op.EXEC, "/usr/bin/app"), (Op.EXEC, "/usr/bin/tool"), (Op.MAP, SYSTEMS), (Op.EXEC, HELPER)),
    )
    root = ImageRoot(image.base)
    return Subject(
        profile, reference, RootDisk(path=image.base, size_bytes=0, superblock=superblock)
    ), Traced(compute(traces, root, RULES), traces)


def test_a_child_that_is_not_packed_keeps_its_libraries(packed: packing.Packing) -> None:
    found = excluded(packed.recipe.start_set)
    assert found[HELPER].startswith("secret: ")
    assert found[SYSTEMS].startswith("same name: /opt/app/lib/libssl.so.3 ")
    assert P("/opt/new/liba.so.1") in packed.recipe.watched.names


def test_a_child_that_is_not_packed_keeps_its_profile(image: Image, packed: packing.Packing) -> None:
    put(image.base, "/usr/sbin/apparmor_parser", "")
    put(image.base, "/etc/systemd/system/sysinit.target.wants/apparmor.service", "")
    put(image.base, "/etc/apparmor.d/helper", f"{HELPER} {{\n}}\n")
    with pytest.raises(UnsupportedUnitError, match=f"confines {HELPER}"):
        packing_of(*given(image), PackOptions(arranged=False), CONTEXT)


def test_a_device_that_comes_later(image: Image, packed: packing.Packing) -> None:
    subject, traced = given(image)
    late = replace(traced, traces=(*traced.traces, trace((Op.OPEN, "/dev/fuse"))))
    with pytest.raises(UnsupportedUnitError, match="it uses /dev/fuse"):
        packing_of(subject, late, PackOptions(arranged=False), CONTEXT)


def test_a_unit_with_control_groups_of_its_own(image: Image, packed: packing.Packing) -> None:
    put(image.base, UNIT, f"{TEXT}\nDelegate=yes\n")
    subject, traced = given(image)
    looks = replace(traced, traces=(*traced.traces, trace((Op.LOOKUP, "/run/systemd/system"))))
    directory = ("run-directory", "0755", "root", "root", "/run/systemd/system")
    for hand_off in HandOff:
        found = packing_of(subject, looks, PackOptions(arranged=False, hand_off=hand_off), CONTEXT)
        assert (directory in found.recipe.unit.settings) is (hand_off is not HandOff.STAY)
    hands_on = trace((Op.WRITE, "/sys/fs/cgroup/system.slice/app.service/cgroup.subtree_control"))
    late = replace(traced, traces=(*traced.traces, hands_on))
    with pytest.raises(UnsupportedUnitError, match="gives controllers to control groups of its own"):
        packing_of(subject, late, PackOptions(arranged=False), CONTEXT)


def test_files_of_the_images_own_in_fast(image: Image) -> None:
    """A fast start would hide them. Links and empty directories may be ours."""
    profile = replace(load_profile("nginx"), unit="app.service")
    put(image.base, UNIT, TEXT)
    (image.base / "fast/usr/bin").mkdir(parents=True)
    image.link("/fast/usr/bin/app", "/usr/bin/app")
    check_image(ImageRoot(image.base), profile)
    image.file("/fast/data", "x")
    with pytest.raises(BadInputError, match="the image has /fast/data"):
        check_image(ImageRoot(image.base), profile)
