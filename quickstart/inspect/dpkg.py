"""Find the Debian package that owns a file of the image, in dpkg's database in /var/lib/dpkg (dpkg(1),
deb-version(7)).

dpkg knows a file only by the path in its package. With a merged /usr, /bin/ls and /usr/bin/ls are the same file, and a
package's list may have either path. So this module follows the links in the directories of the listed paths, inside the
image. The module does not follow links in the paths of a diversion (dpkg-divert(1)), because dpkg also compares these
paths as they are written. In an image without dpkg, or with a damaged database file, files have no owner.
"""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from quickstart.errors import StartSetError
from quickstart.inspect.imageroot import MAX_TEXT_BYTES, ImageRoot

_DATABASE = PurePosixPath("/var/lib/dpkg")
_ALTERNATIVES = PurePosixPath("/etc/alternatives")
_FIELD = re.compile(rb"^(Package|Status|Version|Architecture):(.*)$", re.MULTILINE)
# Package names, versions and architectures (deb-control(5), deb-version(7)); anything else is damage.
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+:~-]*")

# The limit for all lists of packages, because many names may be links to one long file. A desktop has 30 MiB. Beyond
# the limit, files have no owner.
_MOST_LISTED_BYTES = 128 << 20
_MOST_ALTERNATIVES_BYTES = 16 << 20

Canonical = Callable[[str], PurePosixPath | None]


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The package that owns a file. For a link of update-alternatives(1), ``alternative`` is the alternative's name,
    and ``file`` is the file to which the alternative leads at present. In this case, ``package`` is the package that
    has ``file``, or empty when no package has it.
    """

    package: str
    version: str
    architecture: str
    alternative: str = ""
    file: PurePosixPath | None = None

    def __str__(self) -> str:
        of = f"{self.package} {self.version}" if self.package else ""
        return f"alternative {self.alternative} of {of or 'no package'}'s {self.file}" if self.file else of


def owners(root: ImageRoot, paths: Iterable[PurePosixPath]) -> Mapping[PurePosixPath, Owner]:
    """The owners of the canonical guest paths ``paths``. A path without an owner is missing from the result.
    When several packages share a file, its owner is the package whose name sorts first.
    """
    canonical: Canonical = functools.partial(_canonical, functools.cache(functools.partial(_directory, root)))
    wanted = set(paths)
    chosen = _alternatives(root, wanted, canonical)
    packages = _packages(root, wanted | {file for _, file in chosen.values()}, canonical)
    found = {path: packages[path] for path in wanted if path in packages}
    for path, (name, file) in chosen.items():
        owner = packages.get(file, Owner(package="", version="", architecture=""))
        found.setdefault(path, replace(owner, alternative=name, file=file))
    return found


def installed(root: ImageRoot) -> Mapping[str, str]:
    """The version of each package of the image, by the package's name. Without dpkg, the result is empty."""
    return {each.package: each.version for _, each in sorted(_status(root).items())}


def _directory(root: ImageRoot, spelled: str) -> PurePosixPath | None:
    try:
        return root.resolve(PurePosixPath(spelled)).canonical
    except StartSetError:
        return None


def _canonical(directory: Canonical, spelled: str) -> PurePosixPath | None:
    """The path ``spelled`` with the links in its directory resolved. If the last component is a link, the function does
    not follow this link, because a package can own a link.
    """
    head, _, name = spelled.rpartition("/")
    if not spelled.startswith("/") or name in ("", ".", ".."):
        return None
    parent = directory(head or "/")
    return parent / name if parent is not None else None


def _packages(
    root: ImageRoot, wanted: set[PurePosixPath], canonical: Canonical
) -> Mapping[PurePosixPath, Owner]:
    known = _status(root)
    diversions = _diversions(root)
    names = {_encode(path.name) for path in wanted}
    found: dict[PurePosixPath, Owner] = {}
    left_bytes = _MOST_LISTED_BYTES
    for list_name in _names(root, _DATABASE / "info") if known and diversions is not None else ():
        owner = known.get(list_name.removesuffix(".list")) if list_name.endswith(".list") else None
        lines = _lines(root, _DATABASE / "info" / list_name) if owner else ()
        left_bytes -= sum(map(len, lines)) + len(lines)
        if left_bytes < 0:
            break
        in_order = sorted(lines)
        for line in lines:
            diverted = (diversions or {}).get(line)
            if diverted is not None and diverted[1] != _encode(owner.package if owner else ""):
                line = diverted[0]
            # Few of a hundred thousand lines have one of the wanted names, and only these lines are resolved.
            if line[line.rfind(b"/") + 1 :] in names and owner:
                path = canonical(_decode(line))
                # The directory of a package may be a link in the image, as /lib is.
                if path in wanted and path not in found and not _has_below(in_order, line):
                    found.setdefault(path, owner)
    return found


