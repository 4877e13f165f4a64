"""mysql in the bench: every configuration answers the agent at the external address, for an account that no OUT has."""

from __future__ import annotations

import io

import pytest

from quickstart.bench.prepare import prepare
from quickstart.engines import boot as pipeline
from quickstart.host.progress import Quiet
from quickstart.measure.configuration import machine_of, with_command_line
from quickstart.profile import load_bench, load_profile
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root
from tests.guests import launched

pytestmark = pytest.mark.full


@pytest.mark.parametrize("name", ["quickstart", "minimal", "ramboot", "standard", "standard-tuned"])
def test_the_server_lists_its_databases_to_the_bench(name: str) -> None:
    profile, layer = load_profile("mysql"), load_bench("mysql")
    assert layer is not None
    with Store(default_root()) as store:
        boot = with_command_line(prepare(profile, name, Context(store, Quiet()), layer), "ours")
        with launched(machine_of(boot), boot.ready, store) as guest:
            readied = guest.wait_ready(boot.ready.timeout_s)
            assert readied.ready.answer == "4 databases"
            assert readied.beacon.uptime_ns < readied.ready.uptime_ns
            out = io.BytesIO()
            # Port 3306 in /proc/net/tcp (proc(5)), at every address.
            assert (
                guest.execute("while read -r l; do echo $l; done </proc/net/tcp", out, io.BytesIO(), 60) == 0
            )
            assert any(
                line.split()[1:4:2] == ["00000000:0CEA", "0A"]
                for line in out.getvalue().decode().splitlines()
            )


def test_the_image_that_build_ships_has_no_such_account() -> None:
    profile, layer = load_profile("mysql"), load_bench("mysql")
    assert layer is not None
    with Store(default_root()) as store:
        tree = pipeline.reference_image(profile, pipeline.TraceOptions(), Context(store, Quiet())).tree
    account = layer.ready.account.encode()
    grants = sorted((tree / "var/lib/mysql/mysql").glob("global_priv.*"))
    assert len(grants) >= 2 and not any(account in file.read_bytes() for file in grants)
    for path, _ in layer.files:
        assert not (tree / path.lstrip("/")).exists()
