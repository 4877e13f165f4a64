"""The lines of the starter's description for each directive that it repeats."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.initramfs.description import encode_word
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import parse_commands, read_unit
from quickstart.inspect.unit.commands import is_needless_early
from quickstart.inspect.unit.directives import CGROUP, CGROUP_LATE, HARMLESS, INERT, JOURNAL, REPEATED, START
from quickstart.inspect.unit.model import UnitStart
from quickstart.inspect.unit.values import BadValueError, capability_set, cpu_list, limit, span_us
from quickstart.inspect.unit.words import HOST_NAME, SHORT_HOST_NAME

Record = tuple[str, ...]
USERS = "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/nonexistent:/usr/sbin/nologin\n"
GROUPS = "root:x:0:\nnogroup:x:65534:\naudio:x:29:\n"


def image(base: Path, text: str, unit: str = "app.service") -> ImageRoot:
    for name, content in {
        f"usr/lib/systemd/system/{unit}": f"[Service]\nExecStart=/bin/x\n{text}\n",
        "etc/passwd": USERS,
        "etc/group": GROUPS,
    }.items():
        file = base / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return ImageRoot(base)


def read(base: Path, text: str, unit: str = "app.service") -> UnitStart:
    return read_unit(image(base, text, unit), unit)


def of(found: UnitStart, *keys: str) -> list[Record]:
    return [record for record in found.settings if record[0] in keys]


@pytest.mark.parametrize(
    ("text", "records"),
    [
        ("User=nobody", [("user", "nobody"), ("groups",), ("become-user",)]),
        ("Group=29\nSupplementaryGroups=audio root", [("main-group", "29"), ("groups", "audio", "root")]),
        ("IgnoreSIGPIPE=no", [("ignore-sigpipe", "no")]),
        ("WatchdogSec=1min 500ms", [("notify-access", "main"), ("watchdog-usec", "60500000")]),
        ("StandardOutput=null", [("stdout", "null")]),
        ("StandardError=append:/var/log/%p", [("stderr", "append", "/var/log/app")]),
        ("StandardOutput=null\nStandardError=journal", [("stdout", "null"), ("stderr", "log")]),
        (
            "Environment=A=1 \"B=2 3\" 'C=%n'",
            [("environment", "A=1"), ("environment", "B=2 3"), ("environment", "C=app.service")],
        ),
        (
            "Environment=A=%H B=%l",
            [("environment", f"A={HOST_NAME}"), ("environment", f"B={SHORT_HOST_NAME}")],
        ),
        ("Environment=A=1\nEnvironment=\nEnvironment=B=2", [("environment", "B=2")]),
        ("EnvironmentFile=-/etc/default/%p", [("environment-file", "optional", "/etc/default/app")]),
        ("EnvironmentFile=/etc/x", [("environment-file", "required", "/etc/x")]),
        ("EnvironmentFile=-/etc/%p.d/*", [("environment-file", "optional", "/etc/app.d/*")]),
        ("PassEnvironment=A B", [("pass-environment", "A"), ("pass-environment", "B")]),
        ("UnsetEnvironment=A B=1", [("unset-environment", "A"), ("unset-environment", "B=1")]),
        ("OOMScoreAdjust=-900", [("oom-score-adjust", "-900")]),
        ("Nice=-5", [("nice", "-5")]),
        ("CPUSchedulingPolicy=rr\nCPUSchedulingPriority=9", [("scheduler", "2", "9", "0")]),
        ("CPUSchedulingPolicy=idle\nCPUSchedulingResetOnFork=yes", [("scheduler", "5", "0", "1")]),
        ("CPUAffinity=0-2 5\nCPUAffinity=7", [("cpus", "0", "1", "2", "5", "7")]),
        ("IOSchedulingClass=idle", [("io-priority", "3", "4")]),
        ("IOSchedulingPriority=7", [("io-priority", "2", "7")]),
        ("TimerSlackNSec=1ms", [("timer-slack-ns", "1000000")]),
        ("KeyringMode=shared", [("keyring", "shared")]),
        ("WorkingDirectory=-/srv/%p", [("working-directory", "optional", "/srv/app")]),
        (
            "User=nobody\nWorkingDirectory=~",
            [("user", "nobody"), ("groups",), ("become-user",), ("working-directory", "required", "~")],
        ),
        ("NoNewPrivileges=yes", [("no-new-privileges", "always")]),
        ("NoNewPrivileges=no", []),
        ("SecureBits=noroot keep-caps", [("secure-bits", "11")]),
        ("CapabilityBoundingSet=CAP_CHOWN CAP_KILL", [("bounding-set", "21")]),
        ("CapabilityBoundingSet=", [("bounding-set", "0")]),
        ("CapabilityBoundingSet=~CAP_CHOWN", [("bounding-set", "fffffffffffffffe")]),
        ("AmbientCapabilities=CAP_IPC_LOCK\nAmbientCapabilities=cap_chown", [("ambient", "4001")]),
        ("AmbientCapabilities=", []),
        (
            "RuntimeDirectory=a b/c\nRuntimeDirectoryMode=2755",
            [
                ("own-environment", "RUNTIME_DIRECTORY=/run/a:/run/b/c"),
                ("directory", "user", "02755", "/run/a"),
                ("directory", "user", "02755", "/run/b/c"),
            ],
        ),
        (
            "ConfigurationDirectory=%p",
            [
                ("own-environment", "CONFIGURATION_DIRECTORY=/etc/app"),
                ("directory", "root", "0755", "/etc/app"),
            ],
        ),
        (
            "ProtectProc=invisible\nProcSubset=pid",
            [
                ("mount", "fresh-proc", "required", "/proc", "hidepid=invisible,subset=pid"),
                ("mount", "as-it-is", "required", "/dev"),
                ("mount", "as-it-is", "required", "/run"),
                ("mount", "as-it-is", "required", "/sys"),
                ("namespace", "shared"),
            ],
        ),
        ("Type=forking\nGuessMainPID=no", [("main-process", "any")]),
        ("Type=forking\nGuessMainPID=no\nPIDFile=x", [("own-environment", "PIDFILE=/run/x")]),
        ("ProtectProc=default\nProcSubset=all", []),
        ("DevicePolicy=auto", []),
        (
            "DeviceAllow=/dev/null rw\nDeviceAllow=char-pts",
            [("devices", "usual"), ("device", "rw", "/dev/null"), ("device", "rwm", "char-pts")],
        ),
        ("DevicePolicy=strict\nDeviceAllow=/dev/null r", [("devices", "none"), ("device", "r", "/dev/null")]),
        (
            "NoExecPaths=/\nExecPaths=/usr/bin/x -/opt",
            [
                ("mount", "exec", "required", "/usr/bin/x"),
                ("mount", "exec", "optional", "/opt"),
                ("mount", "no-exec", "required", "/"),
                ("namespace", "shared"),
            ],
        ),
        ("PrivateUsers=yes\nPrivateNetwork=yes", [("own-network",), ("own-users",)]),
        ("MountFlags=slave", [("namespace", "slave")]),
        ("PrivateMounts=yes", [("namespace", "shared")]),
        (
            "MountFlags=private\nNoNewPrivileges=1",
            [("namespace", "private", "nosuid"), ("no-new-privileges", "always")],
        ),
        (
            "PrivateTmp=yes",
            [
                ("private-tmp", "yes"),
                ("mount", "private-tmp", "required", "/tmp"),
                ("mount", "private-tmp", "required", "/var/tmp"),
                ("namespace", "shared"),
            ],
        ),
        (
            "ReadWritePaths=-/a\nReadOnlyPaths=+/b\nInaccessibleDirectories=/c",
            [
                ("mount", "read-write", "optional", "/a"),
                ("mount", "read-only", "required", "/b"),
                ("mount", "inaccessible", "required", "/c"),
                ("namespace", "shared"),
            ],
        ),
        (
            "BindPaths=/a -/b:/c:norbind\nBindReadOnlyPaths=/d:/e",
            [
                ("mount", "bind-all", "required", "/a", "/a"),
                ("mount", "bind", "optional", "/c", "/b"),
                ("mount", "bind-all-read-only", "required", "/e", "/d"),
                ("namespace", "shared"),
            ],
        ),
        (
            "ProtectSystem=strict\nProtectHome=tmpfs\nStateDirectory=a",
            [
                ("own-environment", "STATE_DIRECTORY=/var/lib/a"),
                ("directory", "user", "0755", "/var/lib/a"),
                ("mount", "read-only", "required", "/"),
                ("mount", "read-write-implicit", "required", "/proc"),
                ("mount", "read-write-implicit", "required", "/sys"),
                ("mount", "read-write-implicit", "required", "/dev"),
                ("mount", "read-write-implicit", "optional", "/home"),
                ("mount", "read-write-implicit", "optional", "/run/user"),
                ("mount", "read-write-implicit", "optional", "/root"),
                ("mount", "tmpfs", "optional", "/home"),
                ("mount", "tmpfs", "optional", "/run/user"),
                ("mount", "tmpfs", "optional", "/root"),
                ("mount", "read-write", "required", "/var/lib/a"),
                ("namespace", "shared"),
            ],
        ),
    ],
)
def test_directive(tmp_path: Path, text: str, records: list[Record]) -> None:
    plain = set(read(tmp_path, "").settings)
    assert [record for record in read(tmp_path, text).settings if record not in plain] == records


def test_the_host_name_is_closed_in_a_namespace_that_is_there_and_makes_none(tmp_path: Path) -> None:
    """systemd 252: ProtectHostname= alone has a UTS namespace only."""
    assert of(read(tmp_path, "ProtectHostname=yes"), "mount", "namespace") == []
    found = of(read(tmp_path, "ProtectHostname=yes\nPrivateTmp=yes"), "mount")
    assert [record[3] for record in found if record[1] == "read-only"] == [
        "/proc/sys/kernel/hostname",
        "/proc/sys/kernel/domainname",
    ]


def test_limits_and_their_defaults(tmp_path: Path) -> None:
    root = tmp_path / "etc/systemd/system.conf.d"
    root.mkdir(parents=True)
    assert of(read(tmp_path, "LimitCORE=1G:infinity\nLimitNOFILE=5"), "limit") == [
        ("limit", "4", "1073741824", "infinity"),
        ("limit", "7", "5", "5"),
        ("limit", "8", "8388608", "8388608"),
    ]
    (tmp_path / "etc/systemd/system.conf").write_text(
        "[Manager]\nDefaultLimitNOFILE=7\nDefaultTimeoutStartSec=5\n"
    )
    (root / "a.conf").write_text("[Manager]\nDefaultLimitNOFILE=8:9\n")
    found = read(tmp_path, "")
    assert of(found, "limit")[0] == ("limit", "7", "8", "9")
    assert found.timeout_ms == 5000


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("", 90_000),
        ("TimeoutStartSec=0", 0),
        ("TimeoutStartSec=infinity", 0),
        ("TimeoutSec=2min 1s", 121_000),
        ("TimeoutSec=5\nTimeoutStartSec=500ms", 500),
        ("TimeoutStartSec=10\nTimeoutSec=20", 20_000),
        ("TimeoutStartSec=500us", 1),
    ],
)
def test_timeout(tmp_path: Path, text: str, milliseconds: int) -> None:
    assert read(tmp_path, text).timeout_ms == milliseconds


@pytest.mark.parametrize(
    ("unit", "text", "group"),
    [
        ("app.service", "", "system.slice/app.service"),
        ("my-app.service", "Slice=a-b.slice", "a.slice/a-b.slice/my-app.service"),
        ("db@15-main.service", "", "system.slice/system-db.slice/db@15-main.service"),
        ("a-b@x.service", "", r"system.slice/system-a\x2db.slice/a-b@x.service"),
    ],
)
def test_group(tmp_path: Path, unit: str, text: str, group: str) -> None:
    assert read(tmp_path, text, unit).group == group


@pytest.mark.parametrize(
    ("text", "access"),
    [
        ("", None),
        ("Type=notify", "main"),
        ("Type=notify\nNotifyAccess=all", "all"),
        ("NotifyAccess=exec", "exec"),
    ],
)
def test_who_may_notify(tmp_path: Path, text: str, access: str | None) -> None:
    assert [record[1] for record in of(read(tmp_path, text), "notify-access")] == ([access] if access else [])


def test_commands_around_the_start(tmp_path: Path) -> None:
    text = "ExecCondition=/bin/a\nExecStartPre=-/bin/b ; /bin/c\nExecStartPost=+/bin/d $MAINPID"
    found = read(tmp_path, text)
    assert [each.program for each in (*found.conditions, *found.start_pre, *found.start_post)] == [
        *("/bin/a", "/bin/b", "/bin/c", "/bin/d")
    ]
    assert [each.flags for each in (*found.start_pre, *found.start_post)] == ["-", "", "+"]
    assert found.start_post[0].words == ("/bin/d", "$MAINPID")


@pytest.mark.parametrize(
    ("line", "needless"),
    [
        ('/bin/sh -c "systemctl unset-environment _WSREP_START_POSITION"', True),
        ("/bin/systemctl unset-environment A B", True),
        ('/bin/sh -c "systemctl set-environment A=1"', False),
        ('/bin/sh -c "systemctl unset-environment A; touch /x"', False),
        ("-/bin/systemctl reset-failed watchdog.service", True),
        ("/bin/systemctl reset-failed watchdog.service", False),
        ("-/bin/systemctl reset-failed --quiet; x", False),
        ("-/bin/systemctl restart watchdog.service", False),
        ("/bin/true", False),
    ],
)
def test_what_makes_a_new_manager_forget_is_left_out(line: str, needless: bool) -> None:
    (command,) = parse_commands("app.service", line)
    assert is_needless_early(command) is needless


def test_a_directive_is_in_one_list() -> None:
    lists = (START, INERT, JOURNAL, CGROUP, CGROUP_LATE, REPEATED, frozenset(HARMLESS))
    assert sum(map(len, lists)) == len(frozenset().union(*lists))


TMPFILES = """\
# d /run/comment
d /run/mysqld 0755 nobody root -
D! /var/run/b/c 2775 root audio 10d
d %t/d
d /run/e ~0700 - -
d /run/no-such-user 0755 mysql root
d /run/systemd/netif 0755
d /run/%b 0755
d /var/lib/f 0755
L /run/systemd/link - - - - /x
"""


def test_directories_of_tmpfiles(tmp_path: Path) -> None:
    root = image(tmp_path, "")
    for place, text in {"usr/lib": TMPFILES, "etc": "d /run/of-etc 0711\n"}.items():
        (tmp_path / place / "tmpfiles.d").mkdir()
        (tmp_path / place / "tmpfiles.d/app.conf").write_text(text)
    (tmp_path / "usr/lib/tmpfiles.d/other.conf").write_text(TMPFILES)
    (tmp_path / "etc/tmpfiles.d/.hidden.conf").write_text("d /run/hidden 0777\n")
    assert of(read_unit(root, "app.service"), "run-directory") == [
        ("run-directory", "02775", "root", "audio", "/run/b/c"),
        ("run-directory", "0755", "root", "root", "/run/d"),
        ("run-directory", "0700", "root", "root", "/run/e"),
        ("run-directory", "0755", "nobody", "root", "/run/mysqld"),
        ("run-directory", "0711", "root", "root", "/run/of-etc"),
    ]


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("text", "us"),
    [("5", 5_000_000), ("1h 2min", 3_720_000_000), ("1.5s", 1_500_000), ("20us", 20), ("infinity", None)],
)
def test_span(text: str, us: int | None) -> None:
    assert span_us(text) == us


@pytest.mark.parametrize("text", ["x", "5 parsecs", "-1"])
def test_no_span(text: str) -> None:
    with pytest.raises(BadValueError):
        span_us(text)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("NOFILE", "1024:infinity", ("7", "1024", "infinity")),
        ("FSIZE", "2K", ("1", "2048", "2048")),
        ("CPU", "1500ms:2min", ("0", "2", "120")),
        ("RTTIME", "5ms", ("15", "5000", "5000")),
        ("NICE", "+5:-5", ("13", "15", "25")),
        ("NICE", "30", ("13", "30", "30")),
    ],
)
def test_limit(name: str, text: str, expected: Record) -> None:
    assert limit(name, text) == expected


@pytest.mark.parametrize(("name", "text"), [("NOFILE", "5:3"), ("CORE", "infinity:0"), ("NICE", "-5:+5")])
def test_a_limit_that_systemd_passes_by(name: str, text: str) -> None:
    with pytest.raises(BadValueError, match="soft limit above the hard one"):
        limit(name, text)


def test_capability_sets() -> None:
    everything = (1 << 64) - 1
    assert capability_set([], everything) == everything
    assert capability_set(["~CAP_CHOWN", "~CAP_KILL"], everything) == everything & ~0x21
    assert capability_set(["CAP_CHOWN", "CAP_KILL", "~CAP_CHOWN"], everything) == 0x20
    assert capability_set([""], everything) == 0


@pytest.mark.parametrize("text", ["", "a", "1-", "4096"])
def test_no_cpu_list(text: str) -> None:
    with pytest.raises(BadValueError):
        cpu_list([text])


def test_words_of_the_description() -> None:
    assert encode_word("a b\\c\n\x7fé") == r"a\x20b\x5cc\x0a\x7f\xc3\xa9"
    assert encode_word("") == ""
    assert encode_word(f"{HOST_NAME}.{SHORT_HOST_NAME}\x01") == r"\H.\l\x01"
