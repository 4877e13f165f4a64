"""An application's start set, unit and configuration, as the archive's layout has them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from quickstart.initramfs.guestconfig import (
    GuestConfig,
    HandOff,
)
from quickstart.initramfs.newc import CpioEntry
from quickstart.initramfs.prefetch import Prefetch
from quickstart.inspect.unit.model import UnitCommand, UnitStart
from quickstart.model import FileKind, Readiness, StartFile, StartSet
from quickstart.model.superblock import Superblock
from quickstart.model.words import ReadyKind
from tests.unit import startfiles
from tests.unit.elfbuilder import LD_SO, elf

UNIT = UnitStart(
    unit="app.service",
    type="forking",
    pid_file=PurePosixPath("/run/app.pid"),
    start_pre=(UnitCommand("/usr/bin/app", ("/usr/bin/app", "-t"), "-"),),
    start=UnitCommand("/usr/bin/app", ("/usr/bin/app", "-g", "daemon on; it's 'on'")),
    group="system.slice/app.service",
    settings=(("umask", "022"),),
)
READY = Readiness(kind=ReadyKind.HTTP, port=80, path="/", status=200, command="", timeout_s=600)
CONFIG = GuestConfig(
    build="0123456789abcdef",
    superblock=Superblock(
        uuid="11111111-2222-3333-4444-555555555555",
        mount_count=0,
        write_time_s=1_400_000_000,
        clean=True,
        needs_recovery=False,
        has_errors=False,
    ),
    root_fstype="ext4",
    root_flags="",
    root_options="errors=remount-ro",
    interface="ens3",
    unit=UNIT,
    ready=READY,
    hand_off=HandOff.KEEP,
    network="ifupdown",
)
PROGRAM = elf(interpreter=LD_SO)


def P(path: str) -> PurePosixPath:  # noqa: N802
    return PurePosixPath(path)


def start_file(
    path: str, kind: FileKind, mode: int, target: str = "", interpreter: str = "", size: int = 0
) -> StartFile:
    return startfiles.start_file(
        path,
        kind=kind,
        mode=mode,
        size_bytes=size,
        mtime_s=1_500_000_000,
        ctime_s=1_600_000_000,
        target=target,
        interpreter=interpreter,
    )


def directory(path: str) -> StartFile:
    return start_file(path, FileKind.DIRECTORY, 0o040755)


def link(path: str, target: str) -> StartFile:
    return start_file(path, FileKind.SYMLINK, 0o120777, target, size=len(target))


START_SET = StartSet(
    (
        directory("/etc"),
        start_file("/etc/app.conf", FileKind.FILE, 0o100640, size=4),
        link("/etc/localtime", "/usr/share/zone"),
        link("/etc/relative", "../usr/share/zone"),
        link("/lib64", "usr/lib64"),
        directory("/usr"),
        directory("/usr/bin"),
        start_file("/usr/bin/app", FileKind.FILE, 0o100755, interpreter=LD_SO, size=len(PROGRAM)),
        directory("/usr/lib64"),
        start_file("/usr/lib64/ld-linux-x86-64.so.2", FileKind.FILE, 0o100755, size=3),
        start_file("/usr/lib64/liba.so.1", FileKind.FILE, 0o100644, interpreter=LD_SO, size=len(PROGRAM)),
        directory("/usr/share"),
        start_file("/usr/share/zone", FileKind.FILE, 0o100644, size=2),
    ),
    (),
)
PREFETCH = Prefetch(
    ((4096, 8192), (1 << 40, 4096)),
    (PurePosixPath("/etc/a b"), PurePosixPath("/etc/\udce9")),
    ((PurePosixPath("/usr/lib/large one"), 65536, 4096),),
)


def by_name(entries: Iterable[CpioEntry]) -> dict[str, CpioEntry]:
    return {entry.name: entry for entry in entries}
