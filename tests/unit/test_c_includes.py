"""The shape of the C code: no cycle of includes between files or folders, and every folder belongs to a program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tests.cprograms import OURS, PROGRAMS, PROTOCOL, ROOT

SANITIZE = ROOT / "tests/sanitize"
FILES = tuple(sorted((*OURS.rglob("*.[ch]"), *(ROOT / "tracers").rglob("*.[ch]"), *SANITIZE.glob("*.[ch]"))))
# Which folders a file's includes are looked for in: its own, then those of the programs that it is part of.
Graph = Mapping[str, set[str]]


def _included(path: Path) -> set[Path]:
    """The files of ours that the file includes."""
    folders = [path.parent, PROTOCOL]
    for program in PROGRAMS.values():
        if path.parent in program.folders or path.parent == SANITIZE:
            folders += program.folders
    found = set()
    for name in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE):
        places = [folder / name for folder in folders if (folder / name).is_file()]
        assert places, f"{path} includes {name}, which no folder of its programs has"
        found.add(places[0])
    return found


def _circle(graph: Graph) -> list[str]:
    """A way from somewhere back to there, or nothing."""
    done: set[str] = set()

    def look(at: str, way: list[str]) -> list[str]:
        if at in way:
            return [*way[way.index(at) :], at]
        if at in done:
            return []
        for after in sorted(graph.get(at, ())):
            if found := look(after, [*way, at]):
                return found
        done.add(at)
        return []

    for start in sorted(graph):
        if found := look(start, []):
            return found
    return []


def test_no_file_includes_itself_by_way_of_others() -> None:
    graph = {str(path): {str(each) for each in _included(path)} for path in FILES}
    assert sum(map(len, graph.values())) > 50
    assert _circle(graph) == []


def test_no_two_folders_include_each_other() -> None:
    graph: dict[str, set[str]] = {}
    for path in FILES:
        others = {str(each.parent) for each in _included(path)} - {str(path.parent)}
        graph.setdefault(str(path.parent), set()).update(others)
    assert _circle(graph) == []


def test_a_circle_is_found() -> None:
    assert _circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert _circle({"a": {"b", "c"}, "b": {"c"}}) == []


def test_every_folder_with_c_is_a_programs() -> None:
    known = {folder for program in PROGRAMS.values() for folder in program.folders}
    places = (*OURS.rglob("*.[ch]"), *(ROOT / "tracers").rglob("*.[ch]"))
    assert {path.parent for path in places} == known | {PROTOCOL}


def test_every_header_is_read_once() -> None:
    for path in FILES:
        if path.suffix == ".h":
            text = path.read_text()
            assert "#pragma once" in text or re.search(r"^#ifndef (\w+)\n#define \1$", text, re.MULTILINE), (
                path
            )
