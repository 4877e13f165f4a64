"""Delegate=: the unit's group has its controllers and its owner before the first command. What is below it is the unit's, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.starterbox import SLEEP, UNIT, command, describe, run_starter, start

# Units have cgroups.
pytestmark = pytest.mark.host_root

NAMES = ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads", "memory.oom.group")
# This host may have no controllers to give. The unit's group is `x/app.service`.
TREE = f"""
mount -t tmpfs cgroup /sys/fs/cgroup
mkdir -p $GROUP
echo 'cpuset cpu io memory pids' >/sys/fs/cgroup/cgroup.controllers
for at in /sys/fs/cgroup /sys/fs/cgroup/$group $GROUP; do
	for name in {" ".join(NAMES)}; do : >$at/$name; done
done
"""
SHOW = "for at in /sys/fs/cgroup /sys/fs/cgroup/$group $GROUP; do cat $at/cgroup.subtree_control; echo; done"
OWNERS = "cd $GROUP; stat -c '%n %a %U %G' . *"
# The process goes on in a group below the unit's, as a manager of containers may do it.
MOVE = 'group=/sys/fs/cgroup$(sed -n "s/^0:://p" /proc/self/cgroup); mkdir $group/below; '


def test_the_groups_above_hand_down_what_the_kernel_has(starter: Path, tmp_path: Path) -> None:
    found = start(starter, tmp_path, ("delegate", "cpu", "hugetlb", "pids"), SLEEP, before=TREE, shown=SHOW)
    # The unit's own group hands nothing on: that is the unit's to do.
    assert found.answers["shown"].splitlines() == ["+cpu +pids ", "+cpu +pids "]


def test_without_delegation_nothing_is_handed_down_or_given(starter: Path, tmp_path: Path) -> None:
    user = (("user", "nobody"), ("groups",), ("become-user",))
    found = start(
        starter, tmp_path, *user, SLEEP, before=TREE + "chmod 666 $GROUP/*\n", shown=SHOW, owners=OWNERS
    )
    assert found.answers["shown"] == ""
    assert "nobody" not in found.answers["owners"]


def test_a_group_of_a_unit_that_delegates_is_marked(starter: Path, tmp_path: Path) -> None:
    found = start(
        starter,
        tmp_path,
        ("delegate",),
        command("main", MOVE + "echo $$ >$group/below/cgroup.procs; exec sleep 600"),
        owners="sleep 0.3; stat -c %U $GROUP $GROUP/cgroup.procs $GROUP/below",
        mark="python3 -c \"import os; print(os.getxattr('$GROUP', 'user.delegate'))\"",
        below="grep -c . $GROUP/below/cgroup.procs; echo 1 >$GROUP/cgroup.kill; sleep 0.3; rmdir $GROUP/below",
    )
    assert found.answers["owners"].split() == ["root"] * 3
    assert found.answers["mark"] == "b'1'"
    assert found.answers["below"] == "1"


def test_a_process_below_the_group_may_speak_for_the_unit(starter: Path, tmp_path: Path) -> None:
    """The main process is below the unit's group, and so is who says so (manager_get_unit_by_pid)."""
    say = (
        "import os, socket, time\n"
        "group = '/sys/fs/cgroup' + open('/proc/self/cgroup').read().split('::')[1].strip()\n"
        "os.mkdir(group + '/below')\n"
        "child = os.fork()\n"
        "if child == 0: time.sleep(600)\n"
        "speaker = os.fork()\n"
        "if speaker == 0:\n"
        "    for pid in (child, os.getpid()): open(group + '/below/cgroup.procs', 'w').write(str(pid))\n"
        "    to = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "    to.sendto(b'MAINPID=%d\\nREADY=1' % child, os.environ['NOTIFY_SOCKET'])\n"
        "time.sleep(600)\n"
    )
    records = (
        *UNIT[:2],
        ("type", "notify"),
        ("notify-access", "all"),
        UNIT[3],
        ("start-timeout-ms", "8000"),
        ("delegate",),
    )
    main = ("command", "main", ":", "/usr/bin/python3", "python3", "-c", say)
    end = "echo 1 >$GROUP/cgroup.kill; sleep 0.3; rmdir $GROUP/below"
    found = run_starter(
        starter, tmp_path, describe(*records, main), {"main": "cat /proc/$MAIN/cgroup", "end": end}
    )
    assert (found.status, found.reason) == (0, "")
    assert found.answers["main"].endswith("/app.service/below")


def test_a_failed_start_ends_what_is_below_on_an_old_kernel(starter: Path, tmp_path: Path) -> None:
    """Linux before 5.14 has no cgroup.kill; here it is for reading only."""
    before = (
        "mkdir -p $GROUP; : >/run/no-kill\n"
        "mount --bind /run/no-kill $GROUP/cgroup.kill; mount -o remount,bind,ro $GROUP/cgroup.kill\n"
    )
    pre = command(
        "pre", MOVE + "mkdir $group/below/.deep; sleep 600 & echo $! >$group/below/.deep/cgroup.procs"
    )
    left = "grep populated $GROUP/cgroup.events; umount $GROUP/cgroup.kill; rmdir $GROUP/below/.deep $GROUP/below"
    text = describe(*UNIT, ("delegate",), pre, command("main", "exit 1"), command("post", "exit 3"))
    found = run_starter(starter, tmp_path, text, {"left": left}, before)
    assert found.status == 1
    assert found.answers["left"] == "populated 0"
