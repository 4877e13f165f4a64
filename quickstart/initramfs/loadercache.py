"""Find what ldconfig's cache says of packed libraries. A process of a fast start finds a packed library by
LD_LIBRARY_PATH. The loader (ld.so) of a stock boot (the distribution's own boot) finds libraries by /etc/ld.so.cache.
The cache may also have libraries in directories that the loader's configuration does not name: `ldconfig DIR` adds
those of DIR, and older loaders search subdirectories such as `tls` and `haswell`.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import PurePosixPath

from quickstart.errors import ImageFileError
from quickstart.initramfs.facts import CAPABILITIES
from quickstart.initramfs.serving import is_library, served_files
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.ldcache import cached_paths
from quickstart.inspect.ldconf import library_directories
from quickstart.model import StartSet

# Init compares each of them at each boot.
_MOST_CACHED = 1 << 16


def cache_facts(root: ImageRoot, start_set: StartSet, bound: Collection[PurePosixPath]) -> bytes:
    """Lines for init's script ``settings-files``, each with a word, two spaces and a value:

    - ``DIRECTORY`` lines have the loader's directories. The names of packed libraries in these directories are packed
      facts already (see initramfs/facts.py), so the paths in the cache that lead to these directories do not count.
    - ``LIBRARY`` lines have the names of the packed libraries that processes find by LD_LIBRARY_PATH.
    - ``CACHED`` lines have the paths in the cache, without the leading slash, that are in none of the directories and
      that contain a slash and one of the names. Init makes these lines again from the cache on the volume.

    The result is empty if no process finds a packed library by LD_LIBRARY_PATH. Raises ImageFileError for a cache that
    is too large or not a regular file.
    """
    libraries = {file.path.name for file in served_files(start_set, bound) if is_library(file.path)}
    names = sorted(os.fsencode(name) for name in libraries if "\n" not in name)
    if not names:
        return b""
    directories = set(map(os.fsencode, _directories(root)))
    cached = [path for path in cached_paths(root, names) if path.rpartition(b"/")[0] not in directories]
    if len(cached) > _MOST_CACHED:
        raise ImageFileError(
            f"ldconfig's cache has {len(cached)} paths of packed libraries outside the loader's directories, too many to compare",
            hint="run ldconfig in the image",
        )
    lines = [b"DIRECTORY  " + each for each in sorted(directories)]
    lines += [b"LIBRARY  " + name for name in names]
    lines += [b"CACHED  " + path for path in cached]
    return b"".join(line + b"\n" for line in lines)


def _directories(root: ImageRoot) -> set[str]:
    """The loader's directories, in the configuration's spelling and in the canonical spelling, without the leading
    slash. The subdirectories for the capabilities of CPUs are packed facts as well.
    """
    found: set[str] = set()
    for each in library_directories(root):
        canonical = root.resolve(each).canonical
        for place in (each, canonical):
            if place is not None and place.name and "\n" not in str(place):
                found.update(str(path)[1:] for path in (place, *(place / name for name in CAPABILITIES)))
    return found
