"""The first inputs of the fuzz targets. They are valid, so that mutations of them pass the first checks."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.contract.fakebus import BROKEN, OWNER, REQUEST, answer, string

_MAGIC = b"IHAVEOPT"
# NBD_CMD_*: read, write, disconnect, flush, trim, write zeroes, and two that there are not.
_COMMANDS = (0, 1, 2, 3, 4, 6, 5, 77)


def seeds(target: str) -> tuple[bytes, ...]:
    """The inputs of a target by its name (fuzz_NAME.c)."""
    return {"volume": _volume, "agent": _agent, "unit": _unit, "parts": _parts}[target]()


def write_seeds(target: str, directory: Path) -> tuple[Path, ...]:
    """The same as files."""
    paths = []
    for index, seed in enumerate(seeds(target)):
        paths.append(directory / f"seed-{index:02}")
        paths[-1].write_bytes(seed)
    return tuple(paths)


def nbd_request(command: int, offset: int, length: int, flags: int = 0, data: bytes = b"") -> bytes:
    """An NBD request; the cookie is always the same."""
    return struct.pack(">IHHQQI", 0x25609513, flags, command, 7, offset, length) + data


def nbd_option(option: int, data: bytes, length: int | None = None) -> bytes:
    """An option of the handshake; its header may lie of the ``length``."""
    return _MAGIC + struct.pack(">II", option, len(data) if length is None else length) + data


def _volume() -> tuple[bytes, ...]:
    go = b"\0\0\0\3" + nbd_option(7, bytes(6))
    reads = b"".join(nbd_request(0, number * 4096, 4096) for number in range(20))
    mixed = b"".join(
        nbd_request(command, 4095, 513, data=b"x" * 513 if command == 1 else b"") for command in _COMMANDS
    )
    return (
        b"\1" + go + nbd_request(0, 0, 512) + nbd_request(2, 0, 0),
        b"\3"
        + b"\0\0\0\1"
        + nbd_option(6, b"\0\0\0\4name\0\1\0\3")
        + nbd_option(3, b"")
        + nbd_option(1, b""),
        b"\1" + b"\0\0\0\1" + nbd_option(7, b"", 2**32 - 1),
        b"\1" + b"\0\0\0\1" + nbd_option(7, b"\xff" * 6) + nbd_option(2, b""),
        b"\0" + reads,
        b"\4" + mixed,
        b"\6"
        + nbd_request(0, 2**64 - 1, 2**32 - 1)
        + nbd_request(6, 0, 2**32 - 1)
        + nbd_request(6, 0, 2**20),
        b"\0" + nbd_request(1, 2**20, 512, 1, b"y" * 512) + nbd_request(1, 2**20 + 1, 512, 0, b"z" * 512),
        b"\10" + nbd_request(1, 0, 32 << 20, 0, b"half of it"),
    )


def _packet(number: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "little") + bytes([number]) + payload


def mysql_answer(*names: bytes) -> bytes:
    """What a server says to `show databases` of an account without a password, from handshake to the last row."""
    able = 0x200 | 0x8000 | 0x80000
    hello = b"\x0a10.11\0" + bytes(4) + b"saltsalt\0" + struct.pack("<HBHH", able & 0xFFFF, 45, 2, able >> 16)
    rows = [_packet(4 + index, bytes([len(name)]) + name) for index, name in enumerate(names)]
    end = b"\xfe\0\0\2\0"
    return b"".join(
        (
            *(_packet(0, hello + bytes(24)), _packet(2, b"\0\0\0\2\0\0\0")),
            *(_packet(1, b"\1"), _packet(2, b"\3def\0\0"), _packet(3, end), *rows),
            _packet(4 + len(names), end),
        )
    )


def _agent() -> tuple[bytes, ...]:
    return (
        b"\0exec 4\ntrueexec 5\nfalse",
        b"\0exec 65536\n" + b"x" * 65536,
        b"\0exec -1\nexec +5\n12345exec 99999\n",
        b"\1HTTP/1.1 200 OK\r\nServer: x\r\n\r\nhello",
        b"\1HTTP/1.0 404 Not Found\n",
        b"\1HTTP/1.1 200" + b"a" * 3000 + b"\n\0\n",
        b"\2" + mysql_answer(b"information_schema", b"mysql"),
        b"\2" + mysql_answer(),
        b"\2\xff\xff\xff\0",
        b"\2" + _packet(0, b"\x0a" + b"9" * 200),
        b"\3HTTP/1.1 200 \x1b[31mred\xff",
    )


UNIT = (
    b"quickstart-unit 1\nunit app.service\ngroup system.slice/app.service\ntype exec\nstart-timeout-ms 90000\n"
    b"base-environment PATH=/usr/bin LANG=C\\x2eUTF-8\nuser nobody\nlimit 7 1024 infinity\nmount bind optional /a\\x20b /c\n"
    b"command main : /bin/sh sh -c $A\\x20${B}$$ \\H \\l\n"
)


def _unit() -> tuple[bytes, ...]:
    passwd = b"root:x:0:0:root:/root:/bin/bash\napp:x:1000:1000::/home/app:/bin/sh\nbad:x:1000\n"
    sockets = (
        b"socket stream a.socket 4096 unix /run/a 0666 0755 - -\nsocket-option 1 9 1\n"
        b"socket datagram b.socket 0 inet 127.0.0.1 53\nsocket stream c 9 inet6 ::1 631\n"
        b"socket sequential-packet d 9 abstract d\nfirst-socket 5\ncompanion-socket stream e 9 abstract e\n"
    )
    return (
        b"\0" + UNIT,
        b"\0" + UNIT + sockets,
        b"\0quickstart-unit 1\n\n \ncommand main : /x \\x4\n",
        b"\0quickstart-unit 1\ncommand main : /x y $A ${ } ${A $$$$ '$B \n",
        b'\1# comment \\\nA=1\n B = "two \\" $x"\n;c\nC=\'a\nb\' \\\n D\n=\n1=2\nexport E=3\n',
        b"\2" + passwd,
        b"\3adm:x:4:app,root\nempty:x:5:\n:::\n",
        b"\5READY=1\nMAINPID=42\nEXTEND_TIMEOUT_USEC=1000000\nSTATUS=x",
        b"\5EXTEND_TIMEOUT_USEC=9223372036854775807\nMAINPID=-1\n",
        b"\4" + OWNER + REQUEST + answer(1, b"\1\0\0\0", "u"),
        b"\4"
        + answer(1, string(":1.1", ">"), "s", ">")
        + b"l\2\0\1"
        + struct.pack("<III", 9000, 7, 0)
        + bytes(9000),
        *(b"\4" + each for each in BROKEN.values()),
    )


def _digests() -> bytes:
    """A list for the checker: a directory, a file, a link, a second name (quickstart/initramfs/digests.py)."""
    entries = (
        (0o40755, 0, 0, 0, b"d\0", b""),
        (0o100644, 8, 0, 0x6522DF69, b"d/f\0", b""),
        (0o120777, 1, 0, 0, b"l\0", b"f"),
        (0o100644, 8, 2, 0, b"d/g\0", b""),
    )
    body = b"".join(
        struct.pack("<8I", mode, 0, 0, size, same, crc, len(name), len(text)) + name + text
        for mode, size, same, crc, name, text in entries
    )
    return b"QSPARTB3" + struct.pack("<I", len(entries)) + body


def _parts() -> tuple[bytes, ...]:
    table = (
        b"module virtio_blk\nmodule ext4\nalias virtio:d0000000[2-4]v* virtio_blk\nbeside pci:v*bc0[!a]* ext4\n"
        b"late usb:*?[ ext4\ndevice devices/x\nbus virtio\nchild virtio\nroot ext4\nimage ext4\n"
    )
    mounts = b"tmpfs none /run mode=755,nosuid,size=10%\nnone /a /b move\nnone none / rshared,x=y\n"
    return (
        b"\0\xff" + _digests(),
        b"\x0c\xff" + _digests(),
        b"\0\xff" + _digests()[:-3],
        b"\1\xc0" + table + b"virtio:d00000002v00001AF4\n",
        b"\x09\xc0" + table + b"pci:v00001AF4bc02",
        b"\2\x80" + mounts,
        b"\2\x80" + b"a" * 4000 + b"," * 90,
        b"\3\x60" + b"0 4096\n8192 4096\n" + b"etc/passwd\0usr/bin/x\0\0",
        b"\7\x40" + b"0 4096\n" + b"0 4096 usr/lib/x.so\x0065536 8192 usr/lib/x.so\0",
    )
