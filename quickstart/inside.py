"""Look inside an artefact: what its archive holds, and why each file is in it. It reads, and changes nothing."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from quickstart.errors import ArtefactError, BadInputError
from quickstart.image import artefact as artefacts
from quickstart.initramfs.layout import IMAGE, OURS
from quickstart.initramfs.newc_reader import CpioMember, read_archive
from quickstart.initramfs.squashfs import read_image
from quickstart.model import Artefact

_FAST = "fast"
_MAX_LINKS = 40


@dataclass(frozen=True)
class Member:
    """One file of the archive; ``part`` is ``A``, ``B`` or, of what is in an image in B, ``image``.

    ``target`` is a link's, ``device`` a node's major and minor number.
    """

    name: str
    part: str
    mode: int
    size_bytes: int
    target: str
    data: bytes
    uid: int = 0
    gid: int = 0
    device: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Why:
    """Why a file of the image is in the start set (``reasons``), or the rule that keeps it out (``excluded``).

    ``package`` is whose it is, or empty.
    """

    path: PurePosixPath
    reasons: tuple[str, ...]
    excluded: str
    package: str = ""


@dataclass(frozen=True)
class Difference:
    """A name that two archives do not have alike; ``what`` is added, removed or changed, and how."""

    name: str
    what: str


def members(artefact: Artefact) -> tuple[Member, ...]:
    """Every member of the archive in its order; raises ArtefactError for a damaged one."""
    with artefact.initramfs.open("rb") as stream:
        raw = tuple(read_archive(stream))
    # One of a file's names has its content; it stands under every one of them.
    linked = {(each.archive, each.inode): each.data for each in raw if _has_other_names(each) and each.data}
    return tuple(member for each in raw for member in _with_image(_member(each, linked)))


def _with_image(member: Member) -> Iterator[Member]:
    """The member, and the files in it where it is the start set as an image, by their names in the guest."""
    yield member
    if member.name == IMAGE:
        for file in read_image(member.data):
            name, link = f"{_FAST}/{file.name}", stat.S_ISLNK(file.mode)
            target = file.data.decode(errors="surrogateescape") if link else ""
            # Where part A's own files are to be seen.
            if name != OURS:
                yield Member(name, "image", file.mode, len(file.data), target, file.data)


def _has_other_names(raw: CpioMember) -> bool:
    return raw.nlink > 1 and stat.S_ISREG(raw.mode)


def _member(raw: CpioMember, linked: Mapping[tuple[int, int], bytes]) -> Member:
    target = raw.data.decode(errors="surrogateescape") if stat.S_ISLNK(raw.mode) else ""
    device = (raw.rdev_major, raw.rdev_minor)
    data = linked.get((raw.archive, raw.inode), raw.data) if _has_other_names(raw) else raw.data
    return Member(
        raw.name, "B" if raw.archive else "A", raw.mode, len(data), target, data, raw.uid, raw.gid, device
    )


def find(artefact: Artefact, path: str) -> Member:
    """The file that ``path`` names: as in the archive (fast/usr/…), in the guest (/fast/usr/…), or on the root volume (/usr/…).

    Links inside the archive are followed. Raises BadInputError when it has no such file.
    """
    by_name = {each.name: each for each in members(artefact)}
    plain = path.lstrip("/")
    for name in (plain, f"{_FAST}/{plain}"):
        if (found := _follow(by_name, name)) is not None:
            return found
    raise BadInputError(f"{artefact.initramfs} has no file {path}", hint="`quickstart ls` lists what it has")


def _follow(by_name: Mapping[str, Member], name: str, depth: int = 0) -> Member | None:
    """The member behind ``name``, through links in any of its components."""
    if depth > 40:
        raise ArtefactError(f"{name} is a loop of links")
    parts = PurePosixPath(name).parts
    for count in range(1, len(parts) + 1):
        here = by_name.get("/".join(parts[:count]))
        if here is not None and here.target:
            base = "/".join(parts[: count - 1])
            return _follow(by_name, _join(base, here.target, parts[count:]), depth + 1)
    return by_name.get(name)


def _join(base: str, target: str, rest: tuple[str, ...]) -> str:
    place: list[str] = [] if target.startswith("/") else base.split("/") if base else []
    for part in (*target.split("/"), *rest):
        if part == "..":
            del place[-1:]
        elif part not in ("", "."):
            place.append(part)
    return "/".join(place)


def why(directory: Path, path: str, artefact: Artefact | None = None) -> Why:
    """What the start-set.json of an artefact, or of `quickstart trace`, says of a file of the image, in any spelling of its path.

    A name below /fast stands for the file it was packed from; with the ``artefact`` the files of part A are known too. Raises
    BadInputError for a file that the trace never met and no rule named.
    """
    asked = PurePosixPath("/", path.lstrip("/"))
    if artefact is not None and _is_ours(artefact, asked):
        return Why(asked, ("part A: what init needs itself",), "")
    wanted = PurePosixPath("/", *asked.parts[2:]) if asked.parts[1:2] == (_FAST,) else asked
    known = _known(directory)
    if str(wanted) in known:
        return known[str(wanted)]
    canonical = _through_links(directory, wanted)
    if str(canonical) in known:
        return known[str(canonical)]
    raise BadInputError(f"{wanted} was not met: no trace, library, link or rule leads to it")


def _is_ours(artefact: Artefact, asked: PurePosixPath) -> bool:
    """Whether part A itself has such a file; directories are the start set's as well."""
    name = str(asked)[1:]
    return any(
        each.part == "A" and each.name == name and not stat.S_ISDIR(each.mode) for each in members(artefact)
    )


