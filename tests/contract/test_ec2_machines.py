"""The emulator's actions for machines and volumes, over real HTTP. No machine boots here (machinebox.py)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from quickstart.ec2.create import create
from quickstart.ec2.emulator.account import BLOCK_BYTES
from quickstart.ec2.emulator.faults import Trouble
from quickstart.ec2.emulator.fleet import State
from quickstart.errors import CloudError, DeniedError
from quickstart.host.progress import Quiet
from tests.contract.ec2box import emulated, left_in, made_source, own, wanted
from tests.contract.machinebox import CONSOLE, Account, StandIns, id_of

# Parameters of RunInstances, and the code of EC2's answer.
REFUSED: tuple[tuple[dict[str, object], str], ...] = (
    ({"ImageId": "ami-00000000000000000"}, "InvalidAMIID.NotFound"),
    ({"InstanceType": "m1.small"}, "UnsupportedOperation"),
    ({"MinCount": 2}, "InvalidParameterValue"),
    ({"MaxCount": 17}, "VcpuLimitExceeded"),
    ({"SecurityGroupIds": ["sg-00000000000000009"]}, "InvalidGroup.NotFound"),
    ({"SubnetId": "subnet-00000000000000009"}, "InvalidSubnetID.NotFound"),
    ({"KeyName": "mine"}, "UnsupportedOperation"),
    ({"UserData": "x" * 16385}, "InvalidParameterValue"),
    ({"MetadataOptions": {"HttpProtocolIpv6": "enabled"}}, "UnsupportedOperation"),
    (
        {"BlockDeviceMappings": [{"DeviceName": "/dev/sdb", "Ebs": {"VolumeSize": 1}}]},
        "UnsupportedOperation",
    ),
    (
        {"BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeInitializationRate": 100}}]},
        "UnsupportedOperation",
    ),
    (
        {"TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "aws:x", "Value": ""}]}]},
        "InvalidParameterValue",
    ),
    ({"TagSpecifications": [{"ResourceType": "image", "Tags": []}]}, "InvalidParameterValue"),
    ({"DryRun": True}, "DryRunOperation"),
)


@pytest.fixture(name="account")
def _account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    monkeypatch.setenv("HOME", str(tmp_path))
    source, standing = made_source(tmp_path), StandIns()
    with emulated(tmp_path, hypervisor=standing) as emulator:
        aws = own(monkeypatch, emulator)
        made = create(aws, wanted(source), Quiet(), resume=False)
        yield Account(aws, emulator, standing, made, source.disk)


def test_a_machine_lives_and_nothing_of_it_is_left(account: Account) -> None:
    tagged = [
        {"ResourceType": kind, "Tags": [{"Key": "run", "Value": kind}]} for kind in ("instance", "volume")
    ]
    answer = account.run(TagSpecifications=tagged, UserData="#!/bin/sh\n")
    identifier = id_of(answer)
    assert answer["Instances"][0]["State"] == {"Code": 0, "Name": "pending"}
    there = account.wait(identifier, "running")
    assert there["PublicIpAddress"].startswith("127.")
    assert there["PrivateIpAddress"].startswith("172.31.")
    assert (there["BootMode"], there["CurrentInstanceBootMode"]) == ("uefi-preferred", "uefi")
    assert there["MetadataOptions"]["HttpTokens"] == "required"
    assert there["Tags"] == [{"Key": "run", "Value": "instance"}]
    hardware = account.standing.machines[identifier].hardware
    assert hardware.metadata.user_data == b"#!/bin/sh\n"
    assert hardware.metadata.items["instance-id"] == identifier
    assert hardware.metadata.items["local-ipv4"] == there["PrivateIpAddress"]
    assert 80 in hardware.open_ports
    (volume,) = account.aws.call("ec2", "describe_volumes")["Volumes"]
    assert (volume["State"], volume["Attachments"][0]["InstanceId"]) == ("in-use", identifier)
    assert volume["Tags"] == [{"Key": "run", "Value": "volume"}]
    with pytest.raises(CloudError, match="VolumeInUse"):
        account.aws.call("ec2", "delete_volume", VolumeId=volume["VolumeId"])
    account.aws.call("ec2", "terminate_instances", InstanceIds=[identifier])
    gone = account.wait(identifier, "terminated")
    assert gone["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    assert "PublicIpAddress" not in gone
    assert account.aws.call("ec2", "describe_volumes")["Volumes"] == []
    assert account.standing.machines == {}
    # Twice is no error.
    account.aws.call("ec2", "terminate_instances", InstanceIds=[identifier])
    assert left_in(account.emulator) == [account.image.image_id, account.image.snapshot_id]


def test_the_volume_has_noise_where_the_snapshot_has_no_block(account: Account) -> None:
    identifier = id_of(account.run())
    account.wait(identifier, "running")
    volume = account.standing.machines[identifier].hardware.disk()
    written = set(account.image.plan.written)
    with volume.open("rb") as there, account.disk.open("rb") as here:
        for number in range((account.image.plan.volume_gib << 30) // BLOCK_BYTES):
            data = there.read(BLOCK_BYTES)
            if number in written:
                assert data == os.pread(here.fileno(), BLOCK_BYTES, number * BLOCK_BYTES).ljust(
                    BLOCK_BYTES, b"\0"
                )
            else:
                # Noise has nearly all values of a byte nearly equally often.
                assert data.count(0) < BLOCK_BYTES // 128
    account.aws.call("ec2", "deregister_image", ImageId=account.image.image_id)
    account.aws.call("ec2", "delete_snapshot", SnapshotId=account.image.snapshot_id)
    assert not volume.exists()


def test_a_token_launches_once(account: Account) -> None:
    first = account.run(ClientToken="token-1")
    again = account.run(ClientToken="token-1")
    assert (id_of(again), again["ReservationId"]) == (id_of(first), first["ReservationId"])
    with pytest.raises(CloudError, match="IdempotentParameterMismatch"):
        account.run(ClientToken="token-1", InstanceType="t3.small")
    assert id_of(account.run(ClientToken="token-2")) != id_of(first)
    assert len(account.emulator.fleet.instances) == 2


def test_a_system_that_switches_itself_off(account: Account) -> None:
    stays = id_of(account.run())
    goes = id_of(account.run(InstanceInitiatedShutdownBehavior="terminate"))
    for identifier in (stays, goes):
        account.wait(identifier, "running")
        account.standing.machines[identifier].off.set()
    assert account.wait(goes, "terminated")["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
    account.wait(stays, "stopped")
    # Its volume is kept, and costs money.
    assert len(account.emulator.fleet.volumes) == 1
    account.aws.call("ec2", "terminate_instances", InstanceIds=[stays])
    account.wait(stays, "terminated")
    assert account.emulator.fleet.volumes == {}


def test_a_machine_that_cannot_start(account: Account) -> None:
    account.standing.fails = "t3.nano"
    gone = account.wait(id_of(account.run(InstanceType="t3.nano")), "terminated")
    assert gone["StateReason"]["Code"] == "Server.InternalError"
    assert account.emulator.fleet.volumes == {}


def test_the_console_is_old_unless_the_latest_is_asked_for(account: Account) -> None:
    identifier = id_of(account.run())
    account.wait(identifier, "running")
    assert "Output" not in account.aws.call("ec2", "get_console_output", InstanceId=identifier)
    # botocore decodes it.
    latest = account.aws.call("ec2", "get_console_output", InstanceId=identifier, Latest=True)
    assert latest["Output"] == CONSOLE.decode()
    account.aws.call("ec2", "terminate_instances", InstanceIds=[identifier])
    account.wait(identifier, "terminated")
    assert account.aws.call("ec2", "get_console_output", InstanceId=identifier)["Output"] == CONSOLE.decode()


def test_what_ec2_refuses_leaves_nothing(account: Account) -> None:
    for others, code in REFUSED:
        with pytest.raises(CloudError) as caught:
            account.run(**others)
        assert caught.value.code == code, others
    assert account.emulator.fleet.instances == {}
    assert account.emulator.fleet.volumes == {}


def test_a_larger_volume_and_never_a_smaller_one(account: Account) -> None:
    def sized(gib: int) -> list[dict[str, object]]:
        return [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": gib, "DeleteOnTermination": False}}]

    identifier = id_of(account.run(BlockDeviceMappings=sized(2)))
    account.wait(identifier, "running")
    assert account.standing.machines[identifier].hardware.disk().stat().st_size == 2 << 30
    account.aws.call("ec2", "terminate_instances", InstanceIds=[identifier])
    account.wait(identifier, "terminated")
    (volume,) = account.aws.call("ec2", "describe_volumes")["Volumes"]
    assert (volume["State"], volume["Size"]) == ("available", 2)
    account.aws.call("ec2", "delete_volume", VolumeId=volume["VolumeId"])
    assert account.emulator.fleet.volumes == {}


def test_machines_are_found_by_tags_and_states(account: Account) -> None:
    def tagged(value: str) -> list[dict[str, object]]:
        return [{"ResourceType": "instance", "Tags": [{"Key": "bench", "Value": value}]}]

    one, two = (id_of(account.run(TagSpecifications=tagged(value))) for value in ("a", "b"))
    account.aws.call("ec2", "create_tags", Resources=[two], Tags=[{"Key": "late", "Value": "yes"}])

    def found(**filters: list[str]) -> list[str]:
        rows = [{"Name": name.replace("_", ":", 1), "Values": values} for name, values in filters.items()]
        pages = account.aws.pages("ec2", "describe_instances", "Reservations", Filters=rows)
        return [each["InstanceId"] for row in pages for each in row["Instances"]]

    assert found(tag_bench=["a"]) == [one]
    assert sorted(found(tag_bench=["*"])) == sorted((one, two))
    assert found(tag_late=["yes"]) == [two]
    account.wait(one, "running")
    account.aws.call("ec2", "terminate_instances", InstanceIds=[one])
    account.wait(one, "terminated")
    state = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    answer = account.aws.call("ec2", "describe_instances", Filters=state)
    assert [each["Instances"][0]["InstanceId"] for each in answer["Reservations"]] == [two]
    groups = account.aws.call("ec2", "describe_security_groups")["SecurityGroups"]
    assert [each["GroupName"] for each in groups] == ["default", "web", "databases"]


def test_without_a_hypervisor_and_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    source = made_source(tmp_path)
    with emulated(tmp_path) as emulator:
        aws = own(monkeypatch, emulator)
        made = create(aws, wanted(source), Quiet(), resume=False)
        with pytest.raises(CloudError, match="starts no machines"):
            Account(aws, emulator, StandIns(), made, source.disk).run()
    policy = {"Statement": [{"Effect": "Allow", "Action": ["ec2:DescribeInstances", "ec2:RunInstances"]}]}
    other = tmp_path / "other"
    other.mkdir()
    with emulated(other, policy=policy, hypervisor=StandIns()) as emulator:
        refused = Account(own(monkeypatch, emulator), emulator, StandIns(), made, source.disk)
        with pytest.raises(DeniedError, match="ec2:CreateTags"):
            refused.run(
                TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "b"}]}]
            )
        with pytest.raises(DeniedError, match="ec2:TerminateInstances"):
            refused.aws.call("ec2", "terminate_instances", InstanceIds=["i-00000000000000000"])


def test_all_machines_end_with_the_emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    source, standing = made_source(tmp_path), StandIns()
    trouble = Trouble(unknown_for_s=0.3)
    with emulated(tmp_path, trouble, hypervisor=standing) as emulator:
        aws = own(monkeypatch, emulator)
        account = Account(
            aws, emulator, standing, create(aws, wanted(source), Quiet(), resume=False), source.disk
        )
        identifier = id_of(account.run())
        with pytest.raises(CloudError, match=r"InvalidInstanceID\.NotFound"):
            account.instance(identifier)
        time.sleep(0.4)
        account.wait(identifier, "running")
    assert standing.machines == {}
    assert emulator.fleet.instances[identifier].state is State.TERMINATED
    assert emulator.fleet.instances[identifier].console == CONSOLE
