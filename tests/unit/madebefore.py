"""An application and a log of its boot, in which another process made what it uses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.model import UnitCommand, UnitStart
from quickstart.model.started import Changed
from quickstart.pack.others import refuse_made_before
from tests.unit.imagebuilder import trace
from tests.unit.test_strace_unit import unit_log
from tests.unit.test_unit_sockets import put

TMPFILES = "20"
UNITS_OF_APP = ("app.service",)


def opened(path: str, flags: str = "O_RDONLY", pid: int = 11) -> str:
    return f'{pid} openat(AT_FDCWD</>, "{path}", {flags}) = 3<{path}>'


def used(*rows: str) -> list[str]:
    return [str(path) for path in unit_log(*rows).changed.before_unit]


def app(*settings: tuple[str, ...]) -> UnitStart:
    return UnitStart(
        unit="app.service", type="simple", pid_file=None, start_pre=(), start=UnitCommand("/usr/bin/app", ("app",)),
        conditions=(), start_post=(), group="system.slice/app.service", timeout_ms=0, settings=settings,
    )  # fmt: skip


def put_client(base: Path, conf: str = "") -> None:
    """dhclient, which writes the name servers of a lease into /etc/resolv.conf with an empty configuration."""
    put(base, "/sbin/dhclient", "")
    put(base, "/etc/dhcp/dhclient.conf", conf)


def refused(base: Path, *paths: str) -> str:
    found = replace(trace(), changed=Changed(tuple(map(PurePosixPath, paths))))
    try:
        refuse_made_before([found], app(), ImageRoot(base))
    except UnsupportedUnitError as error:
        return error.message
    return ""
