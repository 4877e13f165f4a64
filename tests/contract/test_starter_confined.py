"""A process that the starter puts into namespaces of its own: what it may execute, and which system calls it may make."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.inspect.unit.callfilter import call_filter_records
from quickstart.inspect.unit.source import Source, Systemd
from quickstart.inspect.unit.words import HOST_NAME, SHORT_HOST_NAME
from tests.contract.starterbox import SLEEP, STATUS, command, field, seccomp, start

# Units have cgroups.
pytestmark = pytest.mark.host_root


def test_a_proc_of_its_own(starter: Path, tmp_path: Path) -> None:
    found = start(
        starter,
        tmp_path,
        ("user", "nobody"),
        ("mount", "fresh-proc", "required", "/proc", "hidepid=invisible,subset=pid"),
        ("namespace", "shared"),
        ("become-user",),
        command("pre", "ls /proc/1 /proc/uptime >/dev/null; echo $?; ls /proc/self/ns | wc -l"),
        SLEEP,
        log="cat /var/log/quickstart.log",
        options="nsenter -m -t $MAIN grep ' /proc ' /proc/$MAIN/mountinfo || findmnt -n -o OPTIONS -N $MAIN /proc",
    )
    lines = found.answers["log"].splitlines()
    assert "2" in lines
    assert lines[-1] != "0"


@pytest.mark.parametrize("restricted", ["/tmp/boot", "/tmp"])
def test_what_is_mounted_later_over_a_path_that_is_read_only(
    starter: Path, tmp_path: Path, restricted: str
) -> None:
    """systemd's boot.mount comes after the early start. Without a guard, it would be writable for the unit."""
    records = (("mount", "read-only", "required", restricted), ("namespace", "shared"))
    questions = {
        "wrote": "mount -t tmpfs boot /tmp/boot && mkdir /tmp/boot/grub\n"
        'nsenter -m -t "$MAIN" sh -c "echo evil >/tmp/boot/x" 2>/dev/null; ls /tmp/boot',
        "sees": 'nsenter -m -t "$MAIN" ls /tmp/boot',
    }
    before = "mkdir /tmp/boot; echo own >/tmp/boot/own\n"
    found = start(starter, tmp_path, ("guard", "/tmp/boot"), *records, SLEEP, before=before, **questions)
    assert (found.answers["wrote"], found.answers["sees"]) == ("grub", "own")
    found = start(starter, tmp_path, *records, SLEEP, before=before, **questions)
    assert found.answers["wrote"].split() == ["grub", "x"]


def test_a_guard_of_a_place_that_is_hidden_or_missing(starter: Path, tmp_path: Path) -> None:
    """Nothing can be mounted where the rules hide the directory. A missing one is made, as systemd makes it."""
    found = start(
        starter,
        tmp_path,
        ("mount", "inaccessible", "required", "/tmp/boot"),
        ("mount", "tmpfs-read-only", "required", "/tmp/other", "mode=0755"),
        ("mount", "read-only", "required", "/tmp"),
        *(("guard", f"/tmp/{name}") for name in ("boot/efi", "other/efi", "efi")),
        ("namespace", "shared"),
        SLEEP,
        before="mkdir -p /tmp/boot/efi /tmp/other/efi\n",
        sees='for each in boot/efi other/efi efi; do nsenter -m -t "$MAIN" test -d /tmp/$each; echo $?; done',
        wrote='mount -t tmpfs x /tmp/efi; nsenter -m -t "$MAIN" sh -c "echo >/tmp/efi/x" 2>/dev/null; ls /tmp/efi',
    )
    assert (found.answers["sees"].split(), found.answers["wrote"]) == (["1", "1", "0"], "")


def test_what_may_be_executed(starter: Path, tmp_path: Path) -> None:
    """Of a path its own rule, and none of its neighbours'; a packed file laid over another is as that one."""
    before = (
        "mkdir -p /tmp/no/yes /tmp/no/data /fast/tmp/no/yes && cp /bin/true /tmp/no/a && cp /bin/true /tmp/no/yes/a\n"
        "cp /bin/true /tmp/no/over && cp /bin/true /fast/tmp/no/over && cp /bin/true /fast/tmp/no/yes/a\n"
    )
    tried = "/tmp/no/a /tmp/no/yes/a /tmp/no/over /fast/tmp/no/over /fast/tmp/no/yes/a"
    found = start(
        starter,
        tmp_path,
        ("mount", "no-exec", "required", "/tmp/no"),
        ("mount", "exec", "required", "/tmp/no/yes"),
        ("mount", "read-write", "required", "/tmp/no/data"),
        ("mount", "bind-read-only", "optional", "/tmp/no/over", "/fast/tmp/no/over"),
        ("namespace", "shared"),
        command("pre", f"for each in {tried}; do $each 2>/dev/null; echo $each $?; done >/tmp/said"),
        SLEEP,
        before=before,
        said="cat /tmp/said",
        outside=f"for each in {tried}; do $each; echo $each $?; done",
    )
    assert [line.split()[1] for line in found.answers["said"].splitlines()] == ["126", "0", "126", "126", "0"]
    assert [line.split()[1] for line in found.answers["outside"].splitlines()] == ["0"] * 5


