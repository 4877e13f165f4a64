"""The instance metadata service of the emulated EC2, and the arguments of its machines."""

from __future__ import annotations

from ipaddress import IPv4Address
from pathlib import Path

from quickstart.ec2.emulator.catalogue import TYPES
from quickstart.ec2.emulator.hardware import Address, Hardware, mac_of
from quickstart.ec2.emulator.hypervisor import inner_ports, qemu_arguments
from quickstart.ec2.emulator.metadata import Metadata, Service
from quickstart.launch.accel import tcg
from quickstart.model.words import Firmware

USER_DATA = b"#cloud-config\n\x00password"
ITEMS = {
    "instance-id": "i-0123",
    "local-hostname": "ip-172-31-0-16.internal",
    "network/interfaces/macs/02:00/mac": "02:00",
}


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def service(**others: object) -> tuple[Service, Clock]:
    clock = Clock()
    given = {"items": ITEMS, "document": {"region": "eu-central-1"}, "user_data": USER_DATA} | others
    return Service(Metadata(**given), clock), clock  # type: ignore[arg-type]


def token_of(asked: Service, ttl: str = "60") -> str:
    answer = asked.answer("PUT", "/latest/api/token", {"x-aws-ec2-metadata-token-ttl-seconds": ttl})
    assert answer.status == 200
    return answer.body.decode()


def got(asked: Service, path: str, token: str) -> tuple[int, bytes]:
    answer = asked.answer("GET", path, {"x-aws-ec2-metadata-token": token})
    return answer.status, answer.body


def test_only_a_token_opens_the_service_and_only_for_its_time() -> None:
    asked, clock = service()
    assert asked.answer("GET", "/latest/meta-data/instance-id", {}).status == 401
    assert got(asked, "/latest/meta-data/instance-id", "A" * 56) == (401, b"401 - Unauthorized\n")
    token = token_of(asked)
    assert len(token) == 56
    assert got(asked, "/latest/meta-data/instance-id", token) == (200, b"i-0123")
    clock.now_s += 60
    assert got(asked, "/latest/meta-data/instance-id", token)[0] == 401


def test_who_gets_no_token() -> None:
    asked, _ = service()
    header = "x-aws-ec2-metadata-token-ttl-seconds"
    for ttl in ("", "0", "21601", "-1", "a", "1e3", "١"):  # noqa: RUF001
        assert asked.answer("PUT", "/latest/api/token", {header: ttl}).status == 400, ttl
    behind = {header: "60", "x-forwarded-for": "10.0.0.1"}
    assert asked.answer("PUT", "/latest/api/token", behind).status == 403
    assert asked.answer("PUT", "/latest/meta-data/", {header: "60"}).status == 403
    assert asked.answer("POST", "/latest/api/token", {header: "60"}).status == 405


def test_the_paths() -> None:
    asked, _ = service()
    token = token_of(asked)
    for path, wanted in {
        "/latest/meta-data/": b"instance-id\nlocal-hostname\nnetwork/",
        "/2021-03-23/meta-data/network/interfaces/macs": b"02:00/",
        "/latest/meta-data/network/interfaces/macs/02:00/mac": b"02:00",
        "/latest/meta-data/network/interfaces/macs/02%3A00/mac": b"02:00",
        "/latest//meta-data//instance-id": b"i-0123",
        "/latest/user-data": USER_DATA,
        "/latest": b"dynamic\nmeta-data\nuser-data",
    }.items():
        assert got(asked, path, token) == (200, wanted), path
    assert b'"region": "eu-central-1"' in got(asked, "/latest/dynamic/instance-identity/document", token)[1]
    for path in ("/1999-01-01/meta-data/", "/latest/meta-data/none", "/latest/meta-data/instance-id/x", "/x"):
        assert got(asked, path, token)[0] == 404, path


def test_a_machine_without_user_data_without_tokens_and_without_the_service() -> None:
    asked, _ = service(user_data=None)
    assert got(asked, "/latest/user-data", token_of(asked))[0] == 404
    assert b"user-data" not in got(asked, "/latest/", token_of(asked))[1]
    old, _ = service(needs_token=False)
    assert old.answer("GET", "/latest/user-data", {}).body == USER_DATA
    # A wrong token is refused all the same.
    assert got(old, "/latest/user-data", "x")[0] == 401
    off, _ = service(is_enabled=False)
    assert (
        off.answer("PUT", "/latest/api/token", {"x-aws-ec2-metadata-token-ttl-seconds": "60"}).status == 403
    )


def test_tokens_without_end_take_no_memory_without_end() -> None:
    asked, _ = service()
    first = token_of(asked)
    newest = [token_of(asked) for _ in range(300)][-1]
    assert got(asked, "/latest/user-data", first)[0] == 401
    assert got(asked, "/latest/user-data", newest)[0] == 200


def test_addresses_are_of_their_networks() -> None:
    public = [IPv4Address(Address(number, 57_340).public) for number in range(3600)]
    assert len(set(public)) == 3600
    assert all(IPv4Address("127.16.0.0") < each < IPv4Address("127.240.0.0") for each in public)
    assert Address(1, 7).public != Address(1, 8).public
    seen = {Address(number, 0).private for number in range(3600)}
    assert len(seen) == 3600
    for address in seen:
        low, high = (int(word) for word in address.split(".")[2:])
        assert 0 <= low < 15
        assert 15 <= high < 255


def hardware(firmware: Firmware) -> Hardware:
    return Hardware(
        instance_id="i-0123",
        volume_id="vol-0456",
        type=TYPES["t3.small"],
        firmware=firmware,
        mac=mac_of("i-0123"),
        uuid="ec200000-0000-0000-0000-000000000000",
        private_address="172.31.0.16",
        public_address="127.31.0.16",
        domain="eu-central-1.compute.internal",
        open_ports=(22, 80),
        metadata=Metadata(items=ITEMS, document={}, user_data=USER_DATA),
        disk=Path,
    )


def test_a_machine_has_an_nvme_disk_and_amazons_names() -> None:
    words = qemu_arguments(hardware(Firmware.BIOS), tcg(""), None, 7, 8)
    text = " ".join(words)
    assert "-device nvme,drive=root,serial=vol0456,addr=4,bootindex=0" in text
    assert "type=1,manufacturer=Amazon EC2,product=t3.small,serial=ec200000-" in text
    assert "-smp 2 -m 2048" in text
    # So the card is ens5, as in EC2. Images name it in the configuration of their network.
    assert "-M pc " in text
    assert ",addr=5,romfile=" in text
    assert "pflash" not in text
    assert "spawn=deny" in text
    # The ports of the security group, at 127.0.0.1 of the machine's own network.
    assert inner_ports(hardware(Firmware.BIOS)) == {22: 20000, 80: 20001}
    assert "hostfwd=tcp:127.0.0.1:20001-:80" in text
    # Any user of the host sees a program's arguments.
    assert "password" not in text
    firmware = (Path("code"), Path("variables"))
    assert "unit=1,file=variables" in " ".join(
        qemu_arguments(hardware(Firmware.UEFI), tcg(""), firmware, 7, 8)
    )
