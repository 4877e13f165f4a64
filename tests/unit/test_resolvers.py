"""Which programs read /etc/resolv.conf again when it changes, and which may read it only once."""

from __future__ import annotations

import pytest

from tests.unit.madebefore import TMPFILES, opened, used

PATH, OPTIONS, SOURCES = "/etc/resolv.conf", "/etc/host.conf", "/etc/nsswitch.conf"
DHCLIENT = f'{TMPFILES} rename("/etc/resolv.conf.new", "{PATH}") = 0'
CLOEXEC = "O_RDONLY|O_CLOEXEC"


def looked_up(path: str, pid: int = 11) -> str:
    return f'{pid} newfstatat(AT_FDCWD</>, "{path}", {{st_mode=S_IFREG|0644}}, 0) = 0'


GLIBC = (looked_up(PATH), opened(OPTIONS, CLOEXEC), opened(PATH, CLOEXEC))
PROGRAMS = (
    "/usr/bin/python3",
    "/opt/app/venv/bin/gunicorn",
    "/usr/bin/perl",
    "/usr/sbin/spamd",
    "/usr/bin/podman",
)


@pytest.mark.parametrize("program", [*PROGRAMS, "/usr/sbin/apache2"])
def test_glibc_s_resolver_in_any_program(program: str) -> None:
    run = f'11 execve("{program}", ["x"], ["INVOCATION_ID=1"]) = 0'
    assert used(DHCLIENT, run, *GLIBC) == []
    # It looks the file up each time, and opens it when it has changed.
    assert (
        used(DHCLIENT, run, *GLIBC, looked_up(PATH), DHCLIENT, looked_up(PATH), opened(PATH, CLOEXEC)) == []
    )
    assert used(DHCLIENT, run, looked_up(PATH), opened("/etc/app", CLOEXEC), *GLIBC) == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_module_that_reads_the_file_once(program: str) -> None:
    run = f'11 execve("{program}", ["x"], ["INVOCATION_ID=1"]) = 0'
    # dnspython, a library of Go, and podman, which copies the file.
    assert used(DHCLIENT, run, opened(PATH, CLOEXEC)) == [PATH]
    # Net::DNS of Perl looks it up as well, and does other things in between.
    other = looked_up("/root/.resolv.conf")
    perl = (looked_up(PATH), other, opened(PATH, CLOEXEC))
    assert used(DHCLIENT, run, *perl) == [PATH]
    assert used(DHCLIENT, run, *GLIBC, *perl) == [PATH]
    assert used(DHCLIENT, run, looked_up(PATH), opened(PATH, CLOEXEC)) == [PATH]
    # A user is looked up later.
    user = (looked_up(SOURCES), looked_up("/"), opened(SOURCES, CLOEXEC))
    assert used(DHCLIENT, run, opened(PATH, CLOEXEC), *user) == [PATH]


def test_go_s_resolver() -> None:
    run = '11 execve("/usr/bin/caddy", ["x"], ["INVOCATION_ID=1"]) = 0'
    go = (opened(PATH, CLOEXEC), opened("/srv/other", CLOEXEC), opened(SOURCES, CLOEXEC))
    assert used(DHCLIENT, run, *go) == []
    # CoreDNS reads it once more, itself.
    assert used(DHCLIENT, run, *go, opened(PATH, CLOEXEC)) == [PATH]
    assert used(DHCLIENT, run, opened(PATH, CLOEXEC), *go) == [PATH]


def test_a_file_that_is_opened_with_fopen() -> None:
    """c-ares and squid."""
    assert used(DHCLIENT, *GLIBC, opened(PATH)) == [PATH]
    missing = f'11 openat(AT_FDCWD</>, "{PATH}", O_RDONLY) = -1 ENOENT (No such file or directory)'
    assert used(DHCLIENT, missing) == [PATH]
    assert used(DHCLIENT, looked_up(PATH)) == []
