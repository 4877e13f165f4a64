"""Read the plan of a bench from TOML or command-line options into a Matrix, which lists everything to measure. This
module validates the whole plan before any work begins (docs/users/measuring.md).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError

from quickstart.errors import BadInputError, MatrixError
from quickstart.measure.configuration import built_with
from quickstart.measure.patterns import block_problems, launches_of, picture_problems
from quickstart.measure.results import (
    BUILT,
    CLOCKS,
    CLOUD_CLOCKS,
    CLOUD_STORAGE,
    COMMAND_LINES,
    CONFIGURATIONS,
    DELIVERIES,
    DISK_CONFIGURATIONS,
    FIRMWARES,
    INSTANCES_MAX,
    PATTERNS,
    PAYLOADS,
    RUNS_MAX,
    SIZES,
    STOCK_CONFIGURATIONS,
    STORAGES,
    Cell,
    Planned,
    words_of,
)
from quickstart.model import Profile
from quickstart.parse.bounded import MAX_TOML_BYTES, parse_toml, read_whole
from quickstart.parse.faults import MAX_LINES, Table, faults, first_ones, near
from quickstart.profile import load_profile

SCHEMA = 1
# A standard boot on the virtual clock takes 45 s on a slow host. A guest that takes ten times as long hangs.
_TIMEOUT_S = 600
_HINT = "docs/users/measuring.md lists every key"
# Key of a block → the words it may have. The caller checks profiles, because only the caller knows where they are.
_KNOWN: Mapping[str, tuple[str, ...]] = {
    "configurations": CONFIGURATIONS,
    "command_lines": COMMAND_LINES,
    "storages": STORAGES,
    "clocks": CLOCKS,
    "sizes": SIZES,
    "payloads": PAYLOADS,
    "deliveries": DELIVERIES,
    "patterns": PATTERNS,
    "firmwares": FIRMWARES,
}
_OURS = "quickstart"
_OF_THE_WHOLE = ("fetch", "user_data")
# A real NFS server on the real clocks.
_LINK = "nfs-100m"

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=64)]
Words = Annotated[tuple[str, ...], Field(min_length=1)]


class _Block(Table):
    profiles: tuple[str, ...] = ()
    # Paths of artefacts whose disks boot by themselves.
    disks: tuple[str, ...] = ()
    firmwares: tuple[str, ...] = ()
    configurations: Words
    # With None, the cells get the command line of a build (configuration.built_with).
    command_lines: Words | None = None
    storages: Words
    clocks: Words
    sizes: Words = ("small",)
    payloads: Words = ("",)
    deliveries: Words = ("",)
    patterns: Words = ("single",)
    instances: tuple[Annotated[int, Field(ge=1, le=INSTANCES_MAX)], ...] = ()
    # An hour at most.
    stagger_ms: Annotated[int, Field(ge=0, le=3_600_000)] = 0
    runs: Annotated[int, Field(ge=1, le=1000)] = 5
    timeout_s: Annotated[int, Field(ge=1, le=86400)] = _TIMEOUT_S


class _Document(Table):
    schema_: Annotated[Literal[1], Field(alias="schema")]
    name: Name
    fetch: Literal["boot-loader", "read-ahead"] = "boot-loader"
    # The path of a file, for machines in EC2.
    user_data: Annotated[str, StringConstraints(max_length=4096)] = ""
    block: Annotated[tuple[_Block, ...], Field(min_length=1)]


@dataclass(frozen=True)
class Matrix:
    """The plan of a bench. ``plan`` has the cells to measure, in the order of the matrix. A cell is one combination of
    profile, configuration, storage, clock and the like. ``fetch`` says how kernel and initramfs are read, and is one of
    the values in results.FETCHES. ``user_data`` is the path of a file with user data for machines in EC2, or empty.
    """

    name: str
    plan: tuple[Planned, ...]
    fetch: str = "boot-loader"
    user_data: str = ""

    @property
    def is_of_cloud(self) -> bool:
        """Whether the machines are in EC2."""
        return any(each.cell.clock in CLOUD_CLOCKS for each in self.plan)


def parse_matrix(text: str, source: str, profiles: Sequence[str]) -> Matrix:
    """The matrix that ``text`` (TOML) describes. ``profiles`` are the names of known profiles. In the matrix, a profile
    whose name has a slash is the path of a profile's directory.

    A block is a table `[[block]]`, which describes many cells. When a block names no kernel command lines, the function
    reads the profiles of the block, to find the command line that a build of each profile would have.

    Raises MatrixError with every fault in the matrix, and BadInputError when a profile that must be read is missing or
    invalid.
    """
    try:
        raw = parse_toml(text)
    except ValueError as error:
        raise MatrixError(source, [f"not TOML: {error}"]) from error
    return _matrix(raw, source, profiles)


def load_matrix(path: Path, profiles: Sequence[str]) -> Matrix:
    """The matrix in a file. Raises BadInputError when the file cannot be read, and MatrixError when the matrix is
    invalid.
    """
    try:
        text = read_whole(path, MAX_TOML_BYTES).decode()
    except OSError as error:
        raise BadInputError(
            f"matrix {path} cannot be read: {error.strerror}",
            hint="is its path right? Without MATRIX.toml, options such as --profile and --storage say what to measure",
        ) from error
    except UnicodeDecodeError as error:
        raise MatrixError(str(path), [f"not UTF-8 at byte {error.start}"]) from error
    return parse_matrix(text, str(path), profiles)


def matrix_of_options(
    options: Mapping[str, Sequence[str] | Sequence[int] | int], profiles: Sequence[str]
) -> Matrix:
    """A matrix with one block, whose keys are ``options``. Raises MatrixError when the options are invalid."""
    # An option that was not given leaves the block's default.
    block = {key: value for key, value in options.items() if value}
    whole: dict[str, object] = {key: block.pop(key) for key in _OF_THE_WHOLE if key in block}
    return _matrix(
        {"schema": SCHEMA, "name": "options", **whole, "block": [block]}, "of the options", profiles
    )


def singular(key: str) -> str:
    """The singular of ``key``, which is the name of a list in a block. Messages use the singular for one value of the
    list.
    """
    return "delivery" if key == "deliveries" else key.removesuffix("s")


def order(plan: Sequence[Planned]) -> tuple[tuple[Cell, int], ...]:
    """All runs of ``plan``, in the order in which they are made. Each element is (cell, number of the run from 1). A
    round has one run of each cell, and every second round is in reverse order. So when the host becomes slower or
    faster during the bench, all configurations are affected alike.
    """
    rounds = max((each.runs for each in plan), default=0)
    runs: list[tuple[Cell, int]] = []
    for number in range(1, rounds + 1):
        once = [(each.cell, number) for each in plan if number <= each.runs]
        runs += once if number % 2 else reversed(once)
    return tuple(runs)


def _matrix(raw: Mapping[str, object], source: str, profiles: Sequence[str]) -> Matrix:
    # Every word is looked up among the known words.
    problems = list(itertools.islice(_word_problems(raw, profiles), MAX_LINES))
    try:
        # The values pass through JSON, because its strict mode accepts an array for a tuple, but not "5" for 5.
        document = _Document.model_validate_json(json.dumps(raw, default=str))
    except ValidationError as error:
        raise MatrixError(source, [*faults(error, _Document), *problems], hint=_HINT) from error
    # The number of runs is limited, too, because all runs are put in order before the first one.
    if (runs := sum(_count(block) * block.runs for block in document.block)) > RUNS_MAX:
        problems.append(f"block: {runs} runs, and a matrix has at most {RUNS_MAX}")
    if len(problems) >= MAX_LINES or runs > RUNS_MAX:
        raise MatrixError(source, problems, hint=_HINT)
    lines = _Lines(profiles)
    plan = [planned for block in document.block for planned in _planned(block, lines)]
    # Otherwise, results could be measured that cannot be shown.
    problems += [f"block: {problem}" for problem in picture_problems(each.cell for each in plan)]
    problems += _twice(document.block, lines)
    problems += [
        f"block[{number}].{key}: only {_OURS} has one, which is not among the configurations"
        for number, block in enumerate(document.block)
        for key in ("payloads", "deliveries")
        if any(getattr(block, key)) and _OURS not in block.configurations
    ]
    for number, block in enumerate(document.block):
        found = block_problems(block.patterns, block.instances, block.stagger_ms, block.clocks)
        problems += [f"block[{number}].{problem}" for problem in (*found, *_disk_problems(block))]
    problems += _asked_in_part(plan)
    problems += _cloud_problems(document, plan)
    if problems:
        raise MatrixError(source, first_ones(problems), hint=_HINT)
    return Matrix(document.name, tuple(plan), document.fetch, document.user_data)


def _count(block: _Block) -> int:
    """The highest number of cells that a block can have."""
    lists = (
        block.clocks,
        block.storages,
        block.sizes,
        block.profiles or block.disks,
        block.firmwares or (1,),
        block.patterns,
        block.instances or (1,),
    )
    forms = len(block.payloads) * len(block.deliveries)
    return math.prod(map(len, lists)) * len(block.configurations) * len(block.command_lines or (1,)) * forms


class _Lines:
    """Finds the kernel command lines for the cells of a block. The class reads each profile that determines a command
    line only once.
    """

    def __init__(self, known: Sequence[str]) -> None:
        self._known = known
        self._profiles: dict[str, Profile] = {}

    def of(self, block: _Block, configuration: str, profile: str) -> Sequence[str]:
        if block.command_lines is not None:
            return block.command_lines
        if block.disks:
            # The stock entry of the disk's boot loader has the system's own options, and our entry those of a build.
            return ("stock",) if configuration in STOCK_CONFIGURATIONS else (BUILT,)
        if profile not in self._known and "/" not in profile:
            # Another fault already says that there is no such profile.
            return ("stock",)
        if profile not in self._profiles:
            self._profiles[profile] = load_profile(profile)
        return (built_with(configuration, self._profiles[profile]),)


def _planned(block: _Block, lines: _Lines) -> Iterator[Planned]:
    """The cells of a block. Cells that the report compares with each other are next to each other."""
    launches = launches_of(block.patterns, block.instances, block.stagger_ms)
    subjects = itertools.product(block.profiles or block.disks, block.firmwares or ("",))
    outer = itertools.product(block.clocks, block.storages, block.sizes, subjects, launches)
    for clock, storage, size, (profile, firmware), (pattern, instances, stagger_ms) in outer:
        for configuration, command_line in (
            (each, line) for each in block.configurations for line in lines.of(block, each, profile)
        ):
            forms = itertools.product(block.payloads, block.deliveries)
            for payload, delivery in forms if configuration == _OURS else (("", ""),):
                cell = Cell(
                    profile=profile,
                    configuration=configuration,
                    command_line=command_line,
                    storage=storage,
                    clock=clock,
                    size=size,
                    payload=payload,
                    delivery=delivery,
                    pattern=pattern,
                    instances=instances,
                    stagger_ms=stagger_ms,
                    firmware=firmware,
                )
                yield Planned(cell, block.runs, block.timeout_s)


def _disk_problems(block: _Block) -> Iterator[str]:
    """The faults of a block that concern disks with a boot loader. Each fault begins with the key that is wrong."""
    if not block.profiles and not block.disks:
        yield "profiles: missing; what is measured? (`disks` are artefacts that boot by themselves)"
    if block.profiles and block.disks:
        yield "disks: a block has either profiles or disks"
    in_cloud = set(block.clocks) & set(CLOUD_CLOCKS)
    if in_cloud and block.firmwares:
        yield "firmwares: in EC2, the image says which firmware a machine has"
    if bool(block.disks) != bool(block.firmwares) and not (in_cloud and block.disks):
        missing, other = ("firmwares", "disks") if block.disks else ("disks", "firmwares")
        yield f"{missing}: missing; {other} belong to a disk that boots by itself"
    if not block.disks:
        return
    yield from (
        f"disks[{index}]: {each!r} again"
        for index, each in enumerate(block.disks)
        if each in block.disks[:index]
    )
    for index, each in enumerate(block.configurations):
        if each not in DISK_CONFIGURATIONS:
            yield f"configurations[{index}]: a disk has {' and '.join(DISK_CONFIGURATIONS)}, not {each}"
    for key, default in (("payloads", ("",)), ("deliveries", ("",)), ("patterns", ("single",))):
        if getattr(block, key) != default:
            yield f"{key}: a disk is measured as it is, one machine at a time"
    if _LINK in block.storages and block.clocks != ("virtual",):
        yield f"storages[{block.storages.index(_LINK)}]: on a real clock, {_LINK} keeps no log that shows the boot loader"


def _cloud_problems(document: _Document, plan: Sequence[Planned]) -> Iterator[str]:
    """The faults that concern machines in EC2. Each fault begins with the key that is wrong."""
    clocks = {each.cell.clock for each in plan}
    if document.user_data and not clocks & set(CLOUD_CLOCKS):
        yield "user_data: only machines in EC2 get user data"
    if len(clocks) > 1 and clocks & set(CLOUD_CLOCKS):
        yield f"clocks: the machines of one bench are all in EC2 or all in QEMU (got {', '.join(sorted(clocks))})"
    for number, block in enumerate(document.block):
        if set(block.clocks) & set(CLOUD_CLOCKS):
            if not block.disks:
                yield f"block[{number}].disks: missing; EC2 boots only a disk that boots by itself"
            if block.storages != (CLOUD_STORAGE,):
                yield f"block[{number}].storages: the volume of a machine in EC2 is {CLOUD_STORAGE}: fresh, of a snapshot"


def _asked_in_part(plan: Sequence[Planned]) -> Iterator[str]:
    """A fault for each cell that is in the plan twice, once with a delivery and once without a delivery. The sample of
    a run always records the delivery, so the sample could belong to either of these two cells.
    """
    asked = [each.cell for each in plan if each.cell.delivery]
    cells = {each.cell for each in plan}
    for cell in asked:
        if replace(cell, delivery="") in cells:
            yield f"{words_of(cell)} is there without a word for its delivery, too"


def _word_problems(raw: Mapping[str, object], profiles: Sequence[str]) -> Iterator[str]:
    """Faults for unknown words, and for words that occur twice in a list. The function finds these faults even when the
    structure of the document is wrong elsewhere.
    """
    blocks = raw.get("block")
    for number, block in enumerate(blocks if isinstance(blocks, list) else []):
        for key, known in {"profiles": tuple(profiles), **_KNOWN}.items():
            words = block.get(key) if isinstance(block, dict) else None
            if not isinstance(words, list | tuple):
                continue
            before: set[str] = set()
            for index, word in enumerate(words):
                place = f"block[{number}].{key}[{index}]"
                if not isinstance(word, str) or (key == "profiles" and "/" in word):
                    continue
                if word not in known:
                    yield f"{place}: no {singular(key).replace('_', ' ')} {word!r}{_nearest(word, known)}"
                elif word in before:
                    yield f"{place}: {word!r} again"
                before.add(word)


def _nearest(word: str, known: Sequence[str]) -> str:
    return near(word, known) or f"; known: {', '.join(known)}"


def _twice(blocks: Sequence[_Block], lines: _Lines) -> Iterator[str]:
    first: dict[Cell, int] = {}
    for number, block in enumerate(blocks):
        again = [
            each.cell for each in _planned(block, lines) if first.setdefault(each.cell, number) != number
        ]
        if again:
            one = again[0]
            yield (
                f"block[{number}]: {len(again)} of its cells are in an earlier block; the first is {words_of(one)}"
            )
