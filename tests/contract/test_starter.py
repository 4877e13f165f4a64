"""The starter in namespaces of this host: every Type=, the commands around it, and its message when a unit does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.starterbox import SLEEP, Record, Units, run_starter

# Units have cgroups.
pytestmark = pytest.mark.host_root


def shell(when: str, script: str, flags: str = "") -> Record:
    return "command", when, flags, "/bin/sh", "sh", "-c", script


# ---------------------------------------------------------------- types


def test_simple(units: Units) -> None:
    found = units.start(
        ("type", "simple"),
        SLEEP,
        stat="cat /proc/$MAIN/stat",
        command="tr '\\0' ' ' </proc/$MAIN/cmdline",
        group="cat $GROUP/cgroup.procs",
        fds="ls -l /proc/$MAIN/fd | sed -n 's/.* \\([0-9]* -> .*\\)/\\1/p'; readlink /proc/$MAIN/cwd",
        ignored="sed -n 's/^Sig\\(Ign\\|Blk\\):\\t//p' /proc/$MAIN/status",
    )
    assert (found.status, found.reason) == (0, ""), found.log
    stat = found.answers["stat"].rpartition(")")[2].split()
    # State, parent, process group, session: a child of PID 1 with a session of its own. On a busy host it may not sleep yet.
    assert stat[0] in ("R", "S")
    assert stat[1:4] == ["1", found.main_pid, found.main_pid]
    assert found.answers["command"] == "sleep 600 "
    assert found.answers["group"] == found.main_pid
    assert found.answers["fds"].splitlines() == [
        "0 -> /dev/null",
        "1 -> /var/log/quickstart.log",
        "2 -> /var/log/quickstart.log",
        "/",
    ]
    assert found.answers["ignored"].splitlines() == ["0000000000000000", "0000000000001000"]


@pytest.mark.parametrize("kind", ["simple", "exec"])
def test_a_program_that_is_not_there(units: Units, kind: str) -> None:
    found = units.start(("type", kind), ("command", "main", "", "/no/such", "x"))
    assert (found.status, found.main_pid) == (1, "")
    assert found.reason == "Exec main: /no/such cannot be executed: No such file or directory"


FORKS = "sleep 600 & sleep 600 & echo $! >/run/app.pid; mkdir /run/left; kill -9 $!; exec sleep 600 & echo $! >/run/app.pid"


def test_forking_with_a_pid_file(units: Units) -> None:
    found = units.start(
        ("type", "forking"),
        ("pid-file", "/run/app.pid"),
        shell("main", "sleep 600 & (sleep 0.3; sleep 600 & echo $! >/run/app.pid) &"),
        named="cat /run/app.pid",
        parent="cut -d' ' -f4 /proc/$MAIN/stat",
    )
    assert (found.status, found.reason) == (0, ""), found.log
    assert found.main_pid == found.answers["named"] != ""
    assert found.answers["parent"] == "1"


def test_a_pid_file_that_names_no_process_of_the_unit(units: Units) -> None:
    found = units.start(
        ("type", "forking"),
        ("pid-file", "/run/app.pid"),
        ("start-timeout-ms", "500"),
        shell("main", "sleep 600 & echo 1 >/run/app.pid"),
        left="grep populated $GROUP/cgroup.events",
    )
    assert (found.status, found.reason) == (1, "/run/app.pid names no process of the unit")
    assert found.answers["left"] == "populated 0"


def test_forking_without_a_pid_file(units: Units) -> None:
    found = units.start(
        ("type", "forking"),
        shell("main", "sh -c 'sleep 601 & exec sleep 600' &"),
        command="until tr '\\0' ' ' </proc/$MAIN/cmdline | grep '^sleep 600'; do sleep 0.1; done",
    )
    assert (found.status, found.reason) == (0, ""), found.log
    assert found.answers["command"] == "sleep 600 "


def test_two_daemons_without_a_pid_file(units: Units) -> None:
    found = units.start(("type", "forking"), shell("main", "sleep 600 & sleep 600 &"))
    assert found.status == 1
    assert found.reason == "Type=forking without PIDFile=: 2 processes are left, which is the main one?"


def test_a_unit_that_has_no_main_process(units: Units) -> None:
    found = units.start(
        *(("type", "forking"), ("main-process", "any")),
        shell("main", "sleep 600 & sleep 600 &"),
        # The shell's child may not have executed sleep yet.
        command="until tr '\\0' ' ' </proc/$MAIN/cmdline | grep '^sleep 600'; do sleep 0.1; done",
    )
    assert (found.status, found.reason, found.answers["command"]) == (0, "", "sleep 600 ")
    none = units.start(*(("type", "forking"), ("main-process", "any")), shell("main", "true"))
    assert none.reason == "Type=forking without PIDFile=: 0 processes are left, which is the main one?"


def test_a_start_command_that_fails(units: Units) -> None:
    found = units.start(
        ("type", "forking"),
        shell("main", "sleep 600 & echo oops >&2; exit 3"),
        left="grep populated $GROUP/cgroup.events",
    )
    assert (found.status, found.reason) == (1, "Exec main: sh ended with status 3")
    assert found.answers["left"] == "populated 0"
    assert "oops" in found.log


NOTIFIER = """
import os, socket, sys, time
def say(text):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        to.connect(os.environ["NOTIFY_SOCKET"])
        to.send(text.encode())
