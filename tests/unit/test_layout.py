"""The archive's layout: links stay inside /fast, programs name our loader, and init's texts are correct with any character."""

from __future__ import annotations

import posixpath
import shlex
import stat
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from quickstart.errors import StartSetError
from quickstart.initramfs.facts import Watched, packed_facts
from quickstart.initramfs.guestconfig import (
    Given,
    GuestConfig,
    HandOff,
    Served,
    config_text,
    unit_config_text,
)
from quickstart.initramfs.layout import LOADER, part_a, part_b, relative, unit_text, with_interpreter
from quickstart.initramfs.modules import ModuleSet
from quickstart.initramfs.newc import CpioEntry, write_archive
from quickstart.initramfs.prefetch import Prefetch
from quickstart.inspect.elf_file import read_elf
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.model import LateBind, ListeningSocket, UnitCommand, UnitStart
from quickstart.inspect.unit.sysctl import KernelSetting
from quickstart.model import FileKind, Readiness, StartFile, StartSet, Superblock
from quickstart.model.words import ReadyKind
from tests.unit import startfiles
from tests.unit.elfbuilder import LD_SO, elf
from tests.unit.imagebuilder import programs_in

UNIT = UnitStart(
    unit="app.service",
    type="forking",
    pid_file=PurePosixPath("/run/app.pid"),
    start_pre=(UnitCommand("/usr/bin/app", ("/usr/bin/app", "-t"), "-"),),
    start=UnitCommand("/usr/bin/app", ("/usr/bin/app", "-g", "daemon on; it's 'on'")),
    group="system.slice/app.service",
    settings=(("umask", "022"),),
)
READY = Readiness(kind=ReadyKind.HTTP, port=80, path="/", status=200, command="", timeout_s=600)
CONFIG = GuestConfig(
    build="0123456789abcdef",
    superblock=Superblock(
        uuid="11111111-2222-3333-4444-555555555555",
        mount_count=0,
        write_time_s=1_400_000_000,
        clean=True,
        needs_recovery=False,
        has_errors=False,
    ),
    root_fstype="ext4",
    root_options="errors=remount-ro",
    interface="ens3",
    unit=UNIT,
    ready=READY,
    hand_off=HandOff.KEEP,
    network="ifupdown",
)
PROGRAM = elf(interpreter=LD_SO)


def P(path: str) -> PurePosixPath:  # noqa: N802
    return PurePosixPath(path)


def start_file(
    path: str, kind: FileKind, mode: int, target: str = "", interpreter: str = "", size: int = 0
) -> StartFile:
    return startfiles.start_file(
        path,
        kind=kind,
        mode=mode,
        size_bytes=size,
        mtime_s=1_500_000_000,
        ctime_s=1_600_000_000,
        target=target,
        interpreter=interpreter,
    )


def directory(path: str) -> StartFile:
    return start_file(path, FileKind.DIRECTORY, 0o040755)


def link(path: str, target: str) -> StartFile:
    return start_file(path, FileKind.SYMLINK, 0o120777, target, size=len(target))


START_SET = StartSet(
    (
        directory("/etc"),
        start_file("/etc/app.conf", FileKind.FILE, 0o100640, size=4),
        link("/etc/localtime", "/usr/share/zone"),
        link("/etc/relative", "../usr/share/zone"),
        link("/lib64", "usr/lib64"),
        directory("/usr"),
        directory("/usr/bin"),
        start_file("/usr/bin/app", FileKind.FILE, 0o100755, interpreter=LD_SO, size=len(PROGRAM)),
        directory("/usr/lib64"),
        start_file("/usr/lib64/ld-linux-x86-64.so.2", FileKind.FILE, 0o100755, size=3),
        start_file("/usr/lib64/liba.so.1", FileKind.FILE, 0o100644, interpreter=LD_SO, size=len(PROGRAM)),
        directory("/usr/share"),
        start_file("/usr/share/zone", FileKind.FILE, 0o100644, size=2),
    ),
    (),
)
PREFETCH = Prefetch(
    ((4096, 8192), (1 << 40, 4096)),
    (PurePosixPath("/etc/a b"), PurePosixPath("/etc/\udce9")),
    ((PurePosixPath("/usr/lib/large one"), 65536, 4096),),
)


