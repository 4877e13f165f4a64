"""The launch archive has a way into each kind of initramfs that it is appended to."""

from __future__ import annotations

import io
import stat
from pathlib import Path

import pytest

from quickstart.initramfs.newc_reader import read_archive
from quickstart.launch.archive import launch_cpio


@pytest.fixture
def members(tmp_path: Path) -> dict[str, tuple[int, bytes]]:
    """The mode and content of each member, by its name."""
    agent = tmp_path / "agent"
    agent.write_bytes(b"program")
    archive = launch_cpio(agent, None, {"hooks/20-own": b":\n"})
    return {each.name: (each.mode, each.data) for each in read_archive(io.BytesIO(archive))}


def test_the_hooks_are_sourced_by_initramfs_tools(members: dict[str, tuple[int, bytes]]) -> None:
    assert {"launch/hooks/10-agent", "launch/hooks/20-own"} < members.keys()
    assert b'for hook in /launch/hooks/*; do . "$hook"; done' in members["conf/param.conf"][1]


def test_the_hooks_are_sourced_by_dracut(members: dict[str, tuple[int, bytes]]) -> None:
    """/lib is a link in its initramfs, which a directory of that name would replace."""
    place = "usr/lib/dracut/hooks"
    assert (
        b'for hook in /launch/hooks/*; do . "$hook"; done' in members[f"{place}/pre-trigger/00-launch.sh"][1]
    )
    assert b'mount --rbind /run "$NEWROOT/run"' in members[f"{place}/pre-pivot/00-launch.sh"][1]
    assert not {"lib", "bin", "sbin", "run", "etc"} & members.keys()


def test_each_directory_is_before_its_members(members: dict[str, tuple[int, bytes]]) -> None:
    names = list(members)
    for number, name in enumerate(names):
        parent = name.rpartition("/")[0]
        assert not parent or (parent in names[:number] and stat.S_ISDIR(members[parent][0])), name
