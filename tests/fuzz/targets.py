"""A target for each parser of untrusted bytes. Every input must end in a result or in an error of ours."""

from __future__ import annotations

import io
import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from quickstart.artefact import directory as artefact
from quickstart.artefact import inside
from quickstart.errors import ArtefactError, BadInputError, GuestError
from quickstart.image.blockmap import read_block_map
from quickstart.image.ext4 import block_groups, parse_superblock, read_superblock, used_inodes
from quickstart.image.extents import parse_extents
from quickstart.initramfs.newc_reader import read_archive, walk_archive
from quickstart.initramfs.squashfs_reader import walk_image
from quickstart.launch.channel import Decoder
from quickstart.launch.monitor import Monitor
from quickstart.measure import counting
from quickstart.measure.matrix import parse_matrix
from quickstart.model import Readiness
from quickstart.model.words import ReadyKind
from quickstart.newprofile import look
from quickstart.parse.bounded import lines_of
from quickstart.profile import parse_bench, parse_profile
from quickstart.report import document
from quickstart.trace.collect import collect, loaded_files
from quickstart.trace.firstreads import parse_reads
from quickstart.trace.load import load_trace, parse_ldd, parse_maps
from quickstart.trace.resident import parse_resident
from quickstart.trace.started import parse_units
from quickstart.trace.strace import MAX_LINE_BYTES
from quickstart.verify import guesttrace
from quickstart.volume.emulator import read_log
from quickstart.volume.nbd import Connection
from quickstart.volume.storage import parse_model
from tests.fuzz import images
from tests.fuzz.places import as_text, parts_of, put
from tests.fuzz.preparing import preparing

# Gives one input to a parser; the directory is the process's own and keeps what the last input wrote.
Run = Callable[[bytes, Path], None]

READY = Readiness(kind=ReadyKind.HTTP, port=80, path="/", status=200, command="", timeout_s=60)
_LIMIT_S = 0.3


@dataclass(frozen=True)
class Target:
    """``words`` are what its inputs are made of."""

    run: Run
    words: tuple[bytes, ...] = ()


# ---------------------------------------------------------------- logs of a guest

TRACE_FILES = (
    *("strace.log", "maps.log", "units.log", "resident.log", "ldd.log"),
    *("modules.before", "modules.after", "facts.json"),
)


def _strace(data: bytes, _: Path) -> None:
    loaded_files(collect(lines_of(io.BytesIO(data), MAX_LINE_BYTES), "nginx.service"))


def _trace(data: bytes, base: Path) -> None:
    load_trace(put(base, parts_of(data, TRACE_FILES), TRACE_FILES), "nginx.service")


def _ftrace(data: bytes, _: Path) -> None:
    parts = parts_of(data, ("trace", "stats"))
    found = guesttrace.parse(as_text(parts.get("trace", b"")).split("\n"), as_text(parts.get("stats", b"")))
    list(guesttrace.volume_paths(found.uses))


def _counters(data: bytes, _: Path) -> None:
    text = as_text(data)
    with suppress(GuestError):
        counting.iowait_ns(text)
    counting.disk_reads(text, "vda")


def _look(data: bytes, _: Path) -> None:
    found = look.parse_look(as_text(data))
    look.failure([found] * 3, "app.service", READY)
    look.listens_inside_only([found] * 3, READY)
    look.state_line(found, READY)


def _agent(data: bytes, _: Path) -> None:
    decoder = Decoder()
    for at in range(0, len(data), 97):
        list(decoder.feed(data[at : at + 97], 1))


def _qmp(data: bytes, _: Path) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        with suppress(OSError):
            theirs.sendall(data[:100_000])
        theirs.shutdown(socket.SHUT_WR)
        monitor = Monitor(ours, _LIMIT_S)
        try:
            monitor.command("query-status")
        finally:
            monitor.close()


# ---------------------------------------------------------------- disks and archives


def _superblock(data: bytes, _: Path) -> None:
    parse_superblock(data, "root.raw")


def _ext4(data: bytes, base: Path) -> None:
    path = base / "root.raw"
    path.write_bytes(data)
    for read in (read_superblock, block_groups, used_inodes):
        with suppress(ArtefactError):
            read(path)
    found = read_block_map(path)
    found.owners(0, len(data))
    found.inode_blocks(list(found.inodes))


def _extents(data: bytes, _: Path) -> None:
    parse_extents(as_text(data), 4096)


def _newc(data: bytes, _: Path) -> None:
    for _member in read_archive(io.BytesIO(data)):
        pass
    for _exact, pieces in walk_archive(io.BytesIO(data), exact=True):
        for _piece in pieces:
            pass


