"""Find what the rest of a boot has changed before a unit's programs use it (pure).

A service that starts early comes before the rest of the boot. So a file that a generator, a rule of tmpfiles.d or
another service makes, changes or removes is not yet, or still, there. The log shows this whatever program does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from quickstart.parse.guestpaths import in_run

# The kernel's own, in which a boot writes all the time.
_KERNELS = ("/proc/", "/sys/", "/dev/")


@dataclass
class Others:
    """``changed`` are the paths that processes outside of the units changed last. ``used`` are those of them that the
    units' programs looked up later, directly or as a directory above; ``used_by_manager`` are those that systemd looked
    up, for whatever unit. The log has a path as a program spelled it; here, it has no link of /var into /run. ``note``
    is called with each path that is kept.
    """

    note: Callable[[str], None]
    changed: set[str] = field(default_factory=set)
    used: dict[str, None] = field(default_factory=dict)
    used_by_manager: dict[str, None] = field(default_factory=dict)

    def change(self, paths: Iterable[str], *, by_unit: bool) -> None:
        """Note that a process has made, changed or removed what is at ``paths``."""
        for path in map(in_run, paths):
            if by_unit:
                self.changed.discard(path)
            elif path not in self.changed and not f"{path}/".startswith(_KERNELS):
                self.note(path)
                self.changed.add(path)

    def use(self, paths: Iterable[str], *, by_manager: bool = False) -> None:
        """Note that a program of a unit has looked up ``paths``, or systemd, with ``by_manager``."""
        used = self.used_by_manager if by_manager else self.used
        for path in map(in_run, paths):
            end = len(path)
            while end > 0:
                if path[:end] in self.changed:
                    used[path[:end]] = None
                    break
                end = path.rfind("/", 0, end)
