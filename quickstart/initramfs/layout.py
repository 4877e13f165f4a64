"""Lay out the two parts of the initramfs. Part A has our own files. Part B is the start set (the files that the
application needs to become ready), below the directory /fast. Apart from reading the image, the functions are pure.

Part A comes first, because the boot needs its files before all others. The files of part A include init, BusyBox and
the kernel modules. The last file of part B has the build ID. So init notices at once when part B is cut off or belongs
to another build. By the list of digests in part A, the guest checks that the files of part B are unchanged since the
build.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path, PurePosixPath

from quickstart.errors import StartSetError
from quickstart.initramfs.description import description_text
from quickstart.initramfs.facts import STOCK_PATH, listed_parents, packed_facts, way_facts
from quickstart.initramfs.guestconfig import (
    GuestConfig,
    HandOff,
    Served,
    config_text,
    late_binds_text,
    settings_text,
    unit_config_text,
)
from quickstart.initramfs.modules import ModuleSet, modloader_table, module_data, packed, packed_names
from quickstart.initramfs.newc import CpioEntry, char_device, directory, hard_link, regular, symlink
from quickstart.initramfs.prefetch import Prefetch
from quickstart.initramfs.programs import Programs
from quickstart.initramfs.serving import fast_library_places
from quickstart.initramfs.squashfs import write_image
from quickstart.inspect.elf_file import read_elf
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.model import UnitStart
from quickstart.model import FileKind, StartFile, StartSet
from quickstart.model.words import Early

OURS = "fast/quickstart"
COMPANIONS = f"{OURS}/companions"
# These files contain names and sizes of the image's files, also of files in directories that not everybody may enter.
# So only root may read them.
PRIVATE = 0o600
PRIVATE_NAMES = (f"{OURS}/packed.", f"{OURS}/prefetch.")
# This path fits into the 28 bytes that /lib64/ld-linux-x86-64.so.2 has in a program.
LOADER = "/fast/lib64/ld.so"
# The interpreter of the amd64 ABI. A program with another interpreter (32 bits, musl) keeps it, and is loaded from
# the root volume.
_INTERPRETER = "/lib64/ld-linux-x86-64.so.2"
_DIRECTORIES = (
    *("dev", "fast", OURS, f"{OURS}/bin", f"{OURS}/modules.d", f"{OURS}/run"),
    *("newroot", "proc", "run", "sys"),
)
# The applets that init and its helpers call by name. The shell itself is not in the list.
_APPLETS = (
    *(
        "cat",
        "chroot",
        "cmp",
        "cp",
        "dd",
        "diff",
        "dmesg",
        "env",
        "find",
        "grep",
        "halt",
        "head",
        "insmod",
        "ip",
        "kill",
        "ln",
        "mkdir",
    ),
    *(
        "mkfifo",
        "mount",
        "nc",
        "od",
        "poweroff",
        "readlink",
        "reboot",
        "rm",
        "rmdir",
        "run-init",
        "sed",
        "sha256sum",
    ),
    *(
        "sleep",
        "sort",
        "stat",
        "switch_root",
        "sync",
        "tail",
        "timeout",
        "touch",
        "tr",
        "udhcpc",
        "umount",
        "uniq",
        "usleep",
        "wc",
        "xargs",
    ),
)
# The start set as a file system in one file, which part B has in place of the start set. The file's name ends with
# the file system's type.
IMAGE = f"{OURS}/part-b.squashfs"
MARKER = f"{OURS}/part-b"
_SCRIPTS = (
    *(
        "init",
        "lib",
        "first",
        "cloud",
        "second",
        "stay",
        "udhcpc",
        "hand-off",
        "earlier-files",
        "adopt",
        "settle",
    ),
    "early-units",
    "settings-files",
    "settings-of",
)


def part_a(
    config: GuestConfig,
    modules: ModuleSet,
    start_set: StartSet,
    root: ImageRoot,
    programs: Programs,
    digests: bytes,
    prefetch: Prefetch,
) -> Iterator[CpioEntry]:
    """The members of part A of the initramfs. These members are init and everything that init needs before it may use
    part B. ``digests`` is the list of digests for part B.
    """
    for name in _DIRECTORIES:
        yield directory(name)
    yield char_device("dev/console", 0o600, 5, 1)
    yield from _programs(programs)
    # Elsewhere nothing is taken from part B.
    if config.served is Served.FAST:
        yield regular(f"{OURS}/bin/checker", programs.checker, 0o755)
        yield regular(f"{OURS}/digests", digests, 0o644)
        yield regular(f"{OURS}/bin/prefetcher", programs.prefetcher, 0o755)
        yield regular(f"{OURS}/prefetch.ranges", prefetch.ranges_text, PRIVATE)
        yield regular(f"{OURS}/prefetch.names", prefetch.names_text, PRIVATE)
        yield regular(f"{OURS}/prefetch.parts", prefetch.parts_text, PRIVATE)
        if later := prefetch.later:
            yield regular(f"{OURS}/prefetch.later-ranges", later.ranges_text, PRIVATE)
            yield regular(f"{OURS}/prefetch.later-parts", later.parts_text, PRIVATE)
    if config.early is Early.ASK:
        yield from _scripts(("datasource",))
    yield regular(f"{OURS}/config", _encoded(config_text(config)), 0o644)
    yield regular(f"{OURS}/settings", _encoded(settings_text(config.settings)), 0o644)
    yield from _unit(OURS, config.unit, config, start_set, root)
    if config.unit.companions:
        yield directory(COMPANIONS)
    for number, companion in enumerate(config.unit.companions, 1):
        place = f"{COMPANIONS}/{number}"
        yield from _companion(place, companion)
        yield from _unit(place, companion, config, start_set, root)
    yield from _modules(modules, root)
    bound = tuple(dict.fromkeys(path for paths in config.bound.values() for path in paths))
    names, facts, places = packed_facts(start_set, bound, config.watched)
    ways, way_rows = way_facts(config.watched.ways)
    yield regular(f"{OURS}/packed.names", names, PRIVATE)
    yield regular(f"{OURS}/packed.stat", facts + way_rows, PRIVATE)
    yield regular(f"{OURS}/packed.ways", ways, PRIVATE)
    yield regular(f"{OURS}/packed.places", places, PRIVATE)
    yield regular(f"{OURS}/packed.parents", listed_parents(config.watched.parents), PRIVATE)
    yield regular(f"{OURS}/packed.units", config.watched.enabled, PRIVATE)
    yield regular(f"{OURS}/packed.settings", config.content_sums, PRIVATE)
    if config.confined:
        yield regular(f"{OURS}/packed.confined", config.confined, PRIVATE)


def _unit(
    place: str, unit: UnitStart, config: GuestConfig, start_set: StartSet, root: ImageRoot
) -> Iterator[CpioEntry]:
    """The files that say how a unit starts. One file is the unit's description. If the unit has late binds (bind
    mounts that must wait for systemd), a second file lists them.
    """
    yield regular(f"{place}/unit", _encoded(unit_text(unit, config, start_set, root)), 0o644)
    if unit.late_binds and config.hand_off is not HandOff.STAY:
        yield regular(f"{place}/late-binds", _encoded(late_binds_text(unit)), 0o644)


def _companion(place: str, unit: UnitStart) -> Iterator[CpioEntry]:
    """The directory of a companion (a unit of the profile that starts before the last one), with the companion's
    configuration. When a script of init works on the companion, it uses this directory in place of /fast/quickstart.
    So the directory also has links to the programs in /fast/quickstart.
    """
    yield directory(place)
    yield symlink(f"{place}/bin", "../../bin")
    yield symlink(f"{place}/busybox", "../../busybox")
    yield symlink(f"{place}/adopt", "../../adopt")
    yield regular(f"{place}/config", _encoded(unit_config_text(unit)), 0o644)


def _programs(programs: Programs) -> Iterator[CpioEntry]:
    """The archive's members for BusyBox with links for its applets, for QuickStart's programs that every boot needs,
    and for init's scripts.
    """
    yield regular(f"{OURS}/busybox", programs.busybox, 0o755)
    for applet in _APPLETS:
        yield symlink(f"{OURS}/bin/{applet}", "../busybox")
    yield regular(f"{OURS}/bin/mounter", programs.mounter, 0o755)
    yield regular(f"{OURS}/bin/modloader", programs.modloader, 0o755)
    yield regular(f"{OURS}/bin/starter", programs.starter, 0o755)
    # Under this name, the program does the work after the start (caretaker/caretaker.c).
    yield symlink(f"{OURS}/bin/caretaker", "starter")
    yield from _scripts(_SCRIPTS)


def _scripts(names: Iterable[str]) -> Iterator[CpioEntry]:
    """The archive's members for scripts of init."""
    scripts = resources.files("quickstart.initramfs").joinpath("init")
    for name in names:
        target = "init" if name == "init" else f"{OURS}/{name}"
        yield regular(target, scripts.joinpath(name).read_bytes(), 0o755)


