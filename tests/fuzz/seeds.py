"""The committed corpus, from recorded logs and crafted inputs of the tests: `python -m tests.fuzz.seeds`; the same files each time.

Former findings are beside them as `found-…` and are not touched.
"""

from __future__ import annotations

import io
import json
import lzma
import struct
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from quickstart.host.assets import assets
from quickstart.image.ext4 import parse_superblock
from quickstart.initramfs.newc import directory, regular, symlink, write_archive
from quickstart.initramfs.payload import packing
from quickstart.model.words import Payload
from quickstart.report.document import text_of
from tests.fuzz.guests import READY, TRACE_FILES
from tests.fuzz.images import DPKG_FILES, LD_FILES, MODULE_FILES, UNIT_FILES
from tests.fuzz.places import joined
from tests.fuzz.preparing import PREPARING_FILES
from tests.unit.benchdata import realistic
from tests.unit.diskrecords import ONE_FILE_SYSTEM, RECORDS, said
from tests.unit.elfbuilder import LD_SO, dlopen_note, elf
from tests.unit.ext4builder import DATA, POINTERS, ext4, extents, superblock
from tests.unit.unifiedimage import SECTIONS, unified_image
from tests.unit.xfsbuilder import volume

_CORPUS = Path(__file__).parent / "corpus"
_LOGS = Path(__file__).parents[1] / "logs"
_MOST_BYTES = 8000


# A file of PREPARING_FILES each.
_PREPARED = (
    b"option rfc3442 code 121 = array of unsigned integer 8;\nsend host-name = gethostname();\nrequest subnet-mask, routers;\n",
    b"hostname\nduid\noption classless_static_routes\nrequire dhcp_server_identifier\n",
    b"auto lo ens3\niface ens3 inet dhcp\n  hostname web\n  up ip link set $IFACE \\\n mtu 1400\n",
    b"d /run/app 0755 root root 10d\nL+ %t/app.sock - - - - /run/x\nZ /srv/a 0700\n",
    b"[Match]\nName=en*\n[Network]\nDHCP=yes\n[DHCPv4]\nSendHostname=no\n",
    b"[Match]\nOriginalName=*\n[Link]\nMACAddressPolicy=persistent\n",
    b"network:\n  version: 2\n  ethernets:\n    ens3:\n      dhcp4: true\n",
    b'SUBSYSTEM=="block", RUN+="/bin/sh -c \'echo none > /sys/block/%k/queue/scheduler\'"\n',
    b"install floppy /bin/true\ninstall nf /root/x\n",
    b"cloud_init_modules:\n - [write-files, always]\nbootcmd: []\n",
    b"0.0 0 0.0\n0\nLOCAL\n",
)


def _lines(name: str, wanted: tuple[str, ...]) -> bytes:
    """The first lines of a recorded log that have one of the words each, and its beginning."""
    with lzma.open(_LOGS / name) as log:
        lines = log.read().split(b"\n")
    kept = lines[:5] + [line for word in wanted for line in [x for x in lines if word.encode() in x][:3]]
    text = b"\n".join(dict.fromkeys(kept)) + b"\n"
    assert len(text) <= _MOST_BYTES, (name, len(text))
    return text


def _trace() -> Iterator[tuple[str, bytes]]:
    calls = (
        "execve(",
        " mmap(",
        "getdents64",
        "clone",
        "rename",
        "chroot",
        "mount(",
        "<unfinished",
        "resumed>",
        "+++",
    )
    yield "strace", _lines("bookworm.strace.xz", calls)
    yield "strace", _lines("trixie.strace.xz", (*calls, "CLONE_INTO_CGROUP", "nginx.service/cgroup.procs"))
    maps = b"== 7 nginx\n1000-2000 r-xp 0000 fe:00 12   /usr/sbin/nginx\n== 8 (sd-pam)\n== end\n"
    ldd = b"== /usr/sbin/nginx\n\tlibc.so.6 => /lib/libc.so.6 (0x00007f00)\n\t/lib64/ld.so (0x00007f00)\n== end\n"
    facts = b'{"interface": "ens3", "mac": "52:54:00:71:73:01", "address": "10.0.2.15", "ready_uptime_ns": 9}'
    resident = b"== 600000 /usr/lib/liba.so.1\n0 4096\n65536 131072\n== end\n"
    yield "maps", maps
    yield "resident", resident
    yield "reads", b"0.999999 0 8\n8.558840 2048 32\n8.600000 4096 8\n== end\n"
    units = (
        b"Root=/ ext4\n\nId=nginx.service\nAfter=network.target -.mount\nInactiveExitTimestampMonotonic=9\n"
    )
    units += (
        b"ConditionTimestampMonotonic=8\nFragmentPath=/usr/lib/systemd/system/nginx.service\nDropInPaths=\n\n"
    )
    units += b"Id=-.mount\nAfter=\nInactiveExitTimestampMonotonic=0\nConditionTimestampMonotonic=0\n"
    units += b"FragmentPath=\nDropInPaths=/etc/systemd/system/-.mount.d/a.conf\n== end\n"
    yield "units", units
    yield "ldd", ldd
    strace = b'7 1.000001 openat(AT_FDCWD</>, "/x", O_RDONLY) = 3</x>\n'
    modules = b"virtio_blk 1 0 - Live 0x0\n"
    logs = (strace, maps, units, resident, ldd, modules, modules, facts)
    yield "trace", joined(dict(zip(TRACE_FILES, logs, strict=True)))


