"""What the emulated account has: snapshots with their blocks, and images."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from quickstart.ec2.emulator.faults import ApiError, Trouble

ACCOUNT_ID = "000000000000"
BLOCK_BYTES = 512 * 1024
# Amazon EBS User Guide, "Quotas".
MOST_PENDING = 100
_ID_DIGITS = 17
# The files of fresh volumes (freshvolume.py) are SNAPSHOT-GIB.volume.
VOLUME_SUFFIX = "volume"


@dataclass(kw_only=True)
class Snapshot:
    """A snapshot of the account. ``digests`` has the SHA-256 of each block that was put. ``closed_at_s`` is the time on
    the emulator's clock at which it was completed, or None.
    """

    id: str
    volume_gib: int
    description: str
    tags: dict[str, str]
    token: str
    began_at_s: float
    began: datetime
    blocks: Path
    digests: dict[int, bytes] = field(default_factory=dict)
    closed_at_s: float | None = None
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def block_token(self, number: int) -> str:
        """The token with which a client gets a block."""
        return hmac.digest(self.secret, str(number).encode(), "sha256").hex()


@dataclass(kw_only=True)
class Image:
    """An image of the account. ``given`` are the parameters of RegisterImage."""

    id: str
    given: Mapping[str, Any]
    tags: dict[str, str]
    began_at_s: float
    created: datetime


class Account:
    """The state of the emulator. Several threads use it, each with ``lock`` held."""

    def __init__(
        self, directory: Path, region: str, trouble: Trouble, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.directory = directory
        self.region = region
        self.trouble = trouble
        self.now = now
        self.lock = threading.RLock()
        # For the files of fresh volumes.
        self.volume_lock = threading.Lock()
        self.snapshots: dict[str, Snapshot] = {}
        self.images: dict[str, Image] = {}
        self.released: dict[str, dict[str, float]] = {}
        # Not for secrets: the same seed has to give the same failures.
        self._random = random.Random(trouble.seed)  # noqa: S311

    def drawn(self) -> float:
        """A random number for the trouble of the next call."""
        with self.lock:
            return self._random.random()

    def today(self) -> datetime:
        """The date, which the things of EC2 have."""
        return datetime.now(UTC)

    def is_known(self, began_at_s: float) -> bool:
        """Whether a thing that began then is seen by all of EC2 (EC2 API Reference, "Eventual consistency")."""
        return self.now() >= began_at_s + self.trouble.unknown_for_s

    def snapshot(self, identifier: str) -> Snapshot:
        """The snapshot, as EC2 sees it. Raises ApiError when it is not known, or not yet."""
        found = self.snapshots.get(identifier)
        if found is None or not self.is_known(found.began_at_s):
            raise ApiError("InvalidSnapshot.NotFound", f"The snapshot '{identifier}' does not exist.")
        return found

    def image(self, identifier: str) -> Image:
        found = self.images.get(identifier)
        if found is None or not self.is_known(found.began_at_s):
            raise ApiError("InvalidAMIID.NotFound", f"The image id '[{identifier}]' does not exist")
        return found

    def state(self, snapshot: Snapshot) -> str:
        """The state of the snapshot: pending until a while after it was completed."""
        closed = snapshot.closed_at_s
        return (
            "pending" if closed is None or self.now() < closed + self.trouble.pending_for_s else "completed"
        )

    def begin_snapshot(self, volume_gib: int, description: str, tags: dict[str, str], token: str) -> Snapshot:
        """A new, empty snapshot; or the earlier one, if it was begun with the same token (idempotency)."""
        for earlier in self.snapshots.values():
            if token and earlier.token == token:
                same = (earlier.volume_gib, earlier.description, earlier.tags)
                if same != (volume_gib, description, tags):
                    raise ApiError(
                        "ConflictException", "The client token was used with other parameters.", 409
                    )
                return earlier
        if sum(each.closed_at_s is None for each in self.snapshots.values()) >= MOST_PENDING:
            raise ApiError(
                "ServiceQuotaExceededException",
                "Maximum pending snapshots per account.",
                402,
                "DEPENDENCY_SERVICE_QUOTA_EXCEEDED",
            )
        identifier = new_id("snap")
        snapshot = Snapshot(
            id=identifier,
            volume_gib=volume_gib,
            description=description,
            tags=tags,
            token=token,
            began_at_s=self.now(),
            began=self.today(),
            blocks=self.directory / identifier,
        )
        with snapshot.blocks.open("xb") as file:
            file.truncate(volume_gib << 30)
        self.snapshots[identifier] = snapshot
        return snapshot

    def delete_snapshot(self, identifier: str) -> None:
        snapshot = self.snapshot(identifier)
        using = [each.id for each in self.images.values() if identifier in snapshots_of(each.given)]
        # EC2 forgets an image later than it answers.
        using += [each for each, until_s in self.released.get(identifier, {}).items() if self.now() < until_s]
        if using:
            raise ApiError(
                "InvalidSnapshot.InUse", f"The snapshot {identifier} is currently in use by {using[0]}"
            )
        snapshot.blocks.unlink()
        for volume in self.directory.glob(f"{identifier}-*.{VOLUME_SUFFIX}"):
            # A machine that has opened it keeps it.
            volume.unlink()
        del self.snapshots[identifier]


def put_block(snapshot: Snapshot, number: int, data: bytes) -> bytes:
    """Keep a block, and return its SHA-256. Blocks of different numbers may be put at once."""
    digest = hashlib.sha256(data).digest()
    fd = os.open(snapshot.blocks, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(fd, data, number * BLOCK_BYTES)
    finally:
        os.close(fd)
    snapshot.digests[number] = digest
    return digest


def get_block(snapshot: Snapshot, number: int) -> bytes:
    fd = os.open(snapshot.blocks, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, BLOCK_BYTES, number * BLOCK_BYTES)
    finally:
        os.close(fd)


def linear_checksum(snapshot: Snapshot) -> str:
    """In Base64, SHA-256 of the blocks' SHA-256, in the order of their numbers."""
    digests = b"".join(snapshot.digests[number] for number in sorted(snapshot.digests))
    return base64.b64encode(hashlib.sha256(digests).digest()).decode("ascii")


def snapshots_of(given: Mapping[str, Any]) -> Iterator[str]:
    """The snapshots in the parameters of RegisterImage."""
    for mapping in given.get("BlockDeviceMappings", ()):
        identifier = mapping.get("Ebs", {}).get("SnapshotId")
        if identifier:
            yield str(identifier)


def new_id(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(9)[:_ID_DIGITS]}"
