"""Kernel modules: the order of loading, aliases, and the modloader's table."""

from __future__ import annotations

import fnmatch
import lzma
import re
from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import StartSetError, UnsupportedUnitError
from quickstart.initramfs.modules import (
    WANTED,
    Module,
    ModuleSet,
    modloader_table,
    module_data,
    module_name,
    module_set,
    parse_aliases,
    parse_dependencies,
    queues,
)
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.modprobe import module_options
from quickstart.inspect.unit.sysctl import KernelSetting
from tests.unit.test_unit_sockets import link, put

# As depmod writes it for Debian's cloud kernel: the requirement to be loaded first comes last.
DEP = """\
kernel/drivers/virtio/virtio.ko:
kernel/drivers/virtio/virtio_ring.ko: kernel/drivers/virtio/virtio.ko
kernel/drivers/virtio/virtio_pci.ko.xz: kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko
kernel/drivers/block/virtio_blk.ko: kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko
kernel/drivers/net/virtio_net.ko: kernel/net/core/failover.ko kernel/drivers/virtio/virtio.ko
kernel/net/core/failover.ko:
kernel/fs/ext4/ext4.ko: kernel/lib/crc16.ko
kernel/lib/crc16.ko:
kernel/drivers/ata/ahci.ko: kernel/drivers/ata/libata.ko
kernel/drivers/ata/libata.ko:
kernel/drivers/block/xen-blkfront.ko:
kernel/arch/x86/crypto/sha256-ssse3.ko:
kernel/sound/snd.ko:
"""
ALIASES = """\
# Aliases extracted from modules themselves.
alias pci:v00001AF4d*sv*sd*bc*sc*i* virtio_pci
alias virtio:d00000002v* virtio_blk
alias virtio:d00000001v* virtio_net
alias acpi*:LNRO0005:* virtio_mmio
alias pci:v*d*sv*sd*bc01sc06i01* ahci
alias pci:v00008086d00002652sv*sd*bc*sc*i* ahci
alias xen:vbd xen_blkfront
alias block-major-202-* xen_blkfront
alias fs-ext4 ext4
alias cpu:type:x86,ven*fam*mod*:feature:*0089* sha256_ssse3
alias crypto-sha256 sha256_ssse3
alias pci:v00001274d* snd
options ahci x=1
"""
VERSION = "6.1.0-1-cloud-amd64"


def image(
    tmp_path: Path, dependencies: str = DEP, built_in: str = "kernel/drivers/virtio/virtio_mmio.ko\n"
) -> ImageRoot:
    directory = tmp_path / "usr/lib/modules" / VERSION
    directory.mkdir(parents=True)
    (tmp_path / "lib").symlink_to("usr/lib")
    (directory / "modules.dep").write_text(dependencies)
    (directory / "modules.builtin").write_text(built_in)
    (directory / "modules.alias").write_text(ALIASES)
    return ImageRoot(tmp_path)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("kernel/drivers/block/xen-blkfront.ko.xz", "xen_blkfront"),
        ("kernel/crypto/crc32c_generic.ko", "crc32c_generic"),
        ("a.ko.zst", "a"),
    ],
)
def test_module_name(path: str, name: str) -> None:
    assert module_name(path) == name


def test_the_last_requirement_is_loaded_first() -> None:
    assert parse_dependencies(DEP)["virtio_pci"] == Module(
        "virtio_pci", PurePosixPath("kernel/drivers/virtio/virtio_pci.ko.xz"), ("virtio", "virtio_ring")
    )


@pytest.mark.parametrize("line", ["kernel/x;>pwned;.ko:", "kernel/a.ko: kernel/$(reboot).ko", "kernel/.ko:"])
def test_a_name_that_no_module_has_is_refused(line: str) -> None:
    with pytest.raises(StartSetError, match=r"modules\.dep has a module called"):
        parse_dependencies(f"{line}\n")


