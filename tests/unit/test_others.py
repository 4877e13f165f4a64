"""What the rest of the reference boot made before the unit used it: the log shows it, and a build refuses it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.model import ListeningSocket
from quickstart.model import Op
from quickstart.model.started import Changed
from quickstart.pack.nodes import refuse_late_nodes
from quickstart.pack.others import refuse_made_before
from tests.unit.imagebuilder import trace
from tests.unit.madebefore import TMPFILES, app, opened, put_client, refused, used
from tests.unit.test_strace_unit import unit_log
from tests.unit.test_unit_sockets import link, put


@pytest.mark.parametrize(
    "change",
    [
        f'{TMPFILES} openat(7</etc/app>, "acl.conf", O_WRONLY|O_CREAT|O_EXCL, 0644) = 3</etc/app/acl.conf>',
        f'{TMPFILES} symlinkat("/srv/acl.conf", 7</etc/app>, "acl.conf") = 0',
        f'{TMPFILES} rename("/etc/app/.tmp", "/etc/app/acl.conf") = 0',
        # No new content, but another mode.
        f'{TMPFILES} chmod("/etc/app/acl.conf", 0600) = 0',
        f'{TMPFILES} openat(AT_FDCWD</>, "/etc/app/acl.conf", O_WRONLY|O_APPEND) = 3</etc/app/acl.conf>',
    ],
)
def test_what_another_process_changes_before(change: str) -> None:
    read = opened("/etc/app/acl.conf")
    assert used(change, read) == ["/etc/app/acl.conf"]
    # Afterwards, it is the same in an early start.
    assert used(read, change) == []


def test_a_directory_above_and_a_file_that_is_gone() -> None:
    made = f'{TMPFILES} mkdirat(AT_FDCWD</>, "/var/cache/app", 0755) = 0'
    assert used(made, '11 newfstatat(AT_FDCWD</>, "/var/cache/app/db", 0x1, 0) = 0') == ["/var/cache/app"]
    removed = f'{TMPFILES} unlink("/var/lib/app/lock") = 0'
    looked = '11 access("/var/lib/app/lock", F_OK) = -1 ENOENT (No such file or directory)'
    assert used(removed, looked) == ["/var/lib/app/lock"]


def test_what_the_unit_makes_itself() -> None:
    """systemd's child of the unit, too: StateDirectory= and the like."""
    own = opened("/etc/own", "O_WRONLY|O_CREAT", 10)
    assert used(own, opened("/etc/own")) == []
    # It writes over what another process made.
    anew = opened("/etc/own", "O_WRONLY|O_CREAT|O_TRUNC", 10)
    assert used(opened("/etc/own", "O_WRONLY|O_CREAT", 20), anew, opened("/etc/own")) == []
    child = (
        "1 clone(flags=SIGCHLD) = 30",
        opened("/sys/fs/cgroup/system.slice/a.service/cgroup.procs", "O_WRONLY", 30),
        '30 mkdir("/var/lib/a", 0755) = 0',
        '30 execve("/bin/a", ["a"], 0x1 /* 0 vars */) = 0',
    )
    assert used(*child, opened("/var/lib/a/x", pid=30)) == []


def test_what_is_changed_in_place_was_used() -> None:
    """A data base that tmpfiles.d has made: bbolt opens it for reading and writing, and looks at nothing before."""
    seed = opened("/var/lib/app/db", "O_WRONLY|O_CREAT|O_EXCL", 20)
    assert used(seed, opened("/var/lib/app/db", "O_RDWR|O_CREAT")) == ["/var/lib/app/db"]
    assert used(seed, opened("/var/lib/app/db", "O_WRONLY|O_CREAT|O_TRUNC")) == []


def test_a_file_without_a_name_changes_nothing() -> None:
    made = f'{TMPFILES} openat(AT_FDCWD</>, "/tmp", O_RDWR|O_EXCL|O_TMPFILE, 0600) = 3</tmp/#1 (deleted)>'
    assert (
        used(made, '11 newfstatat(AT_FDCWD</>, "/tmp/x", 0x1, 0) = -1 ENOENT (No such file or directory)')
        == []
    )


