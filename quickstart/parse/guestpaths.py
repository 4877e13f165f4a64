"""Paths of a guest in the spelling that programs use (pure)."""

from __future__ import annotations

import re

_IN_VAR = re.compile(r"^/var/(run|lock)(?=/|$)")
_PLACES = {"run": "/run", "lock": "/run/lock"}


def in_run(path: str) -> str:
    """``path`` with /run in place of a leading /var/run, and /run/lock in place of a leading /var/lock. In every image,
    /var/run and /var/lock are links to these directories (hier(7), tmpfiles.d/legacy.conf).
    """
    return _IN_VAR.sub(lambda match: _PLACES[match[1]], path)


def simplified(path: str) -> str:
    """The absolute guest path ``path`` without repeated slashes and without ``.``, as systemd reads a path
    (path_simplify in systemd's path-util.c).
    """
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
