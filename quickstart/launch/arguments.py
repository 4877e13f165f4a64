"""Make QEMU's command line for a machine. All functions of this module are pure. Each value on the command line is a
number, one of a few words, or a text without commas, so no value can add an option.

QEMU splits the value of an option at commas (qemu(1)). An untrusted manifest must never be able to add the option
`guestfwd=`, which runs a program on the host. So this module refuses every value of the wrong kind, even if another
module has already checked the value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from quickstart.errors import BadInputError
from quickstart.launch.accel import Accelerator
from quickstart.launch.archive import PORT_NAME
from quickstart.launch.jail import SANDBOX
from quickstart.model import Network
from quickstart.model.machine import Machine, NbdSocket
from quickstart.model.words import Firmware

ROOT = "root"
_FORMATS = ("raw", "qcow2")
_MAC = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_NAME_LENGTH = 64
# COMMAND_LINE_SIZE of x86 (asm/setup.h), with the zero at the end. The kernel would not see the rest of a longer
# line.
_CMDLINE_BYTES = 2048
_MEMORY_MIB = 1 << 24
_VCPUS = 1024
_PORTS = 65535
# The numbers of the sets of descriptors for the root volume, and for the console's log (qemu(1), -add-fd).
_DISK_SET, _CONSOLE_SET = 1, 2


@dataclass(frozen=True)
class Files:
    """The files that QEMU uses for a machine. ``disk`` is the descriptor of the disk. ``boot`` are names of files in
    QEMU's jail: the kernel and the initramfs or, for a machine with UEFI, the firmware's code and variables. For a
    machine with a BIOS, ``boot`` is empty, because QEMU has its own BIOS.
    """

    boot: tuple[Path, ...]
    disk: int | None


@dataclass(frozen=True)
class Channels:
    """The descriptors of the channels to QEMU. ``monitor`` and ``agent`` are connected sockets for QEMU's monitor and
    for the launch agent. ``console`` is the listening socket of the console, and ``console_log`` is the console's log.
    """

    monitor: int
    agent: int
    console: int
    console_log: int


def machine_arguments(machine: Machine, accelerator: Accelerator, files: Files) -> tuple[str, ...]:
    """QEMU's arguments for ``machine``. These arguments give the guest no channel to the host except network
    and disk.

    Because of fixed PCI addresses, the network interface has the same predictable name in every boot
    (systemd.net-naming-scheme(7)). Raises BadInputError when a field of ``machine`` is out of its range or does not
    have the required form. An example is a MAC address that QEMU would read as further options.
    """
    uuid = ("-uuid", _matching("uuid", machine.uuid, _UUID)) if machine.uuid else ()
    return (
        *("-name", _name(machine.name), "-M", "q35", *accelerator.qemu, *SANDBOX),
        *("-smp", str(_number("vcpus", machine.vcpus, 1, _VCPUS))),
        *("-m", str(_number("memory_mib", machine.memory_mib, 1, _MEMORY_MIB))),
        *uuid,
        *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
        *_boot_arguments(machine, files.boot),
        *_disk_arguments(machine, files.disk),
        *("-netdev", _network(machine)),
        *("-device", f"virtio-net-pci,netdev=net,mac={_matching('mac', machine.mac, _MAC)},addr=3,romfile="),
    )


def channel_arguments(channels: Channels) -> tuple[str, ...]:
    """QEMU's arguments for the channels between QEMU and us. QEMU gets the channels as descriptors, so no
    other user can open them by name.
    """
    log = f"logfile=/dev/fdset/{_CONSOLE_SET},logappend=on"
    return (
        # A client that connects to the socket uses the guest's first serial line. The log has all output of the line,
        # with or without a client.
        *("-add-fd", f"fd={channels.console_log},set={_CONSOLE_SET}"),
        *("-chardev", f"socket,id=console,fd={channels.console},server=on,wait=off,{log}"),
        *("-serial", "chardev:console"),
        *("-chardev", f"socket,id=qmp,fd={channels.monitor}", "-mon", "chardev=qmp,mode=control"),
        *("-chardev", f"socket,id=agent,fd={channels.agent}"),
        *("-device", "virtio-serial-pci,addr=5"),
        *("-device", f"virtserialport,chardev=agent,name={PORT_NAME}"),
    )


def named_as_the_host_does(text: str, machine: Machine) -> str:
    """QEMU's message ``text`` with the disk's path. QEMU itself names the disk by a descriptor, and this function
    replaces QEMU's name by the path.
    """
    return text.replace(f"/dev/fdset/{_DISK_SET}", str(machine.disk))


def _boot_arguments(machine: Machine, files: tuple[Path, ...]) -> tuple[str, ...]:
    match machine.firmware, files:
        case None, (kernel, initrd):
            return ("-kernel", str(kernel), "-initrd", str(initrd), "-append", _cmdline(machine.cmdline))
        case Firmware.UEFI, (code, variables):
            return flash_arguments(code, variables)
        case Firmware.BIOS, ():
            return ()
    raise _refused("firmware", machine.firmware)


def flash_arguments(code: Path, variables: Path) -> tuple[str, ...]:
    """QEMU's arguments for UEFI. ``code`` and ``variables`` are the firmware's files in the jail."""
    flash = "if=pflash,format=raw"
    return (
        *("-drive", f"{flash},unit=0,readonly=on,file={code}"),
        *("-drive", f"{flash},unit=1,file={variables}"),
    )


def _disk_arguments(machine: Machine, fd: int | None) -> tuple[str, ...]:
    if machine.disk is None or fd is None:
        return ()
    if isinstance(machine.disk, NbdSocket):
        drive = f"file.driver=nbd,file.server.type=fd,file.server.str={fd},{_drive('raw')}"
        words: tuple[str, ...] = ("-drive", drive)
    else:
        snapshot = ",read-only=on" if machine.read_only else ",snapshot=on" if machine.snapshot else ""
        # Otherwise, QEMU would open the disk once for reading and once for writing, and each needs a descriptor.
        drive = f"file=/dev/fdset/{_DISK_SET},{_drive(machine.disk_format)},auto-read-only=off{snapshot}"
        words = ("-add-fd", f"fd={fd},set={_DISK_SET}", "-drive", drive)
    # A firmware would otherwise look for a boot loader elsewhere, too, and wait for a network.
    first = ",bootindex=0" if machine.firmware else ""
    # Nobody gives more space to a guest whose writes are discarded, or that a build waits for.
    full = ",werror=report" if machine.snapshot or machine.reports_full_disk else ""
    # Each request of the guest must be one request to the volume, but by default, QEMU merges neighbouring requests.
    return (*words, "-device", f"virtio-blk-pci,drive={ROOT},addr=4,request-merging=off{full}{first}")


def _drive(disk_format: str) -> str:
    if disk_format not in _FORMATS:
        raise _refused("disk_format", disk_format)
    return f"format={disk_format},if=none,id={ROOT}"


def _network(machine: Machine) -> str:
    """QEMU's argument for the user-mode network. In a closed network, the guest can reach no other machine. A
    forwarded port is open on this host's loopback address, even if the network is closed.
    """
    closed = "off" if machine.network is Network.OPEN else "on"
    words = f"user,id=net,restrict={closed}"
    if machine.forward_port is None:
        return words
    port = _number("forward_port", machine.forward_port, 1, _PORTS)
    guest_port = _number("guest_port", machine.guest_port, 1, _PORTS)
    return f"{words},hostfwd=tcp:127.0.0.1:{port}-:{guest_port}"


def _name(name: str) -> str:
    """The machine's name for display. Every character except ASCII letters, digits, dots, dashes and
    underscores becomes an underscore.
    """
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:_NAME_LENGTH]


def _cmdline(cmdline: str) -> str:
    try:
        encoded = cmdline.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise _refused("cmdline", ascii(cmdline)) from error
    if len(encoded) >= _CMDLINE_BYTES:
        raise BadInputError(
            f"the kernel's command line has {len(encoded)} bytes; at most {_CMDLINE_BYTES - 1} are read"
        )
    if "\0" in cmdline:
        raise _refused("cmdline", cmdline)
    return cmdline


def _number(what: str, value: int, least: int, most: int) -> int:
    # JSON has no types that a dataclass would ask for; and True is an int.
    if type(value) is not int or not least <= value <= most:
        raise _refused(what, value)
    return value


def _matching(what: str, value: str, pattern: re.Pattern[str]) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise _refused(what, value)
    return value


def _refused(what: str, value: object) -> BadInputError:
    # str() refuses an integer of thousands of digits.
    word = (
        f"a number of {value.bit_length()} bits"
        if isinstance(value, int) and value.bit_length() > 64
        else value
    )
    return BadInputError(
        f"the machine's {what} cannot be {str(word)[:80]!r}", hint="is OUT what a build made?"
    )
