"""Fallback 1 of init's second half leaves memory as a stock boot has it: nothing of the early start's is in /run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from quickstart.host.namespaces import own_namespaces
from tests.contract.initscript import function

# It mounts what only root of the host may.
pytestmark = pytest.mark.host_root

SECONDS = 60.0
SHELLS = [("dash",), ("busybox", "sh")]


@pytest.fixture(autouse=True)
def _root() -> None:
    assert os.geteuid() == 0, "namespaces need root: run the tests with sudo"


# What the units, init and journald's sockets have made there; one of the units has mounted something, and made a link out of /run.
MADE = """
mount -t tmpfs run /run; mount -t tmpfs shm /dev/shm; mount -t tmpfs tmp /tmp
mkdir -p /run/lock /run/systemd/system/a.service.d /run/quickstart /run/app/deep/.hidden '/run/a b' /run/systemd/journal/stdoutx
mount -t tmpfs lock /run/lock; mount -t tmpfs own '/run/a b'; mount -t tmpfs own2 /run/app
mkdir -p /run/app/deep/.hidden; touch /run/app/deep/file /run/lock/apache2 '/run/a b/c' /dev/shm/sem /tmp/mine
touch /run/crond.reboot /run/.marker /run/..odd /run/systemd/notify
touch /run/systemd/system/a.service.d/z.conf /run/systemd/journal/streams
ln -s /mnt/keep /run/link; ln -s /mnt/keep /run/systemd/link; mkfifo /run/initctl
for name in stdout socket dev-log; do touch /run/systemd/journal/$name; done
touch '/run/*' '/run/line
break'
"""


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize("journal", [True, False])
def test_nothing_of_the_early_start_is_left_in_memory(
    shell: tuple[str, ...], journal: bool, tmp_path: Path, caretaker: Path
) -> None:
    """cron starts the jobs of @reboot if it has not been here in this boot (/run/crond.reboot)."""
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep/file").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/caretaker").symlink_to(caretaker)
    paths = " ".join(f"/run/systemd/journal/{name}" for name in ("stdout", "socket", "dev-log"))
    script = f"""mount --bind {tmp_path} /mnt; umount -l /run /dev/shm /tmp 2>/dev/null; set -e
    {MADE}
    {function("second", "list_emptied")}
    {function("second", "empty_memory")}
    JOURNAL_PATHS='{paths if journal else ""}' PATH=/mnt/bin:$PATH
    empty_memory
    find /mnt/keep /run -mindepth 1 | LC_ALL=C sort
    grep -cE ' (/run/.*|/dev/shm|/tmp) ' /proc/mounts || :
    """
    done = subprocess.run(
        [*own_namespaces(), *shell, "-uc", f"mount -t proc proc /proc\n{script}"],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    kept = ["/run/systemd", "/run/systemd/journal", *sorted(paths.split())] if journal else []
    assert (done.stdout.splitlines(), done.stderr) == (["/mnt/keep/file", *kept, "0"], "")


# A process that is killed and ends a while later, as one that waits for the volume: the group is there until then.
LEFT = """
mount -t cgroup2 cgroup2 /sys/fs/cgroup
top=quickstart-test-$(cut -c1-8 /proc/sys/kernel/random/uuid)
mkdir -p "/sys/fs/cgroup/$top/a*.service/below"
trap 'kill $main 2>/dev/null; sleep 0.2; find /sys/fs/cgroup/$top -depth -type d -exec rmdir {} +' EXIT
sleep 600 & main=$!
GROUPS_OF_ALL="$top/none.service $top/a*.service"
are_left && echo left
echo $main >"/sys/fs/cgroup/$top/a*.service/below/cgroup.procs"
are_left && echo left
echo 1 >"/sys/fs/cgroup/$top/a*.service/cgroup.kill"
tries=0; while are_left && [ $tries -lt 100 ]; do sleep 0.05; tries=$((tries + 1)); done
are_left || echo none
"""


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_a_fallback_knows_when_all_have_ended(shell: tuple[str, ...]) -> None:
    script = f"mount -t proc proc /proc\n{function('second', 'are_left')}\n{LEFT}"
    done = subprocess.run(
        [*own_namespaces(), *shell, "-c", script],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.stdout.splitlines(), done.stderr) == (["left", "none"], "")


def test_a_fallback_empties_memory_when_all_have_ended_and_before_fast_goes() -> None:
    lines = [line.strip() for line in function("second", "fall_back").splitlines()]
    # Some jobs of a stock start find their own segment of shared memory, and say that they run already.
    ended = "while are_left && [ $tries -lt 200 ]; do"
    # Once, and as long as somebody is left.
    steps = ["kill_all", ended, "kill_all", "caretaker remove-ipc all", "empty_memory", "umount -l /fast"]
    assert [line for line in lines if line in steps] == steps
