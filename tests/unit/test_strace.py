"""A log of strace becomes calls, and calls become actions of processes."""

from __future__ import annotations

import os

import pytest

from quickstart.errors import TraceError
from quickstart.model import Op
from quickstart.trace import strace
from quickstart.trace.events import Blind, Seen, read_events
from quickstart.trace.strace import Call, Ended
from tests.unit.stracelog import born, events, items, log, paths

# ---------------------------------------------------------------- lines


def test_halves_are_joined() -> None:
    calls = list(
        strace.read_calls(
            log(
                '7 openat(AT_FDCWD</srv>, "a", O_RDONLY|O_CLOEXEC <unfinished ...>',
                '8 access("/etc/x", R_OK <unfinished ...>',
                "7 <... openat resumed>) = 3</srv/a>",
                "8 <... access resumed>) = -1 ENOENT (No such file or directory)",
                "8 +++ exited with 0 +++",
            )
        )
    )
    assert calls == [
        Call(3, 7, "openat", 'AT_FDCWD</srv>, "a", O_RDONLY|O_CLOEXEC', "3", "/srv/a", None),
        Call(4, 8, "access", '"/etc/x", R_OK', "-1", "", "ENOENT"),
        Ended(5, 8),
    ]


def test_a_call_cut_twice() -> None:
    assert paths(
        '7 openat(AT_FDCWD</>, "/a" <unfinished ...>',
        "7 <... openat resumed>, O_RDONLY <unfinished ...>",
        "7 <... openat resumed>) = 3</a>",
    ) == ["/a"]


def test_detached_calls_did_not_return() -> None:
    assert paths('7 access("/x", F_OK) = 0', '7 openat(AT_FDCWD</>, "/a", O_RDONLY <detached ...>') == ["/x"]


def test_a_process_that_died_in_a_call_may_come_back() -> None:
    rows = (
        '7 access("/x", F_OK <unfinished ...>',
        "7 +++ killed by SIGKILL +++",
        '7 access("/y", F_OK) = 0',
    )
    assert paths(*rows) == ["/y"]


def test_another_mode_of_the_processor_is_a_remark() -> None:
    rows = ("7 [ Process PID=7 runs in 32 bit mode. ]", '7 access("/x", F_OK) = 0')
    assert paths(*rows) == ["/x"]


