"""The machines (instances) of the emulated account, and their volumes: what they are, and how they come and go."""

from __future__ import annotations

import enum
import secrets
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from quickstart.ec2.emulator.account import Account
from quickstart.ec2.emulator.catalogue import InstanceType
from quickstart.ec2.emulator.faults import ApiError
from quickstart.ec2.emulator.hardware import PUBLIC_ROWS, Address, Hardware, Hypervisor, Machine
from quickstart.ec2.emulator.orders import Order
from quickstart.errors import QuickStartError

# EC2 keeps showing a terminated machine for about an hour.
_SHOWN_S = 3600.0
_LOOK_S = 0.1

_BY_USER = ("Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown")
_BY_ITSELF = (
    "Client.InstanceInitiatedShutdown",
    "Client.InstanceInitiatedShutdown: Instance initiated shutdown",
)


class State(enum.Enum):
    """The state of a machine, with EC2's number for it (Amazon EC2 API Reference, InstanceState)."""

    PENDING = "pending", 0
    RUNNING = "running", 16
    SHUTTING_DOWN = "shutting-down", 32
    TERMINATED = "terminated", 48
    STOPPED = "stopped", 80

    @property
    def word(self) -> str:
        return self.value[0]

    @property
    def code(self) -> int:
        return self.value[1]


@dataclass(kw_only=True)
class Volume:
    """A volume of the account, made of a snapshot."""

    id: str
    size_gib: int
    kind: str
    snapshot_id: str
    instance_id: str | None
    device: str
    is_deleted_with_instance: bool
    tags: dict[str, str]
    created: datetime
    began_at_s: float


@dataclass(kw_only=True)
class Instance:
    """A machine of the account. ``doomed`` is set when it has to end."""

    id: str
    reservation_id: str
    order: Order
    hardware: Hardware
    volume_id: str
    tags: dict[str, str]
    launched: datetime
    began_at_s: float
    state: State = State.PENDING
    reason: tuple[str, str] = ("", "")
    ended_at_s: float | None = None
    console: bytes = b""
    machine: Machine | None = None
    doomed: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None


class Fleet:
    """The machines and volumes of an account. A machine has a thread of its own. The account's lock guards everything."""

    def __init__(self, account: Account, hypervisor: Hypervisor | None, most_vcpus: int) -> None:
        self.account = account
        self.most_vcpus = most_vcpus
        self._hypervisor = hypervisor
        self._numbers, self._row = 0, secrets.randbelow(PUBLIC_ROWS)
        self.instances: dict[str, Instance] = {}
        self.volumes: dict[str, Volume] = {}

    def check_room(self, wanted: int, kind: InstanceType) -> None:
        """Raise ApiError when the account may not have ``wanted`` further machines of this type."""
        if self._hypervisor is None:
            raise ApiError("UnsupportedOperation", "This emulator starts no machines.")
        running = sum(each.hardware.type.vcpus for each in self.instances.values() if each.ended_at_s is None)
        if running + wanted * kind.vcpus > self.most_vcpus:
            raise ApiError(
                "VcpuLimitExceeded",
                f"You have requested more vCPU capacity than your current vCPU limit of {self.most_vcpus} allows.",
            )

    def next_address(self) -> Address:
        self._numbers += 1
        return Address(self._numbers, self._row)

    def add(self, instance: Instance, volume: Volume) -> None:
        """Begin a machine."""
        self.instances[instance.id] = instance
        self.volumes[volume.id] = volume
        thread = threading.Thread(target=self._live, args=(instance,), name=instance.id, daemon=True)
        instance.thread = thread
        thread.start()

    def instance(self, identifier: str) -> Instance:
        """The machine, as EC2 sees it. Raises ApiError when it is not known, or not yet."""
        found = self.instances.get(identifier)
        if found is None or not self.is_shown(found):
            raise ApiError("InvalidInstanceID.NotFound", f"The instance ID '{identifier}' does not exist")
        return found

    def volume(self, identifier: str) -> Volume:
        found = self.volumes.get(identifier)
        if found is None or not self.account.is_known(found.began_at_s):
            raise ApiError("InvalidVolume.NotFound", f"The volume '{identifier}' does not exist.")
        return found

    def is_forgotten(self, instance: Instance) -> bool:
        """Whether EC2 no longer shows the machine, because it was terminated long ago."""
        if instance.state is not State.TERMINATED or instance.ended_at_s is None:
            return False
        return self.account.now() > instance.ended_at_s + _SHOWN_S

    def is_shown(self, instance: Instance) -> bool:
        return self.account.is_known(instance.began_at_s) and not self.is_forgotten(instance)

    def terminate(self, instance: Instance) -> None:
        """Switch the machine off for ever. A machine that is terminated already stays as it is."""
        if instance.state is State.STOPPED:
            self._ended(instance, State.TERMINATED, _BY_USER)
        elif instance.state in (State.PENDING, State.RUNNING):
            instance.state, instance.reason = State.SHUTTING_DOWN, _BY_USER
            instance.doomed.set()

    def close(self) -> None:
        """End all machines, and wait until nothing of them runs any more."""
        for instance in self._all():
            instance.doomed.set()
        for instance in self._all():
            if instance.thread is not None:
                instance.thread.join()

    def _all(self) -> Iterable[Instance]:
        with self.account.lock:
            return tuple(self.instances.values())

    def _live(self, instance: Instance) -> None:
        """The life of a machine, in its own thread."""
        state, reason = State.TERMINATED, _BY_ITSELF
        try:
            if self._hypervisor is not None:
                with self._hypervisor(instance.hardware) as machine:
                    self._run(instance, machine)
            with self.account.lock:
                if instance.doomed.is_set():
                    reason = _BY_USER
                elif instance.order.stays:
                    state = State.STOPPED
        except (QuickStartError, OSError) as error:
            reason = ("Server.InternalError", f"Server.InternalError: {error}")
        finally:
            with self.account.lock:
                self._ended(instance, state, reason)

    def _run(self, instance: Instance, machine: Machine) -> None:
        with self.account.lock:
            instance.machine = machine
            if not instance.doomed.is_set():
                instance.state = State.RUNNING
        while machine.is_running() and not instance.doomed.wait(_LOOK_S):
            pass
        console = machine.console()
        with self.account.lock:
            instance.machine, instance.console = None, console

    def _ended(self, instance: Instance, state: State, reason: tuple[str, str]) -> None:
        instance.machine = None
        instance.state, instance.reason = state, reason
        instance.ended_at_s = self.account.now()
        volume = self.volumes.get(instance.volume_id)
        if volume is not None and state is State.TERMINATED:
            volume.instance_id = None
            if volume.is_deleted_with_instance:
                del self.volumes[volume.id]
