"""Find the default search path of ld.so. The search path consists of the directories in ld.so.conf and ld.so's
built-in directories (ldconfig(8), ld.so(8)).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from quickstart.errors import StartSetError
from quickstart.inspect.imageroot import ImageRoot

LD_SO_CONF = PurePosixPath("/etc/ld.so.conf")
# ld.so(8) says "the default path /lib, and then /usr/lib". Debian's amd64 glibc searches the multiarch directories
# before these.
DEFAULT_DIRECTORIES = tuple(
    PurePosixPath("/", up, name) for name in ("lib/x86_64-linux-gnu", "lib", "lib64") for up in ("", "usr")
)


# Debian's configuration has one pattern of included files, and five directories. A pattern is compared with all names
# of a directory.
_MAX_PATTERNS = 1024
_MAX_INCLUDES = 16384
_MAX_DIRECTORIES = 4096
_MAX_CHARACTERS = 1 << 20


def library_directories(root: ImageRoot) -> tuple[PurePosixPath, ...]:
    """The directories in /etc/ld.so.conf and in its included files, in order, and then ld.so's built-in directories.
    The result has each directory once, spelled as in the configuration.

    Raises StartSetError when a configuration file cannot be read, or when the configuration has too many entries.
    """
    found: dict[PurePosixPath, None] = {}
    for path in itertools.chain(_configured(root, _Read()), DEFAULT_DIRECTORIES):
        found[path] = None
        if len(found) > _MAX_DIRECTORIES:
            raise _too_much(f"{_MAX_DIRECTORIES} directories")
    return tuple(found)


@dataclass(frozen=True)
class Configuration:
    """What decides the search path of ld.so: the configuration files, as they are named, and the directories in which
    an ``include`` entry looks for further files.
    """

    files: tuple[PurePosixPath, ...]
    directories: tuple[PurePosixPath, ...]


def configuration(root: ImageRoot) -> Configuration:
    """The configuration of ld.so. Raises StartSetError as `library_directories` does."""
    read = _Read()
    for _ in _configured(root, read):
        pass
    return Configuration((LD_SO_CONF, *read.files), tuple(read.directories))


@dataclass(kw_only=True)
class _Read:
    """The totals over all configuration files read so far. ``plain`` is the number of ``include`` entries without
    wildcards, ``patterns`` is the number of ``include`` entries with wildcards, and ``characters`` is the number of
    characters. ``files`` are the files that were included, and ``directories`` are those of the ``include`` entries.
    """

    plain: int = 0
    patterns: int = 0
    characters: int = 0
    files: dict[PurePosixPath, None] = field(default_factory=dict)
    directories: dict[PurePosixPath, None] = field(default_factory=dict)

    def lines(self, text: str) -> list[str]:
        """The lines of a file. Raises StartSetError when all files read so far have more text together than the
        limit allows.
        """
        self.characters += len(text)
        if self.characters > _MAX_CHARACTERS:
            raise _too_much(f"{_MAX_CHARACTERS} characters")
        return text.splitlines()

    def count(self, pattern: str) -> None:
        """Count one ``include`` entry. Raises StartSetError when there are more such entries than the limit
        allows.
        """
        if set(pattern) & set("*?["):
            self.patterns += 1
        else:
            self.plain += 1
        if self.patterns > _MAX_PATTERNS or self.plain > _MAX_INCLUDES:
            raise _too_much(f"{_MAX_PATTERNS} patterns or {_MAX_INCLUDES} files to include")


def _too_much(what: str) -> StartSetError:
    return StartSetError(f"{LD_SO_CONF} names or has more than {what}", hint="shorten it in the image")


def _configured(root: ImageRoot, read: _Read) -> Iterator[PurePosixPath]:
    """The directories in all configuration files. The function reads each file once. The entries of an included file
    come in place of the line that includes the file. The function uses a loop instead of recursion, because includes
    may be nested to any depth.
    """
    seen: set[PurePosixPath] = set()
    pending = [_statements(root, LD_SO_CONF, seen, read)]
    while pending:
        found = next(pending[-1], None)
        if found is None:
            pending.pop()
            continue
        path, included = found
        if included:
            pending.append(_statements(root, path, seen, read))
        else:
            yield path


def _statements(
    root: ImageRoot, conf: PurePosixPath, seen: set[PurePosixPath], read: _Read
) -> Iterator[tuple[PurePosixPath, bool]]:
    """The entries of a configuration file in order, each as (path, whether the path is a file to include). The result
    is empty for a file that does not exist, or that is in ``seen``. ``read`` has the totals over the whole
    configuration.
    """
    canonical = root.resolve(conf).canonical
    if canonical is None or canonical in seen:
        return
    seen.add(canonical)
    for line in read.lines(root.read_text(canonical)):
        words = line.partition("#")[0].split() or [""]
        if words[0] == "include":
            for pattern in words[1:]:
                read.count(pattern)
                read.directories[(conf.parent / pattern).parent] = None
                for path in root.glob(conf.parent / pattern):
                    read.files[path] = None
                    yield path, True
        elif words[0].startswith("/"):
            # "DIRECTORY=TYPE" was the libc5 way to say what is in it.
            yield PurePosixPath(words[0].partition("=")[0]), False