def _modules(modules: ModuleSet, root: ImageRoot) -> Iterator[CpioEntry]:
    """The archive's members for the kernel modules, and for the table by which the program modloader loads them."""
    yield regular(f"{OURS}/modules", _encoded(modloader_table(modules)), 0o644)
    compressed = packed_names(modules)
    for module in modules.modules:
        data = module_data(root, module)
        if module.name in compressed:
            yield regular(f"{OURS}/modules.d/{module.name}.ko.gz", packed(data), 0o644)
        else:
            yield regular(f"{OURS}/modules.d/{module.name}.ko", data, 0o644)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def part_b(config: GuestConfig, start_set: StartSet, root: ImageRoot) -> Iterator[CpioEntry]:
    """The members of part B of the initramfs. The start set below /fast comes first. The last file is the file MARKER,
    which shows that part B is complete. A file with FileKind.LEFT stays on the root volume. In part B, such a file
    becomes a link from /fast/PATH to /PATH.
    """
    yield directory("fast")
    names = Counter(file.hard_link_to for file in start_set.files)
    firsts: dict[PurePosixPath, CpioEntry] = {}
    for file in start_set.files:
        if file.hard_link_to is not None:
            yield hard_link(f"fast{file.path}", firsts[file.hard_link_to])
        elif file.path in names:
            firsts[file.path] = replace(_packed(file, root), names=names[file.path] + 1)
            yield firsts[file.path]
        else:
            yield _packed(file, root)
    if any(file.interpreter == _INTERPRETER for file in start_set.files):
        place = _loader_place(start_set)
        canonical = root.resolve(PurePosixPath(_INTERPRETER)).canonical
        yield symlink(place, relative(PurePosixPath(place), f"fast{canonical}"))
    yield directory(OURS)
    yield regular(MARKER, f"{config.build}\n".encode(), 0o644)