def _squashfs(data: bytes, _: Path) -> None:
    for _file, pieces in walk_image(lambda at, count: data[at : at + count], len(data)):
        for _piece in pieces:
            pass


# ---------------------------------------------------------------- documents

_OUT: Mapping[str, bytes] = {
    "vmlinuz": b"kernel",
    "initrd.img": b"initrd",
    "initramfs.img": b"initramfs",
    "run.sh": b"#!/bin/sh\n",
    "root.raw": bytes(4096),
}


def _manifest(data: bytes, base: Path) -> None:
    put(base, {**_OUT, "manifest.json": data}, (*_OUT, "manifest.json"))
    artefact.is_artefact(base)
    artefact.load(base)


def _start_set(data: bytes, base: Path) -> None:
    put(base, {"start-set.json": data}, ("start-set.json",))
    for path in ("/usr/sbin/nginx", "/lib/x", "/fast/usr/lib/loop"):
        with suppress(BadInputError):
            inside.why(base, path)


def _results(data: bytes, _: Path) -> None:
    document.text_of(document.parse(as_text(data), "results.json"))


def _profile(data: bytes, _: Path) -> None:
    parse_profile(as_text(data), "profile.toml")
    parse_bench(as_text(data), "profile.toml")


def _matrix(data: bytes, _: Path) -> None:
    parse_matrix(as_text(data), "matrix.toml", ("nginx", "apache", "mysql"))


def _storage(data: bytes, _: Path) -> None:
    parse_model(as_text(data), "model.toml")


# ---------------------------------------------------------------- a volume


def _volume_log(data: bytes, _: Path) -> None:
    found = read_log(data)
    counting.root_reads(found, 0, 10**12)
    counting.in_flight_ns(found, 0, 10**12)
    counting.modelled_ns(found, 10**12)
    counting.unanswered_ns(found, 10**12)


def _nbd(data: bytes, base: Path) -> None:
    path = base / "socket"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(path))
        listening.listen(1)

        def serve() -> None:
            with suppress(OSError), listening.accept()[0] as client:
                client.settimeout(_LIMIT_S)
                client.sendall(data[:100_000])
                client.shutdown(socket.SHUT_WR)
                while client.recv(4096):
                    pass

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        try:
            with Connection(path, _LIMIT_S) as connection:
                connection.read(0, 512)
        finally:
            server.join()


