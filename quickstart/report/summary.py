"""Make the first five lines of the report, which are for readers who skip tables. These lines have the times that the
report's first picture shows. This module has no side effects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from quickstart.measure.results import (
    BUILT,
    COMMAND_LINES,
    CONFIGURATIONS,
    LINE_NAMES,
    STOCK_CONFIGURATIONS,
    Cell,
    Results,
    Sample,
    cloud_of,
)
from quickstart.measure.statistics import Metric, claim_faster, summarise
from quickstart.report.conclusions import OURS, T_APP, T_TOTAL, Measured, overview, planned_samples

_MEGABYTE = 1_000_000
_CLOCKS: Mapping[str, str] = {
    "virtual": "on a virtual clock: the guest's instructions and its waiting are counted, so the seconds are of no real machine",
    "wall": "by the host's clock, on emulated CPUs: slower than a real machine",
    "kvm": "by the host's clock, on its own CPUs",
    "ec2": "by the clock of the client that launched the machines",
    "ec2-emulated": "by the client's clock, in an emulator of EC2: nothing of it is Amazon's",
}
_PLAIN = {
    "standard": "the ordinary image",
    "standard-tuned": "the ordinary image, tuned",
    "minimal": "a minimal system, all from the volume",
    "ramboot": "everything in memory and no volume, the bound",
}


def summary(results: Results) -> tuple[str, ...]:
    """Up to five lines of text. A line for which there are no numbers is left out. The result is empty when no cell
    of the bench launches a single machine (the launch pattern `single`).
    """
    samples = planned_samples(results)
    if not samples:
        return ()
    chosen = overview(samples)
    return tuple(_lines(results, samples, chosen))


def _lines(results: Results, samples: Measured, chosen: Measured) -> Iterator[str]:
    one = next(iter(chosen))
    profiles = tuple(dict.fromkeys(_application(cell) for cell in chosen))
    here = {name: [_best(chosen, profile, name) for profile in profiles] for name in CONFIGURATIONS}
    rival = next((name for name in CONFIGURATIONS if name != OURS and any(here[name])), None)
    if rival and any(here[OURS]):
        ours = next(runs for runs in here[OURS] if runs)[0].cell
        options = f" with {LINE_NAMES[ours.command_line]}" if ours.command_line in LINE_NAMES else ""
        begin = "the boot loader's first read" if one.firmware else "launch"
        yield (
            f"From {begin} to the first correct answer, {_PLAIN[rival]} → quickstart{options}: "
            f"{_pairs(profiles, here, rival, T_TOTAL)}."
        )
        yield f"Of that, from the kernel's start to that answer: {_pairs(profiles, here, rival, T_APP)}."
    others = [name for name in CONFIGURATIONS if name not in (OURS, rival) and any(here[name])]
    if others and any(here[OURS]):
        said = "; ".join(f"{_PLAIN[name]}: {_pairs(profiles, here, name, T_APP)}" for name in others)
        yield f"The same beside what else there is. {said[:1].upper()}{said[1:]}."
    if costs := _costs(profiles, here[OURS]):
        yield f"It costs, and spares: {costs}."
    yield _what(results, samples, one)


def _application(cell: Cell) -> str:
    """The name of an application in a line. For a disk that boots by itself, the name has the firmware, too."""
    return f"{cell.profile} ({cell.firmware})" if cell.firmware else cell.profile


def _best(chosen: Measured, profile: str, configuration: str) -> Sequence[Sample]:
    """The runs of ``profile`` with ``configuration`` that the summary shows. For a distribution's own boot, these are
    the runs with the stock command line. For other configurations, these are the runs with the kernel options of a
    build. When there are no such runs, the result has the runs with another command line.
    """
    order = COMMAND_LINES if configuration in STOCK_CONFIGURATIONS else (BUILT, *reversed(COMMAND_LINES))
    for line in order:
        for cell, runs in chosen.items():
            if (_application(cell), cell.configuration, cell.command_line) == (
                profile,
                configuration,
                line,
            ) and runs:
                return runs
    return ()


def _pairs(
    profiles: Sequence[str], here: Mapping[str, Sequence[Sequence[Sample]]], rival: str, metric: Metric
) -> str:
    """A text with two medians for each profile: the median of the configuration ``rival`` and the median of quickstart.
    For each profile, the text also has the least factor by which quickstart is faster. If the function ``claim_faster``
    does not find quickstart faster, the text says "not shown to be faster" instead.
    """
    return "; ".join(
        _pair(profile, other, ours, metric)
        for profile, other, ours in zip(profiles, here[rival], here[OURS], strict=True)
        if other and ours
    )


def _pair(profile: str, other: Sequence[Sample], ours: Sequence[Sample], metric: Metric) -> str:
    before, after = (summarise(runs, metric).median for runs in (other, ours))
    if before is None or after is None:
        return f"{profile} censored"
    claim = claim_faster(ours, other, metric)
    least = f"at least {claim.factor:.1f} times as fast" if claim.holds else "not shown to be faster"
    return f"{profile} {before / 1e9:.1f} → {after / 1e9:.1f} s ({least})"


def _costs(profiles: Sequence[str], ours: Sequence[Sequence[Sample]]) -> str:
    words = []
    for profile, runs in zip(profiles, ours, strict=True):
        if runs and summarise(runs, T_APP).n:
            size = summarise(runs, lambda sample: sample.initramfs_bytes).median
            reads = summarise(runs, lambda sample: sample.guest.requests).median
            if size is not None and reads is not None:
                words.append(
                    f"{profile} {size / _MEGABYTE:.0f} MB of initramfs, {reads} reads of the root volume before it answers"
                )
    return "; ".join(words)


def _what(results: Results, samples: Measured, one: Cell) -> str:
    """A sentence that says what was measured, on which host, and what was not measured."""
    alone = [sample for sample in results.samples if sample.cell.instances == 1]
    ready = sum(1 for sample in alone if not sample.censored)
    lost = len(alone) - ready
    clocks = {cell.clock for cell in samples}
    absent = [
        word for word, missing in (("KVM", "kvm" not in clocks), ("EC2", "ec2" not in clocks)) if missing
    ]
    censored = f", {lost} more did not get ready" if lost else ""
    where = cloud_of(one.clock) or "QEMU"
    return (
        f"Measured: {ready} runs{censored}, a {one.size} machine in {where} with the volume {one.storage}, {_CLOCKS[one.clock]}. "
        f"Not measured: {' and '.join(absent)}."
    )
