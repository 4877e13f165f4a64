"""Bytes from guests, images and strangers: parsing takes time and memory in proportion to their length, and
ends in a result or a typed error.

Each input here once took minutes or gigabytes or ended in a traceback, or is similar to one that did.
"""

from __future__ import annotations

import contextlib
import json
import lzma
import socket
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import (
    BadInputError,
    GuestError,
    MatrixError,
    ProfileError,
    ResultsError,
    StartSetError,
    StorageModelError,
    TraceError,
    UnsupportedUnitError,
    VolumeError,
)
from quickstart.initramfs.modules import Module, module_data, parse_dependencies
from quickstart.inspect import dpkg
from quickstart.inspect.elf import closure
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.ldconf import library_directories
from quickstart.inspect.unit.callfilter import call_filter
from quickstart.inspect.unit.callgroups import call_groups
from quickstart.inspect.unit.read import read_unit
from quickstart.inspect.unit.source import Source
from quickstart.inspect.unit.values import BadValueError, cpu_list, integer, limit, size_bytes, span_us
from quickstart.inspect.unit.words import Names, split_words
from quickstart.measure.counting import disk_reads, iowait_ns
from quickstart.measure.matrix import parse_matrix
from quickstart.model import Readiness
from quickstart.model.words import ReadyKind
from quickstart.newprofile.look import failure, parse_look
from quickstart.parse.faults import MAX_LINES
from quickstart.profile import load_profile, parse_profile
from quickstart.reference.fstab import root_volume
from quickstart.reference.rootfs import installed_packages
from quickstart.report import document
from quickstart.trace.collect import collect
from quickstart.trace.load import load_trace, parse_maps
from quickstart.trace.strace import read_calls, unescape
from quickstart.verify import guesttrace
from quickstart.volume.nbd import Connection
from quickstart.volume.storage import parse_model
from tests.unit.elfbuilder import LD_SO, elf
from tests.unit.hostile import bounded
from tests.unit.stracelog import items, log, paths

DIGITS = "9" * 5000


# ---------------------------------------------------------------- strace


@pytest.mark.parametrize(
    "row",
    [
        '7 rename("a", ' + "1<" * 100_000 + ") = 0",
        '7 rename("a", ' + '"\\' * 100_000 + ") = 0",
        '7 symlink("a", ' + '"\\' * 100_000 + ") = 0",
        "7 mmap(NULL, 8192" + ", PROT_EXEC" * 40_000 + ") = 0x7f0000000000",
        "7 mmap(NULL, 8192, " + "PROT_EXEC|" * 40_000 + ") = 0x7f0000000000",
        "7 clone3({flags=" + "CLONE_INTO_CGROUP" * 40_000 + "}) = 9",
    ],
)
def test_a_line_that_patterns_could_be_lost_in(row: str) -> None:
    with bounded(), contextlib.suppress(TraceError):
        collect(log('7 execve("/sbin/init", [], 0x7) = 0', row, '7 access("/x", F_OK) = 0'), "app.service")


def test_a_path_of_nothing_but_dots() -> None:
    rows = ['7 chroot("/r") = 0'] + ['7 access("' + "/../" * 60_000 + 'x", F_OK) = 0'] * 20
    with bounded():
        assert paths(*rows)[1:] == ["/r/x"] * 20


def test_a_path_longer_than_a_path_can_be_names_nothing() -> None:
    assert paths('7 access("/' + "x" * 4096 + '", F_OK) = 0', '7 access("/y", F_OK) = 0') == ["/y"]


@pytest.mark.parametrize("digits", ["1" * 5000, "1" * 11])
def test_process_numbers_of_any_length(digits: str) -> None:
    rows = (f'{digits} access("/x", F_OK) = 0',)
    with bounded(), pytest.raises(TraceError, match=r"line 1 of the strace log is not strace's"):
        items(*rows)
    forks = (f"7 clone(flags=0) = {digits}", '7 access("/x", F_OK) = 0')
    with bounded(), contextlib.suppress(TraceError):
        items(*forks)