def image_part_b(entries: Iterable[CpioEntry]) -> tuple[CpioEntry, ...]:
    """The members of part B of the initramfs when one file system image contains the start set. The constant IMAGE is
    the path of this image in the initramfs. ``entries`` are the members that the function ``part_b`` yields. The image
    also has an empty directory ``quickstart``, over which init mounts part A's /fast/quickstart.
    """
    below, ours = [], []
    for entry in entries:
        if entry.name in ("fast", OURS, MARKER):
            ours.append(entry)
        if entry.name not in ("fast", MARKER):
            link_to = entry.link_to.removeprefix("fast/")
            below.append(replace(entry, name=entry.name.removeprefix("fast/"), link_to=link_to))
    top, place, marker = ours
    return top, place, regular(IMAGE, write_image(below), 0o644), marker


def _loader_place(start_set: StartSet) -> str:
    """The path at which the archive has a link to the dynamic loader. In the guest, the path LOADER leads to this
    place. The two paths can differ, because /lib64 is a link in an image with a merged /usr.
    """
    for file in start_set.files:
        if file.path == PurePosixPath("/lib64"):
            below = f"fast/{file.target.lstrip('/')}" if file.kind is FileKind.SYMLINK else "fast/lib64"
            return f"{below}/ld.so"
    raise StartSetError("the start set has programs but no /lib64 for their interpreter")


