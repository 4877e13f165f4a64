"""The hand-off of Debian's own units: systemd adopts the same process, later restarts the stock one, and the two agree."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.vm.conftest import BUILD_S, EARLY, quickstart
from tests.vm.parity_adopted import FACTS, SETTLED, taken
from tests.vm.parity_list import unlisted

pytestmark = pytest.mark.full

SERVICES = Path(__file__).parents[1] / "services"
# How the unit is adopted, by the type that Debian gives it. apache2 has no PIDFile.
TYPES = {"apache2": "forking", "mariadb": "notify", "ssh": "notify", "cron": "simple"}
ASK = """
early=$(early_process)
wait_settled
systemctl is-system-running --wait
[ "$(systemctl show -P MainPID UNIT)" = "$early" ] && echo same
systemctl show -P Type UNIT
systemctl is-active UNIT
adopted_and_restarted UNIT 5 >/root/facts
systemctl is-active UNIT
[ "$(systemctl show -P MainPID UNIT)" != "$early" ] && echo another
systemctl --failed --no-legend --plain | wc -l
cat /root/facts
"""
# What the application does by itself after its start.
OF_THE_APPLICATION = {"mariadb": ("status Threads:",)}


@pytest.mark.parametrize("name", TYPES)
def test_the_process_that_answered_first_is_the_units(name: str, tmp_path: Path) -> None:
    profile = SERVICES / name
    unit = tomllib.loads((profile / "profile.toml").read_text())["unit"]
    out = tmp_path / name
    built = quickstart("build", "--no-trial", "--profile", profile, "-o", out, timeout_s=BUILD_S)
    assert built.status == 0, built.err
    called = quickstart(
        "run",
        out,
        "--snapshot",
        "--json",
        *EARLY,
        "--exec",
        SETTLED + FACTS + ASK.replace("UNIT", unit),
        timeout_s=900,
    )
    assert called.status == 0, called.err
    assert called.result["fallback"] is None
    words, mark, facts = called.result["exec_stdout"].partition("== ")
    assert words.split() == ["running", "same", TYPES[name], "active", "active", "another", "0"]
    found = unlisted(taken(mark + facts), unit)
    assert [each for each in found if not each.startswith(OF_THE_APPLICATION.get(name, ("-",)))] == []
