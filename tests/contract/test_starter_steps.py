"""A process of the starter when it executes its program: user, capabilities, limits, filters, networks; and the steps
that a command's prefix skips.
"""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from tests.contract.starterbox import (
    SLEEP,
    STATUS,
    command,
    field,
    seccomp,
    start,
)

# Units have cgroups.
pytestmark = pytest.mark.host_root


def test_scheduling(starter: Path, tmp_path: Path) -> None:
    found = start(
        starter,
        tmp_path,
        ("oom-score-adjust", "500"),
        ("nice", "7"),
        ("scheduler", "3", "0", "1"),
        ("cpus", "0"),
        ("io-priority", "3", "4"),
        ("umask", "027"),
        ("limit", "7", "100", "200"),
        ("limit", "4", "infinity", "infinity"),
        ("limit", "1", "5000", "infinity"),
        SLEEP,
        status=STATUS,
        score="cat /proc/$MAIN/oom_score_adj",
        policy="chrt -p $MAIN; ionice -p $MAIN; cut -d' ' -f19 /proc/$MAIN/stat",
        limits="cat /proc/$MAIN/limits",
    )
    assert found.answers["score"] == "500"
    assert (field(found, "Umask"), field(found, "Cpus_allowed_list")) == ("0027", "0")
    assert "SCHED_BATCH|SCHED_RESET_ON_FORK" in found.answers["policy"]
    assert found.answers["policy"].splitlines()[-2:] == ["idle", "7"]
    limits = {line[:26].strip(): line[26:].split()[:2] for line in found.answers["limits"].splitlines()}
    assert limits["Max open files"] == ["100", "200"]
    assert limits["Max core file size"] == ["unlimited", "unlimited"]
    assert limits["Max file size"] == ["5000", "unlimited"]


def test_descriptors_without_limit_are_as_many_as_the_kernel_allows(starter: Path, tmp_path: Path) -> None:
    """LimitNOFILE=infinity: systemd's PID 1 has fs.nr_open of them, init has 4096. This host may keep its root to fewer."""
    before = (
        "mv /run/starter /run/untraced\n"
        "printf '#!/bin/sh\\nexec strace -D -f -o /run/calls -e trace=setrlimit,prlimit64 /run/untraced \"$@\"\\n' >/run/starter\n"
        "chmod 755 /run/starter\n"
    )
    shown = "sed -n 's/.*prlimit64(0, RLIMIT_NOFILE, {\\(.*\\)}, NULL.*/\\1/p' /run/calls; cat /proc/sys/fs/nr_open"
    found = start(starter, tmp_path, ("limit", "7", "1024", "infinity"), SLEEP, before=before, shown=shown)
    first, second, *_, most = found.answers["shown"].splitlines()
    assert "rlim_max=RLIM64_INFINITY" in first or "rlim_max=0xffffffffffffffff" in first
    assert (
        second == f"rlim_cur=1024, rlim_max={most}"
        or second == f"rlim_cur=1024, rlim_max={int(most) // 1024}*1024"
    )


def test_user_and_groups(starter: Path, tmp_path: Path) -> None:
    found = start(
        starter,
        tmp_path,
        ("user", "nobody"),
        ("main-group", "daemon"),
        ("groups", "audio", "44"),
        ("ambient", "400"),
        ("become-user",),
        ("working-directory", "required", "/var"),
        SLEEP,
        status=STATUS,
        directory="readlink /proc/$MAIN/cwd; getent group audio | cut -d: -f3",
    )
    directory, audio = found.answers["directory"].splitlines()
    assert directory == "/var"
    assert field(found, "Uid").split() == ["65534"] * 4
    assert field(found, "Gid").split() == ["1"] * 4
    assert set(field(found, "Groups").split()) == {"1", audio, "44"}
    assert [field(found, name) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")] == [
        "0000000000000400"
    ] * 4


def test_what_the_prefixes_spare(starter: Path, tmp_path: Path) -> None:
    """systemd.service(5): `+` runs with full privileges, `!` only as another user."""
    show = "sed -n 's/^\\(Uid\\|CapBnd\\|NoNewPrivs\\):\\t//p' /proc/self/status | cut -f1; umask"
    found = start(
        starter,
        tmp_path,
        ("user", "nobody"),
        ("umask", "027"),
        ("groups",),
        ("bounding-set", "400"),
        ("become-user",),
        ("no-new-privileges", "always"),
        command("pre", f"({show}) >/tmp/plain"),
        command("pre", f"({show}) >/tmp/bang", "!:"),
        command("pre", f"({show}) >/tmp/plus", "+:"),
        SLEEP,
        whole="sed -n 's/^CapBnd:\\t//p' /proc/self/status",
        plain="cat /tmp/plain",
        bang="cat /tmp/bang",
        plus="cat /tmp/plus",
    )
    little = "0000000000000400"
    assert found.answers["plain"].split() == ["65534", little, "1", "0027"]
    assert found.answers["bang"].split() == ["0", little, "1", "0027"]
    assert found.answers["plus"].split() == ["0", found.answers["whole"], "0", "0027"]


