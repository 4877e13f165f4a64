"""Find the kernel modules for part A of the initramfs, and the order in which they are loaded. The sources are
modules.dep and modules.alias of the image's kernel (modules.dep(5), depmod(8)).
"""

from __future__ import annotations

import gzip
import lzma
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from quickstart.errors import StartSetError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.sysctl import KernelSetting
from quickstart.model.words import FileSystem

# The modules of every disk, bus and network device that an image may meet on QEMU, Xen or EC2, and of the launch
# agent's port. Modules that the kernel has built in, or does not have at all, are left out. The first module makes
# the check of the other modules' signatures faster. udev would load it as well, for the CPU.
WANTED = (
    "sha256_ssse3",
    "virtio_pci",
    "virtio_mmio",
    "virtio_blk",
    "virtio_scsi",
    "virtio_net",
    "virtio_console",
    "xen_blkfront",
    "xen_netfront",
    "nvme",
    "ena",
    "ata_piix",
    "ahci",
    "sd_mod",
    "crc32c_generic",
)
# Drivers of emulated disk controllers. Every PC has such a controller, but hardly any root volume is on it, and the
# drivers take long to load. So they are loaded only when no other driver has found the root volume.
LATE = ("ata_piix", "ahci")
# The modules that are needed to mount a start set that is an image (payload.Payload.SQUASHFS). Its file system is the
# last.
IMAGE_MODULES = ("loop", "squashfs")
# Modules that no root volume needs are loaded while the root volume is mounted.
BESIDE = ("virtio_net", "virtio_console", "xen_netfront", "ena")
# Among them those of network cards.
_CARDS = ("virtio_net", "xen_netfront", "ena")
# A queueing discipline is a module of its own. When a card comes up, it takes the queueing discipline that is then the
# default (sysctl.d(5)).
_MOST_QUEUES = 4
_DEFAULT_QUEUE, _QUEUE = "net/core/default_qdisc", "sch_"
# Without these, and without its root's file system, no guest of ours finds its disk and its network.
NEEDED = ("virtio_pci", "virtio_blk", "virtio_net")
# The modules that a QEMU machine loads are stored uncompressed. All others, which most machines never load, are
# compressed, and insmod unpacks them when they are needed.
_PLAIN = ("sha256_ssse3", *NEEDED, "virtio_console", *FileSystem, *IMAGE_MODULES)
_MAX_MODULE_BYTES = 64 << 20
# The most memory that a reader of xz needs for data that xz's strongest preset has written (xz(1), -9).
_MAX_XZ_MEMORY_BYTES = 80 << 20
# The limit for the modules that a module requires (ext4 requires five). The modloader's table repeats them for each
# of the module's aliases.
_MAX_REQUIRED = 256
# A module's name is one of C: the kernel's build replaces everything else.
_NAME = re.compile(r"[A-Za-z0-9_]+")
# The buses whose devices have a modalias in sysfs. Other aliases (block-major-…, fs-…) are requests of the kernel
# itself. A pair has the beginning of the bus's aliases, and the name of the bus below /sys/bus. The devices of the
# child buses exist only when drivers of the other buses are loaded.
_BUSES = (("pci:", "pci"), ("xen:", "xen"), ("acpi", "acpi"))
_CHILD_BUSES = (("virtio:", "virtio"), ("scsi:", "scsi"))
# The alias of a CPU, and the place where all CPUs have it in common. It comes first, because its module checks the
# other modules' signatures.
_CPU = "cpu:"
_CPU_DEVICE = "devices/system/cpu"


@dataclass(frozen=True)
class Module:
    """A kernel module. ``name`` has underscores in place of hyphens, as in /proc/modules. ``path`` is the module's
    path in the image. ``requires`` are the modules that this module needs, in the order in which they must be loaded.
    """

    name: str
    path: PurePosixPath
    requires: tuple[str, ...]


@dataclass(frozen=True)
class ModuleSet:
    """Kernel modules in an order in which they can be loaded. ``aliases`` are their device aliases, each as (shell
    pattern, module name). ``options`` are the options of the modules, each as (module name, options), in the order of
    modprobe.d(5).
    """

    modules: tuple[Module, ...]
    aliases: tuple[tuple[str, str], ...]
    options: tuple[tuple[str, str], ...] = ()


