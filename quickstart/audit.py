"""Look at an artefact as somebody who is given it would: secrets, modes, strangers, and whether its parts agree.

`gather` reads OUT, `judge` is pure. What is packed is in the clear and readable by whoever may read the archive, whatever a
file's own mode says; so modes inside count only for the running guest.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from quickstart import inside
from quickstart.errors import ArtefactError
from quickstart.image.artefact import read_manifest
from quickstart.initramfs.digests import content_crc, read_list
from quickstart.initramfs.layout import MARKER, OURS
from quickstart.model import Artefact
from quickstart.startset import PRIVATE_KEY, SECRET_GLOBS, matches

ERROR = "error"
NOTE = "note"
_SECRET_NAMES = (
    *SECRET_GLOBS,
    *(
        "/**/id_rsa",
        "/**/id_ecdsa",
        "/**/id_ed25519",
        "/**/id_dsa",
        "/**/.pgpass",
        "/**/.netrc",
        "/**/.my.cnf",
    ),
    *("/**/.htpasswd", "/etc/mysql/debian.cnf"),
)
# crypt(5): NAME:$ID$SALT$HASH, as in shadow(5) and in htpasswd's files.
_PASSWORD = re.compile(
    rb"^[A-Za-z0-9_.@-]{1,64}:!{0,2}\$(?:[1-9a-z][a-z0-9-]{0,9})\$[./A-Za-z0-9$,=+-]{12,}", re.M
)
# PuTTY's own format of private keys (PuTTY manual, appendix C).
_PUTTY_KEY = re.compile(rb"^PuTTY-User-Key-File-[0-9]: [a-z]", re.M)
_CONTENTS = (
    (_PASSWORD, "a password hash"),
    (PRIVATE_KEY, "a private key"),
    (_PUTTY_KEY, "a private key (PuTTY)"),
)
# Of the agent's program, of the hook that starts it, and of the tracers' scripts.
LAUNCH_MARKS = (b"usage: agent PORT_NAME INTERVAL_MS", b"/launch/agent ", b"/run/quickstart-trace")
_STRACE = re.compile(rb"Usage: strace |usage: strace ")
_LAUNCH_NAMES = frozenset({"launch", "conf"})
_TRACER_NAMES = frozenset({"strace", "strace-init", "ldd-all", "maps-all"})
_DIGESTS = f"{OURS}/digests"
_PART_A = (
    "init",
    f"{OURS}/busybox",
    f"{OURS}/config",
    f"{OURS}/unit",
    f"{OURS}/bin/starter",
    f"{OURS}/bin/checker",
    _DIGESTS,
    f"{OURS}/modules",
)
_BLOCK_BYTES = 4 << 20
_REBUILD = "build it again with --force"
_NAME_IT = "exclude the file in the profile, or name it in files.secrets"


@dataclass(frozen=True)
class Finding:
    """``severity`` is ``error`` or ``note``, ``object`` a file of OUT, or /NAME of the archive, ``mend`` what to do."""

    severity: str
    object: str
    what: str
    mend: str


@dataclass(frozen=True)
class OutFile:
    """A file of OUT: its permission bits, SHA-256 where the manifest names one (else empty), and the LAUNCH_MARKS in it."""

    name: str
    mode: int
    sha256: str
    marks: tuple[bytes, ...]


@dataclass(frozen=True)
class Given:
    """All that is judged: OUT's own mode, its files, manifest.json, start-set.json, and the archive."""

    mode: int
    files: tuple[OutFile, ...]
    manifest: Mapping[str, Any]
    start_set: Mapping[str, Any]
    members: tuple[inside.Member, ...]


def audit(artefact: Artefact) -> tuple[Finding, ...]:
    """The findings on an artefact, errors first; raises ArtefactError when it is too damaged to be read."""
    try:
        return judge(gather(artefact))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ArtefactError(
            f"manifest or start set of {artefact.directory} is damaged: {error!r}", hint=_REBUILD
        ) from error


