"""What systemd does as PID 1 before it starts anything depends on how it was built."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.unit import read
from quickstart.inspect.unit.pidone import limits_of_pid_one, raises_nr_open
from quickstart.inspect.unit.read import read_unit
from tests.unit.test_unit_settings import image, of
from tests.unit.test_unit_sockets import put

CORE = 4
OF_13 = "Failed to bump fs.nr_open, ignoring: %m\0Failed to set RLIMIT_CORE: %m\0"
OF_12 = "Failed to bump fs.file-max, ignoring: %m\0"
PROGRAM = "/usr/lib/systemd/systemd"
SHARED = "/usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-258.so"
LIBRARY = "/usr/lib/x86_64-linux-gnu/systemd/libsystemd-core-258.so"


@pytest.mark.parametrize(
    ("place", "text", "raises"),
    [(PROGRAM, OF_13, True), (LIBRARY, OF_13, True), (PROGRAM, OF_12, False), ("/usr/bin/x", OF_13, False)],
)
def test_what_it_raises(tmp_path: Path, place: str, text: str, raises: bool) -> None:
    root = image(tmp_path, "")
    put(tmp_path, place, text)
    assert raises_nr_open(root) is raises
    assert bool(limits_of_pid_one(root)) is raises
    assert (("limit", str(CORE), "infinity", "infinity") in read_unit(root, "app.service").settings) is raises


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("trailing with escape is now treated as a non comment line since v254.\0", True),
        ("Failed to parse\0", False),
    ],
)
def test_where_a_comment_ends(tmp_path: Path, text: str, ends: bool) -> None:
    root = image(tmp_path, "")
    put(tmp_path, SHARED, text)
    assert (("comments", "one-line") in read_unit(root, "app.service").settings) is ends


@pytest.mark.parametrize("place", ["/usr/lib/systemd/systemd-executor", LIBRARY, PROGRAM])
def test_how_write_and_execute_are_denied(tmp_path: Path, place: str) -> None:
    """systemd 254 and later ask the kernel, and have the filter for a kernel that cannot."""
    text = "MemoryDenyWriteExecute=yes"
    (old,) = of(read_unit(image(tmp_path, text), "app.service"), "seccomp")
    put(tmp_path, place, "Enabled MemoryDenyWriteExecute= with PR_SET_MDWE\0")
    unit = read_unit(image(tmp_path, text), "app.service")
    assert of(unit, "seccomp") == []
    assert of(unit, "deny-write-execute") == [("deny-write-execute", old[1])]
    assert ("no-new-privileges", "for-filters") in unit.settings
    # Others have a filter of their own. That of SystemCallFilter= may refuse prctl(2).
    unit = read_unit(image(tmp_path, f"{text}\nLockPersonality=yes"), "app.service")
    kinds = [kind for kind, *_ in unit.settings]
    assert kinds.index("no-new-privileges") < kinds.index("deny-write-execute") < kinds.index("seccomp")
    assert (
        of(read_unit(image(tmp_path, "MemoryDenyWriteExecute=no"), "app.service"), "deny-write-execute") == []
    )


EXECUTOR = "/usr/lib/systemd/systemd-executor"


def test_a_home_of_the_unit_s_own(tmp_path: Path) -> None:
    """systemd 257 uses the options of its table, and 252 drops them."""
    text = "ProtectHome=tmpfs"
    assert of(read_unit(image(tmp_path, text), "app.service"), "mount") == [
        ("mount", "tmpfs", "optional", path) for path in ("/home", "/run/user", "/root")
    ]
    put(tmp_path, LIBRARY, "unit-private-tmp\0")
    small = "size=4m,nr_inodes=1k"
    assert of(read_unit(image(tmp_path, text), "app.service"), "mount") == [
        ("mount", "tmpfs-read-only", "optional", "/home", f"mode=0755,{small}"),
        ("mount", "tmpfs-read-only", "optional", "/run/user", f"mode=0755,{small}"),
        ("mount", "tmpfs-read-only", "optional", "/root", f"mode=0700,{small}"),
    ]


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("User=nobody\nLockPersonality=yes", "after-filters"),
        ("User=nobody\nLockPersonality=yes\nNoNewPrivileges=yes", "always"),
        ("LockPersonality=yes", "for-filters"),
        ("User=nobody\nSystemCallFilter=~ioctl", "after-filters"),
        ("User=nobody\nSystemCallFilter=read capget capset prctl", "after-filters"),
        # systemd could not give the privileges up.
        ("User=nobody\nSystemCallFilter=~prctl", "for-filters"),
        ("User=nobody\nSystemCallFilter=~capset:EPERM", "for-filters"),
    ],
)
def test_what_filters_do_with_privileges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, how: str
) -> None:
    """systemd 255 and later load them before the process becomes unprivileged."""

    def found(text: str) -> list[tuple[str, ...]]:
        put(tmp_path, SHARED, "")
        return of(read_unit(image(tmp_path, text), "app.service"), "no-new-privileges")

    if "read capget" in text:
        # A list of allowed calls needs the group @default of the image's systemd.
        monkeypatch.setattr(read, "call_groups", lambda root: {"@default": ("execve",)})
    assert found(text) == [("no-new-privileges", "always" if how == "always" else "for-filters")]
    put(tmp_path, EXECUTOR, "Failed to keep CAP_SYS_ADMIN privileges: %m\0")
    assert found(text) == [("no-new-privileges", how)]


@pytest.mark.parametrize(("text", "is_named"), [("", True), ("Group=nogroup", True), ("User=nobody", False)])
def test_the_name_of_root_in_the_environment(tmp_path: Path, text: str, is_named: bool) -> None:
    named = ("own-environment", "USER=root")
    assert named not in read_unit(image(tmp_path, text), "app.service").settings
    put(tmp_path, EXECUTOR, "Failed to determine user credentials for root: %m\0")
    assert (named in read_unit(image(tmp_path, text), "app.service").settings) is is_named


@pytest.mark.parametrize("name", ["StateDirectory", "CacheDirectory", "LogsDirectory", "RuntimeDirectory"])
@pytest.mark.parametrize("user", ["nobody", "65534"])
def test_directories_of_nobody(tmp_path: Path, name: str, user: str) -> None:
    """systemd 257 shows them without the right to execute files."""
    text = f"User={user}\n{name}=x"
    read_unit(image(tmp_path, text), "app.service")
    put(tmp_path, LIBRARY, "ID-mapped mount created successfully\0")
    with pytest.raises(UnsupportedUnitError, match="directories of the user nobody"):
        read_unit(image(tmp_path, text), "app.service")
    read_unit(image(tmp_path, f"User={user}"), "app.service")


SYS, OWN = ("mount", "fresh-sys", "required", "/sys"), ("namespace", "shared")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("PrivateNetwork=yes", (SYS, OWN)),
        ("PrivateNetwork=yes\nPrivateMounts=yes", (SYS, OWN)),
        ("PrivateNetwork=yes\nPrivateMounts=no", ()),
        # There is a namespace whatever PrivateMounts= says.
        ("PrivateNetwork=yes\nPrivateMounts=no\nMountFlags=slave", (SYS, ("namespace", "slave"))),
        ("PrivateNetwork=no", ()),
        ("PrivateMounts=yes", (OWN,)),
    ],
)
def test_a_network_of_its_own_has_its_own_sys(
    tmp_path: Path, text: str, found: tuple[tuple[str, ...], ...]
) -> None:
    def records() -> tuple[tuple[str, ...], ...]:
        settings = read_unit(image(tmp_path, text), "app.service").settings
        return tuple(each for each in settings if each[0] in ("mount", "namespace"))

    assert SYS not in records()
    put(tmp_path, LIBRARY, "private-dev\0private-sysfs\0bind-sysfs\0")
    assert records() == found
    kinds = [kind for kind, *_ in read_unit(image(tmp_path, text), "app.service").settings]
    assert not found or "own-network" not in kinds or kinds.index("own-network") < kinds.index("namespace")


def test_who_says_otherwise(tmp_path: Path) -> None:
    root = image(tmp_path, "")
    put(tmp_path, PROGRAM, OF_13)
    put(tmp_path, "/etc/systemd/system.conf", "[Manager]\nDefaultLimitCORE=0\n")
    limits = of(read_unit(root, "app.service"), "limit")
    assert [words for words in limits if words[1] == str(CORE)] == [("limit", str(CORE), "0", "0")]
    image(tmp_path, "LimitCORE=1M")
    limits = of(read_unit(root, "app.service"), "limit")
    assert [words for words in limits if words[1] == str(CORE)] == [
        ("limit", str(CORE), "1048576", "1048576")
    ]
