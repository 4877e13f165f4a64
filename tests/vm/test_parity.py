"""Parity: a process that our starter has started is as the image's systemd starts it, but for what is named in parity.py.

One fast boot and one stock boot serve all units. The description of each is made here, of its text, as the build makes it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.imageroot import ImageRoot
from tests.vm.conftest import guest_file
from tests.vm.parity import (
    Machine,
    answers,
    ask,
    assert_same_mounts,
    described,
    fast_script,
    fields,
    quoted,
    relative,
)
from tests.vm.parity_units import UNITS


def stock_script(texts: dict[str, str]) -> str:
    parts = [quoted(f"/etc/systemd/system/parity-{name}.service", text) for name, text in texts.items()]
    parts += ["systemctl daemon-reload\n", "MAIN=1\n", ask("PID-1")]
    for name in texts:
        parts += [
            f"systemctl start parity-{name} || systemctl status parity-{name}\n",
            f"MAIN=$(systemctl show -p MainPID --value parity-{name})\n",
            # A unit of Type=simple counts as started before its program is executed.
            "for try in $(seq 100); do grep -q '^Name:.sleep' /proc/$MAIN/status && break; sleep 0.1; done\n",
            ask(name),
        ]
    return "".join(parts)


@pytest.fixture(scope="module")
def machines(artefact: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Machine, Machine]:
    """The fast one, the stock one."""
    base = tmp_path_factory.mktemp("units")
    (base / "etc").mkdir()
    for name in ("passwd", "group"):
        (base / "etc" / name).write_text(guest_file(artefact, f"/etc/{name}"))
    units = base / "etc/systemd/system"
    units.mkdir(parents=True)
    descriptions = {}
    for name, text in UNITS.items():
        (units / f"parity-{name}.service").write_text(text)
        descriptions[name] = described(ImageRoot(base), f"parity-{name}.service")
    fast = Machine(answers(artefact, fast_script(descriptions)))
    return fast, Machine(answers(artefact, stock_script(UNITS), "--stock"))


@pytest.fixture(params=UNITS)
def unit(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_a_process_was_started(machines: tuple[Machine, Machine], unit: str) -> None:
    for machine in machines:
        assert machine.file(unit, "pid").isdigit(), machine.processes[unit]
        assert machine.file(unit, "status").startswith("Name:\tsleep"), machine.processes[unit]


def test_status(machines: tuple[Machine, Machine], unit: str) -> None:
    fast, stock = (fields(machine.file(unit, "status")) for machine in machines)
    assert fast == stock


def test_limits(machines: tuple[Machine, Machine], unit: str) -> None:
    fast, stock = (relative(machine, unit) for machine in machines)
    assert fast == stock


@pytest.mark.parametrize("file", ["cgroup", "oom_score_adj"])
def test_the_same_words(machines: tuple[Machine, Machine], unit: str, file: str) -> None:
    fast, stock = (machine.file(unit, file) for machine in machines)
    assert fast == stock


def test_mounts(machines: tuple[Machine, Machine], unit: str) -> None:
    assert_same_mounts(machines, unit)
