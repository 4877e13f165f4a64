"""A unit that asks systemd, D-Bus or another service before it is ready is refused; the reference boot shows it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.model import ListeningSocket, UnitCommand, UnitStart
from quickstart.model import Op
from quickstart.model.started import Peer
from quickstart.pack.peers import partners, refuse_peers
from tests.unit.imagebuilder import trace
from tests.unit.test_strace_unit import unit_log
from tests.unit.test_unit_sockets import put

BUS = "/run/dbus/system_bus_socket"
PRIVATE = "/run/systemd/private"
APP = UnitStart(
    unit="a.service",
    type="simple",
    pid_file=None,
    start_pre=(),
    start=UnitCommand("/bin/sh", ("/bin/sh", "/opt/start")),
)


def call(pid: int, name: str, path: str, result: str = "= 0") -> str:
    """What a process does with a socket, as strace writes it."""
    quoted = f'@"{path[1:]}"' if path.startswith("@") else f'"{path}"'
    data = '"x", 1, MSG_NOSIGNAL, ' if name == "sendto" else ""
    return f"{pid} {name}(7<socket:[9]>, {data}{{sa_family=AF_UNIX, sun_path={quoted}}}, 30) {result}"


def peers(*rows: str) -> list[tuple[str, str, str]]:
    return [(peer.path, peer.program, peer.command) for peer in unit_log(*rows).peers]


@pytest.mark.parametrize(
    ("bound", "met"),
    [
        (BUS, BUS),
        (BUS, "/var/run/dbus/system_bus_socket"),
        (BUS, "/run//dbus/./system_bus_socket"),
        ("@/org/app", "@/org/app"),
    ],
)
@pytest.mark.parametrize("name", ["connect", "sendto"])
@pytest.mark.parametrize("binder", [1, 20])
def test_a_socket_of_another_process(bound: str, met: str, name: str, binder: int) -> None:
    assert peers(call(binder, "bind", bound), call(12, name, met)) == [(bound, "cat", "/bin/sh")]
    # Of another unit.
    assert peers(call(binder, "bind", bound), call(20, name, met)) == []


def test_what_is_no_socket_of_another_process() -> None:
    # The unit's own: its main process listens there, and its ExecStartPost= asks.
    assert peers(call(11, "bind", "/run/a.sock"), call(12, "connect", "/run/a.sock")) == []
    # It was another process's once.
    mine = call(1, "bind", "/run/a.sock"), call(11, "bind", "/run/a.sock")
    assert peers(*mine, call(12, "connect", "/run/a.sock")) == []
    # Nobody listens there yet, in a stock boot as in an early start.
    refused = "= -1 ECONNREFUSED (Connection refused)"
    assert peers(call(1, "bind", BUS), call(11, "connect", BUS, refused)) == []
    assert peers(call(11, "connect", BUS), call(1, "bind", BUS)) == []
    assert peers(call(1, "bind", BUS, "= -1 EADDRINUSE (In use)"), call(11, "connect", BUS)) == []
    # Without a name, and what is no address.
    assert (
        peers(f'11 sendto(7<socket:[9]>, "{{sa_family=AF_UNIX, sun_path=\\"{BUS}\\"}}", 9, 0, NULL, 0) = 9')
        == []
    )
    assert peers('11 connect(7<socket:[9]>, {sa_family=AF_UNSPEC, sa_data="/run/a"}, 16) = 0') == []


def test_a_socket_beside_the_working_directory() -> None:
    rows = ('20 chdir("/run/b") = 0', call(20, "bind", "sock"), '11 chdir("/run") = 0')
    assert peers(*rows, call(11, "connect", "b/sock")) == [("/run/b/sock", "sh", "/bin/sh")]
    assert peers(*rows, call(11, "connect", "sock")) == []


@pytest.mark.parametrize(
    ("words", "counts"),
    [
        ('"hostnamectl", "hostname"', True),
        ('"systemctl", "is-active", "b"', True),
        ('"systemctl", "unset-environment", "A"', False),
        ('"/bin/systemctl", "reset-failed", "b"', False),
        ('"systemctl", "-p", "LoadState", "--value", "show", "b.service"', False),
        ('"systemctl", "-p", "CanReload", "--value", "show", "b.service"', True),
        ('"systemctl", "-p", "LoadState", "--value", "show", "b.service", "c.service"', True),
    ],
)
def test_a_program_in_a_script(words: str, counts: bool) -> None:
    """MariaDB's and watchdog's own commands forget what systemd does not know yet. Debian's functions for init scripts
    ask whether a unit is masked, where systemd runs.
    """
    program = words.split('"')[1].rpartition("/")[2]
    rows = (
        f'12 execve("/usr/bin/{program}", [{words}], 0x1 /* 0 vars */) = 0',
        call(1, "bind", PRIVATE),
        call(12, "connect", PRIVATE),
    )
    assert peers(*rows) == ([(PRIVATE, program, "/bin/sh")] if counts else [])
    # The next program in the same process.
    other = '12 execve("/usr/bin/busctl", ["busctl"], 0x1 /* 0 vars */) = 0'
    assert (PRIVATE, "busctl", "/bin/sh") in peers(*rows, other, call(12, "connect", PRIVATE))


def refused(*found: Peer, unit: UnitStart = APP, root: Path = Path("/nowhere")) -> str:
    try:
        refuse_peers([replace(trace(), peers=found)], unit, ImageRoot(root))
    except UnsupportedUnitError as error:
        assert error.hint
        return error.message
    return ""


def test_who_does_not_answer_early() -> None:
    assert refused() == ""
    assert "busctl of the unit asked D-Bus by /run/dbus/system" in refused(Peer(BUS, "busctl", "/bin/sh"))
    assert "asked systemd by /run/systemd/private" in refused(Peer(PRIVATE, "systemctl", "/bin/sh"))
    assert "asked udev by /run/udev/control" in refused(Peer("/run/udev/control", "udevadm", "/bin/sh"))
    assert "asked another service by /run/b.sock" in refused(Peer("/run/b.sock", "sh", "/bin/sh"))
    # A command that an early start leaves out (`pre = false`).
    assert refused(Peer(PRIVATE, "systemctl", "/usr/bin/prepare")) == ""


@pytest.mark.parametrize(
    "path",
    [
        "/run/systemd/notify",
        "/run/nscd/socket",
        "/run/systemd/userdb/io.systemd.DynamicUser",
        "/run/systemd/resolve/io.systemd.Resolve",
        # rsyslog's, for a service whose root is another directory.
        "/var/lib/haproxy/dev/log",
    ],
)
def test_who_answers_early_or_need_not(path: str) -> None:
    assert refused(Peer(path, "sh", "/bin/sh")) == ""


def test_a_unit_whose_user_systemd_makes_up_may_ask_for_his_name() -> None:
    """getpwuid(3) of libnss-systemd asks PID 1, which does not know him before the hand-off."""
    peer = Peer("/run/systemd/userdb/io.systemd.DynamicUser", "sh", "/bin/sh")
    assert "asked systemd by" in refused(
        peer, unit=replace(APP, settings=(("user", "a"), ("dynamic-user", "61184")))
    )


def test_sockets_that_init_binds() -> None:
    def listening(path: str) -> ListeningSocket:
        return ListeningSocket(
            unit="a.socket",
            kind="stream",
            path=PurePosixPath(path),
            port=0,
            records=(("socket", "unix", path),),
        )

    own, journals = Peer("/run/a.sock", "sh", "/bin/sh"), Peer("/run/systemd/journal/stdout", "sh", "/bin/sh")
    assert refused(own)
    assert refused(journals)
    unit = replace(
        APP,
        sockets=(listening("/run/a.sock"),),
        journal_sockets=(listening("/run/systemd/journal/stdout"),),
    )
    assert refused(own, journals, unit=unit) == ""
    assert refused(Peer("/run/systemd/journal/io.systemd.journal", "journalctl", "/bin/sh"), unit=unit)


@pytest.mark.parametrize("program", ["/usr/bin/podman", "/sbin/apparmor_parser", "/bin/udevadm"])
def test_programs_that_do_something_else_early(tmp_path: Path, program: str) -> None:
    with pytest.raises(UnsupportedUnitError, match=f"it executed {program}, which"):
        refuse_peers([trace((Op.EXEC, program))], APP, ImageRoot(tmp_path))
    others = (Op.EXEC, program, "ENOENT"), (Op.OPEN, program), (Op.EXEC, "/bin/podman-x")
    refuse_peers([trace(*others)], APP, ImageRoot(tmp_path))


def test_docker_loads_a_profile_for_its_containers(tmp_path: Path) -> None:
    """And it looks for firewalld by D-Bus."""
    docker = replace(APP, start=UnitCommand("/usr/sbin/dockerd", ("dockerd",)))
    refuse_peers([trace((Op.EXEC, "/sbin/apparmor_parser"))], docker, ImageRoot(tmp_path))
    with pytest.raises(UnsupportedUnitError, match="it executed /usr/bin/podman"):
        refuse_peers([trace((Op.EXEC, "/usr/bin/podman"))], docker, ImageRoot(tmp_path))
    found = Peer(BUS, "dockerd", "/usr/sbin/dockerd")
    assert refused(found, unit=docker, root=tmp_path) == ""
    put(tmp_path, "/usr/share/dbus-1/system.d/FirewallD.conf", "")
    assert refused(found, unit=docker, root=tmp_path)


def test_a_service_of_the_bus_that_is_not_there(tmp_path: Path) -> None:
    """cupsd asks for a colour manager and for Avahi. Without them, it is the same as without D-Bus."""
    place = "/usr/share/dbus-1/system-services/org.freedesktop"
    cups = replace(APP, start=UnitCommand("/usr/sbin/cupsd", ("cupsd", "-l")))
    found = Peer(BUS, "cupsd", "/usr/sbin/cupsd")
    assert refused(found, unit=cups, root=tmp_path) == ""
    watched = partners([replace(trace(), peers=(found, Peer(BUS, "busctl", "/bin/sh")))])
    assert set(map(str, watched)) == {f"{place}.Avahi.service", f"{place}.ColorManager.service"}
    assert refused(Peer(PRIVATE, "cupsd", "/usr/sbin/cupsd"), unit=cups, root=tmp_path)
    put(tmp_path, f"{place}.Avahi.service", "")
    assert refused(found, unit=cups, root=tmp_path)
    assert not partners([replace(trace(), peers=(Peer(PRIVATE, "cupsd", "/usr/sbin/cupsd"),))])
