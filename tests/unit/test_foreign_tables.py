"""Tables of a stranger's image with very many lines: each line of a byte beyond ASCII takes Python 80 bytes, not one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from quickstart.errors import BadInputError, StartSetError, UnsupportedUnitError
from quickstart.host.holes import data_size, segments
from quickstart.initramfs.modules import parse_dependencies
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.networkd import later_forwarding
from quickstart.reference.guest import place
from tests.unit.hostile import bounded
from tests.unit.unitreader import put


def test_triggers_of_dpkg(tmp_path: Path) -> None:
    """3 KB of a compressed archive were 1.5 GiB of memory."""
    put(tmp_path, "/var/lib/dpkg/status", "")
    triggers = tmp_path / "var/lib/dpkg/triggers/File"
    triggers.parent.mkdir(parents=True)
    triggers.write_bytes(b"\x80\n" * (8 << 20))
    with bounded(mib=256), pytest.raises(BadInputError, match="triggers/File of dpkg has more than"):
        place(tmp_path)


def test_one_stanza_of_dpkg(tmp_path: Path) -> None:
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").write_bytes(b"Package: a\n" + b"\x80\n" * (5 << 20))
    with bounded(mib=512):
        place(tmp_path)


def test_many_names_of_one_networkd_conf(tmp_path: Path) -> None:
    put(tmp_path, "/etc/systemd/networkd.conf.d/a.conf", "[Network]\n# \U0001f600" + "x" * (1 << 20))
    first = tmp_path / "etc/systemd/networkd.conf.d/a.conf"
    for number in range(40):
        os.link(first, first.with_name(f"b{number}.conf"))
    with (
        bounded(mib=256),
        pytest.raises(UnsupportedUnitError, match=r"networkd\.conf and its drop-ins have more"),
    ):
        later_forwarding(ImageRoot(tmp_path))


def test_many_modules() -> None:
    with bounded(mib=256), pytest.raises(StartSetError, match="more than 50000 modules"):
        parse_dependencies("".join(f"a{number}:\n" for number in range(60_000)))


@pytest.mark.parametrize("answer", [lambda at: 0, lambda at: 5, lambda at: at, lambda at: 1 << 40])
def test_a_file_system_that_does_not_say_where_its_holes_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Callable[[int], int]
) -> None:
    """Whoever has mounted a FUSE answers lseek(2) as he likes."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 3000)
    fd = os.open(path, os.O_RDONLY)
    monkeypatch.setattr(os, "lseek", lambda _fd, at, how: answer(at))
    try:
        found = list(segments(fd, 3000))
        assert data_size(fd, 3000) <= 3000
    finally:
        os.close(fd)
    assert len(found) <= 3000
    assert all(length > 0 for _, length in found)