def relative(link: PurePosixPath, target: str) -> str:
    """The target of a link at ``link`` that leads to ``target``. The result is relative to the link's directory. Both
    arguments are relative to the archive's root.
    """
    return os.path.relpath(target, str(link.parent))


def _packed(file: StartFile, root: ImageRoot) -> CpioEntry:
    name = f"fast{file.path}"
    if file.kind is FileKind.DIRECTORY:
        return directory(name, stat.S_IMODE(file.mode))
    if file.kind is FileKind.SYMLINK:
        # An absolute target would lead out of /fast, to the root volume.
        absolute = file.target.startswith("/")
        return symlink(name, relative(PurePosixPath(name), f"fast{file.target}") if absolute else file.target)
    if file.kind is FileKind.LEFT:
        return symlink(name, str(file.path))
    data: bytes | Path = root.host(file.path)
    if file.interpreter == _INTERPRETER and file.mode & 0o111:
        data = with_interpreter(root.host(file.path), LOADER)
    return regular(name, data, stat.S_IMODE(file.mode))


def with_interpreter(path: Path, interpreter: str) -> bytes:
    """The content of the program at ``path``, with ``interpreter`` written into its PT_INTERP segment. The rest of the
    segment consists of zeros (elf(5)).

    Raises StartSetError when ``interpreter`` is too long for the segment.
    """
    facts = read_elf(path)
    if facts is None or not facts.interpreter:
        raise StartSetError(f"{path} has no PT_INTERP")
    encoded = interpreter.encode() + b"\0"
    if len(encoded) > facts.interpreter_capacity:
        raise StartSetError(
            f"{interpreter} does not fit into the {facts.interpreter_capacity} bytes of PT_INTERP in {path}",
            hint="exclude the program in the profile: it is then started from the root volume",
        )
    data = bytearray(path.read_bytes())
    end = facts.interpreter_offset + facts.interpreter_capacity
    data[facts.interpreter_offset : end] = encoded.ljust(facts.interpreter_capacity, b"\0")
    return bytes(data)


def unit_text(unit: UnitStart, config: GuestConfig, start_set: StartSet, root: ImageRoot) -> str:
    """The description of the unit, which the starter reads in the guest. ``config.served`` says where the application's
    files come from. With FAST, PATH leads first to the programs below /fast. LD_LIBRARY_PATH leads to the libraries
    below /fast, if there are any. With MEMORY, which only the bench uses, the guest has no root volume. The unit's
    conditions could not examine the volume there, so the description leaves them out.
    """
    fast = config.served is Served.FAST
    libraries = library_path(start_set)
    stock = [str(name) for name in STOCK_PATH]
    environment = [f"PATH={':'.join([*(f'/fast{name}' for name in stock if fast), *stock])}"]
    environment += [f"LD_LIBRARY_PATH={libraries}"] if libraries else []
    if config.served is Served.MEMORY:
        # There is no volume to look at.
        kept = tuple(record for record in unit.settings if record[0] != "unit-condition")
        unit = replace(unit, settings=kept)
    return description_text(unit, start_set, root, environment, fast, config.bound.get(unit.unit, ()))


def library_path(start_set: StartSet) -> str:
    """The directories below /fast that have libraries, as a value for LD_LIBRARY_PATH."""
    return ":".join(f"/fast{path}" for path in fast_library_places(start_set))
