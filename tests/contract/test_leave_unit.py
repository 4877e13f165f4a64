"""`adopt` leaves the unit in which systemd starts it, and ends what the unit has left (docs/users/hand-off.md)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from quickstart.host.namespaces import own_namespaces
from tests.contract.headless import HEADLESS
from tests.contract.initscript import function

# It mounts what only root of the host may.
pytestmark = pytest.mark.host_root

SECONDS = 60.0
# A group with processes; one forks while it is killed, and one has another number each time.
ENDED = """
set -eu
mount -t cgroup2 cgroup2 /sys/fs/cgroup
UNIT_GROUP=quickstart-test-$(cut -c1-8 /proc/sys/kernel/random/uuid)
place=/sys/fs/cgroup/$UNIT_GROUP
mkdir -p $place/below/.deep
trap 'echo 1 >$place/cgroup.kill; sleep 0.2; find $place -depth -type d -exec rmdir {} +' EXIT
sleep 600 & echo $! >$place/below/.deep/cgroup.procs
sleep 600 & echo $! >$place/cgroup.procs
sh -c 'echo 0 >$1/cgroup.procs; trap "" TERM HUP; for n in 1 2 3; do sleep 600 & done; wait' sh $place &
for program in "$1" "$2"; do
	sh -c 'echo 0 >$1/below/cgroup.procs; exec "$2"' sh $place "$program" &
done
sleep 0.3
set +e
grep populated $place/cgroup.events
end_early_processes
grep populated $place/cgroup.events
"""
# It forks and ends, as fast as it can.
HOP = "#include <unistd.h>\nint main(void) { for (;;) if (fork() > 0) _exit(0); }"


def test_adopt_ends_all_of_the_group(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they make control groups")
    hop, headless = tmp_path / "hop", tmp_path / "headless"
    for path, text in ((hop, HOP), (headless, HEADLESS)):
        argv = ["cc", "-w", "-O2", "-pthread", "-x", "c", "-o", str(path), "-"]
        subprocess.run(argv, input=text, check=True, text=True, timeout=SECONDS)
    script = f"{function('lib', 'kill_group')}\n{function('adopt', 'end_early_processes')}\n{ENDED}"
    done = subprocess.run(
        [*own_namespaces(), "sh", "-c", f"mount -t proc proc /proc; {script}", "sh", hop, headless],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.stdout == "populated 1\npopulated 0\n", done.stdout + done.stderr


@pytest.mark.parametrize("shell", [("dash",), ("busybox", "sh")])
def test_a_process_that_has_just_ended_is_not_our_own_group(tmp_path: Path, shell: tuple[str, ...]) -> None:
    """The kernel writes 0 for it, which kill(1) takes for all processes of the caller's group."""
    script = f"""{function("lib", "kill_group")}
mkdir {tmp_path}/below; sleep 600 & sleeping=$!; printf '0\n%s\n' $sleeping >{tmp_path}/below/cgroup.procs
kill_group {tmp_path}; wait $sleeping || echo $?"""
    done = subprocess.run(
        [*shell, "-euc", script],
        capture_output=True, text=True, timeout=SECONDS, check=False, start_new_session=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "137\n"), done.stderr


# A unit's process: with namespaces, a control group, a mount over a program, a root, directory, umask, descriptor and environment.
OF_UNIT = """
set -eu
mount -t proc proc /proc; mount -t cgroup2 cgroup2 /sys/fs/cgroup
group=/sys/fs/cgroup/quickstart-test-$(cut -c1-8 /proc/sys/kernel/random/uuid)
mkdir $group; trap 'rmdir $group' EXIT
cd "$1"
mkdir -p root/proc; mount -t proc proc root/proc; cp -L caretaker root/
printf '#!/bin/sh\\necho evil\\n' >evil; chmod 755 evil
unshare --mount --net --ipc --uts sh -euc '
echo 0 >$4/cgroup.procs
mount --bind evil /usr/bin/id
[ "$(id)" = evil ]
umask 0
export LD_LIBRARY_PATH=$1 NOTIFY_SOCKET=/application PATH=$1
exec /usr/sbin/chroot $2 $3 leave-unit /bin/sh "$1/adopt"
' sh "$1" "$2" "$3" $group <evil >>output 2>&1 9<evil
cat said
"""
# What `adopt` would see.
SAID = """
PATH=/usr/bin:/bin
given=$(for name in 0 1 2; do readlink /proc/$$/fd/$name; done)
exec >said
id -u; pwd; umask; env | grep -v ^PWD=; sed -n s/^0:://p /proc/self/cgroup
echo $given
[ ! -e /proc/$$/fd/9 ] || echo a descriptor
for name in mnt net ipc uts; do [ "$(readlink /proc/self/ns/$name)" = "$(readlink /proc/1/ns/$name)" ] || echo "another $name"; done
"""


@pytest.mark.parametrize(("root", "program"), [("/", "{place}/caretaker"), ("root", "/caretaker")])
def test_adopt_has_nothing_of_the_unit(tmp_path: Path, caretaker: Path, root: str, program: str) -> None:
    """It is root's, and what the unit mounts or reads (BindPaths=, EnvironmentFile=) may be the application's to write."""
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they make namespaces")
    (tmp_path / "caretaker").symlink_to(caretaker)
    (tmp_path / "adopt").write_text(SAID.replace(">said", f">{tmp_path}/said"))
    done = subprocess.run(
        [*own_namespaces(), "sh", "-c", OF_UNIT, "sh", tmp_path, root, program.format(place=tmp_path)],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.stderr == "", (tmp_path / "output").read_text()
    assert done.stdout.splitlines() == [
        "0",
        "/",
        "0022",
        "NOTIFY_SOCKET=/run/systemd/notify",
        "/",
        "/dev/null /dev/null /dev/kmsg",
    ]
