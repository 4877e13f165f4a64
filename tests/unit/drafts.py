"""A draft of a profile, and what its guests found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quickstart.inspect.unit.model import UnitCommand, UnitStart
from quickstart.model import (
    Profile,
    Readiness,
    StartFile,
    StartSet,
)
from quickstart.model.words import ImageSource, ReadyKind
from quickstart.newprofile.findings import (
    Findings,
)
from quickstart.newprofile.reads import Reads
from quickstart.newprofile.request import first_draft, parse_ready
from quickstart.newprofile.survey import Survey
from tests.unit import startfiles
from tests.unit.imagebuilder import trace

ANY = "0.0.0.0"  # noqa: S104 - where the guest listens
READY = Readiness(kind=ReadyKind.HTTP, port=80, path="/", status=200, command="", timeout_s=600)
TCP = replace(READY, kind=ReadyKind.TCP)
DRAFT = first_draft("app", ["app-server"], "app", parse_ready("http:80/"), "bookworm", 600)


# ---------------------------------------------------------------- decisions


def command(text: str, flags: str = "") -> UnitCommand:
    words = tuple(text.split())
    return UnitCommand(words[0], words, flags)


# ---------------------------------------------------------------- the two files


def start_file(path: str, mode: int = 0o755, package: str = "app-server 1.0-1") -> StartFile:
    return startfiles.start_file(path, mode=0o100000 | mode, size_bytes=2 << 20, seen_in=1, package=package)


def findings(profile: Profile, **changes: Any) -> Findings:
    found = Findings(
        profile=profile,
        survey=Survey(
            loopback=False,
            used_mib=90,
            listeners=((ANY, 80), ("127.0.0.1", 9), ("::", 22)),
            unit_file_state="enabled",
            answer="HTTP/1.1 200 OK",
            ready_uptime_ns=1,
        ),
        unit=UnitStart(
            unit="app.service", type="simple", pid_file=None, start_pre=(), start=command("/usr/sbin/app -D")
        ),
        directives=(("ExecStart", "the start itself"), ("User", "repeated")),
        pre=(),
        start_set=StartSet((start_file("/usr/sbin/app"), start_file("/etc/app.conf", 0o644, "")), ()),
        traces=(trace("/etc/app.conf"),),
        initramfs_bytes=15 << 20,
        reads=Reads(
            ready_uptime_ns=5_000_000_000,
            requests=47,
            bytes=841_216,
            direct_requests=0,
            files=(("/etc/app.conf", "prefetcher", 4096),),
        ),
        source=ImageSource.PACKAGES,
        written=(),
    )
    return replace(found, **changes)