@pytest.mark.parametrize("pid", [1, 30])
def test_what_systemd_looks_up_for_the_unit(pid: int, tmp_path: Path) -> None:
    """PID 1 reads environment files, and its child looks for the paths of the mount namespace."""
    made = opened("/etc/app.env", "O_WRONLY|O_CREAT|O_EXCL", 20)
    child = (
        "1 clone(flags=SIGCHLD) = 30",
        opened("/sys/fs/cgroup/system.slice/a.service/cgroup.procs", "O_WRONLY", 30),
    )
    found = unit_log(made, *child, opened("/etc/app.env", pid=pid)).changed
    assert found == Changed((), (PurePosixPath("/etc/app.env"),))
    booted = [replace(trace(), changed=found)]
    link(tmp_path, "/etc/link.env", "/etc/app.env")
    refuse_made_before(booted, app(), ImageRoot(tmp_path))
    for record in (
        ("environment-file", "optional", "/etc/app.env"),
        ("mount", "inaccessible", "optional", "/etc/app.env"),
        ("environment-file", "optional", "/etc/link.env"),
    ):
        with pytest.raises(UnsupportedUnitError, match=r"made or changed /etc/app\.env before"):
            refuse_made_before(booted, app(record), ImageRoot(tmp_path))


def test_a_group_that_the_boot_gives_to_a_user(tmp_path: Path) -> None:
    """systemd-sysusers renames its own copy over the file; systemd's child looks the user's groups up there."""
    made = f'{TMPFILES} rename("/etc/.#group", "/etc/group") = 0'
    looked = '1 openat(AT_FDCWD</>, "/etc/group", O_RDONLY|O_CLOEXEC) = 3</etc/group>'
    log = unit_log(made, looked)
    assert log.changed.before_manager == (PurePosixPath("/etc/group"),)
    booted = [replace(trace("/x"), changed=log.changed)]
    refuse_made_before(booted, app(("umask", "022")), ImageRoot(tmp_path))
    with pytest.raises(UnsupportedUnitError, match=r"made or changed /etc/group before"):
        refuse_made_before(booted, app(("user", "www-data")), ImageRoot(tmp_path))


@pytest.mark.parametrize(
    ("path", "error", "is_refused"),
    [
        ("/dev/net/tun", None, True),
        ("/dev/watchdog", None, True),
        ("/dev/disk/by-uuid/x", None, True),
        ("/dev/hugepages", None, True),
        ("/dev/net/tun", "ENOENT", False),
        *((f"/dev/{name}", None, False) for name in ("null", "urandom", "tty", "ttyS0", "vda1", "rtc0")),
        *((f"/dev/{name}", None, False) for name in ("pts/0", "shm", "shm/a/b", "fd/3", "stdout", "log")),
        ("/dev", None, False),
        ("/srv/dev/fuse", None, False),
    ],
)
def test_a_device_that_comes_later(path: str, error: str | None, *, is_refused: bool) -> None:
    booted = [trace((Op.OPEN, path) if error is None else (Op.OPEN, path, error))]
    if not is_refused:
        refuse_late_nodes(booted, "app.service")
        return
    with pytest.raises(UnsupportedUnitError, match=f"it uses {path}, which comes later in a boot"):
        refuse_late_nodes(booted, "app.service")


def test_two_spellings_of_run() -> None:
    made = f'{TMPFILES} openat(7</run>, "acl", O_WRONLY|O_CREAT|O_EXCL, 0644) = 3</run/acl>'
    assert used(made, '11 newfstatat(AT_FDCWD</>, "/var/run/acl", 0x1, 0) = 0') == ["/run/acl"]


def test_the_kernel_s_files_do_not_count() -> None:
    assert used(opened("/proc/sys/x", "O_WRONLY", 20), opened("/proc/sys/x")) == []
    assert used(opened("/dev/null", "O_RDWR", 20), opened("/dev/null")) == []


def test_it_is_refused_and_named(tmp_path: Path) -> None:
    message = refused(tmp_path, *(f"/etc/app/{name}" for name in "abcd"))
    assert "another program made or changed /etc/app/a, /etc/app/b, /etc/app/c and 1 more before" in message


