"""DynamicUser=: what it implies, the number that systemd takes, and the units that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import read_unit
from quickstart.inspect.unit.dynamicuser import number_of, siphash24
from quickstart.inspect.unit.facts import deciding
from quickstart.inspect.unit.model import UnitStart
from quickstart.inspect.unit.stack import read_stack

Record = tuple[str, ...]


def put(base: Path, path: str, text: str) -> None:
    file = base / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def read(base: Path, text: str, name: str = "app.service") -> UnitStart:
    put(
        base,
        f"usr/lib/systemd/system/{name.partition('@')[0].removesuffix('.service')}{'@' * ('@' in name)}.service",
        text,
    )
    return read_unit(ImageRoot(base), name)


def dynamic(base: Path, more: str = "", name: str = "app.service") -> UnitStart:
    return read(base, f"[Service]\nExecStart=/bin/x\nDynamicUser=yes\n{more}\n", name)


def of(unit: UnitStart, *kinds: str) -> list[Record]:
    return [record for record in unit.settings if record[0] in kinds]


def test_the_hash_is_the_one_of_its_paper() -> None:
    """Appendix A of "SipHash: a fast short-input PRF"."""
    assert siphash24(bytes(range(16)), bytes(range(15))) == 0xA129CA6149BE45E5


def test_the_number_is_systemd_s() -> None:
    """`systemctl show -p UID` of systemd 252 and 257, for a unit app.service."""
    assert number_of("app") == 63495


@pytest.mark.parametrize("more", ["", "DynamicUser=no", "DynamicUser=0"])
def test_without_it_nothing_changes(tmp_path: Path, more: str) -> None:
    found = read(tmp_path, f"[Service]\nExecStart=/bin/x\nStateDirectory=a\n{more}\n")
    assert of(found, "dynamic-user", "private-directory", "namespace", "no-new-privileges") == []
    assert found.made_up_user is None


def test_what_it_implies(tmp_path: Path) -> None:
    """As unit_patch_contexts of systemd has it. What the unit says otherwise does not count."""
    said = "ProtectSystem=no\nPrivateTmp=no\nNoNewPrivileges=no\nRestrictSUIDSGID=no\nProtectHome=no"
    spelt = "User=app\nProtectSystem=strict\nPrivateTmp=yes\nNoNewPrivileges=yes\nRestrictSUIDSGID=yes\nProtectHome=read-only"
    found = [record for record in dynamic(tmp_path, said).settings if record[0] != "dynamic-user"]
    put(tmp_path, "etc/passwd", "app:x:1:1::/:\n")
    assert found == list(read(tmp_path, f"[Service]\nExecStart=/bin/x\n{spelt}\n").settings)


@pytest.mark.parametrize(
    ("value", "kind"), [("yes", "inaccessible"), ("tmpfs", "tmpfs"), ("read-only", "read-only")]
)
def test_a_stricter_protect_home_stays(tmp_path: Path, value: str, kind: str) -> None:
    found = of(dynamic(tmp_path, f"ProtectHome={value}"), "mount")
    assert ("mount", kind, "optional", "/home") in found


@pytest.mark.parametrize(
    ("name", "more", "user"),
    [
        ("app.service", "", "app"),
        ("app@x.service", "", "app"),
        ("app.service", "User=other", "other"),
        ("app@x.service", "User=u-%i", "u-x"),
    ],
)
def test_the_user_s_name(tmp_path: Path, name: str, more: str, user: str) -> None:
    found = dynamic(tmp_path, more, name)
    assert of(found, "user", "dynamic-user") == [("user", user), ("dynamic-user", str(number_of(user)))]
    assert found.made_up_user == user


def test_directories_are_private(tmp_path: Path) -> None:
    found = dynamic(
        tmp_path,
        "StateDirectory=b a b\nCacheDirectory=c\nRuntimeDirectory=r\nConfigurationDirectory=e\nStateDirectoryMode=0700",
    )
    assert of(found, "directory", "private-directory") == [
        ("directory", "user", "0755", "/run/r"),
        ("private-directory", "0700", "/var/lib", "a"),
        ("private-directory", "0700", "/var/lib", "b"),
        ("private-directory", "0755", "/var/cache", "c"),
        ("directory", "root", "0755", "/etc/e"),
    ]
    mounts = [record[1:] for record in of(found, "mount") if record[1] in ("private-root", "read-write")]
    assert mounts == [
        ("private-root", "required", "/var/lib/private"),
        ("private-root", "required", "/var/cache/private"),
        ("read-write", "required", "/run/r"),
        *(("read-write", "required", f"/var/lib/private/{name}") for name in "ab"),
        ("read-write", "required", "/var/cache/private/c"),
        ("read-write", "required", "/etc/e"),
    ]
    assert ("own-environment", "STATE_DIRECTORY=/var/lib/a:/var/lib/b") in found.settings


def test_modes_without_setuid_and_setgid(tmp_path: Path) -> None:
    """Others stay, as do those of a directory that is root's, or that there is none of."""
    more = "StateDirectory=a\nStateDirectoryMode=1777\nCacheDirectoryMode=2750\nConfigurationDirectory=e\n"
    more += "ConfigurationDirectoryMode=2750"
    found = of(dynamic(tmp_path, more), "directory", "private-directory")
    assert found == [
        ("private-directory", "01777", "/var/lib", "a"),
        ("directory", "root", "02750", "/etc/e"),
    ]


