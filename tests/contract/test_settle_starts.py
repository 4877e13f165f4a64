"""What init's `settle` starts when systemd has the machine: units and sockets that systemd lacks, and nothing that was stopped."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.contract.initscript import function

# It mounts what only root of the host may.
pytestmark = pytest.mark.host_root

SECONDS = 60.0


@pytest.mark.parametrize(
    ("active", "load", "tried", "killed", "restarted"),
    [
        ("active", "loaded", "7", False, False),
        # It was adopted, and somebody stops it: keepalived on a node that is not the master, or an administrator's script.
        ("inactive entered=9", "loaded", "7", False, False),
        ("deactivating entered=9", "loaded", "7", False, False),
        ("failed entered=9", "loaded", "7", False, False),
        ("reloading", "loaded", "7", False, False),
        # systemd does not answer: nobody is ended for that.
        ("''", "loaded", "7", False, False),
        # The start failed: the image's own comes in its place.
        ("failed", "loaded", "7", True, True),
        ("inactive", "loaded", "7", True, True),
        # Nothing pulled it in; somebody masked it.
        ("inactive", "loaded", "0", True, False),
        ("inactive", "masked", "0", True, False),
        ("failed", "masked", "7", True, False),
    ],
)
def test_settle_starts_only_what_systemd_wanted(
    tmp_path: Path, active: str, load: str, tried: str, killed: bool, restarted: bool
) -> None:
    (tmp_path / "group").mkdir()
    (tmp_path / "group/cgroup.kill").touch()
    (tmp_path / "group/cgroup.events").write_text("populated 1\n")
    names = ("about_unit", "end_group", "see_to_unit", "was_held_up")
    text = "\n".join(function("settle", name) for name in names).replace(
        "/sys/fs/cgroup/$UNIT_GROUP", "$PLACE/group"
    )
    script = f"""{text.replace("/dev/console", "$PLACE/console")}
    forget_start() {{ echo "forget $1" >>$PLACE/forgotten; }}
    kill_group() {{ echo 1 >$1/cgroup.kill; echo populated 0 >$1/cgroup.events; }}
    systemctl() {{
        case "$*" in
        "show -p ActiveState --value app.service") echo {active.partition(" ")[0]} ;;
        "show -p ActiveEnterTimestampMonotonic --value app.service") echo {active.partition("entered=")[2] or 0} ;;
        "show -p LoadState --value app.service") echo {load} ;;
        "show -p InactiveExitTimestampMonotonic --value app.service") echo {tried} ;;
        *) echo "$*" >>$PLACE/called ;;
        esac
    }}
    remove_ipc() {{ cat $PLACE/group/cgroup.kill >$PLACE/removed; }}
    UNIT=app.service PLACE={tmp_path} LEFT={tmp_path}/left MARK=/the/mark
    see_to_unit"""
    subprocess.run(["dash", "-eu", "-c", script], check=True, timeout=SECONDS)
    # Of processes that have ended.
    assert not killed or (tmp_path / "removed").read_text() == "1\n"
    assert (tmp_path / "forgotten").exists() is killed
    assert (tmp_path / "group/cgroup.kill").read_text() == ("1\n" if killed else "")
    called = (tmp_path / "called").read_text() if (tmp_path / "called").exists() else ""
    assert called == ("reset-failed app.service\nrestart --no-block app.service\n" if restarted else "")


@pytest.mark.parametrize(
    ("fell_back", "enabled", "required_by", "load", "restarted"),
    [
        (True, 0, "", "loaded", True),
        (True, 1, "web.service", "loaded", True),
        (True, 1, "", "loaded", False),
        (False, 0, "", "loaded", False),
        (True, 0, "", "masked", False),
    ],
)
def test_settle_starts_who_requires_a_unit_that_was_not_adopted(
    tmp_path: Path, fell_back: bool, enabled: int, required_by: str, load: str, restarted: bool
) -> None:
    """Its job has failed with the other's, and systemd has not even tried to start it."""
    if fell_back:
        (tmp_path / "fell-back").touch()
    names = ("see_to_unit", "was_held_up", "is_wanted")
    text = "\n".join(function("settle", name) for name in names).replace("/dev/console", "/dev/null")
    script = f"""{text}
    end_group() {{ echo end; }}
    about_unit() {{
        case $1 in
        ActiveState) echo inactive ;; LoadState) echo {load} ;; RequiredBy) echo "{required_by}" ;;
        *By) ;; *) echo 0 ;;
        esac
    }}
    systemctl() {{ case $1 in -q) return {enabled} ;; *) echo "$*" ;; esac }}
    UNIT=app.service LEFT={tmp_path}
    see_to_unit"""
    done = subprocess.run(
        ["dash", "-eu", "-c", script], check=True, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.stdout.splitlines() == [
        "end",
        *(["reset-failed app.service", "restart --no-block app.service"] if restarted else []),
    ]


@pytest.mark.parametrize(
    ("hand_off", "changed", "called"),
    [
        ("keep", True, "released"),
        ("keep", False, ""),
        ("release", True, "released"),
        ("release", False, "released"),
    ],
)
def test_settle_takes_away_what_changed_while_the_machine_changed_hands(
    tmp_path: Path, hand_off: str, changed: bool, called: str
) -> None:
    left = tmp_path / "run/quickstart.left"
    left.mkdir(parents=True)
    if changed:
        (left / "take-away").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/caretaker").write_text("#!/bin/sh\necho $*\n")
    (tmp_path / "bin/caretaker").chmod(0o755)
    text = function("settle", "let_go_of_fast").replace("/run/", f"{tmp_path}/run/")
    script = f"release() {{ echo released; }}\n{text}\nQ={tmp_path} HAND_OFF={hand_off}; let_go_of_fast"
    done = subprocess.run(
        ["dash", "-eu", "-c", script], check=True, capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.stdout.strip(), left.exists()) == (called, False)


@pytest.mark.parametrize(
    ("sockets", "mark", "state", "handled"),
    [
        (0, True, "failed", False),
        (2, False, "active", False),
        (2, True, "active", True),
        (2, False, "failed", True),
        # It was systemd's, and has failed later.
        (2, False, "failed entered=9", False),
    ],
)
def test_settle_starts_the_sockets_that_systemd_lacks(
    tmp_path: Path, sockets: int, mark: bool, state: str, handled: bool
) -> None:
    (tmp_path / "left").mkdir()
    if mark:
        (tmp_path / "left/other-sockets").touch()
    names = ("see_to_sockets", "have_other_sockets", "was_stopped", "start_wanted", "is_wanted", "about_unit")
    text = "\n".join(function("settle", name) for name in names).replace("/dev/console", "/dev/null")
    script = f"""end_group() {{ echo end; }}
    systemctl() {{
        case "$*" in
        show*ActiveEnter*) echo {state.partition("entered=")[2] or 0} ;;
        show*) echo {state.partition(" ")[0]} ;;
        *) echo "$*" ;;
        esac
    }}
    {text}
    RUN={tmp_path}/left UNIT=app.service SOCKETS={sockets} SOCKET_UNITS='a.socket b.socket'
    see_to_sockets || echo no
    """
    done = subprocess.run(["dash", "-c", script], check=True, capture_output=True, text=True, timeout=SECONDS)
    wanted = [
        "stop --job-mode=ignore-dependencies app.service",
        "end",
        "stop --job-mode=ignore-dependencies a.socket b.socket",
        "reset-failed a.socket b.socket app.service",
        "start a.socket b.socket",
        "-q is-enabled app.service",
        "start --no-block app.service",
    ]
    assert done.stdout.splitlines() == (wanted if handled else ["no"])


@pytest.mark.parametrize("sockets", [1, 2])
@pytest.mark.parametrize(
    ("state", "entered", "started"),
    [
        ("failed", 0, True),
        # The socket has started it, and it runs.
        ("active", 9, True),
        # Somebody has stopped it since then, or it has ended.
        ("inactive", 9, False),
        ("failed", 9, False),
    ],
)
def test_settle_starts_no_unit_again_that_was_stopped(
    tmp_path: Path, sockets: int, state: str, entered: int, started: bool
) -> None:
    (tmp_path / "other-sockets").touch()
    names = ("see_to_sockets", "have_other_sockets", "was_stopped", "start_wanted", "is_wanted", "about_unit")
    text = "\n".join(function("settle", name) for name in names).replace("/dev/console", "/dev/null")
    script = f"""end_group() {{ :; }}
    systemctl() {{
        case "$*" in
        "show -p ActiveEnterTimestampMonotonic --value app.service") echo {entered} ;;
        "show -p ActiveState --value app.service") echo {state} ;;
        "start --no-block app.service") echo started ;;
        esac
    }}
    {text}
    RUN={tmp_path} UNIT=app.service SOCKETS={sockets} SOCKET_UNITS=app.socket
    see_to_sockets
    """
    done = subprocess.run(
        ["dash", "-eu", "-c", script], check=True, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.stdout.split() == (["started"] if started else [])
