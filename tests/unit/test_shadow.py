"""A library that would hide another one of its name is not in /fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.initramfs.facts import watched
from quickstart.initramfs.layout import library_path, part_b
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.model import UnitCommand
from quickstart.model import FileRules, Op, StartSet
from quickstart.pack.leave import leave
from quickstart.pack.prefetch import foresee
from quickstart.pack.shadow import executed, searched, without_shadowing
from quickstart.pack.startset import compute
from tests.unit.elfbuilder import LD_SO, MULTIARCH, elf
from tests.unit.imagebuilder import RULES, Image, P, excluded, files, rules, trace
from tests.unit.layouts import CONFIG
from tests.unit.test_beside import Opened
from tests.unit.test_leave import UNIT, left
from tests.unit.test_packed_facts import TEXT
from tests.unit.test_packed_facts import UNIT as UNIT_FILE
from tests.unit.unitreader import put

SYSTEMS = f"{MULTIARCH}/libssl.so.3"
SERVER, OWN = "/opt/app/bin/server", "/opt/app/lib/libssl.so.3"
TOOL = "/usr/bin/tool"
USED: tuple[Opened, ...] = ((Op.EXEC, TOOL), (Op.MAP, SYSTEMS), (Op.EXEC, SERVER), (Op.MAP, OWN))


@pytest.fixture
def vendors(image: Image) -> Image:
    """A tool of the distribution, and a server with a library of its own, which has the name of the system's."""
    image.file(TOOL, elf(["libssl.so.3"], interpreter=LD_SO), 0o755)
    image.file(SYSTEMS, elf(soname="libssl.so.3"))
    image.file(SERVER, elf(["libssl.so.3"], interpreter=LD_SO, runpath="$ORIGIN/../lib"), 0o755)
    image.file(OWN, elf(soname="libssl.so.3"))
    return image


def decided(
    image: Image, *opened: Opened, program: str = SERVER, rules: FileRules = RULES, overlay: bool = False
) -> StartSet:
    root, traces = ImageRoot(image.base), [trace(*opened)]
    unit = replace(UNIT, start_pre=(UnitCommand(TOOL, ("tool",)),), start=UnitCommand(program, ("server",)))
    found = leave(compute(traces, root, rules), traces, root, unit, overlay=overlay)
    return without_shadowing(found, root, searched(found, executed(traces, root), root))


def in_library_path(found: StartSet, root: ImageRoot) -> set[str]:
    """The names that the loader would find by LD_LIBRARY_PATH."""
    places = set(library_path(found).split(":"))
    names = (f"/{entry.name}" for entry in part_b(CONFIG, found, root))
    return {name.rpartition("/")[2] for name in names if name.rpartition("/")[0] in places}


def test_neither_library_of_a_name_is_found_in_fast(vendors: Image) -> None:
    """LD_LIBRARY_PATH goes before DT_RUNPATH (ld.so(8)): the server would get the system's library."""
    found = decided(vendors, *USED)
    assert excluded(found) == {
        OWN: f"same name: {SYSTEMS} is another library of this name, and the loader finds it by default",
        SYSTEMS: f"same name: {OWN} is another library of this name, in the DT_RUNPATH of {SERVER}",
    }
    assert "libssl.so.3" not in in_library_path(found, ImageRoot(vendors.base))
    # Its $ORIGIN is a directory that has the library.
    assert SERVER in left(found)
    assert TOOL in files(found)
    assert not [file for file in found.files if file.path == P("/opt/app/lib")]


def test_a_library_that_stays_on_the_volume_is_not_to_be_hidden(vendors: Image) -> None:
    vendors.file("/opt/app/conf/x")
    found = decided(vendors, *USED, "/opt/app/conf/x")
    assert list(excluded(found)) == [SYSTEMS]
    assert {SERVER, OWN} <= set(left(found))
    assert "libssl.so.3" not in in_library_path(found, ImageRoot(vendors.base))


@pytest.mark.parametrize("place", ["/usr/share/app", "/usr/lib/zapp", "/opt/app"])
@pytest.mark.parametrize("overlay", [False, True])
def test_the_order_of_the_directories_does_not_matter(image: Image, place: str, overlay: bool) -> None:
    image.file(TOOL, elf(["libz.so.1"], interpreter=LD_SO), 0o755)
    image.file(f"{MULTIARCH}/libz.so.1", elf(soname="libz.so.1"))
    image.file(f"{place}/bin/server", elf(["libz.so.1"], interpreter=LD_SO, runpath=f"{place}/lib"), 0o755)
    image.file(f"{place}/lib/libz.so.1", elf(soname="libz.so.1"))
    used: list[Opened] = [(Op.EXEC, TOOL), (Op.MAP, f"{MULTIARCH}/libz.so.1")]
    used += [(Op.EXEC, f"{place}/bin/server"), (Op.MAP, f"{place}/lib/libz.so.1")]
    found = decided(image, *used, program=f"{place}/bin/server", overlay=overlay)
    assert set(excluded(found)) == {f"{MULTIARCH}/libz.so.1", f"{place}/lib/libz.so.1"}
    assert f"{place}/bin/server" in files(found)


