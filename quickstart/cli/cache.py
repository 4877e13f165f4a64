"""`quickstart cache ls|gc`: list the store's entries, and remove entries."""

from __future__ import annotations

import sys
import time

import click
from rich.console import Console

from quickstart.cli.options import JSON
from quickstart.cli.output import Verb, run_verb, say
from quickstart.model import MIB
from quickstart.store.kept import Kept
from quickstart.store.store import Store, default_root

_DAY_S = 86400
# The last day of the year 9999.
_LAST_S = 253402257600


@click.group()
def cache() -> None:
    """List what the store keeps from builds, and remove what is no longer used.

    The store is the directory in which the steps of a build keep their results, by default ~/.cache/quickstart.
    """


@cache.command("ls")
@JSON
def list_entries(as_json: bool) -> None:
    """List the store's entries, each with its stage, key, size and time of last use."""

    def work(verb: Verb) -> int:
        store = Store(default_root(), verb.display().note)
        entries = store.entries()
        verb.result(
            {"store": str(store.root), "entries": _rows(entries)},
            lambda console: _show(console, store, entries),
        )
        return 0

    sys.exit(run_verb("cache ls", as_json, work))


@cache.command("gc")
@click.option(
    "--days",
    type=click.IntRange(min=0),
    default=30,
    show_default=True,
    help="Keep the entries that were used in the last N days.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
@JSON
def collect(days: int, dry_run: bool, as_json: bool) -> None:
    """Remove entries that no build has used for some days, and the remains of builds that were killed.

    Entries that a running build uses are kept. A removed entry is made again when a build needs it.
    """

    def work(verb: Verb) -> int:
        store = Store(default_root(), verb.display().note)
        limit_s = time.time() - days * _DAY_S
        old = [entry for entry in store.entries() if entry.used_s <= limit_s]
        old += store.leftovers()
        gone = old if dry_run else [entry for entry in old if store.remove(entry)]
        if not dry_run:
            store.remove_locks()
        freed_bytes = sum(entry.size_bytes for entry in gone)

        def text(console: Console) -> None:
            for entry in gone:
                say(console, _line(entry))
            say(console, f"{'would free' if dry_run else 'freed'} {freed_bytes / MIB:.0f} MiB")

        verb.result({"removed": _rows(gone), "freed_bytes": freed_bytes, "dry_run": dry_run}, text)
        return 0

    sys.exit(run_verb("cache gc", as_json, work, as_root=lambda: Store(default_root()).holds_trees()))


def _rows(entries: tuple[Kept, ...] | list[Kept]) -> list[dict[str, object]]:
    return [
        {"stage": e.stage, "key": e.key, "size_bytes": e.size_bytes, "used_s": e.used_s, "partial": e.partial}
        for e in entries
    ]


def _line(entry: Kept) -> str:
    # Some file systems have times that are outside any calendar.
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(min(max(entry.used_s, 0), _LAST_S)))
    state = "  (not finished)" if entry.partial else ""
    return f"{entry.stage:10} {entry.key}  {entry.size_bytes / MIB:8.1f} MiB  {used}{state}"


def _show(console: Console, store: Store, entries: tuple[Kept, ...]) -> None:
    for entry in entries:
        say(console, _line(entry))
    total_bytes = sum(entry.size_bytes for entry in entries)
    say(console, f"{store.root}: {len(entries)} entries, {total_bytes / MIB:.0f} MiB")