@pytest.fixture
def root(tmp_path: Path) -> ImageRoot:
    for name in ("etc", "usr/bin", "usr/lib64", "usr/share"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "lib64").symlink_to("usr/lib64")
    (tmp_path / "etc/app.conf").write_text("conf")
    (tmp_path / "usr/bin/app").write_bytes(PROGRAM)
    (tmp_path / "usr/lib64/liba.so.1").write_bytes(PROGRAM)
    (tmp_path / "usr/lib64/ld-linux-x86-64.so.2").write_text("ld\n")
    (tmp_path / "usr/share/zone").write_text("TZ")
    return ImageRoot(tmp_path)


def by_name(entries: Iterable[CpioEntry]) -> dict[str, CpioEntry]:
    return {entry.name: entry for entry in entries}


# ---------------------------------------------------------------- part B


def test_the_last_file_says_that_part_b_is_whole(root: ImageRoot) -> None:
    entries = list(part_b(CONFIG, START_SET, root))
    assert entries[-1].name == "fast/quickstart/part-b"
    assert entries[-1].data == b"0123456789abcdef\n"
    assert {f"fast{file.path}" for file in START_SET.files} <= {entry.name for entry in entries}


def test_part_b_is_an_archive_that_can_be_written(root: ImageRoot, tmp_path: Path) -> None:
    with (tmp_path / "archive").open("wb") as stream:
        assert write_archive(stream, part_b(CONFIG, START_SET, root)) > 0


def test_owner_and_time_are_none_of_the_hosts(root: ImageRoot) -> None:
    assert {(e.uid, e.gid, e.mtime) for e in part_b(CONFIG, START_SET, root)} == {(0, 0, 0)}


def test_modes_are_the_images(root: ImageRoot) -> None:
    entries = by_name(part_b(CONFIG, START_SET, root))
    assert entries["fast/etc/app.conf"].mode == 0o100640
    assert entries["fast/usr/bin/app"].mode == 0o100755
    assert entries["fast/usr/bin"].mode == 0o040755


def test_links_stay_inside_fast(root: ImageRoot) -> None:
    entries = by_name(part_b(CONFIG, START_SET, root))
    assert entries["fast/etc/localtime"].data == b"../usr/share/zone"
    assert entries["fast/etc/relative"].data == b"../usr/share/zone"
    assert entries["fast/lib64"].data == b"usr/lib64"
    for name, entry in entries.items():
        if stat.S_ISLNK(entry.mode) and isinstance(entry.data, bytes):
            place = posixpath.normpath(posixpath.join(posixpath.dirname(name), entry.data.decode()))
            assert place.startswith("fast/"), name
            assert place in entries, name


@pytest.mark.parametrize(
    ("lib64", "place", "target"),
    [
        (link("/lib64", "usr/lib64"), "fast/usr/lib64/ld.so", b"ld-linux-x86-64.so.2"),
        (link("/lib64", "/usr/lib64"), "fast/usr/lib64/ld.so", b"ld-linux-x86-64.so.2"),
        (directory("/lib64"), "fast/lib64/ld.so", b"../usr/lib64/ld-linux-x86-64.so.2"),
    ],
)
def test_the_loader_has_our_name(root: ImageRoot, lib64: StartFile, place: str, target: bytes) -> None:
    files = tuple(lib64 if file.path == P("/lib64") else file for file in START_SET.files)
    entries = by_name(part_b(CONFIG, StartSet(files, ()), root))
    assert entries[place].data == target
    assert LOADER == "/fast/lib64/ld.so"


def test_programs_without_lib64(root: ImageRoot) -> None:
    files = tuple(file for file in START_SET.files if file.path != P("/lib64"))
    with pytest.raises(StartSetError, match="no /lib64"):
        list(part_b(CONFIG, StartSet(files, ()), root))


