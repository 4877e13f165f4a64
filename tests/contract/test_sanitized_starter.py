"""The sanitized starter and caretaker: descriptions, rows and servers of any kind."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from quickstart.host.namespaces import own_namespaces
from tests.contract.askbox import SERVERS, ask, serving
from tests.contract.starterbox import describe, run_starter
from tests.sanitize.build import COMPLAINTS
from tests.sanitize.seeds import UNIT

# ---------------------------------------------------------------- the starter: the description, and what else it reads


@pytest.fixture(scope="module")
def starter(sanitized: Callable[[str], Path]) -> Path:
    return sanitized("starter")


FIRST = "quickstart-unit 1\n"
GROUP = "group x\n"
DESCRIPTIONS = {
    "empty": ("", "cut or damaged"),
    "another version": ("quickstart-unit 2\n", "does not begin with"),
    "no end of line": (FIRST + GROUP + "type exec", "cut or damaged"),
    "a NUL": (FIRST + GROUP + "type ex\0ec\n", "cut or damaged"),
    "unknown key": (FIRST + GROUP + "cgroup-escape yes\n", "unknown `cgroup-escape`"),
    "empty lines": (FIRST + GROUP + "\n\n \n", "unknown ``"),
    "escape without digits": (FIRST + GROUP + "user \\x\n", "bad escape"),
    "escape cut off": (FIRST + GROUP + "user \\\n", "bad escape"),
    "escaped NUL": (FIRST + GROUP + "user a\\x00b\n", "bad escape"),
    "a word of 1 MB": (FIRST + GROUP + f"user {'x' * 1_000_000}\n", "has no `xxx"),
    "host names of 64 KiB": (FIRST + GROUP + "user " + "\\H" * 32_768 + "\n", "has no `"),
    "5000 records": (FIRST + GROUP + "environment A=1\n" * 5000, "no main command"),
    "a command without words": (FIRST + GROUP + "type exec\ncommand main\n", "lacks words"),
    "a limit without words": (
        FIRST + GROUP + "type exec\nlimit 7\ncommand main : /bin/true true\n",
        "lacks words",
    ),
    "a number that is none": (
        FIRST
        + GROUP
        + "type exec\nstart-timeout-ms 99999999999999999999\n"
        + "command main : /bin/true true\n",
        "no number",
    ),
}


@pytest.mark.host_root
@pytest.mark.parametrize("text", DESCRIPTIONS)
def test_the_starter_refuses(starter: Path, tmp_path: Path, text: str) -> None:
    description, reason = DESCRIPTIONS[text]
    found = run_starter(starter, tmp_path, description)
    assert not any(each in found.log for each in COMPLAINTS), found.log
    assert found.status == 1
    assert reason in found.reason or reason in found.log


@pytest.mark.host_root
def test_the_sanitized_starter_starts_an_ordinary_unit(starter: Path, tmp_path: Path) -> None:
    """So that what it refuses is refused for what it is."""
    text = describe(
        *(("group", "x"), ("type", "exec"), ("environment", "A=one two"), ("limit", "7", "1024", "4096")),
        ("command", "main", "", "/bin/sh", "sh", "-c", "exec sleep 600", "$A"),
    )
    # The starter is done when the shell is executed; that executes sleep some time later.
    until = "for _ in $(seq 200); do ! grep -qa ^sh /proc/$MAIN/cmdline || sleep 0.05; done"
    found = run_starter(starter, tmp_path, text, {"line": f"{until}; tr '\\0' ' ' </proc/$MAIN/cmdline"})
    assert (found.status, found.reason) == (0, ""), found.log
    assert found.answers["line"].strip() == "sleep 600"
    assert UNIT.startswith(FIRST.encode())


# ---------------------------------------------------------------- the caretaker and the confiner


@pytest.fixture(scope="module")
def caretaker(starter: Path) -> Path:
    """The starter by its other name."""
    path = starter.with_name("caretaker")
    path.symlink_to(starter.name)
    return path


ROWS = {
    "nothing": (b"", 0),
    "no tabs": (b"ro\n", 1),
    "no source": (b"ro\toptional\t\t\n", 0),
    "a source that is not there": (b"ro\trequired\t/no/such\t/tmp\n", 1),
    "a path of 64 KiB": (b"rw\trequired\t/" + b"x" * 65_536 + b"\t/tmp\n", 1),
    "a target of 64 KiB": (b"rw\trequired\t/tmp\t/" + b"y/" * 32_768 + b"\n", 1),
    "a thousand fields": (b"\t" * 1000 + b"\n", 1),
    "no end of line": (b"ro\toptional\t/no/such\t/x", 0),
}


@pytest.mark.host_root
@pytest.mark.parametrize("rows", ROWS)
def test_the_caretaker_takes_any_rows(caretaker: Path, rows: str) -> None:
    """In mount and PID namespaces of its own, whose PID 1 the process is that is bound into."""
    said, status = ROWS[rows]
    words: list[str | Path] = [
        *own_namespaces(),
        "/bin/sh",
        "-c",
        'mount -t proc proc /proc && "$0" bind $$; exit $?',
        caretaker,
    ]
    done = subprocess.run(words, input=said, capture_output=True, timeout=60, check=False)
    assert not any(each.encode() in done.stderr for each in COMPLAINTS), done.stderr
    assert done.returncode == status, done.stderr


@pytest.mark.host_root
def test_the_sanitized_caretaker_removes_a_tree(caretaker: Path, tmp_path: Path) -> None:
    """Deeper than it spends descriptors, with names of any bytes."""
    deep = tmp_path / "tree" / Path(*["d"] * 250)
    deep.mkdir(parents=True)
    (tmp_path / "tree" / "a\n\udcff").write_text("x")
    (tmp_path / "stays").write_text("x")
    names = b"\0".join([bytes(tmp_path / "tree"), bytes(tmp_path / "not-there"), b"/" + b"z" * 5000, b""])
    done = subprocess.run([caretaker, "remove"], input=names, capture_output=True, timeout=60, check=False)
    assert not any(each.encode() in done.stderr for each in COMPLAINTS), done.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["stays"]


@pytest.mark.parametrize("name", SERVERS)
def test_the_sanitized_caretaker_asks_any_server(caretaker: Path, name: str) -> None:
    serve, status = SERVERS[name]
    with serving(serve) as port:
        assert ask(caretaker, port) == (status, b"")
