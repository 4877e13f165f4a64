"""Write the findings of `profile new` in words, for README.md and for the comments in profile.toml (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from quickstart.inspect.unit.model import UnitCommand
from quickstart.model import MIB, Readiness
from quickstart.model.words import Early, ImageSource, ReadyKind
from quickstart.newprofile.findings import Findings, by_package, read_from_volume
from quickstart.newprofile.look import is_loopback, listened
from quickstart.newprofile.toml import one_line

_LARGEST = 12
_LISTED = 20


def request(ready: Readiness) -> str:
    """The readiness request in words."""
    where = "127.0.0.1" if ready.loopback else "the external address"
    if ready.kind == ReadyKind.HTTP:
        return f"the first `{ready.status}` to `GET {ready.path}` on port {ready.port} of {where}"
    if ready.kind == ReadyKind.TCP:
        return f"the first connection that port {ready.port} of {where} accepts"
    if ready.kind == ReadyKind.MYSQL:
        return f"the first `show databases` that port {ready.port} of {where} answers to {ready.account}"
    return f"the first time that `{ready.command}` ends with 0 in the guest"


def _never_note(found: Findings) -> str:
    stock_s, early_s = found.survey.ready_uptime_ns / 1e9, found.reads.ready_uptime_ns / 1e9
    return (
        f"The stock boot was ready after {stock_s:.1f} s, an early start on trial after {early_s:.1f} s, "
        "so every boot is a stock boot. Without this line, the unit starts early."
    )


def notes(found: Findings) -> Mapping[str, Sequence[str]]:
    """The comments for profile.toml. The keys of the result are the names of the TOML keys and tables above which the
    comments are written.
    """
    profile, said = found.profile, {}
    as_debian = " as Debian has it" if found.source is ImageSource.PACKAGES else ""
    said[""] = [
        f"{', '.join(profile.packages)}{as_debian}. Written by `quickstart profile new`:",
        "README.md says what was found; docs/users/profile.md has every key.",
    ]
    if units := [*_wrapper_note(found), *_needed_note(found)]:
        said["units" if profile.companions else "unit"] = units
    if found.why_ready:
        said["ready"] = [f"Found in a boot of the stock image: {found.why_ready}."]
    said["start.pre"] = [_pre_note(found)]
    if profile.early == Early.NEVER:
        said["start.early"] = [_never_note(found)]
    if profile.ready.loopback:
        said["ready.address"] = ["The service listens on 127.0.0.1 only."]
    said["files"] = ["Beside /var, /srv, /home, /root, /tmp, /media and /mnt, which are data of any service."]
    if profile.files.data:
        said["files.data"] = ["The service writes to them."]
    used = found.survey.used_mib
    said["memory.machine_mib"] = [f"The stock boot had {used} MiB in use when the service was ready."]
    said["budget"] = [
        f"An early start on trial: {found.reads.requests} requests, {found.reads.bytes / 1e6:.1f} MB of the root volume.",
        "`quickstart verify OUT` counts them."
        if found.reads.unattributed
        else "`quickstart verify OUT` lists them.",
    ]
    size = f"The initramfs has {found.initramfs_bytes / MIB:.1f} MiB, not compressed."
    said["memory.budget_mib"] = [size]
    said["payload"] = [size]
    return {**said, **({} if profile.files.data else {"files": []})}


def _wrapper_note(found: Findings) -> Sequence[str]:
    if not found.wrapper:
        return ()
    return (f"{found.profile.unit} does the work of {found.wrapper}, which starts nothing itself.",)


def _needed_note(found: Findings) -> Sequence[str]:
    return tuple(f"{name} is here because another of these units needs it." for name in found.needed)


def _pre_note(found: Findings) -> str:
    if not found.pre:
        return "The unit has no ExecStartPre."
    if found.profile.run_start_pre:
        return "ExecStartPre runs in the early start, too: it may do more than check."
    return f"ExecStartPre only checks what the start itself checks again: {found.pre[0]}"


def readme_text(found: Findings) -> str:
    """The text of README.md: the profile, the findings, and what a user should check."""
    profile = found.profile
    lines = [
        f"# {profile.name}",
        "",
        f"{_origin(found)} Ready is {request(profile.ready)}.",
        *((f"It was found in a boot of the stock image: {found.why_ready}.",) if found.why_ready else ()),
        "Written by `quickstart profile new`; `quickstart profile check DIR` says whether it still holds.",
        "",
        *_unit(found),
        *_boot(found),
        *_files(found),
        *_reads(found),
        *_to_look_at(found),
    ]
    # Each of these texts may have a name from the image, and such a name may have any character.
    return "".join(f"{one_line(line)}\n" for line in lines)


def _origin(found: Findings) -> str:
    packages = ", ".join(f"`{name}`" for name in found.profile.packages)
    if found.source is not ImageSource.PACKAGES:
        where = "on a disk" if found.source is ImageSource.DISK else "in a root of one's own"
        return f"{packages} {where}: `quickstart build` needs it too (`{found.source.value}`)."
    return f"Debian's {packages} ({found.profile.suite}), unchanged."


def _unit(found: Findings) -> Iterator[str]:
    unit = found.unit
    yield f"## {unit.unit}"
    yield ""
    for companion in unit.companions:
        yield f"{_code(companion.unit)} starts before it (Type={companion.type}; {_code(command(companion.start))})."
        yield ""
    pid_file = f", PID file {_code(str(unit.pid_file))}" if unit.pid_file else ""
    yield f"Type={unit.type}{pid_file}; {_code(command(unit.start))}."
    if found.wrapper:
        yield f"It does the work of {_code(found.wrapper)}, which starts nothing itself."
    for line in found.pre:
        runs = "runs in the early start" if found.profile.run_start_pre else "is left out: it only checks"
        yield f"ExecStartPre {_code(line)} {runs}."
    for bind in unit.late_binds:
        yield f"{_code(str(bind.source))} is bound to {_code(str(bind.target))} when systemd adopts the process, not before."
    for each in unit.start_post:
        yield f"ExecStartPost {_code(command(each))} runs once it has started."
    yield ""
    yield "| directive | in the early start |"
    yield "|---|---|"
    for name, fate in found.directives:
        left_out = name == "ExecStartPre" and not found.profile.run_start_pre
        yield f"| {name} | {'left out' if left_out else fate} |"
    yield ""


def _code(text: str) -> str:
    """``text`` as a code span of Markdown, in which nothing is interpreted. A backtick would end the span."""
    return "`" + text.replace("`", "\N{PRIME}").replace("|", "\N{BROKEN BAR}") + "`"


def command(each: UnitCommand) -> str:
    """A command of a unit file with its prefixes (``-``, ``+``, ``!`` or ``:``), as a line of text."""
    return " ".join((each.flags + each.program, *each.words[1:]))


def _boot(found: Findings) -> Iterator[str]:
    survey, trace = found.survey, found.traces[0]
    yield "## What the stock boot showed"
    yield ""
    answer = f"{_code(survey.answer)} came" if survey.answer else "The service listened"
    yield f"- {answer}, with {survey.used_mib} MiB of memory in use in the whole machine."
    yield f"- TCP is listened to at {listened(survey.listeners) or 'no port'} (by any service of the machine)."
    yield f"- The unit had {trace.processes} processes, which left {len(trace.events)} events in the trace."
    yield ""


def _files(found: Findings) -> Iterator[str]:
    start_set = found.start_set
    packages = sorted(by_package(start_set, found.bound).items(), key=lambda row: (-row[1][1], row[0]))
    yield "## Files"
    yield ""
    yield (
        f"The start set has {start_set.regular_files} files, {start_set.size_bytes / MIB:.1f} MiB; the initramfs "
        f"{found.initramfs_bytes / MIB:.1f} MiB of a budget of {found.profile.budget_mib} MiB."
    )
    yield ""
    yield "Served from memory, programs and libraries:"
    yield ""
    yield "| package | files | MiB |"
    yield "|---|---|---|"
    for name, (files, size) in packages[:_LARGEST]:
        yield f"| {name or 'no package'} | {files} | {size / MIB:.2f} |"
    if len(packages) > _LARGEST:
        rest = packages[_LARGEST:]
        files, size = (sum(row[1][at] for row in rest) for at in (0, 1))
        yield f"| {len(rest)} more | {files} | {size / MIB:.2f} |"
    yield ""
    yield "Opened by their ordinary names, on the root volume:"
    yield ""
    yield from _listed([str(path) for path in read_from_volume(start_set, found.bound)])
    if start_set.excluded:
        yield ""
        yield "Kept out of memory, and on the root volume as ever:"
        yield ""
        yield from _listed([f"{each.path} ({each.rule})" for each in start_set.excluded])
    yield ""


_ASK_VERIFY = "; `quickstart verify OUT` says of each who asked and what would avoid it."


def _reads(found: Findings) -> Iterator[str]:
    reads, budget = found.reads, found.profile.root_budget
    yield "## What an early start still reads of the root volume"
    yield ""
    yield (
        f"{reads.requests} requests, {reads.bytes / 1e6:.1f} MB before ready, of a budget of {budget.requests} and "
        f"{budget.read_bytes / 1e6:.1f} MB{'.' if reads.unattributed else _ASK_VERIFY}"
    )
    if reads.unattributed:
        yield f"Who asked for what is unknown, so `quickstart verify OUT` only counts: {reads.unattributed}."
    if reads.direct_requests:
        yield f"{reads.direct_requests} more are the service's own past the page cache, and are not charged."
    if reads.files:
        yield ""
        yield "| file | read by | KiB |"
        yield "|---|---|---|"
        yield from (
            f"| {_code(str(path))} | {_code(program)} | {size / 1024:.0f} |"
            for path, program, size in reads.files
        )
    yield ""


def _listed(names: Sequence[str]) -> Iterator[str]:
    yield from (f"- {_code(each)}" for each in names[:_LISTED])
    if len(names) > _LISTED:
        yield f"- and {len(names) - _LISTED} more: `quickstart trace --profile DIR -o OUT`, `quickstart why OUT PATH`"
    if not names:
        yield "- none"


def _to_look_at(found: Findings) -> Iterator[str]:
    points = [*_points(found)]
    yield "## To look at"
    yield ""
    yield from (f"- {each}" for each in points or ["Nothing was found that needs a decision."])


def _points(found: Findings) -> Iterator[str]:
    profile = found.profile
    if profile.ready.loopback:
        yield "The service listens on 127.0.0.1 only: nobody reaches it from outside until its configuration says so."
    elif profile.ready.kind == ReadyKind.EXEC:
        yield "Ready is what the command says; it runs every 10 ms as root until it ends with 0, so it should be cheap."
    if profile.ready.kind == ReadyKind.EXEC:
        yield "What the command reads, and the distribution's boot meanwhile, counts as read before ready: [budget] has it."
    outside = sorted({port for address, port in found.survey.listeners if not is_loopback(address)} - {22})
    if profile.ready.kind == ReadyKind.EXEC and outside:
        named = ", ".join(map(str, outside[:_LISTED])) + ", …" * (len(outside) > _LISTED)
        yield f"Ports {named} are open: would a real request to one of them say more?"
    if found.pre and profile.run_start_pre:
        yield "ExecStartPre costs time at every start. If it only checks the configuration, `pre = false` leaves it out."
    for path in found.written:
        yield f"{_code(str(path))} is written to by the service and so is data."
    blind = sorted({program for trace in found.traces for program in trace.blind})
    for program in blind:
        yield f"{_code(program)} uses io_uring: what it opens by that is not in the trace."
    yield from (
        f"{_code(str(path))} has mode 0600 or the like and is not in the archive; `secrets` would pack it."
        for path in _secrets(found)
    )


def _secrets(found: Findings) -> tuple[PurePosixPath, ...]:
    return tuple(each.path for each in found.start_set.excluded if each.rule.startswith("secret:"))