def test_a_group_of_the_user_s_name_is_his(tmp_path: Path) -> None:
    assert of(dynamic(tmp_path, "Group=app"), "main-group") == []


def test_a_group_of_the_image(tmp_path: Path) -> None:
    put(tmp_path, "etc/group", "www:x:33:\n")
    assert of(dynamic(tmp_path, "Group=www"), "main-group") == [("main-group", "www")]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("Group=other", "Group=other is not in the image's /etc/group"),
        ("User=12345", "'12345' is no name of such a user"),
        ("User=a.b", r"'a\.b' is no name of such a user"),
        ("RuntimeDirectory=r\nRuntimeDirectoryPreserve=yes", "a RuntimeDirectory= that is preserved"),
        ("WorkingDirectory=-~", "WorkingDirectory=~"),
        ("ExecStartPre=+/bin/x", r"a command with `\+`"),
        ("PermissionsStartOnly=yes\nExecStartPost=/bin/x", r"a command with `\+`"),
        ("StateDirectory=a/b", "StateDirectory=a/b has more than one part"),
        ("RuntimeDirectory=a/b", "RuntimeDirectory=a/b has more than one part"),
        (
            "StateDirectory=a\nStateDirectoryMode=2750",
            "StateDirectoryMode=02750 has a bit that systemd takes away",
        ),
        ("RuntimeDirectory=a\nRuntimeDirectoryMode=4755", "RuntimeDirectoryMode=04755 has a bit"),
        ("DynamicUser=maybe", "may stop reading at DynamicUser=maybe, which is no truth value"),
        ("DynamicUser=", "may stop reading at DynamicUser=, which is no truth value"),
    ],
)
def test_what_is_refused(tmp_path: Path, more: str, message: str) -> None:
    with pytest.raises(UnsupportedUnitError, match=message):
        dynamic(tmp_path, more)


def test_the_message_bus_does_not_know_the_user(tmp_path: Path) -> None:
    put(
        tmp_path,
        "usr/lib/systemd/system/app.service",
        "[Service]\nExecStart=/bin/x\nDynamicUser=yes\nBusName=org.x\n",
    )
    with pytest.raises(UnsupportedUnitError, match="it has DynamicUser= and Type=dbus"):
        read_unit(ImageRoot(tmp_path), "app.service", stack=("dbus.service",))


def test_a_unit_s_name_that_is_no_user_s(tmp_path: Path) -> None:
    """systemd makes up another name."""
    with pytest.raises(UnsupportedUnitError, match=r"'my\.app' is no name"):
        dynamic(tmp_path, name="my.app.service")
    assert of(dynamic(tmp_path, "User=app", "my.app.service"), "user") == [("user", "app")]