def test_all_names_of_the_library_go(vendors: Image) -> None:
    """The loader looks for the soname, which is a link."""
    (vendors.base / SYSTEMS[1:]).unlink()
    vendors.file(f"{SYSTEMS}.0.2", elf(soname="libssl.so.3"))
    vendors.link(SYSTEMS, "libssl.so.3.0.2")
    vendors.link(f"{MULTIARCH}/libssl.so", "libssl.so.3")
    found = decided(vendors, *USED, f"{MULTIARCH}/libssl.so")
    assert {SYSTEMS, f"{SYSTEMS}.0.2", f"{MULTIARCH}/libssl.so"} <= set(excluded(found))
    assert not [name for name in in_library_path(found, ImageRoot(vendors.base)) if "ssl" in name]


def test_the_soname_counts_as_a_name(vendors: Image) -> None:
    (vendors.base / SYSTEMS[1:]).rename(vendors.base / f"{SYSTEMS[1:]}.0.2")
    vendors.file(TOOL, elf(["libssl.so.3.0.2"], interpreter=LD_SO), 0o755)
    found = decided(vendors, (Op.EXEC, TOOL), (Op.MAP, f"{SYSTEMS}.0.2"), (Op.EXEC, SERVER), (Op.MAP, OWN))
    assert f"{SYSTEMS}.0.2" in excluded(found)


@pytest.mark.parametrize("by", ["exclude", "another", "damaged neighbour"])
def test_a_program_that_is_not_in_the_set_counts(vendors: Image, by: str) -> None:
    """It has the unit's environment, as the programs have that first run after ready."""
    vendors.file("/opt/app/bin/starter", elf(interpreter=LD_SO), 0o755)
    start: tuple[Opened, ...] = ((Op.EXEC, TOOL), (Op.MAP, SYSTEMS), (Op.EXEC, "/opt/app/bin/starter"))
    given = RULES
    if by == "exclude":
        start, given = (*start, (Op.EXEC, SERVER)), rules(exclude=(SERVER,))
    if by == "damaged neighbour":
        vendors.file("/opt/app/lib/a.so", b"\x7fELF")
        vendors.link("/opt/app/lib/loop.so", "loop.so")
    found = decided(vendors, *start, program="/opt/app/bin/starter", rules=given)
    assert excluded(found)[SYSTEMS].endswith(f"in the DT_RUNPATH of {SERVER}")


def test_a_library_counts_as_a_program_does(vendors: Image) -> None:
    vendors.file(SERVER, elf(["libapp.so"], interpreter=LD_SO, runpath="/opt/app/lib"), 0o755)
    vendors.file("/opt/app/lib/libapp.so", elf(["libssl.so.3"], soname="libapp.so", runpath="/opt/app/more"))
    (vendors.base / "opt/app/more").mkdir()
    (vendors.base / OWN[1:]).rename(vendors.base / "opt/app/more/libssl.so.3")
    found = decided(
        vendors, (Op.EXEC, TOOL), (Op.MAP, SYSTEMS), (Op.EXEC, SERVER), (Op.MAP, "/opt/app/lib/libapp.so")
    )
    assert SYSTEMS in excluded(found)


def test_a_program_of_the_system_does_not_get_a_vendor_s_library(vendors: Image) -> None:
    """Only the vendor's is in the set. It would be found before the loader's default directories."""
    vendors.file(SERVER, elf(["libssl.so.3"], interpreter=LD_SO, runpath="/opt/app/lib"), 0o755)
    found = decided(vendors, (Op.EXEC, SERVER), (Op.MAP, OWN))
    assert list(excluded(found)) == [OWN]


def test_variants_machines_and_links_are_no_other_library(vendors: Image) -> None:
    (vendors.base / OWN[1:]).unlink()
    vendors.link(OWN, SYSTEMS)
    variant = f"{MULTIARCH}/glibc-hwcaps/x86-64-v3/libssl.so.3"
    vendors.file(variant, elf(soname="libssl.so.3"))
    vendors.file("/etc/ld.so.conf", f"/usr/lib/i386-linux-gnu\n{MULTIARCH}\n")
    vendors.file("/usr/lib/i386-linux-gnu/libssl.so.3", elf(soname="libssl.so.3", machine=3, bits=32))
    found = decided(vendors, *USED)
    assert excluded(found) == {}
    assert {SYSTEMS, variant, SERVER} <= set(files(found))


