r"""Regular expressions whose time does not grow with the square of a text.

`\s` matches newlines. So in a text of many lines, `^\s*` runs from the beginning of each empty line to the end of all
empty lines, and `\s*$` from each blank to the end of all blanks. `[ \t]*` stays in its line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import quickstart
from quickstart.inspect.unit import hooks, networkd

SOURCES = sorted(Path(quickstart.__file__).parent.rglob("*.py"))
FUNCTIONS = frozenset(
    {"compile", "findall", "finditer", "fullmatch", "match", "search", "split", "sub", "subn"}
)
_INLINE = re.compile(r"\(\?[aiLsux]*m[aiLmsux]*\)")
_SLOW = re.compile(r"(?:\(\?[aiLmsux]+\))?\^\\s|.*\\s[*+]\$\)*$", re.DOTALL)


def text_of(node: ast.expr) -> str:
    """The pattern in ``node``. What an f-string computes is the letter x."""
    if isinstance(node, ast.Constant):
        return node.value.decode("latin-1") if isinstance(node.value, bytes) else str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(each) if isinstance(each, ast.Constant) else "x" for each in node.values)
    return ""


def multiline_patterns(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the pattern of each call of the module re whose `^` and `$` match at each line."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and (node.func.value.id, node.args != []) == ("re", True)
            and node.func.attr in FUNCTIONS
        ):
            pattern = text_of(node.args[0])
            rest = " ".join(map(ast.dump, (*node.args[1:], *(each.value for each in node.keywords))))
            flags = set(re.findall(r"attr='(\w+)'", rest))
            if flags & {"M", "MULTILINE"} or _INLINE.search(pattern):
                yield node.lineno, pattern


def slow_patterns(source: str) -> list[tuple[int, str]]:
    return [(line, each) for line, each in multiline_patterns(ast.parse(source)) if _SLOW.match(each)]


@pytest.mark.parametrize(
    "source",
    [
        r're.compile(r"^\s*a", re.M)',
        r're.findall(rb"^\s*IMAGE=(.*)$", data, re.M)',
        r're.compile(r"^a\s*$", re.MULTILINE)',
        r're.compile(rf"(?im)^\s*(?:{x})$")',
        r're.split(r"(^a\s*$)", text, flags=re.MULTILINE | re.I)',
    ],
)
def test_what_is_found(source: str) -> None:
    assert slow_patterns(source)


@pytest.mark.parametrize(
    "source", [r're.compile(r"^\s*a")', r're.compile(r"^[ \t]*a[ \t]*$", re.M)', r're.compile(r"\s*")']
)
def test_what_is_allowed(source: str) -> None:
    assert not slow_patterns(source)


def test_no_pattern_runs_through_all_empty_lines() -> None:
    found = [(path.name, *each) for path in SOURCES for each in slow_patterns(path.read_text())]
    assert not found
    # The walk has seen the patterns.
    assert sum(1 for path in SOURCES for _ in multiline_patterns(ast.parse(path.read_text()))) > 15


def test_a_line_of_netplan_has_one_run_of_blanks() -> None:
    """Two runs of blanks around a word that may be missing can be split in as many ways as there are blanks."""
    patterns = (networkd._NETPLAN_LINE, networkd._NETPLAN_NAME, networkd._NETPLAN_OTHERS)
    assert not any(each.pattern.startswith(r"\s") for each in patterns)
    assert networkd._is_plain_netplan("version: 2  # text")


def test_a_name_of_a_device_in_a_rule_has_an_end() -> None:
    rule = hooks._RULE_ADDRESS
    assert rule.search('ATTR{[net/$env{INTERFACE}]address}="52:54:00:00:00:01"')
    assert rule.search(f'ATTR{{[net/{"a" * 1000}]address}}="x"')
    assert not rule.search(f'ATTR{{[net/{"a" * 1100}]address}}="x"')
