"""Boots an artefact once with a fault in it or in its machine, and records the outcome.

A hook is shell code that init reads from the launch archive before it does anything important (agent.md).
Here it damages what init has. ``qemu`` are additional words for QEMU: another clock, another disk.
"""

from __future__ import annotations

import io
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from quickstart.artefact import directory as artefacts
from quickstart.cli.firmware import free_port
from quickstart.engines import boot as pipeline
from quickstart.launch import qemu as qemu_launcher
from quickstart.launch.arguments import machine_arguments
from quickstart.launch.drain import whole_text
from quickstart.launch.qemu import QemuGuest
from quickstart.store.store import Store
from tests.guests import launched
from tests.vm.conftest import BOOT_S

WHOLE = (
    "until systemctl is-system-running --wait 2>/dev/null | grep -q -e running -e degraded; do sleep 1; done; "
    "systemctl is-system-running; cat /proc/1/comm; systemctl is-active nginx ssh cron; "
    "readlink /proc/$(cat /run/nginx.pid)/exe"
)
WORKING = ["running", "systemd", "active", "active", "active", "/usr/sbin/nginx"]
FAST = [*WORKING[:-1], "/fast/usr/sbin/nginx"]
WHOLE_S = 300.0
SETTLED = (Path(__file__).with_name("guest") / "settled.sh").read_text()
_POWER_OFF_S = 120.0


@dataclass(frozen=True)
class Ended:
    """What a machine answered once it was ready, and its console (drain.whole_lines)."""

    said: list[str]
    console: str

    @property
    def fallbacks(self) -> list[str]:
        return re.findall(r"quickstart: (fallback \d: [^\r\n]*)", self.console)


def boot(
    store: Store,
    out: Path,
    *,
    hook: str = "",
    command: str = WHOLE,
    append: str = "",
    qemu: tuple[str, ...] = (),
    stock: bool = False,
    keep: bool = False,
) -> Ended:
    """Boot OUT, wait until it answers, run ``command`` in it.

    With ``keep`` the disk keeps what was written and the machine is shut down in order; otherwise it is thrown away.
    """
    found = artefacts.load(out)
    machine = pipeline.machine_of(
        found, stock=stock, snapshot=not keep, port=free_port(), extra_cmdline=append
    )
    hooks: dict[str, bytes | Path] = {"hooks/50-fault": f"{hook}\n".encode()} if hook else {}
    said = io.BytesIO()
    with _more_words(qemu), launched(machine, found.ready, store, hooks) as guest:
        guest.wait_ready(BOOT_S)
        guest.execute(command, said, io.BytesIO(), WHOLE_S)
        if keep:
            assert guest.power_off(_POWER_OFF_S), guest.console_tail(40)
        return Ended(said.getvalue().decode().split(), whole_text(guest.console.path.read_bytes()))


def heard(guest: QemuGuest, text: str, limit_s: float = 60.0) -> bool:
    """Whether the newest of the console has ``text``, once the serial line had time to send what a program has left with it."""
    until = time.monotonic() + limit_s
    while not (found := text in whole_text(guest.console.tail(1 << 16))) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def console_until(store: Store, out: Path, text: str) -> str:
    """The console of a boot of OUT that does not get ready, until it has ``text``. The machine is then thrown away."""
    found = artefacts.load(out)
    machine = pipeline.machine_of(found, stock=False, snapshot=True, port=free_port())
    with launched(machine, found.ready, store) as guest:
        assert heard(guest, text, BOOT_S), guest.console_tail(40)
        return whole_text(guest.console.path.read_bytes())


@contextmanager
def reachable_for_qemu() -> Iterator[Path]:
    """A directory for files that ``qemu`` words name. QEMU opens them as a user of its own, who gets into no
    directory of ours.
    """
    with tempfile.TemporaryDirectory(prefix="quickstart-test-", dir="/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        yield place


@contextmanager
def _more_words(words: tuple[str, ...]) -> Iterator[None]:
    """While it lasts, machines get these words of QEMU's too."""
    usual = machine_arguments
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qemu_launcher, "machine_arguments", lambda *of: (*usual(*of), *words))
        yield
