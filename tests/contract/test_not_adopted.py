"""What becomes of an early process that systemd does not take over: `adopt` and `settle` of init (docs/users/hand-off.md)."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from quickstart.host.namespaces import own_namespaces

# It mounts what only root of the host may.
pytestmark = pytest.mark.host_root

INIT = Path(__file__).parents[2] / "quickstart/initramfs/init"
SECONDS = 60.0


def function(script: str, name: str) -> str:
    found = re.search(rf"^{name}\(\) \{{.*?^\}}", (INIT / script).read_text(), re.MULTILINE | re.DOTALL)
    assert found
    return found[0]


# A group with a shell in it that is not to go, and others that are; one forks while it is killed.
ENDED = """
set -eu
mount -t cgroup2 cgroup2 /sys/fs/cgroup
UNIT_GROUP=quickstart-test-$(cut -c1-8 /proc/sys/kernel/random/uuid)
mkdir /sys/fs/cgroup/$UNIT_GROUP
trap 'echo 0 >/sys/fs/cgroup/cgroup.procs; sleep 0.2; rmdir /sys/fs/cgroup/$UNIT_GROUP' EXIT
echo 0 >/sys/fs/cgroup/$UNIT_GROUP/cgroup.procs
sleep 600 & sleep 600 & (trap '' TERM HUP; for n in 1 2 3; do sleep 600 & done; wait) &
sleep 0.3
set +e
end_early_processes
echo "left: $(grep -cvx $$ /sys/fs/cgroup/$UNIT_GROUP/cgroup.procs)"
"""


def test_adopt_ends_all_of_the_group_but_itself() -> None:
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they make control groups")
    script = f"{function('adopt', 'end_early_processes')}\n{ENDED}"
    done = subprocess.run(
        [*own_namespaces(), "sh", "-c", f"mount -t proc proc /proc; {script}"],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    # The command substitution is one more process of the group, and grep.
    assert re.search(r"^left: [012]$", done.stdout, re.MULTILINE), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("active", "load", "tried", "killed", "restarted"),
    [
        ("active", "loaded", "7", False, False),
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
    text = f"{function('settle', 'about_unit')}\n{function('settle', 'see_to_unit')}".replace(
        "/sys/fs/cgroup/$UNIT_GROUP", "$PLACE/group"
    )
    script = f"""{text.replace("/dev/console", "$PLACE/console")}
    systemctl() {{
        case "$*" in
        "show -p ActiveState --value app.service") echo {active} ;;
        "show -p LoadState --value app.service") echo {load} ;;
        "show -p InactiveExitTimestampMonotonic --value app.service") echo {tried} ;;
        *) echo "$*" >>$PLACE/called ;;
        esac
    }}
    UNIT=app.service PLACE={tmp_path}
    see_to_unit"""
    subprocess.run(["dash", "-eu", "-c", script], check=True, timeout=SECONDS)
    assert (tmp_path / "group/cgroup.kill").read_text() == ("1\n" if killed else "")
    called = (tmp_path / "called").read_text() if (tmp_path / "called").exists() else ""
    assert called == ("restart --no-block app.service\n" if restarted else "")


# `adopt` with what it calls; a process in a group below that of the test, which goes with it.
ADOPTED = """
set -eu
mount -t proc proc /proc; mount -t cgroup2 cgroup2 /sys/fs/cgroup
top=quickstart-test-$(cut -c1-8 /proc/sys/kernel/random/uuid)
mkdir -p "/sys/fs/cgroup/$top/$2" run units/app.service.d
sleep 600 & main=$!
echo $main >"/sys/fs/cgroup/$top/$2/cgroup.procs"
trap 'kill $main; sleep 0.2; find /sys/fs/cgroup/$top -depth -type d -exec rmdir {} +' EXIT
echo $main >run/main.pid
printf 'UNIT=app.service UNIT_TYPE=notify UNIT_GROUP=%s\\n' "$top/app.service" >config
set +e
sh "$1" >/dev/null
"""


@pytest.mark.parametrize(
    ("group", "called"),
    [
        ("app.service", "notify"),
        ("user@1000.service/app.service", "reload restart"),
        ("other", "reload restart"),
    ],
)
def test_adopt_knows_the_units_own_group_alone(tmp_path: Path, group: str, called: str) -> None:
    """A user's manager may have a unit of the same name, and the process's number may be that of another by now."""
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they make control groups")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, word in (("systemd-notify", "notify"), ("systemctl", '"${1#daemon-}"')):
        (programs / name).write_text(f"#!/bin/sh\necho {word} >>{tmp_path}/called\n")
        (programs / name).chmod(0o755)
    text = (INIT / "adopt").read_text()
    for ours, place in (
        ("/fast/quickstart", "."),
        ("/run/quickstart", "run"),
        ("/run/systemd/system", "units"),
    ):
        text = text.replace(ours, str(tmp_path / place))
    text = text.replace("/dev/console", "/dev/null").replace("\nPATH=", f"\nPATH={programs}:")
    (tmp_path / "adopt").write_text(text)
    subprocess.run(
        [*own_namespaces(), "sh", "-c", ADOPTED, "sh", str(tmp_path / "adopt"), group],
        cwd=tmp_path, capture_output=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert (tmp_path / "called").read_text().split() == called.split()
