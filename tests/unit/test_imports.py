"""The shape of the code: imports in one direction, one door to subprocesses, modules and functions of a readable size."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import quickstart

PACKAGE = Path(quickstart.__file__).parent

# A part (a module or a package of quickstart) may import itself and parts of the rows above, never of its own row or below.
LEVELS: tuple[tuple[str, ...], ...] = (
    ("__init__", "model", "errors"),
    ("guest", "host", "parse"),
    ("store",),
    ("inspect", "profile"),
    ("image", "initramfs", "reference", "trace"),
    ("artefact", "launch", "volume"),
    ("ec2", "measure", "pack"),
    ("doctor", "engines", "report"),
    ("verify",),
    ("bench", "newprofile"),
    ("cli",),
)
RANK = {part: rank for rank, parts in enumerate(LEVELS) for part in parts}
# Only these may import the part at all.
ONLY_FOR = {
    "cli": {"cli"},
    "engines": {"bench", "cli", "engines", "newprofile", "verify"},
    "newprofile": {"cli", "newprofile"},
    "bench": {"bench", "cli"},
    "doctor": {"cli"},
    "report": {"bench", "cli", "report"},
    "verify": {"cli", "newprofile", "verify"},
}
IMPORTS_NOTHING_OF_OURS = (
    "model/reasons.py",
    "model/words.py",
    "errors.py",
    "host/progress.py",
    "host/assets.py",
    "parse/printable.py",
    "host/walk.py",
)
# What the date is may change at any moment, so it is asked for by these only: file times of a reference, the age of store entries,
# when a bench began, and when a thing of the emulated EC2 was made.
ASKS_FOR_THE_DATE = {"reference/debootstrap.py", "cli/cache.py", "cli/bench.py", "ec2/emulator/account.py"}
DATES = {
    ("time", "time"),
    ("time", "time_ns"),
    ("datetime", "now"),
    ("datetime", "today"),
    ("datetime", "utcnow"),
}
# Whoever packs goes through pack/packing.py, which knows the steps and their order.
WRITES_ARCHIVES = {"initramfs/build.py", "pack/packing.py"}
# The composition chooses a backend; a backend may have several modules.
KNOWS_LAUNCHERS = {"engines/launching.py", "launch/qemu.py"}
MAKES_MACHINES = "model/machine.py"
SUBPROCESS_DOOR = "host/door.py"
STARTS_PROCESSES = {"subprocess", "multiprocessing", "pty", "popen2"}
OS_STARTS_PROCESSES = ("system", "popen", "spawn", "exec", "fork", "posix_spawn")
MAX_MODULE_LINES = 400
MAX_ENTRIES = 26
MAX_FUNCTION_LINES = 60
MAX_POSITIONAL_FIELDS = 4

SOURCES = sorted(PACKAGE.rglob("*.py"))
NAMES = [str(path.relative_to(PACKAGE)) for path in SOURCES]


@functools.cache
def tree_of(name: str) -> ast.Module:
    return ast.parse((PACKAGE / name).read_text(encoding="utf-8"), name)


def part_of(name: str) -> str:
    return name.split("/", maxsplit=1)[0].removesuffix(".py")


def imported_modules(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything imported, wherever in the module it is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{'.' * node.level}{node.module or ''}.{a.name}") for a in node.names)


def imported_parts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and part of every import of ours; a name of the package itself is of `__init__`."""
    for line, module in imported_modules(tree):
        first, _, rest = module.partition(".")
        if first == "quickstart":
            part = rest.split(".", maxsplit=1)[0]
            yield line, part if part in RANK else "__init__"


def direction_faults(name: str, tree: ast.Module) -> list[str]:
    own = part_of(name)
    faults = []
    for line, part in imported_parts(tree):
        if part != own and RANK[part] >= RANK[own]:
            faults.append(f"{name}:{line}: {own} imports {part}, which is not below it")
        if own not in ONLY_FOR.get(part, {own}):
            faults.append(f"{name}:{line}: {own} imports {part}, which is for {sorted(ONLY_FOR[part])} only")
    return faults


