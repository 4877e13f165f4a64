"""Use a directory on the host as a root. This module resolves guest paths inside this directory, so that they never
lead out of it.

The rules are those of path_resolution(7) for a process that is chrooted into the directory. An absolute link target
starts at the directory, a ``..`` does not lead out of the directory, and more than 40 links are an error.
"""

from __future__ import annotations

import errno
import fnmatch
import itertools
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from quickstart.errors import ImageFileError, StartSetError
from quickstart.parse.bounded import PATH_MAX, read_whole
from quickstart.parse.printable import brief

MAX_LINKS = 40
# Configuration, unit files and dpkg's lists are not larger than the first limit. A kernel module or library may be.
MAX_TEXT_BYTES = 16 << 20
MAX_WHOLE_BYTES = 64 << 20
# A list of a few hundred lines: passwd, group.
MAX_TABLE_BYTES = 2 << 20
# The limit for the components of a path, including those of its links. The kernel's own limit (40 links of a page
# each) is far above. Each component is looked up from the root, so the time grows with the square. A file in a deep
# node_modules has 50.
_MAX_COMPONENTS = 512
_MAX_MATCHES = 65536
# The limits for all look-ups of one ImageRoot, and for all files that it reads, because files of an image may refer
# to each other any number of times. A build of nginx looks up 150 000 components and reads 3000 files with 7 MiB
# altogether. A build of mariadb reads 9 MiB. Most of this is dpkg's database, which is read eight times for each
# unit, and which has 35 MiB on a desktop.
_MOST_COMPONENTS, _MOST_READS, _MOST_BYTES = 1 << 22, 1 << 18, 2 << 30
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})
_MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Resolution:
    """The result of resolving a guest path.

    ``canonical`` is the resolved path, without any link, or None when the guest path does not exist. ``links`` are
    the paths of the symlinks that were followed, in order and without duplicates. Each of these paths has a
    canonical directory, and a link as the last component. A dangling link is included in ``links``.

    ``existing`` is the canonical path of the longest part of the path that exists. ``missing`` are the components after
    this part, as the guest path spells them. Nothing is missing when the path exists.
    """

    canonical: PurePosixPath | None
    links: tuple[PurePosixPath, ...]
    existing: PurePosixPath
    missing: tuple[str, ...]