def test_signals_and_calls_without_paths_are_no_events() -> None:
    rows = (
        "7 --- SIGCHLD {si_signo=SIGCHLD, si_pid=8} ---",
        "7 exit_group(0)   = ?",
        '7 newfstatat(0<pipe:[1234]>, "", {st_mode=S_IFIFO|0600, ...}, AT_EMPTY_PATH) = 0',
        '7 access("/x", F_OK) = 0',
        "7 +++ killed by SIGSEGV (core dumped) +++",
        "7 +++ superseded by execve in pid 9 +++",
    )
    assert paths(*rows) == ["/x"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([*log('1 access("/a", F_OK) = 0'), b'1 17.2 access("/b", F'], "is cut in line 2"),
        ([*log('1 access("/a", F_OK) = 0', "1 hello"), b"\n"], "line 2 of the strace log is not strace's"),
        ([b"strace: out of memory\n"], "line 1 of the strace log is not strace's"),
        (log('1 access("/a", F_OK) = 0', '1 access("/b", F_OK'), "line 2 of the strace log is not"),
        (log("1 <... openat resumed>) = 3"), "line 1 of the strace log resumes openat"),
        (
            log('1 access("/a", F_OK <unfinished ...>', "1 <... openat resumed>) = 3"),
            "line 2 of the strace log resumes openat, which process 1 did not begin",
        ),
        (log('1 openat(AT_FDCWD</>, "/a"..., O_RDONLY) = 3</a>'), "line 1 of the strace log has a shortened"),
        ([], "the strace log is empty"),
        (log("1 exit_group(0) = ?"), "the strace log is empty"),
    ],
)
def test_a_damaged_log_is_refused(lines: list[bytes], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        list(read_events(lines))


# ---------------------------------------------------------------- paths


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('openat(AT_FDCWD</srv/www>, "a/b", O_RDONLY) = 3</srv/www/a/b>', "/srv/www/a/b"),
        ('openat(AT_FDCWD</srv>, "/a", O_RDONLY) = 3</a>', "/a"),
        ('openat(5</etc/nginx>, "conf", O_RDONLY) = 6</etc/nginx/conf>', "/etc/nginx/conf"),
        ('openat(AT_FDCWD</>, "a", O_RDONLY) = 3</a>', "/a"),
        ('newfstatat(5</etc/nginx>, "", {...}, AT_EMPTY_PATH) = 0', "/etc/nginx"),
        ('openat(5</etc/gone>(deleted), "a", O_RDONLY) = -1 ENOENT (No such file)', "/etc/gone/a"),
        # What ".." means depends on the links before it, which only the image knows.
        ('openat(AT_FDCWD</srv>, "/link/../a", O_RDONLY) = 3</other/a>', "/link/../a"),
        ('openat(AT_FDCWD</srv/x>, "../a", O_RDONLY) = 3</srv/a>', "/srv/x/../a"),
        (r'openat(AT_FDCWD</>, "/a\"b\\c\td\ne", O_RDONLY) = 3</x>', '/a"b\\c\td\ne'),
        (r'openat(AT_FDCWD</>, "/caf\303\251", O_RDONLY) = 3</caf\303\251>', "/café"),
        (r'openat(AT_FDCWD</>, "/\11\0018", O_RDONLY) = 3</x>', "/\t\x018"),
        (r'openat(AT_FDCWD</>, "/\377\3761", O_RDONLY) = 3</x>', "/\udcff\udcfe1"),
        (r'openat(5</a\76b\74>, "c", O_RDONLY) = 3</a\76b\74/c>', "/a>b</c"),
        ('readlink("/proc/self/exe", "/usr/bin/x", 4095) = 10', "/proc/self/exe"),
        ('openat(AT_FDCWD</>, "/a, \\"O_RDONLY) = 3", O_RDONLY) = 4</x>', '/a, "O_RDONLY) = 3'),
    ],
)
def test_path(text: str, path: str) -> None:
    assert paths(f"7 {text}") == [path]


def test_a_log_that_holds_raw_bytes() -> None:
    row = b'7 openat(AT_FDCWD</>, "/caf\xe9", O_RDONLY) = 3</caf\xe9>'
    assert paths(row) == [os.fsdecode(b"/caf\xe9")]


