"""The output of a unit's commands goes to journald's socket, as systemd connects it (docs/internals/output.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.starterbox import SLEEP, UNIT, Started, command, describe, run_starter, start

# It mounts what only root of the host may.
pytestmark = pytest.mark.host_root

PLACE = "/run/systemd/journal"
# It takes what is said, and writes the user, the group and every line of each connection into a file of its own.
JOURNALD = f"""mkdir -p {PLACE} /run/said
perl -MSocket -e '
socket(my $s, AF_UNIX, SOCK_STREAM, 0); bind($s, sockaddr_un("{PLACE}/stdout")) or die; listen($s, 9);
chmod 0666, "{PLACE}/stdout"; open(my $up, ">", "/run/up"); close $up;
for (my $n = 1; accept(my $c, $s); $n++) {{
    next if fork;
    open(my $f, ">", "/run/said/$n"); $f->autoflush(1);
    my (undef, $uid, $gid) = unpack("iii", getsockopt($c, SOL_SOCKET, 17));
    print $f "$uid $gid\\n"; print $f $_ while <$c>; exit
}}' &
until [ -e /run/up ]; do sleep 0.01; done
"""
SAID = "sleep 0.5; cat /run/said/1"
COUNT = "ls /run/said | wc -l"
HELLO = command("main", "echo out; echo error >&2; exec sleep 600")
RECORD = (
    "journal-socket",
    "stream",
    "systemd-journald.socket",
    "128",
    "unix",
    f"{PLACE}/stdout",
    "0666",
    "0755",
    "-",
    "-",
)
DATAGRAMS = (
    "journal-socket",
    "datagram",
    "systemd-journald.socket",
    "128",
    "unix",
    f"{PLACE}/socket",
    "0666",
    "0755",
    "-",
    "-",
)


def said(found: Started) -> list[str]:
    return found.answers["said"].splitlines()


def test_one_stream_for_both(starter: Path, tmp_path: Path) -> None:
    variable = "tr '\\0' '\\n' </proc/$MAIN/environ | sed -n 's/^JOURNAL_STREAM=//p'"
    stream = f"stat -L -c %d:%i /proc/$MAIN/fd/1 /proc/$MAIN/fd/2; {variable}"
    found = start(
        starter, tmp_path, HELLO, before=JOURNALD, said=SAID, count=COUNT, stream=stream, log="ls /var/log"
    )
    # Identifier, unit, priority, prefix, to syslog, to the kernel, to the console (journald-stream.c).
    assert said(found) == ["0 0", "sh", "app.service", "30", "1", "0", "0", "0", "out", "error"]
    assert (found.answers["count"], found.answers["log"]) == ("1", "")
    assert len(set(found.answers["stream"].splitlines())) == 1


def test_what_the_unit_says_of_it(starter: Path, tmp_path: Path) -> None:
    labels = (
        *(("syslog-identifier", "the app"), ("syslog-priority", "191"), ("syslog-level-prefix", "no")),
        *(("stdout", "null"), ("stderr", "log", "1", "1")),
    )
    found = start(
        starter, tmp_path, *labels, HELLO, before=JOURNALD, said=SAID, out="readlink /proc/$MAIN/fd/1"
    )
    assert said(found) == ["0 0", "the app", "app.service", "191", "0", "0", "1", "1", "error"]
    assert found.answers["out"] == "/dev/null"


def test_the_name_of_the_unit_s_program(starter: Path, tmp_path: Path) -> None:
    found = start(starter, tmp_path, HELLO, ("command-name", "app.sh"), before=JOURNALD, said=SAID)
    assert said(found)[1] == "app.sh"


@pytest.mark.parametrize("flags", ["", "+", "!"])
def test_the_stream_is_the_user_s(starter: Path, tmp_path: Path, flags: str) -> None:
    """So journald sees him, not root; also of a command that systemd executes as root."""
    who = (("user", "nobody"), ("groups",), ("become-user",))
    main = command("main", "id -u; exec sleep 600", flags)
    found = start(starter, tmp_path, *who, main, before=JOURNALD, said=SAID)
    assert said(found)[0] == "65534 65534"
    assert said(found)[-1] == ("65534" if flags == "" else "0")


def test_each_command_has_its_own_stream(starter: Path, tmp_path: Path) -> None:
    pre = command("pre", "echo before")
    found = start(starter, tmp_path, pre, HELLO, before=JOURNALD, said=SAID, count=COUNT)
    assert (said(found)[-1], found.answers["count"]) == ("before", "2")


def test_nobody_reads_yet(starter: Path, tmp_path: Path) -> None:
    """systemd is not there yet: the kernel keeps what is said. The buffer is as large as systemd's (SO_SNDBUF)."""
    says = 'open(my $o, ">&=", 1); print {$o} "x" x (4 << 20), "\\n"; open(my $f, ">", "/run/done");'
    says += ' print $f unpack("i", getsockopt($o, 1, 7)); close $f; sleep 600'
    main = ("command", "main", ":", "/usr/bin/perl", "perl", "-e", f"$| = 1; {says}")
    silent = JOURNALD.replace("next if fork;", "sleep 600;")
    found = start(starter, tmp_path, main, before=silent, done="sleep 1; cat /run/done", count=COUNT)
    assert (found.answers["done"], found.answers["count"]) == (str(2 * (8 << 20)), "0")


# The paths of the sockets that its descriptors from 3 on are.
BOUND = """for fd in 3 4 5; do
    inode=$(readlink /proc/self/fd/$fd | tr -dc 0-9)
    awk -v inode="$inode" '$7 == inode { print $8 }' /proc/net/unix
done
"""


@pytest.mark.parametrize(
    ("which", "bound"),
    [("all", ["/run/app.sock", f"{PLACE}/socket", f"{PLACE}/stdout"]), ("unit", ["/run/app.sock"])],
)
def test_the_sockets_of_journald_come_behind_the_unit_s(
    starter: Path, tmp_path: Path, which: str, bound: list[str]
) -> None:
    own = ("socket", "stream", "app.socket", "128", "unix", "/run/app.sock", "0600", "0755", "-", "-")
    before = f"cat >/run/bound <<'END'\n{BOUND}END\n"
    asked = f"rm -f /run/app.sock {PLACE}/*; /run/caretaker listen {which} /run/unit /bin/sh /run/bound"
    found = start(starter, tmp_path, own, DATAGRAMS, RECORD, SLEEP, before=before, bound=asked)
    assert found.answers["bound"].splitlines() == bound


def test_a_socket_of_which_nobody_listens(starter: Path, tmp_path: Path) -> None:
    """No file in its place: the output would be lost to the journal without a word."""
    binds = f'socket(my $s, AF_UNIX, SOCK_STREAM, 0); bind($s, sockaddr_un("{PLACE}/stdout"))'
    before = f"mkdir -p {PLACE}; perl -MSocket -e '{binds}'\n"
    found = run_starter(starter, tmp_path, describe(*UNIT, SLEEP), {}, before)
    assert (found.status, found.reason) == (1, f"Exec main: {PLACE}/stdout: Connection refused")


def test_only_the_unit_s_sockets_are_the_main_process_s(starter: Path, tmp_path: Path) -> None:
    sockets = (
        'for fd in /proc/$MAIN/fd/*; do [ "$(readlink $fd | cut -c1-7)" != socket: ] || echo ${fd##*/}; done'
    )
    found = start(starter, tmp_path, RECORD, SLEEP, sockets=sockets)
    assert found.answers["sockets"].split() == ["1", "2"]
