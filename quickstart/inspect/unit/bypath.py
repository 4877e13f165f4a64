"""Find the services whose processes are looked up by the path of their program (start-stop-daemon(8), ``--exec``).

A process that starts early may run its program from /fast, the directory of packed files in memory. The executable of
the process is then, for example, /fast/usr/sbin/lighttpd, and ``start-stop-daemon --exec /usr/sbin/lighttpd`` does not
find the process. For the usual actions of an init script (start, stop, reload …), systemd starts, stops or reloads the
unit, and does not run the script. But logrotate, cron and network hooks also run other actions, for example
``invoke-rc.d lighttpd reopen-logs``. For such an action, invoke-rc.d runs the script itself (invoke-rc.d(8)).
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from quickstart.errors import StartSetError, UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import parse_service, unit_texts
from quickstart.inspect.unit.initscripts import SCRIPTS

# The actions that invoke-rc.d, service(8) and the scripts' own functions (/lib/lsb/init-functions.d/40-systemd) pass
# to systemctl. They pass _RELOAD only for a unit that systemd can reload.
_OF_SYSTEMCTL = frozenset({"start", "stop", "restart", "try-restart", "force-reload", "status"})
_RELOAD = "reload"
_CALLERS = (
    "/etc/logrotate.d/*",
    "/etc/cron.*/*",
    "/etc/network/if-*.d/*",
    "/etc/dhcp/dhclient-*-hooks.d/*",
    "/etc/ppp/ip*.d/*",
)
_CALL = re.compile(
    r"(?:\binvoke-rc\.d|\bservice|/etc/init\.d/)\s*(?:--[\w-]{1,32}\s+)?([\w.+@-]{1,128})\s+([a-z][\w-]{0,64})"
)
_CONTINUED = re.compile(r"\\\n")
_DAEMON = "start-stop-daemon"
_BY_EXECUTABLE = re.compile(r"\s(?:--exec|-x)\b")
_STARTS = re.compile(r"\s(?:--start|-S)\b")
# A script of a package has a few KiB.
_MOST_BYTES = 256 << 10


def is_found_by_path(root: ImageRoot, unit: str) -> bool:
    """Whether the unit's init script would not find a process that starts early. The result is true when two conditions
    are met. First, the script finds processes by the path of their program. Second, a file of the image runs an action
    of the script that systemd does not carry out itself, such as reopen-logs.
    """
    name = unit.removesuffix(".service")
    if not _has_script(root, name):
        return False
    others = _actions(root, name) - _OF_SYSTEMCTL
    return bool(others - {_RELOAD} if _can_reload(root, unit) else others)


def _can_reload(root: ImageRoot, unit: str) -> bool:
    try:
        return any(value for value in parse_service(unit_texts(root, unit)).get("ExecReload", ()))
    except (StartSetError, UnsupportedUnitError):
        return False


def _has_script(root: ImageRoot, name: str) -> bool:
    text = _text(root, SCRIPTS / name)
    lines = (line for line in _CONTINUED.sub(" ", text).splitlines() if _DAEMON in line)
    return any(
        _BY_EXECUTABLE.search(line) and not _STARTS.search(line) and not line.lstrip().startswith("#")
        for line in lines
    )


def _actions(root: ImageRoot, name: str) -> frozenset[str]:
    """The actions of the init script ``name`` that other files of the image run."""
    found: set[str] = set()
    for pattern in _CALLERS:
        for path in root.glob(PurePosixPath(pattern)):
            text = _CONTINUED.sub(" ", _text(root, path))
            found.update(call[2] for call in _CALL.finditer(text) if call[1] == name)
    return frozenset(found)


def _text(root: ImageRoot, path: PurePosixPath) -> str:
    """The text of a script. The result is empty for a file that is missing, cannot be read, or is too large for a
    script.
    """
    file = root.resolve(path).canonical
    try:
        return root.read_text(file, _MOST_BYTES) if file is not None and root.host(file).is_file() else ""
    except StartSetError:
        return ""
