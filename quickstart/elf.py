"""The ELF closure inside an image root: which interpreter and libraries ld.so loads for a program or library.

Sources: elf(5) for the file, ld.so(8) and ldconfig(8) for the search, systemd's ELF_DLOPEN_METADATA for the
note that names what a program may dlopen. Nothing of the image is executed.

Of ld.so(8) this leaves out what an image does not say: LD_LIBRARY_PATH, LD_PRELOAD and relative directories.
"""

from __future__ import annotations

import functools
import itertools
import json
import string
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from stat import S_ISREG
from typing import Any, BinaryIO, Literal

from elftools.common.exceptions import ELFError
from elftools.common.utils import struct_parse
from elftools.elf.elffile import ELFFile

from quickstart.errors import StartSetError
from quickstart.imageroot import ImageRoot

MAGIC = b"\x7fELF"
LD_SO_CONF = PurePosixPath("/etc/ld.so.conf")
# ld.so(8): "the default path /lib, and then /usr/lib"; Debian's amd64 glibc has the multiarch ones before.
DEFAULT_DIRECTORIES = tuple(
    PurePosixPath("/", up, name) for name in ("lib/x86_64-linux-gnu", "lib", "lib64") for up in ("", "usr")
)
# ld.so(8), "Hardware capabilities": which of them ld.so takes depends on the CPU that the guest will have.
HWCAPS = ("x86-64-v4", "x86-64-v3", "x86-64-v2")

_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 0, 1, 5, 10, 14, 15, 29
_DLOPEN_NOTE = (b"FDO\0", 0x407C0C0A)
_LIB = {32: ("lib/i386-linux-gnu", "lib"), 64: ("lib/x86_64-linux-gnu", "lib64", "lib")}
# Up to glibc 2.36 $PLATFORM depends on the CPU, so every value counts.
_PLATFORM = ("haswell", "xeon_phi", "x86_64")

ReadElf = Callable[[Path], "ElfFacts | None"]
Kind = Literal["needed", "interpreter", "dlopen"]


@dataclass(frozen=True)
class ElfFacts:
    """What the loader reads of an ELF file.

    ``interpreter_offset`` and ``interpreter_capacity`` are the place of PT_INTERP in the file and its size
    with the NUL, in bytes; 0 and 0 when there is none. ``rpath`` and ``runpath`` are directories, unexpanded.
    ``dlopen_notes`` has one tuple of alternative sonames, best first, for each optional feature.
    """

    interpreter: str | None
    interpreter_offset: int
    interpreter_capacity: int
    needed: tuple[str, ...]
    soname: str | None
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]
    elf_class: int
    machine: str
    dlopen_notes: tuple[tuple[str, ...], ...]
    is_dynamic: bool


def read_elf(path: Path) -> ElfFacts | None:
    """The facts of an ELF file, by its program headers as the loader does; None when it is not one.

    Raises StartSetError, naming the file, when it begins as ELF but is truncated or damaged, or is not there.
    """
    try:
        if not S_ISREG(path.stat().st_mode):
            return None
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                return None
            return _Reader(file).facts()
    except (OSError, ELFError, struct.error, ValueError, OverflowError, RecursionError) as error:
        raise StartSetError(
            f"{path} cannot be read as an ELF file, it may be truncated: {error}",
            hint="install its package again, or exclude the file by a rule of the profile",
        ) from error


