"""Boot an artefact from our volume emulator, an NBD server, and make the ledger of the requests to the root volume. The
ledger is made from the emulator's log and from the guest kernel's trace of its requests. The artefact is not changed.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from quickstart.artefact.manifest import read_start_set
from quickstart.engines import boot as pipeline
from quickstart.engines.launching import launcher_of
from quickstart.errors import GuestError, MeasurementError, TraceFullError, UntraceableError
from quickstart.guest import Executes, executing, last_lines
from quickstart.host.cpulimit import TRACE_LIMIT_S, cpu_limit
from quickstart.host.workspace import workspace
from quickstart.image.blockmap import read_block_map
from quickstart.image.diskmap import BlockOwners, read_disk_map
from quickstart.launch.rawdisk import made_raw
from quickstart.model import Artefact, Readied, RootIo
from quickstart.model.machine import NbdSocket, on_volume
from quickstart.model.reasons import interpreted_program
from quickstart.model.words import DiskFormat, FileSystem
from quickstart.parse.bounded import lines_of
from quickstart.store.context import Context
from quickstart.verify.ftrace import FETCH, TRACE_WORDS
from quickstart.verify.guesttrace import MAX_LINE, GuestTrace, parse
from quickstart.verify.ledger import Ledger, Packed, make_ledger
from quickstart.volume.emulator import Request, served, volume_binary
from quickstart.volume.nbd import Command
from quickstart.volume.storage import load_model

# The kernel takes the last of these words on its command line.
_BUFFER = "trace_buf_size="
# The share of a machine's memory. RabbitMQ, whose boot has 1.5 million events, needs 90 of 1024 MiB.
_BUFFER_SHARE, _LARGEST_BUFFER_MIB = 6, 256
# Meanwhile the distribution's boot continues, perhaps on a slow CPU.
_FETCH_S = 600.0
# trace_buf_size= on the kernel's command line is less than a tenth of this. As text, the trace is several times as large, and
# gzip makes a tenth of it.
_TRACE_BYTES, _PACKED_BYTES = 512 << 20, 64 << 20
# A few counters of each CPU.
_STATS_BYTES = 64 << 10
_SECTOR_BYTES = 512


@dataclass(frozen=True)
class Options:
    """The options of `quickstart verify` that concern its boot. When ``timeout_s`` is None, the profile's time limit
    applies. ``append`` are further words for the kernel's command line. With ``keep``, the boot's workspaces (temporary
    directories with the logs) are not removed.
    """

    timeout_s: float | None = None
    append: str = ""
    keep: bool = False


@dataclass(frozen=True)
class Verified:
    """The ledger of a boot, with further facts about this boot. ``counted`` has QEMU's counts of requests at the moment
    when the guest's message *ready* arrived. ``packed`` are the files that the artefact packs. ``fallback`` is the
    reason why init gave up the early start (fallback 1), or empty.
    """

    ledger: Ledger
    counted: RootIo
    packed: Packed
    fallback: str


@dataclass(frozen=True)
class Counted:
    """The result of a boot for which no ledger (list of the requests with their causes) could be made. QEMU counted the
    reads (``counted``), but it is not known which processes caused the reads. ``error`` says why these processes are
    not known. ``fallback`` is the reason why init gave up the early start (fallback 1), or empty. ``ready_uptime_ns``
    is the guest's uptime when it was ready.
    """

    counted: RootIo
    fallback: str
    error: UntraceableError | TraceFullError
    ready_uptime_ns: int


@dataclass(frozen=True)
class _Seen:
    """The records of a boot that come from the guest. ``trace`` is an UntraceableError when the guest's kernel cannot
    trace its requests. ``fallback`` is the reason why init gave up the early start (fallback 1), or empty.
    """

    readied: Readied
    trace: GuestTrace | UntraceableError
    fallback: str


def verify(artefact: Artefact, options: Options, context: Context) -> Verified:
    """Boot ``artefact`` once until ready, and make the ledger of its requests. The artefact's disk is not
    changed.

    Raises MeasurementError when the volume's log differs from QEMU's counters, TraceFullError when the
    guest's trace ended too early, and UntraceableError when the guest's kernel cannot trace.
    """
    found = accounted_or_counted(artefact, options, context)
    if isinstance(found, Counted):
        raise found.error
    return found


def accounted_with_room(artefact: Artefact, options: Options, context: Context) -> Verified | Counted:
    """Boot ``artefact``, and make the ledger of its requests, or only return QEMU's counts of the requests, like
    `accounted_or_counted`. When the guest's trace buffer is full before ready, this function boots the guest a second
    time, with a larger buffer (a sixth of the machine's memory). There is no second boot if ``options.append`` sets the
    size of the buffer, or if init has given up the early start.
    """
    seen = accounted_or_counted(artefact, options, context)
    if not isinstance(seen, Counted) or not isinstance(seen.error, TraceFullError):
        return seen
    if seen.fallback or _BUFFER in options.append:
        return seen
    context.progress.note(f"{seen.error.message}; once more with a larger buffer")
    larger = f"{_BUFFER}{min(artefact.memory_mib // _BUFFER_SHARE, _LARGEST_BUFFER_MIB)}M"
    return accounted_or_counted(
        artefact, replace(options, append=f"{options.append} {larger}".strip()), context
    )


def accounted_or_counted(artefact: Artefact, options: Options, context: Context) -> Verified | Counted:
    """Boot ``artefact`` once until ready, and make the ledger of its requests. When the requests cannot be attributed
    to processes, the result has only QEMU's counts. Raises MeasurementError when the volume's log differs from QEMU's
    counters.
    """
    packed = packed_files(artefact)
    file_system = artefact.superblock.file_system
    with _raw(artefact, options.keep) as disk:
        blocks = _block_owners(artefact, disk, context) if file_system is FileSystem.EXT4 else None
        with context.progress.step(f"boot {artefact.profile_name}, every request written down"):
            seen, requests = _boot(artefact, disk, options, context)
    try:
        if isinstance(seen.trace, UntraceableError):
            raise seen.trace
        if blocks is None:
            raise UntraceableError(
                f"the root file system is {file_system}, and QuickStart finds the files of blocks only on ext4",
                hint="`quickstart run OUT` shows whether the machine starts fast",
            )
        return account(requests, seen.trace, seen.readied, blocks, packed, seen.fallback)
    except (UntraceableError, TraceFullError) as error:
        return Counted(seen.readied.root_io, seen.fallback, error, seen.readied.ready.uptime_ns)


def _block_owners(artefact: Artefact, disk: Path, context: Context) -> BlockOwners:
    with context.progress.step(f"whose the blocks of {artefact.disk.name} are"):
        at_bytes = artefact.root_at_bytes
        return read_disk_map(disk, at_bytes) if at_bytes else read_block_map(disk)


def account(
    log: tuple[Request, ...],
    trace: GuestTrace,
    readied: Readied,
    blocks: BlockOwners,
    packed: Packed,
    fallback: str = "",
) -> Verified:
    """The ledger of a boot, that is, the list of its requests with their causes. The function makes the ledger from the
    volume's ``log``, the guest's ``trace``, and ``blocks``, which says what is in each block of the disk. Raises
    MeasurementError when the log differs from QEMU's counters, TraceFullError when the trace ended too early, and
    UntraceableError when the guest's kernel cannot trace.
    """
    requests = guest_requests(log)
    if not trace.issued:
        raise UntraceableError("the guest's kernel says nothing of its requests")
    if trace.lost and trace.ends_ns < readied.ready.uptime_ns:
        raise TraceFullError(
            f"the guest's trace was full {trace.ends_ns / 1e9:.1f} s after its start, before it was ready",
            hint=f"--append {_BUFFER}{_LARGEST_BUFFER_MIB}M, and a machine with more memory ([memory] in the profile)",
        )
    check_balance(requests, readied.root_io)
    ledger = make_ledger(requests, trace, readied.ready.uptime_ns, blocks, packed)
    return Verified(ledger, readied.root_io, packed, fallback)


def guest_requests(log: tuple[Request, ...]) -> tuple[Request, ...]:
    """The requests in ``log``, without QEMU's own read of the partition table (QEMU's hw/block/hd-geometry.c)."""
    first = log[:1]
    own = [each for each in first if (each.offset, each.length_bytes) == (0, _SECTOR_BYTES)]
    return log[len(own) :]


def check_balance(requests: tuple[Request, ...], counted: RootIo) -> None:
    """Raise MeasurementError unless the log agrees with QEMU's counters.

    ``counted`` has a number of reads, and the sum of their bytes. QEMU counts a read when its answer arrives. So the
    first ``counted.reads`` reads in the log, sorted by the time of the answer, must have exactly this sum.
    """
    reads = [each for each in requests if each.command == Command.READ and each.done_ns]
    first = sorted(reads, key=lambda each: (each.done_ns, each.sequence))[: counted.reads]
    logged = sum(each.length_bytes for each in first)
    if len(first) != counted.reads or logged != counted.read_bytes:
        raise MeasurementError(
            f"QEMU counted {counted.reads} reads of {counted.read_bytes} bytes, the volume's log has {len(first)} of {logged}",
            hint="verify again; if it stays so, report it",
        )


def _boot(
    artefact: Artefact, disk: Path, options: Options, context: Context
) -> tuple[_Seen, tuple[Request, ...]]:
    launcher = launcher_of(artefact, context, keep=options.keep)
    words = " ".join((*TRACE_WORDS, options.append)).strip()
    machine = pipeline.machine_of(artefact, stock=False, snapshot=False, port=None, extra_cmdline=words)
    with served(volume_binary(context.store), disk, load_model("local")) as volume:
        served_machine = on_volume(machine, NbdSocket(volume.socket))
        with launcher.launch(served_machine, artefact.ready) as guest:
            readied = guest.wait_ready(options.timeout_s or artefact.ready.timeout_s, volume.is_running)
            trace = _trace(executing(guest))
            fallback = guest.fallback()
        # QEMU has ended, so the log has all of its requests.
        log = volume.log()
    return _Seen(readied, trace, fallback), log


def _trace(guest: Executes) -> GuestTrace | UntraceableError:
    """The guest's trace, or an error that says why the guest has no trace. The guest may be hostile, so the trace is
    parsed line by line.
    """
    packed, stats = io.BytesIO(), io.BytesIO()
    status = guest.execute(FETCH, packed, stats, _FETCH_S, _PACKED_BYTES)
    if status != 0:
        return UntraceableError(
            f"the guest's trace cannot be read (status {status})", details=last_lines(stats)
        )
    said = stats.getvalue()[:_STATS_BYTES].decode(errors="replace")
    packed.seek(0)
    try:
        with gzip.GzipFile(fileobj=packed) as file, cpu_limit("the guest's trace", TRACE_LIMIT_S):
            return parse(_trace_lines(cast("BinaryIO", file)), said)
    except UntraceableError as error:
        return error
    except (OSError, EOFError, zlib.error) as error:
        raise GuestError(f"the guest's trace came home damaged: {error}") from error


def _trace_lines(file: BinaryIO) -> Iterator[str]:
    """The lines of the trace. Lines that are longer than any line that a kernel writes are left out."""
    left_bytes, is_rest = _TRACE_BYTES, False
    for line in lines_of(file, MAX_LINE):
        left_bytes -= len(line)
        if left_bytes < 0:
            raise GuestError(f"the guest's trace has more than {_TRACE_BYTES} bytes")
        if not is_rest and len(line) <= MAX_LINE:
            yield line.decode(errors="surrogateescape")
        is_rest = not line.endswith(b"\n")


@contextmanager
def _raw(artefact: Artefact, keep: bool) -> Iterator[Path]:
    """The path of the artefact's root disk as a raw image: the root disk itself if it is raw, or else a raw
    copy. The copy is removed at the end of the context, unless ``keep`` is set.
    """
    if artefact.disk_format == DiskFormat.RAW:
        yield artefact.disk
        return
    with workspace("quickstart-verify-", keep=keep) as place:
        yield made_raw(artefact.disk, place)


def packed_files(artefact: Artefact) -> Packed:
    """The packed files, the excluded files and each program's ELF interpreter, from start-set.json."""
    document = read_start_set(artefact.directory)
    files = {PurePosixPath(each.path): each.size_bytes for each in document.files if each.kind == "file"}
    links = {PurePosixPath(each.path): each.target for each in document.files if each.target}
    excluded = {PurePosixPath(each.path): each.rule for each in document.excluded}
    interpreters: dict[PurePosixPath, list[PurePosixPath]] = {}
    for each in document.files:
        for program in filter(None, map(interpreted_program, each.reasons)):
            interpreters.setdefault(program, []).append(PurePosixPath(each.path))
    firsts = {
        PurePosixPath(each.path): PurePosixPath(each.hard_link_to)
        for each in document.files
        if each.hard_link_to
    }
    return Packed(
        files=files,
        links=links,
        excluded=excluded,
        interpreters={of: tuple(found) for of, found in interpreters.items()},
        firsts=firsts,
    )
