"""systemd units: directives and drop-ins, and what cannot be started early."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import parse_service, read_unit, unit_texts
from quickstart.inspect.unit.directives import KNOWN
from quickstart.inspect.unit.model import LateBind, UnitCommand, UnitStart
from quickstart.inspect.unit.read import refuse_unknown
from quickstart.inspect.unit.source import Source
from tests.unit.acl import hide_from_somebody
from tests.unit.unitreader import SERVICE, put, read

# Of all that the machine may have.
TASKS = ("cgroup-attribute", "0", "pids.max", "tasks", "1500", "10000")
DEFAULTS = (
    ("umask", "022"),
    ("keyring", "private"),
    ("limit", "7", "1024", "524288"),
    ("limit", "8", "8388608", "8388608"),
)


# ---------------------------------------------------------------- directives


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[Service]\nA=1\nB = 2 \n", {"A": ("1",), "B": ("2",)}),
        ("[Unit]\nA=1\n[Service]\nB=2\n[Install]\nC=3\n", {"B": ("2",)}),
        ("A=1\n[Service]\n", {}),
        ("[Service]\nA=1\nA=2\n", {"A": ("1", "2")}),
        ("[Service]\nA=1\nA=\nA=3\n", {"A": ("3",)}),
        ("[Service]\nA=1\nA=\n", {}),
        ("[Service]\nA=x=y\n", {"A": ("x=y",)}),
        ("[Service]\n# A=1\n; B=2\n  # C=3\nD=4\n\n", {"D": ("4",)}),
        ("[Service]\nA=1 \\\n  2 \\\n  3\nB=4\n", {"A": ("1    2    3",), "B": ("4",)}),
        # systemd.syntax(7): comment lines in a continued line are left out, and a comment is not continued.
        ("[Service]\nA=1 \\\n# comment\n; other\n  2\n", {"A": ("1    2",)}),
        ("[Service]\n# comment \\\nA=1\n", {"A": ("1",)}),
        ("[Service]\nA=a#b\n", {"A": ("a#b",)}),
        ("[Service]\r\nA=1\r\n", {"A": ("1",)}),
        ("[Service]\nA=a\x0bb\u2028c\n", {"A": ("a\x0bb\u2028c",)}),
    ],
)
def test_parse_service(text: str, expected: dict[str, tuple[str, ...]]) -> None:
    assert parse_service((text,)) == expected


def test_drop_ins_follow_the_unit() -> None:
    drop_in = "[Service]\nExecStart=\nExecStart=/b\nType=exec\n"
    assert parse_service(("[Service]\nExecStart=/a\nType=simple\n", drop_in)) == {
        "ExecStart": ("/b",),
        "Type": ("simple", "exec"),
    }


# ---------------------------------------------------------------- files


def test_the_administrators_unit_wins(tmp_path: Path) -> None:
    put(tmp_path, "/usr/lib/systemd/system/app.service", "packaged")
    put(tmp_path, "/etc/systemd/system/app.service", "own")
    assert unit_texts(ImageRoot(tmp_path), "app.service") == ("own",)


def test_drop_ins_by_name_the_administrators_first(tmp_path: Path) -> None:
    put(tmp_path, "/usr/lib/systemd/system/app.service", "unit")
    put(tmp_path, "/usr/lib/systemd/system/app.service.d/20.conf", "packaged 20")
    put(tmp_path, "/usr/lib/systemd/system/app.service.d/10.conf", "packaged 10")
    put(tmp_path, "/etc/systemd/system/app.service.d/20.conf", "own 20")
    put(tmp_path, "/etc/systemd/system/app.service.d/05.conf", "own 05")
    put(tmp_path, "/etc/systemd/system/app.service.d/30.txt", "no drop-in")
    expected = ("unit", "own 05", "packaged 10", "own 20")
    assert unit_texts(ImageRoot(tmp_path), "app.service") == expected


def test_links_lead_inside_the_image(tmp_path: Path) -> None:
    put(tmp_path, "/usr/lib/systemd/system/real.service", "unit")
    put(tmp_path, "/usr/share/app/only-in-the-image.conf", "drop-in")
    put(tmp_path, "/usr/lib/systemd/system/app.service.d/20.conf", "switched off")
    put(tmp_path, "/dev/null", "")
    etc = tmp_path / "etc/systemd/system"
    (etc / "app.service.d").mkdir(parents=True)
    (etc / "app.service").symlink_to("/usr/lib/systemd/system/real.service")
    (etc / "app.service.d/10.conf").symlink_to("/usr/share/app/only-in-the-image.conf")
    (etc / "app.service.d/20.conf").symlink_to("/dev/null")
    (etc / "app.service.d/30.conf").symlink_to("/none")
    assert [text for text in unit_texts(ImageRoot(tmp_path), "app.service") if text] == ["unit", "drop-in"]


def test_an_instance_is_its_templates(tmp_path: Path) -> None:
    """systemd.unit(5): NAME@.service and its drop-ins, then those of the instance; a file of its own comes first."""
    root = ImageRoot(tmp_path)
    put(tmp_path, "/usr/lib/systemd/system/db@.service", SERVICE)
    put(tmp_path, "/etc/systemd/system/db@.service.d/a.conf", "[Service]\nA=1\n")
    put(tmp_path, "/etc/systemd/system/db@15-main.service.d/b.conf", "[Service]\nB=1\n")
    assert unit_texts(root, "db@15-main.service") == (SERVICE, "[Service]\nA=1\n", "[Service]\nB=1\n")
    put(tmp_path, "/etc/systemd/system/db@15-main.service", "own")
    assert unit_texts(root, "db@15-main.service")[0] == "own"
    with pytest.raises(UnsupportedUnitError, match=r"no unit other@x\.service"):
        unit_texts(root, "other@x.service")


def test_no_such_unit(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedUnitError, match=r"the image has no unit app\.service"):
        unit_texts(ImageRoot(tmp_path), "app.service")


# ---------------------------------------------------------------- read_unit


def test_nginx(tmp_path: Path) -> None:
    text = """\
