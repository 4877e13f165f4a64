"""A small image root and made-up traces of it, for tests of the start set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath

from quickstart.initramfs.programs import Programs
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import Event, FileKind, FileRules, Mapped, NetworkFacts, Op, StartSet, Trace
from quickstart.pack.startset import compute
from tests.unit.elfbuilder import LD_SO, MULTIARCH, elf

RULES = FileRules(include=(), exclude=(), data=("/var/**",), secrets=())


def P(path: str) -> PurePosixPath:  # noqa: N802
    return PurePosixPath(path)


def programs_in(base: Path) -> Programs:
    """Each by its own name in ``base``."""
    return Programs(**{field.name: base / field.name for field in fields(Programs)})


def trace(
    *opened: str | tuple[Op, str] | tuple[Op, str, str] | Event,
    ldd: Mapping[str, Sequence[str]] | None = None,
    mapped: Sequence[str] = (),
) -> Trace:
    events = []
    for line, each in enumerate(opened, 1):
        if isinstance(each, Event):
            events.append(each)
            continue
        op, path, *error = (Op.OPEN, each) if isinstance(each, str) else each
        events.append(
            Event(line=line, pid=77, program="app", op=op, path=P(path), error=error[0] if error else None)
        )
    return Trace(
        events=tuple(events),
        processes=1,
        blind=(),
        mapped=tuple(Mapped(77, "app", P(path)) for path in mapped),
        ldd={P(path): tuple(P(each) for each in found) for path, found in (ldd or {}).items()},
        modules_before=(),
        modules=(),
        network=NetworkFacts("ens3", "52:54:00:00:00:01", "10.0.2.15"),
        trace_hash="0",
        ready_uptime_ns=1,
        log_lines=len(events),
    )


@dataclass
class Image:
    """A tree with a merged /usr and one program with one library."""

    base: Path

    def file(self, path: str, content: bytes | str = "text", mode: int = 0o644) -> None:
        host = self.base / path.lstrip("/")
        host.parent.mkdir(parents=True, exist_ok=True)
        host.write_bytes(content.encode() if isinstance(content, str) else content)
        host.chmod(mode)

    def link(self, path: str, target: str) -> None:
        host = self.base / path.lstrip("/")
        host.parent.mkdir(parents=True, exist_ok=True)
        host.symlink_to(target)

    def compute(
        self,
        *opened: str | tuple[Op, str] | tuple[Op, str, str],
        rules: FileRules = RULES,
        ldd: Mapping[str, Sequence[str]] | None = None,
        mapped: Sequence[str] = (),
    ) -> StartSet:
        """The set of a trace in which one process, app, did that with these paths."""
        return compute([trace(*opened, ldd=ldd, mapped=mapped)], ImageRoot(self.base), rules)


def small_image(base: Path) -> Image:
    """A program with one library, a loader and a file of /etc."""
    image = Image(base)
    for name in ("bin", "lib", "lib64"):
        image.link(name, f"usr/{name}")
    image.file("/usr/bin/app", elf(["liba.so.1"], interpreter=LD_SO), 0o755)
    image.file(f"{MULTIARCH}/liba.so.1.2", elf(soname="liba.so.1"))
    image.link(f"{MULTIARCH}/liba.so.1", "liba.so.1.2")
    image.file(f"{MULTIARCH}/ld-linux-x86-64.so.2", elf(), 0o755)
    image.link("/usr/lib64/ld-linux-x86-64.so.2", f"..{MULTIARCH[4:]}/ld-linux-x86-64.so.2")
    image.file("/etc/app.conf")
    return image


def rules(**changed: tuple[str, ...]) -> FileRules:
    return FileRules(**{"include": (), "exclude": (), "data": ("/var/**",), "secrets": (), **changed})


def files(start_set: StartSet) -> list[str]:
    return [str(file.path) for file in start_set.files if file.kind is FileKind.FILE]


def links(start_set: StartSet) -> list[str]:
    return [str(file.path) for file in start_set.files if file.kind is FileKind.SYMLINK]


def excluded(start_set: StartSet) -> dict[str, str]:
    return {str(each.path): each.rule for each in start_set.excluded}


def reasons(start_set: StartSet, path: str) -> list[tuple[str, str]]:
    (file,) = [file for file in start_set.files if file.path == P(path)]
    return [(reason.source, reason.detail) for reason in file.reasons]
