"""Compute the StartSet, the files that the application needs to become ready. The StartSet is the union of the traced
files, their ELF closure (the libraries and ELF interpreters that they need), the interpreters of scripts, the links
that lead to these files, and the files that the profile's rules name. This module reads the image's tree and writes
nothing.

The StartSet records the reasons for every file in the set. For every traced file outside the set, it records the rule
that excludes the file.
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath

from quickstart.errors import StartSetError
from quickstart.host.cpulimit import START_SET_LIMIT_S, cpu_limit
from quickstart.inspect.dpkg import owners
from quickstart.inspect.elf import closure
from quickstart.inspect.elf_file import read_elf
from quickstart.inspect.globs import matches
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.script import interpreter_of
from quickstart.inspect.secrets import PRIVATE_KEY, SECRET_GLOBS
from quickstart.model import (
    IMAGE_TIME_S,
    Event,
    Exclusion,
    FileKind,
    FileRules,
    Op,
    StartFile,
    StartSet,
    Trace,
)
from quickstart.model.reasons import Reason, ReasonSource
from quickstart.pack.reasons import Reasons

# Nothing below these is a file of the image: the kernel or init makes it at each boot.
_VOLATILE = frozenset({"proc", "sys", "dev", "run"})
_MADE = "made: the boot writes it before it is read"
_KEY_SEARCH_BYTES = 1 << 20


@cpu_limit("the image and the log of its boot", START_SET_LIMIT_S)
def compute(traces: Sequence[Trace], root: ImageRoot, rules: FileRules) -> StartSet:
    """The start set for one or more traces of the image ``root``.

    Raises StartSetError when a needed library is missing, an ELF file is damaged, a file or directory cannot be read,
    or a trace has lost an event. A trace has lost an event when a process had mapped a file at ready, and this file is
    neither in the start set nor excluded by a rule.
    """
    try:
        return _compute(traces, root, rules)
    except OSError as error:
        raise StartSetError(
            f"{error.filename or root.base} cannot be read: {error.strerror}",
            hint="run as a user who may read the image",
        ) from error


@cpu_limit("the image")
def check_includes(root: ImageRoot, rules: FileRules) -> None:
    """Raise StartSetError when `include` rules of the profile match nothing in the image. The message names these
    rules. This check needs no trace.
    """
    builder = _Builder(root, rules)
    _demand_named([glob for glob in rules.include if not any(builder.named_by(glob))])


def _demand_named(lost: Sequence[str]) -> None:
    """Raise StartSetError unless ``lost`` is empty. ``lost`` are the `include` rules that match nothing."""
    if lost:
        raise StartSetError(
            f"files.include of the profile names nothing in the image: {', '.join(lost)}",
            hint="correct or remove it",
        )


def _compute(traces: Sequence[Trace], root: ImageRoot, rules: FileRules) -> StartSet:
    builder = _Builder(root, rules)
    for number, trace in enumerate(traces, 1):
        for event in trace.events:
            builder.traced(event, number, f" of trace {number}" if len(traces) > 1 else "")
    builder.close(traces)
    _demand_named(builder.include(rules.include))
    builder.hard_links()
    for trace in traces:
        builder.check_mapped(trace)
    return builder.finish(len(traces))


def _rules(root: ImageRoot, globs: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return each glob twice: as it is spelled, and with the links before its first wildcard resolved. Each element of
    the result is (glob, spelled glob). Messages name the spelled glob.

    So a rule for /bin/tool also applies to /usr/bin/tool in an image in which /bin is a link to /usr/bin.
    """
    found: dict[tuple[str, str], None] = {}
    for glob in globs:
        found[(glob, glob)] = None
        parts = PurePosixPath(glob).parts
        plain = next(
            (n for n, part in enumerate(parts) if any(char in part for char in "*?[")), len(parts) - 1
        )
        head = root.resolve(PurePosixPath(*parts[:plain])).canonical if plain else None
        if head is not None:
            found[(str(head.joinpath(*parts[plain:])), glob)] = None
    return tuple(found)


