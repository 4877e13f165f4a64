"""Directives whose values are lists: what an empty assignment clears, and words that systemd reads otherwise than one thinks."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from tests.unit.unitreader import SERVICE, put, read


def test_an_empty_assignment_clears_the_values_of_both_names(tmp_path: Path) -> None:
    """As in a drop-in for Debian's redis-server.service, which mixes the names."""
    text = (
        "ProtectSystem=strict\nReadWritePaths=-/var/lib/app\nReadWriteDirectories=-/etc/app\nBindPaths=/srv/a\n"
        "ReadWritePaths=\nReadWritePaths=/var/log/app\nBindReadOnlyPaths=\nBindReadOnlyPaths=/srv/b\n"
    )
    mounts = [record[1:] for record in read(tmp_path, f"{SERVICE}{text}").settings if record[0] == "mount"]
    assert [each[2] for each in mounts if each[0] == "read-write"] == ["/var/log/app"]
    assert [each[3] for each in mounts if each[0].startswith("bind")] == ["/srv/b"]


@pytest.mark.parametrize("families", ["AF_UNIX INET", "none ~AF_PACKET", "AF_UNIX AF_NOTHING"])
def test_address_families_that_systemd_would_read_otherwise(tmp_path: Path, families: str) -> None:
    lines = "".join(
        f"RestrictAddressFamilies={each}\n" for each in families.replace("none ", "none\n").split("\n")
    )
    with pytest.raises(UnsupportedUnitError, match="RestrictAddressFamilies="):
        read(tmp_path, f"{SERVICE}{lines}")


@pytest.mark.parametrize(
    "line",
    [
        "CapabilityBoundingSet=CAP_SETUID CAP_NET_ADMIN\u00a0CAP_SYS_ADMIN",
        "RestrictAddressFamilies=AF_UNIX AF_INET\u2003AF_PACKET",
        "DeviceAllow=/dev/fuse\u00a0r",
        "CapabilityBoundingSet=CAP_\u017fYS_ADMIN",
        "DeviceAllow=/dev/shm/../fuse rw",
    ],
)
def test_words_that_systemd_would_read_otherwise(tmp_path: Path, line: str) -> None:
    with pytest.raises(UnsupportedUnitError):
        read(tmp_path, f"{SERVICE}{line}\n")


def test_a_device_behind_a_tab(tmp_path: Path) -> None:
    text = "DeviceAllow=/dev/null\tr\n"
    assert ("device", "r", "/dev/null") in read(tmp_path, f"{SERVICE}{text}").settings


@pytest.mark.parametrize(
    "lines",
    [
        "PrivateIPC=yes\nPrivateIPC=",
        "SyslogLevel=err\nSyslogLevel=",
        "StateDirectory=private",
        "CacheDirectory=./private/x",
        "BindPaths=/etc:",
        "BindPaths=/etc::rbind",
        "BindPaths=/a:/b:rbind:x",
        'BindReadOnlyPaths="/srv/data:/opt/x"',
        "SystemCallFilter=~ptrace mount\nSystemCallFilter=ptrace:",
        "SystemCallFilter=~ptrace: mount",
        "Environment=\u00e9=1",
        "Environment=A=\x01",
    ],
)
def test_lines_that_systemd_would_leave_out(tmp_path: Path, lines: str) -> None:
    """With them, an early start would have more rights than systemd gives, or other variables."""
    with pytest.raises(UnsupportedUnitError):
        read(tmp_path, f"{SERVICE}{lines}\n")


def test_an_empty_capability_set_of_the_manager(tmp_path: Path) -> None:
    put(tmp_path, "/etc/systemd/system.conf", "[Manager]\nCapabilityBoundingSet=\n")
    with pytest.raises(UnsupportedUnitError, match=r"system\.conf has CapabilityBoundingSet"):
        read(tmp_path, SERVICE)


@pytest.mark.parametrize("key", ["BindTo", "RequiresOverridable", "RequisiteOverridable"])
def test_earlier_names_of_requirements(tmp_path: Path, key: str) -> None:
    put(tmp_path, "/usr/lib/systemd/system/other.service", SERVICE)
    with pytest.raises(UnsupportedUnitError, match=r"other\.service"):
        read(tmp_path, f"[Unit]\n{key}=other.service\n{SERVICE}")
