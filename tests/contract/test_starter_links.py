"""The starter works by descriptors: a link in the place of a service's directory, log or PID file leads root nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.contract.starterbox import SLEEP, UNIT, Started, command, describe, run_starter, start

# It mounts what only root of the host may.
pytestmark = pytest.mark.host_root

NOT_ROOTS = "there is a link on the way that is not followed"
# As StateDirectory=a/b: `a` is the service's own, and so is what is in it.
HIS = (
    "mkdir -p /tmp/lib/a /tmp/victim; chmod 755 /tmp/lib; chown nobody /tmp/lib/a\n"
    "touch /tmp/victim/file; chmod 700 /tmp/victim\n"
)
VICTIM = "stat -c '%a %U' /tmp/victim /tmp/victim/file | tr '\\n' ' '"


def his(path: str, mode: str) -> tuple[tuple[str, ...], ...]:
    """A unit's own directory, made before it becomes its user."""
    return ("user", "nobody"), ("directory", "user", mode, path), ("groups",), ("become-user",)


def refused(
    starter: Path, work: Path, before: str, *records: tuple[str, ...], victim: str = VICTIM
) -> Started:
    found = run_starter(starter, work, describe(*UNIT, *records, SLEEP), {"victim": victim}, before)
    assert (found.status, found.main_pid) == (1, "")
    return found


@pytest.mark.parametrize("link", ["/tmp/victim", "../../victim", "/tmp/victim/file"])
def test_a_state_directory_that_is_a_link_is_not_followed(starter: Path, tmp_path: Path, link: str) -> None:
    """The next early start would give away and chmod what it leads to: /etc/shadow, say."""
    before = f"{HIS}ln -s {link} /tmp/lib/a/b; chown -h nobody /tmp/lib/a/b"
    found = refused(starter, tmp_path, before, *his("/tmp/lib/a/b", "0777"))
    assert found.reason == f"Exec main: /tmp/lib/a/b cannot be made: {NOT_ROOTS}"
    assert found.answers["victim"].split() == ["700", "root", "644", "root"]


def test_nor_is_one_on_the_way(starter: Path, tmp_path: Path) -> None:
    """Not even a link of root's that he has in his own directory by another name."""
    before = f"{HIS}ln -s /tmp/victim /tmp/lib/a/b"
    found = refused(starter, tmp_path, before, *his("/tmp/lib/a/b/c", "0777"))
    assert found.reason == f"Exec main: /tmp/lib/a/b/c cannot be made: {NOT_ROOTS}"
    assert found.answers["victim"].split() == ["700", "root", "644", "root"]


def test_a_link_of_the_administrators_is_followed(starter: Path, tmp_path: Path) -> None:
    """/var/lib/mysql on another volume."""
    before = "mkdir -p /run/data/below /run/lib; touch /run/data/file; ln -s ../data /run/lib/app"
    found = start(
        starter,
        tmp_path,
        *his("/run/lib/app", "0750"),
        SLEEP,
        before=before,
        seen="stat -c '%a %U' /run/data /run/data/below /run/data/file | tr '\\n' ' '",
    )
    assert found.answers["seen"].split() == ["750", "nobody", "755", "nobody", "644", "nobody"]


def test_links_in_a_tree_that_changes_its_owner_are_changed_themselves(starter: Path, tmp_path: Path) -> None:
    before = (
        f"{HIS}mkdir /run/app; ln -s /tmp/victim/file /run/app/link; ln -s /tmp/victim /run/app/directory"
    )
    found = start(
        starter,
        tmp_path,
        *his("/run/app", "0750"),
        SLEEP,
        before=before,
        victim=VICTIM,
        links="stat -c %U /run/app/link /run/app/directory | tr '\\n' ' '",
    )
    assert found.answers["victim"].split() == ["700", "root", "644", "root"]
    assert found.answers["links"].split() == ["nobody", "nobody"]


def test_the_log_is_for_root_and_adm(starter: Path, tmp_path: Path) -> None:
    """Also one that an earlier quickstart has left."""
    found = start(
        starter,
        tmp_path,
        SLEEP,
        before="echo earlier >/var/log/quickstart.log; chmod 666 /var/log/quickstart.log; chown nobody /var/log/quickstart.log",
        mode="stat -c '%a %U %G' /var/log/quickstart.log",
        flags="sed -n 's/^flags:[ \\t]*//p' /proc/$MAIN/fdinfo/1",
    )
    assert found.answers["mode"] == "640 root adm"
    assert found.log == "earlier"
    # O_WRONLY | O_APPEND | O_LARGEFILE, and not O_NONBLOCK.
    assert int(found.answers["flags"], 8) & 0o6001 == 0o2001


