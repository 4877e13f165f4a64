"""Read the parameters of RunInstances as EC2 does, and refuse what EC2 refuses (Amazon EC2 API Reference,
"RunInstances"). A parameter that the emulator has no meaning for is refused, and not ignored.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quickstart.ec2.emulator.account import Account, Image
from quickstart.ec2.emulator.catalogue import GROUPS, SUBNET_ID, TYPES, Group, InstanceType
from quickstart.ec2.emulator.faults import ApiError
from quickstart.ec2.emulator.tagging import tags_of
from quickstart.model.words import Firmware

Given = Mapping[str, Any]
_MOST_AT_ONCE = 20
# Amazon EC2 User Guide, "Run commands when you launch an EC2 instance with user data input".
_USER_DATA_BYTES = 16 * 1024
_KNOWN = frozenset(
    (
        *("ImageId", "InstanceType", "MinCount", "MaxCount", "ClientToken", "DryRun", "UserData"),
        *("MetadataOptions", "TagSpecifications", "SecurityGroupIds", "SubnetId", "BlockDeviceMappings"),
        *("InstanceInitiatedShutdownBehavior", "EbsOptimized"),
    )
)
_OF_VOLUMES = frozenset(("SnapshotId", "VolumeSize", "VolumeType", "DeleteOnTermination", "Encrypted"))
_OF_METADATA = frozenset(("HttpTokens", "HttpEndpoint", "HttpPutResponseHopLimit", "InstanceMetadataTags"))
_TAGGED = ("instance", "volume")


@dataclass(frozen=True, kw_only=True)
class Order:
    """What RunInstances is asked for. ``root`` is the mapping of the root device. ``stays`` says that a machine whose
    system switches it off is only stopped.
    """

    given: Given
    image: Image
    type: InstanceType
    most: int
    groups: tuple[Group, ...]
    metadata_options: Mapping[str, Any]
    root: Mapping[str, Any]
    firmware: Firmware
    user_data: bytes | None
    instance_tags: Mapping[str, str]
    volume_tags: Mapping[str, str]
    stays: bool


def order_of(account: Account, given: Given) -> Order:
    """The order in the parameters of a call. Raises ApiError when EC2 would refuse it, or when it asks for something that
    the emulator has not.
    """
    _check_known(given, _KNOWN, "RunInstances")
    if not given.get("ImageId"):
        raise ApiError("MissingParameter", "The request must contain the parameter ImageId")
    image = account.image(given["ImageId"])
    least, most = given["MinCount"], given["MaxCount"]
    if not 1 <= least <= most <= _MOST_AT_ONCE:
        raise ApiError("InvalidParameterValue", f"MinCount {least} and MaxCount {most} are not possible.")
    return Order(
        given=given,
        image=image,
        type=_type(given),
        most=most,
        groups=_groups(given),
        metadata_options=_metadata_options(image, given),
        root=_root_mapping(account, image, given),
        firmware=_firmware(image),
        user_data=_user_data(given),
        instance_tags=_tags(given, "instance"),
        volume_tags=_tags(given, "volume"),
        stays=given.get("InstanceInitiatedShutdownBehavior", "stop") == "stop",
    )


def _check_known(given: Given, known: frozenset[str], where: str) -> None:
    if unknown := sorted(set(given) - known):
        raise ApiError("UnsupportedOperation", f"The emulator has no {unknown[0]} for {where}.")


def _type(given: Given) -> InstanceType:
    # Without a type, EC2 takes m1.small, which boots no image of today.
    name = given.get("InstanceType", "m1.small")
    if name not in TYPES:
        raise ApiError("UnsupportedOperation", f"The emulator has no instance type {name}.")
    return TYPES[name]


def _groups(given: Given) -> tuple[Group, ...]:
    if given.get("SubnetId", SUBNET_ID) != SUBNET_ID:
        raise ApiError("InvalidSubnetID.NotFound", f"The subnet ID '{given['SubnetId']}' does not exist")
    default = next(each.id for each in GROUPS.values() if each.name == "default")
    wanted = given.get("SecurityGroupIds") or [default]
    for identifier in wanted:
        if identifier not in GROUPS:
            raise ApiError("InvalidGroup.NotFound", f"The security group '{identifier}' does not exist")
    return tuple(GROUPS[each] for each in dict.fromkeys(wanted))


def _metadata_options(image: Image, given: Given) -> Mapping[str, Any]:
    wanted = given.get("MetadataOptions", {})
    _check_known(wanted, _OF_METADATA, "the metadata service")
    default = "required" if image.given.get("ImdsSupport") == "v2.0" else "optional"
    return {
        "HttpTokens": default,
        "HttpEndpoint": "enabled",
        "HttpPutResponseHopLimit": 2 if default == "required" else 1,
        "InstanceMetadataTags": "disabled",
        **wanted,
    }


def _root_mapping(account: Account, image: Image, given: Given) -> Mapping[str, Any]:
    """The mapping of the root device. What the call says of it comes first."""
    name, mappings = image.given["RootDeviceName"], image.given["BlockDeviceMappings"]
    others = [each for each in given.get("BlockDeviceMappings", ()) if each.get("DeviceName") != name]
    if len(mappings) != 1 or others:
        raise ApiError("UnsupportedOperation", "The emulator has machines with one disk only.")
    ebs = dict(mappings[0]["Ebs"])
    for mapping in given.get("BlockDeviceMappings", ()):
        own = mapping.get("Ebs", {})
        _check_known(own, _OF_VOLUMES, "volumes")
        if own.get("SnapshotId", ebs["SnapshotId"]) != ebs["SnapshotId"]:
            raise ApiError("InvalidBlockDeviceMapping", "snapshotId cannot be modified on root device")
        if own.get("Encrypted"):
            raise ApiError("UnsupportedOperation", "The emulator has no encryption.")
        ebs |= own
    least_gib = account.snapshot(ebs["SnapshotId"]).volume_gib
    if ebs.setdefault("VolumeSize", least_gib) < least_gib:
        raise ApiError(
            "InvalidBlockDeviceMapping", f"Volume of size {ebs['VolumeSize']}GB is smaller than snapshot"
        )
    return {"DeviceName": name, "Ebs": ebs}


def _firmware(image: Image) -> Firmware:
    if image.given.get("TpmSupport"):
        raise ApiError("UnsupportedOperation", "The emulator has no machines with a TPM.")
    return Firmware.BIOS if image.given.get("BootMode", "legacy-bios") == "legacy-bios" else Firmware.UEFI


def _user_data(given: Given) -> bytes | None:
    if not given.get("UserData"):
        return None
    try:
        data = base64.b64decode(given["UserData"], validate=True)
    except (binascii.Error, ValueError) as error:
        raise ApiError("InvalidUserData.Malformed", "Invalid BASE64 encoding of user data.") from error
    if len(data) > _USER_DATA_BYTES:
        raise ApiError("InvalidParameterValue", f"User data is limited to {_USER_DATA_BYTES} bytes")
    return data


def _tags(given: Given, kind: str) -> Mapping[str, str]:
    specifications = given.get("TagSpecifications", ())
    if other := [each for each in specifications if each.get("ResourceType") not in _TAGGED]:
        raise ApiError(
            "InvalidParameterValue",
            f"'{other[0].get('ResourceType')}' is not a valid taggable resource type.",
        )
    wanted = [each for each in specifications if each["ResourceType"] == kind]
    return tags_of([tag for each in wanted for tag in each.get("Tags", ())])
