"""The mounts of a unit that the starter makes, and the devices in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.starterbox import (
    SLEEP,
    UNIT,
    command,
    describe,
    run_starter,
    start,
)

# Units have cgroups.
pytestmark = pytest.mark.host_root


def test_mounts(starter: Path, tmp_path: Path) -> None:
    """Read-only below read-write below read-only, closed paths, binds, private /tmp; and what the machine mounts later arrives."""
    inside = "nsenter -m -r -t $MAIN"
    found = start(
        starter,
        tmp_path,
        ("private-tmp", "yes"),
        ("mount", "read-only", "required", "/"),
        ("mount", "read-write", "required", "/run/rw"),
        ("mount", "read-only", "required", "/run/rw/ro"),
        ("mount", "read-write", "optional", "/no/such"),
        ("mount", "inaccessible", "required", "/run/closed"),
        ("mount", "inaccessible", "required", "/run/closed-file"),
        ("mount", "bind-all-read-only", "required", "/run/rw/place", "/etc"),
        ("mount", "private-tmp", "required", "/tmp"),
        ("mount", "private-tmp", "required", "/var/tmp"),
        ("mount", "tmpfs", "required", "/run/rw/empty", "mode=0755"),
        ("namespace", "shared"),
        SLEEP,
        before="mkdir -p /run/rw/ro /run/closed /run/rw/later; touch /run/closed-file /tmp/outside; ln -s rw /run/link",
        root=f"{inside} touch /run/x 2>&1 || echo read-only",
        rw=f"{inside} touch /run/rw/x && {inside} touch /run/link/y && echo written",
        ro=f"{inside} touch /run/rw/ro/x 2>&1",
        closed=f"{inside} stat -c '%a %F' /run/closed /run/closed-file",
        bound=f"{inside} cat /run/rw/place/hostname; cat /etc/hostname; {inside} touch /run/rw/place/hostname 2>&1",
        tmp=f"{inside} ls -A /tmp; {inside} touch /tmp/inside; ls /tmp/systemd-private-*-app.service-*/tmp; "
        "stat -c '%a' /tmp/systemd-private-* /tmp/systemd-private-*/tmp",
        later=f"mount -t tmpfs later /run/rw/later; {inside} findmnt -n -o SOURCE /run/rw/later | sort -u",
        outwards=f"{inside} mount -t tmpfs own /run/rw/empty; findmnt -n -o SOURCE /run/rw/empty | grep -c own",
    )
    assert found.answers["root"].endswith("Read-only file system\nread-only")
    assert found.answers["rw"] == "written"
    assert found.answers["ro"].endswith("Read-only file system")
    assert found.answers["closed"].splitlines() == ["0 directory", "0 regular empty file"]
    bound = found.answers["bound"].splitlines()
    assert bound[0] == bound[1]
    assert bound[2].endswith("Read-only file system")
    assert found.answers["tmp"].splitlines() == ["inside", "700", "1777"]
    assert found.answers["later"] == "later"
    assert found.answers["outwards"] == "0"


def test_mounts_without_setuid(starter: Path, tmp_path: Path) -> None:
    show = "findmnt -n -o OPTIONS"
    found = start(
        starter,
        tmp_path,
        ("mount", "read-write", "required", "/usr"),
        ("namespace", "shared", "nosuid"),
        SLEEP,
        options=f"nsenter -m -r -t $MAIN {show} /usr; {show} -T /usr; nsenter -m -r -t $MAIN {show} /",
    )
    usr, outside, root = (set(line.split(",")) for line in found.answers["options"].splitlines())
    assert usr - outside == {"nosuid"}
    assert root == outside


def test_a_mount_that_is_required(starter: Path, tmp_path: Path) -> None:
    text = describe(*UNIT, ("mount", "read-only", "required", "/no/such"), ("namespace", "shared"), SLEEP)
    found = run_starter(starter, tmp_path, text)
    assert (found.status, found.reason) == (1, "Exec main: /no/such: No such file or directory")


def test_private_devices(starter: Path, tmp_path: Path) -> None:
    found = start(
        starter,
        tmp_path,
        ("mount", "private-dev", "required", "/dev"),
        ("namespace", "shared"),
        SLEEP,
        inside="nsenter -m -r -t $MAIN sh -c 'ls /dev; echo x >/dev/null && head -c 4 /dev/zero | od -An -tx1'",
        outside="test -e /dev/kmsg && echo there",
    )
    lines = found.answers["inside"].splitlines()
    assert {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "log", "fd"} <= set(
        lines
    )
    assert not {"kmsg", "vda", "mem"} & set(lines)
    assert lines[-1] == " 00 00 00 00"
    assert found.answers["outside"] == "there"


def test_a_device_that_cannot_be_looked_at_is_an_error(starter: Path, tmp_path: Path) -> None:
    """stat(2) may fail otherwise than by ENOENT. The device must not become what the one before it was."""
    before = (
        "mkdir /tmp/dev\n"
        "for name in null full random urandom tty; do\n"
        ": >/tmp/dev/$name && mount --bind /dev/$name /tmp/dev/$name || exit 1; done\n"
        "ln -s zero /tmp/dev/zero && mount --rbind /tmp/dev /dev || exit 1\n"
    )
    text = describe(*UNIT, ("mount", "private-dev", "required", "/dev"), ("namespace", "shared"), SLEEP)
    found = run_starter(starter, tmp_path, text, before=before)
    assert (found.status, found.main_pid) == (1, "")
    assert found.reason.startswith("Exec main: /dev/zero: ")


def test_a_command_with_a_plus_has_the_binds_of_the_unit(starter: Path, tmp_path: Path) -> None:
    """What it writes below a bind mount goes to the same place as with systemd, and its mounts stay in its namespace."""
    found = start(
        starter,
        tmp_path,
        ("mount", "read-only", "required", "/run/closed"),
        ("mount", "tmpfs", "optional", "/run/home", "mode=0755"),
        ("mount", "bind-all", "required", "/run/at", "/run/from"),
        ("namespace", "shared"),
        command(
            "pre",
            "touch /run/at/file /run/closed/file /run/home/file; mount -t tmpfs none /run/mine; touch /run/mine/file",
            flags="+",
        ),
        SLEEP,
        before="mkdir -p /run/at /run/from /run/closed /run/home /run/mine",
        files="cd /run; ls at from closed home mine",
    )
    assert found.answers["files"].split() == [
        "at:",
        "closed:",
        "file",
        "from:",
        "file",
        "home:",
        "file",
        "mine:",
    ]


@pytest.mark.parametrize(
    ("more", "writable"), [((), "yes"), ((("mount", "read-only", "required", "/dev"),), "no")]
)
def test_what_is_shared_in_a_private_dev(
    starter: Path, tmp_path: Path, more: tuple[tuple[str, ...], ...], writable: str
) -> None:
    tries = "touch /dev/shm/file 2>/dev/null && echo yes || echo no; touch /dev/x 2>/dev/null || echo closed"
    found = start(
        starter,
        tmp_path,
        ("mount", "private-dev", "required", "/dev"),
        *more,
        ("namespace", "shared"),
        SLEEP,
        before="mkdir -p /dev/shm",
        shm=f"nsenter -m -t $MAIN sh -c '{tries}'",
    )
    assert found.answers["shm"].split() == [writable, "closed"]