def _guest() -> Iterator[tuple[str, bytes]]:
    events = (
        "sys_openat(",
        "sys_openat ->",
        "qs_name",
        "qs_fault",
        "sched_process_fork",
        "block_bio_queue",
        "block_rq_issue",
    )
    stats = b"overrun: 0\ndropped events: 0\n"
    yield (
        "ftrace",
        joined({"trace": _lines("bookworm.nginx.ftrace.xz", (*events, "chdir", "execve")), "stats": stats}),
    )
    disk = b" 254       0 vda 66 221 2322 28 2 0 16 0 0 20 28 0 0 0 0 1 0\n"
    yield "counters", b"cpu  5 0 369 2 17 0 2 0 0 0\n" + disk
    tcp = (
        b"   0: 0100007F:0050 00000000:0000 0A 0\n   1: "
        + b"0" * 32
        + b":0050 "
        + b"0" * 32
        + b":0000 0A 0\n"
    )
    yield (
        "look",
        b"== unit\nLoadState=loaded\nActiveState=active\nNRestarts=0\n== system\nrunning\n== tcp\n"
        + tcp
        + b"== memory\nMemTotal:  1000 kB\nMemAvailable:  500 kB\n== journal\nstarted\n== end\n",
    )
    stamps = ("init", "modules", "root", "network", "integrity", "checked", "application", "started", "now")
    log = b"".join(
        b"<7>[    %d.%06d] quickstart: stamp %s\n" % (each, each, name.encode())
        for each, name in enumerate(stamps)
    )
    yield "phases", b"now at 9000000000 nsecs\n<6>[    0.990000] Run /init as init process\n" + log
    yield (
        "phases",
        b"now at 9000000000 nsecs\n<7>[    8.000000] quickstart: stamp now\nUserspaceTimestampMonotonic=3500000\n"
        b"Id=app.service\nInactiveExitTimestampMonotonic=4000000\nActiveEnterTimestampMonotonic=4600000\n\n"
        b"Id=networking.service\nInactiveExitTimestampMonotonic=3800000\nInactiveEnterTimestampMonotonic=4000000\n",
    )
    yield "agent", b"hello 2\nbeacon 5 ens3 10.0.2.15\nready 9 200 OK\ncounters 9 7 4\ncpu\nout 2\nabexit 0\n"
    hello = b'{"QMP": {"version": {"qemu": {"micro": 0, "minor": 2, "major": 7}, "package": ""}, "capabilities": []}}\r\n'
    yield (
        "qmp",
        hello
        + b'{"return": {}}\r\n{"event": "RESUME", "timestamp": {"seconds": 1, "microseconds": 1}}\r\n{"return": {}}\r\n',
    )


def _unit() -> bytes:
    """A unit and the files beside it by which it starts."""
    service = (
        b'[Unit]\nDescription=x\n[Service]\nType=notify\nExecStartPre=/bin/app -t\nExecStart=/bin/app -D "a b" \\x41 %n\n'
        b"PIDFile=/run/app.pid\nUser=app\nGroup=app\nLimitNOFILE=1024:infinity\nLimitCPU=10min\nCPUAffinity=0-3,5\n"
        b'TimeoutStartSec=1min 30s\nNice=-5\nUMask=0027\nEnvironment=A=b "C=d e"\nPrivateTmp=yes\nProtectSystem=full\n'
        b"RuntimeDirectory=app\nCapabilityBoundingSet=CAP_NET_BIND_SERVICE ~CAP_CHOWN\nSystemCallFilter=@system-service\n"
        b"BindReadOnlyPaths=-/run/a:/run/b:rbind\nTemporaryFileSystem=/x:ro,size=1M\nDeviceAllow=/dev/null rw\n"
    )
    rest = (
        b"[Service]\nLimitCPU=\nExecStartPost=+/bin/sh -c 'exit 0' ; /bin/true\n",
        b"[Manager]\nDefaultTimeoutStartSec=90s\nDefaultLimitCORE=0:infinity\n",
        b"[Socket]\nAccept=no\nService=other.service\n",
        b"d /run/app 0755 app app -\nd /run/x\n",
        b"root:x:0:0:root:/root:/bin/sh\napp:x:100:100::/:/bin/false\n",
        b"root:x:0:\napp:x:100:\n",
    )
    return joined(dict(zip(UNIT_FILES, (service, *rest), strict=True)))