def test_without_a_group_adm_it_is_roots(starter: Path, tmp_path: Path) -> None:
    found = start(
        starter,
        tmp_path,
        SLEEP,
        before="grep -v ^adm: /etc/group >/run/group; mount --bind /run/group /etc/group",
        mode="stat -c '%a %U %G' /var/log/quickstart.log",
    )
    assert found.answers["mode"] == "640 root root"


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ("ln -s /tmp/victim/file", f"cannot be opened: {NOT_ROOTS}"),
        ("ln -s /tmp/victim/none", f"cannot be opened: {NOT_ROOTS}"),
        ("ln /var/log/victim/file", "is no plain file of one name"),
        ("mkfifo", "cannot be opened: No such device or address"),
        ("mkdir", "cannot be opened: Is a directory"),
    ],
)
def test_what_is_no_plain_file_is_no_log(starter: Path, tmp_path: Path, made: str, why: str) -> None:
    before = f"{HIS}umount /var/log; mount --bind /tmp /var/log; {made} /var/log/quickstart.log"
    found = refused(
        starter,
        tmp_path,
        before,
        victim="cat /tmp/victim/file; ls /tmp/victim; rm -r /var/log/quickstart.log",
    )
    assert found.reason == f"Exec main: /var/log/quickstart.log {why}"
    assert found.answers["victim"] == "file"


def test_an_output_file_in_a_directory_of_the_services(starter: Path, tmp_path: Path) -> None:
    before = f"{HIS}ln -s /tmp/victim/file /tmp/lib/a/out; chown -h nobody /tmp/lib/a/out"
    found = refused(
        starter, tmp_path, before, ("stdout", "append", "/tmp/lib/a/out"), victim="cat /tmp/victim/file"
    )
    assert found.reason == f"Exec main: /tmp/lib/a/out cannot be opened: {NOT_ROOTS}"
    assert found.answers["victim"] == ""


@pytest.mark.parametrize("how", ["append", "file", "truncate"])
def test_an_output_file_that_nobody_reads_from_does_not_keep_the_machine(
    starter: Path, tmp_path: Path, how: str
) -> None:
    """The starter waits as long as the unit's TimeoutStartSec= lets it, which may be for ever, and the machine waits for it."""
    found = refused(
        starter,
        tmp_path,
        f"{HIS}mkfifo /tmp/lib/a/out; chown nobody /tmp/lib/a/out",
        ("stdout", how, "/tmp/lib/a/out"),
        ("start-timeout-ms", "3000"),
    )
    assert found.reason == "Exec main: /tmp/lib/a/out cannot be opened: No such device or address"


def test_an_output_file_is_opened_as_ever(starter: Path, tmp_path: Path) -> None:
    found = start(
        starter,
        tmp_path,
        ("stdout", "append", "/tmp/out"),
        SLEEP,
        flags="grep flags /proc/$MAIN/fdinfo/1",
    )
    flags = int(found.answers["flags"].split()[1], 8)
    assert flags & os.O_APPEND and not flags & os.O_NONBLOCK


@pytest.mark.parametrize(
    "instead", ["mkfifo $P", "ln -s /dev/zero $P", "mkdir $P", "ln -s /proc/1/environ $P"]
)
def test_a_pid_file_that_is_none(starter: Path, tmp_path: Path, instead: str) -> None:
    """It neither stops the starter for ever nor fills the memory."""
    script = f"P=/run/app.pid; rm -f $P; {instead}; sleep 600 &"
    records = (("type", "forking"), ("pid-file", "/run/app.pid"), ("start-timeout-ms", "1000"))
    text = describe(*(each for each in UNIT if each[0] != "type"), *records, command("main", script))
    found = run_starter(starter, tmp_path, text)
    assert (found.status, found.reason) == (1, "/run/app.pid names no process of the unit")


def test_a_file_of_variables_without_an_end(starter: Path, tmp_path: Path) -> None:
    found = refused(
        starter,
        tmp_path,
        "ln -s /dev/zero /run/variables",
        ("environment-file", "required", "/run/variables"),
    )
    assert found.reason == "Exec main: /run/variables cannot be read: File too large"
