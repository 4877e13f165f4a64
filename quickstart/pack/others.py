"""Refuse an early start when the rest of the boot makes or changes a file before the unit uses this file.

In an early start, our init starts the unit before systemd runs. At this time, a file that the rest of the boot makes
would not exist yet, or would still be the file of the previous boot. The modules that read the image (inspect/) know
many ways in which a boot prepares a machine, such as tmpfiles.d, cloud-init, generators and other services. The
reference boot, which is a traced stock boot, shows the files that are made in these ways, and also files that are made
in ways that no module knows. Apart from reading tmpfiles.d and links of the image, the functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.cloudinit import has_cloud_init
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.hidden import hidden_paths
from quickstart.inspect.unit.model import UnitStart
from quickstart.inspect.unit.rundirectories import run_directories
from quickstart.model import Trace
from quickstart.pack.given import can_await_name_servers
from quickstart.pack.lookups import RESOLVER
from quickstart.parse.guestpaths import in_run
from quickstart.parse.printable import brief

# Paths of systemd and its parts. Either init makes them, or an application finds them only later in an early start
# (docs/internals/guest.md). The files below these paths count as well.
_OF_SYSTEMD = """
    /run/credentials /run/dbus /run/initctl /run/lock /run/machine-id /run/motd.dynamic /run/mount
    /run/nologin /run/shm /run/systemd /run/udev /run/user /run/utmp
    /etc/machine-id /var/lib/dbus/machine-id /var/lib/systemd"""
# The DHCP client's directory; caches of the loader and of names, which only make look-ups faster; and logs, to which
# others append.
_OF_OTHERS = "/run/network /etc/ld.so.cache /run/nscd /var/lib/sss/mc /var/log"
_KNOWN = (*_OF_SYSTEMD.split(), *_OF_OTHERS.split())
# In these directories, init or the starter makes everything that a unit with a mount namespace finds there at its start
# (initramfs/starter/mounts.c).
_EARLY = ("/run/credentials", "/run/lock", "/run/systemd", "/run/user")
# Files with name servers, to which the link RESOLVER may lead. A program that reads them only once would continue
# without name servers (trace/resolvers.py).
_NAME_SERVERS = ("/run/resolvconf", "/run/systemd/resolve")
# systemd makes these directories for units with PrivateTmp=. In an early start, the starter makes the unit's directory.
_PRIVATE_TMP = ("/tmp/systemd-private-", "/var/tmp/systemd-private-")  # noqa: S108
# Where systemd or init may have mounted a tmpfs.
_IN_MEMORY = ("/run", "/tmp")  # noqa: S108
# The starter looks up a user's groups in these files (sysusers.d(5) may add some).
_USERS = (PurePosixPath("/etc/passwd"), PurePosixPath("/etc/group"))
_OF_USERS = ("user", "main-group", "groups")
_MOST_SHOWN = 3


def refuse_made_before(traces: Sequence[Trace], unit: UnitStart, root: ImageRoot) -> None:
    """Raise UnsupportedUnitError when another process of a traced boot has made, changed or removed a file or directory
    before a program of the unit looked it up. systemd itself looks up the environment files of the unit and the paths
    of the unit's mount namespace. For these paths, systemd counts as a program of the unit. Two kinds of paths do not
    lead to the error:

    - paths that an early start makes itself
    - paths that an application can do without at its start (``_KNOWN``), unless the unit's mount namespace hides or
      restricts the path

    For an image with cloud-init, only changes in memory (/run, /tmp) lead to the error. A machine of such an image
    starts early only after a complete boot with cloud-init, and then cloud-init's changes are on the volume. The only
    exception is a profile with early = "always". Such a profile asks for an early start even before cloud-init has run.
    """
    # Init waits for its DHCP lease, and then writes the name servers (pack/given.py).
    resolver = (str(RESOLVER),) if can_await_name_servers(root) else ()
    made = {*_run_directories(unit, root), *_of_sockets(unit), *_private_roots(unit), *resolver}
    own = [path for each in unit.all_units for path in _named(each, root)]
    # The unit can do without the paths that are hidden from it. But in an early start, it could use such a path for a
    # while.
    hidden = {*hidden_paths(unit, root)} - made - {*_EARLY}
    used = {
        path
        for trace in traces
        for path in (*trace.changed.before_unit, *_at(trace.changed.before_manager, own))
    }
    found = sorted(path for path in used if not _is_known(str(path), made) or str(path) in hidden)
    if has_cloud_init(root):
        found = [path for path in found if any(path.is_relative_to(place) for place in _IN_MEMORY)]
    if found:
        shown = ", ".join(brief(str(path)) for path in found[:_MOST_SHOWN])
        more = f" and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""
        raise UnsupportedUnitError(
            f"{unit.unit} cannot be started early: in the reference boot, another program made or changed {shown}{more}"
            " before the unit used it",
            hint="let ExecStartPre= of the unit do this, or have it done in the image",
        )


def _named(unit: UnitStart, root: ImageRoot) -> Iterator[PurePosixPath]:
    """The unit's environment files and the paths of its mount namespace. For a unit with a user or groups, the result
    also has the tables of users and groups. systemd looks up all these files before it executes the unit's program
    (docs/internals/starter.md, "The description"). For a path with links in the image, the result also has the path to
    which the links lead.
    """
    if any(kind in _OF_USERS for kind, *_ in unit.settings):
        yield from _USERS
    for kind, *words in unit.settings:
        if kind not in ("environment-file", "mount"):
            continue
        for path in (PurePosixPath(in_run(word)) for word in words if word.startswith("/") and word != "/"):
            yield path
            # The last part may be missing in the image.
            if (above := root.resolve(path.parent).canonical) is not None:
                yield above / path.name
                if target := root.link_target(above / path.name):
                    yield PurePosixPath(in_run(str(above / target)))


def _at(changed: Iterable[PurePosixPath], places: Sequence[PurePosixPath]) -> Iterator[PurePosixPath]:
    """The paths in ``changed`` that are also in ``places``, or that are a directory above one of ``places``."""
    return (path for path in changed if any(place.is_relative_to(path) for place in places))


def _run_directories(unit: UnitStart, root: ImageRoot) -> Iterator[str]:
    """The directories in /run that the starter makes, and the directories above them."""
    made = (record for each in unit.all_units for record in each.settings if record[0] == "run-directory")
    for record in (*run_directories(root), *made):
        path = PurePosixPath(record[-1])
        yield from map(str, (path, *path.parents))


def _of_sockets(unit: UnitStart) -> Iterator[str]:
    """The paths of the stack's sockets in the file system, and the directories above these paths. Init makes these
    sockets and directories, as systemd does in a stock boot.
    """
    for path in (socket.path for each in unit.all_units for socket in each.sockets):
        if path is not None:
            yield from map(str, (path, *path.parents))


def _private_roots(unit: UnitStart) -> Iterator[str]:
    """The directories in which units with DynamicUser= have their private directories. Both systemd-tmpfiles and the
    starter make these directories (docs/internals/dynamic-user.md).
    """
    for kind, *words in (record for each in unit.all_units for record in each.settings):
        if kind == "private-directory":
            yield f"{words[1]}/private"


def _is_known(path: str, made: set[str]) -> bool:
    is_known = _is_below(path, _KNOWN) and not _is_below(path, _NAME_SERVERS)
    return is_known or path in made or path.startswith(_PRIVATE_TMP)


def _is_below(path: str, places: Iterable[str]) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in places)
