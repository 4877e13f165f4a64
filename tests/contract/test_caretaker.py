"""The caretaker (initramfs/caretaker) works in other mount namespaces without executing anything there, and
in trees that others change.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from quickstart.host.namespaces import own_namespaces
from tests.contract.starterbox import SLEEP, start

# It mounts what only root of the host may.
pytestmark = pytest.mark.host_root

SECONDS = 60.0
Box = Callable[[str], str]
# A machine's root as init leaves it: moved over that of the namespace, with the directory /fast of a memory file system at /fast.
BEGIN = """\
set -eu
mount --bind "$1" "$1"
cd "$1"
for name in usr; do mount --bind "/$name" "$name"; done
mount -t proc proc proc
mount -t tmpfs -o mode=755 dev dev
for name in null zero; do : >"dev/$name"; mount --bind "/dev/$name" "dev/$name"; done
mount -t tmpfs initramfs initramfs
mkdir initramfs/fast && echo packed >initramfs/fast/file
mount --bind initramfs/fast fast
mount --move . /
mount --make-shared .
exec chroot . /usr/bin/env -i PATH=/tool:/usr/sbin:/usr/bin:/sbin:/bin sh -eu -c "$2"
"""
# A namespace that a local user has made, in which every program and library is his.
HIS = (
    "setpriv --reuid 65534 --regid 65534 --clear-groups unshare -Urm sh -c '{before}; echo $$ >/home/pid; exec sleep 900' &\n"
    "until [ -s /home/pid ]; do sleep 0.1; done; his=$(cat /home/pid)\n"
)
EVIL = "for n in umount dash findmnt mount; do mount --bind /home/evil /usr/bin/$n; done"


@pytest.fixture
def box(tmp_path: Path, caretaker: Path) -> Box:
    """Runs a script as root in a machine of its own; it has to succeed."""
    assert os.geteuid() == 0, "namespaces need root: run the tests with sudo"
    root = tmp_path / "root"
    for name in ("usr", "proc", "dev", "etc", "tmp", "fast", "home", "initramfs", "tool", "run"):
        (root / name).mkdir(parents=True)
    (root / "home").chmod(0o1777)
    for each in (tmp_path, root):
        each.chmod(0o755)
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "tool/caretaker").write_bytes(caretaker.read_bytes())
    (root / "tool/caretaker").chmod(0o755)
    evil = root / "home/evil"
    evil.write_text("#!/usr/bin/bash\nid -u >>/home/was-here\n")
    evil.chmod(0o755)

    def run(script: str) -> str:
        done = subprocess.run(
            [*own_namespaces(), "sh", "-c", BEGIN, "sh", str(root), script],
            capture_output=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr).decode(errors="replace")
        return done.stdout.decode(errors="replace")

    return run


def test_nothing_runs_in_a_namespace_that_a_user_has_made(box: Box) -> None:
    """Its /fast stays; ours goes, and nothing of his was executed by root."""
    said = box(
        HIS.format(before=EVIL)
        + "readlink /proc/1/ns/mnt >/tmp/before; caretaker take-away; readlink /proc/1/ns/mnt | cmp - /tmp/before\n"
        "ls -A /fast | wc -l; ls /proc/$his/root/fast; ls /home; kill $his"
    )
    assert said.split() == ["0", "file", "evil", "pid"]


def test_private_namespaces_of_the_machine_are_seen_to(box: Box) -> None:
    """Also one in which /fast lies twice, and one whose /fast is somebody else's."""
    said = box(
        'private() { unshare --mount --propagation private sh -c "$2; echo \\$\\$ >/run/$1; exec sleep 900" & }\n'
        "private a :; private b 'mount --bind /fast /fast'; private c 'mount -t tmpfs x /fast; touch /fast/his'\n"
        "for n in a b c; do until [ -s /run/$n ]; do sleep 0.1; done; done; caretaker take-away\n"
        "for n in a b c; do ls -A /proc/$(cat /run/$n)/root/fast | wc -l; done; ls /proc/$(cat /run/c)/root/fast\n"
    )
    assert said.split() == ["0", "0", "1", "his"]


def test_files_that_lie_over_the_volumes_go_too(box: Box) -> None:
    """As init binds them for a unit with a mount namespace. What somebody else has bound stays."""
    said = box(
        "echo volume >'/etc/a b'; echo volume >/etc/c; echo his >/run/his; mkdir -p /run/fast; mount -t tmpfs x /run/fast\n"
        "mkdir /run/fast/fast; echo other >/run/fast/fast/d; echo volume >/etc/d\n"
        "unshare --mount --propagation private sh -c \"mount --bind /fast/file '/etc/a b'; mount --bind /fast/file /etc/c;"
        ' mount --bind /fast/file /etc/c; mount --bind /run/fast/fast/d /etc/d; echo \\$\\$ >/run/n; exec sleep 900" &\n'
        "until [ -s /run/n ]; do sleep 0.1; done; r=/proc/$(cat /run/n)/root/etc\n"
        'cat "$r/a b" $r/c $r/d; caretaker take-away; cat "$r/a b" $r/c $r/d'
    )
    assert said.split() == ["packed", "packed", "other", "volume", "volume", "other"]


