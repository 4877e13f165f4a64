"""The data that the first requests read: the tracer's script with a trace of a kernel, and the plan on a real ext4."""

from __future__ import annotations

import itertools
import lzma
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from quickstart.host.assets import assets
from quickstart.host.progress import Quiet
from quickstart.image.blockmap import BlockMap, Kind, read_block_map
from quickstart.image.superblock import read_superblock
from quickstart.initramfs.prefetch import Prefetch
from quickstart.model import FileRules, Profile, ReferenceImage, StartSet
from quickstart.model.residency import DataPrefetch
from quickstart.model.rootdisk import RootDisk
from quickstart.model.subject import Subject, Traced
from quickstart.pack import firstreads
from quickstart.pack.firstreads import data_read, plan_later
from quickstart.pack.packing import data_of
from quickstart.profile import parse_profile
from quickstart.store.context import Context
from quickstart.store.store import Store
from quickstart.trace.firstreads import parse_reads
from tests.unit.imagebuilder import trace
from tests.unit.smallprofile import SMALL

BLOCK = 4096
MIB = 1024 * 1024
INIT = Path(__file__).parents[2] / "quickstart/initramfs/init"
PROFILE = parse_profile(
    f"""\
{SMALL}[files]
exclude = ["/var/lib/app/logs/**"]
[prefetch]
data = ["/var/lib/app/**"]
first_requests = "ask"
""",
    "profile.toml",
)


def P(path: str) -> PurePosixPath:  # noqa: N802
    return PurePosixPath(path)


# ---------------------------------------------------------------- tracers/reads-all


def reads(place: Path, lines: str, device: str) -> str:
    """The output of the script in a boot whose root is ``device``, and whose kernel's trace has ``lines``."""
    script = (assets("tracers") / "reads-all").read_text()
    busybox = shutil.which("busybox")
    assert busybox
    for there, here in {
        "/run/quickstart-trace/busybox": busybox,
        "/sys/kernel/tracing": str(place),
        "/proc/1/mountinfo": str(place / "mounts"),
    }.items():
        assert there in script
        script = script.replace(there, here)
    (place / "trace").write_text(lines)
    (place / "mounts").write_text(
        f"20 1 0:18 / /proc rw - proc proc rw\n1 1 {device} / / rw,relatime - ext4 /dev/vda rw\n"
    )
    (place / "tracing_on").write_text("1\n")
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    # What reads the trace itself is not to be in it.
    assert (place / "tracing_on").read_text() == "0\n"
    return done.stdout


LINES = """\
# tracer: nop
     kworker/0:1H-36      [000] .....     2.402772: block_rq_issue: 254,0 R 4096 () 0 + 8 [kworker/0:1H]
         postgres-812     [001] d..1.  1008.558840: block_rq_issue: 254,0 RA 16384 () 2048 + 32 [postgres]
         postgres-812     [001] .....  1008.558841: block_bio_queue: 254,0 RA 512 + 32 [postgres]
         postgres-812     [001] .....  1008.559000: block_rq_issue: 254,0 R 4096 () 4096 + 8 none,0,0 [postgres]
     jbd2/vda-8-200       [000] .....  1008.600000: block_rq_issue: 254,0 WS 8192 () 800 + 16 [jbd2/vda-8]
         od: 1.000001-100 [000] .....  1009.000001: block_rq_issue: 254,16 R 4096 () 8 + 8 [od: 1]
"""


def test_the_script_takes_the_root_volumes_reads(tmp_path: Path) -> None:
    assert (
        reads(tmp_path, LINES, "254:0") == "2.402772 0 8\n1008.558840 2048 32\n1008.559000 4096 8\n== end\n"
    )
    assert reads(tmp_path, LINES, "254:16") == "1009.000001 8 8\n== end\n"
    # The image is mounted by another file system, or the kernel has no trace of it.
    assert reads(tmp_path, LINES, "0:25") == "== end\n"


def test_the_trace_of_a_real_boot(tmp_path: Path) -> None:
    text = lzma.decompress((Path(__file__).parents[1] / "logs/bookworm.nginx.ftrace.xz").read_bytes()).decode(
        errors="replace"
    )
    said = reads(tmp_path, text, "254:0")
    found = parse_reads(said, 0)
    assert len(found) > 20
    assert parse_reads(said, 3 * 10**9) == found[-len(parse_reads(said, 3 * 10**9)) :]
    assert (0, BLOCK) in found


# ---------------------------------------------------------------- the plan


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("data")
    base = place / "tree"
    for name in ("var/lib/app/db", "var/lib/app/logs", "var/lib/other", "etc"):
        (base / name).mkdir(parents=True)
    (base / "var/lib/app/db/table").write_bytes(os.urandom(4 * MIB))
    (base / "var/lib/app/db/index").write_bytes(os.urandom(MIB))
    (base / "var/lib/app/logs/log").write_bytes(os.urandom(MIB))
    (base / "var/lib/other/table").write_bytes(os.urandom(MIB))
    image = place / "root.raw"
    subprocess.run(
        ["mke2fs", "-q", "-t", "ext4", "-d", base, "-b", "4096", image, "64M"], timeout=60, check=True
    )
    return image