@dataclass(frozen=True)
class ImageRoot:
    """``base`` is the host directory that the guest sees as ``/``.

    One ImageRoot object looks up and reads only a limited number of files. Beyond this limit, its functions raise
    ImageFileError. An image exceeds this limit only when somebody made the image to keep a build busy.
    """

    base: Path
    _spent: list[int] = field(default_factory=lambda: [0, 0, 0], compare=False, repr=False)

    def host(self, canonical: PurePosixPath) -> Path:
        """The host path of a canonical guest path. Use ``resolve`` to make a path canonical, because the host
        would follow links from its own root.

        Raises StartSetError for a path that is relative or has ``..``.
        """
        if not canonical.is_absolute() or ".." in canonical.parts:
            raise StartSetError(f"{canonical} is not a canonical guest path", hint="resolve it first")
        return self.base.joinpath(*canonical.parts[1:])

    def read_text(self, canonical: PurePosixPath, most_bytes: int = MAX_TEXT_BYTES) -> str:
        """The content of a text file. Bytes that are not UTF-8 are surrogate-escaped.

        Raises StartSetError with the path when the file cannot be read, is not a regular file or is larger
        than ``most_bytes``.
        """
        return self.read_bytes(canonical, most_bytes).decode("utf-8", "surrogateescape")

    def read_bytes(self, canonical: PurePosixPath, most_bytes: int = MAX_WHOLE_BYTES) -> bytes:
        """The whole content of a file of at most ``most_bytes``. Raises StartSetError in the same cases as the method
        ``read_text``.
        """
        host = self.host(canonical)
        self._spent[1] += 1
        self._check_spent(canonical)
        try:
            status = host.lstat()
            if not stat.S_ISREG(status.st_mode):
                raise ImageFileError(
                    f"{brief(str(canonical))} is not a regular file",
                    hint="put a plain file there in the image",
                )
            if status.st_size > most_bytes:
                raise ImageFileError(
                    f"{brief(str(canonical))} has {status.st_size} bytes; such a file is read up to {most_bytes}",
                    hint="shorten it in the image",
                )
            # The size is counted before the file is read, because a file may have many hard links, each of which
            # counts as a file.
            self._spent[2] += status.st_size
            self._check_spent(canonical)
            return read_whole(host, most_bytes)
        except ValueError as error:
            raise ImageFileError(
                f"{str(canonical)!r} is no file's name",
                hint="the image has this name in a file; correct it there",
            ) from error
        except OSError as error:
            raise ImageFileError(
                f"{brief(str(canonical))} cannot be read: {error.strerror}",
                hint="is it there in the image, and may you read it?",
            ) from error

    def link_target(self, canonical: PurePosixPath) -> str | None:
        """The target of a symbolic link, as the link contains it. The result is None for any other file."""
        try:
            return str(self.host(canonical).readlink())
        except (OSError, ValueError):
            return None

    def has_acl(self, canonical: PurePosixPath) -> bool:
        """Whether the file has an access control list (acl(5)). Such a list may deny access that the file's mode
        allows.
        """
        return "system.posix_acl_access" in os.listxattr(self.host(canonical), follow_symlinks=False)

    def names(self, canonical: PurePosixPath) -> list[str]:
        """The names in a directory, in byte order. Raises StartSetError with the directory's path when the
        directory cannot be read.
        """
        try:
            names = sorted((each.name for each in os.scandir(self.host(canonical))), key=os.fsencode)
        except OSError as error:
            raise _unreadable(canonical, error) from error
        self._spent[0] += len(names)
        self._check_spent(canonical)
        return names

    def names_and_links(self, canonical: PurePosixPath) -> dict[str, bool]:
        """The names in a directory, in byte order. Each name is a key, whose value is True for a symbolic link. Raises
        StartSetError in the same case as `names`.
        """
        try:
            with os.scandir(self.host(canonical)) as entries:
                found = {each.name: each.is_symlink() for each in entries}
        except OSError as error:
            raise _unreadable(canonical, error) from error
        return dict(sorted(found.items(), key=lambda row: os.fsencode(row[0])))

    def below(self, canonical: PurePosixPath) -> Iterator[PurePosixPath]:
        """The paths of all files below a directory at any depth, in no particular order. The result has no directories,
        and the function follows no links.

        The result does not have files whose paths would be longer than PATH_MAX. Raises StartSetError for a directory
        that cannot be read.
        """
        pending = [canonical]
        while pending:
            directory = pending.pop()
            try:
                with os.scandir(self.host(directory)) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(directory / entry.name)
                        else:
                            yield directory / entry.name
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise _unreadable(directory, error) from error

    def statuses_below(self, canonical: PurePosixPath) -> Iterator[tuple[PurePosixPath, os.stat_result]]:
        """The files that the method ``below`` yields, each with its status (lstat(2))."""
        for path in self.below(canonical):
            try:
                status = self.host(path).lstat()
            except OSError as error:
                # Its directory's name was just short enough.
                if error.errno != errno.ENAMETOOLONG:
                    raise _unreadable(path, error) from error
                continue
            yield path, status

    def hard_links(self) -> Mapping[tuple[int, int], tuple[PurePosixPath, ...]]:
        """For each regular file with several hard links in the tree, the paths of these links, in byte order. The key
        is the file's device and inode.
        """
        found: dict[tuple[int, int], list[PurePosixPath]] = {}
        for path, status in self.statuses_below(PurePosixPath("/")):
            if status.st_nlink > 1 and stat.S_ISREG(status.st_mode):
                found.setdefault((status.st_dev, status.st_ino), []).append(path)
        return {inode: tuple(sorted(names, key=os.fsencode)) for inode, names in found.items()}

    def resolve(self, path: PurePosixPath) -> Resolution:
        """Follow every link in an absolute guest path, including the last component.

        Raises StartSetError with the path when the path is relative, leads through more than 40 links, or cannot be
        read.
        """
        found, fault = self._followed(path)
        if fault is not None:
            raise fault
        return found

    def look_up(self, path: PurePosixPath) -> Resolution:
        """Follow every link in a path, as the method `resolve` does. But a path that leads through more than 40 links
        counts as a path that does not exist, because a process that looks up such a path gets an error.
        """
        return self._followed(path)[0]

    def _followed(self, path: PurePosixPath) -> tuple[Resolution, StartSetError | None]:
        """The result of following ``path``, and an error or None. The error is None unless the path leads through too
        many links or components.
        """
        spelled = path.parts[1:]
        if len(str(path)) >= PATH_MAX:
            return Resolution(None, (), PurePosixPath("/"), spelled), None
        if not path.is_absolute():
            raise StartSetError(f"{path} is not an absolute guest path", hint="give it from / on")
        self._check_spent(path)
        pending = list(reversed(spelled))
        # The canonical path so far, without the slash at its end. It is a text, because a path object with many
        # components is slow.
        place = ""
        # How many components of the path as it is spelled are left, and where the components before these lead.
        left, existing = len(pending), ""
        links: dict[PurePosixPath, None] = {}
        followed = components = 0

        def ended(fault: StartSetError | None = None) -> tuple[Resolution, StartSetError | None]:
            missing = spelled[len(spelled) - left :]
            return Resolution(None, tuple(links), PurePosixPath(existing or "/"), missing), fault

        while pending:
            part = pending.pop()
            components += 1
            self._spent[0] += 1
            if components > _MAX_COMPONENTS:
                return ended(_too_long(path))
            here = place[: max(place.rfind("/"), 0)] if part == ".." else f"{place}/{part}"
            host = f"{self.base}{here}"
            mode = stat.S_IFDIR if part == ".." else _mode(host, path)
            if mode is None:
                return ended()
            if stat.S_ISLNK(mode):
                followed += 1
                if followed > MAX_LINKS:
                    return ended(_circle(path, PurePosixPath(here)))
                links[PurePosixPath(here)] = None
                target = PurePosixPath(Path(host).readlink())
                if target.is_absolute():
                    place = ""
                pending.extend(reversed(_components(target)))
            else:
                place = here
            if len(pending) < left:
                left, existing = len(pending), place
            if pending and not stat.S_ISDIR(mode) and not stat.S_ISLNK(mode):
                return ended()
        found = PurePosixPath(existing or "/")
        return Resolution(found, tuple(links), found, ()), None

    def _check_spent(self, path: PurePosixPath) -> None:
        components, reads, read_bytes = self._spent
        if components > _MOST_COMPONENTS or reads > _MOST_READS or read_bytes > _MOST_BYTES:
            raise ImageFileError(
                f"the image's files ask for more than {_MOST_READS} files, files of more than {_MOST_BYTES} bytes,"
                f" or paths of more than {_MOST_COMPONENTS} components in all, the last is {brief(str(path))}",
                hint="give another image: only one that was made for this asks for so many",
            )

    def glob(self, pattern: PurePosixPath) -> tuple[PurePosixPath, ...]:
        """The existing paths that match an absolute pattern (glob(3)), spelled as in the pattern, in byte order.
        Because of links, several matching paths may lead to the same directory. The method searches only the first of
        these paths, so it finds each file in the directory once.

        ``*``, ``?`` and ``[…]`` match within one component. A name with a leading dot matches only a component of the
        pattern that also begins with a dot. Raises StartSetError when more than _MAX_MATCHES paths match.
        """
        if len(str(pattern)) >= PATH_MAX:
            return ()
        found = [PurePosixPath("/")]
        for part in pattern.parts[1:]:
            if not _MAGIC.search(part):
                found = [base / part for base in found]
                continue
            # A directory that is reached in several ways counts once, because links could make any number of ways.
            bases: dict[PurePosixPath, PurePosixPath] = {}
            for base in found:
                canonical = self.resolve(base).canonical
                if canonical is not None and self.host(canonical).is_dir():
                    bases.setdefault(canonical, base)
            matches = (base / name for place, base in bases.items() for name in self._matches(place, part))
            found = list(itertools.islice(matches, _MAX_MATCHES + 1))
            if len(found) > _MAX_MATCHES:
                raise ImageFileError(
                    f"{pattern} matches more than {_MAX_MATCHES} names",
                    hint="the image asks for too much there",
                )
        present = (path for path in found if self.resolve(path).canonical is not None)
        return tuple(sorted(present, key=os.fsencode))

    def _matches(self, directory: PurePosixPath, pattern: str) -> Iterable[str]:
        """The names that match ``pattern`` in ``directory``, a canonical path."""
        return [
            name
            for name in self.names(directory)
            if fnmatch.fnmatchcase(name, pattern) and (pattern[0] == "." or name[0] != ".")
        ]


