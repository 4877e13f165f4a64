"""Refuse an early start when the unit, before it is ready, speaks to systemd, D-Bus or another service of the machine.
Also refuse an early start when the unit runs a program that acts in one way before systemd runs, and in another way
under systemd.

In an early start, our init starts the unit before systemd runs. The unit reader (inspect/unit) sees only the words of
the unit's commands. The reference boot, which is traced, also shows what scripts call and what libraries do. For
example, `systemctl`, `hostnamectl` and every program that speaks to D-Bus connect to a socket that another process has
bound. Apart from looking up names in the image, the functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.commands import why_elsewhere
from quickstart.inspect.unit.model import UnitStart
from quickstart.model import Op, Trace
from quickstart.model.started import Peer
from quickstart.parse.printable import brief
from quickstart.trace.calls import NAME_CACHE

# The starter or PID 1 binds the first socket (docs/internals/starter.md). Without the second socket, glibc looks up
# names itself (lookups.py). For the third socket, refuse_names_too_early decides (given.py).
_SERVED = frozenset(("/run/systemd/notify", NAME_CACHE, "/run/systemd/resolve/io.systemd.Resolve"))
# This socket knows only the users of DynamicUser= (nss-systemd(8)). A unit with such a user may look up its user's
# name there.
_MADE_UP = "/run/systemd/userdb/io.systemd.DynamicUser"
# rsyslog may also have this socket in a directory that a service uses as its root (`$AddUnixListenSocket`). syslog(3)
# connects again for each message.
_LOG = "/dev/log"
# Who listens at paths with these beginnings. All of them come with systemd.
_COMES_LATE = {"/run/dbus/": "D-Bus", "/run/systemd/": "systemd", "/run/udev/": "udev"}
# The D-Bus services that these programs call (cups's dirsvc.c and colord.c, samba's avahi_register.c, libnetwork's
# firewalld.go). A service is known by a file that comes with it. The bus has one file for each service that it
# starts, and one for each service that may own a name (dbus-daemon(1)). Without such a service, these programs do not
# need D-Bus.
_AVAHI = "system-services/org.freedesktop.Avahi.service"
_PARTNERS = {
    "cupsd": (_AVAHI, "system-services/org.freedesktop.ColorManager.service"),
    "dockerd": ("system.d/FirewallD.conf",),
    "smbd": (_AVAHI,),
}
# With this program, dockerd loads a profile for its containers. This profile is not attached to a path.
_OF_DOCKER = "apparmor_parser"
_BUS = "/run/dbus/system_bus_socket"
_BUS_FILES = PurePosixPath("/usr/share/dbus-1")
_WITHOUT = "let the unit's commands do without systemctl, hostnamectl and the like, or name another unit in the profile"
_TOGETHER = "name both services in `units` of the profile, the other one first, or let the unit do without it"


def partners(traces: Sequence[Trace]) -> frozenset[PurePosixPath]:
    """The paths of the files of certain D-Bus services, whether the files exist or not. Some programs of the units have
    connected to D-Bus only to call these services. An early start has no D-Bus. As long as none of these files exists,
    such a program nevertheless gets the same result in an early start as in a stock boot.
    """
    programs = (peer.program for trace in traces for peer in trace.peers if peer.path == _BUS)
    return frozenset(_BUS_FILES / name for each in programs for name in _PARTNERS.get(each, ()))


def refuse_peers(traces: Sequence[Trace], unit: UnitStart, root: ImageRoot) -> None:
    """Raise UnsupportedUnitError if, in a traced boot, a program of the unit connected to a socket of another process,
    and nobody would answer at this socket in an early start. Also raise the error if the unit executed a program that
    acts in another way in an early start than under systemd (see ``why_elsewhere``).

    Connections by a command that an early start leaves out (``pre = false`` in the profile) do not count. A command is
    recognised by the name of its program.
    """
    for trace in traces:
        for peer in _unanswered(trace.peers, unit, root):
            who = next((name for begin, name in _COMES_LATE.items() if peer.path.startswith(begin)), "")
            raise UnsupportedUnitError(
                f"{unit.unit} cannot be started early: in the reference boot, {brief(peer.program)} of the unit asked"
                f" {who or 'another service'} by {brief(peer.path)}, and nobody answers there before the hand-off",
                hint=_WITHOUT if who else _TOGETHER,
            )
        for path in _executed(trace):
            why = why_elsewhere(path.name)
            if why and not (path.name == _OF_DOCKER and "dockerd" in _run(unit)):
                raise UnsupportedUnitError(
                    f"{unit.unit} cannot be started early: in the reference boot, it executed {brief(str(path))},"
                    f" which {why}",
                    hint="let the unit do without this program, or name another unit in the profile",
                )


def _executed(trace: Trace) -> Iterator[PurePosixPath]:
    return (event.path for event in trace.events if event.op is Op.EXEC and event.error is None)


def _run(unit: UnitStart) -> frozenset[str]:
    """The names of the programs in the commands that an early start runs."""
    return frozenset(
        PurePosixPath(command.program).name for each in unit.all_units for command in each.commands
    )


def _unanswered(peers: Sequence[Peer], unit: UnitStart, root: ImageRoot) -> Iterator[Peer]:
    served = _SERVED if any(each.made_up_user for each in unit.all_units) else _SERVED | {_MADE_UP}
    bound = {str(socket.path) for each in unit.all_units for socket in (*each.sockets, *each.journal_sockets)}
    run = _run(unit)
    for peer in peers:
        is_answered = peer.path in served or peer.path in bound or peer.path.endswith(_LOG)
        if not is_answered and PurePosixPath(peer.command).name in run and not _asks_nobody(peer, root):
            yield peer


def _asks_nobody(peer: Peer, root: ImageRoot) -> bool:
    """Whether the program connected to D-Bus only to call services that the image does not have."""
    names = _PARTNERS.get(peer.program, ()) if peer.path == _BUS else ()
    return bool(names) and all(root.resolve(_BUS_FILES / name).canonical is None for name in names)