@pytest.mark.parametrize(
    ("text", "op", "error"),
    [
        ('openat(AT_FDCWD</>, "/p", O_RDONLY|O_CLOEXEC) = 3</p>', Op.OPEN, None),
        ('openat(AT_FDCWD</>, "/p", O_RDONLY) = -1 ENOENT (No such file or directory)', Op.OPEN, "ENOENT"),
        ('open("/p", O_RDONLY) = 3</p>', Op.OPEN, None),
        ('openat2(AT_FDCWD</>, "/p", {flags=O_RDONLY, resolve=0}, 24) = 3</p>', Op.OPEN, None),
        ('openat(AT_FDCWD</>, "/p", O_WRONLY|O_APPEND) = 3</p>', Op.WRITE, None),
        ('openat(AT_FDCWD</>, "/p", O_RDWR) = 3</p>', Op.WRITE, None),
        ('openat(AT_FDCWD</>, "/p", O_RDONLY|O_CREAT, 0644) = 3</p>', Op.WRITE, None),
        ('openat(AT_FDCWD</>, "/p", O_RDONLY|O_TRUNC) = 3</p>', Op.WRITE, None),
        ('creat("/p", 0644) = 3</p>', Op.WRITE, None),
        ('unlink("/p") = 0', Op.WRITE, None),
        ('mkdirat(AT_FDCWD</>, "/p", 0755) = -1 EEXIST (File exists)', Op.WRITE, "EEXIST"),
        ("mmap(NULL, 80, PROT_READ|PROT_EXEC, MAP_PRIVATE|MAP_DENYWRITE, 3</p>, 0) = 0x7f", Op.MAP, None),
        ('execveat(3</p>, "", ["p"], 0x7ffd /* 3 vars */, AT_EMPTY_PATH) = 0', Op.EXEC, None),
        ('statx(AT_FDCWD</>, "/p", AT_STATX_SYNC_AS_STAT, STATX_ALL, {stx_mask=0}) = 0', Op.LOOKUP, None),
        ('faccessat2(AT_FDCWD</>, "/p", R_OK, AT_EACCESS) = 0', Op.LOOKUP, None),
        ("getdents64(4</p>, 0x55d0 /* 12 entries */, 32768) = 376", Op.LIST, None),
        ('access("/p", R_OK) = -1 EACCES (Permission denied)', Op.LOOKUP, "EACCES"),
        ('newfstatat(AT_FDCWD</>, "/p", {st_mode=S_IFREG|0644, ...}, 0) = 0', Op.LOOKUP, None),
        ('execve("/p", ["p"], 0x7ffd /* 35 vars */) = 0', Op.EXEC, None),
        ('execve("/p", ["p"], 0x7ffd /* 35 vars */) = -1 ENOENT (No such file)', Op.EXEC, "ENOENT"),
        ('openat(AT_FDCWD</>, "/p", O_RDONLY) = ? ERESTARTSYS (To be restarted)', Op.OPEN, "ERESTARTSYS"),
    ],
)
def test_operation(text: str, op: Op, error: str | None) -> None:
    assert events(f"7 {text}") == [(7, op, "/p", error)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('rename("/a", "/b") = 0', ["/a", "/b"]),
        ('renameat2(3</d>, "a", AT_FDCWD</e>, "b", RENAME_NOREPLACE) = 0', ["/d/a", "/e/b"]),
        ('linkat(AT_FDCWD</e>, "a", 3</d>, "b", 0) = 0', ["/e/a", "/d/b"]),
        ('symlink("/not/a/path", "/link") = 0', ["/link"]),
        ('symlinkat("../text", 3</d>, "link") = 0', ["/d/link"]),
        ('mount("proc", "/proc", "proc", 0, NULL) = 0', ["/proc"]),
        ('mount(NULL, "/", NULL, MS_REC|MS_PRIVATE, NULL) = 0', []),
    ],
)
def test_calls_with_two_strings(text: str, expected: list[str]) -> None:
    assert paths('7 access("/x", F_OK) = 0', f"7 {text}") == ["/x", *expected]


def test_the_working_directory_is_followed() -> None:
    rows = (
        '7 chdir("/srv") = 0',
        '7 access("a", F_OK) = 0',
        '7 chdir("sub") = 0',
        '7 access("b", F_OK) = 0',
        '7 chdir("none") = -1 ENOENT (No such file or directory)',
        '7 access("c", F_OK) = 0',
        "7 fchdir(3</etc>) = 0",
        '7 access("d", F_OK) = 0',
        '7 openat(AT_FDCWD</opt>, "e", O_RDONLY) = 3</opt/e>',
        '7 access("f", F_OK) = 0',
    )
    found = [path for path in paths(*rows) if path[-2:-1] == "/" and path[-1] in "abcdef"]
    assert found == ["/srv/a", "/srv/sub/b", "/srv/sub/c", "/etc/d", "/opt/e", "/opt/f"]


# ---------------------------------------------------------------- processes


