"""Make the initramfs of the appliance, our guest that reads a stranger's disk. The initramfs has BusyBox, blkid and GNU
tar with their libraries, the drivers, and our scripts in `guest/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from pathlib import Path, PurePosixPath

from quickstart.initramfs.modules import module_data, module_set
from quickstart.initramfs.newc import CpioEntry, char_device, directory, regular, symlink
from quickstart.inspect.elf import closure
from quickstart.inspect.imageroot import ImageRoot

# The kernel modules in the order in which they are loaded: first the drivers of the disk and of the launch agent's
# port, then file systems. FAT needs the nls modules for file names, and Debian mounts an ESP with them.
WANTED = (
    *("sha256_ssse3", "virtio_pci", "virtio_blk", "virtio_net", "virtio_console", "crc32c_generic"),
    *("ext4", "xfs", "btrfs", "vfat", "nls_cp437", "nls_ascii", "nls_iso8859_1", "nls_utf8"),
)
_PROGRAMS = ("/usr/sbin/blkid", "/usr/bin/tar")
_SCRIPTS = ("look", "fetch", "tree")
_APPLETS = (
    *(
        "sh",
        "cat",
        "chroot",
        "echo",
        "find",
        "head",
        "insmod",
        "mkdir",
        "mount",
        "printf",
        "readlink",
        "sleep",
    ),
    *("stat", "tail", "timeout", "umount", "wc"),
)
_CELL = ("cell", "cell/bin", "cell/disk", "cell/run")
_DIRECTORIES = ("dev", "modules", "proc", "run", "sbin", "sys")


def entries(root: ImageRoot, version: str, busybox: Path) -> Iterator[CpioEntry]:
    """The members of the initramfs. blkid, its libraries and the drivers come from the image ``root``, which has the
    kernel ``version``. ``busybox`` is the host's static BusyBox.

    Raises StartSetError when the image lacks a driver or a program.
    """
    yield from cell(busybox)
    yield symlink("bin", "cell/bin")
    yield from (directory(name) for name in _DIRECTORIES)
    yield char_device("dev/console", 0o600, 5, 1)
    yield regular("init", _script("init"), 0o755)
    yield from _programs(root)
    yield from _modules(root, version)


def cell(busybox: Path) -> Iterator[CpioEntry]:
    """The members of the directory with BusyBox and our scripts. The scripts guest/look and guest/fetch use this
    directory as their root directory while they read a file system.
    """
    yield from (directory(name) for name in _CELL)
    yield regular("cell/bin/busybox", busybox, 0o755)
    yield from (symlink(f"cell/bin/{name}", "busybox") for name in _APPLETS)
    yield from (regular(f"cell/bin/{name}", _script(name), 0o755) for name in _SCRIPTS)


def _script(name: str) -> bytes:
    return resources.files("quickstart.launch.appliance").joinpath("guest", name).read_bytes()


def _programs(root: ImageRoot) -> Iterator[CpioEntry]:
    """The members for the programs in /sbin and for the libraries of these programs. Each library has the directory and
    the name with which ld.so finds it.
    """
    starts = {PurePosixPath(path).name: _canonical(root, path) for path in _PROGRAMS}
    for name, path in starts.items():
        yield regular(f"sbin/{name}", root.host(path), 0o755)
    made: set[str] = set(_DIRECTORIES)
    for dependency in closure(root, starts.values()):
        place = dependency.path.parent if dependency.kind == "needed" else PurePosixPath("/lib64")
        soname = dependency.name if dependency.kind == "needed" else "ld-linux-x86-64.so.2"
        target = str(place / soname).lstrip("/")
        for parent in reversed(PurePosixPath(target).parents[:-1]):
            if str(parent) not in made:
                made.add(str(parent))
                yield directory(parent)
        if target not in made:
            made.add(target)
            yield regular(target, root.host(dependency.path), 0o755)


def _canonical(root: ImageRoot, path: str) -> PurePosixPath:
    found = root.resolve(PurePosixPath(path)).canonical
    if found is None:
        raise AssertionError(f"the base image has no {path}")
    return found


def _modules(root: ImageRoot, version: str) -> Iterator[CpioEntry]:
    found = module_set(root, version, WANTED)
    for module in found.modules:
        yield regular(f"modules/{module.name}", module_data(root, module), 0o644)
    order = "".join(f"{module.name}\n" for module in found.modules)
    yield regular("modules/order", order.encode(), 0o644)
