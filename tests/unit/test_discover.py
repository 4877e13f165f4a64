"""The readiness that `profile new` finds by itself: what the guest says of the unit's sockets, and what is made of that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.errors import BadInputError, NoProfileError
from quickstart.model import Readiness
from quickstart.newprofile import discover as module
from quickstart.newprofile.discover import Sockets, candidates, choose, discover, parse_sockets
from quickstart.newprofile.look import Look
from quickstart.newprofile.request import first_draft, wanted_ready

# Of a Debian 12 guest with nginx: its own listener, sshd's, a connection.
TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 9001 1 0000000000000000 100 0 0 10 0
   1: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 9002 1 0000000000000000 100 0 0 10 0
   2: 0F02000A:0050 0202000A:C350 01 00000000:00000000 00:00000000 00000000    33        0 9003 1 0000000000000000 20 4 30 10 -1
"""
UNIX = """\
Num       RefCount Protocol Flags    Type St Inode Path
ffff8f3d: 00000002 00000000 00010000 0001 01  9010 /run/app/app.sock
ffff8f3e: 00000003 00000000 00000000 0001 03  9011
ffff8f3f: 00000002 00000000 00010000 0001 01  9012 @abstract
ffff8f40: 00000002 00000000 00010000 0001 01  9013 /run/other.sock
ffff8f41: 00000002 00000000 00010000 0001 01  9014 /run/$(reboot)
"""
UDP = "  10: 00000000:007B 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 9020 2 0000000000000000 0\n"
OUT, IN = "0.0.0.0", "127.0.0.1"  # noqa: S104 - where a guest listens
NONE = Sockets(tcp=(), udp=(), unix=(), commands=())


def said(*inodes: int, tcp: str = TCP, commands: str = "nginx\nnginx\n", handed: tuple[int, ...] = ()) -> str:
    own = "".join(f"{inode}\n" for inode in inodes)
    first = "".join(f"{inode}\n" for inode in handed)
    tables = f"== tcp\n{tcp}== udp\n{UDP}== unix\n{UNIX}== end\n"
    return f"== commands\n{commands}== inodes\n{own}== handed\n{first}{tables}"


def test_only_the_units_own_sockets_count() -> None:
    assert parse_sockets(said(9002, 9003)) == Sockets(tcp=((OUT, 80),), udp=(), unix=(), commands=("nginx",))
    assert parse_sockets(said(9020)).udp == ((OUT, 123),)
    assert parse_sockets(said(9010, 9011, 9012, 9014)).unix == ("/run/app/app.sock",)


def test_what_systemd_has_bound_is_there_before_the_service() -> None:
    """A port of systemd's own that answers HTTP is asked all the same: the answer is the service's."""
    mine = (9001, 9002, 9010, 9020)
    found = parse_sockets(said(*mine, handed=(9002, 9010, 9020, 9999)))
    assert found == Sockets(
        tcp=((OUT, 22), (OUT, 80)), handed=((OUT, 80),), udp=(), unix=(), commands=("nginx",)
    )
    assert choose(found, {80: 200})[0]["kind"] == "http"
    assert choose(found, {})[0] == {"kind": "tcp", "port": 22}
    only = parse_sockets(said(9002, handed=(9002,)))
    assert choose(only, {})[0] == {"kind": "exec", "command": "grep -qsx nginx /proc/[0-9]*/comm"}


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert isinstance(parse_sockets(said(9002, tcp=text)), Sockets)


def test_names_that_a_shell_reads_otherwise_are_left_out() -> None:
    assert parse_sockets(said(commands="a b\n$(id)\nok-1.2\n\nx;y\n")).commands == ("ok-1.2",)


def test_ports_that_others_reach_come_first() -> None:
    places = (("127.0.0.1", 25), (OUT, 8080), ("::", 80), ("127.0.0.1", 80), ("::1", 9))
    assert candidates(places) == ((80, False), (8080, False), (25, True))


