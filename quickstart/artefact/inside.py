"""Read what is inside an artefact: the members of its initramfs, and the reasons why each file is packed. In this
module, "the archive" means the initramfs.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from quickstart.artefact.manifest import StartSetFacts, read_manifest, read_start_set
from quickstart.errors import ArtefactError, BadInputError
from quickstart.host.beneath import opened_regular
from quickstart.initramfs.layout import IMAGE, MARKER, OURS
from quickstart.initramfs.newc import PATH_MAX
from quickstart.initramfs.newc_reader import CpioMember, Limits, walk_archive
from quickstart.initramfs.squashfs_reader import walk_image
from quickstart.model import Artefact
from quickstart.parse.bounded import joined
from quickstart.parse.printable import brief, command

_FAST = "fast"
_MAX_LINKS = 40
# The members of part B when the start set is an image in it (layout.image_part_b). Init mounts this image
# (initramfs/init/first).
_IMAGES = f"{MARKER}."
_BESIDE_IMAGE = frozenset({_FAST, OURS, IMAGE, MARKER})
# The content of these files is kept in memory, up to this size, because they describe the other files.
_HELD = frozenset({f"{OURS}/config", f"{OURS}/digests", MARKER})
_HELD_BYTES = 8 << 20
# How many bytes are searched at once, and how many of these are searched again with the next bytes. The
# overlap is longer than anything that is searched for.
_LOOK_BYTES = 1 << 18
_OVERLAP_BYTES = 4096


@dataclass(frozen=True)
class Sought:
    """A pattern to search for in the contents of the initramfs's members. When the content of a member matches
    ``pattern``, ``name`` is in the member's attribute ``found``. The search may miss a match that is longer than 4 KiB.

    ``literal`` is a byte string that every match contains. A search for ``pattern`` takes a hundred times as long as a
    search for ``literal``. So the search looks for ``pattern`` only in content that contains ``literal``.
    """

    name: str
    literal: bytes
    pattern: re.Pattern[bytes]


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One file in the archive, that is, in the initramfs. ``part`` is ``A`` or ``B`` for a file in part A or B of the
    initramfs. ``part`` is ``image`` for a file in the squashfs image that part B may contain.

    ``target`` is the target of a link, and ``device`` has the major and minor number of a device node. ``crc`` is
    the CRC-32 of the content (the CRC-32 of zlib), and ``found`` has the names of the patterns that match the content.

    ``data`` has the content of only three files: init's configuration, the list of digests, and the last file of
    part B, which names the build. The function `content` reads the content of any other file.

    ``place`` has two numbers, which identify the member. For a file in the squashfs image, the two numbers are the
    image's number in the archive and the file's number in the image. For any other member, the two numbers are the
    member's number in the archive and 0.
    """

    name: str
    part: str
    mode: int
    size_bytes: int
    target: str
    data: bytes
    uid: int = 0
    gid: int = 0
    mtime_s: int = 0
    device: tuple[int, int] = (0, 0)
    sha256: bytes = b""
    crc: int = 0
    found: frozenset[str] = frozenset()
    place: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class _Met:
    """A member of the initramfs and its content. The content can be read only until the caller asks for the next
    member. ``key`` has the same value for all hard links of a file, and is None for a file with a single name.

    The squashfs image may store equal content of several files once. ``same`` has the same value for all these files,
    and is empty for members outside the image.
    """

    member: Member
    pieces: Iterator[bytes]
    key: tuple[int, int] | None = None
    same: tuple[int, ...] = ()


@dataclass(frozen=True)
class Why:
    """The reasons why a file of the reference image is in the start set, or the rule that excludes the file
    (``excluded``).

    ``package`` is the Debian package that owns the file. ``package`` is empty when no package owns the file.
    """

    path: PurePosixPath
    reasons: tuple[str, ...]
    excluded: str
    package: str = ""


def members(artefact: Artefact, sought: Sequence[Sought] = ()) -> tuple[Member, ...]:
    """All members of the artefact's initramfs, in the order in which the initramfs stores them. Each member has the
    names of the ``sought`` patterns that its content matches.

    The initramfs is read in pieces, and only up to the unpacked size in the manifest. Raises ArtefactError when the
    initramfs is damaged or exceeds the unpacked size in the manifest.
    """
    found: list[tuple[Member, tuple[int, int] | None]] = []
    held: set[tuple[str, str]] = set()
    looked_at: dict[tuple[int, ...], Member] = {}
    for met in _walk(artefact):
        kept = (met.member.part, met.member.name)
        hold = met.member.name in _HELD and kept not in held and met.member.size_bytes <= _HELD_BYTES
        held |= {kept} if hold else set()
        # An image of some KiB may have GiB of files with one content.
        like = looked_at.get(met.same) if met.same else None
        member = _looked_at(met, sought, hold) if like is None else _with_digests(met.member, like)
        looked_at[met.same] = member
        found.append((member, met.key))
    # One name of a file has the file's content. The result has the content under every name.
    linked = {key: member for member, key in found if key is not None and member.size_bytes}
    return tuple(_with_content(member, linked[key]) if key in linked else member for member, key in found)


