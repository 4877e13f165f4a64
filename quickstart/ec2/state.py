"""Record how far `ami create` has come, so that a killed call can be continued. The record lies beside OUT: one file
says what is made, and another one has a line for each block that AWS has taken. The second one is also the lock by which
only one call works at an image.

A record never has credentials. Nothing is deleted in the account because a record says so: the caller first asks the
account whether the snapshot is the one that the record means.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError

from quickstart.errors import BadInputError, HostLacksError
from quickstart.host.beneath import open_regular, opened_regular, read_bounded
from quickstart.host.files import sync_directory
from quickstart.host.holes import write_at
from quickstart.host.locks import EXCLUSIVE, try_lock
from quickstart.host.places import fault_of
from quickstart.parse import jsondoc
from quickstart.parse.faults import Table, faults

_RECORD_BYTES = 1 << 16
# A line has at most 8 digits, a blank and 64 hexadecimal digits.
_LINE_BYTES = 80
# Calls that were killed may have noted a block twice.
_SPARE = 4
_KEY_DIGITS = 12
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES = 100
SnapshotId = Annotated[str, StringConstraints(pattern=r"^snap-[0-9a-f]{8,32}$")]


class Record(Table):
    """What a call of `ami create` has begun. ``manifest_sha256`` names the artefact. ``token`` makes AWS return the same
    snapshot when the call that begins it is repeated. ``snapshot_id`` is empty before AWS has answered this call.
    ``is_sent`` says that AWS has all blocks, and that the snapshot is closed.
    """

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    name: Annotated[str, StringConstraints(max_length=128)]
    account: Annotated[str, StringConstraints(pattern=r"^[0-9]{1,20}$")]
    region: Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,40}$")]
    manifest_sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    token: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{1,64}$")]
    snapshot_id: Literal[""] | SnapshotId = ""
    is_sent: bool = False


@dataclass(frozen=True)
class Files:
    """The two files of a record, and the descriptor of the second one, which is locked."""

    record: Path
    blocks: Path
    fd: int


@contextmanager
def locked(out: Path, *words: str) -> Iterator[Files]:
    """A context with the files of the record for ``words``: an image's name, and where it is made. An image's name may
    have characters that a file's name must not have. Without a record at the end, no file is left.

    Raises HostLacksError when another call works at the same image, and BadInputError when a file of the record belongs
    to somebody else.
    """
    key = hashlib.sha256("\0".join(words).encode()).hexdigest()[:_KEY_DIGITS]
    record, blocks = (
        out.with_name(f"{out.name}.ami-{key}.json"),
        out.with_name(f"{out.name}.ami-{key}.blocks"),
    )
    fd = _locked(blocks)
    try:
        yield Files(record, blocks, fd)
    finally:
        if not record.exists():
            blocks.unlink(missing_ok=True)
        os.close(fd)


def _locked(path: Path) -> int:
    for _ in range(_TRIES):
        with suppress(FileExistsError):
            os.close(os.open(path, _NEW, 0o600))
        try:
            fd = open_regular(path, writable=True)
        except FileNotFoundError:
            continue
        try:
            _check_own(fd, path)
            if not try_lock(fd, EXCLUSIVE, str(path), "choose an OUT on a local one"):
                raise HostLacksError(
                    f"another `ami create` works at this image ({path.name})", hint="wait until it ends"
                )
            # Meanwhile, the other call may have removed the file.
            with suppress(FileNotFoundError):
                status, now = os.fstat(fd), path.lstat()
                if (status.st_dev, status.st_ino) == (now.st_dev, now.st_ino):
                    return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    raise HostLacksError(f"{path} does not stay", hint="end what removes it")


def _check_own(fd: int, path: Path) -> None:
    if said := fault_of(fd, path):
        raise BadInputError(f"{path} {said}", hint="remove it, or use an OUT in a directory of yours")


def read_record(files: Files) -> Record | None:
    """The record, or None when there is none. Raises BadInputError when it is damaged or somebody else's."""
    try:
        with opened_regular(files.record) as fd:
            _check_own(fd, files.record)
        data = read_bounded(files.record, _RECORD_BYTES)
    except FileNotFoundError:
        return None
    try:
        return Record.model_validate(jsondoc.parse(data))
    except (ValidationError, ValueError) as error:
        lines = faults(error, Record) if isinstance(error, ValidationError) else [str(error)]
        raise BadInputError(
            f"{files.record} is damaged: {lines[0]}",
            hint="remove it; `quickstart ami list` shows what is in the account",
        ) from error


def write_record(files: Files, record: Record) -> None:
    """Replace the record in one step."""
    new = files.record.with_name(f".{files.record.name}.new")
    new.unlink(missing_ok=True)
    fd = os.open(new, _NEW, 0o600)
    try:
        write_at(fd, record.model_dump_json(by_alias=True, indent=1).encode() + b"\n", 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    new.replace(files.record)
    sync_directory(files.record.parent)


def remove_record(files: Files) -> None:
    """Forget what was made. The lock stays."""
    files.record.unlink(missing_ok=True)
    os.ftruncate(files.fd, 0)


def read_done(files: Files, most_blocks: int) -> dict[int, bytes]:
    """The SHA-256 of each block that AWS has taken, by the block's number. A line that was cut by a crash is left out,
    so its block is sent once more. A file that is larger than ``most_blocks`` blocks need is not ours, and counts as
    empty.
    """
    most_bytes = _SPARE * _LINE_BYTES * (most_blocks + 1)
    if os.fstat(files.fd).st_size > most_bytes:
        return {}
    data, done = os.pread(files.fd, most_bytes, 0), {}
    for line in data.splitlines(keepends=True):
        number, _, digest = line.strip().partition(b" ")
        if line.endswith(b"\n") and number.isdigit() and len(number) <= 9 and len(digest) == 64:
            with suppress(ValueError):
                done[int(number)] = bytes.fromhex(digest.decode("ascii", "replace"))
    return done


def begin_notes(files: Files) -> None:
    """Let the next notes begin on a line of their own, behind a last line that may be cut."""
    os.lseek(files.fd, 0, os.SEEK_END)
    os.write(files.fd, b"\n")


def note_done(files: Files, number: int, digest: bytes) -> None:
    """Note that AWS has taken a block. One write(2), so lines of several threads do not mix."""
    os.write(files.fd, f"{number} {digest.hex()}\n".encode())