def test_only_programs_get_our_loader(root: ImageRoot, tmp_path: Path) -> None:
    entries = by_name(part_b(CONFIG, START_SET, root))
    program = entries["fast/usr/bin/app"].data
    assert isinstance(program, bytes)
    (tmp_path / "patched").write_bytes(program)
    facts = read_elf(tmp_path / "patched")
    assert facts is not None
    assert facts.interpreter == LOADER
    # Not executable, so nothing starts it: it stays as it is.
    assert entries["fast/usr/lib64/liba.so.1"].data == tmp_path / "usr/lib64/liba.so.1"


def test_a_program_with_two_names_is_packed_once_with_our_loader(root: ImageRoot, tmp_path: Path) -> None:
    program = next(file for file in START_SET.files if file.path == P("/usr/bin/app"))
    other = replace(program, path=P("/usr/bin/app1.0"), hard_link_to=program.path)
    files = tuple(sorted((*START_SET.files, other), key=lambda file: file.path))
    entries = by_name(part_b(CONFIG, StartSet(files, ()), root))
    first, second = entries["fast/usr/bin/app"], entries["fast/usr/bin/app1.0"]
    assert isinstance(first.data, bytes)
    assert LOADER.encode() in first.data
    assert (first.names, second.data, second.link_to) == (2, b"", "fast/usr/bin/app")
    with (tmp_path / "archive").open("wb") as stream:
        write_archive(stream, part_b(CONFIG, StartSet(files, ()), root))
    assert (tmp_path / "archive").read_bytes().count(LOADER.encode()) == 1


# ---------------------------------------------------------------- PT_INTERP


def test_the_rest_of_the_interpreter_is_zeroed(tmp_path: Path) -> None:
    path = tmp_path / "app"
    path.write_bytes(PROGRAM)
    patched = with_interpreter(path, "/x")
    at = PROGRAM.index(LD_SO.encode())
    assert len(patched) == len(PROGRAM)
    assert patched[at : at + len(LD_SO) + 1] == b"/x" + bytes(len(LD_SO) - 1)
    assert (patched[:at], patched[at + len(LD_SO) :]) == (PROGRAM[:at], PROGRAM[at + len(LD_SO) :])


def test_an_interpreter_that_just_fits_and_one_that_does_not(tmp_path: Path) -> None:
    path = tmp_path / "app"
    path.write_bytes(PROGRAM)
    same_length = "/" + "x" * (len(LD_SO) - 1)
    assert same_length.encode() + b"\0" in with_interpreter(path, same_length)
    with pytest.raises(StartSetError, match=r"does not fit into the 28 bytes of PT_INTERP in .*/app"):
        with_interpreter(path, same_length + "x")


def test_a_file_without_interpreter(tmp_path: Path) -> None:
    (tmp_path / "lib").write_bytes(elf())
    (tmp_path / "text").write_text("text")
    for name in ("lib", "text"):
        with pytest.raises(StartSetError, match="has no PT_INTERP"):
            with_interpreter(tmp_path / name, LOADER)


# ---------------------------------------------------------------- texts


def unquote(text: str) -> str:
    """What a POSIX shell makes of one word."""
    (word,) = shlex.split(text)
    return word


def test_config() -> None:
    odd = replace(CONFIG, root_options="a'b $(x)", unit=replace(UNIT, unit=r"app\x2dx.service"))
    values = dict(line.split("=", 1) for line in config_text(odd).splitlines())
    plain = {name: unquote(value) for name, value in values.items()}
    assert plain["ROOT_OPTIONS"] == "a'b $(x)"
    assert plain["UNIT"] == r"app\x2dx.service"
    assert plain["EARLY"] == "always"
    assert plain["ROOT_UUID"] == "11111111-2222-3333-4444-555555555555"
    assert (plain["BUILD_MOUNTS"], plain["BUILD_WTIME"]) == ("0", "1400000000")
    assert (plain["PID_FILE"], plain["UNIT_GROUP"]) == ("/run/app.pid", "system.slice/app.service")
    assert (plain["SOCKETS"], plain["SOCKET_UNITS"], plain["JOURNAL_PATHS"]) == ("0", "", "")


