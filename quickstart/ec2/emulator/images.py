"""The actions of EC2 for images and snapshots. They keep what EC2 keeps: architecture, boot mode, ENA, TPM, IMDS, mappings
and tags.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from quickstart.ec2.emulator.account import ACCOUNT_ID, Account, Image, Snapshot, new_id, snapshots_of
from quickstart.ec2.emulator.faults import ApiError
from quickstart.ec2.emulator.tagging import passes, tag_rows, tags_of
from quickstart.ec2.emulator.wire import page_of

_NAME = re.compile(r"[A-Za-z0-9()\[\]. /\\'@_-]{3,128}")
_MOST_PAGE = 1000
_KEPT = (
    "Name",
    "Description",
    "Architecture",
    "RootDeviceName",
    "VirtualizationType",
    "BootMode",
    "EnaSupport",
)

Given = Mapping[str, Any]


def register_image(account: Account, given: Given) -> dict[str, Any]:
    name = given.get("Name", "")
    if not _NAME.fullmatch(name):
        raise ApiError("InvalidAMIName.Malformed", "AMI names must be between 3 and 128 characters long.")
    if any(each.given.get("Name") == name for each in account.images.values()):
        raise ApiError("InvalidAMIName.Duplicate", f"AMI name {name} is already in use by another AMI")
    if not str(given.get("Description", "")).isprintable():
        raise ApiError("InvalidParameterValue", "The description has a character that cannot be printed.")
    if given.get("ImageLocation"):
        raise ApiError("UnsupportedOperation", "The emulator has no images in S3.")
    if given.get("VirtualizationType") != "hvm":
        raise ApiError("InvalidParameterCombination", "The emulator has images with hvm only.")
    mappings = given.get("BlockDeviceMappings", ())
    roots = [each for each in mappings if each.get("DeviceName") == given.get("RootDeviceName")]
    if len(roots) != 1 or not roots[0].get("Ebs", {}).get("SnapshotId"):
        raise ApiError("InvalidBlockDeviceMapping", "The root device is not in the block device mapping.")
    for mapping in mappings:
        _check_mapping(account, mapping)
    if given.get("TpmSupport") and given.get("BootMode") != "uefi":
        raise ApiError("InvalidParameterCombination", "TpmSupport requires the boot mode uefi.")
    specifications = given.get("TagSpecifications", ())
    if any(each.get("ResourceType") not in ("image", "snapshot") for each in specifications):
        raise ApiError("InvalidParameterValue", "Tag specifications are for images and snapshots.")
    image = Image(
        id=new_id("ami"),
        given=given,
        tags=tags_of([tag for each in specifications for tag in each.get("Tags", ())]),
        began_at_s=account.now(),
        created=account.today(),
    )
    account.images[image.id] = image
    return {"ImageId": image.id}


def _check_mapping(account: Account, mapping: Given) -> None:
    ebs = mapping.get("Ebs", {})
    if identifier := ebs.get("SnapshotId"):
        snapshot = account.snapshot(identifier)
        if account.state(snapshot) != "completed":
            raise ApiError("IncorrectState", f"The snapshot {identifier} is not completed")
        if ebs.get("VolumeSize", snapshot.volume_gib) < snapshot.volume_gib:
            raise ApiError("InvalidBlockDeviceMapping", "The volume is smaller than its snapshot.")
    if "Encrypted" in ebs and identifier:
        raise ApiError("InvalidParameter", "The parameter Encrypted is not supported here.")


def describe_images(account: Account, given: Given) -> dict[str, Any]:
    if unknown := [each for each in given.get("Owners", ()) if each not in ("self", ACCOUNT_ID)]:
        raise ApiError("UnsupportedOperation", f"The emulator has no images of {unknown[0]}.")
    if wanted := given.get("ImageIds"):
        images = [account.image(each) for each in wanted]
    else:
        images = [each for each in account.images.values() if account.is_known(each.began_at_s)]
    found = [each for each in images if passes(given.get("Filters", ()), _facts(each), each.tags)]
    page, rest = page_of(sorted(found, key=lambda each: each.id), given, _MOST_PAGE)
    return {"Images": [_document(account, each) for each in page], **rest}


def _facts(image: Image) -> dict[str, str]:
    return {
        "name": str(image.given["Name"]),
        "image-id": image.id,
        "state": "available",
        "boot-mode": str(image.given.get("BootMode", "")),
    }


def _document(account: Account, image: Image) -> dict[str, Any]:
    given = image.given
    mappings = []
    for mapping in given.get("BlockDeviceMappings", ()):
        snapshot = account.snapshots.get(mapping.get("Ebs", {}).get("SnapshotId", ""))
        size = {"VolumeSize": snapshot.volume_gib} if snapshot else {}
        mappings.append({**mapping, "Ebs": {**size, "Encrypted": False, **mapping.get("Ebs", {})}})
    return {
        **{name: given[name] for name in _KEPT if name in given},
        **{name: given[name] for name in ("TpmSupport", "ImdsSupport") if name in given},
        "ImageId": image.id,
        "ImageLocation": f"{ACCOUNT_ID}/{given['Name']}",
        "State": "available",
        "OwnerId": ACCOUNT_ID,
        "CreationDate": image.created,
        "Public": False,
        "ImageType": "machine",
        "Hypervisor": "xen",
        "RootDeviceType": "ebs",
        "BlockDeviceMappings": mappings,
        "Tags": tag_rows(image.tags),
    }


def deregister_image(account: Account, given: Given) -> dict[str, Any]:
    image = account.image(given["ImageId"])
    del account.images[image.id]
    for identifier in snapshots_of(image.given):
        until_s = account.now() + account.trouble.unknown_for_s
        account.released.setdefault(identifier, {})[image.id] = until_s
    if given.get("DeleteAssociatedSnapshots"):
        for identifier in snapshots_of(image.given):
            account.delete_snapshot(identifier)
    return {"Return": True}


def describe_snapshots(account: Account, given: Given) -> dict[str, Any]:
    if wanted := given.get("SnapshotIds"):
        snapshots = [account.snapshot(each) for each in wanted]
    else:
        snapshots = [each for each in account.snapshots.values() if account.is_known(each.began_at_s)]
    found = []
    for snapshot in snapshots:
        facts = {"snapshot-id": snapshot.id, "status": account.state(snapshot)}
        if passes(given.get("Filters", ()), facts, snapshot.tags):
            found.append(snapshot)
    page, rest = page_of(sorted(found, key=lambda each: each.id), given, _MOST_PAGE)
    return {"Snapshots": [_snapshot(account, each) for each in page], **rest}


def _snapshot(account: Account, snapshot: Snapshot) -> dict[str, Any]:
    return {
        "SnapshotId": snapshot.id,
        "OwnerId": ACCOUNT_ID,
        "State": account.state(snapshot),
        "StartTime": snapshot.began,
        "Progress": "100%" if account.state(snapshot) == "completed" else "0%",
        "Description": snapshot.description,
        "VolumeSize": snapshot.volume_gib,
        "VolumeId": "vol-ffffffff",
        "Encrypted": False,
        "Tags": tag_rows(snapshot.tags),
    }


def delete_snapshot(account: Account, given: Given) -> dict[str, Any]:
    account.delete_snapshot(given["SnapshotId"])
    return {}


ACTIONS: Mapping[str, Callable[[Account, Given], dict[str, Any]]] = {
    "RegisterImage": register_image,
    "DescribeImages": describe_images,
    "DeregisterImage": deregister_image,
    "DescribeSnapshots": describe_snapshots,
    "DeleteSnapshot": delete_snapshot,
}
