"""The actions of EC2 for machines and volumes (Amazon EC2 API Reference)."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from quickstart.ec2.emulator import facts
from quickstart.ec2.emulator.account import ACCOUNT_ID, Image, Snapshot, new_id
from quickstart.ec2.emulator.catalogue import GROUPS, SUBNET_ID, VPC_ID, Group
from quickstart.ec2.emulator.faults import ApiError
from quickstart.ec2.emulator.fleet import Fleet, Instance, State, Volume
from quickstart.ec2.emulator.freshvolume import fresh_volume
from quickstart.ec2.emulator.hardware import Address, Hardware, mac_of
from quickstart.ec2.emulator.metadata import Metadata
from quickstart.ec2.emulator.orders import Order, order_of
from quickstart.ec2.emulator.tagging import passes, tag_rows, tags_of
from quickstart.ec2.emulator.wire import page_of

Given = Mapping[str, Any]
_MOST_PAGE = 1000
_NETWORK = {"SubnetId": SUBNET_ID, "VpcId": VPC_ID}


def run_instances(fleet: Fleet, given: Given) -> dict[str, Any]:
    if earlier := _launched_before(fleet, given):
        return _reservation(fleet, earlier)
    order = order_of(fleet.account, given)
    fleet.check_room(order.most, order.type)
    reservation_id = new_id("r")
    return _reservation(fleet, [_launched(fleet, order, reservation_id) for _ in range(order.most)])


def _launched_before(fleet: Fleet, given: Given) -> Sequence[Instance]:
    """The machines of a call with the same token (Amazon EC2 API Reference, "Ensuring idempotency")."""
    token = given.get("ClientToken")
    earlier = [
        each
        for each in fleet.instances.values()
        if token and each.order.given.get("ClientToken") == token and not fleet.is_forgotten(each)
    ]
    if earlier and earlier[0].order.given != given:
        raise ApiError("IdempotentParameterMismatch", "The client token was used with other parameters.")
    return earlier


def _launched(fleet: Fleet, order: Order, reservation_id: str) -> Instance:
    account, identifier = fleet.account, new_id("i")
    volume = _volume(fleet, identifier, order)
    address = fleet.next_address()
    instance = Instance(
        id=identifier,
        reservation_id=reservation_id,
        order=order,
        hardware=_hardware(fleet, order, identifier, reservation_id, volume, address),
        volume_id=volume.id,
        tags=dict(order.instance_tags),
        launched=account.today(),
        began_at_s=account.now(),
    )
    fleet.add(instance, volume)
    return instance


def _volume(fleet: Fleet, instance_id: str, order: Order) -> Volume:
    ebs = order.root["Ebs"]
    return Volume(
        id=new_id("vol"),
        size_gib=int(ebs["VolumeSize"]),
        kind=str(ebs.get("VolumeType", "gp2")),
        snapshot_id=str(ebs["SnapshotId"]),
        instance_id=instance_id,
        device=str(order.root["DeviceName"]),
        is_deleted_with_instance=bool(ebs.get("DeleteOnTermination", True)),
        tags=dict(order.volume_tags),
        created=fleet.account.today(),
        began_at_s=fleet.account.now(),
    )


def _hardware(
    fleet: Fleet, order: Order, identifier: str, reservation_id: str, volume: Volume, address: Address
) -> Hardware:
    account = fleet.account
    snapshot = account.snapshot(volume.snapshot_id)
    options = order.metadata_options
    return Hardware(
        instance_id=identifier,
        volume_id=volume.id,
        type=order.type,
        firmware=order.firmware,
        mac=mac_of(identifier),
        uuid=_uuid(),
        private_address=address.private,
        public_address=address.public,
        domain=facts.domain_of(account.region),
        open_ports=tuple(sorted({port for group in order.groups for port in group.ports})),
        metadata=Metadata(
            items=facts.items(account.region, identifier, reservation_id, address, order),
            document=facts.identity_document(account, identifier, address, order),
            user_data=order.user_data,
            needs_token=options["HttpTokens"] == "required",
            is_enabled=options["HttpEndpoint"] == "enabled",
        ),
        disk=lambda: fresh_volume(account, snapshot, volume.size_gib),
    )


def _uuid() -> str:
    """Amazon EC2 User Guide, "Detect whether a host is an EC2 instance"."""
    digits = f"ec2{secrets.token_hex(15)[:29]}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _reservation(fleet: Fleet, instances: Sequence[Instance]) -> dict[str, Any]:
    return {
        "ReservationId": instances[0].reservation_id,
        "OwnerId": ACCOUNT_ID,
        "Instances": [_document(fleet, each) for each in instances],
    }


def _document(fleet: Fleet, instance: Instance) -> dict[str, Any]:
    order, hardware = instance.order, instance.hardware
    address = {}
    if instance.ended_at_s is None:
        address["PrivateIpAddress"] = hardware.private_address
        address |= {"PublicIpAddress": hardware.public_address} if instance.state is State.RUNNING else {}
    code, message = instance.reason
    return {
        "InstanceId": instance.id,
        "ImageId": order.image.id,
        "InstanceType": order.type.name,
        "State": {"Code": instance.state.code, "Name": instance.state.word},
        "StateTransitionReason": message,
        **({"StateReason": {"Code": code, "Message": message}} if code else {}),
        "LaunchTime": instance.launched,
        "Placement": {"AvailabilityZone": facts.zone_of(fleet.account.region), "Tenancy": "default"},
        **_NETWORK,
        **address,
        "Architecture": "x86_64",
        "BootMode": order.image.given.get("BootMode", "legacy-bios"),
        "CurrentInstanceBootMode": "uefi" if hardware.firmware.value == "uefi" else "legacy-bios",
        "ClientToken": order.given.get("ClientToken", ""),
        "EnaSupport": bool(order.image.given.get("EnaSupport", False)),
        "Hypervisor": "xen",
        "VirtualizationType": "hvm",
        "RootDeviceName": order.root["DeviceName"],
        "RootDeviceType": "ebs",
        "BlockDeviceMappings": _mappings(fleet, instance),
        "MetadataOptions": {"State": "applied", **order.metadata_options},
        "SecurityGroups": [{"GroupId": each.id, "GroupName": each.name} for each in order.groups],
        "Tags": tag_rows(instance.tags),
    }


def _mappings(fleet: Fleet, instance: Instance) -> list[dict[str, Any]]:
    volume = fleet.volumes.get(instance.volume_id)
    if volume is None or volume.instance_id is None:
        return []
    ebs = {
        "VolumeId": volume.id,
        "Status": "attached",
        "AttachTime": volume.created,
        "DeleteOnTermination": volume.is_deleted_with_instance,
    }
    return [{"DeviceName": volume.device, "Ebs": ebs}]


def describe_instances(fleet: Fleet, given: Given) -> dict[str, Any]:
    if wanted := given.get("InstanceIds"):
        instances = [fleet.instance(each) for each in wanted]
    else:
        instances = [each for each in fleet.instances.values() if fleet.is_shown(each)]
    chosen = [each for each in instances if passes(given.get("Filters", ()), _facts(each), each.tags)]
    page, rest = page_of(sorted(chosen, key=lambda each: each.id), given, _MOST_PAGE)
    return {"Reservations": [_reservation(fleet, [each]) for each in page], **rest}


def _facts(instance: Instance) -> dict[str, str]:
    return {
        "instance-id": instance.id,
        "instance-state-name": instance.state.word,
        "instance-type": instance.order.type.name,
        "image-id": instance.order.image.id,
        "client-token": str(instance.order.given.get("ClientToken", "")),
        "reservation-id": instance.reservation_id,
    }


def terminate_instances(fleet: Fleet, given: Given) -> dict[str, Any]:
    # One that is unknown, and none is terminated.
    doomed = [fleet.instance(each) for each in given["InstanceIds"]]
    changes = []
    for instance in doomed:
        before = instance.state
        fleet.terminate(instance)
        changes.append(
            {
                "InstanceId": instance.id,
                "PreviousState": {"Code": before.code, "Name": before.word},
                "CurrentState": {"Code": instance.state.code, "Name": instance.state.word},
            }
        )
    return {"TerminatingInstances": changes}


def get_console_output(fleet: Fleet, given: Given) -> dict[str, Any]:
    """Without Latest, EC2 answers what it has noted at the machine's last change of state, which is nothing for a machine
    that has just started.
    """
    instance = fleet.instance(given["InstanceId"])
    output = instance.console
    if given.get("Latest") and instance.machine is not None:
        output = instance.machine.console()
    return {
        "InstanceId": instance.id,
        "Timestamp": fleet.account.today(),
        **({"Output": base64.b64encode(output).decode("ascii")} if output else {}),
    }


def describe_volumes(fleet: Fleet, given: Given) -> dict[str, Any]:
    if wanted := given.get("VolumeIds"):
        volumes = [fleet.volume(each) for each in wanted]
    else:
        volumes = [each for each in fleet.volumes.values() if fleet.account.is_known(each.began_at_s)]
    chosen = []
    for volume in volumes:
        known = {"volume-id": volume.id, "status": _status(volume), "snapshot-id": volume.snapshot_id}
        if passes(given.get("Filters", ()), known, volume.tags):
            chosen.append(volume)
    page, rest = page_of(sorted(chosen, key=lambda each: each.id), given, _MOST_PAGE)
    return {"Volumes": [_volume_document(fleet, each) for each in page], **rest}


def _status(volume: Volume) -> str:
    return "available" if volume.instance_id is None else "in-use"


def _volume_document(fleet: Fleet, volume: Volume) -> dict[str, Any]:
    attachments = []
    if volume.instance_id is not None:
        attachments.append(
            {
                "Device": volume.device,
                "InstanceId": volume.instance_id,
                "State": "attached",
                "VolumeId": volume.id,
                "DeleteOnTermination": volume.is_deleted_with_instance,
            }
        )
    return {
        "VolumeId": volume.id,
        "Size": volume.size_gib,
        "SnapshotId": volume.snapshot_id,
        "State": _status(volume),
        "VolumeType": volume.kind,
        "CreateTime": volume.created,
        "AvailabilityZone": facts.zone_of(fleet.account.region),
        "Encrypted": False,
        "Attachments": attachments,
        "Tags": tag_rows(volume.tags),
    }


def delete_volume(fleet: Fleet, given: Given) -> dict[str, Any]:
    volume = fleet.volume(given["VolumeId"])
    if volume.instance_id is not None:
        raise ApiError("VolumeInUse", f"Volume {volume.id} is currently attached to {volume.instance_id}")
    del fleet.volumes[volume.id]
    return {}


def describe_security_groups(fleet: Fleet, given: Given) -> dict[str, Any]:
    groups: Iterable[Group] = GROUPS.values()
    if wanted := given.get("GroupIds"):
        if unknown := [each for each in wanted if each not in GROUPS]:
            raise ApiError("InvalidGroup.NotFound", f"The security group '{unknown[0]}' does not exist")
        groups = [GROUPS[each] for each in wanted]
    chosen = [
        each
        for each in groups
        if passes(given.get("Filters", ()), {"group-id": each.id, "group-name": each.name}, {})
    ]
    page, rest = page_of(chosen, given, _MOST_PAGE)
    return {"SecurityGroups": [_group_document(each) for each in page], **rest}


def _group_document(group: Group) -> dict[str, Any]:
    return {
        "GroupId": group.id,
        "GroupName": group.name,
        "Description": f"{group.name} group",
        "OwnerId": ACCOUNT_ID,
        "VpcId": VPC_ID,
        "IpPermissions": [
            {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
            for port in group.ports
        ],
    }


def create_tags(fleet: Fleet, given: Given) -> dict[str, Any]:
    resources = [_resource(fleet, each) for each in given["Resources"]]
    for resource in resources:
        resource.tags |= tags_of(given["Tags"])
    return {}


def _resource(fleet: Fleet, identifier: str) -> Image | Snapshot | Instance | Volume:
    kind, _, _ = identifier.partition("-")
    match kind:
        case "ami":
            return fleet.account.image(identifier)
        case "snap":
            return fleet.account.snapshot(identifier)
        case "i":
            return fleet.instance(identifier)
        case "vol":
            return fleet.volume(identifier)
    raise ApiError("InvalidID", f"The ID '{identifier}' is not valid")


ACTIONS: Mapping[str, Callable[[Fleet, Given], dict[str, Any]]] = {
    "RunInstances": run_instances,
    "DescribeInstances": describe_instances,
    "TerminateInstances": terminate_instances,
    "GetConsoleOutput": get_console_output,
    "DescribeVolumes": describe_volumes,
    "DeleteVolume": delete_volume,
    "DescribeSecurityGroups": describe_security_groups,
    "CreateTags": create_tags,
}
