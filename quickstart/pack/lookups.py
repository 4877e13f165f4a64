"""Find out whether a unit looked up names or users before it was ready, and which services of the machine answer these
look-ups (pure).

systemd starts a resolver that runs on the machine itself before most applications, because of nss-lookup.target
(systemd.special(7)). This order does not show whether an application looks up any names. The trace lists what the
application did in a traced boot, and so shows whether the application looked up any names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from quickstart.model import Op, Trace
from quickstart.model.started import LoadedUnit
from quickstart.trace.calls import NAME_CACHE

RESOLVER = PurePosixPath("/etc/resolv.conf")
_USERS_TARGET = "nss-user-lookup.target"
_ANSWER_NAMES = frozenset({"bind9.service", "dnsmasq.service", "named.service", "unbound.service"})
_ANSWER_USERS = frozenset({"nslcd.service"})
# Modules of nsswitch.conf(5), by the beginnings of their names, and the services that they ask.
_MODULES = {"libnss_ldap.so.": "nslcd.service", "libnss_mdns": "avahi-daemon.service"}


def looks_up_names(traces: Sequence[Trace]) -> bool:
    """Whether a program of the units looked up names before ready. Such a program either read the file with the name
    servers, or connected to nscd or unscd. These two services look up names for other programs.
    """
    cache = PurePosixPath(NAME_CACHE)
    return any(
        event.path == cache or (event.path == RESOLVER and event.op is Op.OPEN)
        for trace in traces
        for event in trace.events
    )


def answering(traces: Sequence[Trace], application: LoadedUnit) -> frozenset[str]:
    """The services that answer what ``application`` looked up in a traced boot. The image need not have these services.
    systemd-resolved is not in the result, because its answers come from the network. The function
    ``refuse_names_too_early`` in given.py refuses an early start that would come too early for such answers. nscd and
    unscd are not in the result, because glibc itself looks up names when these services do not run.
    """
    loaded = {event.path.name for trace in traces for event in trace.events if event.error is None}
    asked = (service for begin, service in _MODULES.items() if any(name.startswith(begin) for name in loaded))
    return frozenset(
        (
            *(_ANSWER_NAMES if looks_up_names(traces) else ()),
            *(_ANSWER_USERS if _USERS_TARGET in application.after else ()),
            *asked,
        )
    )
