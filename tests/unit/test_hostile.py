"""Malicious images: each ends in a correct result or in an error of ours that names the object, without a hang or much memory."""

from __future__ import annotations

import json
import lzma
import os
import sys
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.artefact import inside
from quickstart.artefact.directory import start_set_document
from quickstart.errors import StartSetError, UnsupportedUnitError
from quickstart.initramfs.modules import Module, module_data, module_set, parse_aliases
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.ldconf import library_directories
from quickstart.inspect.unit import read_unit
from quickstart.model import Op, StartSet
from quickstart.model.reasons import Reason, ReasonSource
from quickstart.parse.printable import shown
from tests.unit.elfbuilder import (
    LD_SO,
    MULTIARCH,
    elf,
)
from tests.unit.hostile import ANY_FIXTURE, GIB, little_memory
from tests.unit.imagebuilder import Image, P, excluded, files, reasons
from tests.unit.startfiles import start_file
from tests.unit.test_inside import artefact

# ---------------------------------------------------------------- ld.so.conf


def conf(root: Path, name: str, text: str | bytes) -> None:
    path = root / "etc" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def test_includes_in_a_loop_and_a_chain_of_any_length(tmp_path: Path) -> None:
    conf(tmp_path, "ld.so.conf", "include ld.so.conf\ninclude 0\n/first\n")
    # More than Python's own calls could be nested.
    chain = sys.getrecursionlimit() + 200
    for number in range(chain):
        conf(tmp_path, str(number), f"/d{number}\ninclude {number + 1} 0 ld.so.conf\n")
    found = [str(path) for path in library_directories(ImageRoot(tmp_path))]
    assert found[: chain + 2] == [*(f"/d{number}" for number in range(chain)), "/first", found[chain + 1]]


@given(st.binary(max_size=200))
@ANY_FIXTURE
def test_garbage_in_ld_so_conf(tmp_path: Path, noise: bytes) -> None:
    conf(tmp_path, "ld.so.conf", b"/good\n/bad\0\xff include\ninclude [z-a]* \0 " + noise + b"\n/last\n")
    try:
        found = library_directories(ImageRoot(tmp_path))
    except StartSetError as error:
        # Of an include that is a directory.
        assert error.message.startswith("/")
    else:
        assert {PurePosixPath("/good"), PurePosixPath("/last")} <= set(found)


def test_ld_so_conf_by_links_that_loop(tmp_path: Path) -> None:
    conf(tmp_path, "ld.so.conf", "include loop/*.conf\n")
    for name, target in (("loop", "pair"), ("pair", "loop")):
        (tmp_path / "etc" / name).symlink_to(target)
    with pytest.raises(StartSetError, match="/etc/loop meets more than 40 symbolic links"):
        library_directories(ImageRoot(tmp_path))


@pytest.mark.parametrize("kind", ["fifo", "directory", "huge"])
def test_a_configuration_that_is_no_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "etc/ld.so.conf"
    path.parent.mkdir()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, 5 * GIB)
    with (
        little_memory(),
        pytest.raises(StartSetError, match=r"^/etc/ld\.so\.conf (is not a regular|has 5368709120)"),
    ):
        library_directories(ImageRoot(tmp_path))


# ---------------------------------------------------------------- the start set


@pytest.fixture
def image(tmp_path: Path) -> Image:
    image = Image(tmp_path / "image")
    image.file("/usr/bin/app", elf(["liba.so"], interpreter=LD_SO), 0o755)
    image.file(f"{MULTIARCH}/liba.so", elf())
    image.file("/lib64/ld-linux-x86-64.so.2", elf(), 0o755)
    return image


