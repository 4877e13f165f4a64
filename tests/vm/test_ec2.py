"""An AMI of a cloud image with cloud-init, in the emulated EC2: `early = "ask"` by EC2's real protocol."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from quickstart.ec2.asking import Request, request_of
from quickstart.ec2.aws import Aws
from quickstart.ec2.emulator.faults import Trouble
from quickstart.ec2.emulator.server import Emulator
from quickstart.ec2.images import named
from quickstart.ec2.machines import launched
from quickstart.host.progress import Quiet
from quickstart.store.store import Store
from tests.contract.ec2box import emulated, left_in, own
from tests.images.layouts import Layout
from tests.vm.conftest import BUILD_S, quickstart
from tests.vm.ec2machines import PAGE, qemu, settled_console, wait_for_answer, wait_for_end, wanted_machine
from tests.vm.imaging import FAST, PROFILE, image_made

pytestmark = pytest.mark.full
USER_DATA = """\
#cloud-config
# {}
write_files:
- path: /var/www/html/applied.html
  content: applied
"""
KNOWN, UNKNOWN = (USER_DATA.format(word).encode() for word in ("known", "unknown"))
ASKS = PROFILE.replace(
    'early = "always"', f'early = "ask"\nuser_data = ["{hashlib.sha256(KNOWN).hexdigest()}"]'
)
APPLIED = Request(80, "/applied.html")


@dataclass(frozen=True)
class Cloud:
    """An image in the emulated EC2."""

    aws: Aws
    emulator: Emulator
    image_id: str


@pytest.fixture(scope="module")
def cloud(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    place = tmp_path_factory.mktemp("ec2")
    trouble = Trouble(throttled=0.01, unavailable=0.01, unknown_for_s=1.0)
    with (
        pytest.MonkeyPatch.context() as patched,
        image_made(store, place, Layout.CLOUD, ASKS) as made,
        emulated(place, trouble, hypervisor=qemu(store)) as emulator,
    ):
        aws = own(patched, emulator)
        called = quickstart(
            "ami", "create", made.artefact.directory, "--name", "web", "--json", timeout_s=BUILD_S
        )
        assert called.status == 0, called.err
        assert called.result["boot_mode"] == "uefi-preferred"
        image = named(aws, "web")
        assert image is not None
        assert request_of(image.ready) == PAGE
        yield Cloud(aws, emulator, image.id)
        assert quickstart("ami", "delete", "web", "--yes").status == 0
        assert left_in(emulator) == []


@pytest.mark.parametrize(
    ("data", "is_fast"),
    [
        pytest.param(None, True, id="no user data"),
        pytest.param(KNOWN, True, id="user data that the profile knows"),
        pytest.param(UNKNOWN, False, id="other user data"),
    ],
)
def test_the_first_boot_asks_ec2_for_user_data(cloud: Cloud, data: bytes | None, is_fast: bool) -> None:
    with launched(cloud.aws, wanted_machine(cloud.image_id, data), Quiet()) as identifier:
        console = settled_console(cloud.aws, identifier)
        assert (FAST.decode() in console) == is_fast, console
        if data is not None:
            # After a fast start, cloud-init applies it once the machine was handed over.
            wait_for_answer(cloud.aws, identifier, APPLIED)
    wait_for_end(cloud.emulator, identifier)
