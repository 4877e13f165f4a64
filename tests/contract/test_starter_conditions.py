"""Conditions and Asserts of a unit: the starter checks them on the present volume, and starts nothing when one of them fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.inspect.unit.conditions import braces_expanded
from tests.contract.starterbox import SLEEP, UNIT, Record, describe, run_starter

pytestmark = pytest.mark.host_root

# /tmp is an empty tmpfs there.
FILES = """
cd /tmp
mkdir empty full backups && touch full/x full/.y backups/.z backups/a~ empty-file
echo x >file && printf '#!/bin/sh\\n' >program && chmod 755 program
ln -s file link && ln -s /no/where dead
mkdir only-reading && mount -t tmpfs -o ro only only-reading
"""


def condition(text: str) -> Record:
    """`ConditionKIND=[|][!]PATH` as a record."""
    name, _, value = text.partition("=")
    word = value.removeprefix("|")
    what = "Assert" if name.startswith("Assert") else "Condition"
    flags = ["yes" if flag else "no" for flag in (word.startswith("!"), value.startswith("|"))]
    path = word.removeprefix("!")
    patterns = braces_expanded(path) if "{" in path else ()
    return "unit-condition", what, name.removeprefix(what), *flags, path, *patterns


def reason(starter: Path, work: Path, *records: Record) -> str:
    """Why nothing was started; empty when the unit runs."""
    found = run_starter(starter, work, describe(*UNIT, *records, SLEEP), before=FILES)
    assert (found.status == 0) == (found.reason == "") == (found.main_pid != ""), found
    return found.reason.strip()


HELD = (
    *("ConditionPathExists=/tmp/file", "ConditionPathExists=/tmp/link", "ConditionPathExists=!/tmp/dead"),
    *("ConditionPathExistsGlob=/tmp/fi*", "ConditionPathExistsGlob=!/tmp/no*", "ConditionPathIsDirectory=/tmp/empty"),
    *("ConditionPathIsDirectory=!/tmp/file", "ConditionPathIsSymbolicLink=/tmp/dead", "ConditionPathIsSymbolicLink=!/tmp/file"),
    *("ConditionDirectoryNotEmpty=/tmp/full", "ConditionDirectoryNotEmpty=!/tmp/empty", "ConditionDirectoryNotEmpty=!/tmp/no"),
    *("ConditionFileNotEmpty=/tmp/link", "ConditionFileNotEmpty=!/tmp/empty-file", "ConditionFileNotEmpty=!/tmp/full"),
    *("ConditionFileIsExecutable=/tmp/program", "AssertFileIsExecutable=!/tmp/file", "AssertPathExists=/tmp/file"),
    *("ConditionPathExistsGlob=/tmp/{no,fi*}", "ConditionPathExistsGlob=!/tmp/{no,none*}"),
    *("ConditionPathIsReadWrite=/tmp", "ConditionPathIsReadWrite=!/tmp/only-reading", "ConditionPathIsReadWrite=!/tmp/no"),
)  # fmt: skip


def test_all_that_hold(starter: Path, tmp_path: Path) -> None:
    assert reason(starter, tmp_path, *map(condition, HELD)) == ""


@pytest.mark.parametrize("held", HELD)
def test_the_contrary_of_each_starts_nothing(starter: Path, tmp_path: Path, held: str) -> None:
    name, _, value = held.partition("=")
    other = f"{name}={value[1:] if value.startswith('!') else f'!{value}'}"
    assert reason(starter, tmp_path, condition(other)) == f"{other} does not hold"


@pytest.mark.parametrize("sign", ["", "!"])
def test_a_directory_of_backups_is_neither(starter: Path, tmp_path: Path, sign: str) -> None:
    """Whether it is empty depends on systemd's version (dir_is_empty)."""
    text = f"ConditionDirectoryNotEmpty={sign}/tmp/backups"
    assert reason(starter, tmp_path, condition(text)) == f"{text} does not hold"


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (("ConditionPathExists=|/tmp/no", "ConditionPathExists=|/tmp/file"), ""),
        (("ConditionPathExists=|/tmp/no", "AssertPathExists=|/tmp/file"), "triggers its Condition"),
        (("ConditionPathExists=|/tmp/file", "ConditionPathExists=/tmp/no"), "/tmp/no does not hold"),
    ],
)
def test_one_of_the_triggers_is_enough(
    starter: Path, tmp_path: Path, texts: tuple[str, ...], why: str
) -> None:
    found = reason(starter, tmp_path, *map(condition, texts))
    assert why in found if why else found == ""


def test_an_unknown_kind_starts_nothing(starter: Path, tmp_path: Path) -> None:
    assert "unknown kind `Luck`" in reason(starter, tmp_path, condition("ConditionLuck=/tmp"))


STAYS = '"RestartPolicy":{"Name":"no"'
CONTAINERS = """
mkdir -p /tmp/c/1 /tmp/c/2 /tmp/c/empty /tmp/deep
printf '{"Binds":null,"RestartPolicy":{"Name":"no","MaximumRetryCount":0}}' | tee /tmp/c/1/host.json >/tmp/c/2/host.json
"""


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("", ""),
        ("rm -r /tmp/c", ""),
        ("sed -i s/no/always/ /tmp/c/2/host.json", "/tmp/c/2/host.json does not have"),
        (
            "mkdir /tmp/deep/c; mv /tmp/c/2 /tmp/deep/c/; : >/tmp/deep/c/2/host.json",
            "/tmp/deep/c/2/host.json does not have",
        ),
        # The machine does not wait for a writer, and follows no link of another user's.
        ("rm /tmp/c/1/host.json; mkfifo /tmp/c/1/host.json", "/tmp/c/1/host.json does not have"),
        (
            "mv /tmp/c/1/host.json /tmp/x; ln -s /tmp/x /tmp/c/1/host.json; chown -h 65534 /tmp/c/1/host.json",
            "/tmp/c/1/host.json",
        ),
    ],
)
def test_each_file_has_the_text(starter: Path, tmp_path: Path, more: str, why: str) -> None:
    record = ("each-file-has", STAYS, "/tmp/c/*/host.json", "/tmp/deep/c/*/host.json")
    found = run_starter(starter, tmp_path, describe(*UNIT, record, SLEEP), before=f"{CONTAINERS}{more}\n")
    assert (found.status, bool(found.main_pid)) == (int(bool(why)), not why)
    assert why in found.reason


def test_a_text_without_a_pattern_starts_nothing(starter: Path, tmp_path: Path) -> None:
    assert "lacks words" in reason(starter, tmp_path, ("each-file-has", STAYS))