@pytest.mark.parametrize(
    ("path", "text", "options"),
    [
        (
            "/etc/modprobe.d/own.conf",
            "options virtio_blk queue_depth=8 a\n",
            [("virtio_blk", "queue_depth=8 a")],
        ),
        (
            "/etc/modprobe.d/own.conf",
            " options\tvirtio-blk \\\n queue_depth=8 \n",
            [("virtio_blk", "queue_depth=8")],
        ),
        (
            "/usr/lib/modprobe.d/tool.conf",
            'options virtio_blk a=1\noptions ext4 x\noptions virtio_blk a="2 3"\n',
            [("virtio_blk", "a=1"), ("ext4", "x"), ("virtio_blk", 'a="2 3"')],
        ),
        (
            "/etc/modprobe.d/own.conf",
            "options virtio_gpu x=1\nblacklist virtio\n# options virtio_blk x\n",
            [],
        ),
        ("/etc/modprobe.d/own.conf", "alias eth0 virtio_blk\nremove virtio_blk x\noptionsvirtio_blk x\n", []),
        ("/etc/modprobe.d/own", "options virtio_blk queue_depth=8\n", []),
    ],
)
def test_options_of_modules(tmp_path: Path, path: str, text: str, options: list[tuple[str, str]]) -> None:
    put(tmp_path, path, text)
    found = module_options(ImageRoot(tmp_path), "app.service", ("ext4", "virtio_blk"))
    assert list(found) == options


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/usr/lib/modprobe.d/tool.conf", "softdep virtio_blk pre: x\n"),
        ("/usr/local/lib/modprobe.d/own.conf", "blacklist virtio-blk\n"),
        # As the CIS benchmark has it of squashfs, which a payload may need.
        ("/etc/modprobe.d/cis.conf", "install virtio_blk /bin/false\n"),
        ("/etc/modprobe.d/own.conf", "options virtio_blk x=\x1b\n"),
        ("/etc/modprobe.d/own.conf", f"options virtio_blk x={'1' * 600}\noptions virtio_blk y={'1' * 600}\n"),
    ],
)
def test_what_modprobe_d_says_beside_options(tmp_path: Path, path: str, text: str) -> None:
    put(tmp_path, path, text)
    with pytest.raises(UnsupportedUnitError, match=rf"{path} has `.*virtio.blk") as error:
        module_options(ImageRoot(tmp_path), "app.service", ("ext4", "virtio_blk"))
    assert error.value.hint


@pytest.mark.parametrize(
    ("name", "mode"),
    [("etc/modprobe.d/own.conf", 0o640), ("etc/modprobe.d", 0o750)],
    ids=["file", "directory"],
)
def test_options_that_are_not_for_all_to_read(tmp_path: Path, name: str, mode: int) -> None:
    """Part A is: whoever may read OUT could read them."""
    put(tmp_path, "/etc/modprobe.d/own.conf", "install cramfs /bin/false\noptions virtio_blk key=secret\n")
    (tmp_path / name).chmod(mode)
    assert module_options(ImageRoot(tmp_path), "app.service", ("ext4",)) == ()
    with pytest.raises(UnsupportedUnitError, match=r"own\.conf.* is not for all to read") as error:
        module_options(ImageRoot(tmp_path), "app.service", ("virtio_blk",))
    assert "secret" not in str(error.value)
    assert error.value.hint


def test_files_of_modprobe_d(tmp_path: Path) -> None:
    """In the order of their names; of one name, the administrator's counts."""
    for place, name, value in (
        ("usr/lib", "b", 1),
        ("usr/lib", "a", 2),
        ("etc", "c", 3),
        ("usr/lib", "c", 4),
    ):
        put(tmp_path, f"/{place}/modprobe.d/{name}.conf", f"options ext4 x={value}\n")
    put(tmp_path, "/usr/lib/modprobe.d/tool.conf", "options ext4 y\n")
    link(tmp_path, "/etc/modprobe.d/tool.conf", "/dev/null")
    found = module_options(ImageRoot(tmp_path), "app.service", ("ext4",))
    assert found == (("ext4", "x=2"), ("ext4", "x=1"), ("ext4", "x=3"))
    table = modloader_table(ModuleSet((), (), found))
    assert table.endswith("options ext4 x=2\noptions ext4 x=1\noptions ext4 x=3\n")


def test_only_device_aliases_of_wanted_modules() -> None:
    assert parse_aliases(ALIASES, ["ahci", "xen_blkfront", "ext4", "virtio_mmio"]) == (
        ("acpi*:LNRO0005:*", "virtio_mmio"),
        ("pci:v*d*sv*sd*bc01sc06i01*", "ahci"),
        ("pci:v00008086d00002652sv*sd*bc*sc*i*", "ahci"),
        ("xen:vbd", "xen_blkfront"),
    )


def test_each_module_comes_after_what_it_requires(tmp_path: Path) -> None:
    found = module_set(image(tmp_path), VERSION)
    names = [module.name for module in found.modules]
    assert sorted(names) == [
        *(
            "ahci",
            "crc16",
            "ext4",
            "failover",
            "libata",
            "sha256_ssse3",
            "virtio",
            "virtio_blk",
            "virtio_net",
        ),
        *("virtio_pci", "virtio_ring", "xen_blkfront"),
    ]
    for module in found.modules:
        assert set(module.requires) <= set(names[: names.index(module.name)])
    assert found.modules[1].path == PurePosixPath(
        f"/usr/lib/modules/{VERSION}/kernel/drivers/virtio/virtio.ko"
    )


def test_a_needed_module_may_be_built_in(tmp_path: Path) -> None:
    without = "".join(line for line in DEP.splitlines(keepends=True) if not line.startswith("kernel/fs/ext4"))
    found = module_set(image(tmp_path, without, "kernel/fs/ext4/ext4.ko\n"), VERSION)
    assert "ext4" not in [module.name for module in found.modules]


