"""An image full of hostile files: the start set, the archive, the artefact, and the tools that read them."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path, PurePosixPath
from uuid import UUID

import pytest

from quickstart.artefact import directory as artefacts
from quickstart.errors import StartSetError, UnsupportedUnitError
from quickstart.host import door
from quickstart.host.assets import assets
from quickstart.image.kerneloptions import words_of
from quickstart.initramfs.build import Recipe, write_initramfs
from quickstart.initramfs.facts import Watched, packed_facts
from quickstart.initramfs.programs import Programs
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.model import UnitCommand, UnitStart
from quickstart.model import (
    IMAGE_TIME_S,
    FileRules,
    Initramfs,
    Profile,
    ReferenceImage,
    StartSet,
)  # fmt: skip
from quickstart.model.rootdisk import RootDisk
from quickstart.model.superblock import Superblock
from quickstart.model.words import DiskFormat, KernelOptions, Target
from quickstart.pack.startset import compute
from quickstart.profile import load_profile
from tests.contract.ordinary import is_host_root
from tests.unit.elfbuilder import LD_SO, elf
from tests.unit.imagebuilder import trace

RULES = FileRules(include=(), exclude=(), data=("/var/**",), secrets=())
ODD = (
    *(
        b"new\nline",
        b"tab\t",
        b"'quotes\"`",
        b"back\\slash\\n",
        b"caf\xe9\xff",
        b"-n",
        b"$(touch pwned)",
        b"a b",
    ),
    *(b"\x1b[31m", b"%s%n", b"*", b"n" * 255),
)
NAMES = [os.fsdecode(name) for name in ODD]
UNIT = UnitStart(
    unit="app.service",
    type="exec",
    pid_file=None,
    start_pre=(),
    start=UnitCommand("/usr/bin/app", ("/usr/bin/app", "--")),
)
GIB = 1 << 30


def run(*argv: str | bytes | Path, stdin: bytes = b"", cwd: Path | None = None, status: int = 0) -> bytes:
    tool = shutil.which(os.fsdecode(argv[0]))
    if tool is None:
        pytest.fail(f"{argv[0]!r} is not installed: apt-get install {argv[0]!r}")
    done = subprocess.run(
        [tool, *argv[1:]], input=stdin, capture_output=True, cwd=cwd, timeout=120, check=False
    )
    assert done.returncode == status, done.stderr.decode(errors="replace")
    return done.stdout


@pytest.fixture
def image(tmp_path: Path) -> ImageRoot:
    """What every build needs of an image, a program, and odd names as files, links, libraries and directories."""
    root = ImageRoot(tmp_path / "image")
    for name in ("usr/bin", "usr/lib", "etc", "boot", "lib64", "lib/modules/1", "opt"):
        (root.base / name).mkdir(parents=True)
    (root.base / "lib64/ld-linux-x86-64.so.2").write_bytes(elf())
    (root.base / "lib64/ld-linux-x86-64.so.2").chmod(0o755)
    (root.base / "usr/bin/app").write_bytes(elf(interpreter=LD_SO))
    (root.base / "usr/bin/app").chmod(0o755)
    (root.base / "etc/fstab").write_text("UUID=1 / ext4 defaults 0 1\n")
    for name in ("dep", "alias"):
        (root.base / f"lib/modules/1/modules.{name}").touch()
    built_in = "".join(f"k/{name}.ko\n" for name in ("virtio_pci", "virtio_blk", "virtio_net", "ext4"))
    (root.base / "lib/modules/1/modules.builtin").write_text(built_in)
    for number, name in enumerate(NAMES):
        (root.base / "opt" / name).write_text(f"content {number}")
        (root.base / "etc" / name).symlink_to(f"../opt/{name}")
        (root.base / "usr" / name).mkdir()
        (root.base / "usr" / name / f"lib{number}.so").write_bytes(elf())
        (root.base / "usr/lib" / f"{name[:240]}.so").write_bytes(elf())
    return root


def everything(root: ImageRoot) -> list[str]:
    return [str(path) for path in sorted(root.below(PurePosixPath("/")), key=os.fsencode)]


@pytest.fixture(scope="module")
def profile() -> Profile:
    return load_profile(str(assets("profiles") / "nginx"))


def built(
    root: ImageRoot, found: StartSet, profile: Profile, target: Path, unit: UnitStart = UNIT
) -> Initramfs:
    reference = ReferenceImage(
        tree=root.base,
        image_hash="0",
        kernel=root.base / "etc/fstab",
        initrd=root.base / "etc/fstab",
        kernel_version="1",
        volume_uuid="0",
        volume_label="root",
        origin=("tar", "0"),
    )
    disk = RootDisk(
        path=root.base / "etc/fstab",
        size_bytes=27,
        superblock=Superblock(
            uuid="1-2", mount_count=0, write_time_s=0, clean=True, needs_recovery=False, has_errors=False
        ),
    )
    fstab = root.base / "etc/fstab"
    programs = Programs(
        **{**{each.name: fstab for each in fields(Programs)}, "busybox": door.tool_path("busybox")}
    )
    return write_initramfs(
        Recipe(
            profile=profile,
            reference=reference,
            disk=disk,
            interface="ens3",
            start_set=found,
            unit=unit,
            programs=programs,
        ),
        target,
    )


def split(archive: Initramfs) -> tuple[bytes, bytes]:
    whole = archive.path.read_bytes()
    return whole[: archive.part_a_bytes], whole[archive.part_a_bytes :]


@pytest.mark.parametrize(
    ("target", "mounts"), [("1:off", b"BUILD_MOUNTS=''\n"), ("1:0:0:0", b"BUILD_MOUNTS=0\n")]
)
def test_a_disabled_system_is_never_as_built(
    image: ImageRoot, profile: Profile, tmp_path: Path, target: str, mounts: bytes
) -> None:
    """Init looks for the link of `quickstart disable` only on a volume that differs from the build's."""
    (image.base / ".quickstart").symlink_to(target)
    found = compute([trace(*everything(image))], image, RULES)
    part_a, _ = split(built(image, found, profile, tmp_path / "initramfs.img"))
    assert mounts in part_a


