"""Machines of the emulated EC2 that boot what was uploaded, in QEMU."""

from __future__ import annotations

import time

from quickstart.ec2 import machines
from quickstart.ec2.asking import Request, is_answered
from quickstart.ec2.aws import Aws
from quickstart.ec2.emulator.fleet import State
from quickstart.ec2.emulator.hypervisor import Qemu
from quickstart.ec2.emulator.server import Emulator
from quickstart.ec2.images import Waiting
from quickstart.launch.accel import tcg
from quickstart.store.store import Store
from quickstart.volume.emulator import volume_binary
from quickstart.volume.storage import load_model
from tests.contract.machinebox import WEB

BOOT_S = 900.0
PAGE = Request(80, "/")


def qemu(store: Store, storage: str = "local") -> Qemu:
    return Qemu(accelerator=tcg("for a test"), volume=volume_binary(store), storage=load_model(storage))


def wanted_machine(image_id: str, user_data: bytes | None = None) -> machines.Wanted:
    return machines.Wanted(
        image_id=image_id,
        image_name="web",
        root_device="/dev/xvda",
        type="t3.small",
        group_ids=(WEB,),
        user_data=user_data,
    )


def wait_for_answer(aws: Aws, identifier: str, request: Request = PAGE) -> None:
    machine = machines.wait_for_start(aws, identifier, Waiting(poll_s=0.5, limit_s=BOOT_S))
    end_s = time.monotonic() + BOOT_S
    while not is_answered(machine.address, request):
        assert time.monotonic() < end_s, machines.console(aws, identifier)[-4000:]
        time.sleep(0.5)


def settled_console(aws: Aws, identifier: str, until: str = " login:") -> str:
    """The console of a machine that has answered, and then shows ``until``."""
    wait_for_answer(aws, identifier)
    end_s = time.monotonic() + BOOT_S
    while until not in (console := machines.console(aws, identifier)):
        assert time.monotonic() < end_s, console[-4000:]
        time.sleep(0.5)
    return console


def wait_for_end(emulator: Emulator, identifier: str) -> None:
    """Wait until nothing of the machine is left."""
    instance, end_s = emulator.fleet.instances[identifier], time.monotonic() + 60.0
    while instance.state is not State.TERMINATED:
        assert time.monotonic() < end_s
        time.sleep(0.1)
