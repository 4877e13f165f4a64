"""An artefact's directory with a small disk, and the emulator of EC2, for the tests of `ami`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from quickstart.ec2.aws import Aws, Patience, Place, connected
from quickstart.ec2.create import Source, Wanted
from quickstart.ec2.emulator.faults import Trouble
from quickstart.ec2.emulator.server import Emulator, Settings, serving
from quickstart.ec2.emulator.signature import Key
from quickstart.ec2.images import Waiting
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
    place: Path, trouble: Trouble | None = None, policy: Mapping[str, object] | None = None
) -> Iterator[Emulator]:
    directory = place / "emulator"
    directory.mkdir(exist_ok=True)
    settings = Settings(directory=directory, region=REGION, trouble=trouble or Trouble(), policy=policy)
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
