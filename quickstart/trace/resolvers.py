"""Tell resolvers that read /etc/resolv.conf again when it changes from programs that may read it only once (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field

from quickstart.model import Op
from quickstart.trace.events import Seen

_RESOLVER = "/etc/resolv.conf"
# What glibc reads directly before _RESOLVER (__resolv_conf_load in glibc's resolv/res_init.c).
_OPTIONS = "/etc/host.conf"
# What Go reads directly after _RESOLVER. glibc looks this file up before it opens it.
_SOURCES = "/etc/nsswitch.conf"
_NOTHING: frozenset[str] = frozenset()

# A program of a unit: the unit, and the program's name.
Program = tuple[str, str]


@dataclass
class Resolvers:
    """Follows what programs do with the files of resolvers. Two resolvers read /etc/resolv.conf again when it changes:

    - glibc's resolver (resolv.conf(5)) looks the file up, and then opens it with O_CLOEXEC. Between these two
      actions, the thread does nothing else. Only when a process does this for the first time, it opens /etc/host.conf
      in between.
    - Go's resolver opens the file with O_CLOEXEC, and then opens /etc/nsswitch.conf. It looks up neither file before.

    Any other program may keep what it has read, for example squid, c-ares, or a module of Perl, Python or Go.

    ``before`` is the file that a thread has just looked up, or /etc/host.conf if glibc has opened it. ``loaded`` are
    the programs in which glibc has read the file. ``open_ended`` are the programs whose next action tells whether Go's
    resolver has read the file, with the paths of the file.
    """

    before: dict[int, str] = field(default_factory=dict)
    loaded: set[Program] = field(default_factory=set)
    open_ended: dict[Program, frozenset[str]] = field(default_factory=dict)

    def used(self, item: Seen, program: Program, paths: frozenset[str]) -> frozenset[str]:
        """The paths that the program may not use again, after the action ``item`` on ``paths``. For any other file
        than /etc/resolv.conf, these are ``paths``.
        """
        before = self.before.pop(item.number, "")
        if item.path == "/" and before == _SOURCES:
            # glibc looks up the root between the two actions on the file.
            self.before[item.number] = _SOURCES
        is_open = item.op is Op.OPEN
        if item.path == _SOURCES and is_open and before != _SOURCES:
            self.open_ended.pop(program, None)
        if (
            (item.path in (_RESOLVER, _SOURCES))
            if not is_open
            else (item.path, before) == (_OPTIONS, _RESOLVER)
        ):
            self.before[item.number] = item.path
        if item.path != _RESOLVER:
            return paths
        if not is_open:
            return _NOTHING
        if item.closes_on_exec and (before == _OPTIONS or (before == _RESOLVER and program in self.loaded)):
            self.loaded.add(program)
            return _NOTHING
        unexplained = self.open_ended.pop(program, _NOTHING)
        if item.closes_on_exec and before != _RESOLVER:
            self.open_ended[program] = paths
            return unexplained
        return unexplained | paths

    def rest(self) -> frozenset[str]:
        """The paths that no later action has explained, at the end of the log."""
        return _NOTHING.union(*self.open_ended.values())
