"""The guest kernel's trace in the format of ftrace: who asked for each request, and which names did not exist."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from quickstart.errors import GuestError
from quickstart.verify import guesttrace
from quickstart.verify.ftrace import TRACE_WORDS
from quickstart.verify.guesttrace import GuestTrace, parse, volume_paths

STATS = "entries: 9\noverrun: 0\ncommit overrun: 0\nbytes: 1\ndropped events: 0\nread events: 0\n"


class Log:
    """Lines as /sys/kernel/tracing/trace has them, a millisecond apart."""

    def __init__(self) -> None:
        self.lines = ["# tracer: nop", "#", "#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION"]

    def say(self, who: str, said: str) -> Log:
        at = len(self.lines) * 1000
        self.lines.append(f"{who:>16} [000] .....  {at // 1000000:4}.{at % 1000000:06}: {said}")
        return self

    def call(self, who: str, name: str, arguments: str, value: str, path: str = "", *within: str) -> Log:
        self.say(who, f"sys_{name}({arguments})")
        if path:
            self.say(who, f'qs_name: (getname_flags.part.0+0x1/0x2 <- getname_flags) name="{path}"')
        for each in within:
            self.say(who, each)
        return self.say(who, f"sys_{name} -> {value}")

    def chroot(self, pid: int = 1) -> Log:
        return self.call(f"init-{pid}", "chroot", "filename: 5", "0x0", ".")

    def parsed(self, stats: str = STATS) -> GuestTrace:
        return parse(self.lines, stats)


def bio(sector: int, sectors: int = 8, flags: str = "RM") -> str:
    return f"block_bio_queue: 254,0 {flags} {sector} + {sectors} [x]"


def issue(sector: int, sectors: int = 8, flags: str = "RM") -> str:
    return f"block_rq_issue: 254,0 {flags} {sectors * 512} () {sector} + {sectors} [kworker/0:1H]"


NO_ENTRY = "0xfffffffffffffffe"


def test_who_asked_is_who_queued_it_not_who_issued_it() -> None:
    log = Log().call(
        "nginx-126", "openat", "dfd: ffffff9c, filename: 7f, flags: 0, mode: 0", "0x3", "/etc/x", bio(16)
    )
    log.say("kworker/0:1H-36", issue(16))
    (issued,) = log.parsed().issued
    assert (issued.sector, issued.sectors, issued.writes, issued.ahead) == (16, 8, False, False)
    (asker,) = issued.askers
    assert (asker.program, asker.pid, asker.call) == ("nginx", 126, "openat")
    assert asker.path == PurePosixPath("/etc/x")


def test_a_request_has_its_priority_since_linux_6_11() -> None:
    log = Log().say("a-7", bio(16)).say("k-3", issue(16).replace("[kworker", "none,0,0 [kworker"))
    (issued,) = log.parsed().issued
    assert (issued.sector, issued.sectors, [each.program for each in issued.askers]) == (16, 8, ["a"])


def test_a_request_of_many_pieces_names_each_asker_once() -> None:
    log = Log().say("a-7", "sys_read(fd: 3, buf: 1, count: 2)")
    for sector in range(0, 32, 8):
        log.say("a-7", bio(sector, flags="RA"))
    log.say("b b-2-8", bio(32, flags="RA")).say("kworker/0:1H-36", issue(0, 40, "RA"))
    (issued,) = log.parsed().issued
    assert issued.ahead
    assert [(each.program, each.call) for each in issued.askers] == [("a", "read"), ("b b-2", "")]


def test_a_piece_that_is_split_is_of_both_requests() -> None:
    log = Log().say("a-7", bio(0, 64)).say("k-3", issue(0, 32)).say("k-3", issue(32, 32))
    assert [len(each.askers) for each in log.parsed().issued] == [1, 1]


def test_a_write_is_not_taken_for_a_read_of_the_same_place() -> None:
    log = Log().say("a-7", bio(0)).say("jbd2/vda-8-9", bio(0, flags="WS"))
    log.say("k-3", issue(0, flags="WS")).say("k-3", issue(0))
    written, read = log.parsed().issued
    assert written.writes
    assert [each.program for each in written.askers] == ["jbd2/vda-8"]
    assert [each.program for each in read.askers] == ["a"]


def test_zeroes_are_written() -> None:
    """ext4lazyinit's write zeroes, which blktrace has no letter for, and a flush of no sectors before it."""
    log = Log().say("ext4lazyinit-107", bio(0, 0, "FWS")).say("k-3", issue(0, 0, "FF"))
    log.say("ext4lazyinit-107", bio(7808, 2696, "NS")).say("k-3", issue(7808, 2696, "NS"))
    (_, zeroes) = log.parsed().issued
    assert (zeroes.writes, [each.program for each in zeroes.askers]) == (True, ["ext4lazyinit"])


