"""The next boot on a host with a wrong clock: a fast start, or a stock one with its reason, and always a complete machine."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from quickstart.store.store import Store
from tests.vm.booting import FAST, SETTLED, WHOLE, WORKING, Ended, boot
from tests.vm.conftest import host
from tests.vm.test_stale import TOOL

pytestmark = pytest.mark.full

NOW = datetime.datetime.now(datetime.UTC)
# systemd sets a clock that is before its own release to that.
CLOCKS = {
    "a year ahead": NOW + datetime.timedelta(days=365),
    "the day before": NOW - datetime.timedelta(days=1),
    "the year 2000": datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC),
}
# What is left in /tmp from one boot goes in the next, whatever the clock makes of its age.
ASK = f"""{SETTLED}wait_settled
{WHOLE}
ls /tmp/left 2>/dev/null
{TOOL} status | sed -n 's/^this boot *//p'
"""
BEHIND = "fallback 1: the clock is more than two days behind the root volume; the stock init takes over"
STAMPED = [*FAST, "fast:", "the", "root", "volume", "was", "as", "stamped"]


@pytest.fixture(scope="module")
def once(store: Store, artefact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An OUT whose machine was booted once by the right clock, settled, and was shut down."""
    copy = tmp_path_factory.mktemp("clocks") / "nginx"
    host("cp", "-a", "--sparse=always", artefact, copy)
    ended = boot(store, copy, command=f"{SETTLED}wait_settled; {WHOLE}; touch /tmp/left", keep=True)
    assert ended.said == FAST
    assert "quickstart: stamped: mount " in ended.console
    return copy


def by_clock(
    store: Store,
    out: Path,
    clock: datetime.datetime | None,
    *,
    keep: bool = False,
    stock: bool = False,
    falls_back: bool = False,
) -> Ended:
    words = ("-rtc", f"base={clock:%Y-%m-%dT%H:%M:%S}") if clock else ()
    command = f"date +%Y-%m-%d; {WHOLE if stock or falls_back else ASK}"
    return boot(store, out, qemu=words, command=command, keep=keep, stock=stock)


@pytest.mark.parametrize("name", CLOCKS)
def test_a_boot_by_another_clock_and_one_by_the_right_one_after_it(
    store: Store, once: Path, tmp_path: Path, name: str
) -> None:
    out, clock = tmp_path / "nginx", CLOCKS[name]
    host("cp", "-a", "--sparse=always", once, out)
    is_lost, is_ahead = NOW - clock > datetime.timedelta(days=30), clock > NOW
    wrong = by_clock(store, out, clock, keep=True, falls_back=is_lost)
    if is_lost:
        # A stock boot sets it before it starts a service.
        assert wrong.said[1:] == WORKING, wrong.console[-3000:]
    else:
        # systemd has not run yet when the machine answers.
        assert wrong.said == [f"{clock:%Y-%m-%d}", *STAMPED], wrong.console[-3000:]
    assert wrong.fallbacks == [BEHIND] * is_lost
    assert "quickstart: stamped: mount " in wrong.console
    # The volume was last written by the other clock.
    right = by_clock(store, out, None, falls_back=is_ahead)
    assert right.said[1:] == (WORKING if is_ahead else STAMPED), right.console[-3000:]
    assert right.fallbacks == [BEHIND] * is_ahead
    # e2fsck finds times in the future: by the right clock after a boot ahead, by one that is behind at once.
    stock = by_clock(store, out, None if clock > NOW else clock, stock=True)
    assert stock.said[1:] == WORKING, stock.console[-3000:]
