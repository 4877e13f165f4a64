"""Programs that look for files beside themselves stay on the volume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from quickstart.initramfs.layout import library_path
from quickstart.inspect import imageroot
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.model import UnitCommand, UnitStart
from quickstart.model import Event, FileKind, FileRules, Op, StartSet
from quickstart.pack import beside
from quickstart.pack.beside import looking_beside
from quickstart.pack.leave import leave
from quickstart.pack.prefetch import foresee
from quickstart.pack.startset import compute
from tests.unit.elfbuilder import MULTIARCH, elf
from tests.unit.hostile import bounded
from tests.unit.imagebuilder import RULES, Image, P, rules, trace
from tests.unit.startfiles import start_file
from tests.unit.test_leave import UNIT, left, package

JVM = "/usr/lib/jvm/java-17"
Opened = str | tuple[Op, str] | tuple[Op, str, str] | Event


def by(program: str, op: Op, path: str, error: str | None = None) -> Event:
    return Event(line=1, pid=78, program=program, op=op, path=P(path), error=error)


def starting(program: str) -> UnitStart:
    return replace(UNIT, start=UnitCommand(program, (program,)))


def decided(
    image: Image, unit: UnitStart, *opened: Opened, rules: FileRules = RULES, overlay: bool = False
) -> StartSet:
    root, traces = ImageRoot(image.base), [trace(*opened)]
    return leave(compute(traces, root, rules), traces, root, unit, overlay=overlay)


def stays(image: Image, program: str, *opened: Opened, spelled: str = "") -> bool:
    """Whether a program that the starter starts stays on the volume."""
    image.file(program, elf(), 0o755)
    start = spelled or program
    return program in left(decided(image, starting(start), (Op.EXEC, start), *opened))


@pytest.mark.parametrize(
    "look",
    [
        (Op.OPEN, "/opt/app/conf/app.conf"),
        (Op.OPEN, "/opt/app/bin/setenv.sh", "ENOENT"),
        (Op.OPEN, "/opt/app/bin/../conf/new", "ENOENT"),
        (Op.LOOKUP, "/opt/app/conf.d/../conf.d/z.conf", "ENOENT"),
        (Op.LIST, "/opt/app"),
        (Op.LIST, "/opt/app/bin"),
        (Op.WRITE, "/opt/app/log"),
        (Op.EXEC, "/opt/app/bin/helper", "ENOENT"),
        (Op.OPEN, "/opt/current/conf.d", "ENOENT"),
        by("child", Op.LOOKUP, "/opt/app/conf.d", "ENOENT"),
    ],
)
def test_a_program_that_looks_beside_itself_stays(
    image: Image, look: tuple[Op, str] | tuple[Op, str, str] | Event
) -> None:
    image.link("/opt/current", "app")
    assert stays(image, "/opt/app/bin/app", look, spelled="/opt/current/bin/app")


@pytest.mark.parametrize(
    "look",
    [
        (Op.OPEN, "/opt/app/lib/libx.so.1", "ENOENT"),
        (Op.OPEN, "/opt/app/bin/../lib/glibc-hwcaps/x86-64-v3", "ENOENT"),
        (Op.OPEN, "/opt/application/conf", "ENOENT"),
        (Op.OPEN, "/opt/conf", "ENOENT"),
        (Op.OPEN, "/etc/app.conf"),
        (Op.OPEN, "/run/opt/app", "ENOENT"),
        (Op.LOOKUP, "/opt/app"),
        (Op.LOOKUP, "/opt/app/bin/app"),
        (Op.EXEC, "/opt/app/bin/app"),
    ],
)
def test_the_loaders_look_ups_and_those_of_programs_do_not_count(
    image: Image, look: tuple[Op, str] | tuple[Op, str, str]
) -> None:
    assert not stays(image, "/opt/app/bin/app", look)


def test_the_loader_asks_for_the_directory_of_a_library_that_is_not_there(image: Image) -> None:
    asked = (Op.LOOKUP, "/opt/app/bin/../lib", "ENOENT")
    assert not stays(image, "/opt/app/bin/app", (Op.OPEN, "/opt/app/bin/../lib/libx.so.1", "ENOENT"), asked)
    assert stays(image, "/opt/app/bin/app", asked)


def test_a_program_beside_files_that_the_trace_does_not_have_stays(image: Image) -> None:
    """It may look for them after ready. What the distribution has below /usr was compiled for its place."""
    for place, more, expected in (
        ("/opt/alone/bin", "", False),
        ("/opt/data/bin", "/opt/data/templates/page", True),
        ("/opt/plugin/bin", "/opt/plugin/lib/later.so", True),
        ("/usr/local/bin", "/usr/local/etc/conf", True),
        ("/usr/lib/other", "/usr/lib/other/table", False),
    ):
        if more:
            image.file(more)
        assert stays(image, f"{place}/app", (Op.OPEN, "/etc/app.conf")) is expected, place


def test_a_link_to_a_directory_of_the_same_tree_is_no_other_file(image: Image) -> None:
    (image.base / "usr/local/share/man").mkdir(parents=True)
    image.link("/usr/local/man", "share/man")
    assert not stays(image, "/usr/local/bin/app")
    image.link("/usr/local/conf", "../../etc")
    assert stays(image, "/usr/local/bin/app")


def test_a_jvm_by_the_links_of_alternatives_stays(image: Image) -> None:
    image.link("/usr/bin/java", "/etc/alternatives/java")
    image.link("/etc/alternatives/java", f"{JVM}/bin/java")
    image.file(f"{JVM}/conf/security")
    assert stays(image, f"{JVM}/bin/java", f"{JVM}/conf/security", spelled="/usr/bin/java")


def test_the_libraries_of_a_program_that_looks_beside_itself_stay(image: Image) -> None:
    """They find their data and plug-ins by their own paths. Those of the loader's directories do not."""
    image.file(f"{JVM}/bin/java", elf(["libjli.so", "libz.so.1"], runpath="$ORIGIN/../lib"), 0o755)
    image.file(f"{JVM}/lib/libjli.so", elf())
    image.file(f"{MULTIARCH}/libz.so.1", elf())
    start = (Op.EXEC, f"{JVM}/bin/java")
    found = decided(image, starting(f"{JVM}/bin/java"), start, (Op.OPEN, f"{JVM}/conf", "ENOENT"))
    assert left(found) == [f"{JVM}/bin/java", f"{JVM}/lib/libjli.so"]
    assert library_path(found) == f"/fast{MULTIARCH}"
    assert left(decided(image, starting(f"{JVM}/bin/java"), start)) == []


