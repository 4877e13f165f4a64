"""Images (AMIs) and their snapshots in an account. QuickStart knows its own images by two tags."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quickstart.ec2.aws import Aws
from quickstart.errors import BadInputError, CloudError, UnavailableError
from quickstart.model.words import BootMode
from quickstart.parse.printable import brief

NAME_TAG, MANIFEST_TAG = "quickstart:image", "quickstart:manifest"
# The name of the root device in Debian's and Amazon's images.
ROOT_DEVICE = "/dev/xvda"
_ARCHITECTURE = "x86_64"
# Amazon EC2 API Reference, RegisterImage: 3 to 128 characters of these.
_NAME = re.compile(r"[A-Za-z0-9()\[\]. /\\'@_-]{3,128}")
_ID = re.compile(r"(ami|snap)-[0-9a-f]{8,32}")
_GONE = ("InvalidSnapshot.NotFound", "InvalidAMIID.NotFound", "InvalidAMIID.Unavailable")
_POLL_S, _WAIT_S = 5.0, 3600.0


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image of ours in an account. ``manifest_sha256`` names the artefact that it was made of."""

    id: str
    name: str
    state: str
    created: str
    boot_mode: str
    manifest_sha256: str
    snapshot_ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A snapshot of ours in an account. ``image_name`` is the name of the image for which it was made."""

    id: str
    image_name: str
    state: str
    size_gib: int


@dataclass(frozen=True)
class Waiting:
    """How often AWS is asked whether a thing is complete, and for how long, in seconds."""

    poll_s: float = _POLL_S
    limit_s: float = _WAIT_S
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


def named(aws: Aws, name: str) -> Image | None:
    """The image of this account with this name, whoever has made it."""
    found = _images(aws, {"Name": "name", "Values": [name]})
    # In a filter, * and ? stand for other characters. No name has one.
    return next((image for image in found if image.name == name), None)


def ours(aws: Aws) -> tuple[Image, ...]:
    """All images of this account that QuickStart has made, by their names."""
    found = _images(aws, {"Name": "tag-key", "Values": [NAME_TAG]})
    return tuple(sorted(found, key=lambda image: (image.name, image.id)))


def our_snapshots(aws: Aws, name: str | None = None) -> tuple[Snapshot, ...]:
    """All snapshots of this account that QuickStart has made, or those for the image ``name``."""
    wanted = {"Name": "tag-key", "Values": [NAME_TAG]} if name is None else _tagged(name)
    pages = _pages(aws, "describe_snapshots", "Snapshots", OwnerIds=["self"], Filters=[wanted])
    found = [
        Snapshot(
            id=_id(each["SnapshotId"]),
            image_name=_tag(each, NAME_TAG),
            state=str(each["State"]),
            size_gib=int(each["VolumeSize"]),
        )
        for each in pages
    ]
    return tuple(sorted(found, key=lambda each: (each.image_name, each.id)))


def _tagged(name: str) -> dict[str, object]:
    return {"Name": f"tag:{NAME_TAG}", "Values": [name]}


def _images(aws: Aws, wanted: Mapping[str, object]) -> list[Image]:
    pages = _pages(aws, "describe_images", "Images", Owners=["self"], Filters=[wanted])
    return [
        Image(
            id=_id(each["ImageId"]),
            name=str(each.get("Name", "")),
            state=str(each["State"]),
            created=str(each.get("CreationDate", "")),
            boot_mode=str(each.get("BootMode", "")),
            manifest_sha256=_tag(each, MANIFEST_TAG),
            snapshot_ids=tuple(
                _id(mapping["Ebs"]["SnapshotId"])
                for mapping in each.get("BlockDeviceMappings", ())
                if mapping.get("Ebs", {}).get("SnapshotId")
            ),
        )
        for each in pages
    ]


def _pages(aws: Aws, operation: str, member: str, **parameters: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    position: dict[str, object] = {}
    while True:
        page = aws.call("ec2", operation, **parameters, **position)
        found += page.get(member, ())
        if not page.get("NextToken"):
            return found
        position = {"NextToken": page["NextToken"]}


def _tag(thing: Mapping[str, Any], key: str) -> str:
    return next((str(tag["Value"]) for tag in thing.get("Tags", ()) if tag["Key"] == key), "")


def _id(text: object) -> str:
    if not isinstance(text, str) or not _ID.fullmatch(text):
        raise CloudError(f"AWS answers with the id {brief(str(text))!r}", code="")
    return text


def wait_for_snapshot(aws: Aws, snapshot_id: str, waiting: Waiting) -> None:
    """Wait until the snapshot is complete. A new snapshot may be unknown for a while. Raises CloudError when it fails,
    or is not complete in time.
    """

    def state() -> str:
        (snapshot,) = aws.call("ec2", "describe_snapshots", SnapshotIds=[snapshot_id])["Snapshots"]
        return str(snapshot["State"])

    _wait(aws, snapshot_id, state, "completed", ("error", "recoverable", "recovering"), waiting)


def wait_for_image(aws: Aws, image_id: str, waiting: Waiting) -> None:
    """Wait until machines can be started from the image. Raises CloudError when it fails, or takes too long."""

    def state() -> str:
        (image,) = aws.call("ec2", "describe_images", ImageIds=[image_id])["Images"]
        return str(image["State"])

    _wait(aws, image_id, state, "available", ("invalid", "failed", "error", "deregistered"), waiting)


def _wait(
    aws: Aws, what: str, state: Callable[[], str], wanted: str, failed: Sequence[str], waiting: Waiting
) -> None:
    end_s = waiting.now() + waiting.limit_s
    seen = "unknown"
    while True:
        try:
            seen = state()
        except CloudError as error:
            if error.code not in _GONE:
                raise
        except ValueError:
            # An answer without the thing, for a moment.
            pass
        if seen == wanted:
            return
        if seen in failed:
            raise CloudError(f"{what} is {seen}", code="")
        if waiting.now() >= end_s:
            raise UnavailableError(
                f"{what} is still {seen} after {waiting.limit_s:.0f} s", code="", hint="try again later"
            )
        aws.sleep(waiting.poll_s)


def register(
    aws: Aws,
    *,
    name: str,
    snapshot_id: str,
    boot_mode: BootMode,
    tpm: bool,
    manifest_sha256: str,
    description: str,
) -> str:
    """Register the snapshot as an image, and return the image's id. The first disk of a machine is a fresh volume of
    this snapshot. A machine gets its metadata only with a session token (IMDSv2).
    """
    parameters = registration(
        name=name,
        snapshot_id=snapshot_id,
        boot_mode=boot_mode,
        tpm=tpm,
        manifest_sha256=manifest_sha256,
        description=description,
    )
    try:
        return _id(aws.call("ec2", "register_image", **parameters)["ImageId"])
    except CloudError as error:
        # An earlier try has succeeded, and its answer was lost.
        present = named(aws, name) if error.code == "InvalidAMIName.Duplicate" else None
        if present is None or snapshot_id not in present.snapshot_ids:
            raise
        return present.id


def registration(
    *, name: str, snapshot_id: str, boot_mode: BootMode, tpm: bool, manifest_sha256: str, description: str
) -> dict[str, object]:
    """The parameters of RegisterImage."""
    own = tags(name, manifest_sha256)
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
        **({"TpmSupport": "v2.0"} if tpm else {}),
        "TagSpecifications": [{"ResourceType": "image", "Tags": own}],
    }


def deregister(aws: Aws, image_id: str) -> None:
    """Remove an image. Its snapshots stay. An image that is gone is no error."""
    _unless_gone(aws, "deregister_image", ImageId=image_id)


def delete_snapshot(aws: Aws, snapshot_id: str) -> None:
    """Delete a snapshot, complete or not. A snapshot that is gone is no error."""
    _unless_gone(aws, "delete_snapshot", SnapshotId=snapshot_id)


def _unless_gone(aws: Aws, operation: str, **parameters: object) -> None:
    try:
        aws.call("ec2", operation, **parameters)
    except CloudError as error:
        if error.code not in _GONE:
            raise
