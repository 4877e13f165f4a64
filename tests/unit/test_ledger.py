"""The ledger combines the requests of a volume's log, a guest's trace and a block map."""

from __future__ import annotations

import dataclasses
import json
from pathlib import PurePosixPath

import pytest

from quickstart.errors import GuestError, MeasurementError
from quickstart.image.blockmap import BlockMap, Kind, Owner
from quickstart.image.inodepaths import InodePaths
from quickstart.model import Beacon, Counters, Readied, ReadyStamp, RootBudget, RootIo
from quickstart.verify import ledger, shown
from quickstart.verify.boot import Verified, account, check_balance, guest_requests
from quickstart.verify.guesttrace import Asker, GuestTrace, Issued, Use
from quickstart.verify.ledger import Packed, by_kind, direct_reads, lacking, untouched
from quickstart.volume.emulator import Request
from quickstart.volume.nbd import Command
from tests.unit.hostile import bounded

BLOCK = 4096
P = PurePosixPath
READY_NS = 2_000_000_000
LIBRARY, PAGE, CONF, DATA = (
    P("/usr/lib/libx.so.1"),
    P("/var/www/index.html"),
    P("/etc/x.conf"),
    P("/var/lib/db"),
)
PACKED = Packed(
    files={CONF: 100, P("/usr/sbin/x"): 3000, P("/usr/lib/ld.so"): 2000, P("/usr/lib/liby.so.1"): 500},
    links={P("/lib"): "usr/lib", P("/usr/lib/liby.so"): "liby.so.1"},
    excluded={PAGE: "data: /var/**", P("/usr/bin/su"): "setuid: such a file is never packed"},
    interpreters={P("/usr/sbin/x"): (P("/usr/lib/ld.so"),)},
)
OWNERS = [
    (Kind.SUPERBLOCK, None),
    (Kind.INODE_TABLE, None),
    (Kind.DIRECTORY, P("/etc")),
    (Kind.FILE, CONF),
    (Kind.FILE, LIBRARY),
    (Kind.FILE, PAGE),
    (Kind.FILE, DATA),
    (Kind.JOURNAL, None),
    (Kind.FILE, P("/usr/bin/su")),
]


def block_map() -> BlockMap:
    runs = tuple(
        Owner(kind=kind, first_block=number, blocks=1, path=path)
        for number, (kind, path) in enumerate(OWNERS)
    )
    return BlockMap(
        block_bytes=BLOCK,
        inode_bytes=256,
        _runs=runs,
        _paths=InodePaths({1: P("/"), 2: P("/etc")}),
        _first_inode={1: 1},
    )


