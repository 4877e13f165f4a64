"""The files of an initramfs from which `quickstart record` makes its record in a machine (docs/users/never-stale.md)."""

from __future__ import annotations

from pathlib import Path

from quickstart.initramfs.layout import OURS
from quickstart.initramfs.newc_reader import walk_archive

# As in `record` of quickstart/reference/guestpkg/scripts/quickstart.
NAMES = (
    *("part-b", "packed.names", "packed.stat", "packed.places", "packed.ways", "packed.units"),
    *("packed.settings", "early-units", "settings-files"),
)


def record_files(initramfs: Path) -> dict[str, bytes]:
    """The content of the files that `quickstart record DIR` reads in DIR, by name. ``initramfs`` is an initramfs that
    QuickStart has just written.
    """
    wanted = {f"{OURS}/{name}": name for name in NAMES}
    files: dict[str, bytes] = {}
    with initramfs.open("rb") as stream:
        for member, pieces in walk_archive(stream):
            if name := wanted.get(member.name):
                files[name] = b"".join(pieces)
    if missing := [name for name in NAMES if name not in files]:
        raise AssertionError(f"{initramfs} has no {OURS}/{missing[0]}")
    return files
