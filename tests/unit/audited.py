"""A made-up artefact for the tests of the audit, and what an audit says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quickstart.artefact import audit as auditing
from quickstart.artefact.audit import ERROR, Finding
from quickstart.artefact.directory import load, run_script
from quickstart.artefact.manifest import read_manifest
from quickstart.initramfs.digests import list_bytes
from quickstart.initramfs.digests import listed as digests_of
from quickstart.initramfs.newc import (
    CpioEntry,
    char_device,
    directory,
    regular,
    symlink,
    write_archive,
)
from quickstart.model import Artefact
from tests.unit.outs import write_manifest

KEY = b"-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n"
OURS = "fast/quickstart"
PART_A = (
    directory("dev"),
    directory("fast"),
    directory(OURS),
    directory(f"{OURS}/bin"),
    char_device("dev/console", 0o600, 5, 1),
    *(
        regular(f"{OURS}/{name}", b"x", 0o755)
        for name in ("busybox", "bin/starter", "bin/checker", "unit", "modules")
    ),
    regular("init", b"x", 0o755),
    regular(f"{OURS}/config", b"BUILD=b1\nIMAGE=''\nUNIT=app.service\n", 0o644),
)
HEAD = (
    directory("fast"),
    directory("fast/etc"),
    symlink("fast/lib64", "usr/lib64"),
    directory("fast/usr"),
    directory("fast/usr/lib64"),
    symlink("fast/usr/lib64/ld.so", "ld-linux-x86-64.so.2"),
    regular("fast/usr/lib64/ld-linux-x86-64.so.2", b"loader", 0o755),
    regular("fast/usr/app", b"program", 0o755),
)
TAIL = (directory(OURS), regular(f"{OURS}/part-b", b"b1\n", 0o644))


def listed(path: str, kind: str, size_bytes: int = 0) -> dict[str, Any]:
    return {"path": path, "kind": kind, "size_bytes": size_bytes, "target": "", "reasons": ["trace: x"]}


LISTED = (
    *(listed(path, "directory") for path in ("/etc", "/usr", "/usr/lib64")),
    listed("/lib64", "symlink", 9),
    listed("/usr/lib64/ld-linux-x86-64.so.2", "file", 6),
    listed("/usr/app", "file", 7),
)


def artefact(
    base: Path,
    *more: CpioEntry,
    part_a: tuple[CpioEntry, ...] = PART_A,
    head: tuple[CpioEntry, ...] = HEAD,
    tail: tuple[CpioEntry, ...] = TAIL,
    files: tuple[dict[str, Any], ...] = LISTED,
    secrets: tuple[str, ...] = (),
    listing: bool = True,
) -> Artefact:
    """A whole artefact with ``more`` packed files, which start-set.json lists too unless ``listing`` is False."""
    base.mkdir(exist_ok=True)
    base.chmod(0o755)
    with (base / "initramfs.img").open("wb") as stream:
        digests = regular(f"{OURS}/digests", list_bytes(digests_of((*head, *more, *tail))), 0o644)
        write_archive(
            stream, part_a if digests.name in {each.name for each in part_a} else (*part_a, digests)
        )
        write_archive(stream, (*head, *more, *tail))
    for name in ("vmlinuz", "initrd.img", "root.raw", "run.sh"):
        (base / name).write_bytes(name.encode())
        (base / name).chmod(0o755 if name == "run.sh" else 0o644)
    (base / "root.raw").chmod(0o600)
    (base / "initramfs.img").chmod(0o600 if secrets else 0o644)
    added = [listed(f"/{m.name.removeprefix('fast/')}", kind(m), len(bytes_of(m))) for m in more if listing]
    document = {"files": [*files, *added], "excluded": [{"path": "/var/data", "rule": "data: /var/**"}]}
    (base / "start-set.json").write_text(json.dumps(document))
    write_manifest(base, secrets=secrets)
    (base / "run.sh").write_text(run_script(read_manifest(base)))
    return load(base)


def bytes_of(entry: CpioEntry) -> bytes:
    assert isinstance(entry.data, bytes)
    return entry.data


def kind(entry: CpioEntry) -> str:
    return {0o100000: "file", 0o040000: "directory", 0o120000: "symlink"}.get(entry.mode & 0o170000, "file")


def audit(made: Artefact) -> tuple[Finding, ...]:
    found = auditing.audit(made)
    assert found.left_out == 0
    return found.first


def the_error(found: tuple[Finding, ...]) -> Finding:
    (error,) = (each for each in found if each.severity == ERROR)
    assert error.mend
    return error