class _Reader:
    """One open ELF file. A fault of the file is a ValueError or one of those that ``read_elf`` lists."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._elf = ELFFile(file)
        self._size = file.seek(0, 2)
        self._order = "<" if self._elf.little_endian else ">"
        sections_end = self._elf["e_shoff"] + self._elf["e_shnum"] * self._elf["e_shentsize"]
        if self._elf["e_shoff"] and sections_end > self._size:
            raise ValueError(f"its section headers end at {sections_end}, the file at {self._size}")
        self._segments = [self._segment(number) for number in range(self._elf["e_phnum"])]

    def facts(self) -> ElfFacts:
        interpreter = next(self._of_type("PT_INTERP"), None)
        dynamic = next(self._of_type("PT_DYNAMIC"), None)
        strings = self._dynamic_strings(dynamic) if dynamic else {}
        return ElfFacts(
            interpreter=_string(self._content(interpreter), 0) if interpreter else None,
            interpreter_offset=interpreter["p_offset"] if interpreter else 0,
            interpreter_capacity=interpreter["p_filesz"] if interpreter else 0,
            needed=tuple(strings.get(_DT_NEEDED, [])),
            soname=next(iter(strings.get(_DT_SONAME, [])), None),
            rpath=_split(strings.get(_DT_RPATH, [])),
            runpath=_split(strings.get(_DT_RUNPATH, [])),
            elf_class=self._elf.elfclass,
            machine=str(self._elf["e_machine"]),
            dlopen_notes=tuple(self._dlopen_notes()),
            is_dynamic=dynamic is not None,
        )

    def _segment(self, number: int) -> Mapping[str, Any]:
        at = self._elf["e_phoff"] + number * self._elf["e_phentsize"]
        segment: Mapping[str, Any] = struct_parse(self._elf.structs.Elf_Phdr, self._file, stream_pos=at)
        end = segment["p_offset"] + segment["p_filesz"]
        if segment["p_filesz"] and end > self._size:
            raise ValueError(f"its segment {number} ends at {end}, the file at {self._size}")
        return segment

    def _of_type(self, name: str) -> Iterator[Mapping[str, Any]]:
        return (segment for segment in self._segments if segment["p_type"] == name and segment["p_filesz"])

    def _content(self, segment: Mapping[str, Any]) -> bytes:
        self._file.seek(segment["p_offset"])
        return self._file.read(segment["p_filesz"])

    def _dynamic_strings(self, dynamic: Mapping[str, Any]) -> dict[int, list[str]]:
        """The strings of PT_DYNAMIC by tag, in the order of the file."""
        entry = struct.Struct(self._order + ("iI" if self._elf.elfclass == 32 else "qQ"))
        content = self._content(dynamic)
        pairs = entry.iter_unpack(content[: len(content) // entry.size * entry.size])
        entries = list(itertools.takewhile(lambda pair: pair[0] != _DT_NULL, pairs))
        values = dict(entries)
        table = self._strings(values[_DT_STRTAB], values.get(_DT_STRSZ, 0)) if _DT_STRTAB in values else b""
        found: dict[int, list[str]] = {}
        for tag, value in entries:
            if tag in (_DT_NEEDED, _DT_SONAME, _DT_RPATH, _DT_RUNPATH):
                found.setdefault(tag, []).append(_string(table, value))
        return found

    def _strings(self, address: int, size: int) -> bytes:
        for offset in self._elf.address_offsets(address, size):
            self._file.seek(offset)
            return self._file.read(size)
        raise ValueError(f"its string table at {address:#x} with {size} bytes is in no segment")

    def _dlopen_notes(self) -> Iterator[tuple[str, ...]]:
        head = struct.Struct(self._order + "III")
        for segment in self._of_type("PT_NOTE"):
            content = self._content(segment)
            alignment = 8 if segment["p_align"] == 8 else 4
            at = 0
            while at + head.size <= len(content):
                name_bytes, data_bytes, kind = head.unpack_from(content, at)
                name_at = at + head.size
                data_at = name_at + name_bytes + -(name_at + name_bytes) % alignment
                end = data_at + data_bytes
                if end > len(content):
                    raise ValueError(f"its note at {segment['p_offset'] + at} is longer than its segment")
                if (content[name_at : name_at + name_bytes], kind) == _DLOPEN_NOTE:
                    yield from _dlopen_sonames(content[data_at:end])
                at = end + -end % alignment


def _string(table: bytes, at: int) -> str:
    end = table.find(b"\0", at)
    if end < 0:
        raise ValueError(f"its string at {at} of {len(table)} bytes has no end")
    return table[at:end].decode("utf-8", "surrogateescape")


def _split(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(directory for path in paths for directory in path.split(":") if directory)


def _dlopen_sonames(note: bytes) -> Iterator[tuple[str, ...]]:
    features = json.loads(note.rstrip(b"\0"))
    for feature in features if isinstance(features, list) else [None]:
        sonames = feature.get("soname") if isinstance(feature, dict) else None
        if not isinstance(sonames, list) or not all(isinstance(soname, str) for soname in sonames):
            raise ValueError("its .note.dlopen is not a list of features that have sonames")
        yield tuple(sonames)


def library_directories(root: ImageRoot) -> tuple[PurePosixPath, ...]:
    """The directories of /etc/ld.so.conf and its includes, in order, then ld.so's own; each as spelled, once.

    Source: ldconfig(8), ld.so(8). Raises StartSetError when a configuration file cannot be read.
    """
    return tuple(dict.fromkeys((*_configured(root, LD_SO_CONF, set()), *DEFAULT_DIRECTORIES)))


def _configured(root: ImageRoot, conf: PurePosixPath, seen: set[PurePosixPath]) -> Iterator[PurePosixPath]:
    canonical = root.resolve(conf).canonical
    if canonical is None or canonical in seen:
        return
    seen.add(canonical)
    for line in root.read_text(canonical).splitlines():
        words = line.partition("#")[0].split() or [""]
        if words[0] == "include":
            for pattern in words[1:]:
                for included in root.glob(conf.parent / pattern):
                    yield from _configured(root, included, seen)
        elif words[0].startswith("/"):
            # "DIRECTORY=TYPE" was the libc5 way to say what is in it.
            yield PurePosixPath(words[0].partition("=")[0])


@dataclass(frozen=True)
class ElfDependency:
    """A file that ld.so maps for another: ``path`` is canonical, ``links`` are the symlinks on the way to it.

    ``name`` is the soname asked for, or ``PT_INTERP``; ``needed_by`` is the first to ask.
    """

    path: PurePosixPath
    links: tuple[PurePosixPath, ...]
    needed_by: PurePosixPath
    name: str
    kind: Kind


@dataclass(frozen=True)
class _Object:
    """An ELF file as one process maps it; ``opened`` is the path that ld.so used, and its parent $ORIGIN."""

    path: PurePosixPath
    links: tuple[PurePosixPath, ...]
    opened: PurePosixPath
    facts: ElfFacts
    loader: _Object | None


@dataclass(frozen=True)
class _Request:
    """``names`` are alternatives, best first."""

    loader: _Object
    names: tuple[str, ...]
    kind: Kind


def closure(
    root: ImageRoot, starts: Iterable[PurePosixPath], read: ReadElf = read_elf
) -> tuple[ElfDependency, ...]:
    """What ld.so loads for each start: a program, or a library that one opens; other files add nothing.

    Each start is loaded for itself, breadth first; starts go by path, so their order does not count. A file
    that is reached through other links is a dependency of its own. Every glibc-hwcaps variant of a library
    counts beside the plain one. A library without PT_INTERP may need a library that only the program that
    opens it can find, when that one is a start too. ``read`` may bring a cache for several closures.

    Raises StartSetError for a start that is missing, a needed library or interpreter that is not in the
    image, a damaged ELF file and a loop of links. What a ``.note.dlopen`` names is optional.
    """
    search = _Search(root, read)
    objects = [found for start in sorted(set(starts)) if (found := search.start(start)) is not None]
    companions = {each.facts.soname: each for each in reversed(objects) if each.facts.soname}
    dependencies: dict[tuple[PurePosixPath, tuple[PurePosixPath, ...], Kind], ElfDependency] = {}
    for found in objects:
        for dependency in _load(search, found, {} if found.facts.interpreter else companions):
            dependencies.setdefault((dependency.path, dependency.links, dependency.kind), dependency)
    return tuple(dependencies.values())


def _load(search: _Search, start: _Object, companions: Mapping[str, _Object]) -> Iterator[ElfDependency]:
    """One process: first all that is needed, then what may be opened later with what that needs."""
    loaded = {start.path}
    names = {start.facts.soname}
    soon, later = deque(_requests(start)), deque(_optional(start))
    while soon or later:
        request = (soon or later).popleft()
        for name, found in _answer(search, request, names, companions):
            label = "PT_INTERP" if request.kind == "interpreter" else name
            yield ElfDependency(found.path, found.links, request.loader.path, label, request.kind)
            names.update((name, found.facts.soname))
            if found.path not in loaded:
                loaded.add(found.path)
                soon.extend(_requests(found))
                later.extend(_optional(found))


def _answer(
    search: _Search, request: _Request, loaded: set[str | None], companions: Mapping[str, _Object]
) -> list[tuple[str, _Object]]:
    for name in request.names:
        # ld.so does not search for what the process has under that name already.
        if name in loaded:
            return []
        if found := search.find(name, request.loader):
            return [(name, each) for each in found]
    if request.kind == "dlopen":
        return []
    name = request.names[0]
    if name in companions:
        return [(name, replace(companions[name], loader=request.loader))]
    what = "interpreter" if request.kind == "interpreter" else "library"
    raise StartSetError(
        f"{request.loader.path} needs {what} {name}, which the image does not have for its machine",
        hint=f"add the package that has {name} to the profile, or exclude {request.loader.path}",
    )


def _requests(loader: _Object) -> Iterator[_Request]:
    if loader.facts.interpreter is not None and loader.loader is None:
        yield _Request(loader, (loader.facts.interpreter,), "interpreter")
    for name in loader.facts.needed:
        yield _Request(loader, (name,), "needed")


def _optional(loader: _Object) -> Iterator[_Request]:
    return (_Request(loader, names, "dlopen") for names in loader.facts.dlopen_notes)


class _Search:
    """Finds objects by name in one image, with what it has read and found so far."""

    def __init__(self, root: ImageRoot, read: ReadElf) -> None:
        self._host = root.host
        self._resolve = functools.cache(root.resolve)
        self._read = functools.cache(read)
        self._directories = library_directories(root)

    def start(self, path: PurePosixPath) -> _Object | None:
        if self._resolve(path).canonical is None:
            raise StartSetError(f"{path} is not in the image", hint="build the image and its trace again")
        found = self._open(path, None)
        # A program's $ORIGIN is that of /proc/self/exe, which is canonical; a library's is as it was opened.
        return replace(found, opened=found.path) if found and found.facts.interpreter else found

    def find(self, name: str, loader: _Object) -> list[_Object]:
        """The objects of that name, hwcaps variants first, as ld.so(8) searches; empty if none is there."""
        if "/" in name:
            return self._open_all(_expand(name, loader), loader)[:1]
        tried: list[PurePosixPath] = []
        for directory in _own_directories(loader):
            tried += [*_variants(directory, name), directory / name]
            if self._open(tried[-1], loader) is not None:
                return self._open_all(tried, loader)
        # ld.so.cache prefers a variant in whatever directory to the plain library of an earlier one.
        tried += (variant for each in self._directories for variant in _variants(each, name))
        plain = (each / name for each in self._directories)
        return self._open_all(tried, loader) + self._open_all(plain, loader)[:1]

    def _open_all(self, paths: Iterable[PurePosixPath], loader: _Object) -> list[_Object]:
        """Those that are there, each file once."""
        found: dict[PurePosixPath, _Object] = {}
        for path in paths:
            if (each := self._open(path, loader)) is not None:
                found.setdefault(each.path, each)
        return list(found.values())

    def _open(self, path: PurePosixPath, loader: _Object | None) -> _Object | None:
        """None for what is not there, no ELF file, or of another class or machine than the loader."""
        resolution = self._resolve(path)
        if resolution.canonical is None:
            return None
        facts = self._read(self._host(resolution.canonical))
        if facts is None or (loader is not None and _target(facts) != _target(loader.facts)):
            return None
        return _Object(resolution.canonical, resolution.links, path, facts, loader)


def _target(facts: ElfFacts) -> tuple[int, str]:
    return facts.elf_class, facts.machine


def _variants(directory: PurePosixPath, name: str) -> list[PurePosixPath]:
    return [directory / "glibc-hwcaps" / level / name for level in HWCAPS]


def _own_directories(loader: _Object) -> Iterator[PurePosixPath]:
    """DT_RPATH of the loader and of those that loaded it, or DT_RUNPATH, which makes DT_RPATH void."""
    each: _Object | None = None if loader.facts.runpath else loader
    while each is not None:
        for entry in () if each.facts.runpath else each.facts.rpath:
            yield from _expand(entry, each)
        each = each.loader
    for entry in loader.facts.runpath:
        yield from _expand(entry, loader)


def _expand(text: str, found: _Object) -> tuple[PurePosixPath, ...]:
    """The absolute paths that an entry with $ORIGIN, $LIB and $PLATFORM can mean."""
    template = string.Template(text)
    expanded = (
        template.safe_substitute(ORIGIN=found.opened.parent, LIB=lib, PLATFORM=platform)
        for lib, platform in itertools.product(_LIB[found.facts.elf_class], _PLATFORM)
    )
    return tuple(PurePosixPath(path) for path in dict.fromkeys(expanded) if path.startswith("/"))