def test_programs_leave_their_names(box: Box) -> None:
    """node forks by its own path, which it has from /proc/self/exe. A library leaves none: it would come before DT_RUNPATH."""
    said = box(
        "d=/initramfs/fast; mkdir -p $d/usr/bin $d/usr/lib/x $d/usr/share/doc $d/etc $d/quickstart/bin $d/opt/own\n"
        "p=/usr/bin/env; cp $p $d/usr/bin; ln -s env $d/usr/bin/printenv; ln -s /usr/bin/true $d/usr/bin; ln -s usr/bin $d/bin\n"
        "cp $p $d/quickstart/bin; for n in libx.so libx.so.1.2 ld.so; do cp $p $d/usr/lib/x/$n; done; cp $p $d/opt/own/tool\n"
        "ln -s libx.so.1.2 $d/usr/lib/x/libx.so.1; ln -s /etc $d/usr/share/conf; touch $d/usr/share/doc/x\n"
        "ln -s gone $d/usr/bin/gone; mkdir -p /mine; mount --bind / /mine; mkdir -p /mine/fast/opt/own\n"
        # What another directory of the ordinary PATH has now is not hidden; a link of an earlier time makes room.
        "cp $p $d/usr/bin/newer; mount -t tmpfs x /usr/local/bin; touch /usr/local/bin/newer\n"
        "mkdir -p /mine/fast/usr/bin; ln -s gone /mine/fast/usr/bin/env; chmod 755 /mine/fast/usr /mine/fast/usr/bin\n"
        "echo his >/mine/fast/opt/own/tool; exec 3</fast/file; umask 077; caretaker take-away; umount /mine; cd /fast\n"
        "find . | sort | while read -r n; do echo $n $(readlink $n || :); done\n"
        "cat opt/own/tool; /fast/bin/env true; /fast/usr/bin/printenv | grep -c PATH; /fast/usr/bin/true; stat -c %a usr/bin"
    )
    assert said.splitlines() == [
        *(".", "./bin usr/bin", "./opt", "./opt/own", "./opt/own/tool", "./usr", "./usr/bin"),
        *(
            "./usr/bin/env /usr/bin/env",
            "./usr/bin/printenv /usr/bin/printenv",
            "./usr/bin/true /usr/bin/true",
        ),
        *("his", "1", "755"),
    ]


@pytest.mark.parametrize(("mode", "names"), [("ro", "0"), ("rw", "1")])
def test_a_volume_that_is_read_only_keeps_no_names(box: Box, mode: str, names: str) -> None:
    said = box(
        f"cp /usr/bin/env /initramfs/fast/env; mount -o remount,bind,{mode} /; caretaker take-away; ls -A /fast | wc -l"
    )
    assert said.split() == [names]


def test_namespaces_that_are_made_all_the_time(box: Box) -> None:
    """It comes to its end, and /fast is gone here."""
    said = box(
        "(while [ ! -e /run/stop ]; do unshare --mount --propagation private sleep 0.05 & sleep 0.01; done) &\n"
        "sleep 0.5; caretaker take-away || :; touch /run/stop; ls -A /fast | wc -l; wait"
    )
    assert said.split() == ["0"]


def test_nothing_is_bound_in_a_namespace_that_a_user_has_made(box: Box) -> None:
    """A service may name any process of its own as its main one."""
    said = box(
        HIS.format(before=EVIL)
        + "touch /run/log; printf 'rw\\trequired\\t/run/log\\t/home/log\\n' >/run/rows\n"
        "caretaker bind $his </run/rows 2>/run/said && exit 9\n"
        "cat /run/said; ls /home; kill $his"
    )
    assert said.splitlines()[0].startswith(
        "caretaker: not a mount namespace of this machine's own: that of process "
    )
    assert said.split()[-2:] == ["evil", "pid"]


def test_a_link_on_the_way_to_where_it_binds_is_followed_only_when_it_is_roots(box: Box) -> None:
    said = box(
        "unshare --mount --propagation slave sh -c 'echo $$ >/run/a; exec sleep 900' & until [ -s /run/a ]; do sleep 0.1; done\n"
        "mkdir /home/app /run/target; chown 65534 /home/app; ln -s /etc /home/app/dev; chown -h 65534 /home/app/dev\n"
        "echo log >/run/log\n"
        "printf 'rw\\trequired\\t/run/log\\t/home/app/dev/log\\n' | caretaker bind $(cat /run/a) 2>&1 && exit 9\n"
        "ls -A /etc | wc -l; ln -s /run/target /run/link\n"
        "printf 'ro\\trequired\\t/run/log\\t/run/link/dev/log\\n' | caretaker bind $(cat /run/a)\n"
        "cat /proc/$(cat /run/a)/root/run/target/dev/log; cat /run/target/dev/log"
    )
    assert "there is a link on the way that is not followed" in said
    assert said.split()[-2:] == ["0", "log"]


