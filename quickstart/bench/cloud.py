"""Measure the cells of a matrix in EC2, or in an emulator of EC2. The class CloudRunner implements Runner in
bench/series.py. Each configuration of a disk becomes an image of the account, and each run is a fresh machine of it.

The launch agent writes to the machine's console when the application was ready (docs/internals/agent.md). The client,
which is this host, asks the application over the network. So T_probe and T_launch are times of the client, and the
guest's uptime at ready is the agent's. The agent asks the application on the machine itself, and this host asks it a
moment later, so T_pr has the time between the two: up to 0.35 s while the machine's network does not answer yet, and else
about 0.05 s.
"""

from __future__ import annotations

import hashlib
import platform
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from quickstart import __version__
from quickstart.artefact import directory as artefacts
from quickstart.artefact import output
from quickstart.bench.disks import prepare_disk
from quickstart.bench.runner import artefacts_of, facts_of, host_facts
from quickstart.ec2 import create as creation
from quickstart.ec2 import images, machines
from quickstart.ec2.asking import Request, request_of, word_of
from quickstart.ec2.aws import Aws
from quickstart.ec2.disk import boot_mode_of, fats_of
from quickstart.ec2.waiting import console_tail, wait_for_answer, wait_for_words
from quickstart.engines.ownsystem import look_into
from quickstart.errors import BadInputError, CloudError, GuestError, UnavailableError
from quickstart.host.progress import Progress
from quickstart.host.unchanged import seen
from quickstart.launch.archive import CONSOLE, PROBE_INTERVAL_MS
from quickstart.launch.drain import whole_text
from quickstart.launch.spoken import BEGIN
from quickstart.measure import counting
from quickstart.measure.configuration import Boot
from quickstart.measure.matrix import Matrix
from quickstart.measure.results import STOCK_CONFIGURATIONS, Cell, Circumstances, Sample, cloud_of
from quickstart.measure.run import first_line
from quickstart.measure.times import client_times
from quickstart.model import Readied, RootIo
from quickstart.parse.printable import brief
from quickstart.store.context import Context
from quickstart.store.store import Store, source_digest

TYPES: Mapping[str, str] = {"small": "t3.small", "medium": "t3.medium"}
_ROOT_DEVICE = "nvme0n1"
_FALLBACK = "quickstart: fallback"
_BEACON = f"{BEGIN}beacon "
# Of init's scripts `hand-off` and `stay`.
_STARTED = re.compile(r"quickstart: [^\r\n]* was started from /")
# The agent is done when the client has its answer, but EC2 may show the console later.
_WORDS_S = 180.0
# What the calls of a run may take, when EC2 is busy.
_CALLS_S = 300.0
_LAUNCHES = 5
_STATE_PAUSE_S = 1.0
_HOUR_S = 3600.0
_NO_IO = RootIo(0, 0, 0, 0)


@dataclass(frozen=True, kw_only=True)
class CloudOptions:
    """How machines are started. Empty texts mean what EC2 takes by default. ``type`` is that of all machines; without one,
    the size of a cell says it. ``most_machine_hours`` limits what the whole bench may use.
    """

    type: str = ""
    subnet_id: str = ""
    group_ids: tuple[str, ...] = ()
    key_name: str = ""
    user_data: bytes | None = field(default=None, repr=False)
    rate_mib_s: int | None = None
    most_machine_hours: float = 10.0
    # Names the bench in the account: two benches of one disk must not remove each other's images.
    owner: str = ""


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """A configuration of a disk in the account."""

    boot: Boot
    image: images.Image
    request: Request


