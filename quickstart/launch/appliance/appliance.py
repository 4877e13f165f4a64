"""Start the appliance, our guest that reads a stranger's disk. Copy the appliance's description of the disk, or files
of the disk, to the host.
"""

from __future__ import annotations

import hashlib
import io
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from quickstart.errors import BadInputError, GuestError, TooMuchSaidError
from quickstart.guest import Executes, Hello, Launcher, executing, last_lines
from quickstart.host import door
from quickstart.initramfs.newc import write_archive
from quickstart.inspect.disk.verdict import examined
from quickstart.inspect.imageroot import ImageRoot
from quickstart.launch.appliance.archive import entries
from quickstart.model.disk import Inspected, Partition
from quickstart.model.machine import machine, only_reading
from quickstart.reference.debootstrap import make_base
from quickstart.reference.entry import newest_kernel
from quickstart.store.context import Context
from quickstart.store.store import source_digest

# Debian 12's kernel reads the features that mke2fs, mkfs.xfs and mkfs.btrfs of its time write.
SUITE = "bookworm"
_MEMORY_MIB = 512
_MAC = "52:54:00:71:73:0a"
_START_S = 300.0
_LOOK_S = 300.0
# A record has at most 1 MiB, and most have some hundred bytes.
_MOST_BYTES = 64 << 20
_FETCH_S = 600.0
_TREE_S = 3600.0


@dataclass(frozen=True)
class Appliance:
    """The files from which the appliance boots."""

    kernel: Path
    initramfs: Path


def appliance(context: Context) -> Appliance:
    """The appliance from the store. When the store does not have the appliance, this function makes it from the base
    image of the Debian release ``SUITE``. Making the base image needs root or subordinate IDs.
    """
    base = make_base(SUITE, context)
    root = ImageRoot(base.path / "root")
    version = newest_kernel(root)
    if version is None:
        raise AssertionError(f"{root.base} has no kernel")
    busybox = door.tool_path("busybox")
    inputs = {
        "base": base.key,
        "busybox": _digest(busybox),
        "recipe": source_digest("quickstart.launch.appliance"),
    }

    def make(directory: Path) -> None:
        with (directory / "initramfs.img").open("wb") as stream:
            write_archive(stream, entries(root, version, busybox))

    made = context.store.get_or_make("appliance", inputs, make)
    return Appliance(root.host(PurePosixPath(f"/boot/vmlinuz-{version}")), made.path / "initramfs.img")


@contextmanager
def started(appliance: Appliance, disk: Path, launcher: Launcher) -> Iterator[Executes]:
    """A context manager that runs the appliance during the ``with`` block. The appliance can read ``disk``, a raw image,
    but cannot write to the disk.

    Raises GuestError when the appliance does not start.
    """
    plain = machine(
        "appliance",
        kernel=appliance.kernel,
        initrds=(appliance.initramfs,),
        cmdline="console=ttyS0 panic=-1 quiet",
        memory_mib=_MEMORY_MIB,
        mac=_MAC,
        disk=disk,
    )
    with launcher.launch(only_reading(plain), None) as guest:
        for message in guest.messages(_START_S):
            if isinstance(message, Hello):
                yield executing(guest)
                return
        raise GuestError("the appliance did not start", console_tail=guest.console_tail())


def look(guest: Executes) -> Inspected:
    """A description of the appliance's disk. The script guest/look prints this description in the appliance.

    Raises GuestError when the appliance ends, or when the output cannot come from this script. Raises TooSlowError
    when reading the output takes too long.
    """
    out, err = io.BytesIO(), io.BytesIO()
    status = guest.execute("look", out, err, _LOOK_S, _MOST_BYTES)
    if status != 0:
        raise GuestError(f"the appliance's look ended with {status}", console_tail=guest.console_tail())
    return examined(out.getvalue())


def fetch(guest: Executes, partition: Partition, path: str, out: BinaryIO, most_bytes: int) -> None:
    """Write the content of the file ``path`` of ``partition`` to ``out``. The script guest/fetch prints the content in
    the appliance. The content comes from a stranger's disk, and is untrusted.

    Raises GuestError when the file cannot be read, or has more than ``most_bytes`` bytes.
    """
    said = io.BytesIO()
    words = shlex.join(("fetch", str(partition.number), path))
    if guest.execute(words, out, said, _FETCH_S, most_bytes) != 0:
        raise GuestError(f"{path} of partition {partition.number} cannot be read", details=last_lines(said))


def tree(guest: Executes, partition: Partition, out: BinaryIO, most_bytes: int) -> None:
    """Write the files of the file system of ``partition`` to ``out``, as a tar archive. The script guest/tree makes this
    archive in the appliance. The archive comes from a stranger's disk, and is untrusted.

    Raises GuestError when the file system cannot be mounted or read, and BadInputError when the archive has more than
    ``most_bytes`` bytes.
    """
    said = io.BytesIO()
    words = shlex.join(("tree", str(partition.number), partition.subvolume))
    try:
        status = guest.execute(words, out, said, _TREE_S, most_bytes)
    except TooMuchSaidError as error:
        raise BadInputError(
            f"the files of partition {partition.number} have more than {most_bytes} bytes together",
            hint="files that share their data (snapshots, copies with --reflink) count each time: remove some of them",
        ) from error
    if status != 0:
        raise GuestError(
            f"the files of partition {partition.number} cannot be read", details=last_lines(said)
        )


def _digest(program: Path) -> str:
    return hashlib.sha256(program.read_bytes()).hexdigest()