def queues(settings: Iterable[KernelSetting]) -> tuple[str, ...]:
    """The kernel modules of the queueing disciplines that ``settings`` make the default for network cards. In a stock
    boot (the distribution's own boot), the kernel loads such a module by modprobe when a process writes the setting.
    The initramfs has no modprobe, so the initramfs must contain these modules, and init's modloader loads them.

    The result has at most _MOST_QUEUES modules. These are the modules of the last settings, because a later setting
    replaces an earlier one. The limit keeps the modloader's table short, because the line of every network card in this
    table has all these modules.
    """
    names = (f"{_QUEUE}{each.value}" for each in settings if each.key == _DEFAULT_QUEUE)
    return tuple(dict.fromkeys(name for name in names if _NAME.fullmatch(name)))[-_MOST_QUEUES:]


def module_name(path: str) -> str:
    """The name of the kernel module in the file ``path``. For example, kernel/drivers/block/xen-blkfront.ko.xz gives
    xen_blkfront.
    """
    return PurePosixPath(path).name.split(".ko")[0].replace("-", "_")


# Debian's kernels have some five thousand.
_MOST_MODULES = 50_000


def parse_dependencies(text: str) -> Mapping[str, Module]:
    """The modules in modules.dep, by name. A line of modules.dep lists the modules that a module requires, in the
    reverse of the order in which they must be loaded (modules.dep(5)).

    Raises StartSetError for an invalid module name, because the names become words of the table that init's modloader
    reads.
    """
    if text.count("\n") > _MOST_MODULES:
        raise StartSetError(
            f"modules.dep has more than {_MOST_MODULES} modules", hint="run depmod in the image"
        )
    found = {}
    for line in text.splitlines():
        path, _, rest = line.partition(":")
        names = [module_name(each) for each in (path, *reversed(rest.split()))]
        for name in names:
            if not _NAME.fullmatch(name):
                raise StartSetError(
                    f"modules.dep has a module called {name[:100]!r}", hint="run depmod in the image"
                )
        if len(names) > _MAX_REQUIRED:
            raise StartSetError(
                f"modules.dep has a module {names[0]} that requires {len(names) - 1} others",
                hint="run depmod in the image",
            )
        found[names[0]] = Module(names[0], PurePosixPath(path), tuple(names[1:]))
    return found