@dataclass(kw_only=True)
class CloudRunner:
    """The runner for EC2. The images stay in the account until `remove_images`."""

    matrix: Matrix
    aws: Aws
    options: CloudOptions
    store: Store
    progress: Progress
    _prepared: dict[tuple[str, str], _Prepared] = field(default_factory=dict)

    def circumstances(self) -> Circumstances:
        """Make the images that are missing, and return all facts on which the measured times depend."""
        check_plan(self.matrix, self.aws, self.options)
        for cell in (each.cell for each in self.matrix.plan):
            key = cell.profile, cell.configuration
            if key not in self._prepared:
                self._prepared[key] = self._prepare(cell)
        boots = {(*key[:1], "", key[1], "", ""): each.boot for key, each in self._prepared.items()}
        clock = self.matrix.plan[0].cell.clock
        return Circumstances(
            host={"cloud": cloud_of(clock), "region": self.aws.region, **self._client()},
            versions={
                "quickstart": f"{__version__}, source {source_digest('quickstart')[:16]}",
                "user data": _named(self.options.user_data),
                "initialization rate": str(self.options.rate_mib_s or "none"),
                **{
                    f"machine {size}": self._type(size)
                    for size in {each.cell.size for each in self.matrix.plan}
                },
                **{
                    f"boot mode {'/'.join(key)}": each.image.boot_mode for key, each in self._prepared.items()
                },
            },
            artefacts=dict(artefacts_of(key, boot) for key, boot in sorted(boots.items())),
            poll_interval_ms=PROBE_INTERVAL_MS,
            facts=facts_of(boots),
        )

    def _client(self) -> dict[str, str]:
        """In an emulator, this host's processor is the machines' processor, too."""
        return host_facts() if self.aws.endpoint else {"kernel": platform.release()}

    def _type(self, size: str) -> str:
        return self.options.type or TYPES[size]

    def _prepare(self, cell: Cell) -> _Prepared:
        context = Context(self.store, self.progress)
        out = Path(cell.profile).absolute()
        boot = prepare_disk(cell, context, CONSOLE)
        word = word_of(boot.ready)
        # A port that accepts says less than the agent's own request, and the two would be mixed.
        if not word or request_of(word).path is None:
            raise BadInputError(
                f"{out} has a readiness request that is not HTTP, and in EC2 only HTTP is measured",
                hint="give the profile an http request",
            )
        with output.in_use(out):
            artefact = artefacts.load(out)
            found = look_into(boot.volume, context)
            source = creation.Source(
                out=out,
                disk=boot.volume,
                seen=seen(boot.volume),
                root_at_bytes=boot.root_at_bytes,
                profile=artefact.profile_name,
                fats=fats_of(found),
                ready=word,
            )
            wanted = creation.Wanted(
                name=_image_name(boot, self.options.owner),
                source=source,
                boot_mode=boot_mode_of(found.loaders),
            )
            creation.create(self.aws, wanted, self.progress, resume=True)
        image = images.named(self.aws, wanted.name)
        if image is None:
            raise CloudError(f"the account has no image {wanted.name}", code="")
        return _Prepared(boot=boot, image=image, request=request_of(word))

    def run(self, cell: Cell, number: int, timeout_s: int) -> tuple[Sample, ...]:
        """One run. A machine that is not ready in time, or that ends before, gives a censored sample. What AWS refuses ends
        the bench.
        """
        prepared = self._prepared[cell.profile, cell.configuration]
        try:
            for _ in range(_LAUNCHES):
                if (sample := self._sample(cell, number, timeout_s, prepared)) is not None:
                    return (sample,)
            raise GuestError(f"EC2 was too busy for a launch that can be timed, {_LAUNCHES} times")
        except GuestError as error:
            delivery = prepared.boot.delivery
            return (Sample(cell=cell, number=number, censored=first_line(error), delivery=delivery),)

    def _sample(self, cell: Cell, number: int, timeout_s: int, prepared: _Prepared) -> Sample | None:
        """The sample, or None if EC2 did not take the first call: then nobody knows which call has started the machine."""
        asked_ns: list[int] = []
        image, request = prepared.image, prepared.request
        with machines.launched(
            self.aws, self._wanted(cell, image), self.progress, asked_ns.append
        ) as identifier:
            if len(asked_ns) > 1:
                return None
            launch_ns, end_s = asked_ns[0], time.monotonic() + timeout_s
            instance = _started(self.aws, identifier, timeout_s)
            answered_ns = wait_for_answer(self.aws, instance, request, end_s)
            beacon, ready, counters = wait_for_words(self.aws, identifier, _WORDS_S)
            if cell.configuration not in STOCK_CONFIGURATIONS and self.options.user_data is None:
                _demand_fast(self.aws, identifier)
        if answered_ns - launch_ns <= ready.uptime_ns:
            raise GuestError(
                "the application answered before its machine could: another program has its address"
            )
        # The beacon came when the client would have got it at once.
        sent_ns = answered_ns - ready.uptime_ns + beacon.uptime_ns
        readied = Readied(
            launch_ns=launch_ns,
            beacon=replace(beacon, received_ns=sent_ns),
            ready=replace(ready, received_ns=answered_ns),
            root_io=_NO_IO,
            counters=counters,
        )
        times = client_times(readied, 0)
        reads = counting.disk_reads(counters.text, _ROOT_DEVICE)
        return Sample(
            cell=cell,
            number=number,
            censored="",
            delivery=prepared.boot.delivery,
            t_pr_ns=times.t_pr_ns,
            t_app_ns=times.t_app_ns,
            t_total_ns=times.t_total_ns,
            uptime_ns=beacon.uptime_ns,
            ready_uptime_ns=ready.uptime_ns,
            # EC2 does not count what a machine reads, so this is the guest's count, too.
            volume=reads,
            guest=reads,
            initramfs_bytes=prepared.boot.initramfs_bytes,
        )

    def _wanted(self, cell: Cell, image: images.Image) -> machines.Wanted:
        return machines.Wanted(
            image_id=image.id,
            image_name=image.name,
            root_device=image.root_device,
            type=self._type(cell.size),
            subnet_id=self.options.subnet_id,
            group_ids=self.options.group_ids,
            key_name=self.options.key_name,
            user_data=self.options.user_data,
            rate_mib_s=self.options.rate_mib_s,
        )

    def remove_images(self) -> None:
        """Remove the images of this bench and their snapshots from the account."""
        for each in self._prepared.values():
            remove_image(self.aws, each.image)