def test_secure_bits_and_no_new_privileges(starter: Path, tmp_path: Path) -> None:
    found = start(
        starter,
        tmp_path,
        ("user", "nobody"),
        ("groups",),
        ("become-user",),
        ("secure-bits", "1"),
        ("no-new-privileges", "for-filters"),
        SLEEP,
        status=STATUS,
    )
    assert field(found, "NoNewPrivs") == "1"
    assert field(found, "CapPrm") == "0000000000000000"


def test_a_user_s_filters_without_new_privileges(starter: Path, tmp_path: Path) -> None:
    """As of systemd 255: the filters are there, the privilege that loaded them is not, and set-uid programs work."""
    found = start(
        starter,
        tmp_path,
        ("user", "nobody"),
        ("groups",),
        ("bounding-set", "400"),
        ("become-user",),
        ("no-new-privileges", "after-filters"),
        seccomp("ProtectHostname=yes"),
        SLEEP,
        status=STATUS,
    )
    assert (field(found, "Seccomp"), field(found, "NoNewPrivs")) == ("2", "0")
    assert field(found, "Uid").split() == ["65534"] * 4
    sets = {name: field(found, name) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")}
    assert sets == dict.fromkeys(sets, "0" * 16)
    assert field(found, "CapBnd") == "0000000000000400"


@pytest.mark.parametrize(
    ("line", "denied", "allowed"),
    [
        ("RestrictSUIDSGID=yes", "touch /tmp/s && chmod u+s /tmp/s", "touch /tmp/p && chmod u+x /tmp/p"),
        ("RestrictNamespaces=yes", "unshare -m true", "true"),
        ("RestrictNamespaces=mnt", "unshare -u true", "unshare -m true"),
        ("ProtectHostname=yes", "hostname x", "hostname"),
        ("ProtectKernelLogs=yes", "dmesg -S", "true"),
        ("RestrictRealtime=yes", "chrt -f 1 true", "chrt -b 0 true"),
        ("LockPersonality=yes", "setarch -R true", "true"),
        (
            "RestrictAddressFamilies=AF_UNIX",
            "python3 -c 'import socket; socket.socket(socket.AF_INET)'",
            "python3 -c 'import socket; socket.socket(socket.AF_UNIX)'",
        ),
        (
            "MemoryDenyWriteExecute=yes",
            "python3 -c 'import mmap; mmap.mmap(-1, 4096, prot=7)'",
            "python3 -c 'import mmap; mmap.mmap(-1, 4096, prot=5)'",
        ),
        ("SystemCallArchitectures=native", "false", "true"),
    ],
)
def test_filters(starter: Path, tmp_path: Path, line: str, denied: str, allowed: str) -> None:
    """The kernel takes the programs and does what they say."""
    script = f"({denied}) 2>&1; echo denied $?; ({allowed}) 2>&1; echo allowed $?"
    found = start(
        starter,
        tmp_path,
        ("no-new-privileges", "for-filters"),
        seccomp(line),
        command("pre", f"({script}) >/tmp/found"),
        SLEEP,
        found="cat /tmp/found",
        status=STATUS,
    )
    lines = found.answers["found"].splitlines()
    assert "denied 0" not in lines
    assert lines[-1] == "allowed 0"
    assert (field(found, "Seccomp"), field(found, "NoNewPrivs")) == ("2", "0")


@pytest.mark.parametrize("protected", [False, True])
def test_a_network_of_its_own_has_its_own_sys(starter: Path, tmp_path: Path, protected: bool) -> None:
    """The machine's network cards are not in it, and what is mounted below /sys is."""
    records: list[tuple[str, ...]] = [("mount", "fresh-sys", "required", "/sys")]
    if protected:
        records += [("mount", "read-only", "required", "/sys"), ("mount", "as-it-is", "required", "/sys")]
        records += [("mount", "read-write-implicit", "required", "/sys/fs/cgroup")]
    found = start(
        starter,
        tmp_path,
        ("own-network",),
        *records,
        ("namespace", "shared"),
        SLEEP,
        before="mount -t tmpfs -o ro below /sys/kernel",
        machine="stat -c %d /sys; mount",
        unit="nsenter -t $MAIN -m ls /sys/class/net; nsenter -t $MAIN -m stat -c %d /sys",
        groups="nsenter -t $MAIN -m head -c 0 /sys/fs/cgroup/cgroup.procs && echo there",
        mounts="""awk '$5 ~ "^/sys(/|$)" { print $5, $6 }' /proc/$MAIN/mountinfo""",
        after="stat -c %d /sys; mount",
    )
    *cards, device = found.answers["unit"].splitlines()
    assert cards == ["lo"]
    assert device != found.answers["machine"].splitlines()[0]
    assert found.answers["groups"] == "there"
    mounts = dict(line.split() for line in found.answers["mounts"].splitlines())
    assert mounts["/sys"] == f"{'ro' if protected else 'rw'},nosuid,nodev,noexec,relatime"
    assert mounts.keys() >= {"/sys/fs/cgroup", "/sys/kernel"}
    # The machine's own is as it was.
    assert found.answers["after"] == found.answers["machine"]


# Memory that is to be written becomes executable by itself (personality(2), READ_IMPLIES_EXEC).
IMPLIED = """
import ctypes, mmap
c = ctypes.CDLL(None, use_errno=True)
c.personality(0x0400000)
mmap.mmap(-1, 4096, prot=3)
"""


def test_write_and_execute_are_denied_by_the_kernel(starter: Path, tmp_path: Path) -> None:
    """As by systemd 254 and later. A filter sees only what the program asks for."""
    mapping = "python3 -c 'import mmap; mmap.mmap(-1, 4096, prot=7)'"
    script = (
        f"({mapping}) 2>&1; echo asked $?; python3 /tmp/implied 2>&1; echo implied $?; true; echo works $?"
    )
    _, program = seccomp("MemoryDenyWriteExecute=yes")
    told = []
    for record in (("deny-write-execute", program), ("seccomp", program)):
        found = start(
            starter,
            tmp_path,
            ("no-new-privileges", "for-filters"),
            record,
            command("pre", f"({script}) >/tmp/found"),
            SLEEP,
            before=f"cat >/tmp/implied <<'END'{IMPLIED}END",
            found="cat /tmp/found",
            status=STATUS,
        )
        lines = found.answers["found"].splitlines()
        told.append([line for line in lines if line.startswith(("asked", "implied", "works"))])
        assert field(found, "Seccomp") == ("0" if record[0] == "deny-write-execute" else "2")
    assert told == [["asked 1", "implied 1", "works 0"], ["asked 1", "implied 0", "works 0"]]


@pytest.mark.parametrize("mode", ["private", "shared"])
def test_keyrings_are_those_of_the_units_user(starter: Path, tmp_path: Path, mode: str) -> None:
    """keyrings(7): a session may read what is linked into its keyring. What root keeps in root's own is not the service's."""
    # One of its own for each: of the same user, the session keyring of an ended process may still be there.
    user = pwd.getpwnam({"private": "games", "shared": "man"}[mode])
    found = start(
        starter,
        tmp_path,
        ("user", user.pw_name),
        ("keyring", mode),
        ("groups",),
        ("become-user",),
        command("main", "cat /proc/keys >/tmp/keys; exec sleep 600"),
        status=STATUS,
        keys="until [ -s /tmp/keys ]; do sleep 0.05; done; cat /tmp/keys",
    )
    rows = [line.split(maxsplit=8) for line in found.answers["keys"].splitlines()]
    owners = {row[8].partition(":")[0]: row[5] for row in rows if row[7] == "keyring"}
    links = next(row[8] for row in rows if row[8].startswith("_ses: "))
    assert (owners["_ses"], links) == (str(user.pw_uid), "_ses: 1" if mode == "shared" else "_ses: empty")
    assert "_uid.0" not in owners
    # Nothing of the way there is left.
    assert field(found, "Uid").split() == [str(user.pw_uid)] * 4
    assert field(found, "Gid").split() == [str(user.pw_gid)] * 4


def test_a_command_with_a_plus_is_in_the_network_of_the_unit(starter: Path, tmp_path: Path) -> None:
    """All commands share one network, which only some of the others confine."""
    found = start(
        starter,
        tmp_path,
        ("own-network",),
        command("pre", "readlink /proc/self/ns/net >/run/plus", flags="+"),
        command(
            "pre", "readlink /proc/self/ns/net >/run/plain; sleep 600 & echo 1 >/proc/sys/net/ipv4/ip_forward"
        ),
        SLEEP,
        networks="cat /run/plus /run/plain; readlink /proc/$MAIN/ns/net; readlink /proc/self/ns/net",
        lo="nsenter -t $MAIN -n cat /proc/sys/net/ipv4/ip_forward",
    )
    plus, plain, main, machine = found.answers["networks"].splitlines()
    assert plus == plain == main != machine
    assert found.answers["lo"] == "1"
