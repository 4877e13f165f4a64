"""The state with which a process in a trace resolves paths, such as its working directory."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from quickstart.host.descriptors import Descriptors
from quickstart.parse.bounded import PATH_MAX, natural

_OWN_DESCRIPTORS = "/proc/self/fd/"
_DOTS = re.compile(r"/*+(?>(?:\.\.(?:/++|\Z))*)")
# A service has one or two hundred mounts of its own. With more, the root that it enters is among the last of them.
_MAX_BINDS = 512
# The kernel's name of a working directory may exceed the limit of a path. In a real log, relative names do not get this
# long.
MAX_PLACE_CHARACTERS = 2 * PATH_MAX


class Bind(NamedTuple):
    """A bind mount. ``before`` is the bind mount that was made directly before this bind mount."""

    target: str
    source: str
    before: Bind | None


@dataclass
class Place:
    """The state with which a process resolves paths. In the kernel, this state is the fs_struct and the mount namespace
    of the process. ``cwd`` is the working directory and ``root`` the root directory, both as paths in the image.

    ``binds`` is the last bind mount, which refers to the earlier bind mounts. systemd may build a new root directory
    from bind mounts. The bind mounts then show that this directory is the image's root.

    ``opened`` has the path of each open descriptor of the process. The process or its parent opened the descriptor by
    this path. With these paths, the trace resolves /proc/self/fd/N, and finds the control group into which clone3(2)
    puts a child.
    """

    cwd: str = "/"
    root: str = "/"
    binds: Bind | None = None
    opened: Descriptors[str] = field(default_factory=Descriptors)

    def lookup(self, path: str) -> str:
        if path.startswith(_OWN_DESCRIPTORS) and (found := self.descriptor(path[len(_OWN_DESCRIPTORS) :])):
            return found
        return under(self.root, path) if path.startswith("/") else join(self.cwd, path)

    def descriptor(self, number: str) -> str:
        """The path by which the descriptor ``number`` was opened. The result is empty when the path is not known."""
        value = natural(number)
        return (self.opened.get(value) if value is not None else None) or ""

    def source(self, target: str) -> str:
        """The source of the bind mount at ``target``, or ``target`` itself when nothing is mounted there."""
        bind = self.binds
        for _ in range(_MAX_BINDS):
            if bind is None:
                break
            if bind.target == target:
                return bind.source
            bind = bind.before
        return target

    def copy(self) -> Place:
        return Place(self.cwd, self.root, self.binds, self.opened.copy())


def plain(path: str) -> str:
    """The absolute path ``path`` without "." and doubled slashes. A ".." is kept, because the meaning of ".." depends
    on the links before the "..".
    """
    if "//" not in path and "/." not in path and not path.endswith("/"):
        return path
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def under(root: str, path: str) -> str:
    """The path in the image for the absolute path ``path`` of a process whose root directory is ``root``. A ".." does
    not lead out of ``root``.
    """
    if root in ("", "/"):
        return path
    above = _DOTS.match(path)
    return f"{root}/{path[above.end() :] if above else path}"


def join(base: str, path: str) -> str:
    """The path that the relative path ``path`` means in the directory ``base``. A ".." is kept, because the meaning of
    ".." depends on the links before the "..". The method ImageRoot.resolve follows these links later.
    """
    return f"{base.rstrip('/')}/{path}" if path else base