class Boot:
    """A boot in which the guest asks for one block after the other, a millisecond apart."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.issued: list[Issued] = []

    def ask(
        self,
        block: int,
        blocks: int = 1,
        *,
        at_ns: int | None = None,
        program: str = "x",
        call: str = "read",
        path: PurePosixPath | None = None,
        writes: bool = False,
        direct: bool = False,
        prober: bool = False,
        ahead: bool = False,
        traced: bool = True,
    ) -> Boot:
        number = len(self.requests) + 1
        time_ns = number * 1_000_000 if at_ns is None else at_ns
        command = Command.WRITE if writes else Command.READ
        length = blocks * BLOCK
        self.requests.append(
            Request(
                sequence=number,
                arrival_ns=number,
                due_ns=number,
                done_ns=number,
                offset=block * BLOCK,
                length_bytes=length,
                touched=0,
                client=1,
                in_flight=1,
                error=0,
                command=command,
                flags=0,
            )
        )
        if traced:
            asker = Asker(
                time_ns=time_ns, pid=7, program=program, call=call, path=path, direct=direct, prober=prober
            )
            sector, sectors = block * BLOCK // 512, length // 512
            self.issued.append(
                Issued(
                    time_ns=time_ns,
                    writes=writes,
                    ahead=ahead,
                    sector=sector,
                    sectors=sectors,
                    askers=(asker,),
                )
            )
        return self

    def verified(self, uses: tuple[Use, ...] = (), lost: int = 0, ends_ns: int = READY_NS) -> Verified:
        reads = [each for each in self.requests if each.command == Command.READ]
        counted = RootIo(len(reads), sum(each.length_bytes for each in reads), 0, 0)
        trace = GuestTrace(tuple(self.issued), uses, lost, ends_ns)
        return account(tuple(self.requests), trace, readied(counted), block_map(), PACKED)


def readied(counted: RootIo) -> Readied:
    return Readied(
        launch_ns=0,
        beacon=Beacon(1, "e", "a", 1),
        ready=ReadyStamp(READY_NS, "200", 9),
        root_io=counted,
        counters=Counters(READY_NS, 0, ""),
    )


def use(what: str, path: str, *, at_ns: int = 1, on_volume: bool = True) -> Use:
    return Use(time_ns=at_ns, pid=7, program="x", call="openat", what=what, path=P(path), on_volume=on_volume)


def test_each_request_has_owner_asker_and_advice() -> None:
    boot = Boot().ask(0, program="mount", call="mount", path=P("/newroot")).ask(2, call="openat", path=CONF)
    boot.ask(3, path=CONF).ask(4, call="page fault").ask(5, call="sendfile64", path=PAGE)
    reads = boot.verified().ledger.reads
    assert [entry.kind.value for entry in reads] == ["superblock", "directory", "file", "file", "file"]
    assert [entry.owners[0].path for entry in reads] == [None, P("/etc"), CONF, LIBRARY, PAGE]
    assert [entry.askers[0].call for entry in reads] == [
        "mount",
        "openat",
        "read",
        "page fault",
        "sendfile64",
    ]
    for entry, part in zip(
        reads, ["mounting", "prefetch", "overlay", "files.include", "data: /var/**"], strict=True
    ):
        assert part in entry.avoid


def test_what_init_asks_for_in_one_batch_is_not_to_be_avoided() -> None:
    boot = Boot().ask(3, program="prefetcher", call="fadvise64", path=P("/dev/vda"))
    (entry,) = boot.verified().ledger.reads
    assert "one batch" in entry.avoid


def test_what_comes_after_ready_is_not_in_it() -> None:
    boot = Boot().ask(0).ask(3, at_ns=READY_NS).ask(4, at_ns=READY_NS + 1).ask(5, traced=False)
    boot.ask(6, at_ns=READY_NS + 2, writes=True)
    ledger = boot.verified().ledger
    assert [entry.offset_bytes // BLOCK for entry in ledger.reads] == [0, 3]
    assert ledger.writes == ()


def test_what_came_before_the_kernel_is_the_firmwares() -> None:
    ledger = Boot().ask(0, traced=False).ask(3).verified().ledger
    assert [entry.time_ns for entry in ledger.reads] == [None, 2_000_000]
    assert "firmware" in ledger.reads[0].avoid
    assert ledger.unexplained == ()


def test_what_cannot_be_explained_is_said() -> None:
    """A request that the kernel says nothing of although it runs, and a read of what nobody has; new data may be written there."""
    boot = Boot().ask(0).ask(3, traced=False).ask(20).ask(21, writes=True)
    verified = boot.verified()
    assert [entry.offset_bytes // BLOCK for entry in verified.ledger.unexplained] == [20, 3]
    assert "not explained: 2 requests" in shown.lines(verified, RootBudget())


def test_a_request_over_several_owners() -> None:
    entry = Boot().ask(1, 3, path=CONF).verified().ledger.reads[0]
    assert [owner.kind.value for owner in entry.owners] == ["inode table", "directory", "file"]
    assert entry.owners[0].inodes == (P("/"), P("/etc"))
    beyond = Boot().ask(8, 4).verified().ledger.reads[0]
    assert [(owner.kind.value, owner.blocks) for owner in beyond.owners] == [("file", 1), ("free", 3)]


def test_a_disk_in_more_pieces_than_any(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile artefact brings the disk and the guest that reads it."""
    boot = Boot()
    for _ in range(100):
        boot.ask(0, 9)
    boot.verified()
    monkeypatch.setattr(ledger, "_MOST_PIECES", 899)
    with pytest.raises(MeasurementError, match="more than 899 pieces"):
        boot.verified()


def test_two_requests_of_the_same_place_go_in_order() -> None:
    boot = Boot().ask(0, program="od").ask(0, program="mount", call="mount")
    assert [entry.askers[0].program for entry in boot.verified().ledger.reads] == ["od", "mount"]


def test_direct_reads_are_listed_and_not_charged() -> None:
    boot = Boot().ask(0).ask(6, direct=True, call="pread64", path=DATA)
    verified = boot.verified()
    assert len(verified.ledger.reads) == 2
    assert [entry.kind.value for entry in verified.ledger.charged] == ["superblock"]
    assert "O_DIRECT" in verified.ledger.reads[1].avoid
    assert by_kind(verified.ledger.reads) == {"superblock": (1, BLOCK), "file, O_DIRECT": (1, BLOCK)}
    # A direct read is the database's own: no file to be packed.
    assert lacking(verified.ledger, PACKED) == ()