def exit_faults(name: str, tree: ast.Module) -> list[str]:
    """What ends the process: sys.exit, os._exit, SystemExit, exit() and quit(). The door ends copies of it."""
    if part_of(name) == "cli":
        return []
    ends = {("sys", "exit"), *(() if name == SUBPROCESS_DOOR else {("os", "_exit")})}
    faults = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (
            isinstance(node.value, ast.Name) and (node.value.id, node.attr) in ends
        ):
            faults.append(f"{name}:{node.lineno}: {node.value.id}.{node.attr} outside cli")
        elif isinstance(node, ast.Name) and node.id in {"SystemExit", "exit", "quit"}:
            faults.append(f"{name}:{node.lineno}: {node.id} outside cli")
    faults += [f"{name}:{line}: {module}" for line, module in imported_modules(tree) if module == "sys.exit"]
    return faults


def date_faults(name: str, tree: ast.Module) -> list[str]:
    """Where a module asks for the date although it is none of those that may."""
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    asked = [
        (each.lineno, each.value.id if isinstance(each.value, ast.Name) else each.value.attr, each.attr)
        for each in calls
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name | ast.Attribute)
    ]
    found = [f"{name}:{line}: {module}.{word}" for line, module, word in asked if (module, word) in DATES]
    return [] if name in ASKS_FOR_THE_DATE else found


def process_faults(name: str, tree: ast.Module) -> list[str]:
    if name == SUBPROCESS_DOOR:
        return []
    faults = [
        f"{name}:{line}: {module} is for {SUBPROCESS_DOOR} only"
        for line, module in imported_modules(tree)
        if module.split(".")[0] in STARTS_PROCESSES or module == "asyncio.subprocess"
    ]
    faults += [
        f"{name}:{node.lineno}: os.{node.attr} is for {SUBPROCESS_DOOR} only"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        and node.attr.startswith(OS_STARTS_PROCESSES)
    ]
    return faults


def test_every_part_has_its_level() -> None:
    assert sorted({part_of(name) for name in NAMES}) == sorted(RANK)


def test_the_package_stays_small_enough_to_be_seen_at_once() -> None:
    entries = sorted(path.name for path in PACKAGE.iterdir() if path.name not in {"__pycache__", "_data"})
    assert len(entries) <= MAX_ENTRIES, entries


@pytest.mark.parametrize("name", NAMES)
def test_imports_go_one_way(name: str) -> None:
    assert not direction_faults(name, tree_of(name))


@pytest.mark.parametrize("name", NAMES)
def test_imports_are_absolute(name: str) -> None:
    assert [module for _, module in imported_modules(tree_of(name)) if module.startswith(".")] == []


@pytest.mark.parametrize("name", IMPORTS_NOTHING_OF_OURS)
def test_the_lowest_modules_import_nothing_of_ours(name: str) -> None:
    assert [f"{name}:{line}: imports {part}" for line, part in imported_parts(tree_of(name))] == []


@pytest.mark.parametrize("name", NAMES)
def test_only_cli_ends_the_process(name: str) -> None:
    assert not exit_faults(name, tree_of(name))


@pytest.mark.parametrize("name", NAMES)
def test_only_the_door_starts_processes(name: str) -> None:
    assert not process_faults(name, tree_of(name))


def positional_faults(name: str, tree: ast.Module) -> list[str]:
    """Dataclasses with more than four fields that take them by position."""
    faults = []
    for node in (each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)):
        made = [text for each in node.decorator_list if "dataclass" in (text := ast.unparse(each))]
        fields = sum(isinstance(each, ast.AnnAssign) for each in node.body)
        if made and fields > MAX_POSITIONAL_FIELDS and not any("kw_only=True" in each for each in made):
            faults.append(f"{name}:{node.lineno}: {node.name} has {fields} fields and not kw_only=True")
    return faults


@pytest.mark.parametrize("name", NAMES)
def test_nouns_with_many_fields_are_made_by_keyword(name: str) -> None:
    assert not positional_faults(name, tree_of(name))


def test_a_noun_with_many_fields_by_position_is_a_fault() -> None:
    fields = "".join(f"    f{number}: int\n" for number in range(5))
    for decorator, found in (("frozen=True", 1), ("frozen=True, kw_only=True", 0)):
        text = f"@dataclass({decorator})\nclass Noun:\n{fields}"
        assert len(positional_faults("x.py", ast.parse(text))) == found


def test_there_is_one_packing_path() -> None:
    scripts = sorted((PACKAGE.parent / "bench").rglob("*.py"))
    trees = {name: tree_of(name) for name in NAMES if name not in WRITES_ARCHIVES}
    trees |= {f"bench/{path.name}": ast.parse(path.read_text(encoding="utf-8")) for path in scripts}
    module = "quickstart.initramfs.build"
    ways = {f"{module}.write_initramfs", f"{module}.append_files", f"{module}.Recipe"}
    taken = {name: ways & {each for _, each in imported_modules(tree)} for name, tree in trees.items()}
    assert {name: sorted(found) for name, found in taken.items() if found} == {}