def test_the_journals_sockets_come_behind_the_unit_s_own(root: ImageRoot) -> None:
    own, journals = (
        ListeningSocket(unit="a", kind="stream", path=None, port=1, records=((key, "stream", key),))
        for key in ("socket", "journal-socket")
    )
    unit = replace(UNIT, sockets=(own,), journal_sockets=(journals, journals))
    lines = unit_text(unit, CONFIG, START_SET, root).splitlines()
    bound = [line for line in lines if "socket" in line]
    assert bound == ["socket stream socket", *["journal-socket stream journal-socket"] * 2]
    assert "\nSOCKETS=1\nJOURNAL_SOCKETS=2\n" in config_text(replace(CONFIG, unit=unit))


def test_udev_s_directory_in_config() -> None:
    assert "\nUDEV_DATA=''\n" in config_text(CONFIG)
    assert "\nUDEV_DATA=/run/udev/data\n" in config_text(replace(CONFIG, given=Given(udev=True)))


def test_the_sockets_in_config() -> None:
    def socket(unit: str, path: str) -> ListeningSocket:
        return ListeningSocket(
            unit=unit, kind="stream", path=PurePosixPath(path) if path else None, port=0, records=()
        )

    sockets = (socket("a.socket", "/run/a"), socket("a.socket", ""), socket("b.socket", "/run/b"))
    journals = tuple(socket("j.socket", path) for path in ("/run/systemd/journal/a", "", "/run/b"))
    text = config_text(replace(CONFIG, unit=replace(UNIT, sockets=sockets, journal_sockets=journals)))
    assert "SOCKETS=3\nJOURNAL_SOCKETS=3\nSOCKET_UNITS='a.socket b.socket'\n" in text
    # A fallback removes the paths of the others.
    assert "\nJOURNAL_PATHS='/run/systemd/journal/a /run/b'\n" in text


def test_the_sockets_of_a_stack(root: ImageRoot) -> None:
    def with_sockets(name: str, *paths: str) -> UnitStart:
        sockets = (
            ListeningSocket(
                unit=f"{name}.socket", kind="stream", path=PurePosixPath(path), port=0,
                records=(("socket", path), ("socket-option", name)),
            )
            for path in paths
        )  # fmt: skip
        return replace(UNIT, unit=f"{name}.service", sockets=tuple(sockets))

    companions = (
        replace(with_sockets("db", "/run/b", "/run/c"), sockets_before=1),
        replace(with_sockets("php"), sockets_before=3),
    )
    unit = replace(with_sockets("web", "/run/a"), companions=companions)
    config = replace(CONFIG, unit=unit)
    said = [
        [line for line in unit_text(each, config, START_SET, root).splitlines() if "socket" in line]
        for each in unit.all_units
    ]
    assert said == [
        ["first-socket 4", "socket /run/b", "socket-option db", "socket /run/c", "socket-option db"],
        [],
        [
            *("socket /run/a", "socket-option web"),
            *("companion-socket /run/b", "socket-option db", "companion-socket /run/c", "socket-option db"),
        ],
    ]
    values = dict(line.split("=", 1) for line in config_text(config).splitlines())
    assert (values["SOCKETS"], values["COMPANION_SOCKETS"]) == ("1", "'2 0'")
    assert "COMPANION_SOCKETS" not in config_text(replace(CONFIG, unit=replace(unit, companions=())))
    assert "SOCKETS=2" in unit_config_text(companions[0]).splitlines()


@pytest.mark.parametrize(
    ("ready", "words"),
    [
        (READY, ("0050", "/", "200", "external")),
        (replace(READY, path="/it's $(x)", status=301), ("0050", "/it's $(x)", "301", "external")),
        (replace(READY, loopback=True, port=8080), ("1F90", "/", "200", "loopback")),
        (replace(READY, kind=ReadyKind.TCP), ("0050", "", "200", "external")),
        (replace(READY, kind=ReadyKind.EXEC, port=0), ("", "", "200", "external")),
    ],
)
def test_what_init_waits_for(ready: Readiness, words: tuple[str, ...]) -> None:
    lines = config_text(replace(CONFIG, ready=ready)).splitlines()
    values = dict(line.split("=", 1) for line in lines)
    names = ("READY_PORT", "READY_PATH", "READY_STATUS", "READY_ADDRESS")
    assert tuple(unquote(values[name]) if values[name] != "''" else "" for name in names) == words