def _has_below(in_order: Sequence[bytes], line: bytes) -> bool:
    """Whether one of the sorted paths ``in_order`` lies below the directory ``line``, at any depth."""
    at = bisect.bisect_left(in_order, line + b"/")
    return at < len(in_order) and in_order[at].startswith(line + b"/")


def _status(root: ImageRoot) -> Mapping[str, Owner]:
    """The packages in dpkg's status file. The result has each package under two keys, NAME and NAME:ARCHITECTURE. dpkg
    names the package's list file after one of these two keys.
    """
    content = _read(root, _DATABASE / "status") or b""
    stanzas = content.split(b"\n\n")
    if not content.endswith(b"\n"):
        del stanzas[-1:]
    found: dict[str, Owner] = {}
    for stanza in stanzas:
        if b"Package:" not in stanza:
            continue
        fields = {key: _decode(value.strip(b" \t")) for key, value in _FIELD.findall(stanza)}
        name, version, architecture = (
            fields.get(key, "") for key in (b"Package", b"Version", b"Architecture")
        )
        whole = all(_WORD.fullmatch(word) for word in (name, version, architecture))
        if whole and not fields.get(b"Status", "").endswith("not-installed"):
            owner = Owner(package=name, version=version, architecture=architecture)
            found.setdefault(name, owner)
            found[f"{name}:{architecture}"] = owner
    return found


def _diversions(root: ImageRoot) -> Mapping[bytes, tuple[bytes, bytes]] | None:
    """The diversions (dpkg-divert(1)). The key is the diverted path. The value is the new path and the package that
    diverts the path. The result is None when the file of diversions cannot be read or is damaged.

    The file has three lines for each diversion: the diverted path, the new path, and the package that diverts the
    path. The file of the package that diverts the path stays at the diverted path. For the administrator's own
    diversion, the third line is ``:``.
    """
    content = _read(root, _DATABASE / "diversions")
    lines = (content or b"").split(b"\n")
    if content is None or lines.pop() or len(lines) % 3:
        return None
    return {lines[at]: (lines[at + 1], lines[at + 2]) for at in range(0, len(lines), 3)}


def _alternatives(
    root: ImageRoot, wanted: Iterable[PurePosixPath], canonical: Canonical
) -> Mapping[PurePosixPath, tuple[str, PurePosixPath]]:
    """The alternatives of update-alternatives(1) whose links are in ``wanted``. The key is the path of the link. The
    value is the alternative's name and present target.
    """
    known = set(_alternative_names(root))
    found: dict[PurePosixPath, tuple[str, PurePosixPath]] = {}
    for path in wanted if known else ():
        at = path if path.parent == _ALTERNATIVES else PurePosixPath(root.link_target(path) or "/")
        if at.parent == _ALTERNATIVES and at.name in known:
            file = canonical(root.link_target(at) or "")
            if file is not None:
                found[path] = at.name, file
    return found


def _alternative_names(root: ImageRoot) -> Iterator[str]:
    """The names of all alternatives, both masters and slaves, from update-alternatives' files.

    Such a file has one line with the state, one line with the master's link, two lines for each slave, an empty line,
    and then the choices.
    """
    directory = _DATABASE / "alternatives"
    left_bytes = _MOST_ALTERNATIVES_BYTES
    for name in _names(root, directory):
        lines = _lines(root, directory / name)
        left_bytes -= sum(map(len, lines)) + len(lines)
        if left_bytes < 0:
            return
        if len(lines) > 2 and b"" in lines[2:]:
            yield name
            yield from (_decode(line) for line in lines[2 : lines.index(b"", 2) : 2])


def _names(root: ImageRoot, directory: PurePosixPath) -> list[str]:
    try:
        found = root.resolve(directory).canonical
        return root.names(found) if found is not None else []
    except StartSetError:
        return []


def _lines(root: ImageRoot, path: PurePosixPath) -> Sequence[bytes]:
    """The lines of a file. The result is empty when the file does not end with a newline, because such a file was cut
    off.
    """
    content = _read(root, path) or b""
    return content.split(b"\n")[:-1] if content.endswith(b"\n") else ()


def _read(root: ImageRoot, path: PurePosixPath) -> bytes | None:
    """The content of the file at ``path``. The result is empty when the file does not exist, and None when the file
    cannot be read.
    """
    try:
        found = root.resolve(path).canonical
        return b"" if found is None else root.read_bytes(found, MAX_TEXT_BYTES)
    except StartSetError:
        return None


def _encode(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _decode(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
