"""Images (AMIs) and their snapshots in an account. QuickStart knows its own images by two tags."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quickstart.ec2.aws import Aws, member
from quickstart.ec2.refusals import Refusal
from quickstart.errors import BadInputError, CloudError, UnavailableError
from quickstart.model.words import BootMode
from quickstart.parse.printable import brief

NAME_TAG, MANIFEST_TAG = "quickstart:image", "quickstart:manifest"
READY_TAG = "quickstart:ready"
# The beginning of the names of a bench's images, which `bench cleanup` removes.
BENCH_PREFIX = "quickstart-bench-"
# The name of the root device in Debian's and Amazon's images.
ROOT_DEVICE = "/dev/xvda"
_ARCHITECTURE, _TPM = "x86_64", "v2.0"
# Amazon EC2 API Reference, RegisterImage: 3 to 128 characters of these.
_NAME = re.compile(r"[A-Za-z0-9()\[\]. /\\'@_-]{3,128}")
_ID = re.compile(r"(ami|snap)-[0-9a-f]{8,32}")
_SPECIAL = re.compile(r"[\\*?]")
_UNKNOWN_SNAPSHOT, _USED_SNAPSHOT = "InvalidSnapshot.NotFound", "InvalidSnapshot.InUse"
_GONE = (_UNKNOWN_SNAPSHOT, "InvalidAMIID.NotFound", "InvalidAMIID.Unavailable")
_TAKEN_NAME = "InvalidAMIName.Duplicate"
_POLL_S, _WAIT_S = 5.0, 3600.0
# How long EC2 may not know a new image or snapshot. Some have seen two minutes.
_UNKNOWN_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image in an account. ``manifest_sha256`` names the artefact that it was made of, and is empty for an image that
    is not ours. ``ready`` is the readiness request (asking.py), or empty. ``root_device`` is the name of the first disk.
    """

    id: str
    name: str
    state: str
    created: str
    boot_mode: str
    has_tpm: bool
    manifest_sha256: str
    snapshot_ids: tuple[str, ...]
    ready: str = ""
    root_device: str = ROOT_DEVICE


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A snapshot of ours in an account. ``image_name`` is the name of the image for which it was made, and
    ``manifest_sha256`` names the artefact.
    """

    id: str
    image_name: str
    manifest_sha256: str
    state: str
    size_gib: int


@dataclass(frozen=True)
class Waiting:
    """How often AWS is asked whether a thing is complete, and for how long, in seconds. For ``unknown_s`` seconds, a thing
    may be unknown.
    """

    poll_s: float = _POLL_S
    limit_s: float = _WAIT_S
    unknown_s: float = _UNKNOWN_S
    now: Callable[[], float] = time.monotonic


def check_name(name: str) -> None:
    """Raise BadInputError for a name that no image can have."""
    if not _NAME.fullmatch(name):
        raise BadInputError(
            f"{brief(name)!r} is no name of an image",
            hint="3 to 128 letters, digits, blanks and characters of ()[]./\\'@_-",
        )


def tags(name: str, manifest_sha256: str) -> list[dict[str, str]]:
    """The tags of an image and of its snapshots."""
    return [
        {"Key": "Name", "Value": name},
        {"Key": NAME_TAG, "Value": name},
        {"Key": MANIFEST_TAG, "Value": manifest_sha256},
    ]


def _literal(text: str) -> str:
    """``text`` as the value of a filter, in which some characters have a meaning (Amazon EC2 User Guide, "Filter your
    resources").
    """
    return _SPECIAL.sub(r"\\\g<0>", text)


def named(aws: Aws, name: str) -> Image | None:
    """The image of this account with this name, whoever has made it."""
    found = _images(aws, {"Name": "name", "Values": [_literal(name)]})
    return next((image for image in found if image.name == name), None)


def ours(aws: Aws) -> tuple[Image, ...]:
    """All images of this account that QuickStart has made, by their names."""
    found = _images(aws, {"Name": "tag-key", "Values": [NAME_TAG]})
    return tuple(sorted(found, key=lambda image: (image.name, image.id)))


def our_snapshots(aws: Aws, name: str | None = None) -> tuple[Snapshot, ...]:
    """All snapshots of this account that QuickStart has made, or those for the image ``name``."""
    wanted: dict[str, object] = {"Name": "tag-key", "Values": [NAME_TAG]}
    if name is not None:
        wanted = {"Name": f"tag:{NAME_TAG}", "Values": [_literal(name)]}
    pages = aws.pages("ec2", "describe_snapshots", "Snapshots", OwnerIds=["self"], Filters=[wanted])
    found = [_snapshot(each) for each in pages]
    return tuple(
        sorted(
            (each for each in found if name is None or each.image_name == name),
            key=lambda each: (each.image_name, each.id),
        )
    )


def snapshot_of(aws: Aws, snapshot_id: str, waiting: Waiting) -> Snapshot | None:
    """The snapshot, or None when the account has none. A new snapshot may be unknown for a while."""
    end_s = waiting.now() + waiting.unknown_s
    while True:
        try:
            found = aws.call("ec2", "describe_snapshots", SnapshotIds=[snapshot_id]).get("Snapshots", [])
        except CloudError as error:
            if error.code != _UNKNOWN_SNAPSHOT:
                raise
            found = []
        if found:
            return _snapshot(found[0])
        if waiting.now() >= end_s:
            return None
        aws.sleep(waiting.poll_s)


def _snapshot(given: Mapping[str, Any]) -> Snapshot:
    size_gib = given.get("VolumeSize", 0)
    return Snapshot(
        id=identifier(given.get("SnapshotId")),
        image_name=_tag(given, NAME_TAG),
        manifest_sha256=_tag(given, MANIFEST_TAG),
        state=member(given, "State"),
        size_gib=size_gib if isinstance(size_gib, int) else 0,
    )


def _images(aws: Aws, wanted: Mapping[str, object]) -> list[Image]:
    # The name of a disabled image is taken, too.
    pages = aws.pages(
        "ec2", "describe_images", "Images", Owners=["self"], Filters=[wanted], IncludeDisabled=True
    )
    return [_image(each) for each in pages]


def _image(given: Mapping[str, Any]) -> Image:
    mappings = [each.get("Ebs") or {} for each in given.get("BlockDeviceMappings") or ()]
    return Image(
        id=identifier(given.get("ImageId")),
        name=str(given.get("Name", "")),
        state=member(given, "State"),
        created=str(given.get("CreationDate", "")),
        boot_mode=str(given.get("BootMode", "")),
        has_tpm=given.get("TpmSupport") == _TPM,
        manifest_sha256=_tag(given, MANIFEST_TAG),
        snapshot_ids=tuple(identifier(each["SnapshotId"]) for each in mappings if each.get("SnapshotId")),
        ready=_tag(given, READY_TAG),
        root_device=str(given.get("RootDeviceName") or ROOT_DEVICE),
    )


def _tag(thing: Mapping[str, Any], key: str) -> str:
    found = thing.get("Tags") or ()
    return next((str(tag.get("Value", "")) for tag in found if tag.get("Key") == key), "")


def identifier(text: object) -> str:
    """``text``, if it is the id of an image or snapshot. Raises CloudError otherwise."""
    if not isinstance(text, str) or not _ID.fullmatch(text):
        raise CloudError(f"AWS answers with the id {brief(str(text))!r}", code="")
    return text


def wait_for_snapshot(aws: Aws, snapshot_id: str, waiting: Waiting) -> None:
    """Wait until the snapshot is complete. Raises CloudError when it fails or is gone, and UnavailableError when it is
    not complete in time.
    """

    def state() -> str | None:
        found = aws.call("ec2", "describe_snapshots", SnapshotIds=[snapshot_id]).get("Snapshots", [])
        return _snapshot(found[0]).state if found else None

    _wait(aws, snapshot_id, state, "completed", ("error", "recoverable", "recovering"), waiting)


def wait_for_image(aws: Aws, image_id: str, waiting: Waiting) -> None:
    """Wait until machines can be started from the image. Raises CloudError when it fails, is gone or is disabled, and
    UnavailableError when it takes too long.
    """

    def state() -> str | None:
        answer = aws.call("ec2", "describe_images", ImageIds=[image_id], IncludeDisabled=True)
        found = answer.get("Images", [])
        return _image(found[0]).state if found else None

    failed = ("invalid", "failed", "error", "deregistered", "disabled")
    _wait(aws, image_id, state, "available", failed, waiting)


def _wait(
    aws: Aws,
    what: str,
    state: Callable[[], str | None],
    wanted: str,
    failed: Sequence[str],
    waiting: Waiting,
) -> None:
    began_s = waiting.now()
    while True:
        try:
            now = state()
        except CloudError as error:
            if error.code not in _GONE:
                raise
            now = None
        waited_s = waiting.now() - began_s
        if now == wanted:
            return
        if now in failed:
            raise CloudError(f"{what} is {now}", code="")
        if now is None and waited_s >= waiting.unknown_s:
            raise CloudError(f"the account has no {what}", code="")
        if waited_s >= waiting.limit_s:
            raise UnavailableError(
                f"{what} is still {now or 'unknown'} after {waiting.limit_s:.0f} s",
                code="",
                hint="try again later",
            )
        aws.sleep(waiting.poll_s)


def register(aws: Aws, waiting: Waiting, parameters: Mapping[str, Any]) -> str:
    """Register an image with the parameters of `registration`, and return its id. When the answer to an earlier try was
    lost, the image is there already.
    """
    try:
        return identifier(aws.call("ec2", "register_image", **parameters).get("ImageId"))
    except CloudError as error:
        if error.code != _TAKEN_NAME:
            raise
        end_s = waiting.now() + waiting.unknown_s
        wanted = _mapped(parameters)
        while (present := named(aws, str(parameters["Name"]))) is None and waiting.now() < end_s:
            aws.sleep(waiting.poll_s)
        if present is None or wanted not in present.snapshot_ids:
            raise
        return present.id


def _mapped(parameters: Mapping[str, Any]) -> str:
    return str(parameters["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"])


def registration(
    *,
    name: str,
    snapshot_id: str,
    boot_mode: BootMode,
    tpm: bool,
    manifest_sha256: str,
    description: str,
    ready: str,
) -> dict[str, object]:
    """The parameters of RegisterImage. The first disk of a machine is a fresh volume of the snapshot. A machine gets its
    metadata only with a session token (IMDSv2). ``ready`` is the readiness request (asking.py), or empty.
    """
    own = tags(name, manifest_sha256) + ([{"Key": READY_TAG, "Value": ready}] if ready else [])
    return {
        "Name": name,
        "Description": description,
        "Architecture": _ARCHITECTURE,
        "RootDeviceName": ROOT_DEVICE,
        "BlockDeviceMappings": [
            {
                "DeviceName": ROOT_DEVICE,
                "Ebs": {"SnapshotId": snapshot_id, "VolumeType": "gp3", "DeleteOnTermination": True},
            }
        ],
        "VirtualizationType": "hvm",
        "BootMode": boot_mode.value,
        "EnaSupport": True,
        "ImdsSupport": "v2.0",
        **({"TpmSupport": _TPM} if tpm else {}),
        "TagSpecifications": [{"ResourceType": "image", "Tags": own}],
    }


def deregister(aws: Aws, image_id: str) -> None:
    """Remove an image. Its snapshots stay. An image that is gone is no error."""
    _unless_gone(aws, "deregister_image", lambda refusal: False, ImageId=image_id)


def delete_snapshot(aws: Aws, snapshot_id: str, *, is_new: bool = False) -> None:
    """Delete a snapshot, complete or not. A snapshot that is gone is no error. EC2 may say for a while that the snapshot
    of an image is used, after the image was removed. If the snapshot ``is_new``, EC2 may not know it yet.
    """

    def may_change(refusal: Refusal) -> bool:
        return refusal.code == _USED_SNAPSHOT or (is_new and refusal.code == _UNKNOWN_SNAPSHOT)

    _unless_gone(aws, "delete_snapshot", may_change, SnapshotId=snapshot_id)


def _unless_gone(aws: Aws, operation: str, also: Callable[[Refusal], bool], **parameters: Any) -> None:
    try:
        aws.call("ec2", operation, also=also, **parameters)
    except CloudError as error:
        if error.code not in _GONE:
            raise