"""


def python(script: str) -> Record:
    return "command", "main", "", "/usr/bin/python3", "python3", "-c", NOTIFIER + script


NOTIFY: tuple[Record, ...] = (("type", "notify"), ("notify-access", "main"))


def test_notify(units: Units) -> None:
    found = units.start(
        *NOTIFY,
        python("time.sleep(0.3); open('/run/said', 'w').close(); say('STATUS=x\\nREADY=1'); time.sleep(600)"),
        said="ls /run/said; ls -l /run/systemd/notify | cut -c1-10",
    )
    assert (found.status, found.reason) == (0, ""), found.log
    assert found.answers["said"].splitlines() == ["/run/said", "srwxrwxrwx"]


def test_notify_is_not_heard_from_others(units: Units) -> None:
    fork = "\nif os.fork() == 0: say('READY=1'); time.sleep(600)\ntime.sleep(600)"
    found = units.start(*NOTIFY, ("start-timeout-ms", "1000"), python(fork))
    assert (found.status, found.reason) == (1, "no READY=1 within the unit's TimeoutStartSec")
    found = units.start(("type", "notify"), ("notify-access", "all"), python(fork))
    assert (found.status, found.reason) == (0, ""), found.log
    outside = NOTIFIER + "time.sleep(0.5); say('READY=1')"
    (units.work / "outside.py").write_text(outside)
    found = units.start(
        ("type", "notify"),
        ("notify-access", "all"),
        ("start-timeout-ms", "1500"),
        SLEEP,
        before="(NOTIFY_SOCKET=/run/systemd/notify python3 /run/box/outside.py; echo heard >/run/outside) &",
        outside="cat /run/outside",
    )
    assert (found.status, found.answers["outside"]) == (1, "heard")


def test_notify_by_another_main_process(units: Units) -> None:
    found = units.start(
        *NOTIFY,
        python(
            "\nchild = os.fork()\nif child == 0: time.sleep(600)\nsay(f'MAINPID={child}\\nREADY=1')\n"
            "open('/run/child', 'w').write(str(child)); time.sleep(600)"
        ),
        child="sleep 0.2; cat /run/child",
    )
    assert (found.status, found.main_pid) == (0, found.answers["child"])


def test_notify_by_a_daemon_whose_parent_ends(units: Units) -> None:
    """The parent names its child and ends; the child says READY=1 later."""
    found = units.start(
        *NOTIFY,
        python(
            "\nchild = os.fork()\nif child == 0: time.sleep(1); say('READY=1'); time.sleep(600)\n"
            "open('/run/child', 'w').write(str(child)); say(f'MAINPID={child}')"
        ),
        child="cat /run/child; echo; cut -d' ' -f4 /proc/$MAIN/stat",
    )
    assert (found.status, found.reason) == (0, ""), found.log
    assert found.answers["child"].split() == [found.main_pid, "1"]


def test_more_time_by_notify(units: Units) -> None:
    more = "say('EXTEND_TIMEOUT_USEC=20000000'); time.sleep(1.5); say('READY=1'); time.sleep(600)"
    found = units.start(*NOTIFY, ("start-timeout-ms", "1000"), python(more))
    assert (found.status, found.reason) == (0, ""), found.log


@pytest.mark.parametrize("asked", ["20000000", "9223372036854775807"])
@pytest.mark.parametrize("timeout_ms", ["1000", "0"])
def test_nobody_gets_more_time_than_an_early_start_has(units: Units, asked: str, timeout_ms: str) -> None:
    """The whole machine waits for it: a service that asks again and again, or has no TimeoutStartSec=, is systemd's."""
    more = f"\nwhile True: say('EXTEND_TIMEOUT_USEC={asked}'); time.sleep(0.1)"
    limits = (("start-timeout-ms", timeout_ms), ("longest-start-ms", "2500"))
    found = units.start(*NOTIFY, *limits, python(more), left="grep populated $GROUP/cgroup.events")
    assert (found.status, found.reason) == (1, "no READY=1 within the time of an early start")
    assert found.answers["left"] == "populated 0"


