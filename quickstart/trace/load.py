"""Make a Trace from the logs of a recorded reference boot. Apart from reading the logs, this module has no side
effects.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from quickstart.errors import TraceError
from quickstart.model import Mapped, NetworkFacts, Trace
from quickstart.parse.bounded import read_whole
from quickstart.trace.collect import UnitLog, collect_file, limited_by_size
from quickstart.trace.firstreads import parse_reads
from quickstart.trace.resident import parse_resident
from quickstart.trace.started import parse_units
from quickstart.trace.strace import unescape
from quickstart.trace.whole import whole

_LOGS = (
    *("strace.log", "maps.log", "units.log", "resident.log", "ldd.log"),
    *("modules.before", "modules.after", "facts.json"),
)
# Only for a profile with first requests.
_READS_LOG = "reads.log"
# The limits for all logs except strace's log, which is read line by line. On a machine with a desktop, the log of the
# maps has some MiB.
_MAX_LOG_BYTES = 4 << 20
_MAX_MAPS_BYTES = 32 << 20
_MAX_LDD_LINES = 1 << 17
# A process maps a hundred libraries.
_MAX_MAPS_LINES, _MAX_MAPPED = 1 << 19, 1 << 17
# "	libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f…)" and "	/lib64/ld-linux-x86-64.so.2 (0x00007f…)"
_LIBRARY = re.compile(r"^\t(?:\S++ => )?(/\S++) \(0x[0-9a-f]+\)$")
# proc(5), /proc/PID/maps: address, perms, offset, dev, inode, pathname
_MAPS_LINE = re.compile(r"[0-9a-f]+-[0-9a-f]+ ([rwxsp-]{4}) [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ [0-9]+ *(.*)")
_MAPS_PROCESS = re.compile(r"== ([0-9]{1,10}) (.*)")
_DELETED = " (deleted)"


def parse_ldd(text: str) -> Mapping[PurePosixPath, tuple[PurePosixPath, ...]]:
    """The libraries that ldd(1) named for each file. ``text`` is the log that the script tracers/ldd-all prints. Raises
    TraceError for a log that is incomplete or has implausibly many lines.

    ldd may examine a library alone, without the program that uses it. ldd then may not find another library that the
    program would already have loaded at this point. So this function ignores libraries that ldd does not find. The
    function closure in inspect/elf.py reports the libraries that are really missing.
    """
    found: dict[PurePosixPath, list[PurePosixPath]] = {}
    current: list[PurePosixPath] = []
    text = whole("ldd", text)
    if text.count("\n") > _MAX_LDD_LINES:
        raise TraceError(f"the log of ldd has more than {_MAX_LDD_LINES} lines", hint="build again")
    for line in text.split("\n"):
        if line.startswith("== "):
            current = found.setdefault(PurePosixPath(line[3:]), [])
        elif match := _LIBRARY.match(line):
            current.append(PurePosixPath(match[1]))
    return {path: tuple(libraries) for path, libraries in found.items()}


def parse_maps(text: str) -> tuple[Mapped, ...]:
    """Every file that a process had mapped for execution. ``text`` is the log that the script tracers/maps-all
    prints. If several processes had mapped a file, the result has the file once for each of these processes.

    Mappings without a file (memfd, SysV memory, vdso) and deleted files are left out. Children of systemd that have not
    executed the unit's program are also left out. The names of these children are in parentheses, for example (sd-pam).
    Raises TraceError for a log that is incomplete or has implausibly many lines.
    """
    found: dict[Mapped, None] = {}
    pid, program = 0, ""
    text = whole("the maps", text)
    if text.count("\n") > _MAX_MAPS_LINES:
        raise TraceError(f"the log of the maps has more than {_MAX_MAPS_LINES} lines", hint="build again")
    for line in text.split("\n"):
        if process := _MAPS_PROCESS.fullmatch(line):
            pid, program = int(process[1]), process[2]
        elif program.startswith("("):
            continue
        elif (match := _MAPS_LINE.fullmatch(line)) and "x" in match[1] and _is_file(match[2]):
            found[Mapped(pid, program, PurePosixPath(unescape(match[2])))] = None
            if len(found) > _MAX_MAPPED:
                raise TraceError(f"more than {_MAX_MAPPED} files are mapped", hint="build again")
    return tuple(found)


def _is_file(name: str) -> bool:
    return name.startswith("/") and not name.startswith("/memfd:") and not name.endswith(_DELETED)


def load_trace(directory: Path, *units: str) -> Trace:
    """The trace of ``units`` from the logs that the module record.py wrote to ``directory``. Raises TraceError when a
    log is missing, incomplete or damaged, and when the logs have no process of one of ``units``.

    The logs come from a guest and are untrusted. So BadInputError is raised when reading the logs takes far more CPU
    time than usual for logs of this size.
    """
    paths = [directory / name for name in (*_LOGS, _READS_LOG)]
    # The error for a missing log is raised later.
    with limited_by_size(sum(path.stat().st_size for path in paths if path.is_file())):
        return _load(directory, units)


def _load(directory: Path, units: tuple[str, ...]) -> Trace:
    has_reads = (directory / _READS_LOG).exists()
    try:
        texts = {name: os.fsdecode(read_whole(directory / name, _limit(name))) for name in _LOGS[1:]}
        network, ready_uptime_ns = _facts(texts["facts.json"])
        reads = os.fsdecode(read_whole(directory / _READS_LOG, _MAX_LOG_BYTES)) if has_reads else ""
        with (directory / "strace.log").open("rb") as log:
            found = collect_file(log, *units)
    except OSError as error:
        raise TraceError(f"a log of the trace cannot be read: {error.filename}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TraceError(f"a log of the trace is damaged: {error!r}", hint=f"remove {directory}") from error
    refuse_absent(found, units)
    mapped = parse_maps(texts["maps.log"])
    if found.alive and not mapped:
        raise TraceError(
            f"{' and '.join(units)} ran at ready, but nothing was found that was mapped",
            hint="is its control group elsewhere?",
        )
    return Trace(
        events=found.events,
        processes=found.processes,
        blind=found.blind,
        mapped=mapped,
        ldd=parse_ldd(texts["ldd.log"]),
        modules_before=_modules(texts["modules.before"]),
        modules=_modules(texts["modules.after"]),
        network=network,
        trace_hash=_hash(directory, (*_LOGS, _READS_LOG) if has_reads else _LOGS),
        ready_uptime_ns=ready_uptime_ns,
        log_lines=found.lines,
        resident=parse_resident(texts["resident.log"]),
        loaded=parse_units(texts["units.log"]),
        uses_network=found.network,
        changed=found.changed,
        peers=found.peers,
        first_reads=parse_reads(reads, ready_uptime_ns) if has_reads else (),
    )


def _limit(log: str) -> int:
    return _MAX_MAPS_BYTES if log == "maps.log" else _MAX_LOG_BYTES


def refuse_absent(log: UnitLog, units: Iterable[str]) -> None:
    """Raise TraceError for a unit whose processes are not in ``log``."""
    for unit in units:
        if unit not in log.units:
            raise TraceError(f"no process of {unit} is in the trace", hint="does the unit start at boot?")


def _facts(text: str) -> tuple[NetworkFacts, int]:
    """The network facts and the uptime at ready in ns from ``text``, the content of facts.json. Raises ValueError,
    KeyError, TypeError or RecursionError when ``text`` is not valid.
    """
    facts = json.loads(text)
    words = [facts[name] for name in ("interface", "mac", "address")]
    ready_uptime_ns = facts["ready_uptime_ns"]
    if type(ready_uptime_ns) is not int or not all(isinstance(word, str) for word in words):
        raise ValueError("facts.json has another type of value")
    return NetworkFacts(*words), ready_uptime_ns


def _modules(text: str) -> tuple[str, ...]:
    """The names of the kernel modules in a copy of /proc/modules, sorted."""
    return tuple(sorted(line.split()[0] for line in text.splitlines() if line.strip()))


def _hash(directory: Path, logs: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for name in logs:
        with (directory / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
