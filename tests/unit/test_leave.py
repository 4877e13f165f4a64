"""Which files of a start set stay on the volume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from quickstart.initramfs.layout import part_b
from quickstart.initramfs.serving import bound_files, served_files
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.model import UnitCommand, UnitStart
from quickstart.model import MIB, Event, FileKind, FileRules, Op, StartSet, Trace
from quickstart.model.reasons import ReasonSource
from quickstart.model.residency import Resident
from quickstart.pack.leave import leave
from quickstart.pack.startset import compute
from tests.unit.elfbuilder import MULTIARCH, elf
from tests.unit.imagebuilder import RULES, Image, P, rules, trace
from tests.unit.layouts import CONFIG

UNIT = UnitStart(
    unit="app.service",
    type="simple",
    pid_file=None,
    start_pre=(),
    start=UnitCommand("/usr/bin/app", ("app",)),
)
Opened = str | tuple[Op, str] | tuple[Op, str, str] | Event
PLUGINS = "/usr/lib/app/plugins"


def bare(op: Op, path: str, error: str | None = None) -> Event:
    """An action of a process without the unit's environment."""
    return Event(line=1, pid=78, program="other", op=op, path=P(path), error=error, bare=True)


def decided(
    image: Image,
    *opened: Opened,
    unit: UnitStart = UNIT,
    rules: FileRules = RULES,
    resident: Sequence[Resident] = (),
    overlay: bool = False,
) -> StartSet:
    root = ImageRoot(image.base)
    traces: list[Trace] = [replace(trace((Op.EXEC, "/usr/bin/app"), *opened), resident=tuple(resident))]
    return leave(compute(traces, root, rules), traces, root, unit, overlay=overlay)


def package(image: Image, *paths: str) -> None:
    """A package that has the files ``paths``. Those that are missing are made."""
    for path in paths:
        if not (image.base / path[1:]).exists():
            image.file(path)
    image.file(
        "/var/lib/dpkg/status",
        "Package: app\nStatus: install ok installed\nVersion: 1\nArchitecture: all\n\n",
    )
    image.file("/var/lib/dpkg/info/app.list", "".join(f"{path}\n" for path in ("/.", *paths)))


def left(found: StartSet) -> list[str]:
    return [str(file.path) for file in found.files if file.kind is FileKind.LEFT]


def test_what_is_opened_by_its_path_stays(image: Image) -> None:
    image.file(f"{PLUGINS}/a.so", elf())
    image.file("/usr/share/app/table")
    found = decided(image, "/etc/app.conf", (Op.MAP, f"{PLUGINS}/a.so"), "/usr/share/app/table")
    assert left(found) == ["/etc/app.conf", f"{PLUGINS}/a.so", "/usr/share/app/table"]
    (conf,) = [file for file in found.files if file.path == P("/etc/app.conf")]
    assert conf.reasons[-1].text == "left on the volume: opened by its ordinary path"
    assert found.regular_files == 3


def test_a_program_is_found_in_fast_only_by_name(image: Image) -> None:
    for name in ("named", "pathed"):
        image.file(f"/usr/bin/{name}", elf(), 0o755)
    found = decided(
        image,
        (Op.LOOKUP, "/usr/local/sbin/named", "ENOENT"),
        (Op.EXEC, "/usr/bin/named"),
        # A program that sets a PATH of its own does not begin with this directory.
        (Op.LOOKUP, "/usr/sbin/pathed", "ENOENT"),
        (Op.EXEC, "/usr/bin/pathed"),
    )
    assert left(found) == ["/usr/bin/pathed"]


def test_a_process_with_another_environment_finds_nothing_in_fast(image: Image) -> None:
    image.file("/usr/bin/other", elf(["libb.so"]), 0o755)
    for name in ("libb.so", "libboth.so"):
        image.file(f"{MULTIARCH}/{name}", elf())
    found = decided(
        image,
        bare(Op.LOOKUP, "/usr/local/sbin/other", "ENOENT"),
        bare(Op.EXEC, "/usr/bin/other"),
        *(bare(Op.MAP, f"{MULTIARCH}/{name}") for name in ("libb.so", "libboth.so")),
        (Op.MAP, f"{MULTIARCH}/libboth.so"),
    )
    assert left(found) == ["/usr/bin/other", f"{MULTIARCH}/libb.so"]


def test_what_the_starter_starts_is_packed(image: Image) -> None:
    image.file("/usr/bin/wrapper", "#!/usr/bin/interpreter\n", 0o755)
    image.file("/usr/bin/interpreter", elf(), 0o755)
    image.file("/usr/lib/pre", elf(), 0o755)
    unit = replace(
        UNIT, start=UnitCommand("/bin/wrapper", ("w",)), start_pre=(UnitCommand("/lib/pre", ("pre",)),)
    )
    found = decided(image, (Op.EXEC, "/usr/bin/wrapper"), (Op.EXEC, "/lib/pre"), unit=unit)
    # The interpreter opens the script by its ordinary path.
    assert left(found) == ["/usr/bin/app", "/usr/bin/wrapper"]
    companion = decided(
        image, (Op.EXEC, "/usr/bin/wrapper"), (Op.EXEC, "/lib/pre"), unit=replace(UNIT, companions=(unit,))
    )
    assert left(companion) == ["/usr/bin/wrapper"]


