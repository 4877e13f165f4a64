"""The directories and files that the starter makes for a unit: owners, modes and masks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.starterbox import (
    SLEEP,
    Units,
    start,
)

# Units have cgroups.
pytestmark = pytest.mark.host_root


def test_directories(starter: Path, tmp_path: Path) -> None:
    found = start(
        starter,
        tmp_path,
        ("user", "nobody"),
        ("directory", "user", "02750", "/run/a/b"),
        ("directory", "root", "0700", "/run/c"),
        ("directory", "user", "0755", "/run/old"),
        SLEEP,
        before="mkdir -p /run/old/below; touch /run/old/below/file; ln -s /etc /run/old/link",
        modes="cd /run; stat -c '%a %U %n' a a/b c old old/below old/below/file; stat -L -c %U old/link",
    )
    assert found.answers["modes"].splitlines() == [
        "755 root a",
        "2750 nobody a/b",
        "700 nobody c",
        "755 nobody old",
        "755 nobody old/below",
        "644 nobody old/below/file",
        "root",
    ]


def test_directories_of_tmpfiles(starter: Path, tmp_path: Path) -> None:
    found = start(
        starter,
        tmp_path,
        ("run-directory", "02775", "nobody", "audio", "/run/a/b"),
        ("run-directory", "0755", "nobody", "audio", "/run/there"),
        SLEEP,
        before="mkdir -m 700 /run/there",
        modes="cd /run; stat -c '%a %U %G %n' a a/b there",
    )
    assert found.answers["modes"].splitlines() == [
        "755 root root a",
        "2775 nobody audio a/b",
        "700 root root there",
    ]


@pytest.mark.parametrize("place", ["/tmp", "/var/tmp", "/dev/shm", "/run/lock"])
def test_a_directory_that_a_user_has_made_of_the_name_is_given_to_its_owner(
    starter: Path, tmp_path: Path, place: str
) -> None:
    """Before anything of the user's runs in this boot, as systemd-tmpfiles does. What is in it stays, as in a stock boot."""
    found = start(
        starter,
        tmp_path,
        ("run-directory", "0700", "root", "root", f"{place}/app"),
        ("run-directory", "01777", "nobody", "audio", f"{place}/app/new"),
        SLEEP,
        before=f"mkdir -p {place}/app; touch {place}/app/file; chmod 777 {place}/app; chown -R nobody:audio {place}/app",
        modes=f"cd {place}; stat -c '%a %U %G %n' app app/file app/new",
    )
    assert found.answers["modes"].splitlines() == [
        "700 root root app",
        "644 nobody audio app/file",
        "1777 nobody audio app/new",
    ]


def test_what_the_line_does_not_say_an_existing_directory_keeps(starter: Path, tmp_path: Path) -> None:
    """As with systemd-tmpfiles, a service may have closed its directory. A new one gets what is usual."""
    found = start(
        starter,
        tmp_path,
        ("run-directory", ":0755", ":root", ":root", "/var/tmp/old"),
        ("run-directory", "0750", ":root", "root", "/var/tmp/half"),
        ("run-directory", ":0755", ":root", ":root", "/var/tmp/new"),
        SLEEP,
        before="cd /var; mkdir -p tmp/old tmp/half; chmod 700 tmp/*; chown nobody:audio tmp/*; cd /",
        modes="cd /var/tmp; stat -c '%a %U %G %n' old half new",
    )
    assert found.answers["modes"].splitlines() == [
        "700 nobody audio old",
        "750 nobody root half",
        "755 root root new",
    ]


def test_only_the_first_starter_of_a_stack_makes_them(starter: Path, tmp_path: Path) -> None:
    """A service of an earlier unit may have put a link in place of its directory."""
    records = (("run-directory", "0700", "root", "root", "/run/lock/app"), SLEEP)
    place = "mkdir -p /run/quickstart /run/lock; "
    (tmp_path / "first").mkdir()
    found = start(
        starter,
        tmp_path / "first",
        *records,
        before=place,
        modes="stat -c '%a %U %n' /run/lock/app; ls /run/quickstart",
    )
    assert found.answers["modes"].splitlines()[0] == "700 root /run/lock/app"
    assert "directories" in found.answers["modes"].splitlines()
    (tmp_path / "second").mkdir()
    before = f"{place}touch /run/quickstart/directories; ln -s /etc /run/lock/app"
    assert start(starter, tmp_path / "second", *records, before=before).status == 0


