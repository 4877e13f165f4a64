"""The sockets that systemd would pass to the unit: `caretaker listen` binds them, and the starter passes them on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.starterbox import SLEEP, UNIT, Started, command, describe, run_starter, start

# It mounts what only root of the host may.
pytestmark = pytest.mark.host_root

INET = ("socket", "stream", "app.socket", "128", "inet", "127.0.0.1", "2947")
INET6 = ("socket", "stream", "app.socket", "128", "inet6", "::1", "2947")
UNIX = ("socket", "stream", "app.socket", "128", "unix", "/run/app/app.sock", "0600", "0750", "nobody", "-")
ABSTRACT = ("socket", "datagram", "other", "128", "abstract", "app")
# What is bound: the loopback interface of this box's own network.
ALONE = "ip link set lo up\n"
LISTEN = "tr '\\0' '\\n' </proc/$MAIN/environ | sed -n 's/^LISTEN_//p' | sort"
SOCKETS = 'for fd in /proc/$MAIN/fd/*; do readlink $fd | sed -n "s|^socket:.*|${fd##*/}|p"; done'
# It answers each connection to the first socket with the number of its descriptors.
ANSWERS = 'open(my $s, "+<&=", 3) or die; while (accept(my $c, $s)) { syswrite $c, "$ENV{LISTEN_FDS} passed\\n"; close $c }'
PERL = ("command", "main", ":", "/usr/bin/perl", "perl", "-e", ANSWERS)


def option(level: int, number: int, value: int) -> tuple[str, ...]:
    return "socket-option", str(level), str(number), str(value)


def ask(text: str) -> str:
    """A question: connect to the address that this Perl expression makes, and print the answer."""
    return f"perl -MSocket -e '{text} or die $!; print scalar <$s>'"


ASK_UNIX = ask('socket(my $s, AF_UNIX, SOCK_STREAM, 0); connect($s, sockaddr_un("/run/app/app.sock"))')
ASK_INET = ask(
    'socket(my $s, AF_INET, SOCK_STREAM, 0); connect($s, sockaddr_in(2947, inet_aton("127.0.0.1")))'
)


def names(found: Started) -> dict[str, str]:
    rows = found.answers["listen"].splitlines()
    return dict(row.split("=", 1) for row in rows)


def test_the_main_process_gets_the_sockets(starter: Path, tmp_path: Path) -> None:
    found = start(
        starter,
        tmp_path,
        UNIX,
        INET,
        ABSTRACT,
        PERL,
        before=ALONE,
        listen=LISTEN,
        sockets=SOCKETS,
        unix=ASK_UNIX,
        file="stat -c '%a %U %G %F' /run/app/app.sock; stat -c %a /run/app",
        held="readlink /proc/$MAIN/fd/3 | tr -dc 0-9; echo; grep -c ' 00010000 .* /run/app/app.sock$' /proc/net/unix",
    )
    assert names(found) == {"FDS": "3", "FDNAMES": "app.socket:app.socket:other", "PID": found.main_pid}
    assert found.answers["sockets"].split() == ["3", "4", "5"]
    assert found.answers["unix"] == "3 passed"
    assert found.answers["file"].splitlines() == ["600 nobody nogroup socket", "750"]
    assert found.answers["held"].splitlines()[1] == "1"


@pytest.mark.parametrize("records", [(INET, INET6), (INET6, INET)], ids=["4-6", "6-4"])
def test_sockets_have_the_order_of_their_records(
    starter: Path, tmp_path: Path, records: tuple[tuple[str, ...], ...]
) -> None:
    order = "for fd in 3 4; do readlink /proc/$MAIN/fd/$fd | tr -dc '0-9\\n'; done"
    tables = "for table in tcp tcp6; do awk '$4 == \"0A\" { print $10 }' /proc/net/$table; done"
    found = start(starter, tmp_path, *records, SLEEP, before=ALONE, order=order, tables=tables)
    inodes = found.answers["tables"].split()
    assert found.answers["order"].split() == (inodes if records[0] == INET else inodes[::-1])


def test_an_internet_socket_answers(starter: Path, tmp_path: Path) -> None:
    found = start(starter, tmp_path, INET, PERL, before=ALONE, answer=ASK_INET)
    assert found.answers["answer"] == "1 passed"


def test_a_queue_has_its_length(starter: Path, tmp_path: Path) -> None:
    """The backlog is the kernel's "sk_max_ack_backlog", the Send-Q column of ss(8)."""
    flags = "grep flags /proc/$MAIN/fdinfo/3"
    queue = "ss -Hltn | awk '{ print $3, $4 }'"
    found = start(starter, tmp_path, INET, SLEEP, before=ALONE, queue=queue, flags=flags)
    assert found.answers["queue"] == "128 127.0.0.1:2947"
    # O_RDWR alone: the process waits in accept(2), and the sockets stay open when it executes another program.
    assert found.answers["flags"].split() == ["flags:", "02"]