def described(root: ImageRoot, **changes: Any) -> str:
    return unit_text(replace(UNIT, **changes), CONFIG, START_SET, root)


def test_description(root: ImageRoot) -> None:
    stock = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    fast = ":".join(f"/fast{name}" for name in stock.split(":"))
    assert described(root) == (
        "quickstart-unit 1\n"
        "unit app.service\n"
        "group system.slice/app.service\n"
        "type forking\n"
        "pid-file /run/app.pid\n"
        "start-timeout-ms 90000\n"
        f"base-environment PATH={fast}:{stock}\n"
        "base-environment LD_LIBRARY_PATH=/fast/usr/lib64\n"
        "umask 022\n"
        "command pre - /fast/usr/bin/app /usr/bin/app -t\n"
        "command main  /fast/usr/bin/app /usr/bin/app -g daemon\\x20on;\\x20it's\\x20'on'\n"
    )


def test_a_program_by_a_link_starts_from_fast_under_its_stock_name(root: ImageRoot) -> None:
    (root.base / "bin").symlink_to("usr/bin")
    text = described(root, start=UnitCommand("/bin/app", ("/bin/app",)), start_pre=())
    assert text.endswith("umask 022\ncommand main  /fast/usr/bin/app /bin/app\n")


def test_only_a_helper_may_start_from_the_root_volume(root: ImageRoot) -> None:
    text = described(root, start_post=(UnitCommand("/opt/check", ("/opt/check", "")),))
    assert text.endswith("\ncommand post  /opt/check /opt/check \n")
    with pytest.raises(StartSetError, match=r"/opt/app of app\.service is not in the start set"):
        described(root, start=UnitCommand("/opt/app", ("/opt/app",)))


@pytest.mark.parametrize(
    ("first_line", "start"),
    [
        ("#!/usr/bin/app", "/fast/usr/bin/app /usr/bin/app /usr/bin/script a"),
        ("#! /usr/bin/app -e x ", "/fast/usr/bin/app /usr/bin/app -e\\x20x /usr/bin/script a"),
        ("#!/opt/interpreter", "/usr/bin/script /usr/bin/script a"),
        ("#!/usr/bin/other", "/usr/bin/script /usr/bin/script a"),
    ],
)
@pytest.mark.parametrize("kind", [FileKind.LEFT, FileKind.FILE])
def test_a_script_starts_by_its_packed_interpreter(
    root: ImageRoot, first_line: str, start: str, kind: FileKind
) -> None:
    """And by its ordinary path, because it may look for other files beside itself."""
    (root.base / "usr/bin/script").write_text(f"{first_line}\necho\n")
    (root.base / "usr/bin/other").write_text("#!/usr/bin/app\n")
    script = start_file("/usr/bin/script", kind, 0o100755)
    other = start_file("/usr/bin/other", FileKind.FILE, 0o100755)
    unit = replace(UNIT, start=UnitCommand("/usr/bin/script", ("/usr/bin/script", "a")))
    text = unit_text(unit, CONFIG, replace(START_SET, files=(*START_SET.files, other, script)), root)
    # The journal is to have the unit's own name of it.
    name = "command-name script\n" if start.startswith("/fast/") else ""
    assert text.endswith(f"\ncommand main  {start}\n{name}")


def scripted(root: ImageRoot, spelled: str, mode: int = 0o100755, *more: StartFile) -> str:
    """The main command of a unit that starts /opt/app-1/run.sh as ``spelled``, and all that follows it."""
    (root.base / "opt/app-1").mkdir(parents=True)
    (root.base / "opt/app").symlink_to("app-1")
    (root.base / "opt/app-1/run.sh").write_text("#!/usr/bin/app -e\n")
    unit = replace(UNIT, start=UnitCommand(spelled, ("run", "a")))
    files = (*START_SET.files, start_file("/opt/app-1/run.sh", FileKind.LEFT, mode), *more)
    return unit_text(unit, CONFIG, replace(START_SET, files=files), root).rpartition("\ncommand ")[2]


