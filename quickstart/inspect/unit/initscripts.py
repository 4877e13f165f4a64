"""Build the unit that systemd makes from an init script at each boot, for a service without a unit file
(systemd-sysv-generator(8); LSB core, "Comment Conventions for Init Scripts").

The code follows the generator of systemd 252. The place of a script without an LSB header in the order of the boot
depends on the numbers in the names of all links to such scripts. So this module refuses a script without an LSB header.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot

SCRIPTS = PurePosixPath("/etc/init.d")
_SUFFIX = ".service"
# The directories of links that pull a script into a boot, and the target that each stands for.
_RUN_LEVELS = {
    "rc2.d": "multi-user.target",
    "rc3.d": "multi-user.target",
    "rc4.d": "multi-user.target",
    "rc5.d": "graphical.target",
}
_NETWORK, _ONLINE = "network.target", "network-online.target"
_LINK = re.compile(r"S[0-9]{2}(.+)")
_DESCRIPTION_CHARACTERS = 4096
_BEGIN, _END = "### BEGIN INIT INFO", "### END INIT INFO"
_FIELD = re.compile(
    r"(Provides|Required-Start|Should-Start|X-Start-Before|X-Start-After|Short-Description|Description):(.*)",
    re.IGNORECASE,
)
_AFTER = ("required-start", "should-start", "x-start-after")
_NAMES = ("provides", *_AFTER, "x-start-before")
_PID_FILE = re.compile(r"pidfile:\s*(.*)", re.IGNORECASE)
# LSB core, "Facility Names". With None, the unit comes after the facility anyway.
_FACILITIES: Mapping[str, str | None] = {
    "local_fs": None,
    "network": _ONLINE,
    "named": "nss-lookup.target",
    "portmap": "rpcbind.target",
    "remote_fs": "remote-fs.target",
    "syslog": None,
    "time": "time-sync.target",
}
# systemd would escape other characters (unit_name_mangle).
_PLAIN = re.compile(r"[A-Za-z0-9:_.-]+")


@dataclass(frozen=True, kw_only=True)
class InitScript:
    """The content of a script's LSB header. ``after``, ``before``, ``wants`` and ``aliases`` are names of
    units.

    ``pid_file`` is the PID file that a comment of the script names, or an empty string.
    """

    path: PurePosixPath
    description: str
    pid_file: str
    after: tuple[str, ...]
    before: tuple[str, ...]
    wants: tuple[str, ...]
    aliases: tuple[str, ...]


def script_of(root: ImageRoot, unit: str) -> PurePosixPath | None:
    """The init script from which systemd-sysv-generator(8) makes ``unit`` when there is no unit file. The result is
    None when there is no such script, or when it is not executable.
    """
    name = unit.removesuffix(_SUFFIX)
    if name == unit or not _PLAIN.fullmatch(name):
        return None
    found = root.resolve(SCRIPTS / name).canonical
    if found is None or not root.host(found).is_file() or not root.host(found).stat().st_mode & 0o100:
        return None
    return SCRIPTS / name


def read_script(root: ImageRoot, unit: str) -> InitScript:
    """Read the init script of ``unit``.

    Raises UnsupportedUnitError for a script without an LSB header, and for a name in the header that systemd
    would escape.
    """
    path = SCRIPTS / unit.removesuffix(_SUFFIX)
    canonical = root.resolve(path).canonical
    text = root.read_text(canonical) if canonical is not None else ""
    fields, pid_file = _header(text)
    if fields is None:
        raise UnsupportedUnitError(
            f"{unit} is the script {path} without an LSB header, and systemd makes a unit of it by the numbers of all such scripts",
            hint="put a unit file into a root of yours (--rootfs)",
        )
    words = [(name, word) for name, value in fields for word in value.split()]
    if odd := sorted(
        {word for name, word in words if name in _NAMES and not _PLAIN.fullmatch(word.removeprefix("$"))}
    ):
        raise UnsupportedUnitError(
            f"{unit} is the script {path}, whose header names {', '.join(map(repr, odd))}, which is no plain name",
            hint="mend the header of the script, or put a unit file into a root of yours (--rootfs)",
        )
    provided = [each for name, word in words if name == "provides" and (each := _unit(word, path.name))]
    targets = tuple(each for each in provided if each.endswith(".target"))
    needed = [each for name, word in words if name in _AFTER and (each := _unit(word, path.name))]
    follows = [each for name, word in words if name == "x-start-before" and (each := _unit(word, path.name))]
    # A script that provides the network online also provides the network.
    targets += (_NETWORK,) if _ONLINE in targets else ()
    return InitScript(
        path=path,
        description=_last(fields, "short-description") or _last(fields, "description"),
        pid_file=pid_file,
        after=_unique(needed),
        before=_unique((*targets, *follows, *_targets(root, path.name))),
        wants=_unique((*targets, *(each for each in needed if each == _ONLINE))),
        aliases=_unique(each for each in provided if each.endswith(_SUFFIX)),
    )


def _last(fields: Sequence[tuple[str, str]], wanted: str) -> str:
    return next((value.strip() for name, value in reversed(fields) if name == wanted), "")


def generated_text(script: InitScript) -> str:
    """The text of the unit file that systemd-sysv-generator(8) writes for ``script``."""
    lines = [
        "# Automatically generated by systemd-sysv-generator",
        "",
        "[Unit]",
        "Documentation=man:systemd-sysv-generator(8)",
        f"SourcePath={script.path}",
        *((f"Description=LSB: {script.description}",) if script.description else ()),
        *(f"Before={each}" for each in script.before),
        *(f"After={each}" for each in script.after),
        *(f"Wants={each}" for each in script.wants),
        "",
        "[Service]",
        "Type=forking",
        "Restart=no",
        "TimeoutSec=5min",
        "IgnoreSIGPIPE=no",
        "KillMode=process",
        "GuessMainPID=no",
        f"RemainAfterExit={'no' if script.pid_file else 'yes'}",
        *((f"PIDFile={script.pid_file}",) if script.pid_file else ()),
        "SuccessExitStatus=5 6",
        f"ExecStart={script.path} start",
        f"ExecStop={script.path} stop",
    ]
    return "".join(f"{line}\n" for line in lines)


def start_links(root: ImageRoot, name: str) -> tuple[PurePosixPath, ...]:
    """The links that start the script ``name`` at boot, such as /etc/rc2.d/S01slapd."""
    return tuple(place / each for place, each in _links(root) if each[3:] == name)


def started_scripts(root: ImageRoot) -> frozenset[str]:
    """The names of all init scripts that links start at boot, spelled as in the links. The result does not have a
    script that is missing or not executable, because a boot runs such a script only after somebody has installed it or
    made it executable.
    """
    return frozenset(name[3:] for _, name in _links(root) if _is_executable(root, SCRIPTS / name[3:]))


def _is_executable(root: ImageRoot, script: PurePosixPath) -> bool:
    """Whether ``script`` is a file that somebody may execute. Init makes the same check with test(1)."""
    found = root.resolve(script).canonical
    return found is not None and root.host(found).is_file() and bool(root.host(found).stat().st_mode & 0o111)


def _links(root: ImageRoot) -> Iterator[tuple[PurePosixPath, str]]:
    for level in _RUN_LEVELS:
        place = root.resolve(PurePosixPath("/etc") / level).canonical
        if place is not None and root.host(place).is_dir():
            yield from ((place, name) for name in sorted(root.names(place)) if _LINK.fullmatch(name))


def _targets(root: ImageRoot, name: str) -> Iterator[str]:
    for place in start_links(root, name):
        yield _RUN_LEVELS[place.parent.name]


def _header(text: str) -> tuple[list[tuple[str, str]] | None, str]:
    """The LSB header of the script ``text``, as (fields, PID file). The fields are in the order of the header, and
    their names are in lower case. The fields are None when there is no header. The PID file is the file that a comment
    names as PID file, or an empty string.
    """
    fields: list[tuple[str, str]] | None = None
    is_inside, pid_file = False, ""
    for line in text.split("\n"):
        stripped = line.strip()
        if not stripped.startswith("#"):
            continue
        comment = stripped[1:].lstrip()
        if not is_inside and stripped == _BEGIN:
            is_inside = True
            fields = fields or []
        elif is_inside and stripped == _END:
            is_inside = False
        elif is_inside and fields is not None and (field := _FIELD.match(comment)):
            fields.append((field[1].lower(), field[2]))
        elif is_inside and fields and fields[-1][0] == "description" and line.startswith(("#\t", "#  ")):
            # Each line is appended to the lines before it. systemd would not read more than the longest line of a
            # unit.
            if len(fields[-1][1]) <= _DESCRIPTION_CHARACTERS:
                fields[-1] = ("description", f"{fields[-1][1]} {comment.strip()}")
        elif not is_inside and (found := _PID_FILE.match(comment)) and found[1].startswith("/"):
            pid_file = found[1].strip()
    return fields, pid_file


def _unit(word: str, script: str) -> str:
    """The unit that the facility ``word`` stands for in the header of ``script``. The result is empty when the facility
    stands for no unit.
    """
    name = word.removeprefix("$")
    if name in _FACILITIES:
        return _FACILITIES[name] or ""
    if word.startswith("$"):
        return f"{name}.target"
    if name == script.removesuffix(".sh"):
        return ""
    return f"{name.removesuffix('.sh')}{_SUFFIX}"


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
