"""The output of `quickstart doctor`: a mark, a need, what was found, and the line that mends it; no markup."""

from __future__ import annotations

import pytest

from quickstart import doctor as needs
from quickstart.cli.doctor import _show
from quickstart.cli.output import Plain


def test_marks_are_words(capsys: pytest.CaptureFixture[str]) -> None:
    findings = (
        needs.Finding(need="cp", state=needs.FOUND, detail="cp 9.1\nmore", mend="", optional=False),
        needs.Finding(
            need="tar",
            state=needs.MISSING,
            detail="[red]not[/red] there",
            mend="apt-get install tar",
            optional=False,
        ),
    )
    _show(Plain(), findings)
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "found cp cp 9.1",
        "missing tar [red]not[/red] there",
        "→ apt-get install tar",
    ]
