"""Decide the values of a profile from the unit, the traces and the start set. The functions read the image, and
have no other side effect.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from quickstart.engines.trial import is_sooner
from quickstart.errors import BadInputError
from quickstart.initramfs.serving import served_files
from quickstart.inspect.globs import matches
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import directives as known
from quickstart.inspect.unit.model import UnitCommand, UnitStart
from quickstart.model import MIB, FileKind, Op, Profile, StartSet, Trace
from quickstart.model.words import Early, ImageSource, Payload
from quickstart.newprofile.reads import Reads
from quickstart.newprofile.survey import Survey
from quickstart.profile import DATA

# Options with which a daemon only checks its configuration, as Debian packages use them in ExecStartPre=.
_CHECKS = frozenset(
    {
        *("-t", "-tt", "-T", "--test", "--check", "--check-config", "--checkconfig", "--configtest"),
        *("--validate", "--validate-config", "--test-config", "validate"),
    }
)
# A program with such a name, or with such a word, only checks a configuration.
_CHECKERS = re.compile(r"(.*-)?(check-?conf(ig)?|conf(ig)?-?check|config-?test)")
_VOLATILE = frozenset({"proc", "sys", "dev", "run", "tmp"})
# This many files of one directory become one rule for the directory.
_MANY = 3
_MARGIN_MIB = 4
_BUDGET_STEP_MIB = 8
_MEMORY_STEP_MIB = 256
_MEMORY_MIB = 1024
# The memory of the watched boot, because nobody knows yet how much it needs.
WATCHED_MIB = 2048
_DISK_STEP_MIB = 512
_DISK_MIB = 2048
_MOST_DISK_MIB = 1 << 20
# From this size on, LZ4 saves a third of a second with a cold volume, and unpacking takes less than a tenth of this
# time (payload.md).
_LARGE_MIB = 24


@dataclass(frozen=True, kw_only=True)
class Findings:
    """All facts from which `profile new` writes a profile. ``directives`` are the unit's directives, each with a text
    that says how an early start treats it. ``pre`` are the ExecStartPre= lines. ``written`` are the image's files that
    the unit's processes opened for writing, except files that are data in every profile (see DATA in profile.py).
    ``source`` says where the image comes from. ``bound`` are packed files that are mounted over
    the volume's files. ``reads`` are the reads of the root volume in a trial boot with an early start.

    A wrapper is a unit that does nothing itself, such as postgresql.service. If the user has named a wrapper,
    ``wrapper`` is the wrapper's name, and the profile names the instance that does the work. Otherwise, ``wrapper`` is
    empty. ``needed`` are the units that `profile new` has added to the profile because another unit of the profile
    needs them. ``why_ready`` says why `profile new` has chosen the readiness request. If the user gave the request,
    ``why_ready`` is empty.
    """

    profile: Profile
    survey: Survey
    unit: UnitStart
    directives: tuple[tuple[str, str], ...]
    pre: tuple[str, ...]
    start_set: StartSet
    traces: tuple[Trace, ...]
    initramfs_bytes: int
    reads: Reads
    source: ImageSource
    written: tuple[PurePosixPath, ...]
    bound: tuple[PurePosixPath, ...] = ()
    wrapper: str = ""
    needed: tuple[str, ...] = ()
    why_ready: str = ""


def early(wanted: Early, stock_ns: int, early_ns: int) -> Early:
    """The value of the profile's key ``early``. The value is NEVER if the trial boot with an early start was not ready
    sooner than the stock boot (the distribution's own boot). Otherwise, the value is ``wanted``. ``stock_ns`` and
    ``early_ns`` are the uptimes of the two guests at ready. When the uptime of the stock boot is not known,
    ``stock_ns`` is 0, and the result is ``wanted``.
    """
    return wanted if is_sooner(early_ns, stock_ns) else Early.NEVER


def fate(name: str) -> str:
    """A text that says how an early start, that is, a start by our init before systemd runs, treats the unit's
    directive ``name`` (docs/internals/starter.md).
    """
    for names, said in (
        (known.START, "the start itself"),
        (known.REPEATED, "repeated"),
        (known.INERT, "systemd's own, from the hand-off on"),
        (known.JOURNAL, "the journal's, from the first restart on"),
        (known.CGROUP, "the control group's, repeated"),
        (known.CGROUP_LATE, "the control group's, from the hand-off on"),
        (known.HARMLESS, "changes nothing with this value"),
    ):
        if name in names:
            return said
    return "not known"


def only_checks(commands: Iterable[UnitCommand], start: UnitCommand) -> bool:
    """Whether all ``commands`` of ExecStartPre= only check files. ``start``, the command of ExecStart=, reads and
    checks the same files again.

    A command counts as a check if it runs the program of ``start`` with a test option. A command also counts as a check
    if its program or one of its words is a known check, such as `named-checkconf` or `configtest`. If ``commands`` is
    empty, the result is False.
    """
    found = tuple(commands)
    return bool(found) and all(_is_check(each, start) for each in found)


def _is_check(command: UnitCommand, start: UnitCommand) -> bool:
    name = PurePosixPath(command.program).name
    words = set(command.words[1:])
    if any(_CHECKERS.fullmatch(each) for each in (name, *words)):
        return True
    flags = _CHECKS | ({"-c"} if name == "haproxy" else frozenset())
    return name == PurePosixPath(start.program).name and bool(words & flags)


def written_files(traces: Sequence[Trace], root: ImageRoot) -> tuple[PurePosixPath, ...]:
    """The image's files that the unit's processes opened for writing. Files below directories such as /run and /tmp,
    and files that are data in every profile (see DATA in profile.py), are left out.
    """
    found: set[PurePosixPath] = set()
    for trace in traces:
        for event in trace.events:
            if event.op is not Op.WRITE or event.error is not None or event.made:
                continue
            path = root.resolve(event.path).canonical
            if path is None or len(path.parts) < 2 or path.parts[1] in _VOLATILE:
                continue
            if root.host(path).is_file() and not any(matches(path, glob) for glob in DATA):
                found.add(path)
    return tuple(sorted(found))


def data_rules(written: Sequence[PurePosixPath]) -> tuple[str, ...]:
    """Globs that match the files ``written``. If one directory contains many of these files, one glob matches
    everything in the directory. Each other file gets a glob of its own.
    """
    count = Counter(path.parent for path in written)
    rules = {
        f"{_literal(path.parent)}/**" if count[path.parent] >= _MANY else _literal(path) for path in written
    }
    return tuple(sorted(rules))


def _literal(path: PurePosixPath) -> str:
    """A glob that matches ``path``. TOML cannot contain bytes that are not valid UTF-8, so the glob has a ``?`` in
    the place of each such byte.
    """
    literal = re.sub(r"[*?\[]", lambda match: f"[{match[0]}]", str(path))
    return re.sub("[\ud800-\udfff]", "?", literal)


def budget_mib(initramfs_bytes: int) -> int:
    """The memory budget in MiB for an initramfs of ``initramfs_bytes`` bytes. The budget is five quarters of this size,
    plus a margin, rounded up.
    """
    return min(_up(initramfs_bytes * 5 / 4 / MIB + _MARGIN_MIB, _BUDGET_STEP_MIB), 4096)


def payload(initramfs_bytes: int) -> Payload:
    """The payload, that is, the form in which to store an initramfs. ``initramfs_bytes`` is the size of the initramfs
    without compression.
    """
    return Payload.LZ4 if initramfs_bytes >= _LARGE_MIB * MIB else Payload.CPIO


def memory_mib(used_mib: int) -> int:
    """The memory in MiB for machines of the profile. The result is at least 1 GiB and at least twice ``used_mib``. A
    stock boot (the distribution's own boot) was watched, and used ``used_mib`` when the service was ready.

    ``used_mib`` comes from the guest, and a hostile guest may report a wrong number. Later, the host gives the memory
    to every machine of the profile. So ``used_mib`` counts only up to WATCHED_MIB, the memory of the watched guest.
    """
    return max(_MEMORY_MIB, _up(min(used_mib, WATCHED_MIB) * 2, _MEMORY_STEP_MIB))


def disk_mib(tree_bytes: int) -> int:
    """The root disk's size in MiB. The size is one and a half times ``tree_bytes``, plus 512 MiB, rounded up, and at
    least 2 GiB. ``tree_bytes`` is the size of the image's files, including the holes of sparse files.

    Raises BadInputError when the result exceeds the largest disk that a profile may have.
    """
    found = max(_DISK_MIB, _up(tree_bytes * 3 / 2 / MIB + _DISK_STEP_MIB, _DISK_STEP_MIB))
    if found > _MOST_DISK_MIB:
        raise BadInputError(
            f"the image's files have {tree_bytes // MIB} MiB, too much for a profile's disk of at most {_MOST_DISK_MIB} MiB"
        )
    return found


def _up(value: float, step: int) -> int:
    return int(-(-value // step) * step)


def by_package(start_set: StartSet, bound: Collection[PurePosixPath]) -> Mapping[str, tuple[int, int]]:
    """For each Debian package, the number and the total size in bytes of the package's files that are served from
    memory. The files that belong to no package have the key "".
    """
    found: dict[str, tuple[int, int]] = {}
    for file in served_files(start_set, bound):
        if file.kind is FileKind.FILE and file.hard_link_to is None:
            name = file.package.split(" ")[0]
            files, size = found.get(name, (0, 0))
            found[name] = (files + 1, size + file.size_bytes)
    return found


def read_from_volume(start_set: StartSet, bound: Collection[PurePosixPath]) -> tuple[PurePosixPath, ...]:
    """The files of the start set that the application opens on the root volume by their ordinary names. Examples are
    configuration files, scripts, and large files of which only a part is used.
    """
    served = {file.path for file in served_files(start_set, bound)}
    return tuple(
        file.path
        for file in start_set.files
        if not file.target
        and (file.kind is FileKind.LEFT or (file.kind is FileKind.FILE and file.path not in served))
    )
