"""The starter starts Debian's own units: the services answer, and their processes equal those that systemd starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.host.progress import Quiet
from quickstart.inspect.imageroot import ImageRoot
from quickstart.profile import load_profile
from quickstart.reference.debootstrap import make_reference
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root
from tests.vm.conftest import BUILD_S, quickstart
from tests.vm.parity import (
    Machine,
    answers,
    ask,
    assert_same_mounts,
    described,
    fast_script,
    fields,
    relative,
)

pytestmark = pytest.mark.full

PROFILE = Path(__file__).parent.parent / "services/apache2"
# apache2 is started by init from /fast; its image has the others as well.
OTHERS = ("mariadb", "ssh", "cron")
SERVICES = ("apache2", *OTHERS)
# What the application does by itself after its start.
OF_THE_APPLICATION = {"mariadb": {"Threads"}}


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> tuple[Machine, Machine]:
    """The fast one, the stock one."""
    out = tmp_path_factory.mktemp("services") / "apache2"
    built = quickstart("build", "--no-trial", "--profile", PROFILE, "-o", out, "--json", timeout_s=BUILD_S)
    assert built.status == 0, built.err
    with Store(default_root()) as store:
        root = ImageRoot(make_reference(load_profile(str(PROFILE)), Context(store, Quiet())).tree)
        descriptions = {name: described(root, f"{name}.service") for name in OTHERS}
    questions = "echo '== mariadb answer'; mariadb -e 'show databases'\n"
    fast = f"{fast_script(descriptions)}MAIN=$(cat /run/quickstart/main.pid)\n{ask('apache2')}{questions}"
    stock = "for n in $(seq 200); do systemctl is-system-running | grep -qE 'running|degraded' && break; sleep 1; done\n"
    stock += f"MAIN=1\n{ask('PID-1')}"
    for name in SERVICES:
        stock += f"MAIN=$(systemctl show -p MainPID --value {name})\n{ask(name)}"
    return Machine(answers(out, fast)), Machine(answers(out, stock + questions, "--stock"))


@pytest.mark.parametrize("service", SERVICES)
def test_parity(machines: tuple[Machine, Machine], service: str) -> None:
    own = OF_THE_APPLICATION.get(service, set())
    fast, stock = (fields(machine.file(service, "status")) for machine in machines)
    assert {name: fast[name] for name in fast.keys() - own} == {
        name: stock[name] for name in stock.keys() - own
    }
    fast_limits, stock_limits = (relative(machine, service) for machine in machines)
    assert fast_limits == stock_limits
    for file in ("cgroup", "oom_score_adj"):
        assert machines[0].file(service, file) == machines[1].file(service, file)
    assert_same_mounts(machines, service)


def test_mariadb_answers(machines: tuple[Machine, Machine]) -> None:
    for machine in machines:
        assert "information_schema" in machine.file("mariadb", "answer")
