"""The EBS direct APIs (Amazon EBS API Reference, "Actions": StartSnapshot, PutSnapshotBlock, CompleteSnapshot,
ListSnapshotBlocks, GetSnapshotBlock).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from quickstart.ec2.emulator.account import (
    ACCOUNT_ID,
    BLOCK_BYTES,
    Account,
    Snapshot,
    get_block,
    linear_checksum,
    put_block,
)
from quickstart.ec2.emulator.faults import ApiError

_MOST_GIB = 65536
_LEAST_MINUTES, _MOST_MINUTES = 10, 4320
_MOST_PAGE, _LEAST_PAGE, _PAGE = 10_000, 100, 10_000
_EXPIRES = 4_102_444_800


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request of HTTP. Names of headers are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """An answer of HTTP."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


_ID = r"(?P<id>snap-[0-9a-f]+)"
_ROUTES = (
    ("POST", re.compile(r"/snapshots"), "StartSnapshot"),
    ("POST", re.compile(rf"/snapshots/completion/{_ID}"), "CompleteSnapshot"),
    ("GET", re.compile(rf"/snapshots/{_ID}/blocks"), "ListSnapshotBlocks"),
    ("PUT", re.compile(rf"/snapshots/{_ID}/blocks/(?P<number>[0-9]{{1,10}})"), "PutSnapshotBlock"),
    ("GET", re.compile(rf"/snapshots/{_ID}/blocks/(?P<number>[0-9]{{1,10}})"), "GetSnapshotBlock"),
)


def action_of(request: Request) -> tuple[str, Mapping[str, str]] | None:
    """The action of a request to the EBS direct APIs, and the words in its path."""
    for method, pattern, action in _ROUTES:
        if request.method == method and (match := pattern.fullmatch(request.path)):
            return action, match.groupdict()
    return None


def answer(account: Account, request: Request, action: str, words: Mapping[str, str]) -> Answer:
    """Do what the request says. Raises ApiError as the EBS direct APIs do."""
    if action == "StartSnapshot":
        return _start(account, request)
    with account.lock:
        snapshot = account.snapshots.get(words["id"])
    if snapshot is None or not account.is_known(snapshot.began_at_s):
        raise ApiError("ResourceNotFoundException", "The snapshot does not exist.", 404, "SNAPSHOT_NOT_FOUND")
    verbs: dict[str, Callable[[], Answer]] = {
        "CompleteSnapshot": lambda: _complete(account, request, snapshot),
        "ListSnapshotBlocks": lambda: _list(account, request, snapshot),
        "PutSnapshotBlock": lambda: _put(account, request, snapshot, int(words["number"])),
        "GetSnapshotBlock": lambda: _get(account, request, snapshot, int(words["number"])),
    }
    return verbs[action]()


def invalid(message: str, reason: str = "INVALID_PARAMETER_VALUE") -> ApiError:
    return ApiError("ValidationException", message, 400, reason)


def _start(account: Account, request: Request) -> Answer:
    try:
        given = json.loads(request.body)
        gib, minutes = int(given["VolumeSize"]), int(given.get("Timeout", 60))
        tags = {str(tag["Key"]): str(tag["Value"]) for tag in given.get("Tags", ())}
    except (ValueError, KeyError, TypeError) as error:
        raise invalid(f"The request is not valid: {error}") from error
    if given.get("ParentSnapshotId") or given.get("Encrypted") or given.get("KmsKeyArn"):
        raise invalid("The emulator has no parents and no encryption.")
    if not 1 <= gib <= _MOST_GIB:
        raise invalid(f"A volume of {gib} GiB is not possible.", "INVALID_VOLUME_SIZE")
    if not _LEAST_MINUTES <= minutes <= _MOST_MINUTES:
        raise invalid(f"A timeout of {minutes} minutes is not possible.")
    if any(key.lower().startswith("aws:") or not 0 < len(key) <= 128 for key in tags):
        raise invalid("A tag has a reserved or too long key.", "INVALID_TAG")
    if not all(text.isprintable() for pair in tags.items() for text in pair):
        raise invalid("A tag has a character that cannot be printed.", "INVALID_TAG")
    with account.lock:
        snapshot = account.begin_snapshot(
            gib, str(given.get("Description", "")), tags, str(given.get("ClientToken", ""))
        )
    document = {
        "SnapshotId": snapshot.id,
        "OwnerId": ACCOUNT_ID,
        "Status": "pending",
        "StartTime": snapshot.began.timestamp(),
        "VolumeSize": gib,
        "BlockSize": BLOCK_BYTES,
        "Description": snapshot.description,
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }
    return Answer(201, json.dumps(document).encode())


