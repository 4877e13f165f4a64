"""What a machine's metadata service says of it (Amazon EC2 User Guide, "Instance metadata categories"). All functions are
pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from quickstart.ec2.emulator.account import ACCOUNT_ID, Account
from quickstart.ec2.emulator.catalogue import SUBNET_ID, VPC_ID
from quickstart.ec2.emulator.hardware import Address, mac_of
from quickstart.ec2.emulator.orders import Order


def zone_of(region: str) -> str:
    """The only availability zone."""
    return f"{region}a"


def domain_of(region: str) -> str:
    """The domain of the machines' own names (Amazon VPC User Guide, "DNS attributes for your VPC")."""
    return "ec2.internal" if region == "us-east-1" else f"{region}.compute.internal"


def private_name(region: str, address: Address) -> str:
    return f"ip-{address.private.replace('.', '-')}.{domain_of(region)}"


def items(
    region: str, instance_id: str, reservation_id: str, address: Address, order: Order
) -> Mapping[str, str]:
    """The items below meta-data/."""
    mac, name = mac_of(instance_id), private_name(region, address)
    groups = "\n".join(group.name for group in order.groups)
    card = f"network/interfaces/macs/{mac}"
    tags = order.instance_tags if order.metadata_options["InstanceMetadataTags"] == "enabled" else {}
    return {
        "ami-id": order.image.id,
        "ami-launch-index": "0",
        "ami-manifest-path": "(unknown)",
        "block-device-mapping/ami": order.root["DeviceName"].removeprefix("/dev/"),
        "block-device-mapping/root": order.root["DeviceName"],
        "hostname": name,
        "instance-action": "none",
        "instance-id": instance_id,
        "instance-life-cycle": "on-demand",
        "instance-type": order.type.name,
        "local-hostname": name,
        "local-ipv4": address.private,
        "mac": mac,
        f"{card}/device-number": "0",
        f"{card}/interface-id": f"eni-{instance_id.removeprefix('i-')}",
        f"{card}/ipv4-associations/{address.public}": address.private,
        f"{card}/local-hostname": name,
        f"{card}/local-ipv4s": address.private,
        f"{card}/mac": mac,
        f"{card}/owner-id": ACCOUNT_ID,
        f"{card}/public-ipv4s": address.public,
        f"{card}/security-groups": groups,
        f"{card}/subnet-id": SUBNET_ID,
        f"{card}/subnet-ipv4-cidr-block": "172.31.0.0/20",
        f"{card}/vpc-id": VPC_ID,
        f"{card}/vpc-ipv4-cidr-block": "172.31.0.0/16",
        f"{card}/vpc-ipv4-cidr-blocks": "172.31.0.0/16",
        "placement/availability-zone": zone_of(region),
        "placement/region": region,
        "profile": "default-hvm",
        "public-ipv4": address.public,
        "reservation-id": reservation_id,
        "security-groups": groups,
        "services/domain": "amazonaws.com",
        "services/partition": "aws",
        **{f"tags/instance/{key}": value for key, value in tags.items()},
    }


def identity_document(
    account: Account, instance_id: str, address: Address, order: Order
) -> Mapping[str, str]:
    """The machine's identity document (Amazon EC2 User Guide, "Instance identity documents")."""
    return {
        "accountId": ACCOUNT_ID,
        "architecture": str(order.image.given.get("Architecture", "x86_64")),
        "availabilityZone": zone_of(account.region),
        "imageId": order.image.id,
        "instanceId": instance_id,
        "instanceType": order.type.name,
        "pendingTime": account.today().strftime("%Y-%m-%dT%H:%M:%SZ"),
        "privateIp": address.private,
        "region": account.region,
        "version": "2017-09-30",
    }
