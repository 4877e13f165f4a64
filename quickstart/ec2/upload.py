"""Send the blocks of a disk to a snapshot, and compare the blocks of a snapshot with a disk. Several threads do so, and
at most one block per thread is in memory.
"""

from __future__ import annotations

import base64
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace

from quickstart.ec2.aws import Aws, member
from quickstart.ec2.plan import BLOCK_BYTES, Plan
from quickstart.ec2.refusals import Refusal
from quickstart.errors import BadInputError, CloudError

DEFAULT_WORKERS = 32
_ALGORITHM = "SHA256"
# A block may come damaged once.
_READS = 3
_NOT_FOUND, _INVALID, _CLOSED = "ResourceNotFoundException", "ValidationException", "INVALID_SNAPSHOT_ID"


def is_unknown(refusal: Refusal) -> bool:
    """Whether the EBS direct APIs do not know a snapshot. A new snapshot may be unknown for up to two minutes
    (awslabs/coldsnap, src/upload.rs).
    """
    return refusal.code == _NOT_FOUND


def _may_be_put_again(refusal: Refusal) -> bool:
    """A block that was damaged on its way, or is being put a second time after an answer was lost, is refused with
    ValidationException and several reasons. Only a closed snapshot stays closed.
    """
    return is_unknown(refusal) or (refusal.code == _INVALID and refusal.reason != _CLOSED)


def block_at(fd: int, number: int) -> bytes:
    """Block ``number`` of the disk ``fd``. Behind the end of the disk there are zeros."""
    parts, begin, missing = [], number * BLOCK_BYTES, BLOCK_BYTES
    while missing and (part := os.pread(fd, missing, begin)):
        parts.append(part)
        begin, missing = begin + len(part), missing - len(part)
    return b"".join(parts).ljust(BLOCK_BYTES, b"\0")


def put_blocks(
    aws: Aws,
    snapshot_id: str,
    fd: int,
    numbers: Iterable[int],
    workers: int,
    put: Callable[[int, bytes], None],
) -> None:
    """Write the blocks ``numbers`` of the disk ``fd`` to the snapshot. ``put`` is called for each block that AWS has
    taken, with its number and SHA-256, by several threads.
    """

    def send(own: Aws, number: int) -> None:
        data = block_at(fd, number)
        digest = hashlib.sha256(data).digest()
        own.call(
            "ebs",
            "put_snapshot_block",
            also=_may_be_put_again,
            SnapshotId=snapshot_id,
            BlockIndex=number,
            BlockData=data,
            DataLength=BLOCK_BYTES,
            Checksum=base64.b64encode(digest).decode("ascii"),
            ChecksumAlgorithm=_ALGORITHM,
        )
        put(number, digest)

    _in_threads(aws, send, numbers, workers)


def linear_checksum(digests: Iterable[bytes]) -> str:
    """The checksum of a whole snapshot: SHA-256 of the blocks' SHA-256, in the order of their numbers (EBS direct APIs,
    CompleteSnapshot, "LINEAR"). In Base64.
    """
    return base64.b64encode(hashlib.sha256(b"".join(digests)).digest()).decode("ascii")


def compare_blocks(
    aws: Aws, snapshot_id: str, fd: int, plan: Plan, workers: int, compared: Callable[[], None]
) -> None:
    """Read the snapshot back. ``compared`` is called for each block. Raises CloudError when the snapshot has other
    blocks than ``plan``, or another content than the disk ``fd``.
    """
    tokens = _tokens(aws, snapshot_id)
    if differing := sorted(set(plan.written) ^ set(tokens)):
        raise CloudError(
            f"{snapshot_id} has {len(tokens)} blocks and not {len(plan.written)}: block {differing[0]} is the first "
            "that differs",
            code="",
        )

    def compare(own: Aws, number: int) -> None:
        wanted = block_at(fd, number)
        for _ in range(_READS):
            data = own.read(
                "ebs",
                "get_snapshot_block",
                "BlockData",
                BLOCK_BYTES + 1,
                also=is_unknown,
                SnapshotId=snapshot_id,
                BlockIndex=number,
                BlockToken=tokens[number],
            )
            if data == wanted:
                compared()
                return
        raise CloudError(f"block {number} of {snapshot_id} is not the disk's", code="")

    _in_threads(aws, compare, plan.written, workers)


def _tokens(aws: Aws, snapshot_id: str) -> dict[int, str]:
    """The token of each block of the snapshot, by the block's number. Even a complete snapshot may be unknown for a
    while.
    """
    tokens: dict[int, str] = {}
    for block in aws.pages("ebs", "list_snapshot_blocks", "Blocks", SnapshotId=snapshot_id, also=is_unknown):
        number = block.get("BlockIndex")
        if not isinstance(number, int):
            raise CloudError(f"{snapshot_id} has a block without a number", code="")
        tokens[number] = member(block, "BlockToken")
    return tokens


def check_block_size(answer: Mapping[str, object]) -> None:
    """Raise CloudError when the answer of StartSnapshot says that the snapshot has other blocks than ours."""
    if answer.get("BlockSize") != BLOCK_BYTES:
        raise CloudError(
            f"AWS wants blocks of {answer.get('BlockSize')} bytes, and not of {BLOCK_BYTES}", code=""
        )


def _in_threads(aws: Aws, work: Callable[[Aws, int], None], numbers: Iterable[int], workers: int) -> None:
    """Call ``work`` for each number, in ``workers`` threads. After the first error, and after an interruption, no
    further call begins, no call is repeated, and the calls that run end before this function does.
    """
    if workers < 1:
        raise BadInputError(f"{workers} workers", hint="choose 1 or more")
    stop = threading.Event()
    own = replace(aws, sleep=stop.wait)

    def unless_stopped(number: int) -> None:
        if not stop.is_set():
            work(own, number)

    waiting: set[Future[None]] = set()
    with ThreadPoolExecutor(workers, thread_name_prefix="ec2") as pool:
        try:
            for number in numbers:
                if len(waiting) >= 2 * workers:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    _raise_first(done)
                waiting.add(pool.submit(unless_stopped, number))
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                _raise_first(done)
        except BaseException:
            stop.set()
            raise


def _raise_first(done: Iterable[Future[None]]) -> None:
    for each in done:
        each.result()
