"""Find the name services of the image that may add a unit's user to groups which are unknown to the starter
(nsswitch.conf(5)). The starter, which starts a unit early, reads only /etc/passwd and /etc/group. systemd calls
initgroups(3), which asks all name services for the user's groups.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import MAX_TABLE_BYTES, ImageRoot
from quickstart.inspect.unit.source import Source
from quickstart.parse.printable import brief

SWITCH = PurePosixPath("/etc/nsswitch.conf")
# The directories in which systemd's own name service finds that a user is a member of a group (nss-systemd(8),
# USER:GROUP.membership).
USER_RECORDS = tuple(map(PurePosixPath, ("/etc/userdb", "/usr/local/lib/userdb", "/usr/lib/userdb")))
# Name services that know only the users of /etc/passwd and /etc/group, and systemd's own users.
_LOCAL = frozenset(("files", "systemd"))
# With these name services, a daemon or the network answers. A stock boot that starts a unit without an order after them
# (pack/earlier.py refuses a unit with one) does not promise an answer, either.
_ASKED = frozenset(("sss", "ldap", "winbind", "nis", "nisplus", "oslogin", "cache_oslogin"))
_SETS_USER = frozenset(("User", "Group", "SupplementaryGroups", "DynamicUser"))


def sets_user(names: set[str]) -> bool:
    """Whether one of the directives ``names`` sets the user or the groups with which a unit runs."""
    return not _SETS_USER.isdisjoint(names)


def other_services(root: ImageRoot) -> set[str]:
    """The name services that may have users and groups beyond those of /etc/passwd, /etc/group and systemd itself."""
    return _services(root) - _LOCAL


def refuse_other_groups(root: ImageRoot, source: Source) -> None:
    """Raise UnsupportedUnitError when a name service other than /etc/group may add the unit's user to groups."""
    if not sets_user({*source.found}):
        return
    services = _services(root)
    # The service `compat` also reads /etc/group, in which lines with `+` may name another service.
    others = services - _LOCAL - _ASKED - {"compat"}
    if "compat" in services and _has_compat_lines(root):
        others.add("compat")
    if others:
        named = brief(", ".join(sorted(others)))
        raise UnsupportedUnitError(
            f"{source.unit} cannot be started early: {SWITCH} also names {named}, which may know other users and groups",
            hint="put the user's groups into /etc/group, and remove this name service from passwd and group",
        )
    user = source.names.expand(source.last("User"))
    for place in USER_RECORDS if "systemd" in services and user else ():
        canonical = root.resolve(place).canonical
        for name in root.names(canonical) if canonical is not None else ():
            if (user.isdigit() or name.startswith(f"{user}:")) and name.endswith(".membership"):
                raise UnsupportedUnitError(
                    f"{source.unit} cannot be started early: its user gets groups from {brief(str(place / name))}",
                    hint="put the user's groups into /etc/group",
                )


def _services(root: ImageRoot) -> set[str]:
    path = root.resolve(SWITCH).canonical
    lines = root.read_text(path, MAX_TABLE_BYTES).splitlines() if path else ()
    found: set[str] = set()
    for line in lines:
        database, _, services = line.partition("#")[0].partition(":")
        if database.strip() in ("passwd", "group", "initgroups"):
            found |= set(re.sub(r"\[[^]]*\]", " ", services).split())
    return found


def _has_compat_lines(root: ImageRoot) -> bool:
    tables = (root.resolve(PurePosixPath(file)).canonical for file in ("/etc/passwd", "/etc/group"))
    texts = (root.read_text(path, MAX_TABLE_BYTES) for path in tables if path is not None)
    return any(line.lstrip().startswith(("+", "-")) for text in texts for line in text.splitlines())