def _image() -> Iterator[tuple[str, bytes]]:
    yield (
        "elf",
        elf(
            ["liba.so"],
            interpreter=LD_SO,
            soname="app",
            rpath="$ORIGIN/../lib",
            notes=dlopen_note(["b.so", "a.so"]),
        ),
    )
    yield "elf", elf(["liba.so"], runpath="/lib:$LIB", bits=32, machine=3)
    yield "unit", _unit()
    yield "callgroups", elf([], soname="libsystemd-shared-252.so")
    yield "preparing", joined(dict(zip(PREPARING_FILES, _PREPARED, strict=True)))
    status = b"Package: a\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1:1.0-1\nProvides: b (= 1), c\n\n"
    files = (
        status,
        b"/bin/y\n/bin/y.distrib\na\n",
        b"/.\n/bin\n/bin/x\n",
        b"auto\n/usr/bin/x\n\n/bin/x\n10\n",
    )
    yield "dpkg", joined(dict(zip(DPKG_FILES, files, strict=True)))
    yield (
        "fstab",
        b"# x\nUUID=0d0c7be2-5d7e-4b0a-8a55-0a3c5d1f2b00 / ext4 defaults 0 1\nLABEL=x /mnt ext4 nofail 0 0\n",
    )
    conf = (
        b"include /etc/ld.so.conf.d/*.conf\ninclude b.conf\n/opt/lib\n",
        b"/usr/local/lib\n# x\n",
        b"/x=libc6\n",
    )
    yield "ldconf", joined(dict(zip(LD_FILES, conf, strict=True)))
    unit = b"/etc/systemd/system/x.wants/cloud-init.service"
    yield "tree", b"d /usr\nl /bin usr/bin\nl /a ../../b/../a\nl " + unit + b" /lib/x\nf /lib/x\nd /*/.\n"
    dep = b"kernel/virtio_pci.ko:\nkernel/virtio_blk.ko: kernel/virtio_pci.ko\nkernel/virtio_net.ko.xz:\n"
    alias = b"alias virtio:d00000002v* virtio_blk\nalias pci:v00001AF4d* virtio_pci\nalias fs-ext4 ext4\n"
    modules = (dep + b"kernel/ext4.ko: kernel/crc16.ko\nkernel/crc16.ko:\n", b"kernel/fs/x.ko\n", alias)
    yield "modules", joined(dict(zip(MODULE_FILES, modules, strict=True)))
    yield "module", lzma.compress(b"\x7fELF module" * 20, check=lzma.CHECK_CRC32)


def _disks() -> Iterator[tuple[str, bytes]]:
    yield "superblock", superblock()
    yield "superblock", bytes(volume())
    yield "ext4", bytes(ext4())[: 20 * 1024]
    yield "ext4", bytes(ext4({"blocks_count_lo": 20}))[: 20 * 1024]
    pointers = [*range(DATA, DATA + 4), *[0] * 8, POINTERS, 0, 0]
    yield "ext4", bytes(ext4({"blocks_count_lo": 20}, classic=struct.pack("<15I", *pointers)))[: 20 * 1024]
    node = ext4({"blocks_count_lo": 20}, map_of_file=extents((0, 0, POINTERS), depth=1))
    leaf = extents((0, 2, DATA), (2, 1, DATA + 4))
    node[POINTERS * 1024 : POINTERS * 1024 + len(leaf)] = leaf
    yield "ext4", bytes(node)[: 20 * 1024]
    head = b"Level Entries       Logical        Physical Length Flags\n"
    yield (
        "extents",
        head
        + b" 0/ 0   1/  2     0 -  3463  11777 -  15240   3464 \n 0/ 0   2/  2  4000 -  4000  9 -  9   1 Uninit\n",
    )
    for version in (2, 3):
        yield "qcow2", _small_qcow2(version)
    for payload in (Payload.CPIO, Payload.GZIP, Payload.LZ4, Payload.ZSTD):
        yield "newc", _archive(payload)
    yield "squashfs", _SQUASHFS
    yield "unified", unified_image(SECTIONS)
    yield (
        "cache",
        b"glibc-ld.so.cache1.1\1\0\0\0/lib/x86_64-linux-gnu/libc.so.6\0libc.so.6\0/opt/glibc-hwcaps/x/a.so\0",
    )
    yield "records", said(RECORDS)
    menu = b"set default=a\nmenuentry a --id b {\n linux /a b  c\n initrd /d  e\n}\n"
    yield "records", said({**ONE_FILE_SYSTEM, "file 0 ./boot/grub/grub.cfg": menu})