FORK = "1 clone(child_stack=NULL, flags=CLONE_CHILD_SETTID|SIGCHLD) = 2"
CHILD = ('2 execve("./tool", ["tool"], 0x1 /* 3 vars */) = 0', '2 access("rel", F_OK) = 0')
BEGIN = '1 chdir("/srv") = 0'


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param((BEGIN, FORK, *CHILD), id="fork first"),
        pytest.param((BEGIN, *CHILD, FORK), id="child first"),
        pytest.param((BEGIN, CHILD[0], FORK, CHILD[1]), id="between"),
        pytest.param(
            (BEGIN, "1 vfork( <unfinished ...>", *CHILD, "1 <... vfork resumed>) = 2"), id="vfork waits"
        ),
        pytest.param((BEGIN, *CHILD, "2 +++ exited with 0 +++", FORK), id="whole life before"),
        pytest.param(
            (BEGIN, CHILD[0], '2 openat(AT_FDCWD</srv>, "/x", O_RDONLY) = 3</x>', CHILD[1], FORK),
            id="the log says the directory in between",
        ),
    ],
)
def test_a_child_whenever_its_fork_is_logged(rows: tuple[str, ...]) -> None:
    found = items(*rows)
    (child,) = [item for item in born(found).values() if item.pid == 2]
    assert born(found)[child.parent].pid == 1
    seen = [item for item in found if isinstance(item, Seen) and item.number == child.number]
    assert [item.path for item in seen if item.path[-4:] in ("tool", "/rel")] == ["/srv/tool", "/srv/rel"]
    # Who it is comes before what it did.
    assert found.index(child) < found.index(seen[0])


def test_a_child_keeps_where_it_went_before_its_fork_is_logged() -> None:
    rows = (BEGIN, '2 chdir("sub") = 0', '2 access("a", F_OK) = 0', FORK, '2 access("b", F_OK) = 0')
    assert paths(*rows)[-2:] == ["/srv/sub/a", "/srv/sub/b"]
    rows = (BEGIN, '2 chdir("/tmp") = 0', '2 access("a", F_OK) = 0', FORK, '2 access("b", F_OK) = 0')
    assert paths(*rows)[-2:] == ["/tmp/a", "/tmp/b"]


def test_a_grandchild_is_held_until_its_grandparent_is_known() -> None:
    rows = (
        BEGIN,
        '3 access("c", F_OK) = 0',
        "2 fork() = 3",
        '2 access("b", F_OK) = 0',
        "3 +++ exited with 0 +++",
        "1 fork() = 2",
    )
    assert [(pid, path) for pid, _, path, _ in events(*rows)][1:] == [(3, "/srv/c"), (2, "/srv/b")]


def test_a_pid_that_comes_back_is_another_process() -> None:
    found = items(
        '1 access("/x", F_OK) = 0',
        "1 fork() = 2",
        '2 execve("/bin/a", ["a"], 0x1 /* 0 vars */) = 0',
        "2 +++ exited with 0 +++",
        "1 fork() = 3",
        '3 access("/y", F_OK) = 0',
        '2 execve("/bin/b", ["b"], 0x1 /* 0 vars */) = 0',
        "3 fork() = 2",
    )
    who = born(found)
    executed = [item for item in found if isinstance(item, Seen) and item.op is Op.EXEC]
    assert [(i.path, who[who[i.number].parent].pid) for i in executed] == [("/bin/a", 1), ("/bin/b", 3)]


def test_a_failed_fork_makes_no_process() -> None:
    rows = ('1 access("/x", F_OK) = 0', "1 fork() = -1 EAGAIN (Resource temporarily unavailable)")
    assert [item.pid for item in born(items(*rows)).values()] == [1]


def test_a_fork_in_a_pid_namespace() -> None:
    rows = (BEGIN, "1 clone(flags=SIGCHLD) = 2 /* 4711 in strace's PID NS */", '4711 access("a", F_OK) = 0')
    assert events(*rows)[-1] == (4711, Op.LOOKUP, "/srv/a", None)


def test_threads_share_where_they_are() -> None:
    rows = (
        BEGIN,
        "1 clone3({flags=CLONE_VM|CLONE_FS|CLONE_THREAD, exit_signal=0} => {parent_tid=[2]}, 88) = 2",
        '2 chdir("/opt") = 0',
        '1 access("a", F_OK) = 0',
    )
    assert paths(*rows)[-1] == "/opt/a"


# ---------------------------------------------------------------- roots


