"""The verdict on KVM that the store keeps: what is no verdict is not believed, and made again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from quickstart.host import door
from quickstart.launch import accel
from quickstart.store.store import Store


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The kernels that were tried, on a host whose KVM works."""
    kernels: list[Path] = []

    def works(kernel: Path) -> bool:
        kernels.append(kernel)
        return True

    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path == "/dev/kvm" or access(path, mode))
    monkeypatch.setattr(door, "run", lambda argv, **more: door.Completed(("qemu",), 0, b"QEMU 1\n", b""))
    monkeypatch.setattr(accel, "_try_kvm", works)
    return kernels


def replaced_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_text(""),
        lambda path: path.write_text('{"works": "yes"}'),
        lambda path: path.write_text("{}"),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_bytes(b'{"works": true, "boot": "\xff"}'),
        replaced_by_pipe,
        lambda path: (path.unlink(), path.symlink_to("elsewhere.json")),
    ],
)
def test_what_is_no_verdict_is_made_again(
    tmp_path: Path, tried: list[Path], spoil: Callable[[Path], object]
) -> None:
    (kernel := tmp_path / "kernel").write_bytes(b"kernel")
    with Store(tmp_path / "store") as store:
        assert accel.choose(kernel, store).name == "kvm"
        assert accel.choose(kernel, store).name == "kvm"
        assert len(tried) == 1
        (verdict,) = (store.root / "verdicts").iterdir()
        spoil(verdict)
        # What a process with our number left when it was killed.
        verdict.with_suffix(f".{os.getpid()}").symlink_to("elsewhere")
        assert accel.choose(kernel, store).name == "kvm"
        assert accel.choose(kernel, store).name == "kvm"
    assert len(tried) == 2
    assert json.loads(verdict.read_text())["works"] is True
    assert list((store.root / "verdicts").iterdir()) == [verdict]
