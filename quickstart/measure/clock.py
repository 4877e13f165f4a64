"""Define the clocks of the bench, and the machine sizes on each clock (docs/users/times.md).

With the clock ``virtual``, QEMU counts instructions (TCG, -icount). The time in the guest is the number of instructions
× 2^shift ns, plus the time in which the guest is idle. So a boot takes the same time in the guest, whatever else the
host does. With the clock ``wall``, QEMU uses TCG and the host's clock. With the clock ``kvm``, QEMU uses KVM and the
host's clock. The clock ``kvm`` is available only if a trial has shown that a guest boots with KVM.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from quickstart.errors import BadInputError, HostLacksError
from quickstart.launch import accel
from quickstart.launch.accel import Accelerator
from quickstart.measure.results import CLOCKS, CLOUD_CLOCKS, SIZES
from quickstart.model.machine import Machine
from quickstart.store.store import Store

_MEMORY_MIB = {"small": 1740, "medium": 3840}
# Nanoseconds per instruction as a power of two: medium has twice the CPU of small (paper section 4).
_SHIFT = {"small": 1, "medium": 0}
# On the other clocks, the host's CPU has only one speed. So a medium machine has two vCPUs.
_VCPUS = {"small": 1, "medium": 2}
# The CPU has no ERMS and FSRM. With them, the kernel uses `rep movsb` and `rep stosb`, which count an instruction for
# each byte, although a real CPU moves 32 and more bytes in a cycle. Clearing pages would then be a tenth of a boot.
# Without them, the kernel uses loops of 8 bytes (arch/x86/lib/clear_page_64.S).
_VIRTUAL_CPU = "max,-erms,-fsrm"
# Apart from its disk, the guest gets only these from outside. They are the same in every virtual run. The RTC counts
# virtual time, too.
_VIRTUAL_RTC = "base=2027-01-01T00:00:00,clock=vm"
_VIRTUAL_SEED = "1"


@dataclass(frozen=True)
class Clock:
    """A clock for machines of one size. ``name`` is one of results.CLOCKS. ``memory_mib`` and ``vcpus`` are the memory
    and the vCPUs of a machine of this size on this clock.
    """

    name: str
    accelerator: Accelerator
    memory_mib: int
    vcpus: int


def virtual(size: str) -> Clock:
    """The virtual clock for a machine size. The machine has one vCPU, because QEMU does not start a second vCPU with
    -icount.
    """
    _known("size", size, SIZES)
    qemu = (
        *("-accel", "tcg,thread=single,tb-size=512", "-icount", f"shift={_SHIFT[size]},sleep=on,align=off"),
        *("-cpu", _VIRTUAL_CPU, "-rtc", _VIRTUAL_RTC, "-seed", _VIRTUAL_SEED),
    )
    accelerator = Accelerator("tcg", qemu, "instructions are counted")
    return Clock("virtual", accelerator, _MEMORY_MIB[size], 1)


def instruction_ns(size: str) -> int:
    """The time in ns that an instruction takes on the virtual clock."""
    return 1 << _SHIFT[size]


def clock_of(name: str, size: str, kernel: Path, store: Store) -> Clock:
    """The clock ``name`` for a machine size. ``kernel`` is the kernel of the guest with which the function tries KVM.

    Raises BadInputError for an unknown size, and for a clock that no machine in QEMU has. Raises HostLacksError for the
    clock ``kvm`` when no guest boots with KVM.
    """
    _known("clock", name, tuple(each for each in CLOCKS if each not in CLOUD_CLOCKS))
    _known("size", size, SIZES)
    if name == "virtual":
        return virtual(size)
    accelerator = accel.tcg("a guest by the host's clock")
    if name == "kvm":
        accelerator = accel.choose(kernel, store)
        if accelerator.name != "kvm":
            raise HostLacksError(
                f"the clock kvm needs KVM: {accelerator.why}", hint="--clock virtual or wall"
            )
    return Clock(name, accelerator, _MEMORY_MIB[size], _VCPUS[size])


def sized(plain: Machine, clock: Clock) -> Machine:
    """The machine ``plain`` with the memory and the vCPUs of ``clock`` (pure)."""
    return dataclasses.replace(plain, memory_mib=clock.memory_mib, vcpus=clock.vcpus)


def _known(what: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        raise BadInputError(f"there is no {what} {word!r}", hint=f"known: {', '.join(known)}")
