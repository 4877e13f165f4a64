"""DynamicUser=: the number that the starter takes, the directories that it makes, and what it leaves to systemd."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quickstart.inspect.unit.dynamicuser import number_of
from tests.contract.starterbox import SLEEP, STATUS, UNIT, Started, describe, field, run_starter, start

# Units have cgroups.
pytestmark = pytest.mark.host_root

Record = tuple[str, ...]
NUMBER = number_of("box-app")
USER: tuple[Record, ...] = (("user", "box-app"), ("dynamic-user", str(NUMBER)))
STATE: Record = ("private-directory", "0750", "/var/lib", "app")
STEPS: tuple[Record, ...] = (("groups",), ("become-user",))
OWN: tuple[Record, ...] = (
    ("mount", "read-only", "required", "/"),
    ("mount", "private-root", "required", "/var/lib/private"),
    ("mount", "read-write", "required", "/var/lib/private/app"),
    ("namespace", "shared", "nosuid"),
)
# The box has this host's; nobody knows its user.
EMPTY = """
mount -t tmpfs -o mode=755 lib /var/lib
cp /etc/passwd /etc/group /run && mount --bind /run/passwd /etc/passwd && mount --bind /run/group /etc/group
"""
WHOM = "cat /run/quickstart/made-up-user"


def started(starter: Path, work: Path, *records: Record, before: str = "", **questions: str) -> Started:
    return start(
        starter, work, *USER, *records, SLEEP, before=EMPTY + before, status=STATUS, whom=WHOM, **questions
    )


def refused(starter: Path, work: Path, *records: Record, before: str = "") -> str:
    text = describe(*UNIT, *USER, *records, *STEPS, SLEEP)
    found = run_starter(
        starter, work, text, {"made": "ls -d /var/lib/private/app 2>/dev/null"}, EMPTY + before
    )
    assert (found.status, found.main_pid) == (1, "")
    return found.reason


def test_a_user_by_his_name(starter: Path, tmp_path: Path) -> None:
    environ = "tr '\\0' '\\n' </proc/$MAIN/environ"
    found = started(starter, tmp_path, *STEPS, environ=environ)
    assert [field(found, name).split() for name in ("Uid", "Gid", "Groups")] == [[str(NUMBER)] * 4] * 2 + [
        [str(NUMBER)]
    ]
    assert found.answers["whom"] == f"{NUMBER} box-app"
    names = {line.partition("=")[0] for line in found.answers["environ"].splitlines()}
    assert names & {"USER", "LOGNAME", "HOME", "SHELL"} == {"USER", "LOGNAME"}


def test_a_user_of_the_image(starter: Path, tmp_path: Path) -> None:
    """systemd takes him, and does not look for his home."""
    before = "echo box-app:x:777:778::/home/x:/bin/sh >>/etc/passwd\n"
    environ = "tr '\\0' '\\n' </proc/$MAIN/environ"
    found = started(starter, tmp_path, *STEPS, before=before, environ=environ)
    assert (field(found, "Uid").split()[0], field(found, "Gid").split()[0]) == ("777", "778")
    assert found.answers["whom"] == ""
    assert "HOME=" not in found.answers["environ"] and "SHELL=" not in found.answers["environ"]


def test_a_group_without_its_user(starter: Path, tmp_path: Path) -> None:
    reason = refused(starter, tmp_path, before="echo box-app:x:778: >>/etc/group\n")
    assert reason == "there is a group `box-app`, and no such user"


@pytest.mark.parametrize(
    ("owner", "number"),
    [
        (61500, 61500),
        # Nobody whom systemd makes up.
        (1234, NUMBER),
        # Taken.
        (61501, NUMBER),
        (61502, NUMBER),
        (61503, NUMBER),
    ],
)
def test_the_owner_of_a_directory_comes_first(starter: Path, tmp_path: Path, owner: int, number: int) -> None:
    before = (
        f"mkdir /run/app && chown {owner}:{owner} /run/app\n"
        "echo one:x:61501:1::/: >>/etc/passwd\necho two:x:61502: >>/etc/group\n"
        "mkdir -p /run/quickstart/made-up-users && touch /run/quickstart/made-up-users/61503\n"
    )
    found = started(starter, tmp_path, ("directory", "user", "0755", "/run/app"), *STEPS, before=before)
    assert found.answers["whom"] == f"{number} box-app"


@pytest.mark.parametrize(
    "before",
    [
        f"echo one:x:{NUMBER}:1::/: >>/etc/passwd\n",
        f"mkdir -p /run/quickstart/made-up-users && touch /run/quickstart/made-up-users/{NUMBER}\n",
    ],
)
def test_a_number_that_is_another_s(starter: Path, tmp_path: Path, before: str) -> None:
    """systemd would take any number."""
    assert (
        refused(starter, tmp_path, before=before) == f"the number {NUMBER} of the user `box-app` is another's"
    )


LOOK = "stat -c '%n %a %u %g' /var/lib/private /var/lib/private/app; readlink /var/lib/app"


def test_a_private_directory(starter: Path, tmp_path: Path) -> None:
    found = started(starter, tmp_path, STATE, *STEPS, look=LOOK)
    rows = ["/var/lib/private 700 0 0", f"/var/lib/private/app 750 {NUMBER} {NUMBER}", "private/app"]
    assert found.answers["look"].splitlines() == rows


def test_a_private_directory_that_is_there(starter: Path, tmp_path: Path) -> None:
    before = (
        "mkdir -m 700 /var/lib/private && mkdir -m 777 /var/lib/private/app && ln -s private/app /var/lib/app\n"
        "echo kept >/var/lib/app/file && chown -R 61500:61500 /var/lib/private/app\n"
    )
    found = started(starter, tmp_path, STATE, *STEPS, before=before, look=LOOK, file="cat /var/lib/app/file")
    rows = ["/var/lib/private 700 0 0", "/var/lib/private/app 750 61500 61500", "private/app"]
    assert found.answers["look"].splitlines() == rows
    assert (found.answers["whom"], found.answers["file"]) == ("61500 box-app", "kept")


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        # systemd moves it, if the private one is not there.
        ("mkdir /var/lib/app", "/var/lib/app is no link to private/app"),
        ("ln -s /srv /var/lib/app", "/var/lib/app leads to /srv and not to private/app"),
        ("mkdir -m 711 /var/lib/private", "/var/lib/private is not root's alone"),
        ("mkdir -m 700 /var/lib/private; chown 1 /var/lib/private", "/var/lib/private is not root's alone"),
        # systemd gives it away, with all that is in it.
        (
            "mkdir -m 700 /var/lib/private; mkdir /var/lib/private/app",
            "/var/lib/private/app belongs to another user",
        ),
    ],
)
def test_directories_that_are_systemd_s_to_mend(
    starter: Path, tmp_path: Path, before: str, reason: str
) -> None:
    assert refused(starter, tmp_path, STATE, before=f"{before}\n") == f"Exec main: {reason}"


def test_a_directory_to_move_keeps_its_place(starter: Path, tmp_path: Path) -> None:
    text = describe(*UNIT, *USER, STATE, *STEPS, SLEEP)
    found = run_starter(starter, tmp_path, text, {"private": "ls /var/lib"}, EMPTY + "mkdir /var/lib/app\n")
    assert found.answers["private"] == "app"


def test_only_the_unit_s_own_directories_are_seen(starter: Path, tmp_path: Path) -> None:
    """As systemd 252 mounts them (compile_bind_mounts in its src/core/execute.c)."""
    before = "mkdir -m 700 /var/lib/private && mkdir /var/lib/private/other\n"
    inside = "nsenter -t $MAIN -m -S $(cut -d' ' -f1 /run/quickstart/made-up-user) "
    found = started(
        starter,
        tmp_path,
        STATE,
        *OWN,
        *STEPS,
        before=before,
        seen=f"{inside} ls /var/lib/private",
        write=f"{inside} sh -c 'echo x >/var/lib/app/file && ls -n /var/lib/app/file | cut -d\" \" -f3'",
        beside=f"{inside} sh -c 'echo x >/var/lib/private/file' 2>&1 | sed 's/.*: //'",
        mounts="grep -E ' /var/lib/private[/ ]' /proc/$MAIN/mountinfo | cut -d' ' -f5,6 | sort",
        outside="ls /var/lib/private",
    )
    assert found.answers["seen"] == "app"
    assert found.answers["write"] == str(NUMBER)
    assert found.answers["beside"] in ("Permission denied", "Read-only file system")
    rows = [line.split() for line in found.answers["mounts"].splitlines()]
    assert rows[0] == ["/var/lib/private", "ro,nosuid,nodev,noexec"]
    assert rows[1][0] == "/var/lib/private/app" and rows[1][1].startswith("rw,nosuid,relatime")
    assert found.answers["outside"].split() == ["app", "other"]


def test_a_base_behind_a_link(starter: Path, tmp_path: Path) -> None:
    """/var/lib may be a link of root's, which systemd follows (setup_exec_directory in its src/core/exec-invoke.c)."""
    own = (
        ("private-directory", "0750", "/var/lib/base", "app"),
        ("mount", "private-root", "required", "/var/lib/base/private"),
        ("mount", "read-write", "required", "/var/lib/base/private/app"),
        ("namespace", "shared", "nosuid"),
    )
    found = started(
        starter,
        tmp_path,
        *own,
        *STEPS,
        before="mkdir /var/lib/real && ln -s real /var/lib/base\n",
        seen="nsenter -t $MAIN -m stat -c %u /var/lib/real/private/app /var/lib/base/private/app",
    )
    assert found.answers["seen"].split() == [str(NUMBER)] * 2