_CALLS = (
    b"openat(",
    b"AT_FDCWD</>",
    b'"',
    b"\\",
    b"1<",
    b">",
    b", PROT_EXEC",
    b") = 3</x>",
    b" <unfinished ...>",
)
_SECTION = (b"%%% ", b"\n[Service]\n", b"=", b"\\\n", b"infinity", b"%n", b"%i", b"\\x41", b";", b"~", b"-")
_JSON = (b'{"', b'":', b"[", b"]", b"}", b"null", b"Infinity", b"1e999", b"-1", b"true", b'""')
_TOML = (
    b"[",
    b"]",
    b"[[",
    b"{",
    b"}",
    b".",
    b" = ",
    b'"""',
    b"'''",
    b"#",
    b"\n",
    b"0x",
    b"inf",
    b"1979-05-27",
)
TARGETS: Mapping[str, Target] = {
    "strace": Target(
        _strace, (*_CALLS, b"<... openat resumed>", b"clone(flags=CLONE_FS) = 8", b'chdir("..") = 0')
    ),
    "trace": Target(_trace, (*_CALLS, b"%%% ", b"== 1 app\n", b"== end\n", b"\t/lib/x (0x1)\n", *_JSON)),
    "maps": Target(
        lambda data, _: void(parse_maps(os.fsdecode(data))), (b"== 1 app\n", b" r-xp ", b"== end\n", b"\\040")
    ),
    "resident": Target(
        lambda data, _: void(parse_resident(os.fsdecode(data))),
        (b"== 600000 /a\n", b"4096 8192\n", b"999999999999999999 ", b"== end\n"),
    ),
    "reads": Target(
        lambda data, _: void(parse_reads(os.fsdecode(data), 10**9)), (b"1.000000 2048 8\n", b"== end\n")
    ),
    "units": Target(
        lambda data, _: void(parse_units(os.fsdecode(data))),
        (
            b"Root=/ ext4\n\n",
            b"Id=a\n",
            b"After=b c\n",
            b"FragmentPath=/a\n",
            b"InactiveExitTimestampMonotonic=5\n",
            b"\n\n",
            b"== end\n",
        ),
    ),
    "ldd": Target(
        lambda data, _: void(parse_ldd(os.fsdecode(data))),
        (b"== /a\n", b" => ", b"\t/lib/x (0x1)\n", b"== end\n"),
    ),
    "ftrace": Target(
        _ftrace,
        (b"  app-7 [000] ..... 1.000000: ", b"sys_openat(dfd: 3)", b'qs_name: (x) name="', b" -> 0x1"),
    ),
    "counters": Target(_counters, (b"cpu  ", b" vda ", b"\n")),
    "look": Target(
        _look,
        (b"== unit\n", b"== tcp\n", b"NRestarts=", b"MemTotal: ", b" kB\n", b": 0100007F:0050 0:0000 0A"),
    ),
    "agent": Target(
        _agent, (b"hello 2\n", b"beacon 1 a b\n", b"ready 1 ok\n", b"counters 1 1 ", b"out ", b"exit 0\n")
    ),
    "qmp": Target(
        _qmp,
        (
            b'{"QMP": {"version": {}, "capabilities": []}}\r\n',
            b'{"return": {}}\r\n',
            b'{"event": "X"}\r\n',
            *_JSON,
        ),
    ),
    "elf": Target(images.elf, (b"\x7fELF", b"liba.so\0", b"$ORIGIN", b"FDO\0", b'[{"soname":["a"]}]')),
    "unit": Target(
        images.unit,
        (
            *_SECTION,
            *(
                f"\n{name}=".encode()
                for name in (
                    "ExecStart",
                    "ExecStartPre",
                    "CPUAffinity",
                    "LimitCPU",
                    "LimitNICE",
                    "TimeoutStartSec",
                    "Slice",
                    "User",
                    "Environment",
                    "BindPaths",
                    "SystemCallFilter",
                    "CapabilityBoundingSet",
                    "RuntimeDirectory",
                    "StandardOutput",
                    "DeviceAllow",
                    "TemporaryFileSystem",
                    "UMask",
                )
            ),
        ),
    ),
    "callgroups": Target(images.callgroups, (b"\x7fELF\x02\x01", b"@default\0")),
    "dpkg": Target(
        images.dpkg_tables,
        (
            b"%%% ",
            b"Package: ",
            b"Status: install ok installed\n",
            b"Provides: ",
            b"Version: ",
            b"(",
            b"/bin/x\n",
        ),
    ),
    "preparing": Target(
        preparing,
        (
            *(
                b"%%% ",
                b"request routers, subnet-mask;\n",
                b"send host-name ",
                b"duid\n",
                b"iface ens3 inet dhcp\n",
            ),
            *(
                b"  up ip link set ens3 up\n",
                b"[Network]\n",
                b"DHCP=yes\n",
                b'RUN+="',
                b"install x ",
                b"bootcmd: ",
            ),
            *(b"L+ /run/x", b"always", b"\\\n", b"LOCAL\n", b"ethernets:\n"),
        ),
    ),
    "fstab": Target(
        images.fstab, (b"UUID=", b"LABEL=", b" / ext4 defaults 0 1\n", b"/dev/sda", b"nofail", b"#")
    ),
    "ldconf": Target(images.ldconf, (b"%%% ", b"include ", b"/etc/*.conf", b"*/", b"../", b"[", b"=libc5")),
    "tree": Target(
        images.tree,
        (b"d ", b"f ", b"l ", b"/etc/systemd/system/", b".wants/", b"cloud-init.service", b"../", b"*"),
    ),
    "modules": Target(
        images.modules, (b"%%% ", b"kernel/ext4.ko: ", b"virtio_pci.ko", b"alias pci:* ext4\n", b".ko.xz")
    ),
    "module": Target(images.module),
    "superblock": Target(_superblock),
    "ext4": Target(_ext4, (b"\x0a\xf3", b"\x53\xef", b"\xff\xff\xff\xff")),
    "extents": Target(_extents, (b" 0/ 0 ", b" - ", b"Uninit")),
    "newc": Target(_newc, (b"070701", b"TRAILER!!!", b"\x1f\x8b", b"\x02\x21\x4c\x18", b"\x28\xb5\x2f\xfd")),
    "squashfs": Target(_squashfs, (b"hsqs",)),
    "manifest": Target(_manifest, _JSON),
    "start-set": Target(_start_set, _JSON),
    "results": Target(_results, _JSON),
    "profile": Target(_profile, _TOML),
    "matrix": Target(_matrix, _TOML),
    "storage": Target(_storage, _TOML),
    "volume-log": Target(_volume_log, (b"QSVOL  1",)),
    "nbd": Target(_nbd, (b"NBDMAGICIHAVEOPT\0\3", b"\0\3\xe8\x89\4\x55\x65\xa9", b"gDf\x98")),
}


def void(_: object) -> None:
    """For targets of one call."""