[Unit]
Description=A high performance web server
[Service]
Type=forking
PIDFile=/run/nginx.pid
ExecStartPre=/usr/sbin/nginx -t -q -g 'daemon on; master_process on;'
ExecStart=/usr/sbin/nginx -g 'daemon on; master_process on;'
ExecReload=/usr/sbin/nginx -g 'daemon on; master_process on;' -s reload
ExecStop=-/sbin/start-stop-daemon --quiet --stop --retry QUIT/5 --pidfile /run/nginx.pid
TimeoutStopSec=5
KillMode=mixed
[Install]
WantedBy=multi-user.target
"""
    test = ("/usr/sbin/nginx", "-t", "-q", "-g", "daemon on; master_process on;")
    start = ("/usr/sbin/nginx", "-g", "daemon on; master_process on;")
    assert read(tmp_path, text) == UnitStart(
        unit="app.service",
        type="forking",
        pid_file=PurePosixPath("/run/nginx.pid"),
        start_pre=(UnitCommand("/usr/sbin/nginx", test),),
        start=UnitCommand("/usr/sbin/nginx", start),
        group="system.slice/app.service",
        settings=(TASKS, ("own-environment", "PIDFILE=/run/nginx.pid"), *DEFAULTS),
    )
    assert read_unit(ImageRoot(tmp_path), "app.service", run_start_pre=False).start_pre == ()


def test_defaults(tmp_path: Path) -> None:
    assert read(tmp_path, "[Service]\nExecStart=/bin/x\nPIDFile=x.pid\n") == UnitStart(
        unit="app.service",
        type="simple",
        pid_file=PurePosixPath("/run/x.pid"),
        start_pre=(),
        start=UnitCommand("/bin/x", ("/bin/x",)),
        group="system.slice/app.service",
        settings=(TASKS, ("own-environment", "PIDFILE=/run/x.pid"), *DEFAULTS),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SERVICE + "RootDirectory=/x\nPrivatePIDs=yes\n", "it has PrivatePIDs, RootDirectory"),
        (SERVICE + "PrivateIPC=1\n", "it has PrivateIPC"),
        (SERVICE + "PrivateUsers=maybe\n", "PrivateUsers=maybe is neither yes nor no"),
        (
            SERVICE + "ProtectProc=maybe\n",
            "ProtectProc=maybe is none of default, noaccess, invisible, ptraceable",
        ),
        (SERVICE + "SystemCallFilter=@clock\n", "does not show its groups"),
        (SERVICE + "AppArmorProfile=app\n", "AppArmorProfile=app is not loaded before the hand-off"),
        (SERVICE + "Sockets=x.socket\n", "it has Sockets"),
        (SERVICE + "StandardInput=tty\n", "it has StandardInput"),
        ("[Service]\nType=notify\nBusName=org.example\nExecStart=/x\n", "it has BusName"),
        ("[Service]\nType=oneshot\nExecStart=/x\n", "Type=oneshot"),
        ("[Service]\nType=simple\n", "has 0 ExecStart commands"),
        (SERVICE + "ExecStart=/b\n", "has 2 ExecStart commands"),
        (SERVICE + "ExecStartPre=/bin/x %m\n", "known to the running machine only"),
        (SERVICE + "ExecStartPost=/bin/sh -c 'systemctl start b'\n", "ExecStartPost calls systemctl"),
        (
            SERVICE + "ExecStartPre=-/usr/sbin/apparmor_parser -r /opt/app/profile\n",
            "ExecStartPre confines programs",
        ),
        (SERVICE + "ExecStartPre=/usr/bin/podman rm -f app\n", "ExecStartPre starts containers"),
        (SERVICE + "ExecStartPre=-/usr/bin/docker rm -f app\n", "ExecStartPre starts containers"),
        (
            SERVICE + "ExecStartPre=/bin/sh -c 'cd /srv && docker-compose up -d'\n",
            "ExecStartPre starts containers",
        ),
        (SERVICE + "User=nobody\n", "User=nobody is not in the image's /etc/passwd"),
        ("[Unit]\nJoinsNamespaceOf=b.service\n" + SERVICE, "JoinsNamespaceOf=b.service"),
        (SERVICE + "Slice=a/b.slice\n", "Slice=a/b.slice is no name of a slice"),
        (SERVICE + "BindPaths=/run/udev\n", "binds /run/udev, which is not there before the hand-off"),
        (SERVICE + "UMask=9\n", "UMask=9 is no file mode"),
        (SERVICE + "LimitNOFILE=many\n", "LimitNOFILE=many is no limit"),
        (
            SERVICE + 'SupplementaryGroups=root "root"\n',
            "SupplementaryGroups=.* is no name of a user or group",
        ),
        (SERVICE + "CapabilityBoundingSet=CAP_X\n", "has an unknown capability CAP_X"),
        (SERVICE + "ProtectSystem=maybe\n", "ProtectSystem=maybe is neither yes nor no"),
    ],
)
def test_what_cannot_be_started_early(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UnsupportedUnitError, match=message):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("ExecStartPre=/usr/bin/podman pull app\n", "`pre = false`"),
        ("ExecStartPost=/usr/bin/podman ps\n", "take this command out of ExecStartPost"),
        ("ExecStartPost=/bin/systemctl start b\n", "take this command out of ExecStartPost"),
    ],
)
def test_a_hint_is_one_that_build_can_follow(tmp_path: Path, line: str, hint: str) -> None:
    """With early = "never", build would still read the unit and refuse it."""
    with pytest.raises(UnsupportedUnitError) as error:
        read(tmp_path, SERVICE + line)
    assert error.value.hint is not None
    assert hint in error.value.hint


@given(st.from_regex(r"[A-Z][A-Za-z]{2,30}", fullmatch=True).filter(lambda name: name not in KNOWN))
def test_an_unknown_directive_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedUnitError, match=rf"app\.service cannot be started early: it has {name}$"):
        refuse_unknown(Source("app.service", (("ExecStart", "/x"), (name, "yes")), {}))


def test_a_bind_of_the_log_socket_comes_with_systemd(tmp_path: Path) -> None:
    text = "BindReadOnlyPaths=/dev/log:/var/lib/app/dev/log\nBindPaths=-/run/systemd/journal/socket\n"
    unit = read(tmp_path, SERVICE + text)
    assert unit.late_binds == (
        LateBind("/run/systemd/journal/socket", "/run/systemd/journal/socket", False, False),
        LateBind("/dev/log", "/var/lib/app/dev/log", True, True),
    )
    # There is a namespace to bind it in, and nothing is bound yet.
    assert ("namespace", "shared") in unit.settings
    assert [record for record in unit.settings if record[0] == "mount"] == []


def test_a_oneshot_may_have_instances(tmp_path: Path) -> None:
    put(tmp_path, "/usr/lib/systemd/system/app@.service", SERVICE)
    with pytest.raises(UnsupportedUnitError, match="Type=oneshot") as oneshot:
        read(tmp_path, "[Service]\nType=oneshot\nExecStart=/bin/true\n")
    assert (
        oneshot.value.hint
        == "the work is done by app@.service: `unit` takes an instance, NAME@INSTANCE.service"
    )


def test_an_apparmor_profile_that_nobody_loads_is_gone_without(tmp_path: Path) -> None:
    assert read(tmp_path, SERVICE + "AppArmorProfile=-app\n").start.program == "/usr/bin/app"
    put(tmp_path, "/usr/sbin/apparmor_parser", "")
    with pytest.raises(UnsupportedUnitError, match="AppArmorProfile=-app is not loaded"):
        read(tmp_path, SERVICE + "AppArmorProfile=-app\n")


def test_permissions_of_the_start_only(tmp_path: Path) -> None:
    text = SERVICE + "ExecStartPre=-/bin/a\nExecStartPost=!/bin/b\nPermissionsStartOnly=yes\n"
    unit = read(tmp_path, text)
    assert [each.flags for each in unit.commands] == ["+-", "", "!+"]


def test_a_directive_that_a_drop_in_takes_back_does_not_count(tmp_path: Path) -> None:
    put(tmp_path, "/etc/systemd/system/app.service.d/a.conf", "[Service]\nUser=\n")
    assert read(tmp_path, SERVICE + "User=x\n").start.words == ("/usr/bin/app",)


def test_a_masked_unit_is_refused_by_name(tmp_path: Path) -> None:
    put(tmp_path, "usr/lib/systemd/system/app.service", "[Service]\nExecStart=/usr/bin/app\n")
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "etc/systemd/system/app.service").symlink_to("/dev/null")
    with pytest.raises(UnsupportedUnitError, match="masked in the image by /etc/systemd"):
        read_unit(ImageRoot(tmp_path), "app.service")


@pytest.mark.parametrize("name", ["my-app.service.d", "my-.service.d", "service.d"])
def test_drop_ins_of_every_kind_count(tmp_path: Path, name: str) -> None:
    put(tmp_path, "usr/lib/systemd/system/my-app.service", "[Service]\nExecStart=/usr/bin/app\n")
    put(tmp_path, f"etc/systemd/system/{name}/x.conf", "[Service]\nUser=nobody\n")
    with pytest.raises(UnsupportedUnitError, match="User"):
        read_unit(ImageRoot(tmp_path), "my-app.service")


@pytest.mark.parametrize(
    ("place", "lines", "lost"),
    [
        ("/etc/systemd/system.control/system.slice.d/50-IPAddressDeny.conf", "IPAddressDeny=any", "system.slice has IPAddressDeny"),
        ("/etc/systemd/system/-.slice.d/x.conf", "DevicePolicy=closed", "-.slice has DevicePolicy"),
        ("/etc/systemd/system/slice.d/x.conf", "MemoryMax=1G\nSocketBindDeny=any", "-.slice has SocketBindDeny"),
        ("/usr/lib/systemd/system/system.slice", "IPIngressFilterPath=/x", "system.slice has IPIngressFilterPath"),
    ],
)  # fmt: skip
def test_a_slice_that_confines_refuses_the_early_start(
    tmp_path: Path, place: str, lines: str, lost: str
) -> None:
    """It would hold from systemd's start on, seconds after the application's."""
    put(tmp_path, place, f"[Slice]\n{lines}\n")
    with pytest.raises(UnsupportedUnitError, match=f"its slice {lost}"):
        read(tmp_path, SERVICE)
    put(tmp_path, place, "[Slice]\nMemoryMax=1G\nCPUWeight=50\n")
    assert read(tmp_path, SERVICE).group == "system.slice/app.service"


def test_a_slice_of_another_unit_does_not_matter(tmp_path: Path) -> None:
    put(tmp_path, "/etc/systemd/system/user.slice.d/x.conf", "[Slice]\nIPAddressDeny=any\n")
    assert read(tmp_path, SERVICE).group == "system.slice/app.service"


def test_a_slice_below_too_many_others(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedUnitError, match="more than 32 slices deep"):
        read(tmp_path, f"{SERVICE}Slice={'-'.join('a' * 40)}.slice\n")


@pytest.mark.parametrize(
    "place", ["/usr/lib/systemd/system/app.service", "/etc/systemd/system/app.service.d/secret.conf"]
)
def test_what_not_everybody_may_read_of_a_unit_goes_into_no_archive(tmp_path: Path, place: str) -> None:
    """The starter's description has its environment and its command lines; systemd would tell them to everybody of that machine."""
    put(tmp_path, "/etc/systemd/system/app.service.d/secret.conf", "[Service]\nEnvironment=KEY=hidden\n")
    assert ("environment", "KEY=hidden") in read(tmp_path, SERVICE).settings
    (tmp_path / place[1:]).chmod(0o640)
    with pytest.raises(UnsupportedUnitError, match=f"{place} is not for all to read") as caught:
        read_unit(ImageRoot(tmp_path), "app.service")
    assert "EnvironmentFile=" in (caught.value.hint or "")
    (tmp_path / place[1:]).chmod(0o644)
    (tmp_path / place[1:]).parent.chmod(0o710)
    with pytest.raises(UnsupportedUnitError, match="is not for all to read by way of") as caught:
        read_unit(ImageRoot(tmp_path), "app.service")
    assert f"by way of {PurePosixPath(place).parent}," in caught.value.message
    assert (caught.value.hint or "").startswith("use `chmod a+x` on this directory of the image, ")


@pytest.mark.parametrize("place", ["app.service.d/secret.conf", "app.service.d"])
def test_nor_what_an_access_control_list_hides(tmp_path: Path, place: str) -> None:
    put(tmp_path, "/etc/systemd/system/app.service.d/secret.conf", "[Service]\nEnvironment=KEY=hidden\n")
    read(tmp_path, SERVICE)
    hide_from_somebody(tmp_path / "etc/systemd/system" / place)
    with pytest.raises(UnsupportedUnitError, match=r"secret\.conf is not for all to read") as caught:
        read_unit(ImageRoot(tmp_path), "app.service")
    what = "file" if place.endswith(".conf") else "directory"
    assert (caught.value.hint or "").startswith(f"use `setfacl -b` on this {what} of the image, ")
