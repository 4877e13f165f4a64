"""A recorded boot of nginx under `verify` (tests/logs): the guest's trace and the volume's log are combined."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from dataclasses import fields
from pathlib import Path, PurePosixPath

import pytest

from quickstart.image.blockmap import BlockMap
from quickstart.image.inodepaths import InodePaths
from quickstart.model import Beacon, Counters, Readied, ReadyStamp, RootIo
from quickstart.verify.boot import account
from quickstart.verify.guesttrace import parse
from quickstart.verify.ledger import Ledger, Packed
from quickstart.volume.emulator import Request

LOGS = Path(__file__).parent.parent / "logs"
MIB = 1024 * 1024
NGINX = PurePosixPath("/usr/sbin/nginx")


# The columns of the recorded requests, which do not say whose instance each is of.
_REQUEST = tuple(each.name for each in fields(Request))


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    facts = json.loads((LOGS / "bookworm.nginx.requests.json").read_text())
    text = lzma.decompress((LOGS / "bookworm.nginx.ftrace.xz").read_bytes()).decode(errors="surrogateescape")
    ready_ns = facts["ready_uptime_ns"]
    readied = Readied(
        launch_ns=0,
        beacon=Beacon(1, "", "", 1),
        ready=ReadyStamp(ready_ns, "HTTP/1.1 200 OK", 1),
        root_io=RootIo(**facts["root_io"]),
        counters=Counters(ready_ns, 0, ""),
    )
    requests = tuple(Request(**dict(zip(_REQUEST, row, strict=False))) for row in facts["requests"])
    packed = Packed(
        files={NGINX: 1, PurePosixPath("/etc/nginx/nginx.conf"): 2}, links={}, excluded={}, interpreters={}
    )
    return account(
        requests,
        parse(text.split("\n"), ""),
        readied,
        BlockMap(block_bytes=4096, inode_bytes=256, _runs=(), _paths=InodePaths(), _first_inode={}),
        packed,
    ).ledger


def test_it_is_what_qemu_counted(ledger: Ledger) -> None:
    assert (len(ledger.reads), sum(each.length_bytes for each in ledger.reads)) == (66, 1_181_184)


def test_all_but_the_firmwares_request_have_an_asker(ledger: Ledger) -> None:
    everything = (*ledger.reads, *ledger.writes)
    assert [each.time_ns for each in everything if not each.askers] == [None]
    programs = Counter(asker.program for each in everything for asker in each.askers)
    found = {
        "nginx": 46,
        "init": 9,
        "mount": 7,
        "ext4lazyinit": 5,
        "hostname": 2,
        "insmod": 1,
        "od": 1,
        "cp": 1,
    }
    assert programs == found


def test_what_they_asked_for(ledger: Ledger) -> None:
    asked = {(each.askers[0].call, str(each.askers[0].path)) for each in ledger.reads if each.askers}
    assert {
        ("read", "/dev/vda"),
        ("mount", "/newroot"),
        ("openat", "/var/log/quickstart.log"),
        ("getdents64", "/etc/nginx/conf.d"),
        ("pread64", "/etc/nginx/nginx.conf"),
        ("sendfile64", "/var/www/html/index.nginx-debian.html"),
    } <= asked
    assert sum(each.ahead for each in ledger.reads) > 15


def test_names_that_are_not_there_and_directories(ledger: Ledger) -> None:
    failed = {str(each.path) for each in ledger.failed if each.program == "nginx"}
    assert failed == {
        *("/etc/locale.conf", "/etc/default/locale", "/etc/ld.so.preload", "/usr/lib/ssl/openssl.cnf"),
        *("/var/www/html/index.html", "/var/www/html/index.htm"),
    }
    assert [str(each.path) for each in ledger.listed] == [
        *("/etc/nginx/modules-enabled", "/etc/nginx/conf.d", "/etc/nginx/sites-enabled"),
    ]


def test_what_was_served_from_fast(ledger: Ledger) -> None:
    assert [path for path, _ in ledger.untouched] == [PurePosixPath("/etc/nginx/nginx.conf")]


def test_ext4_writes_zeroes_before_ready(ledger: Ledger) -> None:
    lazy = [each for each in ledger.writes if each.askers[0].program == "ext4lazyinit"]
    assert sum(each.length_bytes for each in lazy) > 9 * MIB