def test_a_changed_root() -> None:
    rows = (
        '1 chroot("/srv/jail") = 0',
        '1 chdir("/etc") = 0',
        '1 access("/a", F_OK) = 0',
        '1 access("b", F_OK) = 0',
        '1 access("/../../c", F_OK) = 0',
        # strace says descriptors as they are outside.
        '1 openat(5</srv/jail/etc>, "d", O_RDONLY) = 6</srv/jail/etc/d>',
        '1 openat(AT_FDCWD</srv/jail/etc>, "/e", O_RDONLY) = 6</srv/jail/e>',
        "1 fork() = 2",
        '2 access("/f", F_OK) = 0',
        '1 chroot("/none") = -1 ENOENT (No such file or directory)',
        '1 access("/g", F_OK) = 0',
    )
    letters = [path for path in paths(*rows) if path[-2:-1] == "/" and path[-1] in "abcdefg"]
    assert letters == [f"/srv/jail/{name}" for name in ("a", "etc/b", "c", "etc/d", "e", "f", "g")]


def test_a_root_built_of_bind_mounts_is_the_images() -> None:
    """What systemd does for PrivateTmp= and ProtectSystem= (252: by descriptor, MS_MOVE and chroot)."""
    rows = (
        '1 openat(AT_FDCWD</>, "/run/unit-root", O_RDONLY|O_PATH) = 3</run/unit-root>',
        '1 mount("/", "/proc/self/fd/3", NULL, MS_BIND|MS_REC, NULL) = 0',
        '1 chdir("/run/unit-root") = 0',
        '1 mount("/run/unit-root", "/", NULL, MS_MOVE, NULL) = 0',
        '1 chroot(".") = 0',
        '1 execve("/usr/sbin/app", ["app"], 0x1 /* 0 vars */) = 0',
        '1 access("rel", F_OK) = 0',
    )
    assert paths(*rows)[-2:] == ["/usr/sbin/app", "/rel"]


def test_a_root_that_is_pivoted_to() -> None:
    rows = (
        '1 mount("/srv/other", "/run/new", NULL, MS_BIND, NULL) = 0',
        '1 chdir("/run/new") = 0',
        '1 pivot_root(".", ".") = 0',
        '1 access("/a", F_OK) = 0',
    )
    assert paths(*rows)[-1] == "/srv/other/a"


# ---------------------------------------------------------------- what cannot be seen, what is new


def test_an_io_uring_is_noted() -> None:
    rows = (
        '1 access("/x", F_OK) = 0',
        "1 io_uring_setup(8, {flags=0}) = -1 EPERM (Operation not permitted)",
        "1 io_uring_setup(8, {flags=0, sq_entries=8}) = 4<anon_inode:[io_uring]>",
    )
    assert [item for item in items(*rows) if isinstance(item, Blind)] == [Blind(3, 1)]


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ('openat(AT_FDCWD</>, "/p", O_WRONLY|O_CREAT|O_TRUNC, 0644) = 3</p>', ["/p"]),
        ('openat(AT_FDCWD</>, "/p", O_RDWR|O_CREAT|O_EXCL, 0644) = 3</p>', ["/p"]),
        ('openat(AT_FDCWD</>, "/p", O_RDWR|O_CREAT|O_EXCL, 0644) = -1 EEXIST (File exists)', []),
        ('openat(AT_FDCWD</>, "/p", O_RDWR|O_CREAT, 0644) = 3</p>', []),
        ('openat(AT_FDCWD</>, "/p", O_RDWR|O_EXCL|O_TMPFILE, 0600) = 3</p/#1>(deleted)', []),
        ('rename("/a", "/b") = 0', ["/b"]),
        ('link("/a", "/b") = 0', ["/b"]),
        ('symlink("/a", "/b") = 0', ["/b"]),
        ('unlink("/a") = 0', []),
        ('truncate("/a", 0) = 0', ["/a"]),
        ('rename("/x/./a", "//etc/./b") = 0', ["/etc/b"]),
        # A flag's name in a file's name is no flag.
        ('openat(AT_FDCWD</>, "/O_TRUNC", O_RDONLY) = 3</O_TRUNC>', []),
    ],
)
def test_what_gives_a_path_other_content(text: str, made: list[str]) -> None:
    assert [item.path for item in items(f"1 {text}") if isinstance(item, Seen) and item.makes] == made
