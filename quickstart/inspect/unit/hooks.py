"""The scripts that ifupdown runs while it brings the network up (interfaces(5)).

In a stock boot, they run before an application that comes after the network. Init brings the network up without
them. Most only set up the interface; one that loads a packet filter has to come before the application.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.dpkg import owners
from quickstart.inspect.imageroot import ImageRoot
from quickstart.parse.printable import brief

# ifup(8): each executable of these directories runs for each interface.
HOOKS = (PurePosixPath("/etc/network/if-pre-up.d"), PurePosixPath("/etc/network/if-up.d"))
_INTERFACES = PurePosixPath("/etc/network/interfaces")
_MORE_INTERFACES = PurePosixPath("/etc/network/interfaces.d")
_FILTER = re.compile(
    r"\b(?:ip6?tables|nft|ebtables|arptables|ipset|iptables-restore|ip6tables-restore|netfilter-persistent|ferm|shorewall|ufw|firehol)\b"
)
# Of scripts and files of interfaces together; Debian's have a few KiB.
_MOST_FILES = 4096
_MOST_BYTES = 1 << 20
_OPTION = re.compile(r"\s*(?:pre-up|up|post-up)\s+(.*)")
# What these do to an interface, init's own network does not need.
_HARMLESS = frozenset(
    (
        "ip",
        "ifconfig",
        "route",
        "ethtool",
        "brctl",
        "bridge",
        "iw",
        "iwconfig",
        "vconfig",
        "tc",
        "sleep",
        "true",
        "echo",
        ":",
        "[",
        "test",
    )
)
_SEPARATORS = re.compile(r"\|\||&&|[;|&]")
_EXPANDING = re.compile(r"[`$(){}<>]")


def refuse_hooks(root: ImageRoot, unit: str) -> None:
    """Raise UnsupportedUnitError for a script or command of ifupdown that loads a packet filter, or that may: a
    script that no package has, or a command that is not known.
    """
    scripts, interfaces = tuple(dict.fromkeys(_scripts(root))), tuple(dict.fromkeys(_interfaces(root)))
    _refuse_long(root, unit, (*scripts, *interfaces))
    packaged = owners(root, scripts)
    for script in scripts:
        if script not in packaged or _FILTER.search(root.read_text(script)):
            raise _refusal(unit, f"{script} runs before it, and may set up a packet filter")
    for file in interfaces:
        for line in root.read_text(file).replace("\\\n", " ").splitlines():
            option = _OPTION.fullmatch(line)
            if option and not _is_harmless(option[1]):
                raise _refusal(unit, f"{file} has `{brief(line.strip())}`, which may set up a packet filter")


def _refuse_long(root: ImageRoot, unit: str, files: Collection[PurePosixPath]) -> None:
    """Raise UnsupportedUnitError when there are more ``files``, or more text in them, than ifupdown has."""
    if len(files) > _MOST_FILES:
        raise _refusal(unit, f"ifupdown has more than {_MOST_FILES} scripts and files of interfaces")
    left = _MOST_BYTES
    for file in files:
        left -= root.host(file).stat().st_size
        if left < 0:
            raise _refusal(unit, f"{file} is too long to be looked through for a packet filter")


def _refusal(unit: str, why: str) -> UnsupportedUnitError:
    return UnsupportedUnitError(
        f"{unit} cannot be started early: {why}",
        hint="remove it from the image, and filter outside of the machine",
    )


def _scripts(root: ImageRoot) -> Iterator[PurePosixPath]:
    for hooks in HOOKS:
        place = root.resolve(hooks).canonical
        for name in sorted(root.names(place)) if place is not None and root.host(place).is_dir() else ():
            script = root.resolve(place / name).canonical if place is not None else None
            if (
                script is not None
                and root.host(script).is_file()
                and root.host(script).stat().st_mode & 0o111
            ):
                yield script


def _interfaces(root: ImageRoot) -> Iterator[PurePosixPath]:
    more = root.resolve(_MORE_INTERFACES).canonical
    names = sorted(root.names(more)) if more is not None and root.host(more).is_dir() else ()
    for path in (_INTERFACES, *(_MORE_INTERFACES / name for name in names)):
        file = root.resolve(path).canonical
        if file is not None and root.host(file).is_file():
            yield file


def _is_harmless(command: str) -> bool:
    if _FILTER.search(command) or _EXPANDING.search(command):
        return False
    return all(
        PurePosixPath(words[0]).name in _HARMLESS
        for each in _SEPARATORS.split(command)
        if (words := each.split(maxsplit=1))
    )
