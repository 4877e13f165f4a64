"""Show a ledger as lines of text, and as a document of JSON values (pure). A ledger is the list of the requests to the
root volume before ready (docs/users/verify.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Any

from quickstart.image.blockmap import Kind, Owner
from quickstart.model import RootBudget
from quickstart.parse.printable import brief
from quickstart.verify.boot import Counted, Verified
from quickstart.verify.guesttrace import Asker
from quickstart.verify.ledger import DirectReads, Entry, Ledger, Named, by_kind, direct_reads

_SHOWN_INODES = 3


def is_clean(ledger: Ledger, budget: RootBudget) -> bool:
    """Whether the reads of ``ledger`` are within the root budget, which limits the requests and bytes before ready.
    Only the reads in the property `Ledger.charged` count, because the root budget applies only to them.
    """
    charged = ledger.charged
    size = sum(entry.length_bytes for entry in charged)
    return len(charged) <= budget.requests and size <= budget.read_bytes


def document(verified: Verified, budget: RootBudget) -> dict[str, Any]:
    """The ledger as JSON values."""
    ledger = verified.ledger
    charged = ledger.charged
    direct = [entry for entry in ledger.reads if entry.direct]
    probers = [entry for entry in ledger.reads if entry.prober and not entry.direct]
    return {
        "clean": is_clean(ledger, budget) and not verified.fallback,
        "fallback": verified.fallback,
        "ready_uptime_ns": ledger.ready_ns,
        "requests": len(charged),
        "bytes": sum(entry.length_bytes for entry in charged),
        "direct_requests": len(direct),
        "direct_bytes": sum(entry.length_bytes for entry in direct),
        "direct": [_direct(each) for each in direct_reads(ledger.reads)],
        "prober_requests": len(probers),
        "prober_bytes": sum(entry.length_bytes for entry in probers),
        "budget": {"requests": budget.requests, "bytes": budget.read_bytes},
        "root_reads": verified.counted.reads,
        "root_read_bytes": verified.counted.read_bytes,
        "unexplained": len(ledger.unexplained),
        "by_kind": {
            name: {"requests": count, "bytes": size} for name, (count, size) in by_kind(ledger.reads).items()
        },
        "reads": [_entry(entry) for entry in ledger.reads],
        "writes": [_entry(entry) for entry in ledger.writes],
        "failed_lookups": [_named(each) for each in ledger.failed],
        "listed": [_named(each) for each in ledger.listed],
        "untouched": [{"path": str(path), "size_bytes": size} for path, size in ledger.untouched],
        "lost_trace_entries": ledger.lost,
    }


def counted_document(found: Counted, budget: RootBudget) -> dict[str, Any]:
    """QEMU's counts of requests as JSON values, for a boot whose requests could not be attributed to processes."""
    counted = found.counted
    within = counted.reads <= budget.requests and counted.read_bytes <= budget.read_bytes
    return {
        "clean": within and not found.fallback,
        "fallback": found.fallback,
        "unattributed": found.error.message,
        "requests": counted.reads,
        "bytes": counted.read_bytes,
        "budget": {"requests": budget.requests, "bytes": budget.read_bytes},
        "root_reads": counted.reads,
        "root_read_bytes": counted.read_bytes,
    }


def counted_lines(found: Counted, budget: RootBudget) -> Iterator[str]:
    """QEMU's counts of requests (see `counted_document`) as lines of text."""
    counted = found.counted
    if found.fallback:
        yield f"the fast start did not happen: {brief(found.fallback)}"
    yield (
        f"{counted.reads} reads, {counted.read_bytes / 1e6:.2f} MB of the root volume before ready "
        f"(budget {budget.requests}, {budget.read_bytes / 1e6:.2f} MB)"
    )
    yield f"who asked for what is unknown: {found.error.message}"
    yield f"hint: {found.error.hint}"


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        "uptime_ns": entry.time_ns,
        "offset_bytes": entry.offset_bytes,
        "length_bytes": entry.length_bytes,
        "kind": entry.kind.value,
        "ahead": entry.ahead,
        "direct": entry.direct,
        "prober": entry.prober,
        "owners": [
            {
                "kind": owner.kind.value,
                "blocks": owner.blocks,
                "path": str(owner.path) if owner.path else None,
                "offset_bytes": owner.offset_bytes,
                "inodes": [str(path) for path in owner.inodes],
            }
            for owner in entry.owners
        ],
        "asked_by": [
            {
                "pid": asker.pid,
                "program": asker.program,
                "call": asker.call,
                "path": str(asker.path) if asker.path else None,
            }
            for asker in entry.askers
        ],
        "avoid": entry.avoid,
    }


def _direct(each: DirectReads) -> dict[str, Any]:
    return {
        "path": str(each.path) if each.path else None,
        "program": each.program,
        "requests": each.requests,
        "bytes": each.size_bytes,
    }


def _named(named: Named) -> dict[str, Any]:
    return {
        "path": str(named.path),
        "program": named.program,
        "call": named.call,
        "uptime_ns": named.time_ns,
        "times": named.times,
    }


