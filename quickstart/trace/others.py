"""Find the files that other processes of a boot have changed before a unit's programs use the files. This module has
no side effects.

With an early start, our init starts the service before systemd and the rest of the boot run. At this time, generators,
rules of tmpfiles.d and other services have not made, changed or removed their files yet. The log of the reference boot
shows every file that a process makes, changes or removes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from quickstart.parse.guestpaths import in_run

# The kernel's own, in which a boot writes all the time.
_KERNELS = ("/proc/", "/sys/", "/dev/")


@dataclass
class Others:
    """Collects the paths that processes outside of the traced units have changed, and the later look-ups of these
    paths.

    ``changed`` are the paths that were last changed by a process outside of the units. ``used`` are the paths of
    ``changed`` that the units' programs looked up later. A look-up of a path below a changed directory counts as a
    look-up of the directory. ``used_by_manager`` are the paths of ``changed`` that systemd looked up later, for any
    unit.

    All paths are spelled as in the log of strace, except that /run replaces /var/run, and /run/lock replaces /var/lock.
    ``note`` is called with each path that is added to ``changed``.
    """

    note: Callable[[str], None]
    changed: set[str] = field(default_factory=set)
    used: dict[str, None] = field(default_factory=dict)
    used_by_manager: dict[str, None] = field(default_factory=dict)

    def change(self, paths: Iterable[str], *, by_unit: bool) -> None:
        """Record that a process has made, changed or removed the files at ``paths``. ``by_unit`` says that the process
        belongs to the traced units. If so, ``paths`` are removed from ``changed``.
        """
        for path in map(in_run, paths):
            if by_unit:
                self.changed.discard(path)
            elif path not in self.changed and not f"{path}/".startswith(_KERNELS):
                self.note(path)
                self.changed.add(path)

    def use(self, paths: Iterable[str], *, by_manager: bool = False) -> None:
        """Record a look-up of ``paths`` by a program of a unit or, with ``by_manager``, by systemd itself."""
        used = self.used_by_manager if by_manager else self.used
        for path in map(in_run, paths):
            end = len(path)
            while end > 0:
                if path[:end] in self.changed:
                    used[path[:end]] = None
                    break
                end = path.rfind("/", 0, end)
