"""Read the paths in ldconfig's cache (/etc/ld.so.cache, ldconfig(8)). ldconfig writes each path as a string that ends
with a NUL, behind a table of numbers.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from quickstart.inspect.imageroot import ImageRoot

_CACHE = PurePosixPath("/etc/ld.so.cache")
# A host with 1030 libraries has 37 KiB.
_MOST_BYTES = 16 << 20
# Variants for some CPUs have any name; the loader finds them by the name within the library (ld.so(8)).
_VARIANTS = b"glibc-hwcaps/"


def cached_paths(root: ImageRoot, names: Collection[bytes]) -> list[bytes]:
    """The paths in the cache that contain a slash followed by one of ``names``, and those of variants for some CPUs
    (glibc-hwcaps). The paths are sorted, and have no leading slash. If the cache is a link, the result has only the path
    of the cache, because init cannot follow a link from the place where it reads the volume. Raises ImageFileError for a
    cache that is too large or not a regular file.

    The script ``settings-files`` of init finds the same paths by tr(1) and grep(1).
    """
    host = root.host(_CACHE)
    if root.resolve(_CACHE.parent).canonical != _CACHE.parent or not os.path.lexists(host):
        return []
    if host.is_symlink():
        return [os.fsencode(_CACHE)[1:]]
    # In front of a string may be a number, whose bytes may be any.
    data = root.read_bytes(_CACHE, _MOST_BYTES).replace(b"\0", b"\n")
    return sorted(
        {text[text.index(b"/") + 1 :] for name in (*names, _VARIANTS) for text in _with(data, name)}
    )


def _with(data: bytes, name: bytes) -> Iterator[bytes]:
    """The lines of ``data`` that contain a slash followed by ``name``. The cache is searched once for each name, however
    many lines it has.
    """
    wanted, at = b"/" + name, 0
    while (at := data.find(wanted, at)) >= 0:
        begin, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
        at = end if end >= 0 else len(data)
        yield data[begin:at]
