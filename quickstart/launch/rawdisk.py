"""Convert a root disk from the format qcow2 to a raw image. The disk may come from somebody else.

qemu-img reads untrusted bytes, so it runs in a jail with a copy of the disk's file. In the jail, qemu-img runs as a
separate user without privileges. Limits apply to the memory of qemu-img and to the files that qemu-img writes.
qemu-img needs no network and no other processes. So qemu-img also runs in separate namespaces if the host allows them.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from pathlib import Path

from quickstart.errors import ArtefactError, BadInputError, CommandError, HostLacksError
from quickstart.host import door
from quickstart.host.beneath import opened_regular
from quickstart.host.cpulimit import cpu_limit
from quickstart.host.files import free_bytes, full_disk_named, temporary_directory
from quickstart.host.holes import copy_range, data_chunks, write_at
from quickstart.host.unchanged import changed, seen
from quickstart.image.qcow2 import Form, data_bytes, virtual_bytes
from quickstart.launch import jail
from quickstart.model import MIB
from quickstart.parse.printable import brief

_LIMIT_S = 1800.0
# CPU time for the tables. Those of an image with 100 GB of data take a second.
_TABLES_LIMIT_S = 20.0
_PROBE_S = 30.0
# The space that stays free in the temporary directory, for the tables of the file system and for other programs.
_SPARE_BYTES = 64 * MIB
_WORDS_BYTES = 4096
# For a disk of any accepted size, qemu-img needs less than 400 MiB of address space. The caches of its tables have 32
# MiB, and most of the rest is stacks and heaps of its threads: glibc would reserve a heap of 64 MiB for each of sixteen
# threads (mallopt(3), M_ARENA_MAX), and a stack of 8 MiB for each of 64.
_MEMORY_BYTES = 1024 * MIB
_STACK_BYTES = MIB
_ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}
# All processes that qemu-img starts end with it.
_ALONE = ("unshare", "--user", "--net", "--ipc", "--pid", "--fork", "--kill-child=SIGKILL", "--")
_COPY, _RAW = "disk", "raw"
_HINTS = {
    Form.BUILT: "build it again, with --format raw",
    Form.GIVEN: "if you trust the disk, convert it yourself: qemu-img convert -O raw",
}
_ERRORS: dict[Form, type[BadInputError]] = {Form.BUILT: ArtefactError, Form.GIVEN: BadInputError}


def made_raw(disk: Path, place: Path, form: Form = Form.BUILT) -> Path:
    """Convert the qcow2 image ``disk`` to a raw image in our directory ``place``. Return the path of the raw
    image. The disk may be larger than the manifest says, because the user may have enlarged the disk. Parts of the
    disk without data become holes of the raw image.

    Raises:

    - ArtefactError when the disk of an artefact has a form that `build` does not make, is damaged, or refers to more
      data than its file has; BadInputError when the same is true for a disk that a user has given
    - HostLacksError when the host has too little space for the raw image
    - BadInputError when another process writes to ``disk`` during the call
    """
    with jail.made_jail(place) as cell:
        with opened_regular(disk) as fd:
            _check(fd, disk, form)
            with full_disk_named(temporary_directory(), "the temporary directory", "free some space there"):
                copy = _copied(fd, disk, cell)
        # The copy is checked again, because only the copy cannot be changed by other processes.
        with opened_regular(copy) as fd:
            size_bytes = _check(fd, disk, form)
        try:
            with full_disk_named(temporary_directory(), "the temporary directory", "free some space there"):
                is_alone = _convert(cell, size_bytes)
                copy.unlink()
                return _taken_out(cell, place / "root.raw", size_bytes, is_ours=is_alone)
        except (CommandError, OSError, BadInputError) as error:
            said = error.tail if isinstance(error, CommandError) else str(error)
            raise _unfit(disk, brief(said.strip().partition(chr(10))[0]), form) from error


def _unfit(disk: Path, why: str, form: Form) -> BadInputError:
    return _ERRORS[form](f"{disk} cannot be converted: {why}", hint=_HINTS[form])


def _check(fd: int, disk: Path, form: Form) -> int:
    """The virtual size in bytes of the qcow2 image that is open as ``fd``. Raises the error of ``form`` for an image
    that cannot be converted, and HostLacksError when the host has too little space for the image's data.
    """
    room_bytes = _room()
    try:
        with cpu_limit(f"the tables of {brief(str(disk))}", _TABLES_LIMIT_S, _HINTS[form]):
            size_bytes = virtual_bytes(fd, form)
            written_bytes = data_bytes(fd, room_bytes, form)
    except ValueError as error:
        raise _unfit(disk, str(error), form) from error
    if written_bytes > room_bytes:
        raise _no_room(disk)
    return size_bytes


def _room() -> int:
    return max(0, free_bytes(temporary_directory()) - _SPARE_BYTES)


def _no_room(disk: Path) -> HostLacksError:
    place = temporary_directory()
    return HostLacksError(
        f"{disk} is read from a raw copy, for which the temporary directory {place} has too little space",
        hint="free some space there, or set TMPDIR to a directory with more",
    )


def _copied(fd: int, disk: Path, cell: jail.Jail) -> Path:
    """Copy the open file ``fd`` into the jail. The copy has the same holes as the file. Return the path of the copy."""
    copy, before, left_bytes = cell.directory / _COPY, seen(fd), _room()
    with copy.open("xb", buffering=0) as target:
        for offset, chunk in data_chunks(fd, before.size_bytes):
            left_bytes -= len(chunk)
            if left_bytes < 0:
                raise _no_room(disk)
            write_at(target.fileno(), chunk, offset)
        target.truncate(before.size_bytes)
    if seen(fd) != before:
        raise changed(disk)
    jail.given(cell, copy)
    return copy


def _convert(cell: jail.Jail, most_bytes: int) -> bool:
    """Run qemu-img in the jail. The raw image may have at most ``most_bytes`` bytes. Return whether all processes that
    qemu-img may have started have ended with it. Raises CommandError when qemu-img fails. The error has the beginning of
    qemu-img's messages.
    """
    is_alone = _may_be_alone(cell)
    words = ("convert", "-f", "qcow2", "-O", "raw", _COPY, _RAW)
    argv = (
        "prlimit",
        f"--stack={_STACK_BYTES}",
        *jail.limited(words, most_bytes, tool="qemu-img", memory_bytes=_MEMORY_BYTES),
    )
    status, said = _ended(cell, (*_ALONE, *argv) if is_alone else argv, _LIMIT_S)
    if status != 0:
        raise CommandError(argv, status, said or f"qemu-img ended with status {status}")
    return is_alone


def _may_be_alone(cell: jail.Jail) -> bool:
    """Whether the host lets the jail's user make the namespaces that the command ``_ALONE`` makes."""
    return _ended(cell, (*_ALONE, "true"), _PROBE_S)[0] == 0