def test_a_backslash_before_a_byte_that_is_no_text() -> None:
    assert paths(b'7 access("/\\\xff", F_OK) = 0') == ["/\udcff"]
    assert unescape("\\\udcff\\") == "\udcff\\"


def test_a_line_without_end_is_not_read_whole() -> None:
    with bounded(), pytest.raises(TraceError, match="line 2 of the strace log has more than 4194304 bytes"):
        list(read_calls([*log('7 access("/x", F_OK) = 0'), *log("7 access(" + "x" * (4 << 20) + ") = 0")]))


def test_a_call_resumed_for_ever() -> None:
    rows = ["7 read(1 <unfinished ...>"] + [f"7 <... read resumed>{'x' * 50} <unfinished ...>"] * 100_000
    with bounded(), pytest.raises(TraceError, match="line 9 of the strace log is not strace's"):
        items(*rows)


def test_forks_held_back_as_deep_as_the_log_is_long() -> None:
    rows = ['1 access("/x", F_OK) = 0']
    rows += [f"{pid} clone(flags=0) = {pid + 1}" for pid in range(10, 30_000)]
    rows += ['30000 access("/last", F_OK) = 0', "1 clone(flags=0) = 10"]
    with bounded():
        assert paths(*rows) == ["/x", "/last"]


def test_descriptors_and_binds_are_not_copied_for_each_process() -> None:
    rows = [f'1 openat(AT_FDCWD</>, "/f{n}", O_RDONLY) = {n}</f{n}>' for n in range(10_000)]
    rows += [f'1 mount("/s{n}", "/t{n}", NULL, MS_BIND, NULL) = 0' for n in range(10_000)]
    for pid in range(2, 10_000):
        rows += [f"1 clone(flags=0) = {pid}", f'{pid} openat(AT_FDCWD</>, "/g", O_RDONLY) = 9</g>']
    rows += ['9999 access("/proc/self/fd/9", F_OK) = 0', '9999 access("/proc/self/fd/8", F_OK) = 0']
    rows += ['9999 chroot("/t9999") = 0', '9999 access("/x", F_OK) = 0']
    with bounded(mib=400):
        assert paths(*rows)[-4:] == ["/g", "/f8", "/t9999", "/s9999/x"]


def test_a_directory_gone_into_for_ever() -> None:
    rows = ['7 chdir("' + "x" * 30 + '") = 0'] * 100_000
    with bounded(), pytest.raises(TraceError, match="leads to a directory whose name has"):
        items(*rows)


# ---------------------------------------------------------------- the other logs of a trace


@pytest.mark.parametrize(
    ("line", "what"),
    [("abc\n", "more than 524288 lines"), ("1-2 r-xp 0 0:0 1 /lib/{}\n", "more than 131072 files")],
)
def test_maps_without_end(line: str, what: str) -> None:
    text = (
        "== 7 app\n"
        + "".join(line.format(n) for n in range(524_290 if "{" not in line else 131_080))
        + "== end\n"
    )
    with bounded(mib=300), pytest.raises(TraceError, match=what):
        parse_maps(text)


def test_maps_of_a_process_whose_number_is_none() -> None:
    text = f"== {DIGITS} app\n1-2 r-xp 0 0:0 1 /lib/x\n== end\n"
    with bounded():
        assert [(each.pid, str(each.path)) for each in parse_maps(text)] == [(0, "/lib/x")]


@pytest.mark.parametrize(
    "facts",
    [
        "[" * 100_000,
        '{"interface": "e", "mac": "m", "address": "a", "ready_uptime_ns": Infinity}',
        '{"interface": "e", "mac": "m", "address": "a", "ready_uptime_ns": "1"}',
        '{"interface": 1, "mac": "m", "address": "a", "ready_uptime_ns": 1}',
        '{"interface": "e", "mac": "m", "address": "a", "ready_uptime_ns": ' + DIGITS + "}",
        "[]",
        "\udcff",
    ],
)
def test_facts_that_are_none(tmp_path: Path, facts: str) -> None:
    for name in (
        "strace.log",
        "maps.log",
        "units.log",
        "resident.log",
        "ldd.log",
        "modules.before",
        "modules.after",
    ):
        (tmp_path / name).write_text("== end\n")
    (tmp_path / "facts.json").write_text(facts, errors="surrogateescape")
    with bounded(), pytest.raises(TraceError, match="is damaged"):
        load_trace(tmp_path, "app.service")


