"""A recorded reference boot's logs → Trace (pure but for reading the files)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from quickstart.errors import TraceError
from quickstart.model import NetworkFacts, Trace
from quickstart.trace import strace

# "	libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f…)" and "	/lib64/ld-linux-x86-64.so.2 (0x00007f…)"
_LIBRARY = re.compile(r"^\t(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$")
_MISSING = re.compile(r"^\t(\S+) => not found$")


def parse_ldd(text: str) -> Mapping[PurePosixPath, tuple[PurePosixPath, ...]]:
    """The log of tracers/ldd-all: what ldd(1) named for each file; raises TraceError for a cut log or a missing library."""
    found: dict[PurePosixPath, list[PurePosixPath]] = {}
    current: list[PurePosixPath] = []
    if not text.endswith("== end\n"):
        raise TraceError("the log of ldd is cut", hint="build again")
    for line in text.removesuffix("== end\n").splitlines():
        if line.startswith("== "):
            current = found.setdefault(PurePosixPath(line[3:]), [])
        elif match := _LIBRARY.match(line):
            current.append(PurePosixPath(match[1]))
        elif match := _MISSING.match(line):
            raise TraceError(
                f"ldd in the guest did not find {match[1]}", hint="a package of the image is incomplete"
            )
    return {path: tuple(libraries) for path, libraries in found.items()}


def load_trace(directory: Path, unit: str) -> Trace:
    """The trace in ``directory`` (as trace.record leaves it) for ``unit``; raises TraceError for logs that are not whole."""
    try:
        facts = json.loads((directory / "facts.json").read_text())
        network = NetworkFacts(facts["interface"], facts["mac"], facts["address"])
        ready_uptime_ns = int(facts["ready_uptime_ns"])
        ldd_text = (directory / "ldd.log").read_text(errors="surrogateescape")
        modules = (directory / "modules.after").read_text()
        with (directory / "strace.log").open("rb") as log:
            parsed = strace.parse(log)
    except OSError as error:
        raise TraceError(f"a log of the trace cannot be read: {error.filename}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(f"a log of the trace is damaged: {error!r}", hint=f"remove {directory}") from error
    processes = strace.unit_processes(parsed, unit)
    events = strace.unit_events(parsed, processes)
    if not events:
        raise TraceError(f"no process of {unit} is in the trace", hint="does the unit start at boot?")
    return Trace(
        events=events,
        processes=processes,
        ldd=parse_ldd(ldd_text),
        modules=tuple(line.split()[0] for line in modules.splitlines()),
        network=network,
        trace_hash=_hash(directory),
        ready_uptime_ns=ready_uptime_ns,
        log_lines=parsed.lines,
    )


def _hash(directory: Path) -> str:
    digest = hashlib.sha256()
    for name in ("strace.log", "ldd.log", "modules.after", "facts.json"):
        with (directory / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