# ---------------------------------------------------------------- names


def test_odd_names_come_out_of_the_archive_as_they_were(
    image: ImageRoot, profile: Profile, tmp_path: Path
) -> None:
    found = compute([trace(*everything(image))], image, RULES)
    part_a, part_b = split(built(image, found, profile, tmp_path / "initramfs.img"))
    for part in (part_a, part_b):
        assert b"fast/quickstart" in run("cpio", "-t", "--quiet", stdin=part)
    out = tmp_path / "out"
    out.mkdir()
    run("cpio", "-i", "--quiet", "--no-preserve-owner", stdin=part_b, cwd=out)
    for number, name in enumerate(NAMES):
        assert (out / "fast/opt" / name).read_text() == f"content {number}"
        assert os.fsencode((out / "fast/etc" / name).readlink()) == os.fsencode(f"../opt/{name}")
        assert (out / "fast/usr" / name / f"lib{number}.so").read_bytes() == elf()
    unpacked = {str(path)[len("/fast") :] for path in ImageRoot(out).below(PurePosixPath("/fast"))}
    assert unpacked >= set(everything(image)) - {"/pwned"}


def test_init_finds_odd_names_unchanged_with_busybox(image: ImageRoot) -> None:
    """Init's own comparison: BusyBox's xargs and stat on packed.names give packed.stat to the byte."""
    found = compute([trace(*everything(image))], image, RULES)
    names, facts, _ = packed_facts(found, (), Watched())
    assert any(b"\n" in name for name in names.split(b"\0"))
    seen = run(
        *("busybox", "xargs", "-0", "busybox", "stat", "-c", "%f %s %Y %Z %n"), stdin=names, cwd=image.base
    )
    # A volume's inodes have one fixed ctime; those of this host's tree cannot be set.
    on_volume = re.sub(rb"(?m)^([0-9a-f]+ \d+ \d+) \d+ ", rb"\1 %d " % IMAGE_TIME_S, seen)
    assert on_volume == facts