def _walk(artefact: Artefact) -> Iterator[_Met]:
    """All members of the artefact's initramfs. When part B of the initramfs contains a squashfs image with the packed
    files, the image is a member, and the files in the image follow as further members. These files have the names that
    they have in the guest.

    Raises ArtefactError when part B contains further files in addition to the image, because the mounted image would
    hide these files.
    """
    hidden, has_image = "", False
    limits = Limits(unpacked_bytes=read_manifest(artefact.directory).unpacked_bytes)
    with ExitStack() as stack:
        fd = stack.enter_context(opened_regular(artefact.initramfs))
        stream = stack.enter_context(os.fdopen(os.dup(fd), "rb"))
        for number, (raw, pieces) in enumerate(walk_archive(stream, limits, exact=True)):
            key = (raw.archive, raw.inode) if raw.nlink > 1 and stat.S_ISREG(raw.mode) else None
            yield _Met(_member(raw, pieces, number), pieces, key)
            if raw.name.startswith(_IMAGES):
                yield from _in_image(fd, raw, number)
                has_image = True
            elif raw.archive and raw.name not in _BESIDE_IMAGE:
                hidden = raw.name
    if has_image and hidden:
        raise _misplaced(hidden, "is hidden by the image of part B")


def _misplaced(name: str, what: str) -> ArtefactError:
    said = f"the initramfs has /{brief(name)}, which {what}; no build makes it so"
    return ArtefactError(said, hint="build the artefact again")


def _in_image(fd: int, raw: CpioMember, number: int) -> Iterator[_Met]:
    if raw.name != IMAGE or not stat.S_ISREG(raw.mode) or raw.nlink > 1 or not raw.archive:
        raise _misplaced(raw.name, "is no image of part B")
    if raw.in_stream:
        raise _misplaced(raw.name, "is in a compressed stream")
    reader = functools.partial(_read_at, fd, raw.offset)
    for place, (file, pieces) in enumerate(walk_image(reader, raw.size), 1):
        name = f"{_FAST}/{file.name}"
        if name.startswith(f"{OURS}/"):
            raise _misplaced(name, "is hidden by part A")
        # Where part A's own files are to be seen.
        if name != OURS:
            member = Member(
                name=name,
                part="image",
                mode=file.mode,
                size_bytes=file.size_bytes,
                target=file.target,
                data=b"",
                mtime_s=file.mtime_s,
                place=(number, place),
            )
            yield _Met(member, pieces, same=(number, *file.place) if file.place else ())


def _read_at(fd: int, begin: int, at: int, count: int) -> bytes:
    return os.pread(fd, count, begin + at)


def _member(raw: CpioMember, pieces: Iterator[bytes], number: int) -> Member:
    target = b"".join(pieces).decode(errors="surrogateescape") if stat.S_ISLNK(raw.mode) else ""
    if "\0" in target:
        raise ArtefactError(
            f"the initramfs has the link {brief(raw.name)} to a name with a NUL, where the kernel stops",
            hint="build the artefact again",
        )
    return Member(
        name=raw.name,
        part="B" if raw.archive else "A",
        mode=raw.mode,
        size_bytes=raw.size,
        target=target,
        data=b"",
        uid=raw.uid,
        gid=raw.gid,
        mtime_s=raw.mtime,
        device=(raw.rdev_major, raw.rdev_minor),
        place=(number, 0),
    )


def _looked_at(met: _Met, sought: Sequence[Sought], hold: bool) -> Member:
    if not stat.S_ISREG(met.member.mode):
        return met.member
    digest, crc, found = hashlib.sha256(), 0, set[str]()
    kept: list[bytes] = []
    text, begin = b"", 0
    for piece in joined(met.pieces, _LOOK_BYTES):
        digest.update(piece)
        crc = zlib.crc32(piece, crc)
        kept += [piece] if hold else []
        text += piece
        found |= {each.name for each in sought if each.literal in text and each.pattern.search(text, begin)}
        # A byte more: what stands before a line's beginning is to be seen.
        text, begin = text[-_OVERLAP_BYTES - 1 :], min(len(text), 1)
    return dataclasses.replace(
        met.member, data=b"".join(kept), sha256=digest.digest(), crc=crc, found=frozenset(found)
    )


def _with_digests(member: Member, like: Member) -> Member:
    return dataclasses.replace(member, sha256=like.sha256, crc=like.crc, found=like.found)


def _with_content(member: Member, other: Member) -> Member:
    return dataclasses.replace(
        other, name=member.name, mode=member.mode, uid=member.uid, gid=member.gid, part=member.part
    )


