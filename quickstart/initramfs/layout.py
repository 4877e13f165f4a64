"""The layout of the archive. Part A has our own files, and part B is the start set at /fast. Apart from
reading the image, the functions are pure.

Part A comes first, because everything depends on it: init, BusyBox, modules. The last file of part B names
the build that the archive belongs to. So part A notices at once when part B is cut off or belongs to another
build. The list of digests in part A shows whether part B is what was packed.
"""

from __future__ import annotations

import enum
import os
import shlex
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path, PurePosixPath

from quickstart.errors import StartSetError
from quickstart.initramfs.description import description_text
from quickstart.initramfs.facts import NOTHING, STOCK_PATH, Watched, listed_parents, packed_facts, way_facts
from quickstart.initramfs.modules import ModuleSet, modloader_table, module_data, packed, packed_names
from quickstart.initramfs.newc import CpioEntry, char_device, directory, hard_link, regular, symlink
from quickstart.initramfs.prefetch import Prefetch
from quickstart.initramfs.programs import Programs
from quickstart.initramfs.serving import LIBRARY
from quickstart.initramfs.squashfs import write_image
from quickstart.inspect.elf_file import read_elf
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.model import UnitStart
from quickstart.inspect.unit.sysctl import KernelSetting
from quickstart.model import FileKind, Readiness, StartFile, StartSet, Superblock
from quickstart.model.words import Early, ReadyKind

OURS = "fast/quickstart"
# It fits into the 28 bytes that /lib64/ld-linux-x86-64.so.2 has in a program.
LOADER = "/fast/lib64/ld.so"
# The amd64 ABI's; a program with another one (32 bits, musl) keeps it and is loaded from the root volume.
_INTERPRETER = "/lib64/ld-linux-x86-64.so.2"
_DIRECTORIES = (
    *("dev", "fast", OURS, f"{OURS}/bin", f"{OURS}/modules.d", f"{OURS}/run"),
    *("newroot", "proc", "run", "sys"),
)
# The applets that init and its helpers call by name; the shell itself is not among them.
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
    *("mkfifo", "mount", "od", "poweroff", "readlink", "reboot", "rm", "rmdir", "run-init", "sed"),
    *(
        "sleep",
        "sort",
        "stat",
        "switch_root",
        "sync",
        "touch",
        "tr",
        "udhcpc",
        "umount",
        "uniq",
        "usleep",
        "xargs",
    ),
)
# In part B, in place of the start set: it as a file system, whose type the file's name ends with.
IMAGE = f"{OURS}/part-b.squashfs"
MARKER = f"{OURS}/part-b"
_SCRIPTS = (
    *("init", "lib", "first", "second", "stay", "udhcpc", "hand-off", "earlier-files", "adopt", "settle"),
    "early-units",
)


class Served(enum.Enum):
    """Where the application's files come from. An artefact always has FAST. The other values are only for comparisons."""

    FAST = "/fast"
    VOLUME = "the root volume"
    MEMORY = "memory"


class HandOff(enum.Enum):
    """The machine's state after the application answers. The values are words that init uses."""

    STAY = "no"
    """Init stays PID 1 and runs only the application: the paper's minimal system."""
    KEEP = "keep"
    """The distribution's init takes over; /fast stays in memory."""
    RELEASE = "release"
    """As KEEP, and /fast is freed when the boot is done."""


@dataclass(frozen=True, kw_only=True)
class GuestConfig:
    """The configuration of init for one image. ``build`` names the pair of parts A and B.

    ``ready`` comes from the profile. ``network`` is the result of takeover.network_service, and empty without
    a hand-off. ``early`` is the result of cloudinit.early_start. ``image`` is the file system type of part B,
    and empty when part B has plain files. ``watched`` is compared with the volume, beside the packed files.
    ``settings`` come from the image's sysctl.d(5).
    """

    build: str
    superblock: Superblock
    root_fstype: str
    root_options: str
    interface: str
    unit: UnitStart
    ready: Readiness
    hand_off: HandOff
    network: str
    early: Early = Early.ALWAYS
    served: Served = Served.FAST
    bound: tuple[PurePosixPath, ...] = ()
    image: str = ""
    watched: Watched = NOTHING
    settings: tuple[KernelSetting, ...] = ()


