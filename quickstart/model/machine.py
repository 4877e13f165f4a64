"""The data class for a machine, which a launcher starts, and the only function that makes a machine."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from quickstart.model import MIB, Network, Readiness
from quickstart.model.words import DiskFormat, Firmware

_HTTP_PORT = 80
# A file of more bytes is no kernel. Debian's have 8 MiB.
KERNEL_BYTES = 256 * MIB


@dataclass(frozen=True)
class NbdSocket:
    """A volume that an NBD server offers on a UNIX socket of the host, as its default export and in raw format."""

    path: Path


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Everything that a launcher needs to start one guest.

    ``disk`` is a file, or a volume of an NBD server. A guest without a disk runs from its initramfs alone. With
    ``snapshot``, writes to the disk are discarded. If ``read_only`` is also set, the guest cannot write to the disk at
    all. For a volume of an NBD server, ``disk_format`` is raw and ``snapshot`` is false. ``uuid`` is the guest's UUID
    in SMBIOS, or empty. ``file_bytes`` lists files with the sizes in bytes that they must have.

    When the host has no space for a write of the guest, QEMU stops the guest until there is space again. With
    ``reports_full_disk``, and with ``snapshot``, the guest gets an error instead (qemu(1), werror).

    With ``firmware``, the machine boots from its disk alone. Then ``kernel``, ``initrds`` and ``cmdline`` are not
    used, and the guest has no launch agent.
    """

    name: str
    memory_mib: int
    kernel: Path
    initrds: tuple[Path, ...]
    cmdline: str
    disk: Path | NbdSocket | None
    disk_format: DiskFormat
    snapshot: bool
    mac: str
    forward_port: int | None
    guest_port: int
    vcpus: int = 1
    uuid: str = ""
    network: Network = Network.CLOSED
    file_bytes: tuple[tuple[Path, int], ...] = ()
    firmware: Firmware | None = None
    read_only: bool = False
    reports_full_disk: bool = False


@dataclass(frozen=True)
class NetworkAccess:
    """The network connections of a guest. ``port``, a port of the host's loopback address, is forwarded to the guest's
    port in the readiness request ``ready``. When ``port`` is None, no port is forwarded. ``network`` says what the
    guest can reach.
    """

    port: int | None = None
    ready: Readiness | None = None
    network: Network = Network.CLOSED


CLOSED = NetworkAccess()


def machine(
    purpose: str,
    *,
    kernel: Path,
    initrds: tuple[Path, ...],
    cmdline: str,
    memory_mib: int,
    mac: str,
    disk: Path | None,
    disk_format: DiskFormat = DiskFormat.RAW,
    keeps_writes: bool = False,
    reports_full_disk: bool = False,
    access: NetworkAccess = CLOSED,
    uuid: str = "",
    file_bytes: tuple[tuple[Path, int], ...] = (),
) -> Machine:
    """The machine for ``purpose``, a word that becomes part of the machine's name (pure). Only this function makes a
    `Machine`.

    The guest's writes to ``disk`` are discarded, unless ``keeps_writes`` is set.
    """
    guest_port = (access.ready.port if access.ready else 0) or _HTTP_PORT
    return Machine(
        name=f"quickstart-{purpose}",
        memory_mib=memory_mib,
        kernel=kernel,
        initrds=initrds,
        cmdline=cmdline.strip(),
        disk=disk,
        disk_format=disk_format,
        snapshot=not keeps_writes,
        reports_full_disk=reports_full_disk,
        mac=mac,
        forward_port=access.port,
        guest_port=guest_port,
        uuid=uuid,
        network=access.network,
        file_bytes=file_bytes,
    )


def on_volume(plain: Machine, volume: NbdSocket) -> Machine:
    """The machine ``plain``, but with a volume of an NBD server as its disk (pure). The NBD server decides whether the
    guest's writes are kept.
    """
    return dataclasses.replace(plain, disk=volume, disk_format=DiskFormat.RAW, snapshot=False)


def only_reading(plain: Machine) -> Machine:
    """The machine ``plain``, but with a disk that it cannot write to (pure). So the host needs no space for writes."""
    return dataclasses.replace(plain, snapshot=True, read_only=True)


def by_firmware(plain: Machine, firmware: Firmware) -> Machine:
    """The machine ``plain``, but booted from its disk by ``firmware`` (pure)."""
    return dataclasses.replace(plain, firmware=firmware)
