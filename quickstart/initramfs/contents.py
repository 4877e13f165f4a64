"""List the regular files of an initramfs (QuickStart's or a distribution's) with their sizes."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path

from quickstart.errors import ArtefactError
from quickstart.host.cpulimit import INSIDE_LIMIT_S, TooSlowError, cpu_limit
from quickstart.initramfs.newc_reader import walk_archive
from quickstart.parse.printable import shown

# Ours have some hundred names, and a distribution's with all modules some thousand, of some hundred KB. Each comma counts
# as a value of results.json.
_MOST_NAMES, _MOST_BYTES, _MOST_COMMAS = 20_000, 2 << 20, 5000


def file_sizes(path: Path) -> Mapping[str, int] | None:
    """The size in bytes of each regular file, by name. When several members of the archive have the same name, the
    last member counts, because the kernel also keeps only the last member.

    A file with several hard links has its size under one of its names, and the size 0 under its other names. The
    result is None for an initramfs that cannot be read completely, because it is damaged or has an unknown
    compression. It is also None for an initramfs with more names than a start set has, because nobody compares them.
    Characters of a name that cannot be printed are replaced by escapes. The initramfs may come from somebody else.
    """
    found: dict[str, int] = {}
    left_bytes, left_commas = _MOST_BYTES, _MOST_COMMAS
    try:
        with path.open("rb") as stream, cpu_limit("an initramfs", INSIDE_LIMIT_S):
            for each, _ in walk_archive(stream):
                if not stat.S_ISREG(each.mode):
                    continue
                name = shown(each.name)
                found[name] = each.size
                # A line of JSON has a backslash for each backslash, and two for each character beyond ASCII.
                left_bytes -= len(json.dumps(name))
                left_commas -= name.count(",")
                if len(found) > _MOST_NAMES or left_bytes < 0 or left_commas < 0:
                    return None
    except (ArtefactError, TooSlowError):
        return None
    return dict(sorted(found.items()))