def test_users_of_its_own(starter: Path, tmp_path: Path) -> None:
    found = start(
        starter,
        tmp_path,
        ("user", "nobody"),
        ("main-group", "daemon"),
        ("groups",),
        ("limit", "7", "100", "200"),
        ("own-users",),
        ("bounding-set", "0"),
        ("become-user",),
        SLEEP,
        maps="cat /proc/$MAIN/uid_map /proc/$MAIN/gid_map | tr -s ' '; cat /proc/$MAIN/setgroups",
        status=STATUS,
        other='test "$(readlink /proc/$MAIN/ns/user)" != "$(readlink /proc/self/ns/user)" && echo other',
    )
    assert [line.strip() for line in found.answers["maps"].splitlines()] == [
        *("0 0 1", "65534 65534 1", "0 0 1", "1 1 1", "deny")
    ]
    assert found.answers["other"] == "other"
    assert (field(found, "Uid").split(), field(found, "Gid").split()) == (["65534"] * 4, ["1"] * 4)
    assert (field(found, "CapBnd"), field(found, "CapEff")) == ("0" * 16, "0" * 16)


def test_a_network_of_its_own(starter: Path, tmp_path: Path) -> None:
    found = start(
        starter,
        tmp_path,
        ("own-network",),
        SLEEP,
        addresses="nsenter -n -t $MAIN ip -o addr | cut -d ' ' -f 2,7",
        links="nsenter -n -t $MAIN ip -o link | wc -l",
        up="nsenter -n -t $MAIN ip -o link show lo | grep -c LOWER_UP",
    )
    assert found.answers["addresses"].splitlines() == ["lo 127.0.0.1/8", "lo ::1/128"]
    assert (found.answers["links"], found.answers["up"]) == ("1", "1")


def test_the_machines_name(starter: Path, tmp_path: Path) -> None:
    found = start(
        starter,
        tmp_path,
        ("environment", f"A={HOST_NAME} {SHORT_HOST_NAME}"),
        SLEEP,
        environment="tr '\\0' '\\n' </proc/$MAIN/environ",
        name='echo "A=$(hostname) $(hostname | cut -d . -f 1)"',
    )
    assert found.answers["name"] in found.answers["environment"].splitlines()


_RENAMES = """
import socket, sys
try:
    socket.sethostname("x")
except OSError as error:
    sys.exit(error.errno)
"""
CALLS = {"@default": ("execve", "exit_group", "brk", "mmap", "mprotect", "arch_prctl")}


@pytest.mark.parametrize(
    ("lines", "denied"),
    [
        (("SystemCallFilter=~sethostname", "SystemCallErrorNumber=EPERM"), "1"),
        (("SystemCallFilter=~sethostname:EACCES",), "13"),
        (("SystemCallFilter=~sethostname",), "159"),
    ],
)
def test_calls_that_are_filtered(starter: Path, tmp_path: Path, lines: tuple[str, ...], denied: str) -> None:
    """SIGSYS, or the error; beside another filter, as two programs."""
    assigned = tuple((name, value) for name, _, value in (line.partition("=") for line in lines))
    (record,) = call_filter_records(Source("app.service", assigned, {}, Systemd(CALLS)))
    found = start(
        starter,
        tmp_path,
        seccomp("LockPersonality=yes"),
        record,
        command("pre", f"python3 -c '{_RENAMES}'; echo denied $? >/tmp/found; hostname >>/tmp/found"),
        SLEEP,
        found="cat /tmp/found",
        name="hostname",
        status=STATUS,
    )
    assert found.answers["found"].splitlines() == [f"denied {denied}", found.answers["name"]]
    assert (field(found, "Seccomp"), field(found, "Seccomp_filters")) == ("2", "2")


def test_devices(starter: Path, tmp_path: Path) -> None:
    """What is named may be opened, in the ways that are named; what every program needs, too."""
    tried = "/dev/null /dev/zero /dev/kmsg /dev/loop-control"
    found = start(
        starter,
        tmp_path,
        *(("devices", "usual"), ("device", "r", "/dev/kmsg"), ("device", "rw", "char-no-such-*")),
        command(
            "pre",
            f"for each in {tried}; do (: <$each) 2>/dev/null; echo $?; (: >>$each) 2>/dev/null; echo $?; done",
        ),
        SLEEP,
        log="cat /var/log/quickstart.log",
        outside="(: </dev/loop-control); echo $?",
    )
    assert found.answers["outside"] == "0"
    assert found.answers["log"].split()[-8:] == ["0", "0", "0", "0", "0", "2", "2", "2"]


def test_only_the_devices_that_are_named(starter: Path, tmp_path: Path) -> None:
    found = start(
        starter,
        tmp_path,
        *(("devices", "none"), ("device", "rw", "/dev/null")),
        command("pre", "(: </dev/zero) 2>/dev/null; echo $? >/tmp/said"),
        SLEEP,
        said="cat /tmp/said",
    )
    assert found.answers["said"] == "2"