@pytest.mark.parametrize(
    ("sockets", "answers", "ready"),
    [
        ({"tcp": ((OUT, 80),)}, {80: 200}, {"kind": "http", "port": 80, "path": "/", "status": 200}),
        ({"tcp": ((OUT, 80),)}, {80: 404}, {"kind": "http", "port": 80, "path": "/", "status": 404}),
        ({"tcp": ((OUT, 80),)}, {80: 503}, {"kind": "tcp", "port": 80}),
        (
            {"tcp": ((OUT, 25), (OUT, 80))},
            {25: 0, 80: 200},
            {"kind": "http", "port": 80, "path": "/", "status": 200},
        ),
        ({"tcp": ((IN, 6379),)}, {}, {"kind": "tcp", "port": 6379, "address": "loopback"}),
        ({"tcp": ((IN, 80), (OUT, 22))}, {80: 0, 22: 0}, {"kind": "tcp", "port": 22}),
        (
            {"udp": ((OUT, 123),)},
            {},
            {"kind": "exec", "command": "grep -qs ':007B 0' /proc/net/udp /proc/net/udp6"},
        ),
        ({"unix": ("/run/a.sock", "/etc/b.sock")}, {}, {"kind": "exec", "command": "test -S /run/a.sock"}),
        ({"commands": ("cron",)}, {}, {"kind": "exec", "command": "grep -qsx cron /proc/[0-9]*/comm"}),
    ],
)
def test_the_best_that_there_is(
    sockets: Mapping[str, Any], answers: Mapping[int, int], ready: Mapping[str, object]
) -> None:
    table, why = choose(Sockets(**{**vars(NONE), **sockets}), answers)
    assert table == ready and why
    # A profile can have it.
    first_draft("app", ["app"], "app", table, "bookworm", 60)


def test_nothing_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="listen nowhere"):
        choose(NONE, {})


def test_without_ready_there_is_no_status() -> None:
    assert wanted_ready(None, None) is None
    assert wanted_ready("tcp:1", None) == {"kind": "tcp", "port": 1}
    with pytest.raises(BadInputError, match="--status"):
        wanted_ready(None, 200)


STATE = "== unit\nLoadState=loaded\nActiveState={}\nNRestarts=0\nResult=exit-code\n== system\n{}\n== end\n"


class Guest:
    """Answers looks one after the other, then always as the last time, and requests of HTTP by port."""

    def __init__(self, *looks: str, answers: Mapping[int, str] = {}) -> None:
        self.looks, self.answers = list(looks), answers
        self.asked: list[int] = []

    def execute(
        self,
        command: str,
        stdout: BinaryIO,
        stderr: BinaryIO,
        timeout_s: float,
        limit_bytes: int | None = None,
    ) -> int:
        if "/dev/tcp/" in command:
            port = int(command.partition("/dev/tcp/127.0.0.1/")[2].split()[0])
            self.asked.append(port)
            stdout.write(self.answers.get(port, "").encode())
        else:
            stdout.write((self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]).encode())
        return 0

    def is_running(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)


def found(guest: Any, limit_s: float = 60) -> tuple[Mapping[str, object], str]:
    return discover(guest, "app.service", limit_s)


def test_a_boot_is_watched_until_the_service_has_settled() -> None:
    guest = Guest(
        "",
        STATE.format("activating", "starting") + said(),
        *[STATE.format("active", "running") + said()] * 2,
        STATE.format("active", "running") + said(9001, 9002),
        answers={22: "SSH-2.0-OpenSSH\r\n", 80: "HTTP/1.1 301 Moved\r\n"},
    )
    table, why = found(guest)
    assert table == {"kind": "http", "port": 80, "path": "/", "status": 301}
    assert why == "it listens on port 80, and answers GET / with 301"
    assert guest.asked == [22, 80]


def test_a_service_that_fails_is_named() -> None:
    with pytest.raises(NoProfileError, match=r"app\.service fails by itself: exit-code"):
        found(Guest(STATE.format("failed", "starting") + said()))


def test_a_service_that_does_not_run_is_named() -> None:
    with pytest.raises(NoProfileError, match="does not run once the machine has booted"):
        found(Guest(STATE.format("inactive", "running") + said()))


def test_a_service_that_never_settles_is_named() -> None:
    with pytest.raises(NoProfileError, match="it had not settled after 0 s: it is activating"):
        found(Guest(STATE.format("activating", "starting") + said()), 0)


def test_what_cannot_be_asked_is_an_error_with_a_way_out() -> None:
    with pytest.raises(NoProfileError, match="listen nowhere") as caught:
        found(Guest(STATE.format("active", "degraded") + said(tcp="", commands="\n")))
    assert caught.value.hint == "say what to wait for by --ready"


def test_a_long_boot_keeps_the_last_looks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []

    def count(looks: list[Look], unit: str, ready: Readiness) -> str:
        kept.append(len(looks))
        return "enough" if len(kept) == 10 else ""

    monkeypatch.setattr(module, "failure", count)
    with pytest.raises(NoProfileError, match="enough"):
        found(Guest(STATE.format("activating", "starting") + said()))
    assert max(kept) == 3
