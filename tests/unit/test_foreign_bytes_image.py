"""Bytes of an image, its units and tables: parsing takes time and memory in proportion to their length, and
ends in a result or a typed error.

Each input here once took minutes or gigabytes or ended in a traceback, or is similar to one that did.
"""

from __future__ import annotations

import lzma
import struct
import zlib
from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import (
    BadInputError,
    StartSetError,
    UnsupportedUnitError,
)
from quickstart.initramfs.modules import Module, module_data, parse_dependencies
from quickstart.inspect import dpkg
from quickstart.inspect.elf import closure
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.ldconf import library_directories
from quickstart.inspect.unit.callfilter import call_filter
from quickstart.inspect.unit.callgroups import call_groups
from quickstart.inspect.unit.read import read_unit
from quickstart.inspect.unit.source import Source, Systemd
from quickstart.inspect.unit.values import BadValueError, cpu_list, integer, limit, size_bytes, span_us
from quickstart.inspect.unit.words import Names, split_words
from quickstart.reference.fstab import root_volume
from quickstart.reference.rootfs import installed_packages
from tests.unit.elfbuilder import LD_SO, elf
from tests.unit.hostile import DIGITS, bounded

# ---------------------------------------------------------------- units


@pytest.mark.parametrize(
    "text", ["0-99999999999", f"0-{DIGITS}", DIGITS, "1024", "5-4", "1-", "-1", "0-1-2", ""]
)
def test_a_list_of_cpus_that_is_none(text: str) -> None:
    with bounded(), pytest.raises(BadValueError):
        cpu_list([text])


def test_a_list_of_cpus() -> None:
    with bounded():
        assert len(cpu_list(["0-1023 " * 500_000])) == 1024
    assert cpu_list(["1-3,5", "1023 0"]) == ("0", "1", "2", "3", "5", "1023")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            (name, digits)
            for name in ("CPU", "NOFILE", "RTTIME", "NICE", "AS")
            for digits in ("9" * 400, DIGITS)
        ),
        ("NICE", "+" + DIGITS),
        ("NOFILE", "٣"),
        ("AS", "99999999999999999999E"),
    ],
)
def test_a_limit_that_cannot_be_counted(name: str, value: str) -> None:
    with bounded(), pytest.raises(BadValueError):
        limit(name, value)


@pytest.mark.parametrize(
    "value", ["9" * 400, DIGITS, "1" * 20 + "d", "1." + DIGITS, "1" * 19 + " " + "1" * 19]
)
def test_a_time_that_cannot_be_counted(value: str) -> None:
    with bounded(), pytest.raises(BadValueError):
        span_us(value)
    with bounded(), pytest.raises(BadValueError):
        size_bytes(DIGITS)
    with bounded(), pytest.raises(BadValueError):
        integer(DIGITS, 0, 9)


