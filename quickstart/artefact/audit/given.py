"""Read the parts of an artefact that its audit checks. They are the input of the function `judge`, which returns the
audit's findings. This module also defines the patterns that the audit searches for in the contents of files.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from quickstart.artefact import inside
from quickstart.artefact.directory import run_script
from quickstart.artefact.manifest import SCRIPT_BYTES, Manifest, StartSetFacts, read_manifest, read_start_set
from quickstart.artefact.sums import RUN_SCRIPT
from quickstart.errors import BadInputError
from quickstart.host.beneath import opened_regular, read_bounded
from quickstart.host.unchanged import digest_of
from quickstart.inspect.secrets import PRIVATE_KEY
from quickstart.model import Artefact

# crypt(5): NAME:$ID$SALT$HASH, as in shadow(5) and in htpasswd's files.
_PASSWORD = re.compile(
    rb"^[A-Za-z0-9_.@-]{1,64}:!{0,2}\$(?:[1-9a-z][a-z0-9-]{0,9})\$[./A-Za-z0-9$,=+-]{12,}", re.M
)
# PuTTY's own format of private keys (PuTTY manual, appendix C).
_PUTTY_KEY = re.compile(rb"^PuTTY-User-Key-File-[0-9]: [a-z]", re.M)
CONTENTS = {
    "a password hash": (b"$", _PASSWORD),
    "a private key": (b"PRIVATE KEY", PRIVATE_KEY),
    "a private key (PuTTY)": (b"PuTTY-User-Key-File-", _PUTTY_KEY),
}
# Texts in the agent's program, in the hook that starts the agent, and in the tracers' scripts.
LAUNCH_MARKS = (b"usage: agent PORT_NAME INTERVAL_MS", b"/launch/agent ", b"/run/quickstart-trace")
LAUNCH, TRACER = "a launch", "a tracer"
_SOUGHT = (
    *(inside.Sought(name, literal, pattern) for name, (literal, pattern) in CONTENTS.items()),
    *(inside.Sought(LAUNCH, mark, re.compile(re.escape(mark))) for mark in LAUNCH_MARKS),
    inside.Sought(TRACER, b"sage: strace ", re.compile(rb"[Uu]sage: strace ")),
)
_BLOCK_BYTES = 4 << 20


@dataclass(frozen=True)
class OutFile:
    """A file of OUT. ``mode`` is the complete st_mode of the file (see stat(2)). ``sha256`` is the file's SHA-256.
    ``sha256`` is empty when the manifest has no SHA-256 for this file, or when the file's size differs from the size in
    the manifest. ``marks`` are those texts of the constant LAUNCH_MARKS that the file contains. Each text of
    LAUNCH_MARKS shows that the launch agent or a tracer is in the file.
    """

    name: str
    mode: int
    sha256: str
    marks: tuple[bytes, ...]


@dataclass(frozen=True, kw_only=True)
class Given:
    """The input of the function `judge`, which makes the findings of an audit. ``mode`` and ``files`` are the mode
    and the files of the artefact's directory (OUT). ``members`` are the members of our initramfs. ``script_is_ours``
    says whether run.sh is exactly the script that QuickStart writes for this manifest.
    """

    mode: int
    files: tuple[OutFile, ...]
    manifest: Manifest
    start_set: StartSetFacts
    members: tuple[inside.Member, ...]
    script_is_ours: bool


def gather(artefact: Artefact) -> Given:
    """Read all regular files of OUT. The root disk is a sparse file. The function reads the data of the root disk, and
    skips the holes.
    """
    manifest = read_manifest(artefact.directory)
    return Given(
        mode=stat.S_IMODE(artefact.directory.stat().st_mode),
        files=tuple(_look_at(path, manifest) for path in sorted(artefact.directory.iterdir())),
        manifest=manifest,
        start_set=read_start_set(artefact.directory),
        members=inside.members(artefact, _SOUGHT),
        script_is_ours=_script_is_ours(artefact.directory / RUN_SCRIPT, manifest),
    )


def _look_at(path: Path, manifest: Manifest) -> OutFile:
    mode = path.lstat().st_mode
    if not stat.S_ISREG(mode):
        return OutFile(path.name, mode, "", ())
    with opened_regular(path) as fd:
        fact = manifest.facts.get(path.name)
        # The model of the manifest limits the size, and a file of another size has another digest.
        is_hashed = fact is not None and fact.size_bytes == os.fstat(fd).st_size
        return OutFile(path.name, os.fstat(fd).st_mode, digest_of(fd, path) if is_hashed else "", _marks(fd))


def _script_is_ours(path: Path, manifest: Manifest) -> bool:
    try:
        return read_bounded(path, SCRIPT_BYTES) == run_script(manifest).encode()
    except FileNotFoundError:
        # `judge` reports the missing file anyway.
        return True
    except BadInputError:
        return False


def _marks(fd: int) -> tuple[bytes, ...]:
    longest = max(len(mark) for mark in LAUNCH_MARKS)
    found: set[bytes] = set()
    tail = b""
    for block in _data(fd):
        text = tail + block
        found.update(mark for mark in LAUNCH_MARKS if mark in text)
        tail = text[1 - longest :]
    return tuple(sorted(found))


def _data(fd: int) -> Iterator[bytes]:
    """The data blocks of the file that is open as ``fd``. The holes of the file are skipped (lseek(2), SEEK_DATA)."""
    at, end = 0, os.fstat(fd).st_size
    while at < end:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            # ENXIO: nothing but a hole is left.
            return
        hole = os.lseek(fd, at, os.SEEK_HOLE)
        while at < hole:
            block = os.pread(fd, min(_BLOCK_BYTES, hole - at), at)
            at += len(block) or hole - at
            yield block
