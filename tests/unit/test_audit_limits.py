"""The audit of an OUT with more faults, patterns and files than anybody reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from quickstart.artefact import audit as auditing
from quickstart.artefact.audit import ERROR, MOST_FINDINGS, NOTE
from quickstart.cli.main import group
from quickstart.initramfs.newc import (
    directory,
    regular,
)
from quickstart.inspect.globs import matches
from quickstart.model import Artefact
from tests.unit.audited import (
    KEY,
    artefact,
    audit,
)
from tests.unit.hostile import bounded

MANY = 400
FAULTY = tuple(regular(f"fast/etc/{number:03}/.netrc", b"", 0o6777) for number in range(MANY))
FAULTS = (*(directory(each.name.rpartition("/")[0]) for each in FAULTY), *FAULTY)


@pytest.fixture
def faulty(tmp_path: Path) -> Artefact:
    """An OUT with a few faults for each of many files, and a note."""
    made = artefact(tmp_path, *FAULTS, listing=False)
    (tmp_path / "notes.txt").touch()
    return made


def test_the_first_findings_are_kept_and_all_are_counted(faulty: Artefact) -> None:
    found = auditing.audit(faulty)
    # Each file is a secret by its name, setuid, writable by everybody and not listed; each directory is not listed.
    assert (found.errors, found.notes) == (5 * MANY, 1)
    assert len(found.first) == MOST_FINDINGS
    assert {each.severity for each in found.first} == {ERROR}
    assert found.left_out == 5 * MANY + 1 - MOST_FINDINGS


def test_what_is_not_shown_is_said(faulty: Artefact) -> None:
    called = CliRunner().invoke(group, ["audit", str(faulty.directory)])
    assert called.exit_code == 1
    *lines, more, _, last = called.stdout.splitlines()
    assert len(lines) == 2 * MOST_FINDINGS
    assert more == f"and {5 * MANY + 1 - MOST_FINDINGS} more findings, which are not shown"
    assert last.endswith(f": {5 * MANY} errors, 1 notes")


def test_the_document_counts_what_it_leaves_out(faulty: Artefact) -> None:
    called = CliRunner().invoke(group, ["audit", str(faulty.directory), "--json"])
    assert called.exit_code == 1
    result = json.loads(called.stdout)["result"]
    assert (result["clean"], result["errors"], result["notes"]) == (False, 5 * MANY, 1)
    assert (len(result["findings"]), result["left_out"]) == (MOST_FINDINGS, 5 * MANY + 1 - MOST_FINDINGS)


def test_many_long_patterns_for_secrets_take_no_time(tmp_path: Path) -> None:
    """Each pattern is compared with each private file once, and reads its name once."""
    private = [regular(f"fast/etc/{'a' * 3800}{number:02}", b"", 0o600) for number in range(25)]
    globs = tuple(f"/**{'a*' * 20}{number:03}*" for number in range(100))
    made = artefact(tmp_path, *private, secrets=globs)
    with bounded(20):
        found = audit(made)
    named = {each.object for each in found if "not everybody may read it" in each.what}
    assert named == {f"/{each.name}" for each in private}


def test_a_file_is_compared_once_for_all_its_findings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def matched(path: str, glob: str) -> bool:
        asked.append(path)
        return matches(path, glob)

    monkeypatch.setattr("quickstart.artefact.audit.names.matches", matched)
    key = regular("fast/etc/.netrc", KEY, 0o600)
    found = audit(artefact(tmp_path, key, secrets=("/etc/.netrc",)))
    assert [each.severity for each in found] == [NOTE] * 3
    assert asked == ["/etc/.netrc"]


def test_more_files_than_can_be_compared_are_not_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("quickstart.artefact.audit.names._MOST_COMPARED", 20)
    keys = [regular(f"fast/etc/key{number}", b"", 0o600) for number in range(3)]
    found = audit(artefact(tmp_path, *keys, secrets=("/etc/**",)))
    severities = {each.object: each.severity for each in found}
    assert severities == {
        "/fast/etc/key0": NOTE,
        "/fast/etc/key1": NOTE,
        "/fast/etc/key2": ERROR,
        "manifest.json": ERROR,
    }
