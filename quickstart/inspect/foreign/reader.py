"""The process that parses a tar archive or a disk that somebody else has made: `python -m
quickstart.inspect.foreign.reader FORM EMPTY-DIRECTORY <SOURCE >MEMBERS`.

The module ``home`` starts the process as root in namespaces of its own. The process gives up all privileges as soon as
its code is loaded. From then on, it runs as the user nobody with an empty root directory, without a network, without a
way to regain privileges, and with limits on memory and time.
"""

from __future__ import annotations

import ctypes
import io
import os
import resource
import signal
import struct
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from quickstart.errors import BadInputError
from quickstart.inspect.foreign.ext4 import read_image
from quickstart.inspect.foreign.members import Member, write_end, write_member
from quickstart.inspect.foreign.tar import read_archive

NOBODY = 65534
_MEMORY_BYTES = 1 << 30
_CPU_S = 1800
_OUT_BYTES = 1 << 20
# linux/prctl.h
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_DUMPABLE = 1, 38, 4

Members = Iterator[tuple[Member, Iterator[bytes]]]


def without_data(members: Members) -> Members:
    """The members without their data. Each file keeps its size, but consists of only one hole."""
    for member, _ in members:
        yield Member(**{**member.__dict__, "segments": ()}), iter(())


FORMS: dict[str, Callable[[], Members]] = {
    "ext4": lambda: read_image(0),
    "ext4-list": lambda: without_data(read_image(0)),
    "tar": lambda: read_archive(sys.stdin.buffer),
    "tar-list": lambda: without_data(read_archive(sys.stdin.buffer)),
}


def give_up_rights(empty: Path) -> None:
    """Become the user nobody, with ``empty`` as the root directory. Raises OSError when a privilege cannot be given
    up.
    """
    os.chroot(empty)
    os.chdir("/")
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    libc = ctypes.CDLL(None, use_errno=True)
    # The change of user has cleared the first setting, by which unshare(1) had bound us to itself, and so to
    # QuickStart's own process.
    for option, value in (
        (_PR_SET_PDEATHSIG, signal.SIGKILL),
        (_PR_SET_NO_NEW_PRIVS, 1),
        (_PR_SET_DUMPABLE, 0),
    ):
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
    # A limit of 1, unlike 0, also keeps a core from the host's handler (door.core_limit).
    core = 0 if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0 else 1
    for kind, limit in (
        (resource.RLIMIT_AS, _MEMORY_BYTES),
        (resource.RLIMIT_CPU, _CPU_S),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, core),
        # Without this limit, every new process would have the other limits for itself.
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(kind, (limit, limit))


def tell(members: Members, out: BinaryIO) -> None:
    """Write the members to ``out``, and then the last record, which marks the end. When the source has a fault, the
    last record names the fault.
    """
    try:
        for member, data in members:
            write_member(out, member, data)
    except BadInputError as error:
        write_end(out, error.message, error.hint or "")
    except MemoryError:
        write_end(out, "cannot be read in a GiB of memory", "a sound one can")
    except (
        ValueError,
        ArithmeticError,
        LookupError,
        RecursionError,
        struct.error,
        tarfile.TarError,
    ) as error:
        write_end(out, f"cannot be read: {error!r:.200}", "is it damaged?")
    else:
        write_end(out)


def main(form: str, empty: str) -> None:
    """Parse the source on stdin as ``form``, and write the members to stdout."""
    out = io.BufferedWriter(io.FileIO(1, "w", closefd=False), _OUT_BYTES)
    give_up_rights(Path(empty))
    tell(FORMS[form](), out)


if __name__ == "__main__":
    main(*sys.argv[1:])