def part_a(
    config: GuestConfig,
    modules: ModuleSet,
    start_set: StartSet,
    root: ImageRoot,
    programs: Programs,
    digests: bytes,
    prefetch: Prefetch,
) -> Iterator[CpioEntry]:
    """Init and everything that it needs before it may use part B. ``digests`` is part B's list of digests."""
    for name in _DIRECTORIES:
        yield directory(name)
    yield char_device("dev/console", 0o600, 5, 1)
    yield from _programs(programs)
    # Elsewhere nothing is taken from part B.
    if config.served is Served.FAST:
        yield regular(f"{OURS}/bin/checker", programs.checker, 0o755)
        yield regular(f"{OURS}/digests", digests, 0o644)
        yield regular(f"{OURS}/bin/prefetcher", programs.prefetcher, 0o755)
        yield regular(f"{OURS}/prefetch.ranges", prefetch.ranges_text, 0o644)
        yield regular(f"{OURS}/prefetch.names", prefetch.names_text, 0o644)
    yield regular(f"{OURS}/config", _encoded(config_text(config)), 0o644)
    yield regular(f"{OURS}/settings", _encoded(settings_text(config.settings)), 0o644)
    yield regular(f"{OURS}/unit", _encoded(unit_text(config, start_set, root)), 0o644)
    if config.unit.late_binds and config.hand_off is not HandOff.STAY:
        yield regular(f"{OURS}/late-binds", _encoded(late_binds_text(config.unit)), 0o644)
    yield from _modules(modules, root)
    names, facts, places = packed_facts(start_set, config.bound, config.watched)
    ways, way_rows = way_facts(config.watched.ways)
    yield regular(f"{OURS}/packed.names", names, 0o644)
    yield regular(f"{OURS}/packed.stat", facts + way_rows, 0o644)
    yield regular(f"{OURS}/packed.ways", ways, 0o644)
    yield regular(f"{OURS}/packed.places", places, 0o644)
    yield regular(f"{OURS}/packed.parents", listed_parents(config.watched.parents), 0o644)
    yield regular(f"{OURS}/packed.units", config.watched.enabled, 0o644)


def _programs(programs: Programs) -> Iterator[CpioEntry]:
    """BusyBox with the names of its applets, the programs of ours that every boot needs, and init's scripts."""
    yield regular(f"{OURS}/busybox", programs.busybox, 0o755)
    for applet in _APPLETS:
        yield symlink(f"{OURS}/bin/{applet}", "../busybox")
    yield regular(f"{OURS}/bin/mounter", programs.mounter, 0o755)
    yield regular(f"{OURS}/bin/modloader", programs.modloader, 0o755)
    yield regular(f"{OURS}/bin/starter", programs.starter, 0o755)
    # By that name it does what is to be done later (caretaker/caretaker.c).
    yield symlink(f"{OURS}/bin/caretaker", "starter")
    scripts = resources.files("quickstart.initramfs").joinpath("init")
    for name in _SCRIPTS:
        target = "init" if name == "init" else f"{OURS}/{name}"
        yield regular(target, scripts.joinpath(name).read_bytes(), 0o755)


def _modules(modules: ModuleSet, root: ImageRoot) -> Iterator[CpioEntry]:
    """The kernel modules, and the modloader's table."""
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
    """The start set below /fast, and after it the file that marks part B as complete."""
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
    """Part B with the start set as one file system image, and with a directory for part A's files below /fast."""
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
    """The path of LOADER in the archive. The path goes through /lib64, which is a link with a merged /usr."""
    for file in start_set.files:
        if file.path == PurePosixPath("/lib64"):
            below = f"fast/{file.target.lstrip('/')}" if file.kind is FileKind.SYMLINK else "fast/lib64"
            return f"{below}/ld.so"
    raise StartSetError("the start set has programs but no /lib64 for their interpreter")


def relative(link: PurePosixPath, target: str) -> str:
    """The target text of a link in the archive. ``link`` and ``target`` are both relative to the archive's root."""
    return os.path.relpath(target, str(link.parent))


def _packed(file: StartFile, root: ImageRoot) -> CpioEntry:
    name = f"fast{file.path}"
    if file.kind is FileKind.DIRECTORY:
        return directory(name, stat.S_IMODE(file.mode))
    if file.kind is FileKind.SYMLINK:
        # An absolute target would lead out of /fast, to the root volume.
        absolute = file.target.startswith("/")
        return symlink(name, relative(PurePosixPath(name), f"fast{file.target}") if absolute else file.target)
    data: bytes | Path = root.host(file.path)
    if file.interpreter == _INTERPRETER and file.mode & 0o111:
        data = with_interpreter(root.host(file.path), LOADER)
    return regular(name, data, stat.S_IMODE(file.mode))


