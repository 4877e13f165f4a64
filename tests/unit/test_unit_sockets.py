"""The sockets that systemd would pass to a unit: which they are, and what of them init can bind."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.facts import deciding
from quickstart.inspect.unit.model import UnitStart
from quickstart.inspect.unit.read import read_unit
from quickstart.inspect.unit.sockets import refuse_bound_port
from quickstart.model import Readiness
from quickstart.model.words import ReadyKind

SERVICE = "[Service]\nExecStart=/usr/bin/app\n"
UNITS = "/usr/lib/systemd/system"
WANTS = "/etc/systemd/system/sockets.target.wants"


def put(root: Path, name: str, text: str) -> Path:
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def link(root: Path, name: str, to: str) -> None:
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(to)


def image(root: Path, socket: str, service: str = SERVICE, enabled: bool = True) -> ImageRoot:
    """An image with app.service and app.socket."""
    put(root, "/usr/bin/app", "")
    put(root, "/etc/passwd", "root:x:0:0::/root:/bin/sh\n_app:x:100:100::/:/bin/sh\n")
    put(root, "/etc/group", "root:x:0:\n_app:x:100:\n")
    put(root, f"{UNITS}/app.service", service)
    put(root, f"{UNITS}/app.socket", socket)
    if enabled:
        link(root, f"{WANTS}/app.socket", f"{UNITS}/app.socket")
    return ImageRoot(root)


def read(root: Path, socket: str, service: str = SERVICE) -> UnitStart:
    return read_unit(image(root, socket, service), "app.service")


def records(unit: UnitStart) -> list[tuple[str, ...]]:
    return [record for socket in unit.sockets for record in socket.records]


def refusal(root: Path, socket: str, service: str = SERVICE) -> str:
    with pytest.raises(UnsupportedUnitError) as refused:
        read(root, socket, service)
    return refused.value.message


def test_a_unit_without_sockets(tmp_path: Path) -> None:
    root = image(tmp_path, "[Socket]\nListenStream=80\n", enabled=False)
    assert read_unit(root, "app.service").sockets == ()


@pytest.mark.parametrize(
    ("line", "record"),
    [
        ("ListenStream=80", ("stream", "app.socket", "2147483647", "inet6", "::", "80")),
        ("ListenStream=0.0.0.0:80", ("stream", "app.socket", "2147483647", "inet", "0.0.0.0", "80")),  # noqa: S104
        ("ListenStream=127.0.0.1:2947", ("stream", "app.socket", "2147483647", "inet", "127.0.0.1", "2947")),
        ("ListenDatagram=[::1]:53", ("datagram", "app.socket", "2147483647", "inet6", "::1", "53")),
        ("ListenStream=@app/x", ("stream", "app.socket", "2147483647", "abstract", "app/x")),
        (
            "ListenSequentialPacket=/run/app/%N.sock",
            (
                *("sequential-packet", "app.socket", "2147483647", "unix", "/run/app/app.sock"),
                *("0666", "0755", "-", "-"),
            ),
        ),
        (
            "ListenStream=/var/run/app.sock\nSocketMode=0660\nDirectoryMode=0700\nSocketUser=root\nSocketGroup=_app",
            (
                *("stream", "app.socket", "2147483647", "unix", "/run/app.sock"),
                *("0660", "0700", "root", "_app"),
            ),
        ),
        (
            "ListenStream=80\nFileDescriptorName=web\nBacklog=64",
            ("stream", "web", "64", "inet6", "::", "80"),
        ),
        (
            "FreeBind=yes\nListenStream=10.1.2.3:80",
            ("stream", "app.socket", "2147483647", "inet", "10.1.2.3", "80"),
        ),
    ],
)
def test_an_address(tmp_path: Path, line: str, record: tuple[str, ...]) -> None:
    unit = read(tmp_path, f"[Socket]\n{line}\n")
    assert unit.sockets[0].records[0] == ("socket", *record)


def test_the_order_is_that_of_the_unit(tmp_path: Path) -> None:
    unit = read(tmp_path, "[Socket]\nListenDatagram=@a\nListenStream=@b\nListenDatagram=@c\n")
    assert [socket.records[0][5] for socket in unit.sockets] == ["a", "b", "c"]


def test_an_empty_assignment_clears_them_all(tmp_path: Path) -> None:
    unit = read(tmp_path, "[Socket]\nListenDatagram=@a\nListenStream=\nListenStream=@b\n")
    assert [socket.records[0][5] for socket in unit.sockets] == ["b"]


@pytest.mark.parametrize(
    ("lines", "options"),
    [
        ("KeepAlive=yes\nKeepAliveTimeSec=2min\n", [("1", "9", "1"), ("6", "4", "120")]),
        ("KeepAlive=no\n", []),
        ("ReceiveBuffer=8M\n", [("1", "33", str(8 << 20))]),
        ("PassCredentials=yes\nPassSecurity=on\n", [("1", "16", "1"), ("1", "34", "1")]),
        ("BindIPv6Only=both\n", [("41", "26", "0")]),
        ("BindIPv6Only=ipv6-only\n", [("41", "26", "1")]),
        ("BindIPv6Only=yes\n", [("41", "26", "1")]),
        ("BindIPv6Only=default\n", []),
        ("FreeBind=yes\n", [("41", "78", "1")]),
        ("NoDelay=yes\nPriority=6\n", [("6", "1", "1"), ("1", "12", "6")]),
        ("RemoveOnStop=yes\nMaxConnections=3\nTriggerLimitBurst=9\n", []),
    ],
)
def test_the_options(tmp_path: Path, lines: str, options: list[tuple[str, ...]]) -> None:
    unit = read(tmp_path, f"[Socket]\nListenStream=80\n{lines}")
    assert records(unit)[1:] == [("socket-option", *option) for option in options]


def test_each_socket_has_the_options(tmp_path: Path) -> None:
    """BindIPv6Only= is for IPv6 alone."""
    lines = "ListenStream=[::1]:1\nListenStream=127.0.0.1:1\nBindIPv6Only=yes\nKeepAlive=yes\n"
    unit = read(tmp_path, f"[Socket]\n{lines}")
    assert [len(socket.records) for socket in unit.sockets] == [3, 2]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("ListenFIFO=/run/app", "it has ListenFIFO"),
        ("ListenStream=80\nExecStartPre=/bin/true", "it has ExecStartPre"),
        ("ListenStream=80\nBindToDevice=eth0\nSymlinks=/run/x", "it has BindToDevice, Symlinks"),
        ("ListenStream=80\nIPAddressDeny=any", "it has IPAddressDeny"),
        ("ListenStream=80\nSocketProtocol=sctp", "it has SocketProtocol"),
        ("ListenStream=80\nPrivateNetwork=yes", "it has PrivateNetwork"),
        ("ListenStream=10.1.2.3:80", "ListenStream=10.1.2.3:80 may not exist yet when init binds it"),
        ("ListenStream=[fe80::1%%eth0]:80", "is no address that init could bind"),
        ("ListenStream=::1:80", "is no address that init could bind"),
        ("ListenStream=[127.0.0.1]:80", "is no address that init could bind"),
        ("ListenStream=0", "is no address that init could bind"),
        ("ListenStream=080", "is no address that init could bind"),
        ("ListenStream=65536", "is no address that init could bind"),
        ("ListenStream=vsock:2:1", "is no address that init could bind"),
        ("ListenSequentialPacket=80", "needs a protocol that init does not load"),
        ("ListenStream=/var/lib/app.sock", "is not below /run"),
        (
            "ListenStream=/run/lock/app.sock",
            "is not below /run, or below a directory that systemd makes later",
        ),
        ("ListenStream=/run/../etc/app.sock", "is no plain path"),
        ("ListenStream=/run/a b", "is no plain path"),
        ("ListenStream=/run/$(reboot)", "is no plain path"),
        ("ListenStream=/run/*", "is no plain path"),
        ("ListenStream=/run/", "is no plain path"),
        (f"ListenStream=/run/{'n' * 103}", "has more than 107 bytes"),
        ("ListenStream=@", "is no plain name"),
        ("ListenStream=/run/a\nSocketUser=nobody", "SocketUser=nobody is not in the image's /etc/passwd"),
        ("ListenStream=/run/a\nSocketGroup=x", "SocketGroup=x is not in the image's /etc/group"),
        ("ListenStream=/run/a\nSocketMode=rw", "SocketMode=rw is no file mode"),
        ("ListenStream=80\nBacklog=many", "Backlog=many is no number of connections"),
        ("ListenStream=80\nKeepAlive=maybe", "KeepAlive=maybe is neither yes nor no"),
        ("ListenStream=80\nBindIPv6Only=x", "BindIPv6Only=x is neither yes nor no"),
        (
            "ListenStream=80\nReceiveBuffer=infinity",
            "ReceiveBuffer=infinity is no number from 1 to 2147483647",
        ),
        ("ListenStream=80\nFileDescriptorName=a:b", "FileDescriptorName=a:b is no name of a descriptor"),
        ("ListenStream=80\nFileDescriptorName=a b", "FileDescriptorName=a b is no name of a descriptor"),
    ],
)
def test_what_is_refused(tmp_path: Path, lines: str, reason: str) -> None:
    said = refusal(tmp_path, f"[Socket]\n{lines}\n")
    assert said.startswith("app.socket cannot be bound early: ")
    assert reason in said


def test_too_many_sockets(tmp_path: Path) -> None:
    lines = "".join(f"ListenStream=@{number}\n" for number in range(17))
    assert refusal(tmp_path, f"[Socket]\n{lines}").endswith("it has 17 sockets, at most 16 can be bound")


def test_a_file_that_systemd_does_not_read_to_its_end(tmp_path: Path) -> None:
    assert "it has a section's name" in refusal(tmp_path, "[Socket]\nListenStream=80\n[Unit\n")


def test_a_socket_that_is_not_enabled_in_sockets_target(tmp_path: Path) -> None:
    root = image(tmp_path, "[Socket]\nListenStream=80\n", enabled=False)
    link(tmp_path, "/etc/systemd/system/other.service.wants/app.socket", f"{UNITS}/app.socket")
    with pytest.raises(
        UnsupportedUnitError, match=r"app\.socket hands its sockets over, and is not enabled in"
    ):
        read_unit(root, "app.service")


@pytest.mark.parametrize("name", ["a b.socket", "-f.socket", "*.socket", "$(x).socket", "a\nb.socket"])
def test_a_name_that_is_no_units(tmp_path: Path, name: str) -> None:
    root = image(tmp_path, "", enabled=False)
    put(tmp_path, f"{UNITS}/{name}", "[Socket]\nListenStream=80\nService=app.service\n")
    link(tmp_path, f"{WANTS}/{name}", f"{UNITS}/{name}")
    with pytest.raises(UnsupportedUnitError, match=r"is no unit's name$"):
        read_unit(root, "app.service")


@pytest.mark.parametrize("line", ["Requires=app.socket", "Wants=app.socket", "BindsTo=app.socket"])
def test_a_socket_that_the_unit_pulls_in(tmp_path: Path, line: str) -> None:
    root = image(tmp_path, "[Socket]\nListenStream=80\n", f"[Unit]\n{line}\n{SERVICE}", enabled=False)
    assert len(read_unit(root, "app.service").sockets) == 1


@pytest.mark.parametrize(
    ("socket", "count"),
    [
        ("ListenStream=80\nAccept=yes", 0),
        ("ListenStream=80\nAccept=no", 1),
        ("ListenStream=80\nService=other.service", 0),
        ("ListenStream=80\nService=alias.service", 1),
    ],
)
def test_the_service_that_gets_them(tmp_path: Path, socket: str, count: int) -> None:
    root = image(tmp_path, f"[Socket]\n{socket}\n")
    link(tmp_path, "/etc/systemd/system/alias.service", f"{UNITS}/app.service")
    assert len(read_unit(root, "app.service").sockets) == count


def test_several_socket_units(tmp_path: Path) -> None:
    root = image(tmp_path, "[Socket]\nListenStream=@own\n")
    put(tmp_path, f"{UNITS}/app-admin.socket", "[Socket]\nListenStream=@admin\nService=app.service\n")
    link(tmp_path, f"{WANTS}/app-admin.socket", f"{UNITS}/app-admin.socket")
    unit = read_unit(root, "app.service")
    assert [socket.unit for socket in unit.sockets] == ["app-admin.socket", "app.socket"]


def test_a_drop_in_counts(tmp_path: Path) -> None:
    root = image(tmp_path, "[Socket]\nListenStream=80\n")
    put(tmp_path, "/etc/systemd/system/app.socket.d/a.conf", "[Socket]\nListenStream=\nListenStream=8080\n")
    assert [socket.port for socket in read_unit(root, "app.service").sockets] == [8080]


def test_a_condition_of_the_socket_is_one_of_the_unit(tmp_path: Path) -> None:
    """Where systemd would not listen, the service would have no sockets."""
    unit = read(tmp_path, "[Unit]\nConditionPathExists=/etc/app.conf\n[Socket]\nListenStream=80\n")
    assert ("unit-condition", "Condition", "PathExists", "no", "no", "/etc/app.conf") in unit.settings
    said = refusal(tmp_path / "other", "[Unit]\nConditionPathExists=|/etc/a\n[Socket]\nListenStream=80\n")
    assert said == "app.socket cannot be bound early: it has ConditionPathExists=|/etc/a"


def test_what_the_socket_needs_of_systemd(tmp_path: Path) -> None:
    said = refusal(tmp_path, "[Unit]\nRequires=other.service\n[Socket]\nListenStream=80\n")
    assert "app.socket cannot be started early: it needs other.service" in said


def test_a_socket_file_that_not_everybody_may_read(tmp_path: Path) -> None:
    root = image(tmp_path, "[Socket]\nListenStream=80\n")
    (tmp_path / "usr/lib/systemd/system/app.socket").chmod(0o640)
    with pytest.raises(UnsupportedUnitError, match=r"app\.socket is not for all to read"):
        read_unit(root, "app.service")


def test_non_blocking_sockets(tmp_path: Path) -> None:
    service = f"{SERVICE}NonBlocking=yes\n"
    assert refusal(tmp_path, "[Socket]\nListenStream=80\n", service).endswith("NonBlocking=yes with sockets")
    assert read_unit(image(tmp_path / "other", "", service, enabled=False), "app.service").sockets == ()


def ready(kind: ReadyKind, port: int) -> Readiness:
    return Readiness(kind=kind, port=port, path="/", status=200, command="", timeout_s=1)


def test_a_readiness_that_only_connects(tmp_path: Path) -> None:
    """Init itself would accept the connection."""
    unit = read(tmp_path, "[Socket]\nListenStream=80\n")
    refuse_bound_port(unit, ready(ReadyKind.TCP, 81))
    refuse_bound_port(unit, ready(ReadyKind.HTTP, 80))
    with pytest.raises(
        UnsupportedUnitError, match=r"^tcp:80 says nothing of app\.service: app\.socket listens"
    ):
        refuse_bound_port(unit, ready(ReadyKind.TCP, 80))


def test_the_facts_have_the_socket_unit(tmp_path: Path) -> None:
    """A change of these means that systemd would listen otherwise, or not at all."""
    found = deciding(image(tmp_path, "[Socket]\nListenStream=80\n"), "app.service")
    own = PurePosixPath("/etc/systemd/system")
    wanted = {
        PurePosixPath(UNITS) / "app.socket",
        own / "app.socket",
        own / "sockets.target",
        own / "sockets.target.wants/app.socket",
    }
    assert wanted <= set(found.files)
    assert {own / "app.socket.d", own / "socket.d", PurePosixPath(UNITS) / "app.socket.d"} <= set(
        found.places
    )


def test_a_drop_in_says_which_service_gets_the_sockets(tmp_path: Path) -> None:
    root = image(tmp_path, "[Socket]\nListenStream=80\nService=other.service\n")
    assert read_unit(root, "app.service").sockets == ()
    put(tmp_path, "/etc/systemd/system/app.socket.d/a.conf", "[Socket]\nService=%N.service\n")
    assert [each.port for each in read_unit(root, "app.service").sockets] == [80]


@pytest.mark.parametrize(("file", "drop_in", "count"), [("yes", "no", 1), ("no", "yes", 0)])
def test_a_drop_in_says_whether_each_connection_has_its_own_service(
    tmp_path: Path, file: str, drop_in: str, count: int
) -> None:
    root = image(tmp_path, f"[Socket]\nListenStream=80\nAccept={file}\n")
    put(tmp_path, "/etc/systemd/system/app.socket.d/a.conf", f"[Socket]\nAccept={drop_in}\n")
    assert len(read_unit(root, "app.service").sockets) == count


def test_a_socket_that_a_unit_names_is_no_less_enabled(tmp_path: Path) -> None:
    root = image(tmp_path, "[Socket]\nListenStream=80\n", enabled=False)
    put(tmp_path, f"{UNITS}/all.target", "[Unit]\nWants=app.socket\n")
    assert read_unit(root, "app.service").sockets == ()
    link(tmp_path, "/etc/systemd/system/multi-user.target.wants/all.target", f"{UNITS}/all.target")
    with pytest.raises(UnsupportedUnitError, match=r"app\.socket hands its sockets over, and is not enabled"):
        read_unit(root, "app.service")


def test_a_descriptor_s_name_has_specifiers(tmp_path: Path) -> None:
    (record,) = records(read(tmp_path, "[Socket]\nListenStream=80\nFileDescriptorName=%N-web\n"))
    assert record[2] == "app-web"


def test_the_rules_of_a_socket_s_own_slice(tmp_path: Path) -> None:
    """systemd makes the socket in system.slice, wherever the service is."""
    service = f"{SERVICE}Slice=own.slice\n"
    root = image(tmp_path, "[Socket]\nListenStream=80\n", service)
    assert read_unit(root, "app.service").sockets
    drop_in = "/etc/systemd/system.control/system.slice.d/50-IPAddressDeny.conf"
    assert str(Path(drop_in).parent) in map(str, deciding(root, "app.service").places)
    put(tmp_path, drop_in, "[Slice]\nIPAddressDeny=any\n")
    with pytest.raises(
        UnsupportedUnitError, match=r"app\.socket .*its slice system\.slice has IPAddressDeny"
    ):
        read_unit(root, "app.service")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("SocketMode", "0600"),
        ("DirectoryMode", "0700"),
        ("PassCredentials", "yes"),
        ("SELinuxContextFromNet", "yes"),
    ],
)
def test_an_empty_line_that_takes_nothing_back(tmp_path: Path, key: str, value: str) -> None:
    text = f"[Socket]\nListenStream=/run/app.sock\n{key}={value}\n{key}=\n"
    assert f"an empty {key}= after a value, which takes nothing back" in refusal(tmp_path, text)


def test_an_empty_line_that_takes_back(tmp_path: Path) -> None:
    text = "[Socket]\nListenStream=80\nListenStream=\nListenStream=/run/a\nSocketUser=_app\nSocketUser=\n"
    assert records(read(tmp_path, text)) == [
        ("socket", "stream", "app.socket", "2147483647", "unix", "/run/a", "0666", "0755", "-", "-")
    ]


@pytest.mark.parametrize("line", ["Service=", "Service=foo", "Service=app.service x"])
def test_a_service_that_is_none_takes_nothing_back(tmp_path: Path, line: str) -> None:
    """The earlier service, or the one of the same name, gets the sockets."""
    root = image(tmp_path, f"[Socket]\nListenStream=/run/a\n{line}\n")
    assert len(read_unit(root, "app.service").sockets) == 1


@pytest.mark.parametrize("lines", ["Accept=no\nAccept=maybe", "SocketUser=a:b\nSocketUser="])
def test_a_line_that_may_not_count(tmp_path: Path, lines: str) -> None:
    assert refusal(tmp_path, f"[Socket]\nListenStream=/run/a\n{lines}\n")