def test_a_log_larger_than_any(tmp_path: Path) -> None:
    with (tmp_path / "maps.log").open("wb") as file:
        file.truncate(1 << 40)
    with bounded(), pytest.raises(TraceError, match=r"cannot be read: .*maps\.log"):
        load_trace(tmp_path, "app.service")


# ---------------------------------------------------------------- the guest kernel's trace

HEAD = "   app-7   [000] .....  1.000000: "


@pytest.mark.parametrize(
    "line",
    [
        " " * 8000,
        HEAD + 'qs_name: (x) name="' + ') name="' * 900 + "x",
        HEAD + "qs_name: " + '() name="' * 800 + "x",
        HEAD + "sched_process_fork: comm=" + " pid=1 child_comm=" * 440,
    ],
)
def test_a_line_of_the_kernel_that_patterns_could_be_lost_in(line: str) -> None:
    text = "\n".join([line] * 5000)
    with bounded():
        guesttrace.parse(text.split("\n"), "")


def test_numbers_of_the_kernel_of_any_length() -> None:
    lines = [
        f"app-{DIGITS} [000] ..... 1.000000: sys_x()",
        f"app-7 [000] ..... {DIGITS}.000000: sys_x()",
        HEAD + "sys_openat(dfd: 1)",
        HEAD + 'qs_name: (x) name="/a"',
        HEAD + "sys_openat -> 0x" + "f" * 5000,
        HEAD + f"sys_openat -> {DIGITS}",
        HEAD + f"sys_read(fd: {'f' * 5000})",
        HEAD + "sys_read -> 0x1",
        HEAD + f"block_bio_queue: 1,1 R {DIGITS} + {DIGITS} [x]",
        HEAD + f"block_rq_issue: 1,1 R 1 () {DIGITS} + 1 [x]",
        HEAD + f"sched_process_fork: comm=a pid=1 child_comm=b child_pid={DIGITS}",
    ]
    with bounded():
        assert guesttrace.parse(lines, f"overrun: {DIGITS}\noverrun: 2\n").lost == 2


def test_requests_that_are_never_issued_do_not_wait_for_ever() -> None:
    lines = [HEAD + f"block_bio_queue: 7,0 R {n * 8} + 8 [x]" for n in range(20_000)]
    lines += [HEAD + "block_rq_issue: 1,1 R 1 () 900000000 + 1 [x]"] * 6000
    lines += [HEAD + "block_bio_queue: 1,1 R 99999992 + 8 [x]"]
    lines += [HEAD + "block_rq_issue: 1,1 R 1 () 99999992 + 8 [x]"]
    with bounded():
        found = guesttrace.parse(lines, "").issued
    assert len(found) == 6001 and len(found[-1].askers) == 1


def test_files_of_a_process_are_not_copied_for_each_child() -> None:
    lines = []
    for n in range(10_000):
        lines += [HEAD + "sys_openat(dfd: ffffff9c)", HEAD + f'qs_name: (x) name="/f{n}"']
        lines += [HEAD + f"sys_openat -> {n:#x}"]
        lines += [HEAD + f"sched_process_fork: comm=app pid=7 child_comm=app child_pid={100 + n}"]
    with bounded(mib=500):
        assert len(guesttrace.parse(lines, "").uses) == 10_000


def test_a_file_of_the_guest_opened_below_the_last_one_for_ever() -> None:
    lines = []
    for n in range(8000):
        lines += [
            HEAD + f"sys_openat(dfd: {n:x})",
            HEAD + 'qs_name: (x) name="aaaa"',
            HEAD + f"sys_openat -> {n + 1:#x}",
        ]
    with bounded():
        uses = guesttrace.parse(lines, "").uses
    assert max(len(str(use.path)) for use in uses) < 4096


