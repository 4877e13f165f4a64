"""The bench's clocks: the options of each clock for each size."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.errors import BadInputError, HostLacksError
from quickstart.launch import accel
from quickstart.launch.accel import Accelerator
from quickstart.measure import clock
from quickstart.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", print)


def option(found: clock.Clock, name: str) -> str:
    words = found.accelerator.qemu
    return words[words.index(name) + 1]


@pytest.mark.parametrize(("size", "shift", "memory_mib"), [("small", 1, 1740), ("medium", 0, 3840)])
def test_the_virtual_clock_counts_instructions(size: str, shift: int, memory_mib: int) -> None:
    found = clock.virtual(size)
    assert (found.name, found.memory_mib, found.vcpus) == ("virtual", memory_mib, 1)
    assert "thread=single" in option(found, "-accel")
    assert option(found, "-icount") == f"shift={shift},sleep=on,align=off"


def test_nothing_of_the_host_reaches_a_virtual_guest() -> None:
    found = clock.virtual("small")
    assert "clock=vm" in option(found, "-rtc") and "base=2" in option(found, "-rtc")
    assert option(found, "-seed").isdecimal()


def test_wall_is_tcg_by_the_hosts_clock(store: Store) -> None:
    found = clock.clock_of("wall", "medium", Path("/nowhere"), store)
    assert (found.name, found.accelerator.name, found.memory_mib, found.vcpus) == ("wall", "tcg", 3840, 2)
    assert "-icount" not in found.accelerator.qemu


def test_kvm_is_refused_where_no_guest_came_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accel, "choose", lambda kernel, store: accel.tcg("no guest came up"))
    with pytest.raises(HostLacksError, match="no guest came up"):
        clock.clock_of("kvm", "small", Path("/nowhere"), store)


def test_kvm_where_a_guest_came_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    kvm = Accelerator("kvm", ("-accel", "kvm"), "seen")
    monkeypatch.setattr(accel, "choose", lambda kernel, store: kvm)
    assert clock.clock_of("kvm", "small", Path("/nowhere"), store).accelerator == kvm


@pytest.mark.parametrize(("name", "size"), [("sundial", "small"), ("wall", "huge"), ("virtual", "huge")])
def test_unknown_words(name: str, size: str, store: Store) -> None:
    with pytest.raises(BadInputError, match="there is no"):
        clock.clock_of(name, size, Path("/nowhere"), store)