def test_the_options_are_set(starter: Path, tmp_path: Path) -> None:
    """Their numbers are those of the kernel: SO_KEEPALIVE, SO_PRIORITY, SO_RCVBUFFORCE, TCP_NODELAY, IPV6_V6ONLY."""
    show = (
        'open(my $s, "<&=", 3); for ([1, 9], [1, 12], [1, 8], [6, 1], [41, 26]) { '
        'print unpack("i", getsockopt($s, $_->[0], $_->[1])), "\\n" } sleep 600'
    )
    options = (option(1, 9, 1), option(1, 12, 1), option(1, 33, 8 << 20), option(6, 1, 1), option(41, 26, 1))
    perl = ("command", "main", ":", "/usr/bin/perl", "perl", "-e", f"$| = 1; {show}")
    out = ("stdout", "file", "/run/out")
    # A second socket has none of the first one's.
    found = start(
        starter, tmp_path, out, INET6, *options, INET, perl, before=ALONE, out="sleep 1; cat /run/out"
    )
    assert found.answers["out"].split() == ["1", "1", str(2 * (8 << 20)), "1", "1"]


@pytest.mark.parametrize("kind", ["stream", "datagram", "sequential-packet"])
def test_each_kind_of_socket(starter: Path, tmp_path: Path, kind: str) -> None:
    types = {"stream": "0001", "datagram": "0002", "sequential-packet": "0005"}
    record = (UNIX[0], kind, *UNIX[2:])
    found = start(starter, tmp_path, record, SLEEP, kind="awk '$8 ~ /app.sock/ { print $5 }' /proc/net/unix")
    assert found.answers["kind"] == types[kind]


def test_the_other_commands_get_none(starter: Path, tmp_path: Path) -> None:
    look = "ls -l /proc/self/fd | grep -c socket: >/run/$0; env | grep LISTEN >>/run/$0; true"
    pre = ("command", "pre", ":", "/bin/sh", "sh", "-c", f"set -- pre; {look.replace('$0', '$1')}")
    post = ("command", "post", ":", "/bin/sh", "sh", "-c", f"set -- post; {look.replace('$0', '$1')}")
    found = start(
        starter, tmp_path, INET, pre, SLEEP, post, before=ALONE, pre="cat /run/pre", post="cat /run/post"
    )
    assert (found.answers["pre"], found.answers["post"]) == ("0", "0")


def test_sixteen_sockets(starter: Path, tmp_path: Path) -> None:
    """Their numbers go beyond those that a shell uses for itself."""
    many = [(*ABSTRACT[:5], f"app-{number}") for number in range(16)]
    found = start(starter, tmp_path, *many, SLEEP, sockets=SOCKETS, listen=LISTEN)
    assert sorted(map(int, found.answers["sockets"].split())) == list(range(3, 19))
    assert names(found)["FDS"] == "16"


def companion(*record: str) -> tuple[str, ...]:
    return "companion-socket", *record[1:]


def test_a_companion_gets_its_own_sockets(starter: Path, tmp_path: Path) -> None:
    """PID 1 binds those of the whole stack: the last unit's, and behind them the companions'."""
    last = (INET, companion(*ABSTRACT), companion(*UNIX), option(1, 9, 1), companion(*INET6))
    (tmp_path / "last").write_text(describe(*UNIT, *last, SLEEP))
    found = start(
        starter, tmp_path, ("first-socket", "5"), UNIX, INET6, PERL,
        before=ALONE, listen=LISTEN, sockets=SOCKETS, unix=ASK_UNIX,
    )  # fmt: skip
    assert names(found) == {"FDS": "2", "FDNAMES": "app.socket:app.socket", "PID": found.main_pid}
    assert found.answers["sockets"].split() == ["3", "4"]
    assert found.answers["unix"] == "2 passed"


def test_the_last_unit_gets_none_of_its_companions(starter: Path, tmp_path: Path) -> None:
    found = start(
        starter, tmp_path, companion(*ABSTRACT), UNIX, companion(*INET), PERL,
        before=ALONE, listen=LISTEN, sockets=SOCKETS, unix=ASK_UNIX,
    )  # fmt: skip
    assert (names(found)["FDS"], found.answers["sockets"]) == ("1", "3")
    assert found.answers["unix"] == "1 passed"