# As in lighttpd's package; $DAEMON is the program.
INIT_SCRIPT = """#!/bin/sh
# start-stop-daemon --exec $DAEMON
start() { start-stop-daemon --start --exec $DAEMON; }
reopen() {
\tstart-stop-daemon --signal HUP --quiet \\
\t    --pidfile $PIDFILE %s
}
"""
ROTATE = "/var/log/app/*.log {\n postrotate\n  if true; then invoke-rc.d %s >/dev/null; fi\n endscript\n}\n"


@pytest.mark.parametrize(
    ("how", "calls", "stays"),
    [
        # systemd runs it on a unit with ExecReload= only.
        ("--exec $DAEMON", "app reload", True),
        ("--exec $DAEMON", "app reopen-logs", True),
        ("-x $DAEMON", "--quiet app rotate", True),
        ("-x $DAEMON", "app reload", False),
        ("--name app", "app reopen-logs", False),
        ("--exec $DAEMON", "app force-reload", False),
        ("--exec $DAEMON", "other reopen-logs", False),
    ],
)
def test_a_program_by_whose_path_the_process_is_found_stays(
    image: Image, how: str, calls: str, stays: bool
) -> None:
    image.file("/etc/init.d/app", INIT_SCRIPT % how, 0o755)
    image.file("/etc/logrotate.d/app", ROTATE % calls)
    if how == "-x $DAEMON":
        image.file("/usr/lib/systemd/system/app.service", "[Service]\nExecReload=/bin/kill -HUP $MAINPID\n")
    # None of ours to read.
    image.file("/etc/cron.daily/program", b"\0" * (300 << 10), 0o755)
    found = decided(image)
    assert left(found) == (["/usr/bin/app"] if stays else [])
    if stays:
        # Its process has the ordinary path, as it has when its file is bound over the volume's.
        package(image, "/usr/bin/app")
        assert (
            left(decided(image, unit=replace(UNIT, settings=(("namespace", "shared"),)), overlay=True)) == []
        )


def test_a_program_is_found_by_the_name_of_a_link(image: Image) -> None:
    """As dash is found by sh, or mawk by awk and the links of update-alternatives."""
    for name, links in {
        "dash": ("/usr/bin/sh",),
        "mawk": ("/etc/alternatives/awk", "/usr/bin/awk"),
        "gawk": ("/usr/bin/g",),
    }.items():
        image.file(f"/usr/bin/{name}", elf(), 0o755)
        for link, target in zip(links, (f"/usr/bin/{name}", *links), strict=False):
            image.link(link, target)
    found = decided(
        image,
        (Op.LOOKUP, "/usr/local/sbin/sh", "ENOENT"),
        (Op.EXEC, "/usr/bin/sh"),
        (Op.LOOKUP, "/usr/local/sbin/awk", "ENOENT"),
        (Op.EXEC, "/usr/bin/awk"),
        (Op.EXEC, "/usr/bin/g"),
    )
    assert left(found) == ["/usr/bin/gawk"]


def test_programs_and_libraries_that_the_profile_names_are_packed(image: Image) -> None:
    image.file(f"{PLUGINS}/a.so", elf())
    image.file("/usr/lib/app/later", elf(), 0o755)
    include = (f"{PLUGINS}/a.so", "/usr/lib/app/later")
    assert left(decided(image, rules=rules(include=include))) == []


def test_data_that_the_profile_names_stay(image: Image) -> None:
    """No boot compares them, so a program that looked for them below /fast would get old content."""
    include = ("/etc/app.conf", "/usr/share/app")
    image.file("/usr/share/app/table")
    found = decided(image, rules=rules(include=include))
    assert left(found) == ["/etc/app.conf", "/usr/share/app/table"]
    package(image, "/usr/lib/app/table")
    include = ("/etc/app.conf", "/usr/lib/app")
    unit = replace(UNIT, settings=(("namespace", "shared"),))
    assert left(decided(image, rules=rules(include=include), unit=unit, overlay=True)) == ["/etc/app.conf"]