def test_direct_reads_are_summed_by_file_and_program() -> None:
    boot = Boot().ask(0).ask(6, direct=True, path=DATA).ask(5, direct=True, program="y")
    verified = boot.ask(6, direct=True).ask(20, direct=True).verified()
    found = [(each.path, each.program, each.requests) for each in direct_reads(verified.ledger.reads)]
    assert found == [(DATA, "x", 2), (PAGE, "y", 1), (None, "x", 1)]
    assert shown.document(verified, RootBudget())["direct"][0] == {
        "path": str(DATA),
        "program": "x",
        "requests": 2,
        "bytes": 2 * BLOCK,
    }
    text = "\n".join(shown.lines(verified, RootBudget()))
    assert "   2 requests       8.0 KiB  /var/lib/db ← x" in text
    assert "no file ← x" in text


def test_what_the_readiness_command_reads_is_listed_and_not_charged() -> None:
    boot = Boot().ask(0).ask(4, prober=True, program="mariadb", call="page fault").ask(5, prober=True)
    verified = boot.verified()
    document = shown.document(verified, RootBudget(1, BLOCK))
    assert (document["clean"], document["requests"], document["direct_requests"]) == (True, 1, 0)
    assert (document["prober_requests"], document["prober_bytes"]) == (2, 2 * BLOCK)
    assert [each["prober"] for each in document["reads"]] == [False, True, True]
    assert "2 reads of the readiness command" in "\n".join(shown.lines(verified, RootBudget()))
    # Nothing of it is to be packed for the application.
    assert lacking(verified.ledger, PACKED) == ()


def test_what_the_application_asked_for_too_is_charged() -> None:
    boot = Boot().ask(4, prober=True)
    (issued,) = boot.issued
    both = (*issued.askers, Asker(time_ns=1, pid=8, program="y", call="read", path=None))
    boot.issued = [dataclasses.replace(issued, askers=both)]
    assert len(boot.verified().ledger.charged) == 1


def test_writes_are_apart() -> None:
    boot = Boot().ask(7, program="jbd2/vda-8", call="", writes=True).ask(20, writes=True)
    ledger = boot.ask(1, program="ext4lazyinit", call="", writes=True).ask(0).verified().ledger
    assert [entry.kind.value for entry in ledger.writes] == ["journal", "free", "inode table"]
    assert "lazy_itable_init" in ledger.writes[2].avoid
    assert "the journal" in ledger.writes[0].avoid
    assert len(ledger.reads) == 1


@pytest.mark.parametrize(
    ("block", "named"), [(3, ()), (4, (LIBRARY,)), (5, (PAGE,)), (6, (DATA,)), (8, ()), (2, ())]
)
def test_what_the_start_set_lacks(block: int, named: tuple[PurePosixPath, ...]) -> None:
    """What only a profile's rule keeps out is named, what its mode or content keeps out is not."""
    assert lacking(Boot().ask(block).verified().ledger, PACKED) == named


def test_names_that_were_not_there_and_directories_listed() -> None:
    uses = (
        use("failed", "/etc/none"),
        use("failed", "/etc/none", at_ns=5),
        use("listed", "/etc/conf.d"),
        use("failed", "/proc/x"),
        use("failed", "/etc/late", at_ns=READY_NS + 1),
        use("opened", "/etc/x"),
    )
    ledger = Boot().ask(0).verified(uses).ledger
    assert [(str(each.path), each.times, each.time_ns) for each in ledger.failed] == [("/etc/none", 2, 1)]
    assert [str(each.path) for each in ledger.listed] == ["/etc/conf.d"]


def test_packed_files_that_nobody_touched() -> None:
    uses = (use("executed", "/fast/usr/sbin/x"), use("opened", "/fast/lib/liby.so"))
    trace = GuestTrace((), uses, 0, 1)
    # Links are followed, and the interpreter goes with its program.
    assert untouched(trace, READY_NS, PACKED) == ((CONF, 100),)
    assert untouched(trace, 0, PACKED)[0] == (P("/usr/sbin/x"), 3000)