def test_the_library_path_has_odd_directories_as_they_are(
    image: ImageRoot, profile: Profile, tmp_path: Path
) -> None:
    (image.base / "usr/a:b").mkdir()
    (image.base / "usr/a:b/libcolon.so").write_bytes(elf())
    found = compute([trace(*everything(image))], image, RULES)
    part_a, _ = split(built(image, found, profile, tmp_path / "initramfs.img"))
    run("cpio", "-i", "--quiet", "--no-preserve-owner", "init", "fast*", stdin=part_a, cwd=tmp_path)
    records = (tmp_path / "fast/quickstart/unit").read_bytes().split(b"\n")
    (encoded,) = [each for each in records if each.startswith(b"base-environment LD_LIBRARY_PATH=")]
    said = re.sub(rb"\\x(..)", lambda match: bytes.fromhex(match[1].decode()), encoded.partition(b"=")[2])
    # ld.so splits at ":" and ";" and expands "$"; what has one cannot be said.
    expected = [b"/fast/usr/" + name for name in ODD if not set(b":;$") & set(name)]
    assert set(expected) <= set(said.split(b":"))
    assert b"a:b" not in said
    assert b"$(" not in said
    assert run("busybox", "sh", "-c", ". ./fast/quickstart/config", cwd=tmp_path) == b""
    assert not list(tmp_path.rglob("pwned"))


def odd_artefact(image: ImageRoot, profile: Profile, out: Path) -> None:
    """An artefact with all odd names of the image, as `build` writes it."""
    found = compute([trace(*everything(image))], image, RULES)
    out.mkdir()
    initramfs = built(image, found, profile, out / "initramfs.img")
    file = image.base / "etc/fstab"
    reference = ReferenceImage(
        tree=image.base,
        image_hash="0",
        kernel=file,
        initrd=file,
        kernel_version="1",
        volume_uuid="0",
        volume_label="root",
        origin=("tar", "0"),
    )
    disk = RootDisk(
        path=file,
        size_bytes=file.stat().st_size,
        superblock=Superblock(
            uuid=str(UUID(int=1)),
            mount_count=0,
            write_time_s=0,
            clean=True,
            needs_recovery=False,
            has_errors=False,
        ),
    )
    made = artefacts.Made(
        profile=profile,
        reference=reference,
        disk=disk,
        disk_format=DiskFormat.RAW,
        traces=(trace(),),
        start_set=found,
        initramfs=initramfs,
        build_key="0",
        mac="52:54:00:00:00:01",
        hand_off="keep",
        delivery="overlay",
        payload="cpio",
        kernel_options=KernelOptions.BOOT,
        target=Target.QEMU,
    )
    artefacts.write(out, made)


def test_odd_names_on_the_command_line(image: ImageRoot, profile: Profile, tmp_path: Path) -> None:
    """start-set.json, the argument and what is printed carry any name."""
    out = tmp_path / "out"
    odd_artefact(image, profile, out)
    said = json.loads((out / "manifest.json").read_text())
    words = words_of(KernelOptions.BOOT)
    assert said["kernel_options"] == "boot"
    assert said["cmdline"].split() == [*said["stock_cmdline"].split(), *words]
    main = ("-c", "from quickstart.cli.main import entry_point; entry_point()")
    for name in ODD:
        said = run(sys.executable, *main, "why", os.fsencode(out), b"/opt/" + name).decode()
        assert "trace: open by app" in said
        assert all(line.isprintable() for line in said.split("\n"))
    for verb in ("ls", "cat", "why"):
        for name in (b"caf\xe9\xff", b"new\nline"):
            assert run(sys.executable, *main, verb, os.fsencode(out), b"fast/opt/" + name)
    no_such = (b"/opt/\xff\x1b", os.fsencode(out))
    assert run(sys.executable, *main, "why", *reversed(no_such), status=2) == b""


# ---------------------------------------------------------------- kinds and sizes


