"""A stand-in for the emulator's hypervisor. Its machines boot nothing, and run until a test ends them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from quickstart.ec2.aws import Aws
from quickstart.ec2.create import Created
from quickstart.ec2.emulator.hardware import Hardware
from quickstart.ec2.emulator.server import Emulator
from quickstart.errors import GuestError

WEB = "sg-00000000000000002"
CONSOLE = b"web login: "
LIMIT_S = 20.0


@dataclass
class StandIn:
    """A machine that does nothing. It runs until ``off`` is set."""

    hardware: Hardware
    said: bytes = CONSOLE
    off: threading.Event = field(default_factory=threading.Event)

    def is_running(self) -> bool:
        return not self.off.is_set()

    def console(self) -> bytes:
        return self.said


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class StandIns:
    """Starts stand-ins. Each serves a page at port 80 of its public address, if ``serves``. A machine of the type
    ``fails`` cannot start, and one of the type ``ends`` ends at once. ``said`` is the console of the next machines.
    """

    def __init__(
        self, *, serves: bool = False, fails: str = "", ends: str = "", said: bytes = CONSOLE
    ) -> None:
        self.said = said
        self.machines: dict[str, StandIn] = {}
        self.seen: list[Hardware] = []
        self.serves, self.fails, self.ends = serves, fails, ends

    @contextmanager
    def __call__(self, hardware: Hardware) -> Iterator[StandIn]:
        if hardware.type.name == self.fails:
            raise GuestError("QEMU did not start")
        machine = StandIn(hardware, self.said)
        if hardware.type.name == self.ends:
            machine.off.set()
        self.machines[hardware.instance_id] = machine
        self.seen.append(hardware)
        with ExitStack() as stack:
            if self.serves:
                stack.enter_context(_serving(hardware.public_address))
            yield machine
        del self.machines[hardware.instance_id]


@contextmanager
def _serving(address: str) -> Iterator[None]:
    with ThreadingHTTPServer((address, 80), _Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@dataclass(frozen=True)
class Account:
    """A client, the emulator that it calls, and an image there, which was made of ``disk``."""

    aws: Aws
    emulator: Emulator
    standing: StandIns
    image: Created
    disk: Path

    def run(self, **others: Any) -> dict[str, Any]:
        given: dict[str, Any] = {
            "ImageId": self.image.image_id,
            "InstanceType": "t3.micro",
            "MinCount": 1,
            "MaxCount": 1,
            "SecurityGroupIds": [WEB],
        }
        return self.aws.call("ec2", "run_instances", **(given | others))

    def instance(self, identifier: str) -> dict[str, Any]:
        answer = self.aws.call("ec2", "describe_instances", InstanceIds=[identifier])
        found: dict[str, Any] = answer["Reservations"][0]["Instances"][0]
        return found

    def wait(self, identifier: str, state: str) -> dict[str, Any]:
        end_s = time.monotonic() + LIMIT_S
        while (found := self.instance(identifier))["State"]["Name"] != state:
            assert time.monotonic() < end_s, found
            time.sleep(0.02)
        return found


def id_of(answer: dict[str, Any]) -> str:
    """The id of the only machine that RunInstances has started."""
    (instance,) = answer["Instances"]
    return str(instance["InstanceId"])