def content(artefact: Artefact, member: Member) -> Iterator[bytes]:
    """The content of a regular file in the archive, in pieces of at most 1 MiB. Raises ArtefactError when the archive
    is damaged or exceeds the unpacked size in the manifest.
    """
    for met in _walk(artefact):
        if met.member.place == member.place:
            yield from met.pieces
            return


def find(artefact: Artefact, path: str) -> Member:
    """The member of the archive at ``path``. The path may have the form of the archive (fast/usr/…), of the guest
    (/fast/usr/…) or of the root volume (/usr/…).

    Links inside the archive are followed. Raises BadInputError when the archive does not have the file, or has
    only a link to the root volume's file.
    """
    by_name = {each.name: each for each in members(artefact)}
    plain = path.lstrip("/")
    for name in (plain, f"{_FAST}/{plain}"):
        if (found := _follow(by_name, name)) is None:
            continue
        if not _stays(found):
            return found
        raise BadInputError(
            f"{brief(found.target)} stays on the root volume: {artefact.initramfs} has only a link to it",
            hint=_printing(found.target),
        )
    raise BadInputError(
        f"{artefact.initramfs} has no file {brief(path)}", hint="`quickstart ls` lists what it has"
    )


def _printing(path: str) -> str | None:
    """A hint for the user with the command that prints the file ``path`` of the root volume. Somebody else may have
    chosen the path. So the result is None if the path has characters that a user should not paste into a shell.
    """
    inside = command("cat", path)
    whole = command("quickstart", "run", "OUT", "--snapshot", "--exec", inside) if inside else None
    return f"`{whole}` prints it" if whole else None


def _stays(member: Member) -> bool:
    """Whether ``member`` is a link to the file of the same path on the root volume. Such a link stands for a left file,
    which is a file of the start set that is not packed (docs/adr/0017-left.md).
    """
    return f"{_FAST}{member.target}" == member.name


def _follow(by_name: Mapping[str, Member], name: str, depth: int = 0) -> Member | None:
    """The member that ``name`` leads to. Links in all components of ``name`` are followed. There is one exception: a
    link to the root volume's file of the same path is itself the result. The result is None when ``name`` leads to no
    member. Raises ArtefactError for a loop of links.
    """
    if depth > _MAX_LINKS:
        raise ArtefactError(f"{brief(name)} is a loop of links")
    if len(name) > PATH_MAX:
        return None
    parts = PurePosixPath(name).parts
    for count in range(1, len(parts) + 1):
        here = by_name.get("/".join(parts[:count]))
        if here is not None and here.target:
            if _stays(here):
                return here
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
    """The reasons that start-set.json gives for packing or excluding a file of the reference image. ``directory`` is an
    artefact, or a directory that `quickstart trace` wrote.

    A path below /fast means the file that was packed at this path. If ``artefact`` is given, ``path`` may also be a
    file of part A of the initramfs. Raises BadInputError for a file that start-set.json does not have.
    """
    asked = PurePosixPath("/", path.lstrip("/"))
    if artefact is not None and _is_ours(artefact, asked):
        return Why(asked, ("part A: what init needs itself",), "")
    wanted = PurePosixPath("/", *asked.parts[2:]) if asked.parts[1:2] == (_FAST,) else asked
    document = read_start_set(directory)
    if found := _said(document, wanted) or _said(document, _through_links(document, wanted)):
        return found
    raise BadInputError(f"{wanted} was not met: no trace, library, link or rule leads to it")


def _is_ours(artefact: Artefact, asked: PurePosixPath) -> bool:
    """Whether part A of the initramfs has a file at the path ``asked``. The result is False for a directory, because
    the start set may also have a directory at this path.
    """
    name = str(asked)[1:]
    return any(
        each.part == "A" and each.name == name and not stat.S_ISDIR(each.mode) for each in members(artefact)
    )


def _through_links(document: StartSetFacts, wanted: PurePosixPath) -> PurePosixPath:
    """The path that ``wanted`` leads to through links of the start set. For example, /bin/sh becomes /usr/bin/dash."""
    links = {file.path: file.target for file in document.files if file.target}
    name = str(wanted)[1:]
    for _ in range(_MAX_LINKS):
        parts = PurePosixPath(name).parts
        heads = ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
        link = next((head for head in heads if f"/{head}" in links), None)
        if link is None or len(name) > PATH_MAX:
            break
        rest = parts[len(PurePosixPath(link).parts) :]
        name = _join(link.rpartition("/")[0], links[f"/{link}"], rest)
    return PurePosixPath("/", name)


def _said(document: StartSetFacts, path: PurePosixPath) -> Why | None:
    """The reasons that start-set.json gives for packing or excluding ``path``. The result is None if start-set.json
    does not have ``path``.

    This function makes no table of all paths, because an untrusted start-set.json may have 200 000 paths.
    """
    name = str(path)
    for file in reversed(document.files):
        if file.path == name:
            return Why(path, file.reasons, "", file.package)
    return next((Why(path, (), each.rule) for each in reversed(document.excluded) if each.path == name), None)