def test_special_files_are_named_and_none_is_opened(
    image: ImageRoot, profile: Profile, tmp_path: Path
) -> None:
    special = image.base / "usr/special"
    special.mkdir()
    os.mkfifo(special / "fifo.so")
    if is_host_root():
        os.mknod(special / "null.so", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.mknod(special / "disk", stat.S_IFBLK | 0o666, os.makedev(7, 0))
    with socket.socket(socket.AF_UNIX) as server:
        place = Path.cwd()
        os.chdir(special)
        try:
            server.bind("socket")
        finally:
            os.chdir(place)
    (special / "link").symlink_to("fifo.so")
    named = [str(path) for path in image.below(PurePosixPath("/usr/special"))]
    found = compute([trace("/usr/bin/app", *named)], image, replace(RULES, include=("/usr/special",)))
    assert {str(each.path): each.rule for each in found.excluded} == {
        path: "kind: not a regular file" for path in named if not path.endswith("link")
    }
    built(image, found, profile, tmp_path / "initramfs.img")


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (5 * GIB, "/opt/large has 5368709120 bytes; an initramfs holds files of less than 4 GiB"),
        (4 * GIB, "/opt/large has 4294967296 bytes; an initramfs holds files of less than 4 GiB"),
        (3 * GIB, "the start set alone has 3072.0 MiB, the profile's budget is 24 MiB; largest: /opt/large"),
    ],
)
def test_a_sparse_file_that_is_too_large(
    image: ImageRoot, profile: Profile, tmp_path: Path, size: int, said: str
) -> None:
    (image.base / "opt/large").touch()
    os.truncate(image.base / "opt/large", size)
    found = compute([trace("/usr/bin/app", "/opt/large")], image, RULES)
    with pytest.raises(StartSetError) as caught:
        built(image, found, profile, tmp_path / "initramfs.img")
    assert said in caught.value.message
    assert "exclude" in (caught.value.hint or "")
    assert not (tmp_path / "initramfs.img").exists()


def test_names_of_one_program_are_one_file_in_the_archive(
    image: ImageRoot, profile: Profile, tmp_path: Path
) -> None:
    (image.base / "usr/bin/app1.0").hardlink_to(image.base / "usr/bin/app")
    found = compute([trace("/usr/bin/app1.0")], image, RULES)
    _, part_b = split(built(image, found, profile, tmp_path / "initramfs.img"))
    for number, tool in enumerate((("cpio", "--quiet"), ("busybox", "cpio"))):
        out = tmp_path / str(number)
        out.mkdir()
        run(*tool, "-i", stdin=part_b, cwd=out)
        first, second = out / "fast/usr/bin/app", out / "fast/usr/bin/app1.0"
        assert first.stat().st_ino == second.stat().st_ino
        assert b"/fast/lib64/ld.so\0" in second.read_bytes()


@contextmanager
def as_nobody() -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.mark.parametrize("hidden", ["opt", "usr/bin/app", "var/lib/dpkg/status", "etc/ld.so.conf"])
def test_files_that_cannot_be_read(image: ImageRoot, hidden: str) -> None:
    """Whoever builds without being allowed to is told what could not be read; dpkg's database is not needed."""
    rules = replace(RULES, secrets=("/usr/bin/app",))
    # Not below pytest's own directory, which nobody else may enter.
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        root = ImageRoot(Path(place) / "image")
        shutil.copytree(image.base, root.base, symlinks=True)
        path = root.base / hidden
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.chmod(0o000)
        with as_nobody():
            if hidden.startswith("var"):
                assert compute([trace("/usr/bin/app")], root, rules).regular_files
            else:
                with pytest.raises(StartSetError, match=f"{hidden}.* cannot be (read|looked up)"):
                    compute([trace("/usr/bin/app", "/opt/a b")], root, rules)
        path.chmod(0o755)


def test_a_module_that_init_would_load_is_forbidden(
    image: ImageRoot, profile: Profile, tmp_path: Path
) -> None:
    (image.base / "lib/modules/1/modules.dep").write_text("ata_piix.ko:\n")
    (image.base / "lib/modules/1/ata_piix.ko").write_bytes(elf())
    (image.base / "etc/modprobe.d").mkdir()
    (image.base / "etc/modprobe.d/own.conf").write_text("blacklist ata-piix\n")
    with pytest.raises(UnsupportedUnitError, match=r"/etc/modprobe\.d/own\.conf has `blacklist ata-piix"):
        built(image, StartSet((), ()), profile, tmp_path / "initramfs.img")