def test_a_script_gets_its_name_as_the_unit_spells_it(root: ImageRoot) -> None:
    """This is what execve(2) does: argv[0] is lost, and the path is that of the call."""
    said = scripted(root, "/opt/app/run.sh", 0o100755, link("/opt/app", "app-1"))
    assert said == "main  /fast/usr/bin/app /usr/bin/app -e /opt/app/run.sh a\ncommand-name run.sh\n"


def test_the_kernel_checks_who_may_execute_a_script(root: ImageRoot) -> None:
    said = scripted(root, "/opt/app-1/run.sh", 0o100744)
    assert said == "main  /opt/app-1/run.sh run a\n"


def test_a_program_by_a_link_that_no_boot_compares_starts_by_its_path(root: ImageRoot) -> None:
    assert scripted(root, "/opt/app/run.sh") == "main  /opt/app/run.sh run a\n"


def test_the_kernel_starts_a_script_whose_interpreter_stays_on_the_volume(root: ImageRoot) -> None:
    left = replace(START_SET.files[7], kind=FileKind.LEFT)
    assert left.path == P("/usr/bin/app")
    assert scripted(root, "/opt/app-1/run.sh", 0o100755, left) == "main  /opt/app-1/run.sh run a\n"


def test_a_program_that_stays_on_the_volume_starts_from_there(root: ImageRoot) -> None:
    files = tuple(
        replace(file, kind=FileKind.LEFT) if file.path == P("/usr/bin/app") else file
        for file in START_SET.files
    )
    text = unit_text(UNIT, CONFIG, replace(START_SET, files=files), root)
    assert "\ncommand main  /usr/bin/app /usr/bin/app -g " in text
    assert "LD_LIBRARY_PATH=/fast/usr/lib64\n" in text


def test_relative() -> None:
    assert relative(P("fast/a/b/link"), "fast/c") == "../../c"
    assert relative(P("fast/link"), "fast/c/d") == "c/d"


# ---------------------------------------------------------------- part A


def test_part_a_has_what_init_needs(root: ImageRoot, tmp_path: Path) -> None:
    ours = programs_in(tmp_path)
    entries = by_name(part_a(CONFIG, ModuleSet((), ()), START_SET, root, ours, b"digests", PREFETCH))
    assert stat.S_IMODE(entries["init"].mode) == 0o755
    assert entries["fast/quickstart/busybox"].data == ours.busybox
    assert entries["fast/quickstart/bin/prefetcher"].data == ours.prefetcher
    assert entries["fast/quickstart/prefetch.ranges"].data == b"4096 8192\n1099511627776 4096\n"
    assert entries["fast/quickstart/prefetch.names"].data == b"etc/a b\0etc/\xe9\0"
    assert entries["fast/quickstart/prefetch.parts"].data == b"65536 4096 usr/lib/large one\0"
    assert entries["fast/quickstart/bin/starter"].data == ours.starter
    assert entries["fast/quickstart/bin/checker"].data == ours.checker
    assert entries["fast/quickstart/digests"].data == b"digests"
    assert entries["fast/quickstart/unit"].data == unit_text(UNIT, CONFIG, START_SET, root).encode()
    assert (entries["dev/console"].rdev_major, entries["dev/console"].rdev_minor) == (5, 1)
    assert entries["fast/quickstart/bin/mount"].data == b"../busybox"
    packed = tuple(entries[f"fast/quickstart/packed.{name}"].data for name in ("names", "stat", "places"))
    assert packed == packed_facts(START_SET, (), Watched())
    assert entries["fast/quickstart/bin/caretaker"].data == b"starter"
    assert entries["fast/quickstart/config"].data == config_text(CONFIG).encode()
    assert entries["fast/quickstart/settings"].data == b""
    assert {(e.uid, e.gid, e.mtime) for e in entries.values()} == {(0, 0, 0)}
    # The names of files in closed directories are nobody's business.
    private = {
        name for name in entries if name.startswith(("fast/quickstart/packed.", "fast/quickstart/prefetch."))
    }
    assert len(private) == 10
    assert {stat.S_IMODE(entries[name].mode) for name in private} == {0o600}
    # Part A must not hold anything of the start set: it has to be whole before B is looked at.
    assert not [name for name in entries if name.startswith(("fast/etc", "fast/usr"))]


