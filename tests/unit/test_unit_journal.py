"""How systemd would connect a unit's output to journald, read from the image."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.facts import deciding
from quickstart.inspect.unit.journal import JOURNAL_SOCKETS, journal_sockets
from quickstart.inspect.unit.read import read_unit
from tests.unit.test_unit_settings import image, of, read

Record = tuple[str, ...]
OUTPUT = ("stdout", "stderr", "syslog-identifier", "syslog-priority", "syslog-level-prefix")
# Of systemd 252.
DEBIANS = """[Unit]
DefaultDependencies=no
IgnoreOnIsolate=yes
[Socket]
ListenDatagram=/run/systemd/journal/socket
ListenStream=/run/systemd/journal/stdout
PassCredentials=yes
PassSecurity=yes
ReceiveBuffer=8M
Service=systemd-journald.service
SocketMode=0666
Timestamping=us
"""
JOURNAL_SOCKET, LOG_SOCKET = JOURNAL_SOCKETS
OPTIONS = (("1", "16", "1"), ("1", "34", "1"), ("1", "33", str(8 << 20)), ("1", "29", "1"))


@pytest.mark.parametrize(
    ("text", "records"),
    [
        ("", []),
        ("StandardOutput=journal\nStandardError=journal", []),
        ("StandardOutput=syslog", [("stdout", "log")]),
        ("StandardOutput=null\nStandardError=journal", [("stdout", "null"), ("stderr", "log")]),
        # The manager's default, and not standard input.
        ("StandardOutput=inherit", []),
        ("StandardOutput=journal+console", [("stdout", "log", "0", "1")]),
        ("StandardOutput=kmsg", [("stdout", "log", "1", "0")]),
        ("StandardError=kmsg+console", [("stderr", "log", "1", "1")]),
        ("StandardError=append:/var/log/%p", [("stderr", "append", "/var/log/app")]),
        ("SyslogIdentifier=the-%p", [("syslog-identifier", "the-app")]),
        ("SyslogFacility=local7\nSyslogLevel=debug", [("syslog-priority", str(23 << 3 | 7))]),
        ("SyslogFacility=0", [("syslog-priority", "6")]),
        ("SyslogFacility=daemon\nSyslogLevel=6", []),
        ("SyslogLevelPrefix=no", [("syslog-level-prefix", "no")]),
    ],
)
def test_the_output(tmp_path: Path, text: str, records: list[Record]) -> None:
    assert of(read(tmp_path, text), *OUTPUT) == records


@pytest.mark.parametrize(
    "text",
    [
        "StandardOutput=tty",
        "StandardOutput=file:log",
        "StandardError=socket",
        "SyslogFacility=every",
        "SyslogFacility=128",
        "SyslogLevel=8",
        "SyslogLevelPrefix=perhaps",
        "LogNamespace=own",
    ],
)
def test_what_cannot_be_repeated(tmp_path: Path, text: str) -> None:
    with pytest.raises(UnsupportedUnitError, match=text.partition("=")[0]):
        read(tmp_path, text)


def test_the_manager_s_default(tmp_path: Path) -> None:
    root = image(tmp_path, "", "app.service")
    (tmp_path / "etc/systemd").mkdir(parents=True, exist_ok=True)
    (tmp_path / "etc/systemd/system.conf").write_text("[Manager]\nDefaultStandardOutput=null\n")
    assert of(read_unit(root, "app.service"), *OUTPUT) == [("stdout", "null")]


def with_journal(base: Path, text: str, drop_in: str = "") -> ImageRoot:
    root = image(base, "", "app.service")
    units = base / "usr/lib/systemd/system"
    units.mkdir(parents=True, exist_ok=True)
    (units / JOURNAL_SOCKET).write_text(text)
    if drop_in:
        place = base / f"etc/systemd/system/{JOURNAL_SOCKET}.d"
        place.mkdir(parents=True)
        (place / "own.conf").write_text(drop_in)
    return root


def test_debian_s_socket_unit(tmp_path: Path) -> None:
    root = with_journal(tmp_path, DEBIANS)
    datagrams, streams = read_unit(root, "app.service").journal_sockets
    place = "/run/systemd/journal"
    assert datagrams.records[0][:4] == ("journal-socket", "datagram", JOURNAL_SOCKET, "2147483647")
    assert datagrams.records[0][4:] == ("unix", f"{place}/socket", "0666", "0755", "-", "-")
    assert streams.records[0] == (
        *("journal-socket", "stream", JOURNAL_SOCKET, "2147483647"),
        *("unix", f"{place}/stdout", "0666", "0755", "-", "-"),
    )
    assert sorted(streams.records[1:]) == sorted(("socket-option", *option) for option in OPTIONS)


def test_a_change_of_the_socket_unit_counts_at_each_boot(tmp_path: Path) -> None:
    found = deciding(with_journal(tmp_path, DEBIANS, "[Socket]\nReceiveBuffer=1M\n"), "app.service")
    assert PurePosixPath("/usr/lib/systemd/system") / JOURNAL_SOCKET in found.files
    assert PurePosixPath(f"/etc/systemd/system/{JOURNAL_SOCKET}.d") in found.places


def test_a_condition_of_the_socket_unit_is_the_unit_s(tmp_path: Path) -> None:
    root = with_journal(tmp_path, DEBIANS, "[Unit]\nConditionPathExists=/etc/logs\n")
    (record,) = of(read_unit(root, "app.service"), "unit-condition")
    assert record[-1] == "/etc/logs"


def test_a_socket_that_init_cannot_bind(tmp_path: Path) -> None:
    root = with_journal(tmp_path, DEBIANS, "[Socket]\nBindToDevice=eth0\n")
    with pytest.raises(UnsupportedUnitError, match=rf"{JOURNAL_SOCKET} cannot be bound early: it has Bind"):
        read_unit(root, "app.service")


def test_a_masked_socket_unit(tmp_path: Path) -> None:
    root = with_journal(tmp_path, DEBIANS)
    place = tmp_path / "etc/systemd/system"
    place.mkdir(parents=True, exist_ok=True)
    (place / JOURNAL_SOCKET).symlink_to("/dev/null")
    assert journal_sockets(root) == ()
    assert read_unit(root, "app.service").journal_sockets == ()


def test_syslog_s_socket_and_its_link(tmp_path: Path) -> None:
    root = with_journal(tmp_path, DEBIANS)
    text = "[Socket]\nListenDatagram=/run/systemd/journal/dev-log\nSymlinks=/dev/log\n"
    place = tmp_path / "usr/lib/systemd/system" / LOG_SOCKET
    place.write_text(text)
    *_, found = journal_sockets(root)
    assert found.records[0][5:7] == ("/run/systemd/journal/dev-log", "0666")
    assert found.records[1:] == (("journal-link", "/run/systemd/journal/dev-log", "/dev/log"),)
    for more in ("Symlinks=/etc/passwd", "ListenStream=/run/systemd/x"):
        place.write_text(f"{text}{more}\n")
        with pytest.raises(
            UnsupportedUnitError, match=f"{LOG_SOCKET} cannot be bound early: it has Symlinks="
        ):
            journal_sockets(root)
