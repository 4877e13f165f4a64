"""Find the reads of the root volume that remain in an early start, in which our init starts the service from memory
before systemd runs. For this purpose, this module builds a temporary artefact and boots it once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from quickstart.errors import NoProfileError
from quickstart.host.workspace import workspace
from quickstart.image.blockmap import Kind
from quickstart.model import Artefact, RootBudget
from quickstart.model.words import Early
from quickstart.parse.printable import brief
from quickstart.store.context import Context
from quickstart.store.store import source_digest
from quickstart.verify import boot

_FILE = "reads.json"
_LARGEST = 10
# cloud-init's own word for a boot in which it does nothing. Init obeys it, too (docs/users/cloud-init.md).
_WITHOUT_CLOUD_INIT = "cloud-init=disabled"
_MARGIN_REQUESTS, _STEP_REQUESTS = 10, 10
_MARGIN_BYTES, _STEP_BYTES = 250_000, 250_000


@dataclass(frozen=True, kw_only=True)
class Reads:
    """The reads of the root volume before ready in one boot. ``requests`` and ``bytes`` count only the reads to which
    the root budget (the limit that `verify` checks) applies. ``direct_requests`` is the number of reads with O_DIRECT,
    to which the root budget does not apply. ``files`` are the files from which most bytes were read, as (path,
    programs, bytes). ``ready_uptime_ns`` is the guest's uptime at ready.

    When the guest's kernel could not attribute requests to processes and files, ``unattributed`` says why. In
    this case, the numbers come from QEMU and include requests with O_DIRECT, and ``files`` is empty.
    """

    requests: int
    bytes: int
    direct_requests: int
    files: tuple[tuple[str, str, int], ...]
    ready_uptime_ns: int
    unattributed: str = ""


def measured(unit: str, key: str, build: Callable[[Path], Artefact], keep: bool, context: Context) -> Reads:
    """The reads of a trial boot of the profile whose main unit is ``unit``. If the store does not have these reads yet,
    the function calls ``build`` with the path of a temporary OUT, and boots the artefact. ``key`` is the key of this
    build.

    Raises NoProfileError when init gives up the early start in this boot.
    """
    inputs: Mapping[str, object] = {"build": key, "recipe": source_digest("quickstart.newprofile.reads")}

    def make(directory: Path) -> None:
        with workspace("quickstart-profile-", keep=keep) as place:
            seen = _boot(build(place / "out"), keep, context)
        if seen.fallback:
            raise NoProfileError(
                unit,
                [f"an early start on trial did not happen: {brief(seen.fallback)}"],
                hint="the stock boot works; report what the unit does, or leave it to the stock boot",
            )
        (directory / _FILE).write_text(json.dumps(_facts(seen), indent=1) + "\n")

    facts = json.loads((context.store.get_or_make("ledger", inputs, make).path / _FILE).read_text())
    files = tuple((str(path), str(program), int(size)) for path, program, size in facts.pop("files"))
    return Reads(files=files, **facts)


def _boot(artefact: Artefact, keep: bool, context: Context) -> boot.Verified | boot.Counted:
    """The result of one trial boot. In this boot, cloud-init does nothing. Otherwise, the first boot of an image with
    cloud-init would be a stock boot.
    """
    is_first = artefact.cloud_init and artefact.early is not Early.ALWAYS
    options = boot.Options(append=_WITHOUT_CLOUD_INIT if is_first else "", keep=keep)
    seen = boot.accounted_with_room(artefact, options, context)
    if isinstance(seen, boot.Counted) and not seen.fallback:
        context.progress.note(
            f"who reads what before ready is unknown: {seen.error.message}. "
            "The budget in the profile comes from the number of reads alone."
        )
    return seen


def _facts(seen: boot.Verified | boot.Counted) -> Mapping[str, object]:
    if isinstance(seen, boot.Counted):
        return {
            "requests": seen.counted.reads,
            "bytes": seen.counted.read_bytes,
            "direct_requests": 0,
            "files": [],
            "ready_uptime_ns": seen.ready_uptime_ns,
            "unattributed": seen.error.message,
        }
    ledger = seen.ledger
    charged = ledger.charged
    files: Counter[tuple[str, str]] = Counter()
    for entry in charged:
        if entry.kind is Kind.FILE:
            owner = next(each for each in entry.owners if each.kind is Kind.FILE)
            programs = ", ".join(sorted({asker.program for asker in entry.askers}))
            files[str(owner.path), programs] += entry.length_bytes
    largest = sorted(files.items(), key=lambda row: (-row[1], row[0]))[:_LARGEST]
    return {
        "requests": len(charged),
        "bytes": sum(entry.length_bytes for entry in charged),
        "direct_requests": sum(entry.direct for entry in ledger.reads),
        "files": [[*who, size] for who, size in largest],
        "ready_uptime_ns": ledger.ready_ns,
    }


def root_budget(reads: Reads, beside_the_boot: bool) -> RootBudget:
    """The root budget, that is, the numbers of requests and bytes that `verify` allows before ready. Each number is one
    and a half times the number in ``reads``, plus a margin, rounded up. With ``beside_the_boot``, the distribution's
    boot may also read before ready. The factor is then two instead of one and a half.
    """
    parts = 4 if beside_the_boot else 3
    return RootBudget(
        _up(reads.requests * parts // 2 + _MARGIN_REQUESTS, _STEP_REQUESTS),
        _up(reads.bytes * parts // 2 + _MARGIN_BYTES, _STEP_BYTES),
    )


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