def test_a_page_fault_and_direct_io_are_known() -> None:
    log = Log().say("a-7", "qs_fault: (filemap_fault+0x0/0x910)").say("a-7", bio(0)).say("k-3", issue(0))
    log.say("m-9", "sys_pread64(fd: 4, buf: 1, count: 2, pos: 0)")
    log.say("m-9", "qs_direct: (iomap_dio_rw+0x0/0x20)").say("m-9", bio(8)).say("k-3", issue(8))
    fault, direct = (each.askers[0] for each in log.parsed().issued)
    assert (fault.call, fault.direct) == ("page fault", False)
    assert (direct.call, direct.direct) == ("pread64", True)


def test_a_read_is_of_the_file_that_its_descriptor_was_opened_for() -> None:
    log = Log().call("a-7", "openat", "dfd: ffffff9c, filename: 7f, flags: 0, mode: 0", "0x5", "/etc/x")
    log.call("a-7", "read", "fd: 5, buf: 1, count: 2", "0x2", "", bio(0)).say("k-3", issue(0))
    assert log.parsed().issued[0].askers[0].path == PurePosixPath("/etc/x")


def test_threads_share_descriptors_and_processes_have_copies() -> None:
    fork = "sched_process_fork: comm=a pid=7 child_comm=a child_pid={}"
    log = Log().say("a-7", "sys_clone3(uargs: 1, size: 58)").say("a-7", fork.format(8))
    log.say("a-7", "sys_clone3 -> 0x8")
    log.say("a-7", "sys_clone(clone_flags: 1)").say("a-7", fork.format(9)).say("a-7", "sys_clone -> 0x9")
    log.call("a-7", "openat", "dfd: ffffff9c, filename: 7f, flags: 0, mode: 0", "0x5", "/x")
    for pid, sector in ((8, 0), (9, 8)):
        log.call(f"a-{pid}", "read", "fd: 5, buf: 1, count: 2", "0x2", "", bio(sector)).say(
            "k-3", issue(sector)
        )
    paths = [each.askers[0].path for each in log.parsed().issued]
    assert paths == [PurePosixPath("/x"), None]


def test_a_child_of_posix_spawn_has_descriptors_of_its_own_from_its_execve_on() -> None:
    """It comes by clone3, as a thread does (glibc 2.36)."""
    opened = "dfd: ffffff9c, filename: 7f, flags: 0, mode: 0"
    log = Log().call("a-7", "openat", opened, "0x3", "/srv/data")
    log.say("a-7", "sys_clone3(uargs: 1, size: 58)")
    log.say("a-7", "sched_process_fork: comm=a pid=7 child_comm=a child_pid=8")
    log.call("a-8", "execve", "filename: 1, argv: 2, envp: 3", "0x0", "/bin/child")
    log.say("a-7", "sys_clone3 -> 0x8")
    log.call("a-8", "openat", opened, "0x3", "/etc/ld.so.cache")
    log.call("a-7", "pread64", "fd: 3, buf: 1, count: 2, pos: 0", "0x2", "", bio(0)).say("k-3", issue(0))
    assert log.parsed().issued[0].askers[0].path == PurePosixPath("/srv/data")


def test_what_the_agent_starts_asks_for_the_prober() -> None:
    """Its children and theirs; not an application of that name, nor anybody else."""
    fork = "sched_process_fork: comm=x pid=7 child_comm=x child_pid={}"
    log = Log().say("agent-90", fork.format(91)).call("agent-91", "chroot", "filename: 5", "0x0", ".")
    log.say("sh-91", fork.format(92)).chroot().say("init-1", fork.format(93)).say("agent-93", fork.format(94))
    for who, sector in (("mariadb-92", 0), ("sh-91", 8), ("agent-93", 16), ("agent-94", 24)):
        log.say(who, bio(sector)).say("k-3", issue(sector))
    found = [(each.askers[0].pid, each.askers[0].prober) for each in log.parsed().issued]
    assert found == [(92, True), (91, True), (93, False), (94, False)]


@pytest.mark.parametrize(
    ("arguments", "name", "path"),
    [
        ("dfd: ffffff9c, filename: 7f", "conf/x", "/etc/conf/x"),
        ("dfd: 4, filename: 7f", "x", "/usr/share/x"),
        ("dfd: 4, filename: 7f", "/abs", "/abs"),
        ("dfd: ffffff9c, filename: 7f", "../var/./x", "/var/x"),
    ],
)
def test_relative_names(arguments: str, name: str, path: str) -> None:
    log = Log().chroot().call("init-1", "chdir", "filename: 7f", "0x0", "/etc")
    log.call("init-1", "openat", "dfd: ffffff9c, filename: 7f, flags: 0, mode: 0", "0x4", "/usr/share")
    log.call("init-1", "newfstatat", f"{arguments}, statbuf: 1, flag: 0", NO_ENTRY, name)
    failed = [each for each in log.parsed().uses if each.what == "failed"]
    assert [each.path for each in failed] == [PurePosixPath(path)]


