"""A message bus of our own: fakebus.py SOCKET HOW [GROUP]. It knows what the starter and the caretaker ask, and answers HOW.

Its messages are those of "Message Protocol" in the D-Bus specification; with ``swapped`` not in the machine's byte order.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import time
from pathlib import Path

CALL, RETURN, ERROR, SIGNAL = 1, 2, 3, 4
PATH, INTERFACE, MEMBER, REPLY, DESTINATION, SENDER, SIGNATURE = 1, 2, 3, 5, 6, 7, 8
DRIVER = "org.freedesktop.DBus"
SYSTEMD = "org.freedesktop.systemd1"
Field = tuple[int, str, str | int]


def string(value: str, order: str = "<") -> bytes:
    data = value.encode()
    return struct.pack(f"{order}I", len(data)) + data + b"\0"


def strings(*values: str, order: str = "<") -> bytes:
    whole = b""
    for value in values:
        whole += bytes(-len(whole) % 4) + string(value, order)
    return whole


def message(kind: int, fields: list[Field], body: bytes = b"", order: str = "<") -> bytes:
    head = b""
    for code, kind_of, value in fields:
        head += bytes(-len(head) % 8) + bytes([code, 1]) + kind_of.encode() + b"\0"
        if isinstance(value, int):
            head += struct.pack(f"{order}I", value)
        elif kind_of == "g":
            head += bytes([len(value)]) + value.encode() + b"\0"
        else:
            head += string(value, order)
    first = (b"l" if order == "<" else b"B") + bytes([kind, 0, 1])
    whole = first + struct.pack(f"{order}III", len(body), 7, len(head)) + head
    return whole + bytes(-len(whole) % 8) + body


def answer(serial: int, body: bytes = b"", signature: str = "", order: str = "<") -> bytes:
    fields: list[Field] = [(REPLY, "u", serial), (SENDER, "s", DRIVER)]
    fields += [(SIGNATURE, "g", signature)] if signature else []
    return message(RETURN, fields, body, order)


def error(serial: int, order: str = "<") -> bytes:
    return message(ERROR, [(4, "s", "org.example.No"), (REPLY, "u", serial)], string("no", order), order)


def signal(member: str, *values: str, order: str = "<") -> bytes:
    fields: list[Field] = [
        (PATH, "o", "/"),
        (INTERFACE, "s", DRIVER),
        (MEMBER, "s", member),
        (SENDER, "s", DRIVER),
    ]
    return message(
        SIGNAL, [*fields, (SIGNATURE, "g", "s" * len(values))], strings(*values, order=order), order
    )


OWNER = signal("NameOwnerChanged", SYSTEMD, "", ":1.9")
REQUEST = signal("ActivationRequest", "late\n.service")
TO_SYSTEMD = message(
    CALL, [(PATH, "o", "/"), (MEMBER, "s", "NameOwnerChanged"), (DESTINATION, "s", SYSTEMD)], string("x")
)
# What a watcher gets of its own name, and of systemd's when it goes.
NOTHING = (
    signal("NameLost", ":1.1")
    + signal("NameOwnerChanged", SYSTEMD, ":1.9", "")
    + signal("Other", "late.service")
)
BROKEN = {
    "nonsense": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "long-header": b"l\2\0\1" + struct.pack("<III", 0, 7, 1 << 20),
    "long-body": b"l\2\0\1" + struct.pack("<III", 1 << 31, 7, 0),
    "half": b"l\2\0\1" + struct.pack("<III", 0, 7, 64),
    "field": message(RETURN, [(77, "s", "x")]),
    "type": message(RETURN, [(REPLY, "s", "x")]),
    "no-end": b"l\2\0\1" + struct.pack("<III", 0, 7, 16) + b"\3\1s\0" + struct.pack("<I", 7) + b"abcdefgh",
    "beyond": b"l\2\0\1"
    + struct.pack("<III", 0, 7, 16)
    + b"\3\1s\0"
    + struct.pack("<I", 1 << 31)
    + b"abcdefgh",
}


class Client:
    def __init__(self, connection: socket.socket) -> None:
        self.file, self.send = connection.makefile("rb"), connection.sendall

    def greet(self) -> None:
        assert self.file.readline().startswith(b"\0AUTH EXTERNAL ")
        self.send(b"OK 0123456789abcdef\r\n")
        assert self.file.readline() == b"BEGIN\r\n"

    def call(self) -> tuple[int, str]:
        """The serial and the member of the next call; ("", 0) at the end."""
        fixed = self.file.read(16)
        if len(fixed) < 16:
            return 0, ""
        body, serial, fields = struct.unpack("<III", fixed[4:])
        head = self.file.read(fields + -fields % 8)
        self.file.read(body)
        known = ("Hello", "GetNameOwner", "GetConnectionUnixProcessID", "BecomeMonitor")
        return serial, next(name for name in known if f"\0{name}\0".encode() in head)


def owner(client: Client, how: str, group: Path) -> None:
    """Behave as the bus of a unit that asks for its name. ``how`` may be `owned`, `swapped`, `others`, `nobody`."""
    order, asked = ">" if how == "swapped" else "<", 0
    while True:
        serial, member = client.call()
        if member == "Hello":
            # What was not asked for comes before.
            client.send(
                signal("NameAcquired", ":1.1", order=order)
                + answer(99)
                + answer(serial, string(":1.1", order), "s", order)
            )
        elif member == "GetNameOwner":
            asked += 1
            late = how == "nobody" or asked < 3
            client.send(error(serial, order) if late else answer(serial, string(":1.7", order), "s", order))
        elif member:
            pid = 1 if how == "others" else int((group / "cgroup.procs").read_text().split()[0])
            client.send(answer(serial, struct.pack(f"{order}I", pid), "u", order))
        else:
            return


def watched(client: Client, how: str) -> None:
    """Behave as a bus that is watched: `served`, `late`, `asked`, `called`, `lost`, `refused`."""
    serial, _ = client.call()
    client.send(answer(serial, string(":1.1"), "s"))
    serial, _ = client.call()
    client.send(error(serial) if how == "refused" else answer(serial) + NOTHING)
    time.sleep(0.3)
    with contextlib.suppress(OSError):
        client.send({"asked": REQUEST, "late": REQUEST + REQUEST, "called": TO_SYSTEMD}.get(how, b""))
        if how in ("served", "late"):
            time.sleep(0.3)
            client.send(OWNER)
        if how != "lost":
            time.sleep(60)


def main(place: str, how: str, group: str = "") -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen()
        print("listening", flush=True)
        connection, _ = listener.accept()
        with connection:
            client = Client(connection)
            if how == "silent":
                time.sleep(60)
            client.greet()
            if how in BROKEN:
                client.call()
                client.send(BROKEN[how])
            elif how in ("owned", "swapped", "others", "nobody"):
                owner(client, how, Path(group))
            else:
                watched(client, how)


if __name__ == "__main__":
    main(*sys.argv[1:])