def lines(verified: Verified, budget: RootBudget) -> Iterator[str]:
    """The ledger as lines of text: first the requests in the order of time, then other uses of the volume,
    and then totals.
    """
    ledger = verified.ledger
    if verified.fallback:
        yield f"the fast start did not happen, this is the stock boot's account: {brief(verified.fallback)}"
    yield from _requests("read from the root volume before ready", ledger.reads)
    yield from _requests("written", ledger.writes)
    yield from _names("failed look-ups", ledger.failed)
    yield from _names("directories listed", ledger.listed)
    if ledger.untouched:
        size = sum(size for _, size in ledger.untouched)
        yield f"packed and never touched: {len(ledger.untouched)} files, {_kib(size)} KiB"
        yield from (f"  {_kib(size):>8} KiB  {path}" for path, size in ledger.untouched)
    yield from _sums(ledger)
    yield from _verdict(verified, budget)


def _requests(title: str, entries: tuple[Entry, ...]) -> Iterator[str]:
    if not entries:
        return
    yield f"{title}:"
    yield "   uptime s       KiB  what ← who → what would avoid it"
    for entry in entries:
        at = "before" if entry.time_ns is None else f"{entry.time_ns / 1e9:.3f}"
        who = "; ".join(map(_asker, entry.askers)) or "unknown"
        yield f"  {at:>8}  {_kib(entry.length_bytes):>8}  {_what(entry)} ← {who} → {entry.avoid}"


def _kib(size: int) -> str:
    return f"{size / 1024:.1f}"


def _asker(asker: Asker) -> str:
    call = asker.call or "outside a call"
    direct = ", O_DIRECT" if asker.direct else ""
    return f"{asker.program}[{asker.pid}] {call}{f' {asker.path}' if asker.path else ''}{direct}"


def _what(entry: Entry) -> str:
    wanted = {path for asker in entry.askers if asker.path for path in (asker.path, *asker.path.parents)}
    ahead = " (read ahead)" if entry.ahead and entry.kind is Kind.INODE_TABLE else ""
    return "; ".join(dict.fromkeys(_owner(owner, wanted) for owner in entry.owners)) + ahead


def _owner(owner: Owner, wanted: set[PurePosixPath]) -> str:
    if owner.kind is Kind.FILE:
        return f"{owner.path} at {_kib(owner.offset_bytes)} KiB"
    if owner.path is not None:
        return f"{owner.kind.value} {owner.path}"
    if owner.kind is not Kind.INODE_TABLE:
        return str(owner.kind.value)
    asked = [str(path) for path in owner.inodes if path in wanted][:_SHOWN_INODES]
    if not owner.inodes:
        return "inode table (not in use)"
    others = len(owner.inodes) - len(asked)
    names = [*asked, f"{others} others" if asked else f"{others} inodes"] if others else asked
    return f"inode table ({', '.join(names)})"


def _names(title: str, found: Iterable[Named]) -> Iterator[str]:
    first = True
    for each in found:
        if first:
            yield f"{title} on the root volume:"
            first = False
        times = f" ({each.times} times)" if each.times > 1 else ""
        yield f"  {each.time_ns / 1e9:8.3f}  {each.path} ← {each.program} {each.call}{times}"


def _sums(ledger: Ledger) -> Iterator[str]:
    if direct := direct_reads(ledger.reads):
        yield "read past the page cache (O_DIRECT), not charged:"
        for each in direct:
            yield f"  {each.requests:4} requests {_kib(each.size_bytes):>9} KiB  {each.path or 'no file'} ← {each.program}"
    yield "by kind:"
    for name, (count, size) in by_kind(ledger.reads).items():
        yield f"  {count:4} requests {_kib(size):>9} KiB  {name}"
    advice: Counter[str] = Counter()
    size_of: Counter[str] = Counter()
    for entry in ledger.reads:
        advice[entry.avoid] += 1
        size_of[entry.avoid] += entry.length_bytes
    yield "what would avoid them:"
    for what, count in advice.most_common():
        yield f"  {count:4} requests {_kib(size_of[what]):>9} KiB  {what}"


def _verdict(verified: Verified, budget: RootBudget) -> Iterator[str]:
    ledger = verified.ledger
    if ledger.unexplained:
        yield f"not explained: {len(ledger.unexplained)} requests"
    charged = ledger.charged
    size = sum(entry.length_bytes for entry in charged)
    yield (
        f"{'within' if is_clean(ledger, budget) else 'ABOVE'} the budget: {len(charged)} of {budget.requests} requests,"
        f" {size} of {budget.read_bytes} bytes, ready at {ledger.ready_ns / 1e9:.3f} s of uptime"
    )
    if others := sum(entry.direct for entry in ledger.reads):
        yield f"  and {others} direct reads (O_DIRECT) of the application, which are not charged"
    if others := sum(entry.prober and not entry.direct for entry in ledger.reads):
        yield f"  and {others} reads of the readiness command, which is not the application's, and not charged"