def test_a_directory_that_is_right_is_not_written_to(starter: Path, tmp_path: Path) -> None:
    found = start(
        starter,
        tmp_path,
        ("run-directory", "0700", "root", "root", "/var/tmp/app"),
        SLEEP,
        before="mkdir -p /var/tmp; mount -t tmpfs none /var/tmp; mkdir -m 700 /var/tmp/app; mount -o remount,ro /var/tmp",
        modes="stat -c '%a %U' /var/tmp/app",
    )
    assert found.answers["modes"] == "700 root"


@pytest.mark.parametrize("other", ["ln -s /etc", "mkfifo", "touch"])
def test_a_user_s_link_or_file_of_the_name_of_a_directory(starter: Path, tmp_path: Path, other: str) -> None:
    """The starter ends, so the boot is a stock boot."""
    found = Units(starter, tmp_path).start(
        ("run-directory", "0700", "nobody", "nogroup", "/var/tmp/app"),
        SLEEP,
        before=f"mkdir -p /var/tmp; chmod 1777 /var/tmp; {other} /var/tmp/app; chown -h nobody /var/tmp/app",
    )
    assert found.status != 0
    assert "/var/tmp/app" in found.reason + found.log


def test_a_configuration_directory_that_somebody_has_closed(starter: Path, tmp_path: Path) -> None:
    """systemd leaves it as it is (setup_exec_directory)."""
    found = start(
        starter,
        tmp_path,
        ("user", "nobody"),
        ("directory", "root", "0755", "/run/etc/app"),
        SLEEP,
        before="mkdir -p /run/etc; mkdir -m 700 /run/etc/app",
        modes="stat -c '%a %U' /run/etc/app",
    )
    assert found.answers["modes"] == "700 root"


def test_the_mask_of_the_unit_is_not_for_what_lies_above(starter: Path, tmp_path: Path) -> None:
    found = start(
        starter,
        tmp_path,
        ("user", "nobody"),
        ("umask", "077"),
        ("directory", "user", "0755", "/run/a/b"),
        SLEEP,
        modes="stat -c '%a %U' /run/a /run/a/b; grep Umask /proc/$MAIN/status",
    )
    assert found.answers["modes"].split() == ["755", "root", "755", "nobody", "Umask:", "0077"]


@pytest.mark.parametrize(("mask", "mode"), [("022", "644"), ("077", "600"), ("027", "640"), (None, "644")])
@pytest.mark.parametrize("how", ["append", "file", "truncate"])
def test_an_output_file_has_the_mask_of_the_unit(
    starter: Path, tmp_path: Path, how: str, mask: str | None, mode: str
) -> None:
    """systemd opens it with 0666 & ~UMask= (exec_child)."""
    more = () if mask is None else (("umask", mask),)
    found = start(starter, tmp_path, ("stdout", how, "/tmp/out"), *more, SLEEP, modes="stat -c %a /tmp/out")
    assert found.answers["modes"] == mode


def test_who_has_no_user_gets_the_directories_of_root(starter: Path, tmp_path: Path) -> None:
    """Their former owner would keep a service of root's state. Lists of access go, and setuid stays (chown-recursive.c)."""
    found = start(
        starter,
        tmp_path,
        ("directory", "user", "0755", "/run/old"),
        SLEEP,
        before="mkdir -p /run/old/below; touch /run/old/below/file; chown -R nobody /run/old; chmod 4755 /run/old/below/file\n"
        "for each in /run/old /run/old/below/file; do setfattr -n system.posix_acl_access "
        "-v 0x0200000001000700ffffffff02000700010000000400050000000000ffffffff10000700ffffffff20000500ffffffff $each || :; done",
        modes="cd /run; stat -c '%a %U' old old/below old/below/file; getfattr -d -m - -R old 2>/dev/null",
    )
    assert found.answers["modes"].splitlines() == ["755 root", "755 root", "4755 root"]