def test_a_variant_in_the_program_s_own_directory_is_another_library(vendors: Image) -> None:
    (vendors.base / OWN[1:]).unlink()
    vendors.file("/opt/app/lib/glibc-hwcaps/x86-64-v2/libssl.so.3", elf(soname="libssl.so.3"))
    assert SYSTEMS in excluded(decided(vendors, (Op.EXEC, TOOL), (Op.MAP, SYSTEMS), (Op.EXEC, SERVER)))


def test_the_elf_interpreter_stays(vendors: Image) -> None:
    """No loader searches for it, and all packed programs need it."""
    vendors.file("/opt/app/lib/ld-linux-x86-64.so.2", elf(), 0o755)
    found = decided(vendors, *USED)
    assert f"{MULTIARCH}/ld-linux-x86-64.so.2" in files(found)


def test_who_would_not_find_a_library_beside_itself_in_fast_is_not_there(image: Image) -> None:
    """A library that first comes into use after ready, in $ORIGIN of a program and of a library."""
    image.file(
        "/usr/lib/app/bin/server", elf(["libb.so.1"], interpreter=LD_SO, runpath="$ORIGIN/../own"), 0o755
    )
    image.file(f"{MULTIARCH}/libb.so.1", elf(soname="libb.so.1", runpath="${ORIGIN}/b"))
    image.file("/usr/lib/app/own/plugin.so", elf())
    image.file(f"{MULTIARCH}/b/plugin.so", elf())
    found = decided(image, (Op.EXEC, "/usr/lib/app/bin/server"), program="/usr/lib/app/bin/server")
    assert left(found) == ["/usr/lib/app/bin/server"]
    assert excluded(found) == {
        f"{MULTIARCH}/libb.so.1": f"origin: it looks for {MULTIARCH}/b/plugin.so beside itself"
    }


def test_all_hard_links_go_the_same_way(vendors: Image) -> None:
    other = vendors.base / f"{MULTIARCH[1:]}/libtls.so.3"
    other.hardlink_to(vendors.base / SYSTEMS[1:])
    second = vendors.base / "opt/app/bin/again"
    second.hardlink_to(vendors.base / SERVER[1:])
    found = decided(vendors, *USED)
    assert {SYSTEMS, f"{MULTIARCH}/libtls.so.3"} <= set(excluded(found))
    assert {SERVER, "/opt/app/bin/again"} <= set(left(found))
    assert list(part_b(CONFIG, found, ImageRoot(vendors.base)))


def test_the_prefetch_asks_for_what_is_not_in_fast(vendors: Image) -> None:
    root, traces = ImageRoot(vendors.base), [trace(*USED)]
    assert {P(SYSTEMS), P(OWN)} <= foresee(traces, decided(vendors, *USED), root).files


@pytest.mark.parametrize("packed", [True, False])
def test_a_name_that_comes_later_is_compared(vendors: Image, packed: bool) -> None:
    """The directory of a program that is not in the set, and a name that only /fast has so far."""
    put(vendors.base, UNIT_FILE, TEXT)
    (vendors.base / OWN[1:]).unlink()
    if not packed:
        vendors.file(OWN, elf(soname="libssl.so.3"))
    given: Sequence[Opened] = ((Op.EXEC, TOOL), (Op.MAP, SYSTEMS), (Op.EXEC, SERVER))
    root, traces = ImageRoot(vendors.base), [trace(*given)]
    found = decided(vendors, *given, rules=rules(exclude=(SERVER,)))
    directories = searched(found, executed(traces, root), root)
    names = watched(root, ("app.service",), found, (), searched=directories).names
    assert (P(OWN) in names) is packed
    assert P(OWN) not in watched(root, ("app.service",), found, ()).names


def test_a_library_of_the_system_that_comes_later_is_compared(vendors: Image) -> None:
    """A vendor's library is in LD_LIBRARY_PATH, so a program of the system would get it, too."""
    put(vendors.base, UNIT_FILE, TEXT)
    (vendors.base / OWN[1:]).unlink()
    vendors.file(SERVER, elf(["libown.so.1"], interpreter=LD_SO, runpath="/opt/app/lib"), 0o755)
    vendors.file("/opt/app/lib/libown.so.1", elf(soname="libown.so.1"))
    found = decided(vendors, (Op.EXEC, SERVER))
    assert "/opt/app/lib" in library_path(found)
    names = watched(ImageRoot(vendors.base), ("app.service",), found, ()).names
    assert P(f"{MULTIARCH}/libown.so.1") in names


def test_what_was_executed(image: Image, tmp_path: Path) -> None:
    root = ImageRoot(image.base)
    image.link("/usr/bin/other", "app")
    found = executed(
        [trace((Op.EXEC, "/bin/other"), (Op.EXEC, "/run/x"), (Op.EXEC, "/usr/bin/no", "ENOENT"))], root
    )
    assert found == {P("/usr/bin/app"), P("/run/x")}