@pytest.mark.parametrize(
    ("content", "interpreter"),
    [
        (b"#!/bin/sh " + b"x" * 10000 + b"\n", "/bin/sh"),
        (b"#!/bin/sh", "/bin/sh"),
        (b"#! \t/bin/sh\t-e", "/bin/sh"),
        (b"#!/bin/" + b"s" * 10000, None),
        # What is left of a name after 256 bytes is not run, even where it exists.
        (b"#!" + b"/" * 248 + b"bin/sh" + b"ell\n", None),
        (b"#!/bin/sh\0junk", "/bin/sh"),
        (b"#!", None),
        (b"#!\n/bin/sh", None),
        (b"#!\xff\xfe\n", None),
        (b"#!/\n", None),
        (b"#!/usr\n", None),
    ],
)
def test_the_first_line_of_a_script(image: Image, content: bytes, interpreter: str | None) -> None:
    image.file("/bin/sh", "shell", 0o755)
    image.file("/opt/script", content, 0o755)
    assert set(files(image.compute("/opt/script"))) == {
        "/opt/script",
        *([interpreter] if interpreter else []),
    }


def test_a_script_that_is_its_own_interpreter(image: Image) -> None:
    image.file("/opt/self", "#!/opt/self\n", 0o755)
    found = image.compute("/opt/self")
    assert files(found) == ["/opt/self"]
    assert ("script", "#! of /opt/self") in reasons(found, "/opt/self")


@pytest.mark.parametrize("links", [{"a": "a"}, {"a": "b", "b": "a"}, {"a": "d/a", "d": "."}])
def test_links_in_a_circle(image: Image, links: dict[str, str]) -> None:
    for name, target in links.items():
        image.link(f"/loop/{name}", target)
    with pytest.raises(StartSetError, match="/loop/a meets more than 40 symbolic links"):
        image.compute("/loop/a")


def test_special_files_are_kept_out_and_none_is_waited_for(image: Image) -> None:
    os.mkfifo(image.base / "usr/fifo")
    image.link("/usr/link", "fifo")
    image.file("/usr/empty", "")
    found = image.compute("/usr/fifo", (Op.EXEC, "/usr/link"), "/usr/empty", "/usr", "/usr/empty/below")
    assert excluded(found) == {"/usr/fifo": "kind: not a regular file"}
    assert files(found) == ["/usr/empty"]


def test_a_path_longer_than_any(image: Image) -> None:
    assert image.compute("/usr" + "/." * 10 + "/.." * 3000 + "/usr/bin/app").files == ()


def test_a_tree_deeper_than_any_path(image: Image) -> None:
    directory = os.open(image.base, os.O_RDONLY)
    for _ in range(40):
        os.mkdir("d" * 200, dir_fd=directory)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(directory)
    (image.base / "usr/bin/other").hardlink_to(image.base / "usr/bin/app")
    assert "/usr/bin/other" in files(image.compute((Op.EXEC, "/usr/bin/app")))


ODD_NAMES = [os.fsdecode(name) for name in (
    b"new\nline", b"tab\t", b"'quote\"", b"back\\slash", b"\xff\xfe", b"-rf", b"$(reboot)", b" ", b"\x1b[31m", b"n" * 255,
)]  # fmt: skip


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_name_survives_start_set_json_and_why(image: Image, tmp_path: Path, name: str) -> None:
    image.file(f"/opt/{name}", "x")
    found = image.compute(f"/opt/{name}")
    made = artefact(tmp_path / "out")
    text = json.dumps(start_set_document(found, []), ensure_ascii=True)
    (tmp_path / "out/start-set.json").write_bytes(text.encode("ascii"))
    assert inside.why(made.directory, f"/opt/{name}").reasons == ("trace: open by app (line 1)",)
    printed = shown(f"/opt/{name}")
    assert printed.isprintable()
    assert printed.encode("utf-8")


def test_what_a_terminal_is_shown() -> None:
    assert shown("a\nb\x1b[1m\udcff é") == r"a\nb\x1b[1m\xff é"
    assert shown("a\nb\t", keep="\n\t") == "a\nb\t"


def test_the_size_of_a_set_counts_a_content_once() -> None:
    file = start_file("/a", size_bytes=7, reasons=(Reason(ReasonSource.TRACE, ""),))
    other = start_file("/b", size_bytes=7, hard_link_to=P("/a"))
    assert StartSet((file, other), ()).size_bytes == 7