@pytest.fixture(scope="module")
def blocks(image: Path) -> BlockMap:
    return read_block_map(image)


def place_of(blocks: BlockMap, path: str, offset: int) -> int:
    """Where on the volume this byte of the file is."""
    for run in blocks.runs:
        begin = run.offset_bytes
        if run.kind is Kind.FILE and run.path == P(path) and begin <= offset < begin + run.blocks * BLOCK:
            return run.first_block * BLOCK + offset - begin
    raise AssertionError(path)


def read(blocks: BlockMap, *parts: tuple[str, int, int], profile: Profile = PROFILE) -> dict[str, object]:
    reads = tuple((place_of(blocks, path, offset), length) for path, offset, length in parts)
    found = data_read(profile, [replace(trace(), first_reads=reads)], blocks)
    return {str(path): each for path, each in found.items()}


def test_only_the_applications_data_counts(blocks: BlockMap) -> None:
    table = "/var/lib/app/db/table"
    assert read(
        blocks,
        (table, MIB, BLOCK),
        (table, 0, 2 * BLOCK),
        ("/var/lib/app/logs/log", 0, BLOCK),
        ("/var/lib/other/table", 0, BLOCK),
    ) == {table: ((0, 2 * BLOCK), (MIB, BLOCK))}


def test_parts_of_several_traces_that_lie_close_together_are_one(blocks: BlockMap) -> None:
    table = place_of(blocks, "/var/lib/app/db/table", 0)
    traces = [
        replace(trace(), first_reads=((table, BLOCK), (table + MIB, BLOCK))),
        replace(trace(), first_reads=((table + 4 * BLOCK, BLOCK), (table + MIB + 128 * 1024, BLOCK))),
    ]
    assert data_read(PROFILE, traces, blocks) == {
        P("/var/lib/app/db/table"): ((0, 5 * BLOCK), (MIB, BLOCK), (MIB + 128 * 1024, BLOCK))
    }


def test_files_come_in_the_order_in_which_they_were_read(blocks: BlockMap) -> None:
    table, index = "/var/lib/app/db/table", "/var/lib/app/db/index"
    for order in ((table, index), (index, table)):
        assert tuple(read(blocks, *((name, 0, BLOCK) for name in order))) == order


def test_a_guest_may_report_any_read(blocks: BlockMap) -> None:
    """All of them overlap, and go beyond the end of the volume."""
    reads = tuple((each * 512, 10**12) for each in range(1 << 17))
    found = data_read(PROFILE, [replace(trace(), first_reads=reads)], blocks)
    assert set(found) == {P("/var/lib/app/db/table"), P("/var/lib/app/db/index")}
    assert found[P("/var/lib/app/db/table")] == ((0, 4 * MIB),)


def later(blocks: BlockMap, *files: tuple[str, Sequence[tuple[int, int]]], first: Prefetch) -> Prefetch:
    found = plan_later({P(name): tuple(parts) for name, parts in files}, first, blocks)
    assert found
    return found


def covers(plan: Prefetch, block: int) -> bool:
    return any(offset <= block * BLOCK < offset + length for offset, length in plan.ranges)


def test_the_plan_has_what_leads_to_the_parts(blocks: BlockMap) -> None:
    table, index = "/var/lib/app/db/table", "/var/lib/app/db/index"
    nothing = Prefetch((), ())
    found = later(blocks, (table, [(MIB, BLOCK)]), (index, [(0, BLOCK)]), first=nothing)
    # In the order of their first reads.
    assert found.parts == ((P(table), MIB, BLOCK), (P(index), 0, BLOCK))
    assert found.files == ()
    (inode,) = blocks.inode_blocks([P(table)])
    directory = next(
        run.first_block
        for run in blocks.runs
        if run.kind is Kind.DIRECTORY and run.path == P("/var/lib/app/db")
    )
    assert covers(found, inode) and covers(found, directory)
    assert sum(length for _, length in found.ranges) < 64 * 1024
    # What init asks for before the application starts is not asked for again.
    early = Prefetch(found.ranges, (P(index),))
    found = later(blocks, (table, [(MIB, BLOCK)]), (index, [(0, BLOCK)]), first=early)
    assert (found.parts, found.ranges) == (((P(table), MIB, BLOCK),), ())
    assert plan_later({P(index): ((0, BLOCK),)}, early, blocks) is None
    assert plan_later({}, nothing, blocks) is None


