"""Init reads of ldconfig's cache what the build read of it, and notices what ldconfig(8) writes into it later."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

import pytest

from quickstart.initramfs.loadercache import cache_facts
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import FileKind, StartSet
from tests.unit.layouts import link, start_file

SECONDS = 60.0
SHELLS = (("dash",), ("busybox", "sh"))
LIBRARIES = "usr/lib/x86_64-linux-gnu"
FILES = StartSet(
    (
        start_file(f"/{LIBRARIES}/liba.so.1.2", FileKind.FILE, 0o100644),
        link(f"/{LIBRARIES}/liba.so.1", "liba.so.1.2"),
        start_file("/usr/bin/liba", FileKind.FILE, 0o100755),
    ),
    (),
)


def put_library(image: Path, place: str, soname: str) -> None:
    directory = image / place
    directory.mkdir(parents=True, exist_ok=True)
    assert shutil.which("gcc"), "apt-get install gcc"
    argv = ("gcc", "-shared", "-nostdlib", f"-Wl,-soname,{soname}", "-x", "c", "/dev/null")
    subprocess.run([*argv, "-o", str(directory / f"{soname}.2")], check=True, timeout=SECONDS)


def ldconfig(image: Path, *directories: str) -> None:
    """As the administrator of the image calls it. The user is root in a namespace of its own, for chroot(2)."""
    argv = ("unshare", "--user", "--map-root-user", "/sbin/ldconfig", "-r", str(image))
    subprocess.run([*argv, *directories], check=True, capture_output=True, timeout=SECONDS)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    image = tmp_path / "image"
    (image / "etc/ld.so.conf.d").mkdir(parents=True)
    (image / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    (image / "etc/ld.so.conf.d/a.conf").write_text(f"/opt/named\n/lib/x86_64-linux-gnu\n/{LIBRARIES}\n")
    (image / "usr/lib").mkdir(parents=True)
    (image / "sbin").mkdir()
    (image / "sbin/init").symlink_to("/lib/systemd/systemd")
    (image / "lib").symlink_to("usr/lib")
    put_library(image, LIBRARIES, "liba.so.1")
    put_library(image, "opt/named", "liba.so.1")
    ldconfig(image)
    assert b"/opt/named/liba.so.1" in (image / "etc/ld.so.cache").read_bytes()
    return image


def by_init(image: Path, packed: bytes, shell: tuple[str, ...]) -> bytes:
    script = str(resources.files("quickstart.initramfs").joinpath("init", "settings-files"))
    with tempfile.NamedTemporaryFile() as sums:
        sums.write(packed)
        sums.flush()
        argv = [*shell, script, str(image), sums.name]
        done = subprocess.run(argv, check=True, capture_output=True, timeout=SECONDS)
    assert done.stderr == b""
    return done.stdout


def facts(image: Path) -> bytes:
    return cache_facts(ImageRoot(image), FILES, ())


@pytest.mark.parametrize("shell", SHELLS)
def test_an_image_as_ldconfig_leaves_it(image: Path, shell: tuple[str, ...]) -> None:
    packed = facts(image)
    lines = packed.decode().splitlines()
    assert [line for line in lines if line.startswith(("LIBRARY", "CACHED"))] == [
        "LIBRARY  liba.so.1",
        "LIBRARY  liba.so.1.2",
    ]
    assert {"DIRECTORY  lib", f"DIRECTORY  {LIBRARIES}", "DIRECTORY  opt/named"} < set(lines)
    assert by_init(image, packed, shell) == packed


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("place", "soname", "directories", "cached"),
    [
        ("opt/x", "liba.so.1", ["/opt/x"], ["opt/x/liba.so.1"]),
        ("opt/with a  blank", "liba.so.1", ["/opt/with a  blank"], ["opt/with a  blank/liba.so.1"]),
        ("opt/x", "libb.so.1", ["/opt/x"], []),
        # It is there, but nobody has told the loader.
        ("opt/x", "liba.so.1", [], []),
        # The loader's own directories are compared by their files.
        (f"{LIBRARIES}/glibc-hwcaps/x86-64-v3", "liba.so.1", [], []),
        (LIBRARIES, "libb.so.1", [], []),
        (LIBRARIES, "liba.so.1", [f"/{LIBRARIES}"], []),
    ],
)
def test_what_ldconfig_adds_later(
    image: Path, place: str, soname: str, directories: list[str], cached: list[str], shell: tuple[str, ...]
) -> None:
    packed = facts(image)
    put_library(image, place, soname)
    ldconfig(image, *directories)
    assert by_init(image, packed, shell) == packed + b"".join(
        b"CACHED  %s\n" % each.encode() for each in cached
    )
    # The next build has it.
    again = facts(image)
    assert by_init(image, again, shell) == again


@pytest.mark.parametrize("shell", SHELLS)
def test_a_cache_that_is_not_there_and_one_that_is_a_link(image: Path, shell: tuple[str, ...]) -> None:
    packed = facts(image)
    (image / "etc/ld.so.cache").rename(image / "etc/elsewhere")
    assert (facts(image), by_init(image, packed, shell)) == (packed, packed)
    (image / "etc/ld.so.cache").symlink_to("elsewhere")
    assert by_init(image, packed, shell) == facts(image) == packed + b"CACHED  etc/ld.so.cache\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_odd_names(image: Path, shell: tuple[str, ...]) -> None:
    """Bytes that no terminal shows are as good as others; a cache may also be of no format at all."""
    odd = ("lib\udce9.so.1", " libx.so.1", "lib.*\\n[.so.1", "libn\n.so.1", "libt\t.so.1 ")
    names = [f"/{LIBRARIES}/{name}" for name in odd]
    files = StartSet(tuple(start_file(name, FileKind.FILE, 0o100644) for name in names), ())
    strings = [f"/opt/{name}".encode(errors="surrogateescape") for name in odd]
    (image / "etc/ld.so.cache").write_bytes(
        b"glibc\1\2@" + b"\0".join((*strings, b"x\n/srv/ libx.so.1", b"opt", b"/lib\xe9.so.1", b"/"))
    )
    packed = cache_facts(ImageRoot(image), files, ())
    assert packed.count(b"LIBRARY") == len(odd) - 1
    assert packed.count(b"CACHED  ") == len(odd) + 1
    assert by_init(image, packed, shell) == packed


@pytest.mark.parametrize("shell", SHELLS)
def test_nothing_is_read_where_no_library_is_packed(image: Path, shell: tuple[str, ...]) -> None:
    program = StartSet((start_file("/usr/bin/liba", FileKind.FILE, 0o100755),), ())
    assert cache_facts(ImageRoot(image), program, ()) == b""
    assert by_init(image, b"", shell) == b""