def test_a_user_that_cannot_be_noted(starter: Path, tmp_path: Path) -> None:
    """Without the note, `adopt` would take any user for the same."""
    reason = refused(starter, tmp_path, before="mkdir -p /run/quickstart/made-up-user.new\n")
    assert reason == "the user cannot be noted in /run/quickstart"


def test_each_command_is_the_same_user_s(starter: Path, tmp_path: Path) -> None:
    pre: Record = ("command", "pre", "", "/bin/sh", "sh", "-c", "id -u >/var/lib/app/pre")
    found = started(starter, tmp_path, STATE, *OWN, *STEPS, pre, pre="cat /var/lib/app/pre")
    assert found.answers["pre"] == str(NUMBER)


# tmpfs, where the box has its directories, maps owners since Linux 6.3.
maps_owners = pytest.mark.skipif(
    tuple(map(int, os.uname().release.split(".")[:2])) < (6, 3), reason="the kernel maps no owners on a tmpfs"
)
MAPPED: Record = ("map-owners", "yes")
AS_USER = "user=$(cut -d' ' -f1 /run/quickstart/made-up-user); nsenter -t $MAIN -m -S $user -G $user "


@maps_owners
@pytest.mark.parametrize(
    ("before", "whom", "on_disk"),
    [
        ("", NUMBER, 65534),
        (
            "mkdir -m 700 /var/lib/private; mkdir /var/lib/private/app; chown 65534:65534 /var/lib/private/app",
            NUMBER,
            65534,
        ),
        # Of an earlier systemd.
        (
            "mkdir -m 700 /var/lib/private; mkdir /var/lib/private/app; chown 61500:61500 /var/lib/private/app",
            61500,
            61500,
        ),
    ],
)
def test_a_directory_is_nobody_s_on_the_volume(
    starter: Path, tmp_path: Path, before: str, whom: int, on_disk: int
) -> None:
    """As systemd 257 does it."""
    found = started(
        starter,
        tmp_path,
        MAPPED,
        STATE,
        *OWN,
        *STEPS,
        before=f"{before}\n",
        inside=f"{AS_USER} sh -c 'echo x >/var/lib/app/file && stat -c %u:%g /var/lib/app /var/lib/private/app /var/lib/app/file'",
        outside="stat -c %u:%g /var/lib/private/app /var/lib/private/app/file",
        mount="grep ' /var/lib/private/app ' /proc/$MAIN/mountinfo | cut -d' ' -f6",
    )
    assert found.answers["whom"] == f"{whom} box-app"
    assert found.answers["inside"].splitlines() == ["0:0", f"{whom}:{whom}", f"{whom}:{whom}"]
    assert {line.split(":")[0] for line in found.answers["outside"].splitlines()} == {str(on_disk)}
    options = set(found.answers["mount"].split(","))
    mapped = {"nosuid", "nodev", "noexec", "idmapped"} if on_disk == 65534 else {"nosuid"}
    assert options & {"nosuid", "nodev", "noexec", "idmapped"} == mapped


