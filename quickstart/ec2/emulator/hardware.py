"""What a machine of the emulator is started from, and what starts it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from quickstart.ec2.emulator.catalogue import InstanceType
from quickstart.ec2.emulator.metadata import Metadata
from quickstart.model.words import Firmware

# The addresses of 172.31.0.0/20, the default network, that a machine may have.
_FIRST_ADDRESS, _IN_A_ROW, _ADDRESSES = 15, 240, 3600
# Public addresses are of 127.16.0.0 to 127.239.255.255. An emulator begins with one of these many rows.
_FIRST_BLOCK, _BLOCKS, _ROWS = 16, 224, 256
PUBLIC_ROWS = _BLOCKS * _ROWS
# Amazon EC2 User Guide, "EC2 instance console output".
CONSOLE_BYTES = 64 * 1024


@dataclass(frozen=True)
class Address:
    """The addresses of a machine, by its number. ``row`` is the first row of public addresses, which each emulator
    chooses by chance: several emulators on one host must not have the same ones.
    """

    number: int
    row: int

    @property
    def private(self) -> str:
        high, low = divmod(self.number % _ADDRESSES, _IN_A_ROW)
        return f"172.31.{high}.{_FIRST_ADDRESS + low}"

    @property
    def public(self) -> str:
        rows, low = divmod(self.number, _IN_A_ROW)
        block, row = divmod((self.row + rows) % PUBLIC_ROWS, _ROWS)
        return f"127.{_FIRST_BLOCK + block}.{row}.{_FIRST_ADDRESS + low}"


def mac_of(instance_id: str) -> str:
    """A MAC address that is locally administered."""
    digits = hashlib.sha256(instance_id.encode()).hexdigest()
    return ":".join(("02", *(digits[at : at + 2] for at in range(0, 10, 2))))


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """All that a machine is started from. ``disk`` makes the file with the content of its root volume."""

    instance_id: str
    volume_id: str
    type: InstanceType
    firmware: Firmware
    mac: str
    uuid: str
    private_address: str
    public_address: str
    domain: str
    open_ports: tuple[int, ...]
    metadata: Metadata
    disk: Callable[[], Path]


class Machine(Protocol):
    """A machine that runs. Several threads use it."""

    def is_running(self) -> bool: ...

    def console(self) -> bytes:
        """The last `CONSOLE_BYTES` bytes of the machine's console."""
        ...


# The machine runs during the ``with`` block.
Hypervisor = Callable[[Hardware], AbstractContextManager[Machine]]