def test_a_command_without_a_limit_has_that_of_an_early_start(units: Units) -> None:
    limits = (("start-timeout-ms", "0"), ("longest-start-ms", "500"))
    found = units.start(("type", "exec"), *limits, shell("pre", "sleep 600"), SLEEP)
    assert (found.status, found.reason) == (1, "Exec pre: sh took longer than the time of an early start")


def test_a_socket_that_is_never_empty_does_not_keep_the_machine(units: Units) -> None:
    # Each line is looked up in /proc, so that to hear it takes longer than to say it.
    flood = (
        "\nlines = f'MAINPID={os.getpid()}\\n'.encode() * 200\nfor n in range(3): os.fork()"
        "\nwith socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:"
        "\n  to.connect(os.environ['NOTIFY_SOCKET'])\n  while True: to.send(lines)"
    )
    found = units.start(
        ("type", "notify"), ("notify-access", "all"), ("start-timeout-ms", "1500"), python(flood)
    )
    assert (found.status, found.reason) == (1, "no READY=1 within the unit's TimeoutStartSec")


def test_a_main_process_that_ends_before_it_is_ready(units: Units) -> None:
    found = units.start(*NOTIFY, python("sys.exit(0)"))
    assert (found.status, found.reason) == (1, "the main process ended before READY=1")


# ---------------------------------------------------------------- the commands around it


def test_the_commands_and_their_order(units: Units) -> None:
    def note(what: str) -> str:
        return f"echo {what} $MAINPID >>/run/order"

    found = units.start(
        ("type", "exec"),
        shell("post", note("post")),
        shell("pre", note("pre1") + "; exit 1", "-"),
        shell("pre", note("pre2")),
        shell("condition", note("condition")),
        shell("main", note("main") + "; exec sleep 600"),
        order="sleep 0.2; cat /run/order",
    )
    assert (found.status, found.reason) == (0, ""), found.log
    lines = found.answers["order"].splitlines()
    assert lines[:3] == ["condition", "pre1", "pre2"]
    assert sorted(lines[3:]) == ["main", f"post {found.main_pid}"]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (shell("pre", "exit 4"), "Exec pre: sh ended with status 4"),
        (shell("pre", "kill -9 $$", ":"), "Exec pre: sh was ended by signal 9"),
        (shell("pre", "sleep 600"), "Exec pre: sh took longer than the unit's TimeoutStartSec"),
        (shell("condition", "exit 1"), "Exec condition: sh ended with status 1"),
        (shell("post", "exit 5"), "Exec post: sh ended with status 5"),
    ],
)
def test_a_command_that_fails_ends_the_unit(units: Units, record: Record, reason: str) -> None:
    found = units.start(
        ("type", "exec"),
        ("start-timeout-ms", "1000"),
        record,
        SLEEP,
        left="grep populated $GROUP/cgroup.events",
    )
    assert (found.status, found.main_pid, found.reason) == (1, "", reason)
    assert found.answers["left"] == "populated 0"


# ---------------------------------------------------------------- descriptions that do not hold


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ((("type", "exec"),), "the description has no main command"),
        ((("type", "exec"), ("command", "main", "", "/bin/sh")), "the description's `command` lacks words"),
        ((("type", "exec"), ("user", "no-such-user"), SLEEP), "/etc/passwd has no `no-such-user`"),
        ((("type", "exec"), ("nice", "much"), SLEEP), "Exec main: `much` in the description is no number"),
        ((("type", "exec"), ("nice",), SLEEP), "Exec main: the description's `nice` lacks words"),
        ((("type", "exec"), ("sandbox", "all"), SLEEP), "the description has an unknown `sandbox`"),
        ((("type", "idle"), SLEEP), "the description has an unknown type `idle`"),
    ],
)
def test_a_description_that_does_not_hold(units: Units, records: tuple[Record, ...], reason: str) -> None:
    found = units.start(*records)
    assert (found.status, found.reason) == (1, reason)


@pytest.mark.parametrize(
    "text", ["", "quickstart-unit 2\n", "quickstart-unit 1\nunit a", "quickstart-unit 1\nunit a\\y\n"]
)
def test_a_description_that_is_damaged(starter: Path, tmp_path: Path, text: str) -> None:
    found = run_starter(starter, tmp_path, text)
    assert found.status == 1
    assert found.reason