def test_a_directory_of_the_guest_gone_into_for_ever() -> None:
    enter = [
        HEAD + "sys_chdir(filename: 0)",
        HEAD + 'qs_name: (x) name="aaaaaaaa"',
        HEAD + "sys_chdir -> 0x0",
    ]
    with bounded():
        guesttrace.parse(enter * 10_000, "")


# ---------------------------------------------------------------- counters

DISK = " 254       0 vda {} 221 {} 28 2 0 16 0 0 20 28 0 0 0\n"


@pytest.mark.parametrize(
    ("reads", "sectors"), [("x", "1"), ("1", "-1"), (DIGITS, "1"), ("1", DIGITS), ("²", "1")]
)
def test_damaged_diskstats(reads: str, sectors: str) -> None:
    with bounded(), pytest.raises(GuestError, match="diskstats is damaged: vda has"):
        disk_reads(DISK.format(reads, sectors), "vda")


@pytest.mark.parametrize("ticks", [DIGITS, "²", "-1", "99999999999999999999"])
def test_damaged_counters_of_the_processor(ticks: str) -> None:
    with bounded(), pytest.raises(GuestError, match="no cpu line"):
        iowait_ns(f"cpu 1 2 3 4 {ticks} 6\n")


def test_a_look_at_a_guest_that_lies() -> None:
    text = f"== unit\nActiveState=active\nNRestarts={DIGITS}\n== memory\nMemTotal: {DIGITS} kB\n"
    text += "a:" + " " * 200_000 + "\n" + "\n" * 200_000 + "== tcp\n" + " " * 200_000 + "\n== end\n"
    with bounded():
        look = parse_look(text)
        assert look.used_mib == 0 and not look.listeners
        assert (
            failure(
                [look],
                "app.service",
                Readiness(kind=ReadyKind.TCP, port=80, path="/", status=200, command="", timeout_s=60),
            )
            == ""
        )


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
    source = Source("app.service", (("SystemCallFilter", filters),), {}, groups)
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


# ---------------------------------------------------------------- documents

PROFILE = (
    'schema = 1\nname = "app"\npackages = ["aa"]\nunit = "app.service"\n[ready]\nkind = "tcp"\nport = 80\n'
)
TOML = {
    "deep": "x = " + "[" * 5000,
    "dots": ".".join("a" * 20_000) + " = 1",
    "digits": "x = " + "9" * 4301,
    "hexadecimal": "x = 0x" + "f" * 20_000,
    "date": "x = 1979-99-99",
}


@pytest.mark.parametrize("name", sorted(TOML))
def test_toml_of_a_stranger(tmp_path: Path, name: str) -> None:
    text = TOML[name]
    with bounded(), pytest.raises(ProfileError, match="not TOML"):
        parse_profile(text, "x")
    with bounded(), pytest.raises(StorageModelError, match="not TOML"):
        parse_model(text, "x")
    with bounded(), pytest.raises(MatrixError, match="not TOML"):
        parse_matrix(text, "x", ())


def test_a_profile_that_is_no_plain_file(tmp_path: Path) -> None:
    (tmp_path / "profile.toml").symlink_to("/dev/zero")
    with bounded(), pytest.raises(BadInputError, match="not a regular file"):
        load_profile(str(tmp_path))


def test_more_faults_than_anybody_reads() -> None:
    text = "".join(f"a{n} = 1\n" for n in range(15_000)) + PROFILE
    with bounded(), pytest.raises(ProfileError) as caught:
        parse_profile(text, "x")
    assert len(caught.value.problems) == MAX_LINES + 1
    assert caught.value.problems[-1] == "and 14900 more"
    with pytest.raises(ProfileError) as caught:
        parse_profile("x" * 100_000 + " = 1\n" + PROFILE, "x")
    assert len(caught.value.message) < 1000


