"""Distinguish two kinds of programs that use name servers. Resolvers of the first kind read /etc/resolv.conf again when
the file changes. Programs of the second kind may read the file only once. This module has no side effects.
"""

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
    """Follows the actions of programs on the files that resolvers read. Two resolvers read /etc/resolv.conf again
    when this file changes. In the log, these two resolvers can be recognized by these actions:

    - glibc's resolver (resolv.conf(5)) looks up /etc/resolv.conf, and then opens it with O_CLOEXEC. Between these two
      actions, the thread does nothing else. The first time in each process is an exception, because glibc then opens
      /etc/host.conf between the two actions.
    - Go's resolver opens /etc/resolv.conf with O_CLOEXEC, and then opens /etc/nsswitch.conf. Go's resolver looks up
      neither file before it opens the file.

    Any other program may read /etc/resolv.conf only once, and keep the content. Examples are squid, c-ares, and modules
    of Perl, Python or Go.

    ``before`` has, for each thread, the file that the thread has just looked up, or /etc/host.conf if glibc has just
    opened this file. ``loaded`` are the programs in which glibc has read /etc/resolv.conf. ``open_ended`` has programs
    that have just opened /etc/resolv.conf, with the paths of the file. The next action of such a program shows whether
    Go's resolver has opened the file.
    """

    before: dict[int, str] = field(default_factory=dict)
    loaded: set[Program] = field(default_factory=set)
    open_ended: dict[Program, frozenset[str]] = field(default_factory=dict)

    def used(self, item: Seen, program: Program, paths: frozenset[str]) -> frozenset[str]:
        """The paths whose content the program may keep, so that it does not notice later changes. ``item`` is the
        program's action on ``paths``. When this action concerns another file than /etc/resolv.conf, the result is
        ``paths``.
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
        """The paths in ``open_ended``, for all programs. Call this method at the end of the log, where no further
        action can show that Go's resolver has opened the file.
        """
        return _NOTHING.union(*self.open_ended.values())