def remove(caretaker: Path, *paths: Path | str) -> tuple[int, str]:
    names = b"".join(os.fsencode(path) + b"\0" for path in paths)
    done = subprocess.run([caretaker, "remove"], input=names, capture_output=True, timeout=SECONDS)
    return done.returncode, done.stderr.decode()


def test_trees_files_and_links_go_what_links_lead_to_stays(caretaker: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (victim / "below").mkdir(parents=True)
    tree = tmp_path / "tree"
    (tree / "a/b").mkdir(parents=True)
    (tree / "a/b/to").symlink_to(victim)
    (tree / "a/file").write_text("")
    (tmp_path / "link").symlink_to(victim)
    assert remove(caretaker, tree, tmp_path / "link", tmp_path / "none") == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["victim"]
    assert (victim / "below").is_dir()


def test_nothing_is_removed_behind_a_link_of_somebody_else(caretaker: Path, tmp_path: Path) -> None:
    """/tmp/x/NAME with /tmp/x a link: what init notes has no such names, so this is refused."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/file").write_text("")
    (tmp_path / "his").symlink_to(tmp_path / "victim")
    os.lchown(tmp_path / "his", 65534, 65534)
    status, said = remove(caretaker, tmp_path / "his/file")
    assert status == 1
    assert "not followed" in said
    assert (tmp_path / "victim/file").exists()


def test_a_tree_of_any_depth(caretaker: Path, tmp_path: Path) -> None:
    top = tmp_path / "deep"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(2000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert remove(caretaker, top) == (0, "")
    assert not top.exists()


def test_what_is_bound_into_a_tree_stays(box: Box) -> None:
    """On the same file system, too, where a device number tells nothing."""
    said = box(
        "mkdir -p /home/kept /home/tree/in; touch /home/kept/file; mount --bind /home/kept /home/tree/in\n"
        "printf '/home/tree\\0' | caretaker remove 2>/dev/null && exit 9; ls /home/kept"
    )
    assert said.split() == ["file"]


def test_a_directory_that_is_swapped_for_a_link_again_and_again(caretaker: Path, tmp_path: Path) -> None:
    """The race of `rm -rf`: whatever the moment, nothing behind the link goes."""
    victim = tmp_path / "victim"
    victim.mkdir()
    for number in range(200):
        (victim / str(number)).write_text("")
    swap = (
        "while [ ! -e {0}/stop ]; do mkdir -p {0}/tree/d; for n in 1 2 3 4 5 6 7 8; do : >{0}/tree/d/$n; done; "
        "mv {0}/tree/d {0}/aside; ln -s {0}/victim {0}/tree/d; rm -rf {0}/tree/d {0}/aside; done 2>/dev/null"
    )
    his = subprocess.Popen(["sh", "-c", swap.format(shlex.quote(str(tmp_path)))])
    try:
        for _ in range(300):
            remove(caretaker, tmp_path / "tree")
    finally:
        (tmp_path / "stop").write_text("")
        his.wait(SECONDS)
    assert len(list(victim.iterdir())) == 200


# As systemd mounts them beside an application that runs already, in places of which its unit says something.
LATER = """
mkdir /run/later /run/plain; mount -t tmpfs a /run/later; mkdir /run/later/mine; mount -t tmpfs b /run/later/mine
mount -t tmpfs c /run/plain
see() { awk '$5 ~ "^/run/(later|plain)" { print substr($5, 6), $6 }' /proc/$1/mountinfo; }
"""


def test_what_is_mounted_later_is_what_the_unit_says_of_its_place(starter: Path, tmp_path: Path) -> None:
    """It reaches the unit's namespace writable and executable, where a start by systemd would come to find it there."""
    (tmp_path / "caretaker").write_bytes(starter.read_bytes())
    (tmp_path / "caretaker").chmod(0o755)
    found = start(
        starter,
        tmp_path,
        ("mount", "read-only", "required", "/run"),
        ("mount", "no-exec", "required", "/run/later-no"),
        ("mount", "read-write", "required", "/run/later-rw"),
        ("mount", "bind", "required", "/run/later-bound", "/run/source"),
        ("mount", "tmpfs", "required", "/run/source"),
        ("namespace", "slave"),
        SLEEP,
        before="mkdir -p /run/later-no /run/later-rw /run/source /run/later-bound",
        early=f"{LATER} mount -t tmpfs d /run/later-no; mount -t tmpfs e /run/later-rw; see $MAIN",
        confined="/run/box/caretaker confine $MAIN /run/unit; echo status $?; see $MAIN; echo outside; see self",
    )
    before = found.answers["early"].splitlines()
    assert {"later rw,relatime", "later/mine rw,relatime"} <= set(before)
    status, *after = found.answers["confined"].splitlines()
    assert status == "status 0"
    border = after.index("outside")
    inside, outside = after[:border], after[border + 1 :]
    assert {"later ro,relatime", "later/mine ro,relatime", "plain ro,relatime"} <= set(inside)
    # A place with a rule of its own has no other; what was there before covers what comes.
    assert inside[-1] == "later-rw rw,relatime"
    assert {"later-no rw,noexec,relatime", "later-bound rw,relatime"} <= set(inside)
    # The machine's own stay as they are.
    assert outside and not any(" ro," in row for row in outside)


def test_what_a_unit_hides_and_comes_later_is_hidden_when_systemd_adopts(
    starter: Path, tmp_path: Path
) -> None:
    """A start by systemd would come to find it there."""
    (tmp_path / "caretaker").write_bytes(starter.read_bytes())
    (tmp_path / "caretaker").chmod(0o755)
    within = "nsenter -m -r -t $MAIN"
    look = f"""{within} stat -c '%a %F' /run/dir /run/file /run/there 2>&1
{within} sh -c 'touch /run/read/x' 2>&1
{within} /run/programs/x 2>&1"""
    found = start(
        starter,
        tmp_path,
        ("mount", "inaccessible", "optional", "/run/dir"),
        ("mount", "inaccessible", "optional", "/run/file"),
        ("mount", "inaccessible", "optional", "/run/there"),
        ("mount", "read-only", "optional", "/run/read"),
        ("mount", "no-exec", "optional", "/run/programs"),
        ("mount", "inaccessible", "optional", "/run/never"),
        ("namespace", "shared"),
        SLEEP,
        before="echo secret >/run/there",
        early="""mkdir /run/dir /run/read /run/programs; echo secret >/run/file; cp /bin/true /run/programs/x
nsenter -m -r -t $MAIN cat /run/file; rm -f /run/read/x""",
        confined=f"/run/box/caretaker confine $MAIN /run/unit; echo $?; {look}",
        again="""/run/box/caretaker confine $MAIN /run/unit; echo $?
grep -cE ' /run/(dir|file|there|read|programs) ' /proc/$MAIN/mountinfo
cat /run/file; grep -c ' /run/file ' /proc/self/mountinfo""",
    )
    assert found.answers["early"] == "secret"
    status, *rows = found.answers["confined"].splitlines()
    assert (status, rows[:3]) == ("0", ["0 directory", "0 regular empty file", "0 regular empty file"])
    assert "Read-only file system" in rows[3] and "Permission denied" in rows[4]
    # Each once, and the machine's own stay as they are.
    assert found.answers["again"].splitlines() == ["0", "5", "secret", "0"]


def test_the_credentials_of_others_are_not_for_a_unit_with_a_namespace(starter: Path, tmp_path: Path) -> None:
    """systemd makes them later, and hides them whatever the unit says."""
    found = start(
        starter,
        tmp_path,
        ("namespace", "shared"),
        SLEEP,
        later="mkdir /run/credentials/x.service; echo secret >/run/credentials/x.service/key; stat -c %a /run/credentials",
        seen="nsenter -m -r -t $MAIN cat /run/credentials/x.service/key 2>&1",
    )
    assert found.answers["later"] == "755"
    assert "No such file" in found.answers["seen"]


def test_who_runs_with_the_machines_own_mounts_changes_none_of_them(starter: Path, tmp_path: Path) -> None:
    """ExecStart=+ leaves the unit's namespace out."""
    (tmp_path / "caretaker").write_bytes(starter.read_bytes())
    (tmp_path / "caretaker").chmod(0o755)
    found = start(
        starter,
        tmp_path,
        ("mount", "read-only", "required", "/run"),
        ("namespace", "slave"),
        ("command", "main", "+", "/bin/sleep", "sleep", "600"),
        confined=f"{LATER} /run/box/caretaker confine $MAIN /run/unit; echo status $?; see self",
    )
    status, *rows = found.answers["confined"].splitlines()
    assert status == "status 0"
    assert rows and not any(" ro," in row for row in rows)


def test_another_call_says_how_it_is_called(caretaker: Path) -> None:
    done = subprocess.run([caretaker, "x"], capture_output=True, timeout=SECONDS)
    assert (done.returncode, re.match(rb"usage: caretaker", done.stderr) is not None) == (2, True)
