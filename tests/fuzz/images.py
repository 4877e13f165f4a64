"""The targets for files of an image: programs, units, dpkg's tables, the loader's configuration, links, kernel modules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from quickstart.initramfs.modules import Module, modloader_table, module_data, module_set
from quickstart.inspect import dpkg
from quickstart.inspect.cloudinit import has_cloud_init
from quickstart.inspect.elf import closure
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.ldconf import library_directories
from quickstart.inspect.unit.callgroups import call_groups
from quickstart.inspect.unit.read import read_unit
from quickstart.reference.fstab import root_volume
from quickstart.reference.rootfs import installed_packages
from tests.fuzz.places import as_text, parts_of, put, put_nodes
from tests.fuzz.preparing import preparing
from tests.fuzz.target import Target


def elf(data: bytes, base: Path) -> None:
    (base / "lib").mkdir(exist_ok=True)
    (base / "lib/app").write_bytes(data)
    (base / "lib/liba.so").write_bytes(data)
    closure(ImageRoot(base), [PurePosixPath("/lib/app")])


UNIT_FILES = (
    "etc/systemd/system/app.service",
    "etc/systemd/system/app.service.d/a.conf",
    "etc/systemd/system.conf",
    "usr/lib/systemd/system/app.socket",
    "usr/lib/tmpfiles.d/app.conf",
    "etc/passwd",
    "etc/group",
)


def unit(data: bytes, base: Path) -> None:
    read_unit(ImageRoot(put(base, parts_of(data, UNIT_FILES), UNIT_FILES)), "app.service")


LIBRARY = "usr/lib/systemd/libsystemd-shared-252.so"


def callgroups(data: bytes, base: Path) -> None:
    call_groups(ImageRoot(put(base, {LIBRARY: data}, (LIBRARY,))))


DPKG_FILES = tuple(
    f"var/lib/dpkg/{name}" for name in ("status", "diversions", "info/a.list", "alternatives/x")
)


def dpkg_tables(data: bytes, base: Path) -> None:
    parts = parts_of(data, DPKG_FILES)
    root = ImageRoot(put(base, parts, DPKG_FILES))
    (base / "bin").mkdir(exist_ok=True)
    (base / "bin/x").touch()
    dpkg.owners(root, [PurePosixPath("/bin/x"), PurePosixPath("/bin"), PurePosixPath("/bin/y")])
    dpkg.installed(root)
    installed_packages(as_text(parts.get(DPKG_FILES[0], b"")))


def fstab(data: bytes, _: Path) -> None:
    root_volume(as_text(data))


LD_FILES = ("etc/ld.so.conf", "etc/ld.so.conf.d/a.conf", "etc/b.conf")


def ldconf(data: bytes, base: Path) -> None:
    library_directories(ImageRoot(put(base, parts_of(data, LD_FILES), LD_FILES)))


def tree(data: bytes, base: Path) -> None:
    """Links and patterns of an image; cloud-init is looked for among them."""
    root = ImageRoot(put_nodes(base, data))
    has_cloud_init(root)
    for line in data.split(b"\n")[:8]:
        words = as_text(line).split(" ")
        path = PurePosixPath("/", words[-1].lstrip("/"))
        root.resolve(path)
        root.link_target(PurePosixPath("/", *[part for part in path.parts[1:] if part != ".."]))
        root.glob(path)
    root.hard_links()


MODULE_FILES = tuple(f"lib/modules/1/modules.{name}" for name in ("dep", "builtin", "alias"))


def modules(data: bytes, base: Path) -> None:
    root = ImageRoot(put(base, parts_of(data, MODULE_FILES), MODULE_FILES))
    modloader_table(module_set(root, "1"))


def module(data: bytes, base: Path) -> None:
    (base / "a.ko.xz").write_bytes(data)
    module_data(ImageRoot(base), Module("a", PurePosixPath("/a.ko.xz"), ()))


_SECTION = (b"%%% ", b"\n[Service]\n", b"=", b"\\\n", b"infinity", b"%n", b"%i", b"\\x41", b";", b"~", b"-")
TARGETS: Mapping[str, Target] = {
    "elf": Target(elf, (b"\x7fELF", b"liba.so\0", b"$ORIGIN", b"FDO\0", b'[{"soname":["a"]}]')),
    "unit": Target(
        unit,
        (
            *_SECTION,
            *(
                f"\n{name}=".encode()
                for name in (
                    "ExecStart",
                    "ExecStartPre",
                    "CPUAffinity",
                    "LimitCPU",
                    "LimitNICE",
                    "TimeoutStartSec",
                    "Slice",
                    "User",
                    "Environment",
                    "BindPaths",
                    "SystemCallFilter",
                    "CapabilityBoundingSet",
                    "RuntimeDirectory",
                    "StandardOutput",
                    "DeviceAllow",
                    "TemporaryFileSystem",
                    "UMask",
                )
            ),
        ),
    ),
    "callgroups": Target(callgroups, (b"\x7fELF\x02\x01", b"@default\0")),
    "dpkg": Target(
        dpkg_tables,
        (
            b"%%% ",
            b"Package: ",
            b"Status: install ok installed\n",
            b"Provides: ",
            b"Version: ",
            b"(",
            b"/bin/x\n",
        ),
    ),
    "preparing": Target(
        preparing,
        (
            *(
                b"%%% ",
                b"request routers, subnet-mask;\n",
                b"send host-name ",
                b"duid\n",
                b"iface ens3 inet dhcp\n",
            ),
            *(
                b"  up ip link set ens3 up\n",
                b"[Network]\n",
                b"DHCP=yes\n",
                b'RUN+="',
                b"install x ",
                b"bootcmd: ",
            ),
            *(b"L+ /run/x", b"always", b"\\\n", b"LOCAL\n", b"ethernets:\n"),
        ),
    ),
    "fstab": Target(fstab, (b"UUID=", b"LABEL=", b" / ext4 defaults 0 1\n", b"/dev/sda", b"nofail", b"#")),
    "ldconf": Target(ldconf, (b"%%% ", b"include ", b"/etc/*.conf", b"*/", b"../", b"[", b"=libc5")),
    "tree": Target(
        tree,
        (b"d ", b"f ", b"l ", b"/etc/systemd/system/", b".wants/", b"cloud-init.service", b"../", b"*"),
    ),
    "modules": Target(
        modules, (b"%%% ", b"kernel/ext4.ko: ", b"virtio_pci.ko", b"alias pci:* ext4\n", b".ko.xz")
    ),
    "module": Target(module),
}