def _ended(cell: jail.Jail, argv: Sequence[str | Path], limit_s: float) -> tuple[int | None, str]:
    """Run the command ``argv`` in the jail. Return the command's exit status and the beginning of its messages. When
    the command did not end within ``limit_s`` seconds, the returned status is None, and the returned text says that
    the command did not end.
    """
    end_s = time.monotonic() + limit_s
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    try:
        place, env = cell.directory, {**cell.environment, **_ONE_HEAP}
        with door.background(argv, errors=theirs, identity=cell.identity, env=env, cwd=place) as process:
            os.close(theirs)
            theirs = -1
            said = _first_words(ours, end_s)
            if door.has_ended(process, max(0.0, end_s - time.monotonic())):
                return process.returncode, said
            return None, f"it did not end within {limit_s:.0f} s"
    finally:
        for each in (ours, theirs):
            if each >= 0:
                os.close(each)


def _first_words(pipe: int, end_s: float) -> str:
    """The first _WORDS_BYTES bytes that a program writes into ``pipe``, as text. This function reads until the pipe's
    end or until ``end_s`` (on the clock time.monotonic). The function also reads all further bytes and discards them,
    so that the program never waits.
    """
    said = b""
    while (left_s := end_s - time.monotonic()) > 0 and select.select([pipe], [], [], left_s)[0]:
        piece = os.read(pipe, _WORDS_BYTES)
        if not piece:
            break
        said += piece[: _WORDS_BYTES - len(said)]
    return said.decode(errors="replace")


def _taken_out(cell: jail.Jail, target: Path, size_bytes: int, *, is_ours: bool) -> Path:
    """Move the raw image from the jail to ``target``, and make our own user the owner of the image. Unless ``is_ours`` is
    set, a process that qemu-img has left behind may still write to the image, so it is copied. Return the new path.
    Raises BadInputError when the raw image does not have ``size_bytes`` bytes.
    """
    if is_ours:
        (cell.directory / _RAW).rename(target)
    else:
        with opened_regular(cell.directory / _RAW) as source, target.open("xb") as file:
            copy_range(source, 0, size_bytes, file.fileno())
    with opened_regular(target, writable=True) as fd:
        if (found := os.fstat(fd).st_size) != size_bytes:
            raise BadInputError(f"the raw image has {found} bytes, not {size_bytes}")
        os.fchown(fd, os.geteuid(), os.getegid())
        os.fchmod(fd, 0o600)
    return target
