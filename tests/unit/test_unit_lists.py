"""Directives whose values are lists: what an empty assignment clears, and words that systemd reads otherwise than one thinks."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.read import read_unit
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


# Where systemd 252 stops reading a drop-in, as `systemd --test` shows (tests of such lines behind each other: Nice= was not read).
FATAL = (
    *("ExecStop=bin/x", "ExecStop=~/bin/x", "ExecStop='/bin/x", "ExecReload=/bin/sh -c 'echo $(date +%F)'"),
    *("User=a:b\nUser=", "Group=a:b\nGroup=app", "SupplementaryGroups=x a:b\nSupplementaryGroups="),
    *(
        "WorkingDirectory=foo\nWorkingDirectory=",
        "RootDirectory=foo\nRootDirectory=",
        "ExecStartPre=./x\nExecStartPre=",
    ),
    *("DynamicUser=maybe\nDynamicUser=no", "DynamicUser=", "PIDFile=/a/../b", "ExecStopPost=/bin/x/"),
)


@pytest.mark.parametrize("lines", FATAL)
def test_lines_at_which_systemd_stops_reading(tmp_path: Path, lines: str) -> None:
    """What comes behind them in a drop-in does not count."""
    put(tmp_path, "/etc/systemd/system/app.service.d/a.conf", f"[Service]\n{lines}\nNoNewPrivileges=no\n")
    with pytest.raises(UnsupportedUnitError):
        read(tmp_path, SERVICE)


@pytest.mark.parametrize(
    "line",
    [
        *(
            "ExecReload=/bin/kill -HUP $MAINPID",
            "ExecStop=-@/bin/x x ; /bin/y",
            "ExecStop=+/bin/x 100%%",
            "PIDFile=app.pid",
        ),
        *("ExecReload=sh -c 'date +%%F'", "ExecStop=/bin/x %m %H %d"),
    ],
)
def test_lines_at_which_it_goes_on(tmp_path: Path, line: str) -> None:
    read(tmp_path, f"{SERVICE}{line}\n")


MORE = (
    *("StateDirectory=%i", "StateDirectory=.", 'RuntimeDirectory=""', "LimitNICE=infinity"),
    *("SecureBits=no-setuid-fixup\nSecureBits=noroot", "MemoryMax=1G\nMemoryMax=18446744073709551615"),
    *(
        "CPUSchedulingPolicy=fifo\nCPUSchedulingPriority=80\nCPUSchedulingPolicy=rr",
        "CPUSchedulingPriority=5",
    ),
    *("ExecStartPre=-+!/bin/x", "SystemCallFilter=~mo\\unt", "SystemCallFilter=@system-service mseal"),
    *("Slice=foo-%P.slice", "Sockets=foo.socket\nSockets=", "Type=notify-reload", "TimerSlackNSec=1.5"),
    *(
        "SyslogFacility=010",
        "CPUAffinity=0\nCPUAffinity=,\nCPUAffinity=1",
        "PassEnvironment=HOME",
        "WorkingDirectory=~",
    ),
    *(
        "StandardOutput=truncate:/var/log/x",
        "LimitNOFILE=18446744073709551615",
        "BindPaths=/srv:/",
        "TemporaryFileSystem=/",
    ),
    *(
        "PrivateTmp=yes\nBindPaths=-/tmp/.X11-unix",
        "TemporaryFileSystem=/var/lib\nBindPaths=/srv:/var/lib/app",
    ),
    *("TemporaryFileSystem=/var/lib\nStateDirectory=app", "PrivateTmp=yes\nBindPaths=/tmp/a:/srv/b"),
)


@pytest.mark.parametrize("lines", MORE)
def test_lines_that_systemd_takes_otherwise(tmp_path: Path, lines: str) -> None:
    with pytest.raises(UnsupportedUnitError):
        read(tmp_path, f"{SERVICE}{lines}\n")


def test_an_empty_class_or_priority_takes_back_both(tmp_path: Path) -> None:
    text = "IOSchedulingClass=realtime\nIOSchedulingPriority=2\nIOSchedulingPriority=\n"
    assert not [each for each in read(tmp_path, f"{SERVICE}{text}").settings if each[0] == "io-priority"]


@pytest.mark.parametrize("line", ["IOSchedulingClass=none", "IOSchedulingClass=0"])
def test_the_class_none_is_best_effort(tmp_path: Path, line: str) -> None:
    assert ("io-priority", "2", "4") in read(tmp_path, f"{SERVICE}{line}\n").settings


def test_a_tmpfs_at_run_counts_more_than_the_machines(tmp_path: Path) -> None:
    text = "TemporaryFileSystem=/run\nProtectControlGroups=yes\n"
    kept = [
        each[3] for each in read(tmp_path, f"{SERVICE}{text}").settings if each[:2] == ("mount", "as-it-is")
    ]
    assert kept == ["/dev", "/sys"]


def test_directories_in_systemds_order(tmp_path: Path) -> None:
    found = read(tmp_path, f"{SERVICE}RuntimeDirectory=b a b c/ a/d a-b\n").settings
    assert ("own-environment", "RUNTIME_DIRECTORY=/run/a:/run/a/d:/run/a-b:/run/b:/run/c") in found


def test_variables(tmp_path: Path) -> None:
    found = read(
        tmp_path, f"{SERVICE}PIDFile=/var/run//x.pid\nPassEnvironment=A_%p\nWatchdogSec=0\n"
    ).settings
    assert ("own-environment", "PIDFILE=/run/x.pid") in found
    assert ("pass-environment", "A_app") in found
    assert not [each for each in found if each[0] == "notify-access"]


def test_a_section_with_a_quote_ends_a_drop_in(tmp_path: Path) -> None:
    put(tmp_path, "/etc/systemd/system/app.service.d/a.conf", "[X-'a']\n[Service]\nNoNewPrivileges=no\n")
    with pytest.raises(UnsupportedUnitError, match="a section's name with quotes"):
        read(tmp_path, SERVICE)


@pytest.mark.parametrize("line", ["#" + "\u00e9" * 600_000, "#" * (1 << 20), " " * (1 << 20)])
def test_a_line_has_its_limit_in_bytes(tmp_path: Path, line: str) -> None:
    put(tmp_path, "/etc/systemd/system/app.service.d/a.conf", f"[Service]\n{line}\nNoNewPrivileges=no\n")
    with pytest.raises(UnsupportedUnitError, match="a line of more than"):
        read(tmp_path, SERVICE)


@pytest.mark.parametrize("instance", ["x-", "-x", "x--y", ".", "a-..-b", "x\\x4"])
def test_a_path_of_an_instance_that_systemd_cannot_unescape(tmp_path: Path, instance: str) -> None:
    put(tmp_path, "/usr/lib/systemd/system/app@.service", f"{SERVICE}ReadWritePaths=%f\n")
    with pytest.raises(UnsupportedUnitError):
        read_unit(ImageRoot(tmp_path), f"app@{instance}.service")


def test_who_shares_its_files_in_tmp(tmp_path: Path) -> None:
    """JoinsNamespaceOf= counts in both directions."""
    put(tmp_path, "/usr/lib/systemd/system/other.service", f"[Unit]\nJoinsNamespaceOf=app.service\n{SERVICE}")
    with pytest.raises(UnsupportedUnitError, match="has JoinsNamespaceOf= with its name"):
        read(tmp_path, SERVICE)