def test_links_that_lead_to_themselves_end_soon() -> None:
    """Three paths of 2000 components, each with such a link, took a minute."""
    long = P("/" + "x/" * 1993 + "l")
    packed = Packed(files={}, links={long: "l", P("/a"): "b/" * 1000 + "../a"}, excluded={}, interpreters={})
    with bounded():
        for _ in range(20):
            assert packed.canonical(long) == long
            packed.canonical(P("/a"))


def test_a_file_is_touched_under_each_of_its_names() -> None:
    perl, version = P("/usr/bin/perl"), P("/usr/bin/perl5.36.0")
    packed = Packed(
        files={perl: 1, version: 1}, links={}, excluded={}, interpreters={}, firsts={version: perl}
    )
    for name in (perl, version):
        trace = GuestTrace((), (use("executed", f"/fast{name}"),), 0, 1)
        assert untouched(trace, READY_NS, packed) == ()
    assert len(untouched(GuestTrace((), (), 0, 1), READY_NS, packed)) == 2


def test_the_log_has_to_be_what_qemu_counted() -> None:
    requests = tuple(Boot().ask(0).ask(3, 2).ask(4).requests)
    check_balance(requests, RootIo(2, 3 * BLOCK, 0, 0))
    for reads, size in ((2, 2 * BLOCK), (4, 4 * BLOCK)):
        with pytest.raises(MeasurementError, match="the volume's log has"):
            check_balance(requests, RootIo(reads, size, 0, 0))


def test_one_that_was_never_answered_is_not_counted() -> None:
    first, second = Boot().ask(0).ask(3).requests
    check_balance((first, dataclasses.replace(second, done_ns=0)), RootIo(1, BLOCK, 0, 0))


def test_qemus_own_look_is_no_request_of_the_guest() -> None:
    (request,) = Boot().ask(0).requests
    own = dataclasses.replace(request, length_bytes=512)
    assert guest_requests((own, own, request)) == (own, request)
    assert guest_requests((request, own)) == (request, own)
    assert guest_requests(()) == ()


def test_a_kernel_without_the_trace_is_an_error() -> None:
    with pytest.raises(GuestError, match="says nothing of its requests"):
        Boot().ask(0, traced=False).verified()


def test_a_trace_that_was_full_before_ready_is_an_error() -> None:
    with pytest.raises(MeasurementError, match="was full"):
        Boot().ask(0).verified(lost=3, ends_ns=READY_NS - 1)
    assert Boot().ask(0).verified(lost=3, ends_ns=READY_NS).ledger.lost == 3


@pytest.mark.parametrize(
    ("budget", "clean"),
    [
        (RootBudget(2, 3 * BLOCK), True),
        (RootBudget(1, 3 * BLOCK), False),
        (RootBudget(2, 3 * BLOCK - 1), False),
    ],
)
def test_the_budget(budget: RootBudget, clean: bool) -> None:
    verified = Boot().ask(0).ask(3, 2).ask(6, 100, direct=True).verified()
    assert shown.document(verified, budget)["clean"] is clean
    assert ("ABOVE the budget" in "\n".join(shown.lines(verified, budget))) is not clean


def test_a_stock_boot_is_not_clean() -> None:
    verified = dataclasses.replace(Boot().ask(0).verified(), fallback="fallback 1: x")
    assert shown.document(verified, RootBudget())["clean"] is False
    assert next(iter(shown.lines(verified, RootBudget()))).endswith("fallback 1: x")


def test_the_document_is_json_and_the_lines_say_all() -> None:
    uses = (use("failed", "/etc/none"), use("listed", "/etc/conf.d"))
    boot = Boot().ask(1, ahead=True, path=CONF).ask(4, call="page fault").ask(7, writes=True, call="")
    verified = boot.verified(uses)
    document = json.loads(json.dumps(shown.document(verified, RootBudget())))
    assert (document["requests"], document["bytes"], document["root_reads"]) == (2, 2 * BLOCK, 2)
    assert document["reads"][1]["owners"][0]["path"] == str(LIBRARY)
    assert document["reads"][0]["ahead"] is True
    assert document["reads"][1]["asked_by"] == [
        {"pid": 7, "program": "x", "call": "page fault", "path": None}
    ]
    text = "\n".join(shown.lines(verified, RootBudget()))
    for part in (
        "inode table (/, /etc) (read ahead)",
        "/usr/lib/libx.so.1 at 0.0 KiB ← x[7] page fault",
        "x[7] outside a call",
        "/etc/none ← x openat",
        "/etc/conf.d",
        "packed and never touched: 4 files",
    ):
        assert part in text
