"""Write an empty FAT file system, such as that of an EFI system partition (mkfs.fat(8))."""

from __future__ import annotations

from pathlib import Path

from quickstart.host import door


def write_fat(path: Path, size_mib: int, label: str, serial: str) -> None:
    """Write an empty FAT32 file system of ``size_mib`` MiB to the new file ``path``. ``serial`` is its serial number, as
    fstab(5) has it: two groups of four hexadecimal digits. The same arguments always give the same bytes.
    """
    # --invariant also sets a serial number, so the option for ours comes later.
    options = ("--invariant", "-F", "32", "-n", label, "-i", serial.replace("-", ""))
    door.run(["mkfs.vfat", *options, "-C", path, str(size_mib * 1024)], timeout_s=60)
