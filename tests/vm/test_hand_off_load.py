"""Requests and writes during the hand-off: none fails, none is lost."""

from __future__ import annotations

import http.client
import io
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from quickstart.artefact import directory as artefacts
from quickstart.cli.firmware import free_port
from quickstart.engines import boot as pipeline
from quickstart.store.store import Store, default_root
from tests.guests import launched
from tests.vm.conftest import BOOT_S, guest_file, host

CONNECTIONS = 4
# nginx closes a connection after 1000 requests by itself.
REQUESTS_EACH = 250
SETTLE_S = 400.0
# One file each second, from before systemd until after settle; each is named when it is on the volume.
WRITER = (
    (Path(__file__).with_name("guest") / "settled.sh").read_text()
    + """
mkdir /root/written
n=0
while ! dmesg | grep -q 'quickstart: stamp settled' && [ $n -lt 300 ]; do
	n=$((n + 1))
	echo "$n $(cat /proc/1/comm)" >/root/written/$n
	sync /root/written/$n
	echo $n
	sleep 1
done
echo "after $(cat /proc/1/comm)" >/root/written/after
sync
systemctl is-system-running
"""
)


@dataclass(frozen=True)
class Served:
    """What one connection saw: the latency of each request, and what went wrong."""

    latencies_ns: tuple[int, ...]
    faults: tuple[str, ...]


@dataclass(frozen=True)
class Handed:
    """One machine from its first answer to its hard end."""

    served: tuple[Served, ...]
    said: list[str]
    out: Path

    @property
    def latencies_ns(self) -> list[int]:
        return sorted(each for served in self.served for each in served.latencies_ns)


def ask(port: int, settled: threading.Event) -> Served:
    """One connection: requests as long as the machine settles, at least so many as asked for, all on that connection."""
    latencies_ns: list[int] = []
    faults: list[str] = []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.connect()
    socket = connection.sock
    while len(latencies_ns) < REQUESTS_EACH and not faults:
        began_ns = time.monotonic_ns()
        try:
            connection.request("GET", "/", headers={"Connection": "keep-alive"})
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            faults.append(f"request {len(latencies_ns)}: {error!r}")
            break
        latencies_ns.append(time.monotonic_ns() - began_ns)
        if response.status != 200 or b"nginx" not in body or connection.sock is not socket:
            faults.append(f"request {len(latencies_ns)}: status {response.status}, or another connection")
        # The last requests come after settle, however long that takes.
        settled.wait(0.15 if len(latencies_ns) < REQUESTS_EACH - 10 else SETTLE_S)
    connection.close()
    return Served(tuple(latencies_ns), tuple(faults))


@pytest.fixture(scope="module")
def handed(artefact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handed]:
    out = tmp_path_factory.mktemp("load") / "nginx"
    host("cp", "-a", "--sparse=always", artefact, out)
    found = artefacts.load(out)
    port = free_port()
    machine = pipeline.machine_of(found, stock=False, snapshot=False, port=port)
    said, settled = io.BytesIO(), threading.Event()
    with (
        Store(default_root(), print) as store,
        launched(machine, found.ready, store) as guest,
        ThreadPoolExecutor(CONNECTIONS) as pool,
    ):
        guest.wait_ready(BOOT_S)
        asked = [pool.submit(ask, port, settled) for _ in range(CONNECTIONS)]
        try:
            assert guest.execute(WRITER, said, io.BytesIO(), SETTLE_S) == 0, guest.console_tail(40)
        finally:
            settled.set()
        served = tuple(each.result() for each in asked)
        assert guest.execute("sync", io.BytesIO(), io.BytesIO(), SETTLE_S) == 0
        # The end of the context is a power cut: QEMU is killed.
    yield Handed(served, said.getvalue().decode().split(), out)


def test_no_request_fails_and_the_worst_latency_is_told(handed: Handed) -> None:
    assert [each.faults for each in handed.served] == [()] * CONNECTIONS
    latencies_ns = handed.latencies_ns
    assert len(latencies_ns) == CONNECTIONS * REQUESTS_EACH
    print(
        f"worst latency {latencies_ns[-1] / 1e6:.1f} ms, median {latencies_ns[len(latencies_ns) // 2] / 1e6:.1f} ms"
    )


def test_what_was_written_before_during_and_after_is_on_the_volume(handed: Handed) -> None:
    assert handed.said[-1] == "running"
    numbers = handed.said[:-1]
    assert len(numbers) > 5
    words = [guest_file(handed.out, f"/root/written/{number}").split() for number in (*numbers, "after")]
    assert [word[0] for word in words] == [*numbers, "after"]
    assert words[-1][1] == "systemd"


def test_the_application_wrote_its_own_log_to_the_volume(handed: Handed) -> None:
    """What nginx logs it writes at once; `sync` has put it on the volume before the power is cut."""
    log = guest_file(handed.out, "/var/log/nginx/access.log")
    assert log.count('"GET / HTTP/1.1" 200') >= CONNECTIONS * REQUESTS_EACH