def test_part_a_has_the_places_of_data_and_never_data(root: ImageRoot, tmp_path: Path) -> None:
    later = Prefetch(((8192, 4096),), (), ((P("/var/lib/app/db"), 65536, 4096),))
    prefetch = replace(PREFETCH, later=later)
    ours = programs_in(tmp_path)
    before = by_name(part_a(CONFIG, ModuleSet((), ()), START_SET, root, ours, b"digests", PREFETCH))
    entries = by_name(part_a(CONFIG, ModuleSet((), ()), START_SET, root, ours, b"digests", prefetch))
    names = {f"fast/quickstart/prefetch.later-{each}" for each in ("ranges", "parts")}
    assert entries.keys() - before.keys() == names
    assert entries["fast/quickstart/prefetch.later-ranges"].data == b"8192 4096\n"
    assert entries["fast/quickstart/prefetch.later-parts"].data == b"65536 4096 var/lib/app/db\0"
    assert {stat.S_IMODE(entries[name].mode) for name in names} == {0o600}


def test_part_a_has_the_kernel_settings_of_the_image(root: ImageRoot, tmp_path: Path) -> None:
    config = replace(CONFIG, settings=(KernelSetting("kernel/x", "a b", False),), content_sums=b"sum  name\n")
    ours = programs_in(tmp_path)
    entries = by_name(part_a(config, ModuleSet((), ()), START_SET, root, ours, b"digests", PREFETCH))
    assert entries["fast/quickstart/settings"].data == b"setting kernel/x 'a b'\n"
    assert entries["fast/quickstart/packed.settings"].data == b"sum  name\n"


@pytest.mark.parametrize("served", [Served.VOLUME, Served.MEMORY])
def test_where_nothing_comes_from_part_b_nothing_checks_it(
    root: ImageRoot, tmp_path: Path, served: Served
) -> None:
    ours = programs_in(tmp_path)
    config = replace(CONFIG, served=served)
    entries = by_name(part_a(config, ModuleSet((), ()), StartSet((), ()), root, ours, b"digests", PREFETCH))
    names = (
        "bin/checker",
        "digests",
        "bin/prefetcher",
        "prefetch.ranges",
        "prefetch.names",
        "prefetch.parts",
    )
    assert not {f"fast/quickstart/{name}" for name in names} & set(entries)


def test_conditions_are_of_the_volume(root: ImageRoot) -> None:
    """Where the initramfs is all that there is, what a condition asks for was never packed."""
    condition = ("unit-condition", "Condition", "PathExists", "no", "no", "/etc/x")
    unit = replace(UNIT, settings=(condition, *UNIT.settings))
    line = "unit-condition Condition PathExists no no /etc/x"
    for served in Served:
        text = unit_text(unit, replace(CONFIG, served=served), START_SET, root)
        assert (line in text.splitlines()) is (served is not Served.MEMORY)


def test_binds_that_wait_for_systemd_are_in_part_a_of_a_hand_off_only(
    root: ImageRoot, tmp_path: Path
) -> None:
    unit = replace(
        UNIT, late_binds=(LateBind("/dev/log", "/var/a b", True, True), LateBind("/x", "/y", False, False))
    )

    def late(config: GuestConfig) -> bytes | Path | None:
        ours = programs_in(tmp_path)
        made = by_name(part_a(config, ModuleSet((), ()), START_SET, root, ours, b"digests", PREFETCH))
        entry = made.get("fast/quickstart/late-binds")
        return entry.data if entry else None

    assert late(replace(CONFIG, unit=unit)) == b"ro\trequired\t/dev/log\t/var/a b\nrw\toptional\t/x\t/y\n"
    assert late(replace(CONFIG, unit=unit, hand_off=HandOff.STAY)) is None
    assert late(CONFIG) is None