def gather(artefact: Artefact) -> Given:
    """Read OUT, the data of the root disk included (holes are not)."""
    manifest = read_manifest(artefact)
    files = []
    for path in sorted(artefact.directory.iterdir()):
        if path.is_file() and not path.is_symlink():
            sha256 = _sha256(path) if path.name in manifest["files"] else ""
            files.append(OutFile(path.name, stat.S_IMODE(path.stat().st_mode), sha256, _marks(path)))
        else:
            files.append(OutFile(path.name, stat.S_IMODE(path.lstat().st_mode), "", ()))
    return Given(
        mode=stat.S_IMODE(artefact.directory.stat().st_mode),
        files=tuple(files),
        manifest=manifest,
        start_set=inside.start_set(artefact.directory),
        members=inside.members(artefact),
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _marks(path: Path) -> tuple[bytes, ...]:
    longest = max(len(mark) for mark in LAUNCH_MARKS)
    found: set[bytes] = set()
    tail = b""
    for block in _data(path):
        text = tail + block
        found.update(mark for mark in LAUNCH_MARKS if mark in text)
        tail = text[1 - longest :]
    return tuple(sorted(found))


def _data(path: Path) -> Iterator[bytes]:
    """The file's blocks without its holes (lseek(2), SEEK_DATA)."""
    with path.open("rb") as file:
        at, end = 0, file.seek(0, os.SEEK_END)
        while at < end:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                # ENXIO: nothing but a hole is left.
                return
            hole = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            while at < hole:
                block = os.pread(file.fileno(), min(_BLOCK_BYTES, hole - at), at)
                at += len(block) or hole - at
                yield block


def judge(given: Given) -> tuple[Finding, ...]:
    """The findings, errors first, each kind in the order of the archive (pure)."""
    secrets = tuple(given.manifest.get("secrets", ()))
    findings = [*_out(given, secrets), *_parts(given), *_digests(given), *_agreement(given)]
    closed = {
        PurePosixPath(member.name)
        for member in given.members
        if stat.S_ISDIR(member.mode) and not member.mode & stat.S_IXOTH
    }
    for member in given.members:
        findings += [*_secret(member, secrets), *_mode(member, secrets, closed)]
        findings += [*_stranger(member), *_link(member)]
    return tuple(sorted(findings, key=lambda each: each.severity != ERROR))


# ---------------------------------------------------------------- OUT


def _out(given: Given, secrets: tuple[str, ...]) -> Iterator[Finding]:
    disk = given.manifest["disk"]["name"]
    expected = {disk, *given.manifest["files"], "manifest.json", "start-set.json", "run.sh"}
    private = {disk} | ({"initramfs.img"} if secrets else set())
    if given.mode & stat.S_IWOTH:
        yield Finding(ERROR, ".", f"mode {given.mode:04o}: everybody may write", "chmod o-w")
    for file in given.files:
        if file.name not in expected:
            yield Finding(NOTE, file.name, "not a file of an artefact", "remove it before OUT is given away")
        if file.marks:
            said = ", ".join(mark.decode().strip() for mark in file.marks)
            yield Finding(ERROR, file.name, f"the launch agent or a tracer is in it ({said})", _REBUILD)
        if file.name in private and file.mode & 0o077:
            yield Finding(
                ERROR, file.name, f"mode {file.mode:04o}, and it holds secrets", f"chmod 0600 {file.name}"
            )
        elif file.mode & stat.S_IWOTH:
            yield Finding(ERROR, file.name, f"mode {file.mode:04o}: everybody may write", "chmod o-w")
        fact = given.manifest["files"].get(file.name)
        if fact is not None and fact["sha256"] != file.sha256:
            yield Finding(ERROR, file.name, "its SHA-256 is not the manifest's", _REBUILD)
    for name in sorted(expected - {file.name for file in given.files}):
        yield Finding(ERROR, name, "is missing", _REBUILD)


# ---------------------------------------------------------------- the archive as a whole


def _parts(given: Given) -> Iterator[Finding]:
    by_part = {part: {each.name: each for each in given.members if each.part == part} for part in ("A", "B")}
    for (part, name), count in Counter((each.part, each.name) for each in given.members).items():
        if count > 1:
            yield Finding(ERROR, f"/{name}", f"is in part {part} {count} times", _REBUILD)
    for name in _PART_A:
        if name not in by_part["A"]:
            where = "behind the beginning of part B" if name in by_part["B"] else "missing"
            yield Finding(ERROR, f"/{name}", f"is to be in part A and is {where}", _REBUILD)
    for name in by_part["A"]:
        if name.startswith("fast/") and name != OURS and not name.startswith(f"{OURS}/"):
            yield Finding(ERROR, f"/{name}", "is of the start set, but in part A", _REBUILD)
    marker = by_part["B"].get(MARKER)
    if marker is None or given.members[-1] is not marker:
        yield Finding(ERROR, f"/{MARKER}", "is to be the last file of part B and is not", _REBUILD)
    config = by_part["A"].get(f"{OURS}/config")
    build = re.search(rb"^BUILD=(\S+)$", config.data, re.M) if config else None
    if marker is not None and build is not None and marker.data.strip() != build[1]:
        yield Finding(ERROR, f"/{MARKER}", "names another build than part A", _REBUILD)


def _digests(given: Given) -> Iterator[Finding]:
    """Part B is what part A's list says: else each boot would be a stock one."""
    text = next((each.data for each in given.members if (each.part, each.name) == ("A", _DIGESTS)), None)
    if text is None:
        return
    try:
        wanted = {os.fsdecode(each.name): each for each in read_list(text)}
    except ArtefactError as error:
        yield Finding(ERROR, f"/{_DIGESTS}", error.message, _REBUILD)
        return
    packed = {each.name: each for each in given.members if each.part == "B"}
    for name in sorted(wanted.keys() ^ packed.keys()):
        where = "is packed, but not listed there" if name in packed else "is listed there, but not packed"
        yield Finding(ERROR, f"/{name}", f"/{_DIGESTS}: {where}", _REBUILD)
    for name in sorted(wanted.keys() & packed.keys()):
        member, entry = packed[name], wanted[name]
        first = wanted[os.fsdecode(entry.same_as)] if entry.same_as else entry
        found = (member.mode, member.uid, member.gid, member.size_bytes, os.fsencode(member.target))
        crc = content_crc(member.data) if stat.S_ISREG(member.mode) else 0
        if (*found, crc) != (
            entry.mode,
            entry.uid,
            entry.gid,
            entry.size_bytes,
            entry.text,
            first.crc,
        ):
            yield Finding(ERROR, f"/{name}", f"is not what /{_DIGESTS} says", _REBUILD)


def _agreement(given: Given) -> Iterator[Finding]:
    """start-set.json and part B name the same files; kinds and sizes are alike, and each has its reasons."""
    packed = {f"/{each.name.removeprefix('fast/')}": each for each in given.members if _is_start_file(each)}
    listed = {file["path"]: file for file in given.start_set["files"]}
    for path, member in packed.items():
        if path not in listed:
            yield Finding(
                ERROR, f"/{member.name}", "is packed, but start-set.json does not list it", _REBUILD
            )
    for path, file in listed.items():
        found = packed.get(path)
        if not file["reasons"]:
            yield Finding(ERROR, path, "start-set.json gives no reason for it", _REBUILD)
        if found is None:
            yield Finding(ERROR, path, "start-set.json lists it, but it is not packed", _REBUILD)
        elif _kind(found) != file["kind"]:
            yield Finding(ERROR, path, f"is listed as {file['kind']} and packed as {_kind(found)}", _REBUILD)
        elif file["kind"] == "file" and found.size_bytes != file["size_bytes"]:
            yield Finding(
                ERROR, path, f"has {found.size_bytes} bytes, listed are {file['size_bytes']}", _REBUILD
            )
    for each in given.start_set["excluded"]:
        if each["path"] in packed:
            yield Finding(ERROR, each["path"], f"is packed, though excluded by {each['rule']}", _REBUILD)


def _is_start_file(member: inside.Member) -> bool:
    name = PurePosixPath(member.name)
    # Ours: what init needs, and the link by which the packed programs name their loader.
    loader = stat.S_ISLNK(member.mode) and name.name == "ld.so" and "/ld-linux" in f"/{member.target}"
    below = member.name.startswith("fast/") and member.name != OURS
    return below and not member.name.startswith(f"{OURS}/") and not loader


def _kind(member: inside.Member) -> str:
    kinds = {stat.S_IFREG: "file", stat.S_IFLNK: "symlink", stat.S_IFDIR: "directory"}
    return kinds.get(stat.S_IFMT(member.mode), "something else")


# ---------------------------------------------------------------- one member


def _on_root(member: inside.Member) -> PurePosixPath:
    return PurePosixPath("/", member.name.removeprefix("fast/"))


def _is_named(member: inside.Member, secrets: Iterable[str]) -> bool:
    return any(matches(_on_root(member), glob) for glob in secrets)


def _secret(member: inside.Member, secrets: tuple[str, ...]) -> Iterator[Finding]:
    if stat.S_ISDIR(member.mode) or stat.S_ISLNK(member.mode):
        return
    whats = [f"by its name a secret ({glob})" for glob in _SECRET_NAMES if matches(_on_root(member), glob)][
        :1
    ]
    whats += [f"it holds {what}" for pattern, what in _CONTENTS if pattern.search(member.data)]
    for what in whats:
        if _is_named(member, secrets):
            yield Finding(
                NOTE,
                f"/{member.name}",
                f"{what}; the profile names it",
                "give OUT to nobody who may not know it",
            )
        else:
            yield Finding(ERROR, f"/{member.name}", what, _NAME_IT)


def _mode(
    member: inside.Member, secrets: tuple[str, ...], closed: Collection[PurePosixPath]
) -> Iterator[Finding]:
    bits, name = stat.S_IMODE(member.mode), f"/{member.name}"
    if (member.uid, member.gid) != (0, 0):
        yield Finding(ERROR, name, f"belongs to {member.uid}:{member.gid}, not to root", _REBUILD)
    if stat.S_ISLNK(member.mode):
        return
    if bits & (stat.S_ISUID | stat.S_ISGID):
        yield Finding(ERROR, name, f"mode {bits:04o}: setuid or setgid", "exclude the file in the profile")
    sticky = stat.S_ISDIR(member.mode) and bits & stat.S_ISVTX
    if bits & stat.S_IWOTH and not sticky:
        yield Finding(ERROR, name, f"mode {bits:04o}: everybody may write", "mend its mode in the image")
    below = next((each for each in PurePosixPath(member.name).parents if each in closed), None)
    if stat.S_ISREG(member.mode) and (not bits & stat.S_IROTH or below):
        named = _is_named(member, secrets)
        what = f"mode {bits:04o}{f' below /{below}' if below else ''}: on the root volume not everybody may read it"
        yield Finding(
            NOTE if named else ERROR, name, what, "nothing: the profile names it" if named else _NAME_IT
        )


def _stranger(member: inside.Member) -> Iterator[Finding]:
    name = PurePosixPath(member.name)
    ordinary = stat.S_ISREG(member.mode) or stat.S_ISDIR(member.mode) or stat.S_ISLNK(member.mode)
    console = member.name == "dev/console" and stat.S_ISCHR(member.mode) and member.device == (5, 1)
    if not ordinary and not console:
        numbers = ":".join(str(number) for number in member.device)
        yield Finding(ERROR, f"/{member.name}", f"is a device ({numbers}), a FIFO or a socket", _REBUILD)
    if name.parts[0] in _LAUNCH_NAMES:
        yield Finding(ERROR, f"/{member.name}", "is of a launch (agent, hooks), not of an artefact", _REBUILD)
    elif any(mark in member.data for mark in LAUNCH_MARKS):
        yield Finding(ERROR, f"/{member.name}", "is the launch agent, or starts it or a tracer", _REBUILD)
    elif name.name in _TRACER_NAMES or _STRACE.search(member.data):
        yield Finding(ERROR, f"/{member.name}", "is a tracer", "exclude it in the profile")


def _link(member: inside.Member) -> Iterator[Finding]:
    if not stat.S_ISLNK(member.mode) or not member.name.startswith("fast/"):
        return
    absolute = member.target.startswith("/")
    place = os.path.normpath(f"/{PurePosixPath(member.name).parent}/{'' if absolute else member.target}")
    leads_to = os.path.normpath(member.target) if absolute else place
    if leads_to != "/fast" and not leads_to.startswith("/fast/"):
        yield Finding(ERROR, f"/{member.name}", f"leads out of /fast, to {member.target}", _REBUILD)