def test_a_link_that_no_boot_compares_leads_to_the_volume(image: Image) -> None:
    """Somebody may point it to another file, as those to the sites of a server."""
    image.link("/etc/site", "app.conf")
    image.link("/etc/shared", "../usr/share")
    image.file("/usr/share/table")
    image.link("/usr/bin/other", "app")
    found = decided(image, "/etc/site", "/etc/shared/table", (Op.EXEC, "/bin/other"))
    links = {str(file.path): file.kind for file in found.files if file.target}
    assert [path for path, kind in links.items() if kind is FileKind.LEFT] == ["/etc/shared", "/etc/site"]
    assert {"/bin", "/lib64", "/usr/bin/other", f"{MULTIARCH}/liba.so.1"} <= links.keys()
    entries = {entry.name: entry for entry in part_b(CONFIG, found, ImageRoot(image.base))}
    assert entries["fast/etc/site"].data == b"/etc/site"
    assert entries["fast/usr/bin/other"].data == b"app"
    assert {P("/etc/site"), P("/etc/shared")}.isdisjoint(file.path for file in served_files(found, ()))


def test_every_packed_file_is_compared(image: Image) -> None:
    """Whoever opens it below /fast gets what is on the volume."""
    image.file("/usr/share/app/table")
    image.file("/usr/bin/tool", "#!/usr/bin/app\n", 0o755)
    unit = replace(UNIT, settings=(("namespace", "shared"),), start=UnitCommand("/usr/bin/tool", ("tool",)))
    for overlay in (True, False):
        found = decided(
            image,
            "/etc/app.conf",
            "/usr/share/app/table",
            (Op.EXEC, "/usr/bin/tool"),
            unit=unit,
            rules=rules(include=("/etc/app.conf", "/usr/share/app")),
            overlay=overlay,
        )
        bound = bound_files(found, ImageRoot(image.base), unit) if overlay else ()
        served = {file.path for file in served_files(found, bound)}
        assert {file.path for file in found.files if file.kind is FileKind.FILE} <= served


def test_what_is_bound_over_the_volume_is_packed(image: Image) -> None:
    package(image, "/usr/lib/app/table")
    unit = replace(UNIT, settings=(("namespace", "shared"),))
    assert left(decided(image, "/usr/lib/app/table", unit=unit, overlay=True)) == []
    assert left(decided(image, "/usr/lib/app/table", unit=unit)) == ["/usr/lib/app/table"]


@pytest.mark.parametrize(
    ("size", "used", "stays"),
    [(30 * MIB, MIB, True), (30 * MIB, 20 * MIB, False), (7 * MIB, 4096, False), (30 * MIB, None, False)],
)
def test_a_large_library_that_is_used_in_part_stays(
    image: Image, size: int, used: int | None, stays: bool
) -> None:
    library = f"{MULTIARCH}/libdata.so.1"
    image.file(library, elf())
    with (image.base / library[1:]).open("r+b") as file:
        file.truncate(size)
    resident = [Resident(P(library), size, ((0, used),))] if used else []
    found = decided(image, (Op.MAP, library), resident=resident)
    assert left(found) == ([library] if stays else [])
    if stays:
        (file_,) = [each for each in found.files if each.path == P(library)]
        assert file_.reasons[-1].text == "left on the volume: 1.0 of 30.0 MiB are used before ready"
        assert file_.reasons[-1].source is ReasonSource.LEFT


def test_a_large_program_of_the_loader_is_packed(image: Image) -> None:
    with (image.base / "usr/bin/app").open("r+b") as file:
        file.truncate(30 * MIB)
    assert left(decided(image, resident=[Resident(P("/usr/bin/app"), 30 * MIB, ())])) == []


def test_all_names_of_a_file_go_one_way(image: Image) -> None:
    image.file("/usr/bin/perl", elf(), 0o755)
    (image.base / "usr/bin/perl5").hardlink_to(image.base / "usr/bin/perl")
    perl = replace(UNIT, start=UnitCommand("/usr/bin/perl", ("perl",)))
    by_path = (Op.EXEC, "/usr/bin/perl5")
    assert left(decided(image, by_path)) == ["/usr/bin/perl", "/usr/bin/perl5"]
    assert left(decided(image, by_path, unit=replace(UNIT, companions=(perl,)))) == []


def test_a_file_that_stays_is_a_link_to_the_volume(image: Image) -> None:
    image.file("/usr/bin/pathed", elf(), 0o755)
    found = decided(image, "/etc/app.conf", (Op.EXEC, "/usr/bin/pathed"))
    entries = {entry.name: entry for entry in part_b(CONFIG, found, ImageRoot(image.base))}
    for name in ("/etc/app.conf", "/usr/bin/pathed"):
        assert (entries[f"fast{name}"].mode & 0o170000, entries[f"fast{name}"].data) == (
            0o120000,
            name.encode(),
        )


def test_a_program_that_stays_is_compared(image: Image) -> None:
    """Its name is found in /fast first, so another program of that name on the volume has to be noticed."""
    image.file("/usr/bin/pathed", elf(), 0o755)
    found = decided(image, "/etc/app.conf", (Op.EXEC, "/usr/bin/pathed"))
    served = [str(file.path) for file in served_files(found, ())]
    assert "/usr/bin/pathed" in served and "/etc/app.conf" not in served