def app(base: Path, *lines: str, name: str = "app.service") -> ImageRoot:
    path = base / "etc/systemd/system" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["[Service]", "Type=exec", "ExecStart=/bin/app", *lines, ""]))
    return ImageRoot(base)


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (["TimeoutStartSec=" + "9" * 400], "TimeoutStartSec"),
        (["LimitCPU=" + "9" * 400], "LimitCPU"),
        (["CPUAffinity=0-99999999999"], "CPUAffinity"),
        (["Nice=" + DIGITS], "Nice"),
        (["WatchdogSec=" + DIGITS], "WatchdogSec"),
        (["Slice=" + "a-" * 200_000 + "b.slice"], "Slice"),
        (["ExecStartPre=" + "/bin/true ; " * 50_000], "256 commands"),
        (["ExecStartPre=/bin/true"] * 1000, "256 lines of ExecStartPre"),
        (["ExecStartPre=/bin/x " + "%n" * 500_000], "too many specifiers"),
        (["Environment=" + "a=b " * 600_000], "more than 2097152 characters"),
    ],
)
def test_a_unit_that_asks_for_too_much(tmp_path: Path, lines: list[str], what: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/group").write_text("root:x:0:\n" * 200_000)
    with bounded(), pytest.raises(UnsupportedUnitError, match=what):
        read_unit(app(tmp_path, *lines), "app.service")


@pytest.mark.parametrize(
    ("filters", "what"),
    [
        ("@a", ""),
        ("~@c", ""),
        (f"~read:{DIGITS}", "neither `kill` nor an error"),
        ("~" + "@b " * 5000, "4096 words"),
    ],
)
def test_groups_of_calls_that_have_each_other(filters: str, what: str) -> None:
    groups = {"@default": ("read",), "@a": ("@a", "@b", "write"), "@b": ("@a", "@b") * 50 + ("open",)}
    groups |= {f"@{chr(letter)}": (f"@{chr(letter + 1)}",) * 50 for letter in range(ord("c"), ord("z"))}
    source = Source("app.service", (("SystemCallFilter", filters),), {}, Systemd(groups))
    with bounded():
        if what:
            with pytest.raises(UnsupportedUnitError, match=what):
                call_filter(source)
        elif filters == "@a":
            found = call_filter(source)
            assert found is not None and set(found.named) == {"read", "write", "open"}
        else:
            assert call_filter(source) is None


def test_sockets_without_end(tmp_path: Path) -> None:
    lines = (
        "Wants=" + " ".join(f"s{n}.socket" for n in range(first, first + 10_000))
        for first in range(0, 100_000, 10_000)
    )
    root = app(tmp_path, "[Unit]", *lines)
    with bounded(), pytest.raises(UnsupportedUnitError, match="100000 sockets are enabled or wanted"):
        read_unit(root, "app.service")


def test_a_library_whose_groups_never_end(tmp_path: Path) -> None:
    library = tmp_path / "usr/lib/systemd/libsystemd-shared-252.so"
    library.parent.mkdir(parents=True)
    ident = b"\x7fELF\x02\x01" + bytes(26)
    for content in (
        ident + struct.pack("<Q", 2**64 - 1) + bytes(14) + struct.pack("<HH", 56, 65535),
        ident + struct.pack("<Q", 2**64 - 1) + bytes(14) + struct.pack("<HH", 56, 1),
    ):
        library.write_bytes(content)
        with bounded():
            assert call_groups(ImageRoot(tmp_path)) == {}
    library.unlink()
    library.symlink_to("/dev/zero")
    with bounded():
        assert call_groups(ImageRoot(tmp_path)) == {}


def test_groups_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/group").write_text("".join(f"g{n}:x:{n}:\n" for n in range(100_000)))
    root = app(tmp_path, "SupplementaryGroups=" + " ".join(f"g{n}" for n in range(20_000)))
    with bounded():
        read_unit(root, "app.service")


def test_words_of_nothing_but_escapes() -> None:
    with bounded():
        assert split_words("app.service", r"\x41" * 150_000) == ["A" * 150_000]


def test_an_error_does_not_repeat_a_whole_line() -> None:
    with pytest.raises(UnsupportedUnitError) as caught:
        split_words("app.service", '"' + "x" * 100_000)
    assert len(caught.value.message) < 400
    with pytest.raises(UnsupportedUnitError) as caught:
        Names("app.service").expand("%y" + "x" * 100_000)
    assert len(caught.value.message) < 400


# ---------------------------------------------------------------- dpkg, fstab, modules, ld.so


def test_packages_that_provide_nothing_but_brackets() -> None:
    status = "Package: a\nStatus: install ok installed\nProvides: b (= 1), c, " + "(" * 300_000 + "\n\n"
    with bounded():
        assert set(installed_packages(status)) == {"a", "b", "c"}


def status(root: Path, text: str) -> ImageRoot:
    place = root / "var/lib/dpkg/info"
    place.mkdir(parents=True, exist_ok=True)
    (place.parent / "status").write_text(text)
    return ImageRoot(root)


def test_a_field_of_dpkg_of_nothing_but_blanks(tmp_path: Path) -> None:
    fields = "Package: a\nStatus: install ok installed\nArchitecture: all\n"
    root = status(tmp_path, fields + "Version: 1 \t\n\n" + fields + "Version: x" + " " * 400_000 + "y\n\n")
    with bounded():
        assert dict(dpkg.installed(root)) == {"a": "1"}


def test_a_list_of_dpkg_that_says_the_same_name_again_and_again(tmp_path: Path) -> None:
    root = status(tmp_path, "Package: a\nStatus: install ok installed\nArchitecture: all\nVersion: 1\n\n")
    lines = "/bin\n/bin/x\n/bin/y\n/bin/y/z\n" * 50_000
    (tmp_path / "var/lib/dpkg/info/a.list").write_text(lines)
    for name in ("info/../diversions",):
        (tmp_path / "var/lib/dpkg" / name).write_text("")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/x").touch()
    asked = [PurePosixPath("/bin/x"), PurePosixPath("/bin/y"), PurePosixPath("/bin")]
    with bounded():
        assert set(dpkg.owners(root, asked)) == {PurePosixPath("/bin/x")}


def test_an_fstab_of_nothing_but_roots() -> None:
    with bounded(), pytest.raises(BadInputError, match="finds the root volume neither"):
        root_volume("UUID=x / ext4 defaults\n" * 40_000)
    with bounded(), pytest.raises(BadInputError, match="more than 1048576 characters"):
        root_volume("#" * (1 << 21))
    with pytest.raises(BadInputError) as caught:
        root_volume("/dev/" + "x" * 100_000 + " /mnt ext4 defaults\n")
    assert len(caught.value.message) < 400


def test_a_module_that_requires_all() -> None:
    with bounded(), pytest.raises(StartSetError, match="requires 100000 others"):
        parse_dependencies("a/ext4.ko: " + "a/b.ko " * 100_000)
    with pytest.raises(StartSetError) as caught:
        parse_dependencies("-.-" * 100_000 + ":\n")
    assert len(caught.value.message) < 400


def test_a_module_whose_reader_needs_much_memory(tmp_path: Path) -> None:
    """An xz stream whose header asks for a dictionary of 4 GiB less a byte (xz-file-format.txt, 5.3.1)."""
    data = bytearray(lzma.compress(b"x" * 100, check=lzma.CHECK_NONE))
    header = bytearray(data[12:24])
    header[4] = 40
    header[8:12] = struct.pack("<I", zlib.crc32(header[:8]))
    data[12:24] = header
    (tmp_path / "a.ko.xz").write_bytes(data)
    with (
        bounded(),
        pytest.raises(StartSetError, match=r"a\.ko\.xz cannot be decompressed: Memory usage limit"),
    ):
        module_data(ImageRoot(tmp_path), Module("a", PurePosixPath("/a.ko.xz"), ()))


def test_patterns_of_ld_so_that_go_up_and_down(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    for number in range(42):
        (tmp_path / f"d{number}").mkdir()
    (tmp_path / "etc/ld.so.conf").write_text("include /" + "*/../" * 12 + "*.conf\n")
    with bounded():
        assert PurePosixPath("/d0") not in library_directories(ImageRoot(tmp_path))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("include a*b\n" * 5000, "1024 patterns"),
        ("include /x\n" * 20_000, "16384 files to include"),
        ("".join(f"/{n}\n" for n in range(70_000)), "4096 directories"),
    ],
)
def test_an_ld_so_conf_that_asks_for_too_much(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.conf").write_text(text)
    with bounded(), pytest.raises(StartSetError, match=what):
        library_directories(ImageRoot(tmp_path))


def test_a_pattern_longer_than_a_path(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with bounded():
        assert ImageRoot(tmp_path).glob(PurePosixPath("/" + "[a-" * 60_000)) == ()


def test_a_pattern_that_goes_to_and_fro(tmp_path: Path) -> None:
    """Each stage would double the ways."""
    for name in ("d/a/f", "d/b/f"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "d/up").symlink_to("../d")
    root = ImageRoot(tmp_path)
    with bounded():
        found = root.glob(PurePosixPath("/d" + "/*/.." * 40 + "/*"))
        assert [path.name for path in found] == ["a", "b", "up", "d"]
        assert [path.parts[-3:] for path in root.glob(PurePosixPath("/d/*/*/f"))] == [
            ("up", "a", "f"),
            ("up", "b", "f"),
        ]


def test_libraries_with_long_search_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is searched in the directories of all that loaded it, and each is a start."""
    (tmp_path / "lib").mkdir()
    path = ":".join(f"/{number}$LIB$PLATFORM" for number in range(60))
    for number in range(60):
        needed = (f"l{number + 1}.so",) if number < 59 else ()
        (tmp_path / f"lib/l{number}.so").write_bytes(elf(needed=needed, soname=f"l{number}.so", rpath=path))
    starts = [PurePosixPath(f"/lib/l{number}.so") for number in range(60)]
    with bounded():
        assert len(closure(ImageRoot(tmp_path), starts)) == 59
    for number in range(60):
        (tmp_path / f"{number}lib/x86_64-linux-gnuhaswell").mkdir(parents=True)
    monkeypatch.setattr("quickstart.inspect.elf._MOST_LOOKUPS", 10_000)
    with bounded(), pytest.raises(StartSetError, match="more than 10000 look-ups"):
        closure(ImageRoot(tmp_path), starts)


def test_links_that_lead_to_and_fro(tmp_path: Path) -> None:
    target = "a/../" * 800 + "a"
    (tmp_path / "a").mkdir()
    for number in range(39):
        (tmp_path / f"l{number}").symlink_to(f"{target}/../l{number + 1}")
    with bounded(), pytest.raises(StartSetError, match="more than 512 components"):
        ImageRoot(tmp_path).resolve(PurePosixPath("/l0"))


@pytest.mark.parametrize("name", ["/a\0b", "/\ud800"])
def test_a_name_that_no_file_has(tmp_path: Path, name: str) -> None:
    root, path = ImageRoot(tmp_path), PurePosixPath(name)
    assert root.resolve(path).canonical is None
    assert root.link_target(path) is None
    with pytest.raises(StartSetError, match="is no file's name"):
        root.read_text(path)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (elf(["x"] * 3000, interpreter=LD_SO), "it needs 3000 libraries"),
        (
            elf(["x"], interpreter=LD_SO, rpath=":".join(f"/{n}" for n in range(5000))),
            "5000 directories to search",
        ),
    ],
)
def test_a_program_that_looks_everywhere(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "app").write_bytes(content)
    with bounded(), pytest.raises(StartSetError, match=what):
        closure(ImageRoot(tmp_path), [PurePosixPath("/app")])
