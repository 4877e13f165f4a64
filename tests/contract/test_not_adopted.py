"""systemd does not take over an early process: what init's `adopt` then does (docs/users/hand-off.md)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from quickstart.host.namespaces import own_namespaces
from tests.contract.initscript import INIT, function

# It mounts what only root of the host may.
pytestmark = pytest.mark.host_root

SECONDS = 60.0


@pytest.mark.parametrize("kind", ["simple", "notify", "forking"])
def test_only_adopt_may_speak_to_systemd_meanwhile(tmp_path: Path, kind: str) -> None:
    """Processes of the unit may be another user's: none but the one that is ExecStart may say which the main process is."""
    script = f"{function('hand-off', 'write_drop_in')}\nUNITS={tmp_path} UNIT=app.service UNIT_TYPE={kind} Q=/q\nwrite_drop_in"
    subprocess.run(["dash", "-eu", "-c", script], check=True, timeout=SECONDS)
    lines = (tmp_path / "app.service.d/zzzz-quickstart.conf").read_text().splitlines()
    spoken = [line for line in lines if line.startswith("NotifyAccess=")]
    assert spoken == ([] if kind == "forking" else ["NotifyAccess=main"])
    assert lines[-2] == "ExecStart="
    assert lines[-1] == "ExecStart=+/q/bin/caretaker leave-unit /bin/sh /q/adopt"


@pytest.mark.parametrize(("access", "is_off"), [("main", False), ("all", True), ("exec", True), ("", True)])
def test_a_watchdog_that_another_process_answers_is_off(tmp_path: Path, access: str, is_off: bool) -> None:
    """What that process says is not heard meanwhile. The other ones stay: systemd would not take them up at a reload."""
    (tmp_path / "unit").write_text(f"notify-access {access}\n" if access else "")
    settings = f"UNITS={tmp_path} UNIT=app.service UNIT_TYPE=notify Q={tmp_path}"
    script = f"{function('hand-off', 'write_drop_in')}\n{settings}\nwrite_drop_in"
    subprocess.run(["dash", "-eu", "-c", script], check=True, timeout=SECONDS)
    lines = (tmp_path / "app.service.d/zzzz-quickstart.conf").read_text().splitlines()
    assert ("WatchdogSec=0" in lines) == is_off


@pytest.mark.parametrize("records", ["", "user app\n", "user app\ndynamic-user 61234\n"])
def test_adopt_has_no_mounts_of_the_unit(tmp_path: Path, records: str) -> None:
    """systemd gives them to a command with `+`, too, and their sources and targets may be the application's to write."""
    (tmp_path / "unit").write_text(records)
    settings = f"UNITS={tmp_path} UNIT=app.service UNIT_TYPE=notify Q={tmp_path}"
    script = f"{function('hand-off', 'write_drop_in')}\n{settings}\nwrite_drop_in"
    subprocess.run(["dash", "-eu", "-c", script], check=True, timeout=SECONDS)
    lines = (tmp_path / "app.service.d/zzzz-quickstart.conf").read_text().splitlines()
    assert {"BindPaths=", "BindReadOnlyPaths=", "TemporaryFileSystem=", "ReadWritePaths="} < set(lines)
    directories = {f"{name}Directory=" for name in ("Runtime", "State", "Cache", "Logs", "Configuration")}
    # Those of a made-up user are in directories of root's.
    assert directories & set(lines) == (set() if "dynamic-user" in records else directories)