def test_what_is_bound_over_the_volume_and_executed_by_its_path_is_packed(image: Image) -> None:
    image.file(f"{JVM}/bin/java", elf(), 0o755)
    image.file(f"{JVM}/lib/libjvm.so", elf())
    image.file("/usr/bin/start", "#!/usr/bin/app\n", 0o755)
    package(image, f"{JVM}/bin/java", f"{JVM}/lib/libjvm.so")
    used = (
        (Op.EXEC, "/usr/bin/start"),
        (Op.EXEC, f"{JVM}/bin/java"),
        (Op.MAP, f"{JVM}/lib/libjvm.so"),
        (Op.OPEN, f"{JVM}/conf", "ENOENT"),
    )
    for program, expected in (("/usr/bin/start", False), (f"{JVM}/bin/java", True)):
        unit = replace(starting(program), settings=(("namespace", "shared"),))
        found = decided(image, unit, *used, overlay=True)
        assert (f"{JVM}/bin/java" in left(found)) is expected
        assert f"{JVM}/lib/libjvm.so" not in left(found)


@pytest.mark.parametrize(
    "program", ["/usr/sbin/server", "/usr/bin/server", "/usr/libexec/server", "/usr/lib/server"]
)
def test_where_all_packages_have_programs_the_look_ups_of_others_do_not_count(
    image: Image, program: str
) -> None:
    image.file("/usr/share/server/table")
    looks = ("/usr/share/server/table", (Op.LOOKUP, "/usr/lib/locale/C", "ENOENT"), (Op.LIST, "/usr/share"))
    assert not stays(image, program, *looks, (Op.OPEN, f"{program}.ini", "ENOENT"))


def test_dots_behind_the_own_directory_say_that_a_program_looks_beside_itself(image: Image) -> None:
    dots = (Op.OPEN, "/bin/../share/server", "ENOENT")
    assert stays(image, "/usr/bin/server", by("server", *dots))
    assert not stays(image, "/usr/bin/server", by("other", *dots))
    assert not stays(image, "/usr/sbin/server", by("server", *dots))


def test_a_program_that_finds_itself_in_path_stays(image: Image) -> None:
    """As python does: it would take its modules from /fast/usr/lib. The starter gives it an ordinary argv[0]."""
    image.file("/usr/bin/python3.11", elf(), 0o755)
    image.link("/usr/bin/python3", "python3.11")
    opened = (
        (Op.LOOKUP, "/usr/local/sbin/python3", "ENOENT"),
        (Op.EXEC, "/usr/bin/python3"),
        by("python3", Op.OPEN, "/usr/bin/pyvenv.cfg", "ENOENT"),
    )
    assert "/usr/bin/python3.11" in left(decided(image, UNIT, *opened))
    assert "/usr/bin/python3.11" not in left(decided(image, starting("/usr/bin/python3"), *opened))
    assert "/usr/bin/python3.11" not in left(decided(image, UNIT, *opened[:2]))


def test_neither_a_rule_nor_another_name_packs_a_program_that_looks_beside_itself(image: Image) -> None:
    """The reason says so, and the data that a rule names are not packed either."""
    image.file("/opt/app/bin/app", elf(), 0o755)
    # In byte order it is the first name.
    (image.base / "opt/a").hardlink_to(image.base / "opt/app/bin/app")
    image.file("/opt/app/conf/app.conf")
    named = rules(include=("/opt/app",))
    unit = replace(starting("/opt/app/bin/app"), start_pre=(UnitCommand("/opt/a", ("a",)),))
    found = decided(image, unit, (Op.EXEC, "/opt/app/bin/app"), "/opt/app/conf/app.conf", rules=named)
    assert left(found) == ["/opt/a", "/opt/app/bin/app", "/opt/app/conf/app.conf"]
    (app,) = [file for file in found.files if file.path == P("/opt/app/bin/app")]
    assert app.reasons[-1].text == "left on the volume: looks for files beside itself"