def test_the_plan_has_its_limits(blocks: BlockMap, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = tuple((each * MIB, BLOCK) for each in range(4))
    monkeypatch.setattr(firstreads, "_MOST_BYTES", 3 * BLOCK)
    assert len(later(blocks, ("/var/lib/app/db/table", parts), first=Prefetch((), ())).parts) == 3
    monkeypatch.setattr(firstreads, "_MOST_PARTS", 2)
    assert len(later(blocks, ("/var/lib/app/db/table", parts), first=Prefetch((), ())).parts) == 2


def test_a_file_that_the_profile_leaves_out(blocks: BlockMap) -> None:
    rules = FileRules((), ("/var/lib/app/db/t*",), (), ())
    profile = replace(PROFILE, files=rules, data_prefetch=DataPrefetch(("/var/lib/**",), "ask"))
    table = "/var/lib/app/db/table"
    assert read(blocks, (table, 0, BLOCK), ("/var/lib/other/table", 0, BLOCK), profile=profile) == {
        "/var/lib/other/table": ((0, BLOCK),)
    }


class Noting(Quiet):
    """It collects the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_requests_that_read_none_of_the_files_are_told_of(
    image: Path, blocks: BlockMap, tmp_path: Path
) -> None:
    superblock = read_superblock(image)
    reference = ReferenceImage(
        tree=tmp_path,
        image_hash="",
        kernel=tmp_path,
        initrd=tmp_path,
        kernel_version="",
        volume_uuid="",
        volume_label="",
        origin=("tar", ""),
    )
    subject = Subject(
        PROFILE, reference, RootDisk(path=image, size_bytes=image.stat().st_size, superblock=superblock)
    )
    plain = replace(subject, profile=replace(PROFILE, data_prefetch=DataPrefetch()))
    reads = ((place_of(blocks, "/var/lib/app/db/table", 0), BLOCK),)
    said = Noting()
    with Store(tmp_path / "store") as store:
        context = Context(store, said)
        found = data_of(subject, Traced(StartSet((), ()), (replace(trace(), first_reads=reads),)), context)
        assert found == {P("/var/lib/app/db/table"): ((0, BLOCK),)}
        nothing = Traced(StartSet((), ()), (trace(),))
        assert data_of(plain, nothing, context) == {} and said.notes == []
        assert data_of(subject, nothing, context) == {}
    assert "prefetch.data" in said.notes[0]


# ---------------------------------------------------------------- init


def asked(place: Path, words: str, *, later: bool = True) -> list[str]:
    """The words of the prefetcher that `ask_for_data` calls, and after them each descriptor that it has beyond stderr."""
    hand_off = (INIT / "hand-off").read_text()
    body = "".join(
        itertools.takewhile(
            lambda line: line != "}\n", hand_off.partition("\nask_for_data() {\n")[2].splitlines(True)
        )
    )
    second = (INIT / "second").read_text()
    count = "".join(
        itertools.takewhile(
            lambda line: line != "}\n", second.partition("\ncount_sockets() {\n")[2].splitlines(True)
        )
    )
    queue = place / "block/vda/queue"
    queue.mkdir(parents=True)
    (queue / "max_sectors_kb").write_text("256\n")
    (place / "mounts").write_text("proc /proc proc rw 0 0\n/dev/vda / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n")
    (place / "prefetcher").write_text(
        f'#!/bin/sh\necho "$*" >{place}/asked\nls /proc/$$/fd >>{place}/asked\n'
    )
    (place / "prefetcher").chmod(0o755)
    if later:
        (place / "prefetch.later-parts").write_text("")
    body = body.replace("/proc/mounts", str(place / "mounts")).replace(
        "/sys/class/block", str(place / "block")
    )
    script = (
        f"count_sockets() {{\n{count}}}\nask_for_data() {{\n{body}}}\n"
        f"Q={place} PATH={place}:$PATH SOCKETS=1 COMPANION_SOCKETS='1' JOURNAL_SOCKETS=1 READY_PORT=0050 late=\n"
        f"exec 3</dev/null 4</dev/null 5</dev/null\n{words}\nask_for_data\n"
    )
    subprocess.run(["busybox", "sh", "-c", script], timeout=60, check=True)
    said = place / "asked"
    return said.read_text().splitlines() if said.exists() else []


def test_init_asks_for_the_data_when_the_application_is_ready(tmp_path: Path) -> None:
    words, *descriptors = asked(tmp_path, "")
    plan = f"{tmp_path}/prefetch.later"
    assert words == f"/dev/vda / {plan}-ranges /dev/null {plan}-parts 256"
    # The sockets of the units and of journald are not its business; the shell has its script open.
    assert not {"3", "4", "5"} & set(descriptors)


@pytest.mark.parametrize("words", ["late=yes", "READY_PORT="])
def test_init_does_not_ask_for_the_data_of_what_may_not_be_ready(tmp_path: Path, words: str) -> None:
    assert asked(tmp_path, words) == []


def test_most_profiles_have_no_such_plan(tmp_path: Path) -> None:
    assert asked(tmp_path, "", later=False) == []
    hand_off = (INIT / "hand-off").read_text()
    # Only behind the wait for ready.
    assert hand_off.index("\n\twait_at_rest\n\task_for_data\n") > hand_off.index(
        "\nhand_off() {\n\twait_ready\n"
    )
