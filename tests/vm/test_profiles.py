"""The profiles that come with us, except nginx, which most tests use: built, started early, handed over, queried."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quickstart.profile import known_profiles, load_profile
from tests.vm.conftest import BUILD_S, EARLY, quickstart

SETTLED = (Path(__file__).with_name("guest") / "settled.sh").read_text()
# What is asked in the whole machine, and the answer.
ASKED = {
    "apache": ("/usr/sbin/apache2ctl configtest 2>/dev/null && echo 1", "1"),
    "mysql": ("mariadb -N -e 'show databases;' | grep -cx -e mysql -e information_schema", "2"),
}
ASK = """
early=$(early_process)
wait_settled
systemctl is-system-running --wait
[ "$(systemctl show -P MainPID UNIT)" = "$early" ] && echo same
systemctl is-active UNIT
QUESTION
systemctl --failed --no-legend --plain | wc -l
"""


def test_every_profile_has_its_test() -> None:
    assert {*known_profiles()} == {"nginx", *ASKED}


@pytest.mark.full
@pytest.mark.parametrize("name", ASKED)
def test_it_is_built_starts_early_and_is_handed_over(name: str, tmp_path: Path) -> None:
    out, unit = tmp_path / name, load_profile(name).unit
    built = quickstart("build", "--profile", name, "-o", out, "--json", timeout_s=BUILD_S)
    assert built.status == 0, built.err
    question, answer = ASKED[name]
    ask = SETTLED + ASK.replace("QUESTION", question).replace("UNIT", unit)
    called = quickstart("run", out, "--snapshot", "--json", *EARLY, "--exec", ask, timeout_s=900)
    assert called.status == 0, called.err
    assert called.result["fallback"] is None
    assert called.result["exec_stdout"].split() == ["running", "same", "active", answer, "0"]
    # The page that the package brings, or nothing where there is no page.
    assert called.result["page"] == ("HTTP/1.1 200 OK" if name == "apache" else "")
    budget = load_profile(name).budget_mib << 20
    assert budget // 3 < called.result["initramfs_bytes"] < budget, json.dumps(called.result)