def test_deep_paths_take_no_deep_calls(image: Image) -> None:
    deep = "/opt/app" + "/a" * 2000
    assert stays(image, "/opt/app/bin/app", (Op.LOOKUP, deep, "ENOENT"))


# ---------------------------------------------------------------- what the prefetch asks for


def test_the_prefetch_asks_for_a_script_and_not_for_its_packed_interpreter(image: Image) -> None:
    image.file("/opt/app/run.sh", "#!/usr/bin/app\n", 0o755)
    events = [trace((Op.EXEC, "/opt/app/run.sh"))]
    root = ImageRoot(image.base)
    found = leave(compute(events, root, RULES), events, root, starting("/opt/app/run.sh"), overlay=False)
    kinds = {str(file.path): file.kind for file in found.files}
    assert (kinds["/opt/app/run.sh"], kinds["/usr/bin/app"]) == (FileKind.LEFT, FileKind.FILE)
    files = foresee(events, found, root, (), {P("/opt/app/run.sh")}).files
    assert P("/opt/app/run.sh") in files and P("/usr/bin/app") not in files
    assert P("/usr/bin/app") in foresee(events, found, root).files


def test_the_prefetch_asks_for_data_that_the_profile_names(image: Image) -> None:
    image.file("/usr/share/table")
    found = decided(image, UNIT, rules=rules(include=("/usr/share/table",)))
    assert P("/usr/share/table") in foresee([trace()], found, ImageRoot(image.base)).files


def test_a_deep_path_that_is_not_there_is_looked_up_once(
    image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each parent anew would be 2000 times as often, and a call within a call for each is no more than 1000."""
    image.file("/opt/app/bin/app", elf(), 0o755)
    deep = "/opt/app" + "/a" * 2000
    looked: list[str] = []
    usual = imageroot._mode

    def counted(host: str, asked: PurePosixPath) -> int | None:
        looked.extend([str(asked)] if len(asked.parts) > 500 else [])
        return usual(host, asked)

    monkeypatch.setattr(imageroot, "_mode", counted)
    opened: list[Opened] = [(Op.EXEC, "/opt/app/bin/app"), (Op.OPEN, deep, "ENOENT")]
    found = decided(image, starting("/opt/app/bin/app"), *opened)
    foreseen = foresee([trace(*opened)], found, ImageRoot(image.base))
    assert P("/opt/app") in foreseen.directories
    assert len(looked) < 50


@pytest.mark.parametrize("name", ["/opt/loop", "/opt/loop/a"])
def test_a_name_below_a_circle_of_links_is_looked_up_in_vain(image: Image, name: str) -> None:
    image.link("/opt/loop", "loop")
    opened: list[Opened] = [
        (Op.EXEC, "/opt/app/bin/app"),
        (Op.OPEN, name, "ELOOP"),
        (Op.LOOKUP, name, "ELOOP"),
    ]
    image.file("/opt/app/bin/app", elf(), 0o755)
    found = decided(image, starting("/opt/app/bin/app"), *opened)
    assert P("/opt/loop") in foresee([trace(*opened)], found, ImageRoot(image.base)).names


def test_many_programs_that_look_for_many_names(image: Image) -> None:
    """Each program has a directory of its own, and each look-up is of another program."""
    count = 2000
    programs = [f"/opt/t{number}/bin/p{number}" for number in range(count)]
    for program in programs:
        image.file(program, "", 0o755)
    files = tuple(start_file(program, mode=0o100755) for program in programs)
    looks = [by(f"p{number}", Op.LOOKUP, f"/opt/u{number}/conf", "ENOENT") for number in range(count)]
    traces = [trace(*((Op.EXEC, program) for program in programs), *looks)]
    root = ImageRoot(image.base)
    with bounded(4):
        assert looking_beside(StartSet(files, ()), traces, root, (), ()) == set()
        assert looking_beside(StartSet(files[1:], ()), traces, root, (), ()) == set()


def test_a_tree_of_more_links_than_are_looked_at(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    image.file("/opt/app/bin/app", "", 0o755)
    (image.base / "opt/app/data").mkdir()
    for number in range(30):
        image.link(f"/opt/app/l{number}", "data")
    found = StartSet((start_file("/opt/app/bin/app", mode=0o100755),), ())
    traces, root = [trace((Op.EXEC, "/opt/app/bin/app"))], ImageRoot(image.base)
    assert looking_beside(found, traces, root, (), ()) == set()
    monkeypatch.setattr(beside, "_MOST_NAMES", 20)
    assert looking_beside(found, traces, root, (), ()) == {P("/opt/app/bin/app")}