@pytest.mark.parametrize(
    ("active", "populated", "killed"),
    [
        ("inactive", "1", True),
        ("failed", "1", True),
        ("inactive", "0", False),
        # systemd has it, and is about to end it.
        ("active", "1", False),
        ("activating", "1", False),
        ("deactivating", "1", False),
        ("''", "1", False),
    ],
)
def test_in_rescue_mode_nothing_is_left_that_systemd_does_not_know(
    tmp_path: Path, active: str, populated: str, killed: bool
) -> None:
    """The whole script, as rescue.target and emergency.target have it started: it does no other thing."""
    (tmp_path / "group").mkdir()
    (tmp_path / "group/cgroup.kill").touch()
    (tmp_path / "group/cgroup.events").write_text(f"populated {populated}\nfrozen 0\n")
    words = "UNIT=app.service UNIT_GROUP=group COMPANIONS= SERVED=/fast ROOT_FSTYPE=ext4 ROOT_OPTIONS=\n"
    (tmp_path / "config").write_text(words)
    (tmp_path / "run/quickstart").mkdir(parents=True)
    (tmp_path / "run/quickstart/made-up-user").write_text("63495 app\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/caretaker").write_text(f"#!/bin/sh\necho $* >>{tmp_path}/cared\n")
    (tmp_path / "bin/caretaker").chmod(0o755)
    text, lib = (
        (INIT / name)
        .read_text()
        .replace("/sys/fs/cgroup/", f"{tmp_path}/")
        .replace("/run/", f"{tmp_path}/run/")
        for name in ("settle", "lib")
    )
    (tmp_path / "lib").write_text(lib.replace("/fast/quickstart", str(tmp_path)))
    text = text.replace("/dev/console", f"{tmp_path}/console").replace("/fast/quickstart", str(tmp_path))
    calls = f"""systemctl() {{
        [ "$*" = "show -p ActiveState --value app.service" ] || echo "$*" >>{tmp_path}/called
        echo {active}
    }}
    """
    script = f"set -- rescue\n{calls}{text}"
    subprocess.run(["dash", "-eu", "-c", script], check=True, timeout=SECONDS)
    assert (tmp_path / "group/cgroup.kill").read_text() == ("1\n" if killed else "")
    assert (tmp_path / "console").exists() == killed
    assert not (tmp_path / "called").exists()
    cared = tmp_path / "cared"
    assert (cared.read_text() if cared.exists() else "") == ("remove-ipc 63495\n" if killed else "")


# A control group of the test's own, which goes with the test.
IN_GROUP = """
set -eu
mount -t proc proc /proc; mount -t cgroup2 cgroup2 /sys/fs/cgroup
top=quickstart-test-$(cut -c1-8 /proc/sys/kernel/random/uuid)
end() { kill "$1" 2>/dev/null; sleep 0.2; find /sys/fs/cgroup/$top -depth -type d -exec rmdir {} +; }
"""
# `adopt` with what it calls; a process in a group below that of the test, which goes with it.
ADOPTED = (
    IN_GROUP
    + """
mkdir -p "/sys/fs/cgroup/$top/$2" run units/app.service.d
sleep 600 & main=$!
echo $main >"/sys/fs/cgroup/$top/$2/cgroup.procs"
trap 'end $main' EXIT
echo $main >run/main.pid
printf 'UNIT=app.service UNIT_TYPE=notify UNIT_GROUP=%s SOCKETS=%s\\n' "$top/app.service" "$3" >config
# Descriptors of PID 1 of this namespace, in place of sockets.
readlink /proc/1/fd/2 >run/sockets
[ "$3" = 1 ] || echo 'socket:[1]' >>run/sockets
case $4 in same) readlink /proc/1/fd/2 >run/journal ;; other) echo 'socket:[1]' >run/journal ;; esac
set +e
sh "$1" >/dev/null
"""
)


@pytest.mark.parametrize(
    ("group", "called"),
    [
        ("app.service", "notify"),
        # Groups that the unit has made for its processes (Delegate=).
        ("app.service/supervisor/deep", "notify"),
        ("app.service-of-another", "forget reload reset-failed restart"),
        ("user@1000.service/app.service", "forget reload reset-failed restart"),
        ("other", "forget reload reset-failed restart"),
    ],
)
def test_adopt_knows_the_units_own_group_alone(tmp_path: Path, group: str, called: str) -> None:
    """A user's manager may have a unit of the same name, and the process's number may be that of another by now."""
    assert adopted(tmp_path, group) == called.split()


