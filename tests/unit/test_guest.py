"""Capabilities of guests, and the machines that launchers start."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from quickstart.errors import GuestLacksError
from quickstart.guest import Guest, executing, last_lines, powered, with_console, with_terminal
from quickstart.model import Readiness
from quickstart.model.machine import CLOSED, Machine, NbdSocket, NetworkAccess, machine, on_volume
from quickstart.model.words import DiskFormat, ReadyKind
from tests.guests import StandInGuest


def test_a_guest_that_runs_commands_is_given_as_it_is() -> None:
    guest = StandInGuest()
    assert executing(guest) is guest


@pytest.mark.parametrize(
    ("demand", "said"),
    [
        (with_console, "cannot show the console of this guest"),
        (with_terminal, "cannot open a terminal of this guest"),
        (powered, "cannot shut this guest down in order"),
    ],
)
def test_what_a_backend_lacks_is_named(demand: Callable[[Guest], Guest], said: str) -> None:
    with pytest.raises(GuestLacksError, match=said) as caught:
        demand(StandInGuest())
    assert caught.value.exit_code == 3


def plain(*, keeps_writes: bool = False, access: NetworkAccess = CLOSED) -> Machine:
    return machine(
        "test",
        kernel=Path("k"),
        initrds=(),
        cmdline="ro ",
        memory_mib=512,
        mac="52:54:00:00:00:01",
        disk=Path("d"),
        disk_format=DiskFormat.QCOW2,
        keeps_writes=keeps_writes,
        access=access,
    )


def test_what_a_machine_writes_is_thrown_away_unless_it_keeps_it() -> None:
    assert plain().snapshot
    assert not plain(keeps_writes=True).snapshot
    assert (plain().name, plain().cmdline, plain().forward_port) == ("quickstart-test", "ro", None)


def test_the_forwarded_port_leads_to_the_one_that_is_asked() -> None:
    ready = Readiness(kind=ReadyKind.TCP, port=3306, path="/", status=200, command="", timeout_s=10)
    led = plain(access=NetworkAccess(8080, ready))
    assert (led.forward_port, led.guest_port) == (8080, 3306)
    assert plain(access=NetworkAccess(8080)).guest_port == 80


def test_a_served_volume_is_raw_and_keeps_its_writes_to_itself() -> None:
    served = on_volume(plain(), NbdSocket(Path("socket")))
    assert (served.disk, served.disk_format, served.snapshot) == (
        NbdSocket(Path("socket")),
        DiskFormat.RAW,
        False,
    )


def test_of_the_output_of_a_failed_command_the_last_lines_are_said() -> None:
    assert last_lines(io.BytesIO(b"")) == []
    assert last_lines(io.BytesIO(b"one\n two\xff\n")) == ["one", " two\ufffd"]
    many = b"".join(b"%d\n" % number for number in range(100_000))
    assert last_lines(io.BytesIO(many)) == [str(number) for number in range(99_980, 100_000)]


def test_the_output_of_a_hostile_guest_becomes_no_text_but_its_end() -> None:
    """64 MiB of short lines took 2 GiB as strings."""
    tracemalloc.start()
    said = io.BytesIO(b"ab\n" * (4 << 20) + "\N{GRINNING FACE}\n".encode())
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    assert last_lines(said)[-1] == "\N{GRINNING FACE}"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak - before < 1 << 20
