"""Find the large files that the unit opened, and the parts of these files that were in the guest's page cache
at ready. Apart from looking up names in the image, this module has no side effects.

The program tracers/resident writes a log of the parts that are in the page cache. The page cache belongs to the whole
machine. So a part may also be in the page cache because another program read this part, or because the kernel read
ahead. In the reference boot, the kernel reads ahead by 16 KiB at most (see the script tracers/strace-init, which sets
this limit).
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Sequence
from pathlib import PurePosixPath

from quickstart.errors import TraceError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.script import interpreter_of
from quickstart.model import Op
from quickstart.model.residency import Resident
from quickstart.trace.collect import UnitLog
from quickstart.trace.whole import whole

# A smaller file is read completely (pack/prefetch.py).
LARGE_BYTES = 512 * 1024
# Their names go to the guest in one command.
_MOST_FILES = 512
_MOST_PARTS = 1 << 16
_MOST_PARTS_IN_ALL = 1 << 17
_HEAD = "== "
_FILE = re.compile(r"== ([0-9]{1,18}) (/.*)")
_PART = re.compile(r"([0-9]{1,18}) ([0-9]{1,18})")


def large_files(log: UnitLog, root: ImageRoot) -> tuple[PurePosixPath, ...]:
    """The canonical paths of the large files that the unit opened, mapped or executed, sorted by path. A large file
    is a regular file of more than 512 KiB. When there are more than 512 large files, the result has only the 512
    largest files.
    """
    sizes: dict[PurePosixPath, int] = {}
    for event in log.events:
        if event.error is not None or event.op not in (Op.OPEN, Op.MAP, Op.EXEC, Op.WRITE):
            continue
        path = root.resolve(event.path).canonical
        if path is not None and path not in sizes and "\n" not in str(path):
            _add(sizes, path, root)
            # The kernel opens it, which strace does not see.
            script = interpreter_of(root, path) if event.op is Op.EXEC else None
            program = root.resolve(script.program).canonical if script else None
            if program is not None:
                _add(sizes, program, root)
    large = sorted(
        (path for path, size in sizes.items() if size > LARGE_BYTES), key=lambda path: -sizes[path]
    )
    return tuple(sorted(large[:_MOST_FILES], key=os.fsencode))


def _add(sizes: dict[PurePosixPath, int], path: PurePosixPath, root: ImageRoot) -> None:
    status = root.host(path).lstat()
    sizes[path] = status.st_size if stat.S_ISREG(status.st_mode) else 0


def parse_resident(text: str) -> tuple[Resident, ...]:
    """The files in the log of the program tracers/resident, each with its parts in the page cache. Raises TraceError
    for a log that is incomplete or damaged, or has more files or parts than this module allows. The numbers of files
    and lines are checked before the log is parsed, so that a hostile log cannot use up the memory.
    """
    text = whole("the page cache", text)
    if not text:
        return ()
    heads = text.count(f"\n{_HEAD}") + 1
    if (
        not (text.startswith(_HEAD) and text.endswith("\n"))
        or heads > _MOST_FILES
        or text.count("\n") > heads + _MOST_PARTS_IN_ALL
    ):
        raise _damaged()
    lines = text.split("\n")[:-1]
    begins = [number for number, line in enumerate(lines) if line.startswith(_HEAD)]
    ends = [*begins[1:], len(lines)]
    return tuple(_file(lines[begin], lines[begin + 1 : end]) for begin, end in zip(begins, ends, strict=True))


def _file(head: str, lines: Sequence[str]) -> Resident:
    named = _FILE.fullmatch(head)
    if named is None or len(lines) > _MOST_PARTS:
        raise _damaged()
    parts = tuple(map(_part, lines))
    if any(offset + length > after for (offset, length), (after, _) in itertools.pairwise(parts)):
        raise _damaged()
    return Resident(PurePosixPath(named[2]), int(named[1]), parts)


def _part(line: str) -> tuple[int, int]:
    match = _PART.fullmatch(line)
    if match is None:
        raise _damaged()
    return int(match[1]), int(match[2])


def _damaged() -> TraceError:
    return TraceError("the log of the page cache is damaged", hint="build again")