# Its main process has ended, and another one of its group has not.
LEFT = (
    IN_GROUP
    + """
mkdir -p "/sys/fs/cgroup/$top/app.service" run units/app.service.d
sleep 600 & left=$!
echo $left >"/sys/fs/cgroup/$top/app.service/cgroup.procs"
trap 'end $left' EXIT
sh -c 'echo $$' >run/main.pid
printf 'UNIT=app.service UNIT_TYPE=notify UNIT_GROUP=%s SOCKETS=0\n' "$top/app.service" >config
[ "$2" = no ] || : >run/adopted
set +e
sh "$1" >/dev/null
echo "status $?"
# What has been killed is a zombie until its parent asks.
grep -q '^State:.[^Z]' /proc/$left/status && echo goes on || echo ended
"""
)


@pytest.mark.parametrize(("is_adopted", "left"), [("no", "ended"), ("yes", "goes on")])
def test_adopt_ends_what_the_main_process_has_left(tmp_path: Path, is_adopted: str, left: str) -> None:
    """A restart would not end it with KillMode=process. After the adoption, it is systemd's, as in a stock boot."""
    script = prepared_adopt(tmp_path)
    done = subprocess.run(
        [*own_namespaces(), "sh", "-c", LEFT, "sh", str(script), is_adopted],
        cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["status 0", left], done.stderr
    # Files in /run that say what it has done in this boot go, too (cron's crond.reboot).
    forgotten = ["forget"] if is_adopted == "no" else []
    assert (tmp_path / "called").read_text().split() == [*forgotten, "reload", "reset-failed", "restart"]


@pytest.mark.parametrize(("refused", "starts"), [(3, True), (99, False)])
def test_a_reload_that_systemd_refuses(tmp_path: Path, refused: int, starts: bool) -> None:
    """With a full /run, systemd would start `adopt` again in the unit's place. So without a reload, there is no restart."""
    script = prepared_adopt(tmp_path)
    script.write_text(script.read_text().replace("sleep 1\n", "sleep 0\n"))
    systemctl = tmp_path / "programs/systemctl"
    count = f"[ $1 != daemon-reload ] || [ $(grep -cx reload {tmp_path}/called) -gt {refused} ]\n"
    systemctl.write_text(systemctl.read_text() + count)
    done = subprocess.run(
        [*own_namespaces(), "sh", "-c", LEFT, "sh", str(script), "no"],
        cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == [f"status {0 if starts else 1}", "ended"], done.stderr
    called = (tmp_path / "called").read_text().split()
    assert called.count("reload") == (refused + 1 if starts else 10)
    assert [each for each in called if each != "reload"] == [
        "forget",
        *(["reset-failed", "restart"] if starts else []),
    ]


@pytest.mark.parametrize(
    ("unit", "status", "called"),
    [
        ("namespace slave\n", 0, "confine notify"),
        # It may not go on as it is: systemd starts it.
        ("namespace slave nosuid\n", 1, "confine forget reload reset-failed restart"),
        ("umask 022\n", 1, "notify"),
    ],
)
def test_adopt_confines_what_was_mounted_later(tmp_path: Path, unit: str, status: int, called: str) -> None:
    (tmp_path / "unit").write_text(unit)
    (tmp_path / "bin").mkdir()
    caretaker = tmp_path / "bin/caretaker"
    caretaker.write_text(f"#!/bin/sh\necho $1 >>{tmp_path}/called\nexit {status}\n")
    caretaker.chmod(0o755)
    assert adopted(tmp_path, "app.service") == called.split()


@pytest.mark.parametrize(
    ("enabled", "status", "called"),
    [
        # A program that AppArmor confines in a stock boot runs without its profile.
        ("Y", 0, "find-unconfined forget reload reset-failed restart"),
        ("Y", 1, "find-unconfined notify"),
        # A wrong call, no program of that name, killed.
        *(("Y", status, "find-unconfined forget reload reset-failed restart") for status in (2, 127, 137)),
        ("N", 0, "notify"),
    ],
)
def test_adopt_takes_no_process_that_escapes_its_profile(
    tmp_path: Path, enabled: str, status: int, called: str
) -> None:
    (tmp_path / "packed.confined").write_text("/usr/bin/a\n")
    (tmp_path / "apparmor").mkdir()
    (tmp_path / "apparmor/enabled").write_text(f"{enabled}\n")
    (tmp_path / "bin").mkdir()
    caretaker = tmp_path / "bin/caretaker"
    caretaker.write_text(f"#!/bin/sh\necho $1 >>{tmp_path}/called\nexit {status}\n")
    caretaker.chmod(0o755)
    assert adopted(tmp_path, "app.service") == called.split()


@pytest.mark.parametrize(
    ("sockets", "called"), [(0, "notify"), (1, "notify"), (2, "forget reload reset-failed")]
)
def test_adopt_compares_the_sockets_with_those_of_pid_1(tmp_path: Path, sockets: int, called: str) -> None:
    """With others the unit is not started: settle starts its socket units before."""
    assert adopted(tmp_path, "app.service", sockets) == called.split()
    assert (tmp_path / "run/other-sockets").exists() is (sockets == 2)
    assert (tmp_path / "run/fell-back").exists() is (sockets == 2)
    # This start fails for good, and the next boot finds the same sockets: the machine is not to boot for ever.
    drop_in = tmp_path / "units/app.service.d/zzzz-quickstart.conf"
    assert (drop_in.read_text() if drop_in.exists() else "") == (
        "[Unit]\nFailureAction=none\n" if sockets == 2 else ""
    )


# systemd as `adopt` sees it: it asks for a restart, which sends the unit's signal and then waits for its end.
STOPPED = """#!/bin/sh
case $1 in
restart) (sleep 0.3; kill -$SIGNAL $PPID; sleep 0.3; : >stopping) >/dev/null 2>&1 & ;;
show) [ -e stopping ] && echo stop-sigterm || echo start ;;
esac
"""


@pytest.mark.parametrize("signal", ["TERM", "QUIT", "HUP", "INT", "USR1", "CONT"])
def test_a_start_that_is_given_up_is_stopped_and_does_not_fail(tmp_path: Path, signal: str) -> None:
    """A failure would be for OnFailure= and FailureAction=, and a machine that boots again would boot for ever."""
    script = prepared_adopt(tmp_path)
    (tmp_path / "programs/systemctl").write_text(STOPPED)
    done = subprocess.run(
        [*own_namespaces(), "sh", "-c", LEFT, "sh", str(script), "no"],
        cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False,
        env={**os.environ, "SIGNAL": signal},
    )  # fmt: skip
    assert (tmp_path / "stopping").exists(), done.stderr
    assert "status 0" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("journal", "called"), [("same", "notify"), ("other", "forget reload reset-failed restart")]
)
def test_adopt_compares_the_journals_socket_with_that_of_pid_1(
    tmp_path: Path, journal: str, called: str
) -> None:
    """Nobody would read the output. The unit's own sockets are systemd's, so it can be started at once."""
    assert adopted(tmp_path, "app.service", 1, journal) == called.split()


# What init, the unit and somebody else have made in /run, before the hand-off and since then. The clock went back meanwhile.
RUN = """
umount -l /run 2>/dev/null; set -e; mount -t tmpfs run /run; mount --bind "$1" /mnt
mkdir -p /run/quickstart /run/systemd/system /run/app/below /run/lock
touch /run/crond.reboot /run/app/below/.done '/run/a
b' /run/nologin /run/quickstart/main.pid /run/systemd/system/a /run/later
mkfifo /run/fifo; ln -s crond.reboot /run/link; ln -s /mnt /run/app/out
mount -t tmpfs lock /run/lock; touch /run/lock/mounted
true >/run/quickstart/handed-over
touch -d 2001-01-01 /run/new /run/app/new; cp -p /run/new /run/newer
mv /run/newer /run/later
$MOVE
"""


@pytest.mark.parametrize(("companions", "moved"), [("", False), ("", True), ("1", False)])
def test_a_unit_that_starts_anew_finds_no_word_of_its_early_start(
    tmp_path: Path, companions: str, moved: bool, caretaker: Path
) -> None:
    """cron does not start its jobs of @reboot when /run/crond.reboot is there."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/caretaker").symlink_to(caretaker)
    (tmp_path / "outside").touch()
    place = "/run/quickstart.left" if moved else "/run/quickstart"
    script = RUN.replace("$MOVE", "mv -T /run/quickstart /run/quickstart.left" if moved else "")
    script += f"{function('lib', 'forget_start')}\nQ=/mnt COMPANIONS='{companions}'\nforget_start {place}/handed-over\n"
    script += "find /run -type f; ls /run/lock /run/fifo /mnt/outside"
    done = subprocess.run(
        [*own_namespaces(), "dash", "-uc", script, "sh", tmp_path],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    gone = {"/run/crond.reboot", "/run/app/below/.done", "/run/a", "b"}
    left = set(done.stdout.splitlines())
    assert left & gone == (gone if companions else set())
    kept = {
        "/run/nologin",
        f"{place}/main.pid",
        "/run/systemd/system/a",
        "/run/later",
        "/run/new",
        "/run/app/new",
    }
    assert kept | {"/mnt/outside", "/run/fifo", "mounted"} <= left


def test_a_fallback_of_adopt_knows_what_is_older_than_the_hand_off() -> None:
    lines = (INIT / "hand-off").read_text()
    assert lines.index('true >"$RUN/handed-over" && write_drop_in') < lines.index('eval "exec env -i')


def adopted(tmp_path: Path, group: str, sockets: int = 0, journal: str = "") -> list[str]:
    """What `adopt` calls for a process in that group, with so many sockets, of which PID 1 holds the first. ``journal``
    says whether PID 1 has the ``same`` socket of journald as the process, or an ``other`` one.
    """
    script = prepared_adopt(tmp_path)
    subprocess.run(
        [*own_namespaces(), "sh", "-c", ADOPTED, "sh", str(script), group, str(sockets), journal],
        cwd=tmp_path, capture_output=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    return (tmp_path / "called").read_text().split()


def prepared_adopt(tmp_path: Path) -> Path:
    """The script with what it calls, in ``tmp_path``."""
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they make control groups")
    programs = tmp_path / "programs"
    programs.mkdir()
    forget = f"forget_start() {{ echo forget >>{tmp_path}/called; }}\n"
    (tmp_path / "lib").write_text(forget + function("lib", "kill_group"))
    asked = '[ "$1" != show ] || { echo "${sub_state:-stop-sigterm}"; exit; }\n'
    for name, word in (("systemd-notify", "notify"), ("systemctl", '"${1#daemon-}"')):
        (programs / name).write_text(f"#!/bin/sh\n{asked}echo {word} >>{tmp_path}/called\n")
        (programs / name).chmod(0o755)
    text = (INIT / "adopt").read_text()
    for ours, place in (
        ("/fast/quickstart", "."),
        ("/run/quickstart", "run"),
        ("/run/systemd/system", "units"),
        ("/sys/module/apparmor/parameters", "apparmor"),
    ):
        text = text.replace(ours, str(tmp_path / place))
    text = text.replace("/dev/console", "/dev/null").replace("\nPATH=", f"\nPATH={programs}:")
    (tmp_path / "adopt").write_text(text)
    return tmp_path / "adopt"