@pytest.mark.parametrize("first", ["2", "18", "x"])
def test_a_companion_s_sockets_are_among_those_of_pid_1(starter: Path, tmp_path: Path, first: str) -> None:
    (tmp_path / "last").write_text(describe(*UNIT, INET, SLEEP))
    found = run_starter(
        starter, tmp_path, describe(*UNIT, ("first-socket", first), UNIX, INET, SLEEP), before=ALONE
    )
    assert found.status == 1
    assert "first-socket" in found.reason or "`x`" in found.reason


def test_sixteen_sockets_are_the_stack_s(starter: Path, tmp_path: Path) -> None:
    many = [(*ABSTRACT[:5], f"app-{number}") for number in range(10)]
    others = [companion(*ABSTRACT[:5], f"other-{number}") for number in range(7)]
    asked = "/run/caretaker listen all /run/unit /bin/sh -c 'echo \"$UNBOUND\"'"
    found = run_starter(starter, tmp_path, describe(*UNIT, *many, *others, SLEEP), {"unbound": asked})
    assert found.answers["unbound"] == "the description has more than 6 of `companion-socket`"
    found = start(starter, tmp_path, *many, *others[1:], SLEEP, sockets=SOCKETS)
    assert len(found.answers["sockets"].split()) == 10


def test_without_its_sockets_the_unit_does_not_start(starter: Path, tmp_path: Path) -> None:
    """PID 1 had no place for one of them. Nothing is bound then, and init goes on with the reason."""
    say = 'echo "$UNBOUND"; ls -l /proc/self/fd | grep -c socket:'
    asked = f"/run/caretaker listen all /run/unit /bin/sh -c '{say}'"
    found = run_starter(
        starter, tmp_path, describe(*UNIT, ABSTRACT, INET, INET, SLEEP), {"unbound": asked}, ALONE
    )
    assert (found.status, found.reason) == (1, "PID 1 has not bound the unit's sockets")
    assert found.answers["unbound"].splitlines()[0] == "127.0.0.1 cannot be bound: Address in use"
    assert found.answers["unbound"].splitlines()[-1] == "0"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (("socket", "stream", "x", "1", "inet", "127.0.0.1"), "the description's `socket` lacks words"),
        (
            ("socket", "raw", "x", "1", "inet", "127.0.0.1", "1"),
            "the description has an unknown kind of socket `raw`",
        ),
        (
            ("socket", "stream", "x", "1", "inet", "localhost", "1"),
            "the description has a bad address `localhost`",
        ),
        (("socket", "stream", "x", "1", "inet", "127.0.0.1", "0"), "`0` in the description is no port"),
        (
            ("socket", "stream", "x", "1", "abstract", "n" * 108),
            f"the description has a bad address `{'n' * 108}`",
        ),
    ],
)
def test_a_damaged_description(starter: Path, tmp_path: Path, record: tuple[str, ...], reason: str) -> None:
    asked = "/run/caretaker listen all /run/unit /bin/sh -c 'echo \"$UNBOUND\"'"
    found = run_starter(starter, tmp_path, describe(*UNIT, record, SLEEP), {"unbound": asked}, ALONE)
    assert found.status == 1
    assert found.answers["unbound"] == reason


def test_a_second_start_finds_them_free(starter: Path, tmp_path: Path) -> None:
    """A unit that does not start leaves the file, and init removes it (init/second)."""
    fails = command("pre", "exit 3")
    found = run_starter(starter, tmp_path, describe(*UNIT, UNIX, fails, SLEEP), {"file": "ls /run/app"})
    assert found.reason == "Exec pre: sh ended with status 3"
    assert found.answers["file"] == "app.sock"


def test_a_socket_is_in_the_directory_of_tmpfiles_d(starter: Path, tmp_path: Path) -> None:
    """systemd-tmpfiles comes before systemd's sockets. The mode of the directory may be all that keeps others out."""
    directory = ("run-directory", "0710", "nobody", "nogroup", "/run/app")
    found = start(starter, tmp_path, directory, UNIX, SLEEP, directory="stat -c '%a %U %G' /run/app")
    assert found.answers["directory"] == "710 nobody nogroup"


@pytest.mark.parametrize(
    ("owners", "expected"),
    [(("nobody", "-"), "nobody nogroup"), (("-", "adm"), "root adm"), (("-", "-"), "root root")],
)
def test_a_socket_has_its_user_s_group(
    starter: Path, tmp_path: Path, owners: tuple[str, str], expected: str
) -> None:
    """systemd.socket(5), SocketUser=: without SocketGroup= it is the user's default group."""
    found = start(starter, tmp_path, (*UNIX[:-2], *owners), SLEEP, file="stat -c '%U %G' /run/app/app.sock")
    assert found.answers["file"] == expected
