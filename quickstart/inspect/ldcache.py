"""Read the paths in ldconfig's cache (/etc/ld.so.cache, ldconfig(8)). ldconfig writes each path as a string that ends
with a NUL, behind a table of numbers.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import PurePosixPath

from quickstart.inspect.imageroot import ImageRoot

_CACHE = PurePosixPath("/etc/ld.so.cache")
# Caches of desktops have some hundred KiB.
_MOST_BYTES = 16 << 20


def cached_paths(root: ImageRoot, names: Collection[bytes]) -> list[bytes]:
    """The paths in the cache that contain a slash followed by one of ``names``, without the leading slash, sorted.
    The result has the path of the cache alone if the cache is a link, because init cannot follow a link from the place
    where it reads the volume. Raises ImageFileError for a cache that is too large or not a regular file.

    The script ``settings-files`` of init finds the same paths by tr(1) and grep(1).
    """
    host = root.host(_CACHE)
    if root.resolve(_CACHE.parent).canonical != _CACHE.parent or not os.path.lexists(host):
        return []
    if host.is_symlink():
        return [os.fsencode(_CACHE)[1:]]
    wanted = [b"/" + name for name in names]
    strings = root.read_bytes(_CACHE, _MOST_BYTES).replace(b"\0", b"\n").split(b"\n")
    # Numbers may come before the first slash of the first string.
    return sorted({text[text.index(b"/") + 1 :] for text in strings if any(each in text for each in wanted)})