# ---------------------------------------------------------------- units and modules


def unit(base: Path, text: bytes) -> ImageRoot:
    path = base / "etc/systemd/system/app.service"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"# caf\xe9\n[Service]\nType=exec\n" + text + b"\n")
    return ImageRoot(base)


def test_words_of_a_unit_stay_words(tmp_path: Path) -> None:
    line = r"""ExecStart=/bin/app ';' rm '`id`' -- "a\nb" \\ | & > ../x"""
    start = read_unit(unit(tmp_path, line.encode()), "app.service").start.words
    assert start == ("/bin/app", ";", "rm", "`id`", "--", "a\nb", "\\", "|", "&", ">", "../x")


def test_a_long_command(tmp_path: Path) -> None:
    # systemd takes lines of less than 1 MiB (LONG_LINE_MAX).
    line = b"ExecStart=/bin/app ".ljust((1 << 20) - 1, b"x")
    found = read_unit(unit(tmp_path, line), "app.service")
    assert len(found.start.words[1]) == (1 << 20) - 1 - len("ExecStart=/bin/app ")
    with pytest.raises(UnsupportedUnitError, match="a line of more than 1048576 bytes"):
        read_unit(unit(tmp_path, line + b"x"), "app.service")


def test_a_nul_ends_a_line_as_systemd_has_it(tmp_path: Path) -> None:
    start = read_unit(unit(tmp_path, b"ExecStart=/bin/app \0-x"), "app.service").start.words
    assert start == ("/bin/app",)


@pytest.mark.parametrize(
    ("byte", "refused"),
    [
        (
            b"\xff",
            r"app\.service cannot be started early: its unit file, .* has bytes that are no UTF-8 text",
        ),
        (b"\x1b", r"app\.service: 'ExecStart' has bytes that are no UTF-8 text"),
    ],
)
def test_a_unit_with_bytes_that_are_no_text(tmp_path: Path, byte: bytes, refused: str) -> None:
    with pytest.raises(UnsupportedUnitError, match=refused):
        read_unit(unit(tmp_path, b"ExecStart=/bin/app " + byte), "app.service")


def test_modules_that_lie(tmp_path: Path) -> None:
    base = tmp_path / "lib/modules/1"
    base.mkdir(parents=True)
    needed = "kernel/virtio_pci.ko: kernel/gone.ko\n"
    for name, text in (
        ("dep", needed),
        ("builtin", "a/virtio_blk.ko\na/virtio_net.ko\na/ext4.ko\n"),
        ("alias", ""),
    ):
        (base / f"modules.{name}").write_text(text)
    with pytest.raises(StartSetError, match=r"modules\.dep has no gone, which virtio_pci requires"):
        module_set(ImageRoot(tmp_path), "1")
    text = "alias\nalias pci:a\nalias pci:* *) virtio_pci\nalias pci:v*d[0-9] virtio_pci\n"
    assert parse_aliases(text, ["virtio_pci"]) == (("pci:v*d[0-9]", "virtio_pci"),)


def test_a_module_that_is_a_bomb_a_link_to_the_host_or_cut(tmp_path: Path) -> None:
    root = ImageRoot(tmp_path / "image")
    root.base.mkdir()
    (tmp_path / "secret.ko").write_text("the host's")
    (root.base / "out.ko").symlink_to(tmp_path / "secret.ko")
    (root.base / "cut.ko.xz").write_bytes(lzma.compress(b"module")[:-4])
    (root.base / "no.ko.xz").write_bytes(b"no")
    os.mkfifo(root.base / "fifo.ko")
    for name, what in (
        ("out.ko", "has no /out.ko"),
        ("cut.ko.xz", "/cut.ko.xz is cut"),
        ("no.ko.xz", "/no.ko.xz "),
        ("fifo.ko", "/fifo.ko is not a regular file"),
    ):
        with pytest.raises(StartSetError, match=what):
            module_data(root, Module("m", PurePosixPath("/", name), ()))