@pytest.mark.parametrize(
    ("path", "another"),
    [
        ("/run/systemd/journal", "/run/systemdx"),
        ("/run/lock", "/run/locks"),
        ("/run/utmp", "/run/utmpx"),
        ("/var/log/auth.log", "/var/logs"),
        ("/var/lib/dbus/machine-id", "/var/lib/dbus"),
        ("/etc/resolv.conf", "/etc/resolv.conf.d"),
        # Who reads the journal opens it once.
        ("/run/systemd/journal", "/run/log/journal"),
        ("/run/systemd/journal", "/run/systemd/resolve/stub-resolv.conf"),
        ("/tmp/systemd-private-1-app/tmp", "/tmp/app"),
    ],
)
def test_what_an_early_start_has_as_well(tmp_path: Path, path: str, another: str) -> None:
    put_client(tmp_path)
    assert refused(tmp_path, path) == ""
    assert another in refused(tmp_path, another)


def test_a_directory_of_the_starter_s(tmp_path: Path) -> None:
    put(tmp_path, "/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
    put(tmp_path, "/etc/group", "root:x:0:\n")
    assert "/run/app/a" in refused(tmp_path, "/run/app", "/run/app/a")
    put(tmp_path, "/usr/lib/tmpfiles.d/app.conf", "d /run/app/a 0755 root root -\n")
    assert refused(tmp_path, "/run/app", "/run/app/a") == ""
    assert "/run/app/a/acl" in refused(tmp_path, "/run/app/a/acl")


def test_the_root_of_a_private_directory(tmp_path: Path) -> None:
    unit = app(
        ("private-directory", "0755", "/var/lib", "app"),
        ("mount", "private-root", "required", "/var/lib/private"),
    )
    found = replace(trace(), changed=Changed((), (PurePosixPath("/var/lib/private"),)))
    refuse_made_before([found], unit, ImageRoot(tmp_path))
    for path in ("/var/cache/private", "/var/lib/private/app"):
        found = replace(trace(), changed=Changed((PurePosixPath(path),), ()))
        with pytest.raises(UnsupportedUnitError, match=path):
            refuse_made_before([found], unit, ImageRoot(tmp_path))


def test_a_directory_of_a_socket(tmp_path: Path) -> None:
    """systemd makes it for the socket of avahi-daemon, which looks at it; and so does init."""
    place = PurePosixPath("/run/avahi-daemon")
    listens = ListeningSocket(unit="a.socket", kind="stream", path=place / "socket", port=0, records=())
    companion = replace(app(), unit="a.service", sockets=(listens,))
    for unit in (replace(app(), sockets=(listens,)), replace(app(), companions=(companion,))):
        for path in (place, place / "socket"):
            booted = [replace(trace(), changed=Changed((path,), ()))]
            refuse_made_before(booted, unit, ImageRoot(tmp_path))
            with pytest.raises(UnsupportedUnitError, match=str(path)):
                refuse_made_before(booted, app(), ImageRoot(tmp_path))
        other = [replace(trace(), changed=Changed((place / "other",), ()))]
        with pytest.raises(UnsupportedUnitError, match="/run/avahi-daemon/other"):
            refuse_made_before(other, unit, ImageRoot(tmp_path))


def test_on_a_machine_that_cloud_init_has_been_through(tmp_path: Path) -> None:
    """Its first boot is a stock boot, and what that changed is on the volume; or the profile wants it so."""
    assert "/etc/passwd" in refused(tmp_path, "/etc/passwd")
    put(tmp_path, "/usr/lib/systemd/system/cloud-init.service", "[Unit]\n")
    link(
        tmp_path,
        "/etc/systemd/system/cloud-init.target.wants/cloud-init.service",
        "/usr/lib/systemd/system/cloud-init.service",
    )
    assert refused(tmp_path, "/etc/passwd") == ""
    assert "/run/app" in refused(tmp_path, "/etc/passwd", "/run/app")
    assert "/tmp/app" in refused(tmp_path, "/tmp/app")
