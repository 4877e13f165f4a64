"""`caretaker confine` beside an application that runs, changes what is in its directories, and has other processes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.contract.headless import HEADLESS
from tests.contract.starterbox import SLEEP, start

# It mounts what only root of the host may.
pytestmark = pytest.mark.host_root

SECONDS = 60.0
# It exchanges two names again and again (renameat2(2), RENAME_EXCHANGE).
FLIP = """#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
int main(int count, char **words) { for (;;) renameat2(AT_FDCWD, words[1], AT_FDCWD, words[2], RENAME_EXCHANGE); }
"""
# What was bound over the directory goes, so that the names can be exchanged again.
OFTEN = """
hits=0 refused=0 tries=0
while [ $tries -lt 300 ]; do
	tries=$((tries + 1))
	/run/box/caretaker confine $MAIN /run/unit 2>/dev/null || refused=$((refused + 1))
	# Over itself, a directory is what it was: where the link leads when the path is looked up.
	! grep -q ' /app/[bc] /run/victim ' /proc/$MAIN/mountinfo || hits=$((hits + 1))
	for place in $(awk '$5 ~ "^/run/(app/[bc]|victim)$" { print $5 }' /proc/$MAIN/mountinfo); do
		nsenter -m -t $MAIN umount -l $place
	done
done
kill $(cat /run/flip.pid)
echo hits $hits; [ $refused -lt $tries ] && echo sometimes confined
"""


def _caretaker(starter: Path, tmp_path: Path) -> None:
    (tmp_path / "caretaker").write_bytes(starter.read_bytes())
    (tmp_path / "caretaker").chmod(0o755)


@pytest.mark.parametrize("kind", ["no-exec", "read-only"])
def test_a_link_that_comes_meanwhile_leads_no_mount_elsewhere(
    starter: Path, tmp_path: Path, kind: str
) -> None:
    """A directory of the application's over /etc/pam.d would make it root. mount(2) looks a path up twice: as target and source."""
    _caretaker(starter, tmp_path)
    subprocess.run(
        ["cc", "-w", "-O2", "-x", "c", "-o", tmp_path / "flip", "-"],
        input=FLIP, check=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    found = start(
        starter,
        tmp_path,
        ("mount", kind, "optional", "/run/app/b"),
        ("namespace", "slave"),
        SLEEP,
        before="mkdir /run/app /run/victim; ln -s /run/victim /run/app/c",
        early="mkdir /run/app/b; nsenter -m -t $MAIN /run/box/flip /run/app/b /run/app/c >/dev/null 2>&1 & echo $! >/run/flip.pid",
        often=OFTEN,
    )
    assert found.answers["often"].splitlines() == ["hits 0", "sometimes confined"]


@pytest.mark.parametrize("program", ["sleep 600", "/run/box/headless"])
def test_what_a_command_has_left_is_confined_too(starter: Path, tmp_path: Path, program: str) -> None:
    """Each command has a namespace of its own. That of a user is passed by."""
    _caretaker(starter, tmp_path)
    argv = ["cc", "-w", "-pthread", "-x", "c", "-o", str(tmp_path / "headless"), "-"]
    subprocess.run(argv, input=HEADLESS, check=True, text=True, timeout=SECONDS)
    found = start(
        starter,
        tmp_path,
        ("mount", "read-only", "required", "/run"),
        ("namespace", "slave"),
        SLEEP,
        early=f"""program="{program}"; within="nsenter -m -t $MAIN"
(echo 0 >$GROUP/cgroup.procs; exec $within unshare -m --propagation slave $program) >/dev/null 2>&1 & echo $! >/run/left.pid
his="setpriv --reuid 65534 --regid 65534 --clear-groups unshare -Urm --propagation slave"
$within $his sleep 600 >/dev/null 2>&1 & echo $! >/run/his.pid
sleep 0.5; mkdir $GROUP/below; cat /run/his.pid >$GROUP/below/cgroup.procs
mkdir /run/later; mount -t tmpfs a /run/later""",
        confined="""/run/box/caretaker confine $MAIN /run/unit; echo status $?; pids=$(cat /run/left.pid /run/his.pid)
for pid in $MAIN $pids self; do
	cat /proc/$pid/task/*/mountinfo 2>/dev/null | awk '$5 == "/run/later" { print substr($6, 1, 2); exit }'
done
kill -9 $pids; sleep 0.2; rmdir $GROUP/below""",
    )
    assert found.answers["confined"].splitlines() == ["status 0", "ro", "ro", "rw", "rw"]
