"""Run the steps of `profile new`: make the image, examine the unit, watch a boot, trace a boot, try the early start
(before systemd runs), and write profile.toml and README.md.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from quickstart.artefact import output
from quickstart.engines import boot as pipeline
from quickstart.engines.boot import TraceOptions
from quickstart.engines.launching import launcher_for
from quickstart.errors import (
    BadInputError,
    NoProfileError,
    OutputExistsError,
    QuickStartError,
)
from quickstart.guest import executing
from quickstart.host.cpulimit import TooSlowError, cpu_limit
from quickstart.host.workspace import workspace
from quickstart.initramfs.build import root_mount
from quickstart.initramfs.payload import check_kernel
from quickstart.initramfs.takeover import network_service
from quickstart.inspect.firstboot import first_boot
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import parse_service, read_stack, refuse_bound_port, unit_texts
from quickstart.inspect.unit.model import UnitStart
from quickstart.model import Profile, ReferenceImage
from quickstart.model.machine import CLOSED, Machine, NetworkAccess, machine
from quickstart.model.subject import Subject, Traced
from quickstart.model.words import Payload, ReadyKind
from quickstart.newprofile import findings, reads, survey
from quickstart.newprofile.discover import discover
from quickstart.newprofile.findings import Findings
from quickstart.newprofile.ground import Ground
from quickstart.newprofile.readme import command, notes, readme_text
from quickstart.newprofile.request import first_draft
from quickstart.newprofile.toml import profile_text
from quickstart.newprofile.units import demand_unit, with_needed, with_own_unit
from quickstart.pack.packing import Packed, PackOptions, pack, packing_of
from quickstart.pack.startset import check_includes
from quickstart.parse.printable import brief
from quickstart.profile import parse_bench, parse_profile
from quickstart.store.context import Context
from quickstart.store.store import source_digest
from quickstart.trace.record import TRACE_MAC

PROFILE = "profile.toml"
README = "README.md"
_TRIAL_BUDGET_MIB = 4096
_RECIPE = (
    *("quickstart.newprofile.look", "quickstart.newprofile.survey", "quickstart.newprofile.discover"),
    "quickstart.launch",
)
_READY_FILE = "ready.json"
_NEEDED = "the profile takes {unit}, too, because a unit needs it ({why})"
_WRAPS = "{wrapper} starts nothing itself: the profile takes {unit}, which does the work"


@dataclass(frozen=True)
class Place:
    """The directory ``out`` to which the profile is written, and ``port``, a free port of this host that is
    forwarded to the guest. With ``force``, a profile that is already in ``out`` is replaced.
    """

    out: Path
    port: int
    force: bool = False


def check_place(place: Place) -> None:
    """Raise OutputExistsError when ``place.out`` exists and is not a profile's directory, or when it has a profile and
    ``place.force`` is not set. Raise BadInputError when the parent directory of ``place.out`` is missing.
    """
    with output.settled(place.out):
        _refuse_others(place)


def _refuse_others(place: Place) -> None:
    out = place.out
    if not out.exists():
        return
    if not out.is_dir() or not {path.name for path in out.iterdir()} <= {PROFILE, README}:
        raise OutputExistsError(f"{out} exists and is no profile's directory", hint="choose another -o")
    if any(out.iterdir()) and not place.force:
        raise OutputExistsError(f"{out} has a profile", hint="--force replaces it, or choose another -o")


def make(
    draft: Profile,
    place: Place,
    ground: Ground,
    options: TraceOptions,
    context: Context,
    *,
    finds_ready: bool = False,
) -> Findings:
    """Complete the profile ``draft`` for the image ``ground``, and write it to ``place.out``, which ``check_place`` must
    have accepted. After an error, nothing is written.

    With ``finds_ready``, the readiness request of ``draft`` is only a placeholder. The function then finds the real
    request in a boot (discover.py). Raises NoProfileError with every reason when the service cannot be started early or
    does not become ready.
    """
    root = ground.root
    draft, wrapper, needed = _with_units(root, draft, context)
    unit, pre, run_start_pre = examine(root, draft)
    draft = replace(draft, run_start_pre=run_start_pre, disk_mib=ground.disk_mib)
    subject = ground.subject(draft)
    why_ready = ""
    if finds_ready:
        draft, why_ready = _discovered(subject, options, context)
        subject = replace(subject, profile=draft)
    seen = _watched(subject, options, place.port, context)
    draft = replace(
        draft,
        description=describe(root, draft.unit),
        memory_mib=findings.memory_mib(seen.used_mib),
        ready=replace(draft.ready, loopback=seen.loopback),
    )
    draft, written, traced = _traced(replace(subject, profile=draft), options, context)
    packed = _trial(replace(subject, profile=draft), traced, ground.form, context)
    if line := first_boot(root, draft.early, packed.recipe.profile.early):
        context.progress.note(line)
    size_bytes = packed.initramfs.size_bytes
    payload = fitting_payload(size_bytes, ground.reference)
    draft = replace(draft, budget_mib=findings.budget_mib(size_bytes), payload=payload)
    seen_reads = ground.measured(draft)
    found = Findings(
        profile=_tried(draft, seen, seen_reads),
        survey=seen,
        unit=unit,
        directives=_directives(root, draft.unit),
        pre=pre,
        start_set=packed.recipe.start_set,
        traces=traced.traces,
        initramfs_bytes=size_bytes,
        reads=seen_reads,
        source=ground.source,
        written=written,
        bound=packed.recipe.bound,
        wrapper=wrapper,
        needed=needed,
        why_ready=why_ready,
    )
    _write(found, place)
    return found


def _with_units(root: ImageRoot, draft: Profile, context: Context) -> tuple[Profile, str, tuple[str, ...]]:
    """Return three values:

    - ``draft`` with two changes: the unit that does the work replaces a wrapper (a unit that does nothing itself), and
      the services that the units need are added
    - the name of the wrapper that the user has named, or an empty string if the user has named no wrapper
    - the names of the added services

    The user gets a note about the wrapper and about each added service.
    """
    draft, wrapper = with_own_unit(root, draft)
    draft, needed = with_needed(root, draft)
    if wrapper:
        context.progress.note(_WRAPS.format(wrapper=wrapper, unit=draft.unit))
    for name, why in needed.items():
        context.progress.note(_NEEDED.format(unit=name, why=brief(why)))
    return draft, wrapper, tuple(needed)


def _tried(draft: Profile, stock: survey.Survey, early: reads.Reads) -> Profile:
    """``draft`` with values for its key ``early`` and its root budget, which limits the reads before ready. The values
    follow from ``stock``, the findings of the watched stock boot (the distribution's own boot), and from ``early``, the
    reads of the trial boot with an early start (before systemd runs).
    """
    return replace(
        draft,
        early=findings.early(draft.early, stock.ready_uptime_ns, early.ready_uptime_ns),
        root_budget=reads.root_budget(early, draft.ready.kind == ReadyKind.EXEC),
    )


def _traced(
    subject: Subject, options: TraceOptions, context: Context
) -> tuple[Profile, tuple[PurePosixPath, ...], Traced]:
    """Return three values:

    - the profile with ``data`` rules for the files that the service writes
    - the paths of these files
    - the start set with its traces
    """
    draft = subject.profile
    traced = pipeline.trace_disk(subject, options, context)
    written = findings.written_files(traced.traces, ImageRoot(subject.reference.tree))
    if written:
        rules = replace(draft.files, data=(*draft.files.data, *findings.data_rules(written)))
        draft = replace(draft, files=rules)
        traced = pipeline.trace_disk(replace(subject, profile=draft), options, context)
    return draft, written, traced


def examine(root: ImageRoot, draft: Profile) -> tuple[UnitStart, tuple[str, ...], bool]:
    """Return three values:

    - the unit with its companions, as an early start (before systemd runs) would run them
    - the ExecStartPre= lines of all these units
    - whether an early start runs these lines, too

    Raises UnsupportedUnitError when the image does not have the unit, and NoProfileError with every reason
    against an early start.
    """
    demand_unit(root, draft)
    units: list[UnitStart] = []
    faults = refusals(root, draft, units.append)
    if faults:
        raise NoProfileError(
            draft.unit,
            [line for each in faults for line in each.lines],
            hint=next((each.hint for each in faults), None),
        )
    (unit,) = units
    pre = tuple(command(line) for each in unit.all_units for line in each.start_pre)
    with_pre = [each for each in unit.all_units if each.start_pre]
    if with_pre and all(findings.only_checks(each.start_pre, each.start) for each in with_pre):
        companions = tuple(replace(each, start_pre=()) for each in unit.companions)
        return replace(unit, start_pre=(), companions=companions), pre, False
    return unit, pre, True


def refusals(
    root: ImageRoot, profile: Profile, take: Callable[[UnitStart], None] = lambda unit: None
) -> list[QuickStartError]:
    """Look in the image for reasons against an early start of the profile's units with a hand-off to systemd. Return an
    error for each check that fails. After a check that takes too long, the function makes no further check. The first
    check reads the units. If the first check succeeds, the function calls ``take`` with the units.
    """
    found: list[QuickStartError] = []

    def check_unit() -> None:
        unit = read_stack(root, profile.units, profile.run_start_pre)
        refuse_bound_port(unit, profile.ready)
        take(unit)

    checks = (
        check_unit,
        lambda: check_includes(root, profile.files),
        lambda: network_service(root),
        lambda: root_mount(root),
    )
    for check in checks:
        try:
            with cpu_limit("the image"):
                check()
        except QuickStartError as error:
            found.append(error)
            if isinstance(error, TooSlowError):
                break
    return found


def describe(root: ImageRoot, unit: str) -> str:
    """The value of the unit's Description=."""
    lines = [line for text in unit_texts(root, unit) for line in text.splitlines()]
    found = [line.partition("=")[2].strip() for line in lines if line.startswith("Description=")]
    return "".join(char for char in found[-1] if char.isprintable()) if found else ""


def checked_text(profile: Profile, said: Mapping[str, Sequence[str]]) -> str:
    """The text of profile.toml for ``profile``, with the comments ``said``. As a check, the function parses this text
    again.

    Raises ProfileError when the text is not valid. Raises NoProfileError when the parsed text differs from ``profile``.
    """
    text = profile_text(profile, said)
    if parse_profile(text, PROFILE) != profile or parse_bench(text, PROFILE) is not None:
        raise NoProfileError(profile.unit, ["its findings cannot be written as a profile"])
    return text


def _directives(root: ImageRoot, unit: str) -> tuple[tuple[str, str], ...]:
    names = sorted(parse_service(unit_texts(root, unit)))
    return tuple((name, findings.fate(name)) for name in names)


def _watched_inputs(subject: Subject) -> Mapping[str, object]:
    draft, disk = subject.profile, subject.disk
    return {
        "image": subject.reference.image_hash,
        "disk": [str(disk.superblock.uuid), disk.size_bytes],
        "units": list(draft.units),
        "recipe": source_digest(*_RECIPE),
        **subject.whole_inputs,
    }


def _stock_machine(subject: Subject, access: NetworkAccess) -> Machine:
    disk = subject.disk
    return machine(
        f"profile-{subject.profile.name}",
        memory_mib=findings.WATCHED_MIB,
        kernel=subject.reference.kernel,
        initrds=(subject.reference.initrd,),
        cmdline=" ".join(
            (f"console=ttyS0 panic=-1 root=UUID={disk.superblock.uuid} ro", *disk.options),
        ),
        disk=disk.attached,
        mac=TRACE_MAC,
        access=access,
    )


def _discovered(subject: Subject, options: TraceOptions, context: Context) -> tuple[Profile, str]:
    """Watch one stock boot (the distribution's own boot), and choose a readiness request for the service. Return the
    profile with this request, and the reason for the choice.
    """
    draft = subject.profile

    def look(directory: Path) -> None:
        launcher = launcher_for(subject.reference.kernel, context, keep=options.keep)
        watched = _stock_machine(subject, CLOSED)
        with context.progress.step("find its readiness in a boot"), launcher.launch(watched, None) as guest:
            table, why = discover(executing(guest), draft.unit, draft.ready.timeout_s)
            (directory / _READY_FILE).write_text(json.dumps({"ready": dict(table), "why": why}) + "\n")

    kept = context.store.get_or_make("readiness", _watched_inputs(subject), look).path
    found = json.loads((kept / _READY_FILE).read_text())
    context.progress.note(f"readiness: {found['why']}")
    ready = first_draft(
        draft.name, draft.packages, draft.unit, found["ready"], draft.suite, draft.ready.timeout_s
    ).ready
    return replace(draft, ready=ready), str(found["why"])


def _watched(subject: Subject, options: TraceOptions, port: int, context: Context) -> survey.Survey:
    """The findings about one watched stock boot (the distribution's own boot). If the store does not have these
    findings yet, the function boots the image and watches the boot.
    """
    draft = subject.profile

    def watch(directory: Path) -> None:
        launcher = launcher_for(subject.reference.kernel, context, keep=options.keep)
        watched = _stock_machine(subject, NetworkAccess(port, draft.ready))
        with context.progress.step("watch a boot"), launcher.launch(watched, draft.ready) as guest:
            seen = survey.watch(executing(guest), draft.unit, draft.ready, draft.ready.timeout_s)
            survey.write(seen, directory)

    inputs = {**_watched_inputs(subject), "ready": dataclasses.asdict(replace(draft.ready, timeout_s=0))}
    return survey.read(context.store.get_or_make("survey", inputs, watch).path)


def _trial(subject: Subject, traced: Traced, form: PackOptions, context: Context) -> Packed:
    """Pack the application as a build would, but without compression and with a large memory budget. Return the result
    of ``pack``, and remove the initramfs.
    """
    roomy = replace(subject, profile=replace(subject.profile, budget_mib=_TRIAL_BUDGET_MIB))
    packing = packing_of(roomy, traced, form, context)
    with context.progress.step("initramfs: on trial"), workspace("quickstart-profile-") as directory:
        return pack(packing, directory / "initramfs.img")


def fitting_payload(size_bytes: int, reference: ReferenceImage) -> Payload:
    """The best payload (form of the initramfs) for an initramfs of ``size_bytes`` bytes. If the image's kernel cannot
    unpack the best payload, the result is CPIO, which is not compressed.
    """
    wanted = findings.payload(size_bytes)
    try:
        check_kernel(ImageRoot(reference.tree), reference.kernel_version, wanted)
    except BadInputError:
        return Payload.CPIO
    return wanted


def _write(found: Findings, place: Place) -> None:
    def refuse() -> bool:
        _refuse_others(place)
        return False

    with output.new_directory(place.out, refuse) as directory:
        (directory / PROFILE).write_text(checked_text(found.profile, notes(found)), encoding="utf-8")
        (directory / README).write_text(readme_text(found), encoding="utf-8")
