"""The output of `quickstart doctor`: a mark, a need, what was found, and the line that mends it; no markup."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quickstart import doctor as needs
from quickstart.cli.doctor import _show
from quickstart.cli.output import Plain
from quickstart.launch import accel
from quickstart.store.store import Store


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


def test_a_link_or_pipe_of_an_image_is_no_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (boot := tmp_path / "reference/key/root/boot").mkdir(parents=True)
    (boot / "vmlinuz-1").write_bytes(b"kernel")
    (tmp_path / "secret").write_text("of the host")
    (boot / "vmlinuz-2").symlink_to(tmp_path / "secret")
    os.mkfifo(boot / "vmlinuz-3")
    tried: list[Path] = []

    def choose(kernel: Path, store: Store) -> accel.Accelerator:
        tried.append(kernel)
        return accel.tcg("it was tried")

    monkeypatch.setattr(accel, "choose", choose)
    assert needs._accelerator(Store(tmp_path)).detail == "it was tried"
    assert tried == [boot / "vmlinuz-1"]
