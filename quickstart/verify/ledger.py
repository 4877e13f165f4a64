"""Make the ledger from the volume's log, the guest's trace, the volume's block map and the start set (pure). The ledger
is the list of the requests to the root volume before ready (docs/users/verify.md).
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePosixPath

from quickstart.errors import MeasurementError
from quickstart.host.cpulimit import INSIDE_LIMIT_S, cpu_limit
from quickstart.image.blockmap import Kind, Owner
from quickstart.image.diskmap import BlockOwners
from quickstart.parse.bounded import PATH_MAX
from quickstart.verify.guesttrace import Asker, GuestTrace, Issued, Use, volume_paths
from quickstart.volume.emulator import Request
from quickstart.volume.nbd import Command

_SECTOR_BYTES = 512
_CHANGES = (Command.WRITE, Command.WRITE_ZEROES)
# The limit for pieces of files that requests before ready touch. A boot has some thousand, but a hostile disk may
# have a piece for each block. The name of an inode in a block is only a reference.
_MOST_PIECES, _NAMES_IN_PIECE = 1 << 18, 16


@dataclass(frozen=True, kw_only=True)
class Packed:
    """The content of an artefact's start set, by path in the image. ``files`` has the sizes of packed files in bytes,
    ``links`` the targets of symbolic links, ``excluded`` the rules that exclude files, and ``interpreters`` the ELF
    interpreters of programs. If a file has several names (hard links), ``firsts`` maps each further name to the file's
    first name.
    """

    files: Mapping[PurePosixPath, int]
    links: Mapping[PurePosixPath, str]
    excluded: Mapping[PurePosixPath, str]
    interpreters: Mapping[PurePosixPath, tuple[PurePosixPath, ...]]
    firsts: Mapping[PurePosixPath, PurePosixPath] = field(default_factory=dict)

    def canonical(self, path: PurePosixPath) -> PurePosixPath:
        """The path to which ``path`` leads when the links of the start set are followed."""
        text = str(path)
        for _ in range(40):
            link = next((head for head in _heads(text) if head in self._targets), None)
            if link is None or len(text) > PATH_MAX:
                break
            text = _joined(link.rpartition("/")[0], self._targets[link], text[len(link) :])
        return PurePosixPath(text)

    @cached_property
    def _targets(self) -> Mapping[str, str]:
        return {str(link): target for link, target in self.links.items()}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One request to the root volume. ``time_ns`` is the guest's uptime when its kernel made the request, or
    None for a request from before the kernel ran.

    ``owners`` are the files, directories and metadata to which the requested blocks belong. ``askers`` are the
    processes and system calls for which the kernel made the request. ``ahead`` says that the request is read-ahead by
    the kernel, so no process waited for it. ``avoid`` says how to avoid the request.
    """

    time_ns: int | None
    writes: bool
    ahead: bool
    offset_bytes: int
    length_bytes: int
    owners: tuple[Owner, ...]
    askers: tuple[Asker, ...]
    avoid: str = ""

    @property
    def kind(self) -> Kind:
        """The kind of the first owner that is not a free block. The result is FREE when all blocks of the request are
        free.
        """
        return next((owner.kind for owner in self.owners if owner.kind is not Kind.FREE), Kind.FREE)

    @property
    def direct(self) -> bool:
        """Whether a process made the request with O_DIRECT, and so bypassed the page cache."""
        return any(asker.direct for asker in self.askers)

    @property
    def prober(self) -> bool:
        """Whether only the readiness command caused the request."""
        return bool(self.askers) and all(asker.prober for asker in self.askers)


@dataclass(frozen=True, kw_only=True)
class Named:
    """A path on the root volume that ``program`` used. ``times`` is the number of uses, ``time_ns`` is the
    guest's uptime at the first use, and ``call`` is the system call of the first use.
    """

    path: PurePosixPath
    program: str
    call: str
    time_ns: int
    times: int


