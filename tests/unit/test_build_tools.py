"""A build checks at its start for every tool that its options need, down to the last step."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.engines.boot import BuildOptions, TraceOptions, build, build_tools
from quickstart.errors import MissingToolError
from quickstart.host.progress import Quiet
from quickstart.model.words import DiskFormat
from quickstart.profile import load_profile
from quickstart.reference.debootstrap import reference_inputs
from quickstart.store.context import Context
from quickstart.store.store import Store

PROFILE = load_profile("nginx")
DEBOOTSTRAP = {"debootstrap", "gpgv", "unshare", "chroot"}


def asked(tmp_path: Path, rootfs: Path | None = None, disk_format: DiskFormat = DiskFormat.RAW) -> set[str]:
    options = BuildOptions(out=tmp_path / "out", disk_format=disk_format, tracing=TraceOptions(rootfs=rootfs))
    return set(build_tools(PROFILE, options, Store(tmp_path / "store")))


def test_each_option_asks_for_its_own(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "root.tar").write_bytes(b"")
    plain = asked(tmp_path, tmp_path / "tree")
    assert plain == {
        *(
            "mkfs.ext4",
            "debugfs",
            "e2fsck",
            "qemu-system-x86_64",
            "setpriv",
            "busybox",
            "strace",
            "cc",
            "musl-gcc",
            "cp",
        ),
    }
    assert asked(tmp_path, tmp_path / "tree", DiskFormat.QCOW2) == plain | {"qemu-img"}
    assert asked(tmp_path, tmp_path / "root.tar") == plain | {"tar"}
    assert asked(tmp_path) == plain | DEBOOTSTRAP
    with Store(tmp_path / "store") as store:
        store.get_or_make("reference", reference_inputs(PROFILE), lambda path: None)
    assert asked(tmp_path) == plain


@pytest.mark.parametrize("missing", ["qemu-img", "debootstrap", "gpgv", "chroot"])
def test_it_is_asked_for_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in asked(tmp_path, disk_format=DiskFormat.QCOW2) - {missing}:
        (tools / name).write_text("")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("QUICKSTART_TOOL_PATH", str(tools))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    options = BuildOptions(out=tmp_path / "out", disk_format=DiskFormat.QCOW2)
    with Store(tmp_path / "store") as store, pytest.raises(MissingToolError, match=f"^{missing} is not"):
        build(PROFILE, options, Context(store, Quiet()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tools"]
