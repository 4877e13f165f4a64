"""An artefact's directory with a small disk, and the emulator of EC2, for the tests of `ami`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quickstart.ec2 import upload
from quickstart.ec2.aws import Aws, Patience, Place, connected
from quickstart.ec2.create import Source, Wanted, create
from quickstart.ec2.emulator.account import get_block
from quickstart.ec2.emulator.faults import Trouble
from quickstart.ec2.emulator.fleet import State
from quickstart.ec2.emulator.hardware import Hypervisor
from quickstart.ec2.emulator.server import Emulator, Settings, serving
from quickstart.ec2.emulator.signature import Key
from quickstart.ec2.images import Waiting
from quickstart.errors import UnavailableError
from quickstart.host.progress import Quiet
from quickstart.host.unchanged import seen
from quickstart.model import MIB
from quickstart.model.words import BootMode

ROOT_AT_BYTES = 4 * MIB
DISK_MIB, ROOT_MIB = 132, 127
REGION = "eu-central-1"
# No test waits longer than it has to.
PATIENCE = Patience(tries=14, base_s=0.01, most_s=0.2)
WAITING = Waiting(poll_s=0.02, limit_s=20.0, unknown_s=2.0)


def made_source(place: Path) -> Source:
    """A disk of 132 MiB, whose ext4 has a file of 3 MiB and many holes."""
    out, tree, root = place / "out", place / "tree", place / "root.raw"
    out.mkdir()
    tree.mkdir()
    (tree / "data").write_bytes(os.urandom(3 * MIB))
    run("mkfs.ext4", "-q", "-F", "-d", tree, root, f"{ROOT_MIB}M")
    disk = out / "disk.raw"
    with disk.open("xb") as file:
        file.truncate(DISK_MIB * MIB)
        file.write(b"boot code")
    run("dd", f"if={root}", f"of={disk}", "bs=1M", f"seek={ROOT_AT_BYTES // MIB}", "conv=notrunc,sparse")
    (out / "manifest.json").write_text('{"schema": 1}\n')
    return Source(out=out, disk=disk, seen=seen(disk), root_at_bytes=ROOT_AT_BYTES, profile="nginx")


def run(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True, timeout=120)


def wanted(source: Source, name: str = "web 1", workers: int = 8) -> Wanted:
    return Wanted(
        name=name, source=source, boot_mode=BootMode.UEFI_PREFERRED, workers=workers, waiting=WAITING
    )


@contextmanager
def emulated(
    place: Path,
    trouble: Trouble | None = None,
    policy: Mapping[str, object] | None = None,
    hypervisor: Hypervisor | None = None,
) -> Iterator[Emulator]:
    directory = place / "emulator"
    directory.mkdir(exist_ok=True)
    settings = Settings(
        directory=directory,
        region=REGION,
        trouble=trouble or Trouble(),
        policy=policy,
        hypervisor=hypervisor,
    )
    with serving(settings) as emulator:
        yield emulator


def environment(emulator: Emulator, key: Key | None = None) -> dict[str, str]:
    """The environment of a client, without anything of the user's own."""
    key = key or emulator.key
    return {
        "AWS_ACCESS_KEY_ID": key.id,
        "AWS_SECRET_ACCESS_KEY": key.secret,
        "AWS_ENDPOINT_URL": emulator.url,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def client(emulator: Emulator, workers: int = 8) -> Aws:
    """A client in this process, whose environment has the words of `environment`."""
    return connected(Place(region=REGION, endpoint=emulator.url), workers, PATIENCE)


def own(monkeypatch: pytest.MonkeyPatch, emulator: Emulator) -> Aws:
    for name, value in environment(emulator).items():
        monkeypatch.setenv(name, value)
    return client(emulator)


def check_whole(emulator: Emulator, snapshot_id: str, disk: Path, numbers: tuple[int, ...]) -> None:
    """The snapshot has just these blocks, and each of them is the disk's."""
    snapshot = emulator.account.snapshots[snapshot_id]
    assert sorted(snapshot.digests) == list(numbers)
    with disk.open("rb") as file:
        for number in numbers:
            assert get_block(snapshot, number) == upload.block_at(file.fileno(), number)


def left_in(emulator: Emulator) -> list[str]:
    """Everything in the account that costs money."""
    machines = [each.id for each in emulator.fleet.instances.values() if each.state is not State.TERMINATED]
    return [*emulator.account.images, *emulator.account.snapshots, *machines, *emulator.fleet.volumes]


def leftovers(out: Path) -> list[str]:
    return sorted(path.name for path in out.parent.iterdir() if ".ami-" in path.name)


class Stopped(BaseException):
    """As SIGKILL would, this passes all handlers of errors."""


def refusing(monkeypatch: pytest.MonkeyPatch, operation: str, error: Exception) -> None:
    """The operation fails with ``error`` in place of being called."""
    whole = Aws.call

    def call(self: Aws, service: str, name: str, **parameters: Any) -> dict[str, Any]:
        if name == operation:
            raise error
        return whole(self, service, name, **parameters)

    monkeypatch.setattr(Aws, "call", call)


def interrupted(monkeypatch: pytest.MonkeyPatch, aws: Aws, source: Source) -> None:
    """A call that ends before it completes the snapshot, and can be continued."""
    with monkeypatch.context() as patched:
        refusing(patched, "complete_snapshot", UnavailableError("no answer", code=""))
        with pytest.raises(UnavailableError):
            create(aws, wanted(source), Quiet(), resume=False)
