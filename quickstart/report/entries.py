"""Define the structure of results.json, the file with the results of a bench, as pydantic models. The models have the
keys, types and ranges of all values (docs/users/results.md).
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import BeforeValidator, FailFast, Field, StringConstraints

from quickstart.measure.results import (
    CLOCKS,
    COMMAND_LINES,
    CONFIGURATIONS,
    DELIVERIES,
    FIRMWARES,
    INSTANCES_MAX,
    OLDER_SCHEMAS,
    PATTERNS,
    PAYLOADS,
    SCHEMA,
    SIZES,
    STORAGES,
)
from quickstart.parse.bounded import INT64_MAX
from quickstart.parse.faults import Table

Count = Annotated[int, Field(ge=0, le=INT64_MAX)]
Instant = Annotated[int, Field(ge=-INT64_MAX, le=INT64_MAX)]
Time = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
# The limit for a kernel's command line in a result, and for every other text. The kernel accepts only shorter lines.
Line = Annotated[str, StringConstraints(max_length=4096)]
# The reason of a censored run, and a line of a unit.
Text = Annotated[str, StringConstraints(max_length=1 << 16)]
Word = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
# A report may also be made of a stranger's results, so all numbers have limits.
Number = Annotated[int, Field(ge=1, le=1000)]


T = TypeVar("T")
# As many as a plan can have cells. `build` and `bench` write some ten.
_MOST_KEYS = 10_000


def _few_keys(found: object) -> object:
    # Before pydantic validates the values: for each `{}`, it would keep six faults. `max_length` is checked only afterwards.
    if isinstance(found, dict) and len(found) > _MOST_KEYS:
        raise ValueError(f"it has {len(found)} keys, at most {_MOST_KEYS} are read")
    return found


Named = Annotated[dict[str, T], BeforeValidator(_few_keys)]


class CellEntry(Table):
    profile: Word
    configuration: Literal[CONFIGURATIONS]  # type: ignore[valid-type]
    command_line: Literal[COMMAND_LINES]  # type: ignore[valid-type]
    storage: Literal[STORAGES]  # type: ignore[valid-type]
    clock: Literal[CLOCKS]  # type: ignore[valid-type]
    size: Literal[SIZES]  # type: ignore[valid-type]
    # Older results do not have this field.
    payload: Literal[("", *PAYLOADS)] = ""  # type: ignore[valid-type]
    pattern: Literal[PATTERNS] = "single"  # type: ignore[valid-type]
    instances: Annotated[int, Field(ge=1, le=INSTANCES_MAX)] = 1
    stagger_ms: Annotated[int, Field(ge=0, le=3_600_000)] = 0
    firmware: Literal[("", *FIRMWARES)] = ""  # type: ignore[valid-type]


class PlannedEntry(CellEntry):
    # Older results do not have this field, but each of their runs has its delivery.
    delivery: Literal[("", *DELIVERIES)] = ""  # type: ignore[valid-type]
    # As in a matrix.
    runs: Number
    timeout_s: Annotated[int, Field(ge=1, le=86400)]


class PhaseEntry(Table):
    name: Word
    begin_ns: Instant
    end_ns: Instant


class RunEntry(CellEntry):
    delivery: Line
    number: Number
    instance: Number = 1
    launched_ns: Count = 0
    dilation_percent: Annotated[int, Field(ge=100, le=1_000_000)] = 100
    censored: Text
    t_pr_ns: Instant
    t_app_ns: Instant
    t_total_ns: Instant
    uptime_ns: Count
    ready_uptime_ns: Count
    fetch_ns: Count
    # Below 0 where the guest's uptime runs ahead at first (docs/users/times.md).
    before_kernel_ns: Instant
    overlap_ns: Count
    volume_reads: Count
    volume_read_bytes: Count
    root_reads: Count
    root_read_bytes: Count
    initramfs_bytes: Count
    phases: Annotated[tuple[PhaseEntry, ...], Field(strict=False, max_length=64), FailFast()]
    units: Annotated[tuple[PhaseEntry, ...], Field(strict=False, max_length=10_000), FailFast()] = ()
    took_ns: Count
    # Older results do not have these fields.
    firmware_ns: Count = 0
    loader_reads: Count = 0
    loader_read_bytes: Count = 0


class BootedEntry(Table):
    kernel: Word
    initramfs: Word
    image: Word
    command_lines: Named[Line]
    unit: Word
    unit_lines: Annotated[tuple[Text, ...], Field(strict=False), FailFast()]


# Field(strict=False): a tuple is a list in JSON. FailFast: of a list, only the first member with faults is reported,
# with all its faults, because a small file could have millions.
class Document(Table):
    schema_: Annotated[Literal[*OLDER_SCHEMAS, SCHEMA], Field(alias="schema")]  # type: ignore[valid-type]
    name: Word
    command: Annotated[tuple[Line, ...], Field(strict=False, min_length=1, max_length=1000), FailFast()]
    began: Time
    host: Named[Line]
    versions: Named[Line]
    artefacts: Named[Line]
    poll_interval_ms: Count
    boots: Named[BootedEntry] = Field(default_factory=dict)
    contents: Named[dict[str, Count]] = Field(default_factory=dict)
    packages: Named[dict[str, Line]] = Field(default_factory=dict)
    plan: Annotated[
        tuple[PlannedEntry, ...], Field(strict=False, min_length=1, max_length=10_000), FailFast()
    ]
    runs: Annotated[tuple[RunEntry, ...], Field(strict=False), FailFast()]
