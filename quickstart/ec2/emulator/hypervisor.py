"""Run the machines of the emulated EC2 in QEMU.

A machine is a PC with the names of Amazon's in its SMBIOS, an NVMe disk behind the volume emulator, and a network of its
own: a network namespace, in which only the machine and its metadata service are. So a machine reaches neither the host
nor another network. The open ports of its security group are connected to its public address, which is one of the
host's loopback interface.

QEMU runs in the same jail as every guest of QuickStart (launch/jail.py). It has no device for Amazon's network card
(ENA), so the machine has a virtio card in its place.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from quickstart.ec2.emulator import metadata, relay
from quickstart.ec2.emulator.hardware import CONSOLE_BYTES, Hardware
from quickstart.errors import VolumeError
from quickstart.host import door
from quickstart.host.namespaces import enter_own_network
from quickstart.host.workspace import workspace
from quickstart.launch import jail
from quickstart.launch.accel import Accelerator
from quickstart.launch.arguments import flash_arguments
from quickstart.launch.drain import Drained, drained, hand_over
from quickstart.model.words import Firmware
from quickstart.volume.emulator import served
from quickstart.volume.storage import StorageModel

# The ports of the machine are these of 127.0.0.1 in its network namespace.
_INNER_PORT = 20000
_CONSOLE_SET = 1
_VENDOR = "Amazon EC2"


@dataclass(frozen=True, kw_only=True)
class Qemu:
    """How machines are started. ``volume`` is the program of the volume emulator, and ``storage`` the storage model of
    all volumes.
    """

    accelerator: Accelerator
    volume: Path
    storage: StorageModel

    @contextmanager
    def __call__(self, hardware: Hardware) -> Iterator[QemuMachine]:
        """Run a machine during the ``with`` block. The calling thread is in another network namespace afterwards, so it
        must be a thread for this machine alone.
        """
        disk = hardware.disk()
        jail.demand_room((), hardware.type.memory_mib)
        with ExitStack() as stack:
            place = stack.enter_context(workspace("quickstart-instance-"))
            # Both take a user, which is marked as taken in the host's network namespace (identity.py).
            volume = stack.enter_context(served(self.volume, disk, self.storage))
            cell = stack.enter_context(jail.made_jail(place, kvm=self.accelerator.name == "kvm"))
            listeners = stack.enter_context(relay.listening(hardware.public_address, hardware.open_ports))
            said = stack.enter_context(drained(place / "console.log", place / "qemu.log"))
            enter_own_network(metadata.ADDRESS)
            stack.enter_context(metadata.serving(hardware.metadata))
            stack.enter_context(relay.relaying(listeners, inner_ports(hardware)))
            process = stack.enter_context(self._started(hardware, cell, said, volume.socket))
            yield QemuMachine(process, said)

    @contextmanager
    def _started(
        self, hardware: Hardware, cell: jail.Jail, said: Drained, volume: Path
    ) -> Iterator[door.Process]:
        files = jail.put_firmware(cell) if hardware.firmware is Firmware.UEFI else None
        with ExitStack() as lent:
            disk = lent.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            try:
                disk.connect(str(volume))
            except OSError as error:
                raise VolumeError(f"the volume cannot be reached: {error.strerror}") from error
            words = qemu_arguments(hardware, self.accelerator, files, disk.fileno(), said.writers[0])
            started = door.background(
                jail.limited(words, jail.largest_file(None, "")),
                output=said.writers[1],
                identity=cell.identity,
                pass_fds=(disk.fileno(), said.writers[0]),
                env=cell.environment,
                cwd=cell.directory,
            )
            process = lent.enter_context(started)
            hand_over(said)
            disk.close()
            yield process


@dataclass(frozen=True)
class QemuMachine:
    """A machine in QEMU."""

    process: door.Process
    said: Drained

    def is_running(self) -> bool:
        return not door.has_ended(self.process, 0)

    def console(self) -> bytes:
        self.said.drain.catch_up()
        return self.said.logs[0].tail(CONSOLE_BYTES)


def inner_ports(hardware: Hardware) -> Mapping[int, int]:
    """The ports of 127.0.0.1, in the machine's network namespace, that stand for the machine's open ports."""
    return {port: _INNER_PORT + number for number, port in enumerate(hardware.open_ports)}


def qemu_arguments(
    hardware: Hardware, accelerator: Accelerator, firmware: tuple[Path, Path] | None, disk: int, console: int
) -> tuple[str, ...]:
    """QEMU's arguments for a machine (pure). ``firmware`` are the files of UEFI in the jail, and None for a BIOS.
    ``disk`` is a connection to the volume's NBD server, and ``console`` the descriptor of the console's log. All values
    come from the emulator itself, so none has a comma.

    In Amazon's machines, the network card is ens5 (systemd.net-naming-scheme(7)). A card has the number of its slot in
    this name only on QEMU's machine pc, and not on q35.
    """
    kind = hardware.type
    return (
        *("-name", hardware.instance_id, "-M", "pc", *accelerator.qemu, *jail.SANDBOX),
        *("-smp", str(kind.vcpus), "-m", str(kind.memory_mib)),
        *("-nodefaults", "-no-user-config", "-display", "none"),
        *_smbios(hardware),
        *(flash_arguments(*firmware) if firmware else ()),
        *("-add-fd", f"fd={console},set={_CONSOLE_SET}"),
        *("-chardev", f"null,id=console,logfile=/dev/fdset/{_CONSOLE_SET},logappend=on"),
        *("-serial", "chardev:console"),
        *("-drive", f"file.driver=nbd,file.server.type=fd,file.server.str={disk},format=raw,if=none,id=root"),
        *("-device", f"nvme,drive=root,serial={hardware.volume_id.replace('-', '')},addr=4,bootindex=0"),
        *("-netdev", _network(hardware)),
        *("-device", f"virtio-net-pci,netdev=net,mac={hardware.mac},addr=5,romfile="),
    )


def _smbios(hardware: Hardware) -> tuple[str, ...]:
    """What `dmidecode` shows in a machine of Amazon's Nitro system."""
    rows = (
        f"type=0,vendor={_VENDOR},version=1.0",
        f"type=1,manufacturer={_VENDOR},product={hardware.type.name},serial={hardware.uuid},uuid={hardware.uuid}",
        f"type=2,manufacturer={_VENDOR},asset={hardware.instance_id}",
        f"type=3,manufacturer={_VENDOR},asset={_VENDOR}",
    )
    return tuple(word for row in rows for word in ("-smbios", row))


def _network(hardware: Hardware) -> str:
    """The network 172.31.0.0/20, as the default subnet of an account has it. What is not in it is looked for in the
    namespace, where only the metadata service is.
    """
    forwards = (f"hostfwd=tcp:127.0.0.1:{inner}-:{port}" for port, inner in inner_ports(hardware).items())
    words = (
        *("user", "id=net", "ipv6=off", "net=172.31.0.0/20", "host=172.31.0.1", "dns=172.31.0.2"),
        *(f"dhcpstart={hardware.private_address}", f"domainname={hardware.domain}", *forwards),
    )
    return ",".join(words)
