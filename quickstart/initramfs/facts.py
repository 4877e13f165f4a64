"""Collect the packed facts. A machine can start fast only if the packed facts are still true of its root volume. In
the guest, init and the command /usr/sbin/quickstart compare the packed facts with the volume
(docs/users/never-stale.md).

The packed facts are about:

- the files that processes open from /fast
- the paths where a stock boot (the distribution's own boot) looks first, because it would use a file at such a path in
  place of a packed file
- everything that decides how the unit starts
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from quickstart.errors import StartSetError
from quickstart.initramfs.serving import is_library, served_files
from quickstart.inspect.elf import own_directories
from quickstart.inspect.elf_file import read_elf
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.ldconf import configuration, library_directories
from quickstart.inspect.unit.apparmor import refuse_profiles
from quickstart.inspect.unit.enabled import enabled_text, own_drop_ins
from quickstart.inspect.unit.facts import VOLATILE, Deciding, deciding, way_to
from quickstart.model import IMAGE_TIME_S, FileKind, StartFile, StartSet
from quickstart.model.reasons import ReasonSource

STOCK_PATH = tuple(
    map(PurePosixPath, ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"))
)
# In each directory, ld.so(8) prefers the libraries below these subdirectories, if the CPU supports them.
CAPABILITIES = ("glibc-hwcaps/x86-64-v2", "glibc-hwcaps/x86-64-v3", "glibc-hwcaps/x86-64-v4")
# In the directories of DT_RUNPATH, glibc before version 2.37 prefers these, too. In its own ones, it goes by ldconfig's cache.
_OLD_CAPABILITIES = ("tls", "haswell", "xeon_phi", "x86_64", "avx512_1")


# The limit for names of libraries in directories of DT_RUNPATH, each of which init looks up.
_MOST_NAMES = 1 << 18


@dataclass(frozen=True)
class Way:
    """A directory on the way to a served file (a file that processes open from /fast). ``mode``, ``uid`` and ``gid``
    decide who may enter the directory (stat(2)).
    """

    path: PurePosixPath
    mode: int
    uid: int
    gid: int


@dataclass(frozen=True, kw_only=True)
class Watched:
    """The paths that the guest compares with the volume in addition to the packed files.

    ``names`` are paths that may or may not exist. ``places`` are directories whose entries the guest compares.
    ``files`` are links and regular files of the image. Each of these files is in ``names`` or in a directory of
    ``places``. ``ways`` are directories whose modes and owners the guest compares. ``enabled`` is the list of the
    enabled units and of the units that start before the application. From this list, init decides whether a unit that
    is enabled after the build prevents a fast start. ``parents`` are all directories above the compared paths, whether
    the directories exist or not. ``parents`` has no links.
    """

    names: tuple[PurePosixPath, ...] = ()
    places: tuple[PurePosixPath, ...] = ()
    files: tuple[StartFile, ...] = ()
    ways: tuple[Way, ...] = ()
    enabled: bytes = b""
    parents: tuple[PurePosixPath, ...] = ()


NOTHING = Watched()


def watched(
    root: ImageRoot,
    units: tuple[str, ...],
    start_set: StartSet,
    bound: Collection[PurePosixPath],
    *,
    executed: Collection[PurePosixPath] = (),
    searched: Collection[PurePosixPath] = (),
    absent: Collection[PurePosixPath] = (),
    hidden: Collection[str] = (),
) -> Watched:
    """Everything that the guest compares with the volume for an early start of ``units``, in addition to the served
    files (the files that processes open from /fast). ``executed`` are all programs that the traced boots executed,
    whether or not they are in the start set. ``searched`` are the directories in DT_RPATH and DT_RUNPATH of all
    programs and libraries that may run with the unit's environment (pack.shadow.searched). ``absent`` are further
    paths. At a fast start, no file may exist at these paths. ``hidden`` are the paths below /run and /dev that the
    units hide from their processes (inspect/unit/hidden.py finds them).

    Raises UnsupportedUnitError when the image does not have the unit, and when an AppArmor profile attaches to one of
    the executed or served programs.
    """
    served = served_files(start_set, bound)
    decisive = _before(root, served, searched)
    programs = {*executed, *(file.path for file in served if not is_library(file.path))}
    for unit in units:
        refuse_profiles(root, unit, programs)
        decisive += deciding(root, unit)
    # Every entry of a compared directory is compared already.
    others = tuple(path for path in own_drop_ins(root).files if path.parent not in decisive.places)
    everything = decisive + Deciding((*others, *sorted(absent)))
    found = replace(everything, places=tuple(path for path in everything.places if _is_listed(root, path)))
    names = tuple(path for path in found.files if path not in {file.path for file in served})
    entries = (
        place / name for place in found.places if _is_directory(root, place) for name in root.names(place)
    )
    paths = sorted({*names, *entries}, key=os.fsencode)
    files = tuple(_file(root, path) for path in paths if _is_compared(root, path))
    # An existing directory may have another size on the volume, so it is not compared as a name.
    no_directories = tuple(path for path in names if not _is_directory(root, path))
    return Watched(
        names=no_directories,
        places=found.places,
        files=files,
        ways=tuple(_ways(root, served)),
        enabled=enabled_text(root, *units, hidden=hidden),
        parents=tuple(_parents(root, (*(file.path for file in served), *no_directories, *found.places))),
    )


def _parents(root: ImageRoot, paths: Iterable[PurePosixPath]) -> Iterator[PurePosixPath]:
    """The directories on the way to ``paths``, existing or not, except links. None of the directories may become a link
    later. When init compares the paths, the volume is not mounted at / but at another directory. At that time, the
    absolute target of a link such as /usr/local -> /srv/local does not exist, so init would miss the files behind the
    link.
    """
    for path in sorted({parent for each in paths for parent in each.parents if parent.name}):
        if _is_sayable(path) and root.link_target(path) is None:
            yield path


def _ways(root: ImageRoot, served: Iterable[StartFile]) -> Iterator[Way]:
    """The directories on the way to the served files (the files that processes open from /fast). The modes and owners
    of these directories decide which users may open a file on the volume. In /fast, by contrast, all users may open the
    files.
    """
    for path in sorted({parent for file in served for parent in file.path.parents}):
        if _is_directory(root, path):
            status = root.host(path).lstat()
            # An ordinary user's tree in a test is root's in the guest (store/treehash.py).
            uid = 0 if status.st_uid == os.geteuid() else status.st_uid
            gid = 0 if status.st_gid == os.getegid() else status.st_gid
            yield Way(path, status.st_mode, uid, gid)


def _is_sayable(place: PurePosixPath) -> bool:
    """Whether find(1) reads the path as a path, and not as an option or an operator such as ``(``. Init gives find(1)
    paths relative to /, without the leading slash.
    """
    return place.parts[1][0] not in "-!(),"


def _is_listed(root: ImageRoot, place: PurePosixPath) -> bool:
    """Whether init is to list the entries of ``place``. For a file that is no directory, find(1) would print its name a
    second time. /usr/bin/x86_64, where the loader may look for libraries beside /usr/bin/java, leads to such a file.
    """
    is_other = root.resolve(place).canonical is not None and not _is_directory(root, place)
    return _is_sayable(place) and not is_other


def _before(root: ImageRoot, served: Collection[StartFile], searched: Collection[PurePosixPath]) -> Deciding:
    """The paths where a stock boot (the distribution's own boot) looks before it finds the files that processes open
    from /fast in a fast start. Examples are:

    - /usr/local/bin/NAME for a packed /usr/bin/NAME
    - a library in a directory that ld.so searches earlier than the packed library's directory
    - a directory that ld.so searches earlier, if the directory does not exist yet
    """
    files, places = _of_loader(root)
    programs, libraries = _canonical(root, STOCK_PATH), _canonical(root, library_directories(root))
    for file in served:
        order = libraries if is_library(file.path) else programs
        if file.path.parent in order:
            before = order[: order.index(file.path.parent)]
            files.update(directory / file.path.name for directory in before)
        elif is_library(file.path) and _is_needed(file):
            # By LD_LIBRARY_PATH, programs that do not search the library's directory would also find it.
            files.update(directory / file.path.name for directory in libraries)
    own: list[PurePosixPath] = []
    names = [file.path.name for file in served if is_library(file.path)]
    for path in _own_directories(root, served, searched):
        if len(own) * len(names) > _MOST_NAMES:
            raise StartSetError(
                f"the image's programs and libraries have more than {len(own)} directories in DT_RPATH and DT_RUNPATH,"
                f" and the start set has {len(names)} libraries, too many to compare",
                hint="exclude the libraries that are not needed: `exclude` in the profile's [files]",
            )
        *links, directory = way_to(root, path)
        own.append(directory)
        files.update(links)
        files.update(directory / name for name in names)
    preferred = [directory / name for directory in (*libraries, *own) for name in CAPABILITIES]
    preferred += [directory / name for directory in own for name in _OLD_CAPABILITIES]
    for path in preferred:
        # As a name, too: a new directory may have nothing but directories, such as tls/haswell.
        files.update(way_to(root, path))
        places.add(way_to(root, path)[-1])
    return Deciding(tuple(files), tuple(places))


def _of_loader(root: ImageRoot) -> tuple[set[PurePosixPath], set[PurePosixPath]]:
    """The files and links that decide in which directories programs and libraries are searched, and the directories in
    which the loader's configuration has further files.
    """
    found = configuration(root)
    files = {path for each in found.files for path in way_to(root, each)}
    places = {PurePosixPath("/etc/ld.so.conf.d")}
    for directory in found.directories:
        *links, place = way_to(root, directory)
        files.update(links)
        places.add(place)
    # /opt/app/current may be another directory later.
    for directory in (*STOCK_PATH, *library_directories(root)):
        files.update(way_to(root, directory)[:-1])

    def kept(path: PurePosixPath) -> bool:
        return len(path.parts) > 1 and path.parts[1] not in VOLATILE

    return set(filter(kept, files)), set(filter(kept, places))


def _is_needed(file: StartFile) -> bool:
    """Whether ``file`` is a packed library that the dynamic loader searches for by its name. The loader then finds the
    library below /fast.
    """
    by_name = (ReasonSource.ELF, ReasonSource.LDD)
    return file.kind is FileKind.FILE and any(reason.source in by_name for reason in file.reasons)


def _own_directories(
    root: ImageRoot, served: Collection[StartFile], searched: Collection[PurePosixPath]
) -> Iterator[PurePosixPath]:
    """The directories in DT_RPATH and DT_RUNPATH of the served files, and the directories in ``searched``. The loader
    searches these directories before the default directories, but it searches LD_LIBRARY_PATH before DT_RUNPATH
    (ld.so(8)). At the build, one of these directories may already have another library with the name of a packed
    library. In this case, pack/shadow.py keeps the packed library out of /fast.
    """
    found: dict[PurePosixPath, None] = dict.fromkeys(searched)
    for file in served:
        facts = read_elf(root.host(file.path)) if _is_regular(root, file.path) else None
        found.update(dict.fromkeys(own_directories(facts, file.path) if facts else ()))
    for path in found:
        # `..` cannot be followed in a path that does not exist.
        plain = path if root.resolve(path).canonical else PurePosixPath(os.path.normpath(path))
        if len(plain.parts) > 1 and plain.parts[1] not in VOLATILE:
            yield plain


def _canonical(root: ImageRoot, directories: Iterable[PurePosixPath]) -> list[PurePosixPath]:
    """The canonical paths of the directories, in the given order and without duplicates."""
    return list(dict.fromkeys(way_to(root, each)[-1] for each in directories))


def _is_inside(root: ImageRoot, path: PurePosixPath) -> bool:
    """Whether ``path`` can be examined on this host. The parent directory of ``path`` must exist in the image, and no
    directory on the way to ``path`` may be a link. Otherwise, a link whose target does not exist in the image could
    lead to a directory of this host.
    """
    return root.resolve(path.parent).canonical == path.parent


def _is_directory(root: ImageRoot, path: PurePosixPath) -> bool:
    host = root.host(path)
    return _is_inside(root, path) and host.is_dir() and not host.is_symlink()


def _is_regular(root: ImageRoot, path: PurePosixPath) -> bool:
    host = root.host(path)
    return host.is_file() and not host.is_symlink()


def _is_compared(root: ImageRoot, path: PurePosixPath) -> bool:
    return _is_inside(root, path) and os.path.lexists(root.host(path)) and not _is_directory(root, path)


def _file(root: ImageRoot, path: PurePosixPath) -> StartFile:
    host = root.host(path)
    status = host.lstat()
    is_link = stat.S_ISLNK(status.st_mode)
    return StartFile(
        path=path,
        kind=FileKind.SYMLINK if is_link else FileKind.FILE,
        mode=status.st_mode,
        size_bytes=status.st_size,
        mtime_s=status.st_mtime_ns // 10**9,
        ctime_s=IMAGE_TIME_S,
        target=str(host.readlink()) if is_link else "",
        interpreter="",
        reasons=(),
    )


def packed_facts(
    start_set: StartSet, bound: Collection[PurePosixPath], beside: Watched
) -> tuple[bytes, bytes, bytes]:
    """Three texts that init compares with the root volume. The first text has the names of the compared files. The
    second text has the facts of the files that exist. The third text has the places, which are the directories whose
    entries init compares.

    Each name and each place ends with a NUL and has no leading slash. The facts have the format of `stat -c '%f %s %Y
    %Z %n'`. The second text first has the facts of the files that the first text names. Then the second text has the
    facts of the entries of the places.
    """
    served = served_files(start_set, bound)
    known = {file.path: file for file in (*beside.files, *served)}
    names = [*(file.path for file in served), *beside.names]
    places = frozenset(beside.places)
    entries = [file.path for file in beside.files if file.path.parent in places]
    rows = b"".join(_rows(known, [*names, *sorted(entries, key=os.fsencode)]))
    return _listed(names), rows, _listed(beside.places)


def _rows(known: dict[PurePosixPath, StartFile], paths: Iterable[PurePosixPath]) -> Iterator[bytes]:
    for path in paths:
        if (file := known.get(path)) is not None:
            fields = (file.mode, file.size_bytes, file.mtime_s, file.ctime_s, _relative(path))
            yield b"%x %d %d %d %s\n" % fields


def _listed(paths: Iterable[PurePosixPath]) -> bytes:
    return b"".join(_relative(path) + b"\0" for path in paths)


def _relative(path: PurePosixPath) -> bytes:
    return os.fsencode(str(path))[1:]


def listed_parents(parents: Iterable[PurePosixPath]) -> bytes:
    """The names of the directories that must not become links. Each name ends with a NUL."""
    return _listed(parents)


def way_facts(ways: Iterable[Way]) -> tuple[bytes, bytes]:
    """The names of the directories in ``ways`` (`.` stands for the root), and the facts of these directories
    in the format of `stat -c '%f %u %g 0 %n'`.
    """
    names = [(way, _relative(way.path) or b".") for way in ways]
    rows = (b"%x %d %d 0 %s\n" % (way.mode, way.uid, way.gid, name) for way, name in names)
    return b"".join(name + b"\0" for _, name in names), b"".join(rows)
