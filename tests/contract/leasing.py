"""A DHCP server for tests, which answers at once: `python leasing.py DEVICE OFFER`. OFFER is a JSON object: `ip`,
and by option number the hexadecimal value. For each packet it writes a line to its stdout: a JSON object with the
client's options by number, in hexadecimal.
"""

from __future__ import annotations

import json
import socket
import sys

COOKIE = b"\x63\x82\x53\x63"
SERVER = socket.inet_aton("192.168.9.1")


def options_of(data: bytes) -> dict[int, bytes]:
    """RFC 2132."""
    found: dict[int, bytes] = {}
    while data and data[0] != 255:
        if data[0] == 0:
            data = data[1:]
            continue
        found[data[0]] = data[2 : 2 + data[1]]
        data = data[2 + data[1] :]
    return found


def answer(packet: bytes, offer: dict[str, str]) -> bytes:
    kind = b"\x02" if options_of(packet[240:])[53] == b"\x01" else b"\x05"
    options = {53: kind, 54: SERVER, **{int(key): bytes.fromhex(offer[key]) for key in offer if key != "ip"}}
    said = b"".join(bytes((number, len(value))) + value for number, value in options.items())
    head = b"\x02" + packet[1:16] + socket.inet_aton(offer["ip"]) + SERVER + packet[24:236]
    return head + COOKIE + said + b"\xff"


def main() -> None:
    device, offer = sys.argv[1], json.loads(sys.argv[2])
    wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
    wire.bind(("", 67))
    print("{}", flush=True)
    while True:
        packet = wire.recv(2000)
        said = {str(number): value.hex() for number, value in options_of(packet[240:]).items()}
        print(json.dumps(said), flush=True)
        wire.sendto(answer(packet, offer), ("255.255.255.255", 68))


if __name__ == "__main__":
    main()