@dataclass(frozen=True)
class DirectReads:
    """The reads of the file ``path`` with which ``program`` bypassed the page cache (O_DIRECT). ``path`` is
    None for blocks that belong to no file.
    """

    path: PurePosixPath | None
    program: str
    requests: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The ledger of one boot until ready.

    ``reads`` and ``writes`` are all requests before ready, in order. ``failed`` are the paths on the root volume whose
    look-up failed, and ``listed`` are the directories of the root volume that were listed. ``untouched`` are packed
    files that no process opened or executed below /fast, the directory in memory, with their sizes in bytes. ``lost``
    is the number of trace entries that the guest's kernel dropped.
    """

    ready_ns: int
    reads: tuple[Entry, ...]
    writes: tuple[Entry, ...]
    failed: tuple[Named, ...]
    listed: tuple[Named, ...]
    untouched: tuple[tuple[PurePosixPath, int], ...]
    lost: int

    @property
    def charged(self) -> tuple[Entry, ...]:
        """The reads to which the root budget (the profile's limit for reads before ready) applies. These are all reads
        except those with O_DIRECT and those of the readiness command.
        """
        return tuple(entry for entry in self.reads if not entry.direct and not entry.prober)

    @property
    def unexplained(self) -> tuple[Entry, ...]:
        """The requests for which no process is known, and the reads whose blocks are all free. Requests of the firmware
        are left out.
        """
        strange = [entry for entry in self.reads if entry.time_ns is not None and entry.kind is Kind.FREE]
        nobodys = [
            entry for entry in (*self.reads, *self.writes) if entry.time_ns is not None and not entry.askers
        ]
        return tuple(dict.fromkeys((*strange, *nobodys)))


@cpu_limit("the guest's trace", INSIDE_LIMIT_S)
def make_ledger(
    requests: Sequence[Request], trace: GuestTrace, ready_ns: int, blocks: BlockOwners, packed: Packed
) -> Ledger:
    """The ledger of a boot. ``ready_ns`` is the guest's uptime at *ready*, according to the launch agent in the guest.
    ``requests`` come from the volume's log. Raises MeasurementError when the requests touch more pieces of files than
    the requests of a real boot can touch.
    """
    entries: list[Entry] = []
    pieces = 0
    for time_ns, request, issued in before(matched(requests, trace.issued), ready_ns):
        entry = Entry(
            time_ns=time_ns,
            writes=request.command in _CHANGES,
            ahead=issued is not None and issued.ahead,
            offset_bytes=request.offset,
            length_bytes=request.length_bytes,
            owners=blocks.owners(request.offset, request.length_bytes),
            askers=issued.askers if issued else (),
        )
        pieces += sum(1 + len(owner.inodes) // _NAMES_IN_PIECE for owner in entry.owners)
        if pieces > _MOST_PIECES:
            raise MeasurementError(
                f"the requests before ready touch more than {_MOST_PIECES} pieces of files"
            )
        entries.append(replace(entry, avoid=advice(entry, packed)))
    uses = [each for each in volume_paths(trace.uses) if each[0].time_ns <= ready_ns]
    return Ledger(
        ready_ns=ready_ns,
        reads=tuple(entry for entry in entries if not entry.writes),
        writes=tuple(entry for entry in entries if entry.writes),
        failed=_named(uses, "failed"),
        listed=_named(uses, "listed"),
        untouched=untouched(trace, ready_ns, packed),
        lost=trace.lost,
    )


def before(
    pairs: Iterable[tuple[Request, Issued | None]], ready_ns: int
) -> Iterator[tuple[int | None, Request, Issued | None]]:
    """The elements of ``pairs`` up to the uptime ``ready_ns``, each with the guest's uptime at the request, in ns.
    ``pairs`` is the result of the function `matched`: requests in the volume's log, each with its entry in the kernel's
    trace.

    A request that is not in the kernel's trace gets the uptime of the previous request. Requests before the kernel's
    first request come from the firmware, and their uptime is None.
    """
    time_ns: int | None = None
    for request, issued in pairs:
        time_ns = issued.time_ns if issued else time_ns
        if time_ns is None or time_ns <= ready_ns:
            yield time_ns, request, issued


def matched(requests: Iterable[Request], issued: Iterable[Issued]) -> Iterator[tuple[Request, Issued | None]]:
    """Each read and write in the volume's log, with the matching entry of the guest kernel's trace, or None. Matching
    entries have the same direction, position and length. If several entries are equal in these values, they are matched
    in the order of the log and the trace.
    """
    waiting: dict[tuple[bool, int, int], deque[Issued]] = defaultdict(deque)
    for each in issued:
        waiting[(each.writes, each.sector * _SECTOR_BYTES, each.sectors * _SECTOR_BYTES)].append(each)
    for request in requests:
        if request.command == Command.READ or request.command in _CHANGES:
            queue = waiting[(request.command in _CHANGES, request.offset, request.length_bytes)]
            yield request, queue.popleft() if queue else None


def advice(entry: Entry, packed: Packed) -> str:
    """A text that says how to avoid the request ``entry``, depending on the kind of its blocks."""
    if entry.writes:
        return _WRITES.get(entry.kind, "the application's own: data and logs belong on the volume")
    if entry.direct:
        return "nothing: the application reads its data past the page cache (O_DIRECT)"
    if entry.time_ns is None:
        return "nothing: the machine's firmware"
    if entry.prober:
        return "nothing: the readiness command's own, not the application's"
    if entry.askers and all(each.program == _PREFETCHER for each in entry.askers):
        return "nothing: init asks for it in one batch with the rest (docs/internals/prefetch.md)"
    if entry.ahead and entry.kind is Kind.INODE_TABLE:
        return "mount with inode_readahead_blks=0: nobody waited for it"
    path = next((owner.path for owner in entry.owners if owner.kind is Kind.FILE), None)
    return _READS[entry.kind] if path is None else _of_file(path, packed)


_PREFETCHER = "prefetcher"
_WRITES = {
    Kind.JOURNAL: "part of mounting read-write: the journal",
    Kind.SUPERBLOCK: "part of mounting read-write: mount count and time",
    Kind.INODE_TABLE: "the kernel's: mkfs with lazy_itable_init=0, or mount with noinit_itable, if it is ext4lazyinit",
}
_READS = {
    Kind.SUPERBLOCK: "part of mounting: ask once, and keep it",
    Kind.DESCRIPTORS: "part of mounting",
    Kind.RESERVED: "part of mounting",
    Kind.JOURNAL: "part of mounting: its journal",
    Kind.BLOCK_BITMAP: "allocate nothing before ready, or prefetch: its place is known",
    Kind.INODE_BITMAP: "create nothing before ready, or prefetch: its place is known",
    Kind.INODE_TABLE: "prefetch: its place is known; or deliver the file by overlay, so that its name is not looked up",
    Kind.DIRECTORY: "prefetch: its place is known; or deliver the files by overlay, so that it is not looked through",
    Kind.EXTENTS: "prefetch: its place is known",
    Kind.ATTRIBUTES: "prefetch: its place is known",
    Kind.LINK: "prefetch: its place is known",
    Kind.FREE: "nothing: the volume has no file there",
    Kind.OUTSIDE: "nothing: the kernel reads the partition table",
}


def _of_file(path: PurePosixPath, packed: Packed) -> str:
    if path in packed.files:
        return "it is packed, and was opened by its ordinary path: delivery overlay, below /usr"
    if rule := packed.excluded.get(path):
        return f"kept out by rule ({rule}): prefetch its blocks"
    return "files.include in the profile, if it is no data; else prefetch its blocks"


def lacking(ledger: Ledger, packed: Packed) -> tuple[PurePosixPath, ...]:
    """The sorted paths of the files that were read from the root volume, but are not packed. Only files that a changed
    profile could pack are included.
    """
    files = {
        owner.path
        for entry in ledger.reads
        if not entry.direct and not entry.prober
        for owner in entry.owners
        if owner.kind is Kind.FILE and owner.path is not None
    }
    by_profile = ("exclude: ", "data: ")
    return tuple(
        path
        for path in sorted(files)
        if path.is_absolute()
        and path not in packed.files
        and packed.excluded.get(path, "exclude: ").startswith(by_profile)
    )


def untouched(trace: GuestTrace, ready_ns: int, packed: Packed) -> tuple[tuple[PurePosixPath, int], ...]:
    """The packed files that no process opened or executed below /fast, the directory in memory, before ready, with
    their sizes in bytes. The largest file comes first.
    """
    touched: set[PurePosixPath] = set()
    for use in trace.uses:
        if (
            use.time_ns <= ready_ns
            and use.what in ("opened", "executed")
            and use.path.parts[1:2] == ("fast",)
        ):
            touched.add(packed.canonical(PurePosixPath("/", *use.path.parts[2:])))
    for program in tuple(touched):
        # The kernel itself opens a program's interpreter, so no process does.
        touched.update(packed.interpreters.get(program, ()))
    # All names of a file are one file in the archive. So all names count as used when one name is used.
    used = {packed.firsts.get(path, path) for path in touched}
    left = [(path, size) for path, size in packed.files.items() if packed.firsts.get(path, path) not in used]
    return tuple(sorted(left, key=lambda pair: (-pair[1], pair[0])))


def by_kind(entries: Iterable[Entry]) -> Mapping[str, tuple[int, int]]:
    """The number of requests and the sum of their bytes, by kind of block. Requests with O_DIRECT and requests of the
    readiness command are counted as separate kinds. The kind with the most requests comes first.
    """
    requests: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for entry in entries:
        name = entry.kind.value
        if entry.direct or entry.prober:
            name += ", O_DIRECT" if entry.direct else ", readiness command"
        requests[name] += 1
        size[name] += entry.length_bytes
    return {name: (count, size[name]) for name, count in requests.most_common()}


def direct_reads(entries: Iterable[Entry]) -> tuple[DirectReads, ...]:
    """The reads that bypassed the page cache, grouped by file and program. The group with the most requests comes
    first.
    """
    found: dict[tuple[PurePosixPath | None, str], DirectReads] = {}
    for entry in entries:
        if not entry.direct:
            continue
        path = next((owner.path for owner in entry.owners if owner.path is not None), None)
        program = next(asker.program for asker in entry.askers if asker.direct)
        before = found.get((path, program), DirectReads(path, program, 0, 0))
        found[path, program] = DirectReads(
            path, program, before.requests + 1, before.size_bytes + entry.length_bytes
        )
    return tuple(sorted(found.values(), key=lambda each: -each.requests))


def _named(uses: Sequence[tuple[Use, PurePosixPath]], what: str) -> tuple[Named, ...]:
    found: dict[tuple[PurePosixPath, str], Named] = {}
    for use, path in uses:
        if use.what != what:
            continue
        key = (path, use.program)
        before = found.get(key)
        if before:
            found[key] = Named(
                path=path,
                program=before.program,
                call=before.call,
                time_ns=before.time_ns,
                times=before.times + 1,
            )
        else:
            found[key] = Named(path=path, program=use.program, call=use.call, time_ns=use.time_ns, times=1)
    return tuple(found.values())


def _heads(path: str) -> Iterator[str]:
    """The directories above ``path``, from the top down, and ``path`` itself."""
    at = path.find("/", 1)
    while at > 0:
        yield path[:at]
        at = path.find("/", at + 1)
    yield path


def _joined(base: str, target: str, rest: str) -> str:
    parts = [] if target.startswith("/") else base.split("/")[1:]
    for part in (*target.split("/"), *rest.split("/")):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)
