"""The trial at the end of a build: an early start that is not ready sooner makes the stock boot the default."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quickstart.artefact import directory
from quickstart.cli.build import _trial_text
from quickstart.cli.run import _fallback_text
from quickstart.engines import boot as pipeline
from quickstart.engines import trial
from quickstart.engines.boot import BuildOptions, Built
from quickstart.engines.trial import Trial, Tried, build_tried
from quickstart.errors import GuestError, UntraceableError
from quickstart.host.progress import Quiet
from quickstart.initramfs.guestconfig import HandOff
from quickstart.model import Artefact, Profile, RootBudget, RootIo
from quickstart.model.words import Early
from quickstart.profile import load_profile
from quickstart.store.context import Context
from quickstart.store.store import Store
from quickstart.verify.boot import Counted
from quickstart.verify.shown import counted_lines

EARLY, STOCK = (3_000, ""), (9_000, "")


class Bench:
    """Stands for QEMU: builds give their profile's name for ``early``, and boots what is left to give."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.builds, self.boots = place, list[Early](), list[tuple[int, str]]()
        self.cloud_init = False
        monkeypatch.setattr(pipeline, "build", self._build)
        monkeypatch.setattr(pipeline, "build_key", lambda profile, *_: f"key {profile.early}")
        monkeypatch.setattr(trial, "launcher_of", lambda *_, **__: None)
        monkeypatch.setattr(trial, "_boot", lambda *_, **__: self.boots.pop(0))

    def _build(self, profile: Profile, options: BuildOptions, context: Context, **_: Any) -> Built:
        self.builds.append(profile.early)
        built = SimpleNamespace(early=profile.early, cloud_init=self.cloud_init, directory=self.place)
        return Built(cast(Artefact, built), made=True)

    def build(self, profile: Profile, *boots: tuple[int, str], hand_off: HandOff = HandOff.KEEP) -> Tried:
        self.builds, self.boots = [], list(boots)
        with Store(self.place / "store") as store:
            return build_tried(
                profile, BuildOptions(out=self.place / "out", hand_off=hand_off), Context(store, Quiet())
            )


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


PROFILE = load_profile("nginx")


def test_an_early_start_that_is_sooner(bench: Bench) -> None:
    tried = bench.build(PROFILE, EARLY, STOCK)
    assert tried.trial == Trial(3_000, 9_000, "")
    assert bench.builds == [PROFILE.early]
    # The store has the result, so nothing boots again.
    assert bench.build(PROFILE).trial == tried.trial
    assert bench.builds == [PROFILE.early]


@pytest.mark.parametrize("early", [(9_000, ""), (10_000, ""), (0, "nginx.service did not start")])
def test_one_that_brings_nothing(bench: Bench, early: tuple[int, str]) -> None:
    tried = bench.build(PROFILE, early, STOCK)
    assert tried.trial == Trial(*early[:1], 9_000, early[1])
    assert bench.builds == [PROFILE.early, Early.NEVER]
    assert tried.built.artefact.early is Early.NEVER


def test_a_stock_boot_that_is_not_ready_in_time(bench: Bench) -> None:
    tried = bench.build(PROFILE, EARLY, (0, "was not ready after 600 s"))
    assert (tried.trial, bench.builds) == (Trial(3_000, 0, ""), [PROFILE.early])


def test_when_neither_is_ready_nothing_is_remembered(bench: Bench) -> None:
    late = (0, "was not ready after 600 s")
    with pytest.raises(GuestError, match="no boot of the trial was ready") as failed:
        bench.build(PROFILE, late, late)
    assert "--no-trial" in (failed.value.hint or "")
    assert bench.build(PROFILE, EARLY, STOCK).trial == Trial(3_000, 9_000, "")


def test_a_guest_s_fallback_is_shown_in_short(bench: Bench) -> None:
    """A guest may print a line of 2 MB that begins as init's does."""
    said = "fallback 1: \x1b]0;title\x07" + "x" * 2_000_000
    budget = RootBudget()
    counted = Counted(RootIo(0, 0, 0, 0), said, UntraceableError("no"), 1)
    with pytest.raises(GuestError) as failed:
        bench.build(PROFILE, (0, said), (0, said))
    texts = (
        failed.value.message,
        _trial_text(Trial(0, 9_000, said)),
        _fallback_text(said),
        "\n".join(counted_lines(counted, budget)),
    )
    for text in texts:
        assert r"fallback 1: \x1b]0;title\x07xxx" in text and len(text) < 600


def test_no_trial_without_an_early_start_or_a_hand_off(bench: Bench) -> None:
    never = replace(PROFILE, early=Early.NEVER)
    assert bench.build(never).trial is None
    assert bench.build(PROFILE, hand_off=HandOff.STAY).trial is None
    # A machine with cloud-init has its first boot the stock way.
    bench.cloud_init = True
    assert bench.build(PROFILE).trial is None
    assert bench.build(replace(PROFILE, early=Early.ALWAYS), EARLY, STOCK).trial is not None


def put(bench: Bench, monkeypatch: pytest.MonkeyPatch, early: Early, *, used: bool = False) -> Any:
    """An OUT that is up to date."""
    present = SimpleNamespace(
        build_key=f"key {early}", early=early, cloud_init=bench.cloud_init, directory=bench.place
    )
    monkeypatch.setattr(directory, "load", lambda out: present)
    monkeypatch.setattr(directory, "may_be_used", lambda artefact: used)
    monkeypatch.setattr(
        directory, "check_output", lambda out, key, force: present if key == present.build_key else None
    )
    return present


@pytest.mark.parametrize(
    ("early", "used", "cloud_init"),
    [(Early.NEVER, False, False), (PROFILE.early, True, False), (PROFILE.early, False, True)],
)
def test_no_trial_for_an_artefact_that_is_up_to_date(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, early: Early, used: bool, cloud_init: bool
) -> None:
    bench.cloud_init = cloud_init
    present = put(bench, monkeypatch, early, used=used)
    tried = bench.build(PROFILE)
    assert (cast(Any, tried.built.artefact), tried.built.made, bench.builds) == (present, False, [])
    assert tried.trial is None


def test_a_build_that_was_killed_in_its_trial_is_tried(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    present = put(bench, monkeypatch, PROFILE.early)
    tried = bench.build(PROFILE, EARLY, STOCK)
    assert (cast(Any, tried.built.artefact), tried.built.made, bench.builds) == (present, False, [])
    assert tried.trial == Trial(3_000, 9_000, "")
    # Once is enough.
    assert bench.build(PROFILE).trial == tried.trial


def test_one_that_was_killed_and_brings_nothing_is_built_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bench, monkeypatch, PROFILE.early)
    tried = bench.build(PROFILE, (9_000, ""), (9_000, ""))
    assert (tried.built.made, bench.builds) == (True, [Early.NEVER])


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (
            Trial(3 * 10**9, 9 * 10**9, ""),
            "trial: ready 3.00 s after the machine's start, the stock boot 9.00 s",
        ),
        (
            Trial(9 * 10**9, 9 * 10**9, ""),
            "trial: ready 9.00 s after the machine's start, the stock boot 9.00 s; the early start brings nothing, "
            "so every boot is a stock boot",
        ),
        (
            Trial(3 * 10**9, 0, ""),
            "trial: ready 3.00 s after the machine's start, the stock boot was not ready in time",
        ),
        (
            Trial(0, 9 * 10**9, "nginx did not start"),
            "trial: the early start did not happen (nginx did not start), so every boot is a stock boot",
        ),
    ],
)
def test_what_is_said(found: Trial, text: str) -> None:
    assert _trial_text(found) == text