def parse_aliases(text: str, names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The device aliases in modules.alias that lead to one of the modules ``names``, each as (pattern, module name)."""
    wanted = set(names)
    prefixes = (_CPU, *(prefix for prefix, _ in (*_BUSES, *_CHILD_BUSES)))
    rows = (line.split() for line in text.splitlines() if line.startswith("alias "))
    return tuple(
        (row[1], row[2]) for row in rows if len(row) == 3 and row[2] in wanted and row[1].startswith(prefixes)
    )


def module_set(
    root: ImageRoot, version: str, wanted: Sequence[str] = (*WANTED, FileSystem.EXT4)
) -> ModuleSet:
    """The modules in ``wanted`` that the image's kernel ``version`` has, together with the modules that they require.

    Raises StartSetError when the kernel lacks one of these modules, that is, when the image has no file for the module
    and the module is not built into the kernel:

    - a module in ``NEEDED``, the list of modules without which no guest finds its disk and its network
    - a file system in ``wanted``
    - a module that ``wanted`` has from ``IMAGE_MODULES``, the list of modules for mounting a file system image in part B
    """
    directory = root.resolve(PurePosixPath("/lib/modules") / version).canonical
    if directory is None:
        raise StartSetError(
            f"the image has no /lib/modules/{version}", hint="is the kernel's package complete?"
        )
    known = parse_dependencies(root.read_text(directory / "modules.dep"))
    built_in = {module_name(line) for line in root.read_text(directory / "modules.builtin").splitlines()}
    for name in (*NEEDED, *(each for each in (*FileSystem, *IMAGE_MODULES) if each in wanted)):
        if name not in known and name not in built_in:
            raise StartSetError(f"the kernel {version} has no {name}, as a module or built in")
    ordered: dict[str, Module] = {}
    for name in wanted:
        if name in known:
            for each in (*known[name].requires, name):
                if each not in known:
                    raise StartSetError(f"{directory}/modules.dep has no {each}, which {name} requires")
                ordered.setdefault(each, known[each])
    modules = tuple(Module(m.name, directory / m.path, m.requires) for m in ordered.values())
    return ModuleSet(modules, parse_aliases(root.read_text(directory / "modules.alias"), ordered))


def packed_names(modules: ModuleSet) -> frozenset[str]:
    """The names of the kernel modules that part A of the initramfs stores with gzip compression."""
    plain = {name for each in modules.modules if each.name in _PLAIN for name in (each.name, *each.requires)}
    return frozenset(each.name for each in modules.modules) - plain


def packed(data: bytes) -> bytes:
    """The module's object file, compressed for BusyBox's insmod. Two calls with the same object file always give the
    same bytes.
    """
    return gzip.compress(data, 9, mtime=0)


def module_data(root: ImageRoot, module: Module) -> bytes:
    """The module's object file as plain ELF, which insmod in the guest accepts. If the image has the file in
    compressed form, this function decompresses it.
    """
    found = root.resolve(module.path).canonical
    if found is None:
        raise StartSetError(f"the image has no {module.path}", hint="is the kernel's package complete?")
    data = root.read_bytes(found)
    if module.path.suffix == ".xz":
        return _decompressed(module.path, data)
    if module.path.suffix != ".ko":
        raise StartSetError(
            f"{module.path} has a compression that is not known", hint="known: .ko and .ko.xz"
        )
    return data


def _decompressed(path: PurePosixPath, data: bytes) -> bytes:
    try:
        decompressor = lzma.LZMADecompressor(memlimit=_MAX_XZ_MEMORY_BYTES)
        plain = decompressor.decompress(data, _MAX_MODULE_BYTES)
    except lzma.LZMAError as error:
        raise StartSetError(f"{path} cannot be decompressed: {error}") from error
    if not decompressor.eof:
        raise StartSetError(f"{path} is cut, or has more than {_MAX_MODULE_BYTES} bytes in it")
    return plain


def modloader_table(modules: ModuleSet) -> str:
    """The table from which the modloader, a program in the guest, loads kernel modules. Each line has words separated
    by blanks:

    - A line ``device PATH`` names a device below /sys that has an alias.
    - A line ``bus NAME`` or ``child NAME`` names a bus whose devices all have aliases. The devices of a ``child`` bus
      exist only once drivers of other devices are loaded.
    - A line ``module NAME`` names a module. These lines are in the order in which the modules are loaded.
    - A line ``alias PATTERN NAME…`` names the modules to load for a device, with the required modules first. For a
      module in BESIDE (modules that no root volume needs), the line begins with ``beside`` instead of ``alias``. For a
      module in LATE (drivers of emulated disk controllers), the line begins with ``late``. A network card's line also
      has the queueing disciplines.
    - The line ``root NAME…`` names the modules for the root's file system, unless the file system is built into the
      kernel. No device's alias names these modules. The kernel would request these modules in mount(2), but the
      initramfs has no modprobe.
    - A line ``image NAME…`` names modules for mounting part B of the initramfs, when part B is a file system image.
    - A line ``options NAME OPTIONS`` has the options for a module.
    """
    requires = {module.name: module.requires for module in modules.modules}
    queueing = tuple(each for name in requires if name.startswith(_QUEUE) for each in (*requires[name], name))
    lines = [f"device {_CPU_DEVICE}", *(f"bus {place}" for _, place in _BUSES)]
    lines += [f"child {place}" for _, place in _CHILD_BUSES]
    lines += [f"module {name}" for name in requires]
    for pattern, name in modules.aliases:
        kind = "late" if name in LATE else "beside" if name in BESIDE else "alias"
        beside = queueing if name in _CARDS else ()
        lines.append(" ".join((kind, pattern, *beside, *requires[name], name)))
    lines += [" ".join(("root", *requires[name], name)) for name in FileSystem if name in requires]
    lines += [" ".join(("image", *requires[name], name)) for name in IMAGE_MODULES if name in requires]
    lines += [f"options {name} {options}" for name, options in modules.options]
    return "\n".join(lines) + "\n"