def _too_long(path: PurePosixPath) -> ImageFileError:
    return ImageFileError(
        f"{brief(str(path))} has more than {_MAX_COMPONENTS} components with those of its links",
        hint="the image has links there that lead to and fro; remove them",
    )


def _circle(path: PurePosixPath, last: PurePosixPath) -> ImageFileError:
    return ImageFileError(
        f"{brief(str(path))} meets more than {MAX_LINKS} symbolic links, the last at {brief(str(last))}",
        hint="the image has a loop of links there; remove it",
    )


def _components(target: PurePosixPath) -> tuple[str, ...]:
    return target.parts[1:] if target.is_absolute() else target.parts


def _mode(host: str, asked: PurePosixPath) -> int | None:
    """``st_mode`` of the file at the path itself. A link is not followed. The result is None when the file does not
    exist.
    """
    try:
        return os.stat(host, follow_symlinks=False).st_mode  # noqa: PTH116
    except ValueError:
        # A NUL or a lone surrogate: no file has such a name.
        return None
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise StartSetError(
            f"{asked} cannot be looked up: {host}: {error.strerror}",
            hint="run as a user who may read the image",
        ) from error


def _unreadable(path: PurePosixPath, error: OSError) -> StartSetError:
    return StartSetError(
        f"{path} cannot be read: {error.strerror}", hint="run as a user who may read the image"
    )
