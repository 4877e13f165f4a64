"""What init's scripts do with a message bus that starts early (docs/internals/bus.md)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.contract.initscript import function
from tests.contract.test_companions import SECONDS, SHELLS


def run(shell: tuple[str, ...], place: Path, text: str, *functions: tuple[str, str]) -> list[str]:
    parts = "\n".join(function(*each) for each in functions)
    for ours in ("/run/quickstart", "/sys/fs/cgroup"):
        parts = parts.replace(ours, f"{place}{ours}")
    script = f"Q={place} RUN={place}/run/quickstart\n{parts}\n{text}".replace("/dev/console", "/dev/null")
    done = subprocess.run(
        [*shell, "-uc", script], check=True, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "run/quickstart/companions/1").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize(
    ("bus", "status", "said"),
    [
        ("", 0, []),
        ("yes", 0, ["watch-bus /run/dbus/system_bus_socket"]),
        (
            "yes",
            1,
            ["watch-bus /run/dbus/system_bus_socket", "bus.service did not start: the bus cannot be watched"],
        ),
    ],
)
def test_the_bus_is_watched_before_another_unit_starts(
    shell: tuple[str, ...], place: Path, bus: str, status: int, said: list[str]
) -> None:
    text = f"""UNIT=bus.service BUS={bus}
    starter() {{ :; }}
    caretaker() {{ echo "$1 $2" >&2; echo 42; [ "$3" = "$RUN/bus" ] && return {status}; }}
    start_unit 2>&1 || read -r failure <"$RUN/failure"
    [ -z "${{failure:-}}" ] || echo "$failure"
    [ ! -e "$RUN/bus-watch" ] || read -r pid <"$RUN/bus-watch"
    [ "${{pid:-42}}" = 42 ] || echo "$pid"
    """
    assert run(shell, place, text, ("second", "start_unit")) == said


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize(
    ("watch", "verdict", "said"),
    [
        ("", None, "well"),
        ("self", "", "well"),
        ("0", "asked late.service", "a unit asks the message bus for late.service, which comes with systemd"),
        ("0", "lost the bus has closed", "the message bus is not watched any more"),
        ("0", "", "the message bus is not watched any more"),
        ("0", None, "the message bus is not watched any more"),
    ],
)
def test_a_unit_that_waits_for_systemd_ends_the_early_start(
    shell: tuple[str, ...], place: Path, watch: str, verdict: str | None, said: str
) -> None:
    if verdict is not None:
        (place / "run/quickstart/bus").write_text(f"{verdict}\n" if verdict else "")
    text = f"bus_watch={watch}\nif bus_is_well; then echo well; else echo $bus_fault; fi\n"
    assert run(shell, place, text, ("lib", "lives"), ("second", "bus_is_well")) == [said]


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize(
    ("bus", "processes", "alone"), [("yes", "1\n", True), ("yes", "1\n2\n", False), ("", "1\n2\n", True)]
)
def test_the_bus_has_started_nothing_by_itself(
    shell: tuple[str, ...], place: Path, bus: str, processes: str, alone: bool
) -> None:
    (place / "cgroup.procs").write_text(processes)
    text = f"BUS={bus} GROUP={place}\nif bus_is_alone; then echo alone; else echo others; fi\n"
    assert run(shell, place, text, ("second", "bus_is_alone")) == ["alone" if alone else "others"]


@pytest.mark.parametrize(("on_bus", "ordered"), [("ON_BUS=yes", True), ("", False)])
def test_who_is_on_the_bus_is_adopted_behind_it(place: Path, on_bus: str, ordered: bool) -> None:
    text = f"UNITS={place}/units UNIT=app.service UNIT_TYPE=dbus {on_bus}\nwrite_drop_in\n"
    assert run(("dash",), place, text, ("hand-off", "write_drop_in")) == []
    lines = (place / "units/app.service.d/zzzz-quickstart.conf").read_text().splitlines()
    assert (lines[:2] == ["[Unit]", "After=dbus.service"]) is ordered
    # `adopt` tells systemd that it has started.
    assert lines[2 * ordered : 2 * ordered + 2] == ["[Service]", "Type=notify"]


def test_the_bus_does_not_come_behind_itself(place: Path) -> None:
    """A companion's words are read on top of those of the last unit."""
    companion = place / "companions/1"
    companion.mkdir(parents=True)
    (companion / "config").write_text("UNIT=dbus.service UNIT_GROUP= UNIT_TYPE=notify BUS=yes ON_BUS=''\n")
    text = f"UNITS={place}/units UNIT=app.service ON_BUS=yes COMPANIONS=1\nwith_companions write_drop_in\n"
    names = (("lib", "with_companions"), ("hand-off", "write_drop_in"))
    assert run(("dash",), place, text, *names) == []
    assert "After=" not in (place / "units/dbus.service.d/zzzz-quickstart.conf").read_text()


@pytest.mark.parametrize(
    ("on_bus", "verdict", "same"),
    [
        ("", None, True),
        ("ON_BUS=yes", "served", True),
        ("ON_BUS=yes", "later", True),
        ("ON_BUS=yes", "asked late.service", False),
        ("ON_BUS=yes", "lost the bus", False),
        # systemd has not come to it.
        ("ON_BUS=yes", "", False),
    ],
)
def test_adopt_takes_nobody_who_has_waited_on_the_bus(
    place: Path, on_bus: str, verdict: str | None, same: bool
) -> None:
    if verdict is not None:
        (place / "run/quickstart/bus").write_text("" if verdict in ("", "later") else f"{verdict}\n")
    # Of the wait, one step is enough.
    later = f'echo served >"{place}/run/quickstart/bus"' if verdict == "later" else ":"
    text = f"{on_bus}\nsleep() {{ {later}; }}\nif has_same_bus; then echo same; else echo other; fi\n"
    assert run(("dash",), place, text, ("adopt", "has_same_bus")) == ["same" if same else "other"]


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize(
    ("active", "said"),
    [
        (0, ["start --no-block dbus.service"]),
        (1, [
            "stop --job-mode=ignore-dependencies dbus.service", "end",
            "stop --job-mode=ignore-dependencies dbus.socket", "reset-failed dbus.socket dbus.service",
            "start dbus.socket", "start --no-block dbus.service",
        ]),
    ],
)  # fmt: skip
def test_a_bus_that_systemd_has_started_is_left_alone(
    shell: tuple[str, ...], place: Path, active: int, said: list[str]
) -> None:
    """The early one has ended. Whoever has come to systemd's socket is served, and would lose the bus once more."""
    (place / "run/quickstart/other-sockets").touch()
    text = f"""SOCKETS=1 SOCKET_UNITS=dbus.socket UNIT=dbus.service
    end_group() {{ echo end; }}
    about_unit() {{ :; }}
    systemctl() {{
        case "$*" in "-q is-active"*) return {active} ;; "-q is-enabled"*) return 0 ;; *) echo "$*" ;; esac
    }}
    see_to_sockets
    """
    names = ("see_to_sockets", "have_other_sockets", "was_stopped", "start_wanted", "is_wanted")
    assert run(shell, place, text, *(("settle", name) for name in names)) == said