def clock_of(aws: Aws) -> str:
    """The clock of a bench in this account. An endpoint of the user's own is not Amazon's."""
    return "ec2-emulated" if aws.endpoint else "ec2"


def check_plan(matrix: Matrix, aws: Aws, options: CloudOptions) -> None:
    """Raise BadInputError for a plan that this account cannot measure, or that may use too many machine hours."""
    wanted = clock_of(aws)
    for cell in (each.cell for each in matrix.plan):
        if cell.clock != wanted:
            raise BadInputError(
                f"{aws.name} is {cloud_of(wanted)}, and the clock is {cell.clock}", hint=f"--clock {wanted}"
            )
        if cell.instances != 1:
            raise BadInputError("several machines at once are not measured in EC2", hint="--pattern single")
    hours = machine_hours(matrix)
    # Not a number is no limit.
    if not hours <= options.most_machine_hours:
        raise BadInputError(
            f"the bench may use {hours:.1f} machine hours, and the limit is {options.most_machine_hours:g}",
            hint="fewer --runs, a shorter --timeout, or more --max-machine-hours",
        )


def machine_hours(matrix: Matrix) -> float:
    """What all machines of the plan together use at most, if each takes its whole time limit."""
    return sum(each.runs * (each.timeout_s + 2 * _WORDS_S + _CALLS_S) for each in matrix.plan) / _HOUR_S


def bench_images(aws: Aws) -> tuple[images.Image, ...]:
    """The images that a bench has left in the account."""
    return tuple(image for image in images.ours(aws) if image.name.startswith(images.BENCH_PREFIX))


def bench_snapshots(aws: Aws) -> tuple[images.Snapshot, ...]:
    """The snapshots of these images, also those of which no image was made."""
    return tuple(
        each for each in images.our_snapshots(aws) if each.image_name.startswith(images.BENCH_PREFIX)
    )


def remove_image(aws: Aws, image: images.Image) -> None:
    """Remove an image of a bench, and its snapshots."""
    images.deregister(aws, image.id)
    for snapshot in images.our_snapshots(aws, image.name):
        images.delete_snapshot(aws, snapshot.id)


def _image_name(boot: Boot, owner: str) -> str:
    """The same disk has the same name in the same bench, so that an interrupted bench goes on with its images."""
    with boot.volume.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{images.BENCH_PREFIX}{boot.configuration}-{digest[:20]}-{hashlib.sha256(owner.encode()).hexdigest()[:12]}"


def _named(user_data: bytes | None) -> str:
    """The user data in the results: not the data, which may have a password."""
    return (
        "none"
        if user_data is None
        else f"{len(user_data)} bytes, SHA-256 {hashlib.sha256(user_data).hexdigest()}"
    )


def _started(aws: Aws, identifier: str, timeout_s: float) -> machines.Instance:
    waiting = images.Waiting(poll_s=_STATE_PAUSE_S, limit_s=timeout_s)
    try:
        return machines.wait_for_start(aws, identifier, waiting)
    except UnavailableError:
        raise
    except CloudError as error:
        if error.code:
            raise
        raise GuestError(error.message) from error


def _demand_fast(aws: Aws, identifier: str) -> None:
    """Raise GuestError when a stock boot took the place of the fast start, which would otherwise count as one. Init says on
    the console what it has started, at the latest when it hands over. After a failed boot, a boot loader starts the
    stock entry, which says nothing.
    """
    end_s = time.monotonic() + _WORDS_S
    while True:
        console = whole_text(machines.console(aws, identifier).encode())
        at = console.find(_FALLBACK)
        if at >= 0:
            raise GuestError(f"the fast start did not happen: {brief(console[at:].splitlines()[0])}")
        # An earlier boot, which has failed, may have said so, too. Each boot has a beacon before it hands over.
        if _STARTED.search(console.rpartition(_BEACON)[2]):
            return
        if time.monotonic() >= end_s:
            raise GuestError(
                "the fast start did not happen: the console does not say that the application was started early",
                console_tail=console_tail(aws, identifier),
            )
        aws.sleep(_STATE_PAUSE_S)