def _small_qcow2(version: int) -> bytes:
    """An image with clusters of 512 bytes: its header, both tables, and two clusters of data. The second one is compressed."""
    head = struct.pack(">4sIQIIQIIQQIIQ", b"QFI\xfb", version, 0, 0, 9, 1024, 0, 1, 512, 0, 0, 0, 0)
    features = struct.pack(">QQQIIQ", 0, 0, 0, 4, 112, 0) if version == 3 else b""
    tables = (struct.pack(">Q", 1024), struct.pack(">QQ", 1536 | 1 << 63, 2048 | 1 << 62))
    return b"".join(part.ljust(512, b"\0") for part in (head + features, *tables, b"data", b"K\x04\0"))


def _archive(payload: Payload) -> bytes:
    stream = io.BytesIO()
    entries = (directory("fast"), regular("fast/file", b"text\n", 0o644), symlink("fast/link", "file"))
    with packing(stream, payload) as sink:
        write_archive(sink, entries)
    return stream.getvalue()


def _documents() -> Iterator[tuple[str, bytes]]:
    files = {
        name: {"size_bytes": size, "sha256": "0"}
        for name, size in (("vmlinuz", 6), ("initrd.img", 6), ("initramfs.img", 9))
    }
    manifest = {
        "schema": 1,
        "quickstart": "0",
        "build_key": "key",
        "profile": "app",
        "ready": asdict(READY),
        "cmdline": "ro",
        "memory_mib": 1024,
        "mac": "52:54:00:00:00:01",
        "files": files,
        "disk": {"name": "root.raw", "format": "raw", "size_bytes": 4096},
        "superblock": asdict(parse_superblock(superblock(), "")),
        "initramfs_bytes": 9,
        "start_set_files": 1,
        "start_set_bytes": 2,
    }
    yield "manifest", json.dumps(manifest).encode()
    start_set = {
        "files": [
            {"path": "/usr/sbin/nginx", "reasons": ["trace: executed"], "package": "nginx"},
            {"path": "/lib", "target": "usr/lib", "reasons": ["symlink: on the way"]},
            {"path": "/usr/lib/loop", "target": "loop", "reasons": ["symlink: on the way"]},
        ],
        "excluded": [{"path": "/var/data", "rule": "data: /var/**"}],
    }
    yield "start-set", json.dumps(start_set).encode()
    raw = json.loads(text_of(realistic()))
    raw["plan"], raw["runs"] = raw["plan"][:2], raw["runs"][:2]
    yield "results", json.dumps(raw).encode()
    yield "profile", (assets("profiles") / "mysql/profile.toml").read_bytes()
    yield (
        "profile",
        b'schema = 1\nname = "a"\npackages = ["aa"]\nunit = "a.service"\nready = {kind = "tcp", port = 80}\n',
    )
    block = b'[[block]]\nprofiles = ["nginx", "./x"]\nconfigurations = ["quickstart"]\nstorages = ["local"]\nclocks = ["wall"]\n'
    more = b'patterns = ["staggered"]\ninstances = [2, 3]\nstagger_ms = 5\npayloads = ["zstd"]\n'
    yield "matrix", b'schema = 1\nname = "x"\n' + block + more
    yield "storage", (assets("bench") / "storage/ebs-cold.toml").read_bytes()


def _volume() -> Iterator[tuple[str, bytes]]:
    record = struct.Struct("=QqqqQIIIHHIHH")
    rows = ((1, 5, 7, 8, 0, 512, 1, 1, 1, 0, 0, 0, 0), (2, 6, 0, 0, 512, 512, 0, 1, 2, 0, 0, 3, 0))
    yield "volume-log", b"QSVOL  1" + b"".join(record.pack(*row) for row in rows)
    hello = struct.pack(">QQH", 0x4E42444D41474943, 0x49484156454F5054, 3)
    info = struct.pack(">QIIIHQH", 0x3E889045565A9, 7, 3, 12, 0, 1 << 20, 1)
    ack = struct.pack(">QIII", 0x3E889045565A9, 7, 1, 0)
    yield "nbd", hello + info + ack + struct.pack(">IIQ", 0x67446698, 0, 1) + bytes(512)


# An image of one file by sqfstar (squashfs-tools 4.5.1): it takes a program to make one.
_SQUASHFS = b""


def main() -> None:
    count: dict[str, int] = {}
    for make in (_trace, _guest, _image, _disks, _documents, _volume):
        for target, data in make():
            count[target] = count.get(target, 0) + 1
            place = _CORPUS / target
            place.mkdir(parents=True, exist_ok=True)
            (place / f"seed-{count[target]}").write_bytes(data)


if __name__ == "__main__":
    main()
