"""Read and replace files in a directory with results, which may be untrusted. The size of a file that is read is
limited. A file is replaced in one step.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from quickstart.host.beneath import read_bounded
from quickstart.host.files import full_disk_named, sync_directory

# The directory in a results directory into which the report puts its figures.
FIGURES = "figures"
_PARTIAL = ".partial"
# With a suffix, below the 255 bytes that a file system allows a name (limits.h: NAME_MAX).
_NAME_MAX = 120


def file_name(*words: str) -> str:
    """The name of a figure's files, made from ``words``. The words may have any characters and any length, because one
    of the words is the name of a profile, and this name may be the path of a directory.
    """
    name = "-".join(re.sub(r"[^a-z0-9._-]+", "-", word.lower()).strip("-.") for word in words)
    if len(name) <= _NAME_MAX:
        return name
    return f"{name[:_NAME_MAX]}-{hashlib.sha256('-'.join(words).encode(errors='surrogatepass')).hexdigest()[:12]}"


def distinct(words: Iterable[str]) -> Mapping[str, str]:
    """A spelling for each of ``words``, so that `file_name` gives a different file name for each spelling. For
    example, if ``words`` has `a-b` and then `a/b`, the spelling of `a/b` is `a/b-2`.
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for word in dict.fromkeys(words):
        spelled, number = word, 1
        while (name := file_name(spelled)) in taken:
            number += 1
            spelled = f"{word}-{number}"
        taken.add(name)
        found[word] = spelled
    return found


def read_text(path: Path, limit_bytes: int) -> str:
    """The text of the regular file ``path``. Raises BadInputError when the file is not regular or is too large. Raises
    OSError when the file cannot be read, and UnicodeDecodeError when the file is not UTF-8.
    """
    return read_bounded(path, limit_bytes).decode("utf-8")


def replace_file(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` in one step. After a power failure, the file has either the old or the
    new content.

    The directory is also written to the disk, because otherwise the file's new name may not be on the disk (fsync(2)).
    Raises HostLacksError when the disk is full.
    """
    with full_disk_named(path.parent, "the results", "make room, then repeat the command: samples are kept"):
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=_PARTIAL, dir=path.parent)
        partial = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                os.fchmod(file.fileno(), 0o644)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def remove_partial(path: Path) -> None:
    """Remove the partial files that a killed process left next to ``path``. Only the process that is the sole writer of
    ``path`` may call this function.

    A link or directory with the name of a partial file does not come from QuickStart, and is not removed.
    """
    for left in path.parent.glob(f".{path.name}.*{_PARTIAL}"):
        if stat.S_ISREG(left.lstat().st_mode):
            left.unlink()