def _put(account: Account, request: Request, snapshot: Snapshot, number: int) -> Answer:
    headers = request.headers
    if snapshot.closed_at_s is not None:
        raise invalid("The snapshot is not pending.", "INVALID_SNAPSHOT_ID")
    if number >= (snapshot.volume_gib << 30) // BLOCK_BYTES:
        raise invalid(f"The volume has no block {number}.", "INVALID_BLOCK")
    if headers.get("x-amz-data-length") != str(BLOCK_BYTES) or len(request.body) != BLOCK_BYTES:
        raise invalid(f"A block has {BLOCK_BYTES} bytes.", "INVALID_BLOCK")
    if headers.get("x-amz-checksum-algorithm") != "SHA256":
        raise invalid("The checksum has to be a SHA256.")
    digest = base64.b64encode(hashlib.sha256(request.body).digest()).decode("ascii")
    if headers.get("x-amz-checksum") != digest:
        raise invalid("The checksum is not the data's.", "INVALID_BLOCK")
    put_block(snapshot, number, request.body)
    return Answer(201, b"{}", {"x-amz-Checksum": digest, "x-amz-Checksum-Algorithm": "SHA256"})


def _complete(account: Account, request: Request, snapshot: Snapshot) -> Answer:
    headers = request.headers
    with account.lock:
        if snapshot.closed_at_s is not None:
            raise invalid("The snapshot is not pending.", "INVALID_SNAPSHOT_ID")
        if headers.get("x-amz-changedblockscount") != str(len(snapshot.digests)):
            raise invalid("The number of changed blocks is another one.")
        if checksum := headers.get("x-amz-checksum"):
            if headers.get("x-amz-checksum-aggregation-method") != "LINEAR":
                raise invalid("The checksum has to be aggregated by LINEAR.")
            if headers.get("x-amz-checksum-algorithm") != "SHA256" or checksum != linear_checksum(snapshot):
                raise invalid("The checksum is not the snapshot's.")
        snapshot.closed_at_s = account.now()
    return Answer(202, b'{"Status": "pending"}')


def _check_readable(account: Account, snapshot: Snapshot) -> None:
    if account.state(snapshot) != "completed":
        raise invalid("The snapshot is not completed.", "INVALID_SNAPSHOT_ID")


def _list(account: Account, request: Request, snapshot: Snapshot) -> Answer:
    _check_readable(account, snapshot)
    try:
        most = int(request.query.get("maxResults", str(_PAGE)))
        begin = int(request.query.get("pageToken") or request.query.get("startingBlockIndex", "0"))
    except ValueError as error:
        raise invalid("A parameter is no number.", "INVALID_PAGE_TOKEN") from error
    if not _LEAST_PAGE <= most <= _MOST_PAGE:
        raise invalid(f"A page has {_LEAST_PAGE} to {_MOST_PAGE} blocks.")
    with account.lock:
        numbers = [number for number in sorted(snapshot.digests) if number >= begin]
        page = {snapshot.block_token(number): number for number in numbers[:most]}
    document: dict[str, object] = {
        "Blocks": [{"BlockIndex": number, "BlockToken": token} for token, number in page.items()],
        "ExpiryTime": _EXPIRES,
        "VolumeSize": snapshot.volume_gib,
        "BlockSize": BLOCK_BYTES,
    }
    if len(numbers) > most:
        document["NextToken"] = str(numbers[most])
    return Answer(200, json.dumps(document).encode())


def _get(account: Account, request: Request, snapshot: Snapshot, number: int) -> Answer:
    _check_readable(account, snapshot)
    if not secrets.compare_digest(request.query.get("blockToken", ""), snapshot.block_token(number)):
        raise invalid("The token is not the block's.", "INVALID_BLOCK_TOKEN")
    data = get_block(snapshot, number)
    return Answer(
        200,
        data,
        {
            "x-amz-Data-Length": str(BLOCK_BYTES),
            "x-amz-Checksum": base64.b64encode(snapshot.digests[number]).decode("ascii"),
            "x-amz-Checksum-Algorithm": "SHA256",
            "Content-Type": "application/octet-stream",
        },
    )