def test_only_the_composition_knows_a_launcher() -> None:
    """Every verb and the bench speak to guest.Launcher and guest.Guest."""
    scripts = {f"bench/{path.name}": path for path in sorted((PACKAGE.parent / "bench").rglob("*.py"))}
    trees = {name: tree_of(name) for name in NAMES if name not in KNOWS_LAUNCHERS}
    trees |= {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in scripts.items()}
    taken = {
        name: sorted(each for _, each in imported_modules(tree) if each.startswith("quickstart.launch.qemu"))
        for name, tree in trees.items()
    }
    assert {name: found for name, found in taken.items() if found} == {}


def test_machines_are_made_in_one_place() -> None:
    scripts = {f"bench/{path.name}": path for path in sorted((PACKAGE.parent / "bench").rglob("*.py"))}
    trees = {name: tree_of(name) for name in NAMES if name != MAKES_MACHINES}
    trees |= {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in scripts.items()}
    calls = [
        f"{name}:{node.lineno}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "Machine"
    ]
    assert calls == []


@pytest.mark.parametrize("name", NAMES)
def test_sizes(name: str) -> None:
    text = (PACKAGE / name).read_text(encoding="utf-8")
    long_functions = [
        f"{name}:{node.lineno}: {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(tree_of(name))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= MAX_FUNCTION_LINES
    ]
    assert len(text.splitlines()) <= MAX_MODULE_LINES, f"{name} has {len(text.splitlines())} lines"
    assert not long_functions


@pytest.mark.parametrize(
    ("name", "source", "fault"),
    [
        ("model.py", "from quickstart.errors import GuestError", "model.py:1: model imports errors"),
        ("trace/x.py", "def f():\n    import quickstart.launch.qemu", "trace/x.py:2: trace imports launch"),
        ("trace/x.py", "from quickstart.pack.startset import compute", "trace imports pack"),
        ("launch/x.py", "from quickstart.engines import boot", "launch imports engines"),
        (
            "engines/boot.py",
            "from quickstart.cli import main",
            "engines imports cli, which is for ['cli'] only",
        ),
    ],
)
def test_a_wrong_import_is_named(name: str, source: str, fault: str) -> None:
    assert fault in "\n".join(direction_faults(name, ast.parse(source)))


@pytest.mark.parametrize("source", ["import sys\nsys.exit(1)", "from sys import exit", "raise SystemExit(2)"])
def test_an_exit_is_found(source: str) -> None:
    assert exit_faults("trace/load.py", ast.parse(source))
    assert not exit_faults("cli/run.py", ast.parse(source))


@pytest.mark.parametrize(
    "source", ["import subprocess", "from subprocess import run", "import os\nos.system('x')", "import pty"]
)
def test_a_process_is_found(source: str) -> None:
    assert process_faults("launch/qemu.py", ast.parse(source))
    assert not process_faults(SUBPROCESS_DOOR, ast.parse(source))


@pytest.mark.parametrize("name", NAMES)
def test_durations_are_not_measured_by_the_date(name: str) -> None:
    assert not date_faults(name, tree_of(name))


@pytest.mark.parametrize(
    "source", ["import time\ntime.time()", "import datetime\ndatetime.datetime.now(None)"]
)
def test_a_question_for_the_date_is_found(source: str) -> None:
    assert date_faults("launch/qemu.py", ast.parse(source))
    assert not date_faults("cli/cache.py", ast.parse(source))


@pytest.mark.parametrize(
    "source", sorted(PACKAGE.rglob("*.c")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_c_asks_for_no_date(source: Path) -> None:
    assert not re.search(r"CLOCK_REALTIME|gettimeofday|[^_a-z]time\(", source.read_text())


def test_tables_of_documents_have_one_base() -> None:
    """faults.Table: what is strict about one is strict about all."""
    bases = {
        f"{name}: {node.name}"
        for name in NAMES
        for node in ast.walk(tree_of(name))
        if isinstance(node, ast.ClassDef) and "BaseModel" in {ast.unparse(base) for base in node.bases}
    }
    assert bases == {"parse/faults.py: Table"}