def with_interpreter(path: Path, interpreter: str) -> bytes:
    """The program with ``interpreter`` as its PT_INTERP. The rest of the segment is filled with zeros
    (elf(5)).

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


def unit_text(config: GuestConfig, start_set: StartSet, root: ImageRoot) -> str:
    """The description for the starter, with PATH and LD_LIBRARY_PATH as in the paper."""
    fast = config.served is Served.FAST
    libraries = library_path(start_set)
    stock = [str(name) for name in STOCK_PATH]
    environment = [f"PATH={':'.join([*(f'/fast{name}' for name in stock if fast), *stock])}"]
    environment += [f"LD_LIBRARY_PATH={libraries}"] if libraries else []
    unit = config.unit
    if config.served is Served.MEMORY:
        # There is no volume to look at.
        kept = tuple(record for record in unit.settings if record[0] != "unit-condition")
        unit = replace(unit, settings=kept)
    return description_text(unit, start_set, root, environment, fast, config.bound)


def library_path(start_set: StartSet) -> str:
    """The directories below /fast that have libraries, as a value for LD_LIBRARY_PATH."""
    holders = {
        file.path.parent
        for file in start_set.files
        if file.kind is FileKind.FILE and LIBRARY.search(file.path.name)
    }
    # ld.so(8) would take these characters of LD_LIBRARY_PATH for its own; such a library comes from the root volume.
    sayable = (path for path in holders if path != PurePosixPath("/etc") and not set(":;$") & set(str(path)))
    return ":".join(f"/fast{path}" for path in sorted(sayable))


def late_binds_text(unit: UnitStart) -> str:
    """The late binds for `adopt`, one line each with four words between tabs: `ro` or `rw`, `required` or
    `optional`, the source and the target.
    """
    rows = (
        (
            "ro" if each.read_only else "rw",
            "required" if each.required else "optional",
            each.source,
            each.target,
        )
        for each in unit.late_binds
    )
    return "".join("\t".join(row) + "\n" for row in rows)


def settings_text(settings: Iterable[KernelSetting]) -> str:
    """The kernel settings as shell text, which init's second half sources: one line `setting always|as-built
    KEY VALUE [SPARED…]` for each setting.
    """
    rows = (
        ("setting", "as-built" if each.is_packages else "always", each.key, each.value, *each.spared)
        for each in settings
    )
    return "".join(f"{shlex.join(row)}\n" for row in rows)


def config_text(config: GuestConfig) -> str:
    """The configuration of init as shell assignments."""
    values = {
        "BUILD": config.build,
        "ROOT_UUID": config.superblock.uuid,
        "ROOT_FSTYPE": config.root_fstype,
        "ROOT_OPTIONS": config.root_options,
        "BUILD_MOUNTS": str(config.superblock.mount_count),
        "BUILD_WTIME": str(config.superblock.write_time_s),
        "INTERFACE": config.interface,
        "UNIT": config.unit.unit,
        "UNIT_TYPE": config.unit.type,
        "UNIT_GROUP": config.unit.group,
        "PID_FILE": str(config.unit.pid_file or ""),
        # PID 1 holds the sockets as descriptors from 3 on (docs/internals/sockets.md).
        "SOCKETS": str(len(config.unit.sockets)),
        "SOCKET_UNITS": " ".join(dict.fromkeys(socket.unit for socket in config.unit.sockets)),
        "SOCKET_PATHS": " ".join(str(socket.path) for socket in config.unit.sockets if socket.path),
        "SERVED": config.served.value,
        "HAND_OFF": config.hand_off.value,
        "NETWORK": config.network,
        "EARLY": config.early,
        "IMAGE": config.image,
        # As in /proc/net/tcp (proc(5)).
        "READY_PORT": f"{config.ready.port:04X}" if config.ready.port else "",
        # `caretaker ask` has no other request than HTTP's.
        "READY_PATH": config.ready.path if config.ready.kind is ReadyKind.HTTP else "",
        "READY_STATUS": str(config.ready.status),
        "READY_ADDRESS": "loopback" if config.ready.loopback else "external",
    }
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