def test_only_names_of_the_root_volume_count() -> None:
    log = Log()
    for name in ("/etc/initramfs", "/newroot/etc/early"):
        log.call("init-1", "access", "filename: 7f, mode: 4", NO_ENTRY, name)
    log.say("init-1", "sched_process_fork: comm=init pid=1 child_comm=init child_pid=90")
    log.chroot()
    log.say("init-1", "sched_process_fork: comm=init pid=1 child_comm=init child_pid=91")
    for who in ("agent-90", "nginx-91"):
        for name in ("/etc/missing", "/proc/missing", "/fast/usr/missing", "/run/x"):
            log.call(who, "access", "filename: 7f, mode: 4", NO_ENTRY, name)
    found = [(use.program, str(path)) for use, path in volume_paths(log.parsed().uses)]
    assert found == [("init", "/etc/early"), ("nginx", "/etc/missing")]


def test_failed_listed_opened_and_executed() -> None:
    log = Log().chroot()
    log.call("a-1", "openat", "dfd: ffffff9c, filename: 7f, flags: 0, mode: 0", "0x3", "/etc/conf.d")
    log.call("a-1", "getdents64", "fd: 3, dirent: 1, count: 2", "0x40").call(
        "a-1", "getdents64", "fd: 3", "0x0"
    )
    log.call("a-1", "execve", "filename: 7f, argv: 1, envp: 2", NO_ENTRY, "/bin/no")
    log.call("a-1", "execve", "filename: 7f, argv: 1, envp: 2", "0x0", "/bin/yes")
    # Another error than ENOENT is no missing name.
    log.call("a-1", "mkdir", "pathname: 7f, mode: 1c0", "0xffffffffffffffef", "/var/there")
    uses = [(each.what, str(each.path)) for each in log.parsed().uses]
    assert uses == [
        ("opened", "/etc/conf.d"),
        ("listed", "/etc/conf.d"),
        ("listed", "/etc/conf.d"),
        ("failed", "/bin/no"),
        ("executed", "/bin/yes"),
    ]


def test_what_was_lost_is_counted_and_the_rest_is_passed_over() -> None:
    stats = STATS.replace("dropped events: 0", "dropped events: 12").replace("\noverrun: 0", "\noverrun: 30")
    log = Log().say("a-7", "some_other_event: x=1")
    log.lines.append("CPU:0 [LOST 3 EVENTS]")
    trace = log.parsed(stats + stats)
    assert (trace.lost, trace.issued, trace.uses) == (84, (), ())
    assert trace.ends_ns == 3_000_000


def test_the_words_are_words_of_a_command_line() -> None:
    assert not any(set(word) & set(" \"'\n") for word in TRACE_WORDS)
    assert len(" ".join(TRACE_WORDS)) < 1024


def test_long_paths_of_a_hostile_guest_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path of 2000 components is 2000 objects; an ordinary boot uses each of its paths many times."""
    monkeypatch.setattr(guesttrace, "_MOST_BYTES", 1 << 20)
    log = Log().chroot()
    for _ in range(1000):
        log.call(
            "x-7", "openat", "dfd: ffffff9c, filename: 7f, flags: 0, mode: 0", NO_ENTRY, "/usr/lib/same.so"
        )
    assert len(log.parsed().uses) == 1000
    for number in range(100):
        path = "/a" * 1000 + f"/{number}"
        log.call("x-7", "openat", "dfd: ffffff9c, filename: 7f, flags: 0, mode: 0", NO_ENTRY, path)
    with pytest.raises(GuestError, match="the paths in the guest's trace take more than 1048576 bytes"):
        log.parsed()


def test_each_use_of_a_path_and_each_asker_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify --json` writes the path again for each of them: a trace of 1 MB became 3 GB of text."""
    monkeypatch.setattr(guesttrace, "_MOST_BYTES", 1 << 20)
    long = "/a" * 1000
    log = Log().chroot()
    for _ in range(100):
        log.call("x-7", "openat", "dfd: ffffff9c, filename: 7f, flags: 0, mode: 0", NO_ENTRY, long)
    with pytest.raises(GuestError, match="the paths in the guest's trace take more than 1048576 bytes"):
        log.parsed()
    log = Log().chroot()
    log.say("x-7", "sys_openat(dfd: ffffff9c, filename: 7f, flags: 0, mode: 0)")
    log.say("x-7", f'qs_name: (getname_flags.part.0+0x1/0x2 <- getname_flags) name="{long}"')
    log.say("x-7", bio(0, 1 << 20))
    for number in range(200):
        log.say("kworker-9", issue(8 * number))
    with pytest.raises(GuestError, match="the paths in the guest's trace take more than 1048576 bytes"):
        log.parsed()