class _Builder:
    """Collects the files of the start set and the reasons for each file, by canonical path. This class examines each
    file only once.
    """

    def __init__(self, root: ImageRoot, rules: FileRules) -> None:
        self.root = root
        self.exclude, self.data, self.secrets, self.secret_places = (
            _rules(root, globs) for globs in (rules.exclude, rules.data, rules.secrets, SECRET_GLOBS)
        )
        self.reasons = Reasons()
        self.excluded: dict[PurePosixPath, str] = {}
        self.seen: dict[PurePosixPath, set[int]] = {}
        self._read = functools.cache(read_elf)
        # The files that were already examined for a script's interpreter, and for a program's needs.
        self._opened: set[PurePosixPath] = set()
        self._closed: set[PurePosixPath] = set()

    def traced(self, event: Event, number: int, suffix: str) -> None:
        """Add the file of ``event`` if the unit opened the file for reading, mapped it or executed it. ``number`` is
        the number of the trace.
        """
        if event.error is not None or event.op not in (Op.OPEN, Op.MAP, Op.EXEC):
            return
        if event.made:
            if (file := self._file_at(self.root.resolve(event.path).canonical)) is not None:
                self.excluded.setdefault(file, _MADE)
            return
        reason = Reason(
            ReasonSource.TRACE, f"{event.op.value} by {event.program} (line {event.line}{suffix})"
        )
        packed = self.add(event.path, reason)
        if packed is None and event.real is not None:
            # The path leads through a directory that only the running system has.
            packed = self.add(event.real, reason)
        if packed is not None:
            self.seen.setdefault(packed, set()).add(number)

    def add(self, path: PurePosixPath, reason: Reason) -> PurePosixPath | None:
        """Add the file at ``path`` and every link on the way to the file. Return the file's canonical path. Return None
        when there is no such file, or a rule excludes the file.
        """
        found = self.root.resolve(path)
        file = self._file_at(found.canonical)
        if file is None:
            return None
        if rule := self._excluding_rule((file, path), reason):
            self.excluded.setdefault(file, rule)
            return None
        self.reasons.give(file, reason)
        self.reasons.give_links(found.links, path)
        return file

    def _file_at(self, canonical: PurePosixPath | None) -> PurePosixPath | None:
        """Return ``canonical`` if it is the path of a file of the image. Return None for a missing file, for a
        directory, and for a file that every boot makes anew.
        """
        if canonical is None or len(canonical.parts) < 2 or canonical.parts[1] in _VOLATILE:
            return None
        return None if self.root.host(canonical).is_dir() else canonical

    def _excluding_rule(self, names: tuple[PurePosixPath, ...], reason: Reason) -> str | None:
        """The rule that excludes a file, or None. ``names`` has the file's canonical path first, and then the path by
        which the file was requested. ``reason`` is the reason to add the file.
        """

        def first(rules: Iterable[tuple[str, str]]) -> str | None:
            return next((said for glob, said in rules if any(matches(name, glob) for name in names)), None)

        named = first(self.secrets) is not None
        if not named and (said := first(self.secret_places)):
            return f"secret: {said}"
        if said := first(self.exclude):
            return f"exclude: {said}"
        if reason.source != ReasonSource.RULE and (said := first(self.data)):
            return f"data: {said}"
        return self._excluding_property(names[0], named)

    def _excluding_property(self, path: PurePosixPath, named: bool) -> str | None:
        host = self.root.host(path)
        status = host.lstat()
        if not stat.S_ISREG(status.st_mode):
            return "kind: not a regular file"
        if status.st_mode & (stat.S_ISUID | stat.S_ISGID):
            return "setuid: such a file is never packed"
        if not named and not status.st_mode & stat.S_IROTH:
            return "secret: not readable by all"
        denying = next((each for each in (path, *path.parents) if self._denies(each)), None)
        if not named and denying:
            return f"secret: {denying} denies its owner or group what it allows all others"
        if not named and self.root.has_acl(path):
            return "secret: it has an access control list"
        if not named and (closed := self._closed_directory(path.parent)):
            return f"secret: not everybody may enter {closed}"
        if any(name.startswith("security.") for name in os.listxattr(host)):
            return "security.*: newc carries no extended attributes"
        if not named and status.st_size <= _KEY_SEARCH_BYTES and PRIVATE_KEY.search(host.read_bytes()):
            return "secret: it holds a private key"
        return None

    def _denies(self, path: PurePosixPath) -> bool:
        """Whether the mode of a file or directory gives fewer rights to its owner or its group than to all other users.
        In /fast, all files belong to root, so the owner and the group would have the rights of all other users there.
        """
        status = self.root.host(path).lstat()
        others = status.st_mode & 0o7
        # If an ordinary user owns the tree, its files belong to root in the guest (store/treehash.py).
        by_owner = status.st_uid not in (0, os.geteuid()) and others & ~(status.st_mode >> 6)
        by_group = status.st_gid not in (0, os.getegid()) and others & ~(status.st_mode >> 3)
        return bool(by_owner or by_group)

    def _closed_directory(self, directory: PurePosixPath) -> PurePosixPath | None:
        """The first of ``directory`` and its parents that not all users may enter, or that has an access control list.
        The result is None if there is no such directory.
        """
        for each in (directory, *directory.parents):
            if not self.root.host(each).lstat().st_mode & stat.S_IXOTH or self.root.has_acl(each):
                return each
        return None

    def close(self, traces: Sequence[Trace]) -> None:
        """Add the files that the files of the start set need. These are the interpreters of scripts, and then the
        libraries that the ELF closure or the guest's ldd names.
        """
        self._close_added()
        for trace in traces:
            for program, libraries in trace.ldd.items():
                for library in libraries:
                    self.add(library, Reason(ReasonSource.LDD, f"of {program}"))

    def _add_with_links(self, path: PurePosixPath, links: Iterable[PurePosixPath], reason: Reason) -> None:
        self.add(path, reason)
        if path in self.reasons:
            self.reasons.give_links(links, path)

    def _is_file(self, path: PurePosixPath) -> bool:
        return stat.S_ISREG(self.root.host(path).lstat().st_mode)

    def _add_script_interpreter(self, path: PurePosixPath) -> None:
        if found := interpreter_of(self.root, path):
            self.add(found.program, Reason(ReasonSource.SCRIPT, f"#! of {path}"))

    def include(self, globs: Iterable[str]) -> list[str]:
        """Add the files that the `include` rules of the profile name, and what these files need. Return the rules that
        match no file.
        """
        unnamed = []
        for glob in dict.fromkeys(globs):
            files = list(self.named_by(glob))
            for file in files:
                self.add(file, Reason(ReasonSource.RULE, f"include: {glob}"))
            unnamed += [] if files else [glob]
        self._close_added()
        return unnamed

    def hard_links(self) -> None:
        """Add the other hard links that the start set's files have in the image. Also add what a program needs when it
        is started by one of these names.
        """
        linked = functools.cache(self.root.hard_links)
        seen: set[PurePosixPath] = set()
        while added := [path for path in sorted(self.reasons) if path not in seen and self._is_file(path)]:
            seen.update(added)
            for path in added:
                status = self.root.host(path).lstat()
                names = linked().get((status.st_dev, status.st_ino), ()) if status.st_nlink > 1 else ()
                for name in names:
                    if name not in self.reasons:
                        self.add(name, Reason(ReasonSource.HARD_LINK, f"another name of {path}"))
            self._close_added()

    def _close_added(self) -> None:
        """Add the files that the most recently added files need."""
        for path in sorted(self.reasons.keys() - self._opened):
            self._opened.add(path)
            self._add_script_interpreter(path)
        added = [path for path in sorted(self.reasons) if path not in self._closed and self._is_file(path)]
        for dependency in closure(self.root, added, self._read):
            named = f"{dependency.kind} {dependency.name} of {dependency.needed_by}"
            reason = (
                Reason.interpreter_of(dependency.needed_by)
                if dependency.kind == "interpreter"
                else Reason(ReasonSource.ELF, named)
            )
            self._add_with_links(dependency.path, dependency.links, reason)
        self._closed.update(added)

    def named_by(self, glob: str) -> Iterator[PurePosixPath]:
        """The paths of the files that ``glob`` matches, spelled as in ``glob``. If ``glob`` matches a directory, all
        files below the directory count.
        """
        head, crosses, _ = glob.partition("**")
        pattern = PurePosixPath(head).parent if crosses and not head.endswith("/") else PurePosixPath(head)
        for path in self.root.glob(pattern):
            found = self.root.resolve(path).canonical
            if found is None:
                continue
            if not self.root.host(found).is_dir():
                if not crosses or matches(path, glob):
                    yield path
                continue
            below = [path / each.relative_to(found) for each in self._below(found)]
            yield from (each for each in below if not crosses or matches(each, glob))

    def _below(self, directory: PurePosixPath) -> list[PurePosixPath]:
        """The paths of all files below a directory, without the directories. This method does not resolve links, but
        ``add`` does.
        """
        return sorted(self.root.below(directory))

    def check_mapped(self, trace: Trace) -> None:
        """Raise StartSetError when a process had mapped a file at ready, and this file is neither in the start set nor
        excluded. When a rule excludes such a file, record the rule.
        """
        for mapped in trace.mapped:
            file = self._file_at(self.root.resolve(mapped.path).canonical)
            if file is None or file in self.reasons or file in self.excluded:
                continue
            rule = self._excluding_rule((file, mapped.path), Reason(ReasonSource.TRACE, ""))
            if rule is None:
                raise StartSetError(
                    f"{file} was mapped by {mapped.program} (process {mapped.pid}) at ready, but no event of the trace"
                    " leads to it: events were lost",
                    hint="trace again; if it stays so, name the file in files.include of the profile",
                )
            self.excluded[file] = rule

    def finish(self, traces: int) -> StartSet:
        """The finished start set, sorted by path. It also has the directories that contain its files."""
        parents = {parent for path in self.reasons for parent in path.parents if parent != PurePosixPath("/")}
        for parent in parents:
            self.reasons.give(parent, Reason(ReasonSource.PARENT, "holds files of the set"))
        paths = sorted(self.reasons, key=os.fsencode)
        owned = owners(self.root, paths)
        firsts: dict[tuple[int, int], PurePosixPath] = {}
        files = tuple(self._file(path, str(owned.get(path, "")), firsts) for path in paths)
        excluded = tuple(
            Exclusion(path, self.excluded[path]) for path in sorted(self.excluded) if path not in self.reasons
        )
        return StartSet(files, excluded, traces)

    def _file(
        self, path: PurePosixPath, package: str, firsts: dict[tuple[int, int], PurePosixPath]
    ) -> StartFile:
        host = self.root.host(path)
        status = host.lstat()
        kind = FileKind.FILE
        if stat.S_ISLNK(status.st_mode):
            kind = FileKind.SYMLINK
        elif stat.S_ISDIR(status.st_mode):
            kind = FileKind.DIRECTORY
        elif not stat.S_ISREG(status.st_mode):
            raise StartSetError(
                f"{path} is neither file, link nor directory", hint="exclude it in the profile"
            )
        facts = self._read(host) if kind is FileKind.FILE else None
        shared = kind is FileKind.FILE and status.st_nlink > 1
        first = firsts.setdefault((status.st_dev, status.st_ino), path) if shared else path
        return StartFile(
            path=path,
            kind=kind,
            mode=status.st_mode,
            size_bytes=status.st_size if kind is not FileKind.DIRECTORY else 0,
            # The floating-point times are not used, because they may round the last fraction of a second up to the
            # next second.
            mtime_s=status.st_mtime_ns // 10**9,
            # The time on the volume, where every inode is made with this time (image/ext4.py). The time on the host
            # does not matter.
            ctime_s=IMAGE_TIME_S,
            target=str(host.readlink()) if kind is FileKind.SYMLINK else "",
            interpreter=(facts.interpreter or "") if facts else "",
            reasons=tuple(sorted(self.reasons[path])),
            seen_in=len(self.seen.get(path, ())),
            package=package if kind is not FileKind.DIRECTORY else "",
            hard_link_to=first if first != path else None,
        )
