"""Part A of the archive: what init needs, and what depends on the volume."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.initramfs.facts import Watched, packed_facts
from quickstart.initramfs.guestconfig import (
    GuestConfig,
    HandOff,
    Served,
    config_text,
)
from quickstart.initramfs.layout import part_a, unit_text
from quickstart.initramfs.modules import ModuleSet
from quickstart.initramfs.prefetch import Prefetch
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.model import LateBind
from quickstart.inspect.unit.sysctl import KernelSetting
from quickstart.model import StartSet
from tests.unit.imagebuilder import programs_in
from tests.unit.layouts import CONFIG, PREFETCH, START_SET, UNIT, P, by_name


def test_part_a_has_what_init_needs(root: ImageRoot, tmp_path: Path) -> None:
    ours = programs_in(tmp_path)
    entries = by_name(part_a(CONFIG, ModuleSet((), ()), START_SET, root, ours, b"digests", PREFETCH))
    assert stat.S_IMODE(entries["init"].mode) == 0o755
    assert entries["fast/quickstart/busybox"].data == ours.busybox
    assert entries["fast/quickstart/bin/prefetcher"].data == ours.prefetcher
    assert entries["fast/quickstart/prefetch.ranges"].data == b"4096 8192\n1099511627776 4096\n"
    assert entries["fast/quickstart/prefetch.names"].data == b"etc/a b\0etc/\xe9\0"
    assert entries["fast/quickstart/prefetch.parts"].data == b"65536 4096 usr/lib/large one\0"
    assert entries["fast/quickstart/bin/starter"].data == ours.starter
    assert entries["fast/quickstart/bin/checker"].data == ours.checker
    assert entries["fast/quickstart/digests"].data == b"digests"
    assert entries["fast/quickstart/unit"].data == unit_text(UNIT, CONFIG, START_SET, root).encode()
    assert (entries["dev/console"].rdev_major, entries["dev/console"].rdev_minor) == (5, 1)
    assert entries["fast/quickstart/bin/mount"].data == b"../busybox"
    packed = tuple(entries[f"fast/quickstart/packed.{name}"].data for name in ("names", "stat", "places"))
    assert packed == packed_facts(START_SET, (), Watched())
    assert entries["fast/quickstart/bin/caretaker"].data == b"starter"
    assert entries["fast/quickstart/config"].data == config_text(CONFIG).encode()
    assert entries["fast/quickstart/settings"].data == b""
    assert {(e.uid, e.gid, e.mtime) for e in entries.values()} == {(0, 0, 0)}
    # The names of files in closed directories are nobody's business.
    private = {
        name for name in entries if name.startswith(("fast/quickstart/packed.", "fast/quickstart/prefetch."))
    }
    assert len(private) == 10
    assert {stat.S_IMODE(entries[name].mode) for name in private} == {0o600}
    # Part A must not hold anything of the start set: it has to be whole before B is looked at.
    assert not [name for name in entries if name.startswith(("fast/etc", "fast/usr"))]


def test_part_a_has_the_places_of_data_and_never_data(root: ImageRoot, tmp_path: Path) -> None:
    later = Prefetch(((8192, 4096),), (), ((P("/var/lib/app/db"), 65536, 4096),))
    prefetch = replace(PREFETCH, later=later)
    ours = programs_in(tmp_path)
    before = by_name(part_a(CONFIG, ModuleSet((), ()), START_SET, root, ours, b"digests", PREFETCH))
    entries = by_name(part_a(CONFIG, ModuleSet((), ()), START_SET, root, ours, b"digests", prefetch))
    names = {f"fast/quickstart/prefetch.later-{each}" for each in ("ranges", "parts")}
    assert entries.keys() - before.keys() == names
    assert entries["fast/quickstart/prefetch.later-ranges"].data == b"8192 4096\n"
    assert entries["fast/quickstart/prefetch.later-parts"].data == b"65536 4096 var/lib/app/db\0"
    assert {stat.S_IMODE(entries[name].mode) for name in names} == {0o600}


def test_part_a_has_the_kernel_settings_of_the_image(root: ImageRoot, tmp_path: Path) -> None:
    config = replace(CONFIG, settings=(KernelSetting("kernel/x", "a b", False),), content_sums=b"sum  name\n")
    ours = programs_in(tmp_path)
    entries = by_name(part_a(config, ModuleSet((), ()), START_SET, root, ours, b"digests", PREFETCH))
    assert entries["fast/quickstart/settings"].data == b"setting kernel/x 'a b'\n"
    assert entries["fast/quickstart/packed.settings"].data == b"sum  name\n"
    # Where AppArmor has no profiles, nobody asks for them.
    assert "fast/quickstart/packed.confined" not in entries
    config = replace(config, confined=b"/usr/bin/tcpdump\n")
    entries = by_name(part_a(config, ModuleSet((), ()), START_SET, root, ours, b"digests", PREFETCH))
    assert entries["fast/quickstart/packed.confined"].data == b"/usr/bin/tcpdump\n"
    assert stat.S_IMODE(entries["fast/quickstart/packed.confined"].mode) == 0o600


@pytest.mark.parametrize("served", [Served.VOLUME, Served.MEMORY])
def test_where_nothing_comes_from_part_b_nothing_checks_it(
    root: ImageRoot, tmp_path: Path, served: Served
) -> None:
    ours = programs_in(tmp_path)
    config = replace(CONFIG, served=served)
    entries = by_name(part_a(config, ModuleSet((), ()), StartSet((), ()), root, ours, b"digests", PREFETCH))
    names = (
        "bin/checker",
        "digests",
        "bin/prefetcher",
        "prefetch.ranges",
        "prefetch.names",
        "prefetch.parts",
    )
    assert not {f"fast/quickstart/{name}" for name in names} & set(entries)


def test_conditions_are_of_the_volume(root: ImageRoot) -> None:
    """Where the initramfs is all that there is, what a condition asks for was never packed."""
    condition = ("unit-condition", "Condition", "PathExists", "no", "no", "/etc/x")
    unit = replace(UNIT, settings=(condition, *UNIT.settings))
    line = "unit-condition Condition PathExists no no /etc/x"
    for served in Served:
        text = unit_text(unit, replace(CONFIG, served=served), START_SET, root)
        assert (line in text.splitlines()) is (served is not Served.MEMORY)


def test_binds_that_wait_for_systemd_are_in_part_a_of_a_hand_off_only(
    root: ImageRoot, tmp_path: Path
) -> None:
    unit = replace(
        UNIT, late_binds=(LateBind("/dev/log", "/var/a b", True, True), LateBind("/x", "/y", False, False))
    )

    def late(config: GuestConfig) -> bytes | Path | None:
        ours = programs_in(tmp_path)
        made = by_name(part_a(config, ModuleSet((), ()), START_SET, root, ours, b"digests", PREFETCH))
        entry = made.get("fast/quickstart/late-binds")
        return entry.data if entry else None

    assert late(replace(CONFIG, unit=unit)) == b"ro\trequired\t/dev/log\t/var/a b\nrw\toptional\t/x\t/y\n"
    assert late(replace(CONFIG, unit=unit, hand_off=HandOff.STAY)) is None
    assert late(CONFIG) is None
