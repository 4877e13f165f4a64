"""Where ld.so looks for a library that no program says the place of: ld.so.conf and its own directories (ldconfig(8), ld.so(8))."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from quickstart.imageroot import ImageRoot

LD_SO_CONF = PurePosixPath("/etc/ld.so.conf")
# ld.so(8): "the default path /lib, and then /usr/lib"; Debian's amd64 glibc has the multiarch ones before.
DEFAULT_DIRECTORIES = tuple(
    PurePosixPath("/", up, name) for name in ("lib/x86_64-linux-gnu", "lib", "lib64") for up in ("", "usr")
)


def library_directories(root: ImageRoot) -> tuple[PurePosixPath, ...]:
    """The directories of /etc/ld.so.conf and its includes, in order, then ld.so's own; each as spelled, once.

    Raises StartSetError when a configuration file cannot be read.
    """
    return tuple(dict.fromkeys((*_configured(root), *DEFAULT_DIRECTORIES)))


def _configured(root: ImageRoot) -> Iterator[PurePosixPath]:
    """Each file once, an included one in the place of its line; no recursion, for the includes may go as deep as they like."""
    seen: set[PurePosixPath] = set()
    pending = [_statements(root, LD_SO_CONF, seen)]
    while pending:
        found = next(pending[-1], None)
        if found is None:
            pending.pop()
            continue
        path, included = found
        if included:
            pending.append(_statements(root, path, seen))
        else:
            yield path


def _statements(
    root: ImageRoot, conf: PurePosixPath, seen: set[PurePosixPath]
) -> Iterator[tuple[PurePosixPath, bool]]:
    """What a file says, line by line: a path, and whether it is a file to include."""
    canonical = root.resolve(conf).canonical
    if canonical is None or canonical in seen:
        return
    seen.add(canonical)
    for line in root.read_text(canonical).splitlines():
        words = line.partition("#")[0].split() or [""]
        if words[0] == "include":
            for pattern in words[1:]:
                yield from ((path, True) for path in root.glob(conf.parent / pattern))
        elif words[0].startswith("/"):
            # "DIRECTORY=TYPE" was the libc5 way to say what is in it.
            yield PurePosixPath(words[0].partition("=")[0]), False
