"""The parser understands what strace(1) of this host writes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from quickstart.model import Op
from quickstart.trace import strace
from quickstart.trace.strace import ParsedLog

# The directory's own relative program, a link's target by "..", a failed open, a redirection in a subshell, a non-ASCII name.
SCRIPT = """
cd sub
./tool
cat one ../link nofile
(cat <two | cat)
cat 'caf\u00e9 "x"' 2>/dev/null >new
mv new newer
"""


def record(tree: Path, log: Path, script: str) -> None:
    tool = shutil.which("strace")
    if tool is None:
        pytest.fail("strace is not installed: apt-get install strace")
    options = (
        "-f",
        "-y",
        "-ttt",
        "-s",
        "4096",
        "-e",
        "trace=%file,%process,getdents64,fchdir",
        "-e",
        "signal=none",
    )
    subprocess.run(
        [tool, *options, "-o", log, "sh", "-c", script],
        cwd=tree,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree").resolve()
    (tree / "sub").mkdir()
    (tree / "sub/tool").write_text("#!/bin/sh\nread -r line <deep || :\n")
    (tree / "sub/tool").chmod(0o755)
    for name in ("sub/one", "sub/two", "sub/deep", 'sub/caf\u00e9 "x"', "target"):
        (tree / name).write_text("x\n")
    (tree / "link").symlink_to("target")
    return tree


@pytest.fixture(scope="module")
def parsed(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> ParsedLog:
    log = tmp_path_factory.mktemp("log") / "strace.log"
    record(tree, log, SCRIPT)
    with log.open("rb") as file:
        return strace.parse(file)


def below(parsed: ParsedLog, tree: Path, op: Op, error: str | None = None) -> set[str]:
    """Paths in the tree of these events, as spelled below it."""
    return {
        str(event.path.relative_to(tree))
        for event in parsed.events
        if event.op is op and event.error == error and event.path.is_relative_to(tree)
    }


def test_the_opened_files(parsed: ParsedLog, tree: Path) -> None:
    assert below(parsed, tree, Op.OPEN) == {
        "sub/tool",
        "sub/deep",
        "sub/one",
        "sub/../link",
        "sub/two",
        'sub/caf\u00e9 "x"',
    }
    assert below(parsed, tree, Op.OPEN, "ENOENT") == {"sub/nofile"}


def test_the_written_files(parsed: ParsedLog, tree: Path) -> None:
    assert {"sub/new", "sub/newer"} <= below(parsed, tree, Op.WRITE)


def test_the_executed_files(parsed: ParsedLog, tree: Path) -> None:
    assert below(parsed, tree, Op.EXEC) == {"sub/tool"}


def test_the_processes(parsed: ParsedLog, tree: Path) -> None:
    roots = [number for number, process in parsed.processes.items() if process.parent == 0]
    assert len(roots) == 1
    (tool,) = [p for p in parsed.processes.values() if [str(c) for c in p.commands] == [f"{tree}/sub/tool"]]
    assert tool.parent == roots[0]
    names = sorted(c.name for process in parsed.processes.values() for c in process.commands)
    assert names == ["cat", "cat", "cat", "cat", "mv", "sh", "tool"]


def test_a_list_of_a_directory(tree: Path, tmp_path: Path) -> None:
    record(tree, tmp_path / "log", "ls sub")
    with (tmp_path / "log").open("rb") as file:
        assert "sub" in below(strace.parse(file), tree, Op.LIST)


def test_names_of_any_bytes(tmp_path: Path) -> None:
    tree = (tmp_path / "tree").resolve()
    tree.mkdir()
    names = [b"new\nline", b"back\\slash", b"a<b>c", b"\xff\xfe7", b"tab\t8"]
    for name in names:
        (tree / os.fsdecode(name)).write_text("x")
    record(tree, tmp_path / "log", "cat *")
    with (tmp_path / "log").open("rb") as file:
        assert below(strace.parse(file), tree, Op.OPEN) - {"."} == {os.fsdecode(name) for name in names}
