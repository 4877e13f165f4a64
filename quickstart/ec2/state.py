"""Record how far `ami create` has come, so that a killed call can be continued. The record lies beside OUT: one file
says what is made, and another one has a line for each block that AWS has taken.

A record never has credentials.
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

from quickstart.errors import BadInputError
from quickstart.host.beneath import open_regular, read_bounded
from quickstart.host.files import sync_directory
from quickstart.host.holes import write_at
from quickstart.parse import jsondoc
from quickstart.parse.faults import Table, faults

_RECORD_BYTES = 1 << 16
# A line has at most 8 digits, a blank and 64 hexadecimal digits. 64 TiB have 2**27 blocks.
_LINE_BYTES = 80
_MOST_BLOCKS = 1 << 27
_KEY_DIGITS = 12
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
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
    endpoint: Annotated[str, StringConstraints(max_length=2048)]
    manifest_sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    token: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{1,64}$")]
    snapshot_id: Literal[""] | SnapshotId = ""
    is_sent: bool = False


@dataclass(frozen=True)
class Files:
    """The two files of a record."""

    record: Path
    blocks: Path


def files_of(out: Path, name: str, account: str, region: str) -> Files:
    """The files for the image ``name``. An image's name may have characters that a file's name must not have."""
    key = hashlib.sha256("\0".join((name, account, region)).encode()).hexdigest()[:_KEY_DIGITS]
    return Files(out.with_name(f"{out.name}.ami-{key}.json"), out.with_name(f"{out.name}.ami-{key}.blocks"))


def read_record(files: Files) -> Record | None:
    """The record, or None when there is none. Raises BadInputError when it is damaged."""
    try:
        data = read_bounded(files.record, _RECORD_BYTES)
    except FileNotFoundError:
        return None
    try:
        return Record.model_validate(jsondoc.parse(data))
    except (ValidationError, ValueError) as error:
        lines = faults(error, Record) if isinstance(error, ValidationError) else [str(error)]
        raise BadInputError(
            f"{files.record} is damaged: {lines[0]}",
            hint="remove it; `ami list` shows what is in the account",
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
    files.blocks.unlink(missing_ok=True)
    files.record.unlink(missing_ok=True)


def read_done(files: Files) -> dict[int, bytes]:
    """The SHA-256 of each block that AWS has taken, by the block's number. A line that was cut by a crash is left out,
    so its block is sent once more.
    """
    try:
        data = read_bounded(files.blocks, _LINE_BYTES * _MOST_BLOCKS)
    except FileNotFoundError:
        return {}
    done: dict[int, bytes] = {}
    for line in data.splitlines(keepends=True):
        number, _, digest = line.strip().partition(b" ")
        if line.endswith(b"\n") and number.isdigit() and len(number) <= 9 and len(digest) == 64:
            try:
                done[int(number)] = bytes.fromhex(digest.decode("ascii"))
            except ValueError:
                continue
    return done


@contextmanager
def opened_done(files: Files) -> Iterator[int]:
    """A context with a descriptor of the file of blocks, for `note_done`."""
    with suppress(FileExistsError):
        os.close(os.open(files.blocks, _NEW, 0o600))
    fd = open_regular(files.blocks, writable=True)
    try:
        # A cut last line must not run into the next one.
        os.lseek(fd, 0, os.SEEK_END)
        os.write(fd, b"\n")
        yield fd
    finally:
        os.close(fd)


def note_done(fd: int, number: int, digest: bytes) -> None:
    """Note that AWS has taken a block. One write(2), so lines of several threads do not mix."""
    os.write(fd, f"{number} {digest.hex()}\n".encode())