def test_a_kernel_without_a_needed_module(tmp_path: Path) -> None:
    without = "".join(line for line in DEP.splitlines(keepends=True) if not line.startswith("kernel/fs/ext4"))
    with pytest.raises(StartSetError, match="has no ext4, as a module or built in"):
        module_set(image(tmp_path, without), VERSION)


def test_an_image_without_the_kernels_modules(tmp_path: Path) -> None:
    with pytest.raises(StartSetError, match=r"no /lib/modules/6\.9"):
        module_set(image(tmp_path), "6.9")


def test_module_data(tmp_path: Path) -> None:
    (tmp_path / "a.ko").write_bytes(b"plain")
    (tmp_path / "a.ko.xz").write_bytes(lzma.compress(b"packed"))
    (tmp_path / "a.ko.zst").write_bytes(b"?")
    root = ImageRoot(tmp_path)
    assert module_data(root, Module("a", PurePosixPath("/a.ko"), ())) == b"plain"
    assert module_data(root, Module("a", PurePosixPath("/a.ko.xz"), ())) == b"packed"
    with pytest.raises(StartSetError, match=r"/a\.ko\.zst has a compression that is not known"):
        module_data(root, Module("a", PurePosixPath("/a.ko.zst"), ()))


# ---------------------------------------------------------------- the modloader's table


def rules(text: str) -> list[tuple[str, str, str]]:
    """Kind, pattern and modules of each line that is about a device."""
    found = re.findall(r"^(alias|beside|late) (\S+) (.+)$", text, re.MULTILINE)
    return [(kind, pattern, names) for kind, pattern, names in found]


@pytest.mark.parametrize(
    ("modalias", "rule"),
    [
        ("cpu:type:x86,ven0002fam000Fmod006B:feature:,0000,0089,009C", ("alias", "sha256_ssse3")),
        ("pci:v00001AF4d00001001sv00001AF4sd00000002bc01sc00i00", ("alias", "virtio virtio_ring virtio_pci")),
        ("virtio:d00000002v00001AF4", ("alias", "virtio virtio_ring virtio_blk")),
        ("virtio:d00000001v00001AF4", ("beside", "virtio failover virtio_net")),
        ("xen:vbd", ("alias", "xen_blkfront")),
        ("pci:v00008086d00002922sv00001AF4sd00001100bc01sc06i01", ("late", "libata ahci")),
        ("pci:v00001274d00005000sv00001274sd00004C4Cbc04sc01i00", None),
        ("acpi:PNP0A03:", None),
    ],
)
def test_a_real_modalias_finds_its_module(
    tmp_path: Path, modalias: str, rule: tuple[str, str] | None
) -> None:
    text = modloader_table(module_set(image(tmp_path), VERSION))
    hits = [(kind, names) for kind, pattern, names in rules(text) if fnmatch.fnmatchcase(modalias, pattern)]
    assert hits == ([rule] if rule else [])


def test_the_table() -> None:
    modules = (
        Module("a", PurePosixPath("/a.ko"), ()),
        Module("b", PurePosixPath("/b.ko"), ("a",)),
        Module("ahci", PurePosixPath("/ahci.ko"), ()),
    )
    aliases = (("pci:b*", "b"), ("pci:x*", "ahci"), ("virtio:b", "b"))
    assert modloader_table(ModuleSet(modules, aliases)) == (
        "device devices/system/cpu\nbus pci\nbus xen\nbus acpi\nchild virtio\nchild scsi\n"
        "module a\nmodule b\nmodule ahci\n"
        "alias pci:b* a b\nlate pci:x* ahci\nalias virtio:b a b\n"
    )


def test_a_root_file_system_that_is_a_module_is_loaded_by_name() -> None:
    """Debian's generic kernel: no device has an alias for ext4."""
    names = ("crc16", "mbcache", "jbd2")
    modules = tuple(Module(name, PurePosixPath(name), ()) for name in names)
    ext4 = Module("ext4", PurePosixPath("ext4"), names)
    text = modloader_table(ModuleSet((*modules, ext4), ()))
    assert text.endswith("\nroot crc16 mbcache jbd2 ext4\n")


def test_a_default_queue_is_there_before_the_card(tmp_path: Path) -> None:
    """The kernel asks modprobe for it, which the initramfs has not."""
    settings = [KernelSetting("net/core/default_qdisc", value, False) for value in ("fq", "fq", "../x")]
    names = queues([*settings, KernelSetting("net/core/other", "cake", False)])
    assert names == ("sch_fq",)
    root = image(tmp_path, f"{DEP}kernel/net/sched/sch_fq.ko: kernel/lib/crc16.ko\n")
    table = rules(modloader_table(module_set(root, VERSION, (*WANTED, *names))))
    assert ("beside", "virtio:d00000001v*", "crc16 sch_fq virtio failover virtio_net") in table
    assert [names for _, _, names in table if "sch_fq" in names] == [
        "crc16 sch_fq virtio failover virtio_net"
    ]
