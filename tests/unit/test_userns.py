"""Subordinate ids from getsubids(1), and the message when the host does not allow user namespaces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from quickstart.errors import CommandError, MissingToolError, NeedsRootError
from quickstart.host import door, userns


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What getsubids prints for user and group ids."""
    answers = {"uid": "", "gid": ""}

    def run(argv: Sequence[str | Path], **_: object) -> door.Completed:
        text = answers["gid" if "-g" in argv else "uid"]
        return door.Completed(tuple(map(str, argv)), 0 if text else 1, text.encode(), b"")

    monkeypatch.setattr(door, "need_tools", lambda *tools: None)
    monkeypatch.setattr(door, "run", run)
    return answers


def test_the_first_range_that_is_large_enough(said: dict[str, str]) -> None:
    said["uid"] = "0: u 700000 1000\n1: u 300000 65536\n2: u 100000 65535\n"
    said["gid"] = "0: u 500000 200000\n"
    assert userns.subordinate_ids() == userns.SubordinateIds(300_000, 500_000)


@pytest.mark.parametrize(
    ("uids", "gids", "lacking"),
    [("", "", "subuid"), ("0: u 1 65535\n", "0: u 1 65536\n", "subuid"), ("0: u 1 65536\n", "", "subgid")],
)
def test_without_enough_of_them(said: dict[str, str], uids: str, gids: str, lacking: str) -> None:
    said.update(uid=uids, gid=gids)
    with pytest.raises(NeedsRootError, match=f"/etc/{lacking}") as caught:
        userns.subordinate_ids()
    assert (caught.value.hint or "").startswith(
        "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 "
    )


def test_without_newuidmap(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*tools: str) -> None:
        raise MissingToolError(tools[0], "uidmap")

    monkeypatch.setattr(door, "need_tools", lacking)
    with pytest.raises(NeedsRootError, match="newuidmap is not installed") as caught:
        userns.subordinate_ids()
    assert caught.value.hint == "apt-get install uidmap, or run it as root"


@pytest.mark.parametrize(
    ("name", "value", "mend"),
    [
        ("user/max_user_namespaces", "0\n", "sysctl user.max_user_namespaces=65536"),
        ("kernel/unprivileged_userns_clone", "0\n", "sysctl kernel.unprivileged_userns_clone=1"),
        ("kernel/unprivileged_userns_clone", "1\n", "let the container have them"),
    ],
)
def test_a_host_that_allows_no_namespace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str, mend: str
) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(value)

    def fails(argv: Sequence[str], **_: object) -> None:
        raise CommandError(argv, 1, "unshare: unshare failed: Operation not permitted")

    monkeypatch.setattr(userns, "SYSCTL", tmp_path)
    monkeypatch.setattr(door, "run", fails)
    with pytest.raises(NeedsRootError, match="Operation not permitted") as caught:
        userns.check_namespaces()
    assert caught.value.hint == f"{mend}, or run it as root"


def test_the_hosts_root_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(NeedsRootError, match="a thing needs root of the host"):
        userns.need_host_root("a thing")
