"""What every account of the emulator has: sizes of machines, a subnet and two security groups."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class InstanceType:
    """A size of a machine."""

    name: str
    vcpus: int
    memory_mib: int


# Amazon EC2 Instance Types Guide. All of them are Nitro, so their volumes are NVMe disks.
TYPES = {
    each.name: each
    for each in (
        InstanceType(name="t3.nano", vcpus=2, memory_mib=512),
        InstanceType(name="t3.micro", vcpus=2, memory_mib=1024),
        InstanceType(name="t3.small", vcpus=2, memory_mib=2048),
        InstanceType(name="t3.medium", vcpus=2, memory_mib=4096),
        InstanceType(name="c5.large", vcpus=2, memory_mib=4096),
        InstanceType(name="m5.large", vcpus=2, memory_mib=8192),
    )
}


@dataclass(frozen=True, kw_only=True)
class Group:
    """A security group. ``ports`` are the ports of TCP that it opens to everybody."""

    id: str
    name: str
    ports: tuple[int, ...]


GROUPS = {
    each.id: each
    for each in (
        Group(id="sg-00000000000000001", name="default", ports=()),
        Group(id="sg-00000000000000002", name="web", ports=(80, 443, 8080)),
        Group(id="sg-00000000000000003", name="databases", ports=(3306, 5432, 6379)),
    )
}
SUBNET_ID, VPC_ID = "subnet-00000000000000001", "vpc-00000000000000001"