MATRIX = 'schema = 1\nname = "x"\n[[block]]\nprofiles = {}\nconfigurations = {}\nstorages = ["local"]\nclocks = ["wall"]\n'


@pytest.mark.parametrize(
    ("profiles", "configurations", "what"),
    [
        (["app"] * 30_000, ["quickstart"], "'app' again"),
        (
            [f"./{n}" for n in range(20_000)],
            ["quickstart", "standard", "minimal", "ramboot"] * 2,
            "runs, and",
        ),
        ([f"no{n}" for n in range(20_000)], ["quickstart"], "no profile 'no0'"),
        (["app"], ["quickstart"] * 17_000, "'quickstart' again"),
    ],
)
def test_a_matrix_of_more_than_can_be_measured(
    profiles: list[str], configurations: list[str], what: str
) -> None:
    text = MATRIX.format(json.dumps(profiles), json.dumps(configurations))
    with bounded(), pytest.raises(MatrixError, match=what) as caught:
        parse_matrix(text, "x", ("app",))
    assert len(caught.value.problems) <= MAX_LINES + 1


def test_blocks_whose_lists_multiply() -> None:
    lists = {
        "configurations": ["quickstart"],
        "command_lines": ["stock"],
        "clocks": ["wall"],
        "sizes": ["small"],
        "payloads": ["cpio"],
        "patterns": ["single"],
    }
    rows = "".join(f"{key} = {json.dumps(words * 1000)}\n" for key, words in lists.items())
    text = f'schema = 1\nname = "x"\n[[block]]\nprofiles = ["app"]\nstorages = ["local"]\n{rows}'
    with bounded(), pytest.raises(MatrixError, match="again"):
        parse_matrix(text, "x", ("app",))


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"schema": ' + DIGITS + "}", '{"plan": [' + "{}," * 20_000 + "{}]}", "\ud800", "NaN"],
)
def test_results_that_are_none(text: str) -> None:
    with bounded(), pytest.raises(ResultsError) as caught:
        document.parse(text, "x")
    assert len(caught.value.problems) <= MAX_LINES + 1


@pytest.mark.parametrize(
    "text",
    [
        '{"plan": [' + "1," * 200_000 + "1]}",
        '{"runs": [' + "{}," * 200_000 + "{}]}",
        '{"runs": [' + "{}," * 2_000_000 + "{}]}",
        '{"host": {' + ",".join(f'"{n}":1' for n in range(200_000)) + "}}",
        "{" + ",".join(f'"{n}":1' for n in range(200_000)) + "}",
        '{"plan": [{"pattern": "' + "x" * (20 << 20) + '"}]}',
    ],
)
def test_results_with_more_faults_than_memory(text: str) -> None:
    with bounded(mib=512), pytest.raises(ResultsError) as caught:
        document.parse(text, "x")
    assert len(caught.value.message) < 20_000


# ---------------------------------------------------------------- a volume that lies

HELLO = struct.pack(">QQH", 0x4E42444D41474943, 0x49484156454F5054, 3)


def info(kind: int = 3, length: int = 0, magic: int = 0x3E889045565A9) -> bytes:
    return struct.pack(">QIII", magic, 7, kind, length)


@contextlib.contextmanager
def volume(place: Path, said: bytes) -> Iterator[Path]:
    """A server that says ``said`` to whoever comes, again and again until he goes."""
    path = place / "socket"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(1)

        def serve() -> None:
            with contextlib.suppress(OSError), listening.accept()[0] as client:
                client.settimeout(20)
                client.sendall(HELLO)
                while True:
                    client.sendall(said)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield path
    thread.join()


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (info(), "not the NBD protocol"),
        (info(magic=1), "not the NBD protocol"),
        (info(length=2**32 - 1), "not the NBD protocol"),
        (info(kind=0x80000001), "refuses its default export"),
    ],
)
def test_a_volume_that_never_comes_to_the_point(tmp_path: Path, said: bytes, what: str) -> None:
    with volume(tmp_path, said) as path, bounded(), pytest.raises(VolumeError, match=what):
        Connection(path, limit_s=10)
