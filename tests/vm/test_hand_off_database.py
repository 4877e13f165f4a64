"""mysql across the hand-off: rows from before, during and after it survive a power cut, with either boot entry."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import pytest

from quickstart.artefact import directory as artefacts
from quickstart.cli.firmware import free_port
from quickstart.engines import boot as pipeline
from quickstart.launch.drain import whole_text
from quickstart.store.store import Store
from tests.guests import launched
from tests.vm.booting import boot
from tests.vm.conftest import BOOT_S, BUILD_S, host, quickstart

pytestmark = pytest.mark.full

GUEST = Path(__file__).with_name("guest")
WRITER_S = 600.0
# Init waits with PID 1 until the first rows are written.
HELD = r"sed -i 's#^\twait_ready$#&; until [ -e /run/written ]; do usleep 10000; done#' $Q/hand-off"
ROWS = (GUEST / "rows.sh").read_text()
WRITER = (
    ROWS
    + (GUEST / "settled.sh").read_text()
    + """
make_tables
add before
add before
touch /run/written
while ! dmesg | grep -q 'quickstart: stamp settled' && [ $n -lt 400 ]; do add during; done
add after
"""
)


@dataclass(frozen=True)
class Cut:
    """A machine whose power was cut: its directory, and the rows as the server had acknowledged them, in words."""

    out: Path
    rows: tuple[tuple[str, ...], ...]


@pytest.fixture(scope="module")
def cut(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Cut:
    out = tmp_path_factory.mktemp("database") / "mysql"
    built = quickstart("build", "--no-trial", "--profile", "mysql", "-o", out, timeout_s=BUILD_S)
    assert built.status == 0, built.err
    found = artefacts.load(out)
    machine = pipeline.machine_of(found, stock=False, snapshot=False, port=free_port())
    said = io.BytesIO()
    with launched(machine, found.ready, store, {"hooks/50-held": f"{HELD}\n".encode()}) as guest:
        guest.wait_ready(BOOT_S)
        status = guest.execute(WRITER, said, io.BytesIO(), WRITER_S)
        console = whole_text(guest.console.path.read_bytes())
        # The end of the context is the power cut: QEMU is killed, and nobody has called sync.
    assert status == 0 and "quickstart: fallback" not in console, console[-4000:]
    return Cut(out, tuple(tuple(line.split()) for line in said.getvalue().decode().splitlines()))


def tables(said: list[str]) -> dict[str, list[tuple[str, ...]]]:
    """The rows of each table, which the server has to find whole."""
    found = {}
    for part in " ".join(said).split("table ")[1:]:
        name, checked, *words = part.split()
        assert checked == "OK", part
        found[name] = [tuple(words[at : at + 3]) for at in range(0, len(words), 3)]
    return found


def test_rows_were_written_before_during_and_after_the_hand_off(cut: Cut) -> None:
    times = [row[1] for row in cut.rows]
    assert times == sorted(times, key=["before", "during", "after"].index)
    assert {*times} == {"before", "during", "after"} and times.count("during") >= 3
    # Ours had PID 1 for the first ones, the distribution's for the last.
    assert [row[2] for row in cut.rows if row[1] != "during"] == ["busybox", "busybox", "systemd"]


@pytest.mark.parametrize("stock", [True, False], ids=["stock", "fast"])
def test_no_row_is_lost_by_a_power_cut(cut: Cut, store: Store, tmp_path: Path, stock: bool) -> None:
    copy = tmp_path / "mysql"
    host("cp", "-a", "--sparse=always", cut.out, copy)
    ended = boot(store, copy, stock=stock, command=f"{ROWS}show_tables")
    assert ended.fallbacks == []
    assert ("mariadb.service was started from /fast" in ended.console) is not stock
    assert tables(ended.said) == {"InnoDB": list(cut.rows), "Aria": list(cut.rows)}
    host("rm", "-r", copy)
