"""Makes OUTs for tests: a complete manifest.json for the files of a directory."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quickstart.model import Readiness
from quickstart.model.superblock import Superblock
from quickstart.model.words import ReadyKind

READY = Readiness(kind=ReadyKind.HTTP, port=80, path="/", status=200, command="", timeout_s=600)
SUPERBLOCK = Superblock(
    uuid="57174af5-eba9-5dc8-89d7-1ee8d7185e0b",
    mount_count=0,
    write_time_s=0,
    clean=True,
    needs_recovery=False,
    has_errors=False,
)
BUILD_KEY = "6665d80ee4320a39002b327837bbffef"
UNPACKED_BYTES = 1 << 26


def facts(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def manifest_of(out: Path, **changes: object) -> dict[str, Any]:
    """What manifest.json says of the kernel, the initramfs and the raw disk in ``out``, which are made where they are lacking."""
    for name in ("vmlinuz", "initrd.img", "initramfs.img", "root.raw"):
        if not (out / name).exists():
            (out / name).write_text(name)
    return {
        "schema": 1,
        "quickstart": "0.1.0",
        "build_key": BUILD_KEY,
        "profile": "app",
        "unit": "app.service",
        "ready": dataclasses.asdict(READY),
        "cmdline": f"console=ttyS0 root=UUID={SUPERBLOCK.uuid} ro panic=10",
        "memory_mib": 1024,
        "mac": "52:54:00:00:00:01",
        "disk": {"name": "root.raw", "format": "raw", "size_bytes": (out / "root.raw").stat().st_size},
        "superblock": dataclasses.asdict(SUPERBLOCK),
        "files": {name: facts(out / name) for name in ("vmlinuz", "initrd.img", "initramfs.img")},
        "initramfs_bytes": (out / "initramfs.img").stat().st_size,
        "initramfs_unpacked_bytes": UNPACKED_BYTES,
        "start_set_files": 1,
        "start_set_bytes": 2,
        **changes,
    }


def write_manifest(out: Path, **changes: object) -> None:
    (out / "manifest.json").write_text(json.dumps(manifest_of(out, **changes)))


def change(out: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((out / "manifest.json").read_text())
    edit(manifest)
    (out / "manifest.json").write_text(json.dumps(manifest))