def test_a_unit_by_another_name(tmp_path: Path) -> None:
    """systemd goes by the name of the file."""
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "etc/systemd/system/other.service").symlink_to("/usr/lib/systemd/system/app.service")
    dynamic(tmp_path)
    with pytest.raises(UnsupportedUnitError, match="its file has another name"):
        read_unit(ImageRoot(tmp_path), "other.service")


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("passwd: files systemd\ngroup: files [SUCCESS=merge] systemd # sss\nhosts: files dns\n", None),
        ("passwd: files sss\n", "sss"),
        ("passwd: files\ngroup: files ldap\n", "ldap"),
    ],
)
def test_name_services_that_may_know_the_user(tmp_path: Path, text: str, other: str | None) -> None:
    put(tmp_path, "etc/nsswitch.conf", text)
    if other is None:
        dynamic(tmp_path)
        return
    with pytest.raises(UnsupportedUnitError, match=f"nsswitch.conf also names {other}"):
        dynamic(tmp_path)


def test_two_units_of_a_stack_with_one_user(tmp_path: Path) -> None:
    dynamic(tmp_path, "User=one", "a.service")
    dynamic(tmp_path, "User=two", "b.service")
    read_stack(ImageRoot(tmp_path), ("a.service", "b.service"))
    dynamic(tmp_path, "User=one", "b.service")
    with pytest.raises(UnsupportedUnitError, match=r"b\.service and a\.service have the same user one"):
        read_stack(ImageRoot(tmp_path), ("a.service", "b.service"))


LIBRARY = "usr/lib/x86_64-linux-gnu/systemd/libsystemd-core-257.so"
OF_257 = "ID-mapped mount created successfully for %s\0unit-private-tmp\0"


def test_a_systemd_that_maps_owners(tmp_path: Path) -> None:
    """Debian 13's: the private directories are nobody's, and there is a new /tmp."""
    before = dynamic(tmp_path, "StateDirectory=a")
    assert of(before, "map-owners") == []
    put(tmp_path, LIBRARY, f"x\0{OF_257}")
    found = dynamic(tmp_path, "StateDirectory=a\nPrivateTmp=no")
    assert of(found, "map-owners") == [("map-owners", "yes")]
    assert of(found, "private-tmp") == []
    places = [record[3] for record in of(found, "mount") if record[1] == "own-tmp"]
    assert places == ["/tmp", "/var/tmp"]
    assert not [record for record in of(found, "mount") if record[1] == "private-tmp"]


@pytest.mark.parametrize("value", ["yes", "connected", "1"])
def test_a_private_tmp_that_the_unit_asks_for(tmp_path: Path, value: str) -> None:
    before = of(dynamic(tmp_path), "mount", "private-tmp")
    put(tmp_path, LIBRARY, OF_257)
    assert of(dynamic(tmp_path, f"PrivateTmp={value}"), "mount", "private-tmp") == before


def test_it_changes_nothing_for_other_units(tmp_path: Path) -> None:
    text = "[Service]\nExecStart=/bin/x\nStateDirectory=a\nUser=app\nPrivateTmp=yes\n"
    put(tmp_path, "etc/passwd", "app:x:1:1::/:\n")
    before = read(tmp_path, text).settings
    put(tmp_path, LIBRARY, OF_257)
    assert read(tmp_path, text).settings == before
    with pytest.raises(UnsupportedUnitError, match="PrivateTmp=disconnected is neither yes nor no"):
        read(tmp_path, text.replace("PrivateTmp=yes", "PrivateTmp=disconnected"))


def test_the_hint_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedUnitError) as caught:
        dynamic(tmp_path, "User=1")
    assert "DynamicUser=no and User=" in (caught.value.hint or "")


@pytest.mark.parametrize("more", ["DynamicUser=yes\n", ""])
def test_other_name_services_later_are_a_stock_boot(tmp_path: Path, more: str) -> None:
    """One that is added (LDAP) may know a user of that name; systemd's own gives the unit its user's name."""
    read(tmp_path, f"[Service]\nExecStart=/bin/x\n{more}")
    names = {str(path) for path in deciding(ImageRoot(tmp_path), "app.service").files}
    assert ("/etc/nsswitch.conf" in names) == bool(more)