def test_a_file_system_that_maps_no_owners(starter: Path, tmp_path: Path) -> None:
    """Such as overlayfs. Then the directory is the user's on the volume, too."""
    before = "mkdir -p /run/o/u /run/o/w && mount -t overlay -o lowerdir=/run/box,upperdir=/run/o/u,workdir=/run/o/w o /var/lib\n"
    found = started(
        starter,
        tmp_path,
        MAPPED,
        STATE,
        *OWN,
        *STEPS,
        before=before,
        outside="stat -c %u:%g /var/lib/private/app",
    )
    assert found.answers["outside"] == f"{NUMBER}:{NUMBER}"


def test_a_directory_of_nobody_s_where_owners_are_not_mapped(starter: Path, tmp_path: Path) -> None:
    before = (
        "mkdir -m 700 /var/lib/private; mkdir /var/lib/private/app; chown 65534:65534 /var/lib/private/app\n"
    )
    assert (
        refused(starter, tmp_path, STATE, before=before)
        == "Exec main: /var/lib/private/app belongs to nobody"
    )


def test_a_new_tmp(starter: Path, tmp_path: Path) -> None:
    """One file system for both, which nobody else sees, and another for each command."""
    own: tuple[Record, ...] = (
        ("mount", "own-tmp", "required", "/tmp"),
        ("mount", "own-tmp", "required", "/var/tmp"),
        ("namespace", "shared", "nosuid"),
    )
    pre: Record = ("command", "pre", "", "/bin/sh", "sh", "-c", "touch /tmp/pre /var/tmp/pre")
    found = started(
        starter,
        tmp_path,
        *own,
        *STEPS,
        pre,
        before="touch /tmp/mine\n",
        seen="nsenter -t $MAIN -m ls /tmp /var/tmp",
        modes="nsenter -t $MAIN -m stat -c %a:%u /tmp /var/tmp",
        mounts="grep -E ' /(var/)?tmp ' /proc/$MAIN/mountinfo | cut -d' ' -f3,4,5,6 | sort -k2",
        here="ls /tmp",
    )
    assert found.answers["seen"].split() == ["/tmp:", "/var/tmp:"]
    assert found.answers["modes"].split() == ["1777:0", "1777:0"]
    (device, *tmp), (other, *var) = (line.split() for line in found.answers["mounts"].splitlines()[-2:])
    assert device == other
    assert tmp == ["/tmp", "/tmp", "rw,nosuid,nodev"] and var == ["/var-tmp", "/var/tmp", "rw,nosuid,nodev"]
    assert found.answers["here"] == "mine"