def _through_links(directory: Path, wanted: PurePosixPath) -> PurePosixPath:
    """``wanted`` with the links of the start set followed: /bin/sh is /usr/bin/dash."""
    try:
        links = {
            file["path"]: str(file["target"]) for file in start_set(directory)["files"] if file.get("target")
        }
    except (KeyError, TypeError) as error:
        raise _unreadable(directory, error) from error
    name = str(wanted)[1:]
    for _ in range(_MAX_LINKS):
        parts = PurePosixPath(name).parts
        heads = ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
        link = next((head for head in heads if f"/{head}" in links), None)
        if link is None:
            break
        rest = parts[len(PurePosixPath(link).parts) :]
        name = _join(link.rpartition("/")[0], links[f"/{link}"], rest)
    return PurePosixPath("/", name)


def start_set(directory: Path) -> Mapping[str, Any]:
    """start-set.json in ``directory``; raises BadInputError without one, ArtefactError when it cannot be read."""
    path = directory / artefacts.START_SET
    if not path.exists():
        raise BadInputError(
            f"{directory} has no {artefacts.START_SET}",
            hint="`quickstart build` or `quickstart trace -o` makes one",
        )
    try:
        document: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(directory, error) from error
    return document


def _known(directory: Path) -> Mapping[str, Why]:
    """What start-set.json says, by path."""
    document = start_set(directory)
    try:
        found = {
            each["path"]: Why(PurePosixPath(each["path"]), (), each["rule"]) for each in document["excluded"]
        }
        for file in document["files"]:
            place, reasons = PurePosixPath(file["path"]), tuple(file["reasons"])
            found[file["path"]] = Why(place, reasons, "", file.get("package", ""))
    except (KeyError, TypeError, AttributeError) as error:
        raise _unreadable(directory, error) from error
    return found


def _unreadable(directory: Path, error: Exception) -> ArtefactError:
    return ArtefactError(
        f"{directory / artefacts.START_SET} cannot be read: {error!r}", hint=artefacts.REBUILD
    )


def diff(first: Artefact, second: Artefact) -> tuple[Difference, ...]:
    """What the archive of ``second`` has otherwise than that of ``first``, by name."""
    old, new = _by_place(members(first)), _by_place(members(second))
    found = []
    for key in sorted(old.keys() | new.keys(), key=lambda pair: pair[1]):
        if key not in new:
            found.append(Difference(key[1], "removed"))
        elif key not in old:
            found.append(Difference(key[1], "added"))
        elif how := _changes(old[key], new[key]):
            found.append(Difference(key[1], f"changed: {how}"))
    return tuple(found)


def _by_place(found: Iterable[Member]) -> Mapping[tuple[bool, str], Member]:
    # In the guest what is in an image lies where part B's files do.
    return {(each.part == "A", each.name): each for each in found}


def _changes(old: Member, new: Member) -> str:
    changes = []
    if old.mode != new.mode:
        changes.append(f"mode {old.mode:o} → {new.mode:o}")
    if old.size_bytes != new.size_bytes:
        changes.append(f"size {old.size_bytes} → {new.size_bytes}")
    elif hashlib.sha256(old.data).digest() != hashlib.sha256(new.data).digest():
        changes.append(f"target {old.target} → {new.target}" if old.target else "content")
    return ", ".join(changes)
