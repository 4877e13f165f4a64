"""Try the early start of a build, in which our init starts the application before systemd runs. Compare one boot of the
artefact with one stock boot (the distribution's own boot) of the same disk.

If the application is not ready sooner by the early start than by the stock boot, the early start has no benefit. The
build then makes an artefact that never starts early, and always boots the stock way. Both boots run on this host, one
after the other, from a local disk. On a volume with slow reads, the early start would gain more time than in this
comparison.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from quickstart.artefact import directory as artefacts
from quickstart.artefact import output
from quickstart.engines import boot as pipeline
from quickstart.engines.boot import BuildOptions, Built
from quickstart.engines.launching import launcher_of
from quickstart.engines.made import up_to_date
from quickstart.errors import GuestError, QuickStartError
from quickstart.guest import Launcher
from quickstart.initramfs.guestconfig import HandOff
from quickstart.model import Artefact, Profile
from quickstart.model.words import Early
from quickstart.parse.printable import brief
from quickstart.store.context import Context
from quickstart.store.store import source_digest

_STAGE, _FILE = "trial", "trial.json"


@dataclass(frozen=True)
class Trial:
    """The uptimes of two guests when their application became ready: ``early_ns`` with the early start (before systemd
    runs), and ``stock_ns`` with the stock boot (the distribution's own boot). When the early start did not happen, or
    was not ready in time, ``fallback`` is the reason and ``early_ns`` is 0. Otherwise, ``fallback`` is empty.
    ``stock_ns`` is 0 when the stock boot was not ready in time.
    """

    early_ns: int
    stock_ns: int
    fallback: str

    @property
    def is_sooner(self) -> bool:
        """Whether the early start was ready sooner than the stock boot."""
        return not self.fallback and is_sooner(self.early_ns, self.stock_ns)


@dataclass(frozen=True)
class Tried:
    """The result of a build and of its trial, the comparison of two boots. ``trial`` is None when there was no trial.
    Either the caller did not want a trial, or ``build_tried`` gives the artefact no trial.
    """

    built: Built
    trial: Trial | None


def is_sooner(early_ns: int, stock_ns: int) -> bool:
    """Whether the application was ready sooner with the early start than in the stock boot (the distribution's own
    boot). ``early_ns`` and ``stock_ns`` are the uptimes of the two guests at ready. When ``stock_ns`` is 0, the uptime
    of the stock boot at ready is unknown, and the result is True.
    """
    return not stock_ns or early_ns < stock_ns


def build_untried(profile: Profile, options: BuildOptions, context: Context) -> Tried:
    """Build the artefact of ``profile`` without the trial, which compares two boots of the artefact."""
    return Tried(pipeline.build(profile, options, context), None)


def build_tried(profile: Profile, options: BuildOptions, context: Context) -> Tried:
    """Build the artefact of ``profile``. Unless the store already has the result of a trial, boot the artefact twice:
    with the early start, and as a stock boot. When the application was not ready sooner with the early start, build the
    artefact again with ``early = "never"``.

    An artefact gets no trial in these four cases.

    - The profile has ``early = "never"``.
    - The artefact has no hand-off to systemd.
    - The artefact has cloud-init, and its ``early`` is not ALWAYS, so its first boot may be a stock boot.
    - The artefact was built by an earlier call, and its disk may have been used since then.

    Raises GuestError when the application became ready in neither of the two boots of the trial.
    """
    if profile.early is Early.NEVER or options.hand_off is HandOff.STAY:
        return build_untried(profile, options, context)
    stock = replace(profile, early=Early.NEVER)
    rootfs = pipeline.rootfs_of(options.tracing, context.progress)
    keys = [pipeline.build_key(wanted, options, rootfs) for wanted in (profile, stock)]
    with output.settled(options.out):
        present = up_to_date(options.out, _key_at(options.out, keys), options.force, context)
    built = (
        Built(present, made=False) if present else pipeline.build(profile, options, context, rootfs=rootfs)
    )
    if not _gets_trial(built, keys[0]):
        return Tried(built, None)
    found = _trial(built.artefact, keys[0], options, context)
    return Tried(built if found.is_sooner else pipeline.build(stock, options, context, rootfs=rootfs), found)


def _gets_trial(built: Built, key: str) -> bool:
    """Whether ``built`` gets a trial, which compares two boots of the artefact. ``key`` is the key of the build of this
    artefact. An artefact of an earlier call also gets a trial, because the earlier call may have been killed before the
    end of its trial. But if the artefact's disk may have been used, two boots of this disk say nothing about the build.
    """
    artefact = built.artefact
    if artefact.cloud_init and artefact.early is not Early.ALWAYS:
        return False
    return built.made or (artefact.build_key == key and not artefacts.may_be_used(artefact))


def _key_at(out: Path, keys: Sequence[str]) -> str:
    """The build key of the artefact at ``out`` if it is one of ``keys``, or else the first of ``keys``."""
    try:
        present = artefacts.load(out).build_key
    except QuickStartError:
        return keys[0]
    return present if present in keys else keys[0]


def _trial(artefact: Artefact, key: str, options: BuildOptions, context: Context) -> Trial:
    inputs: Mapping[str, object] = {
        "build": key,
        "recipe": source_digest("quickstart.engines.trial", "quickstart.launch"),
    }

    def make(directory: Path) -> None:
        launcher = launcher_of(artefact, context, keep=options.tracing.keep)
        with output.in_use(artefact.directory):
            with context.progress.step("trial: a boot with the early start"):
                early_ns, fallback = _boot(artefact, launcher, stock=False)
            with context.progress.step("trial: a stock boot"):
                stock_ns, why = _boot(artefact, launcher, stock=True)
        if fallback and why:
            # Without a ready boot, there is nothing to compare, and the store must not remember this trial.
            raise GuestError(
                f"no boot of the trial was ready: {brief(fallback)}; {brief(why)}",
                hint="--no-trial leaves it out",
            )
        (directory / _FILE).write_text(json.dumps(asdict(Trial(early_ns, stock_ns, fallback))) + "\n")

    return Trial(**json.loads((context.store.get_or_make(_STAGE, inputs, make).path / _FILE).read_text()))


def _boot(artefact: Artefact, launcher: Launcher, *, stock: bool) -> tuple[int, str]:
    """Boot ``artefact``, and return the guest's uptime at ready in ns and an empty text. When the guest did not become
    ready, or when init gave up the early start, return 0 and the reason.
    """
    machine = pipeline.machine_of(artefact, stock=stock, snapshot=True, port=None)
    try:
        with launcher.launch(machine, artefact.ready) as guest:
            readied = guest.wait_ready(artefact.ready.timeout_s)
            fallback = guest.fallback()
            return (0 if fallback else readied.ready.uptime_ns), fallback
    except GuestError as error:
        return 0, error.message
