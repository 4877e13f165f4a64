"""The log of strace as events, processes and the unit's share of both."""

from __future__ import annotations

import os
from pathlib import PurePosixPath

import pytest

from quickstart.errors import TraceError
from quickstart.model import Op
from quickstart.trace import strace
from quickstart.trace.strace import Call, Ended, ParsedLog


def log(*rows: str | bytes) -> list[bytes]:
    """Rows "PID TEXT" as strace writes them: a time after the PID, a newline at the end."""
    lines = []
    for row in rows:
        pid, _, text = (row if isinstance(row, bytes) else row.encode()).partition(b" ")
        lines.append(pid.ljust(6) + b" 1795227173.803140 " + text + b"\n")
    return lines


def events(*rows: str | bytes) -> list[tuple[int, Op, str, str | None]]:
    """(PID, operation, path, error) of every event."""
    parsed = strace.parse(log(*rows))
    return [(parsed.processes[e.pid].pid, e.op, str(e.path), e.error) for e in parsed.events]


def paths(*rows: str | bytes) -> list[str]:
    return [path for _, _, path, _ in events(*rows)]


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
        strace.parse(lines)


# ---------------------------------------------------------------- paths


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('openat(AT_FDCWD</srv/www>, "a/b", O_RDONLY) = 3</srv/www/a/b>', "/srv/www/a/b"),
        ('openat(AT_FDCWD</srv>, "/a", O_RDONLY) = 3</a>', "/a"),
        ('openat(5</etc/nginx>, "conf", O_RDONLY) = 6</etc/nginx/conf>', "/etc/nginx/conf"),
        ('openat(AT_FDCWD</>, "a", O_RDONLY) = 3</a>', "/a"),
        ('newfstatat(5</etc/nginx>, "", {...}, AT_EMPTY_PATH) = 0', "/etc/nginx"),
        ('openat(AT_FDCWD</srv>, "./a/./b//c", O_RDONLY) = 3</srv/a/b/c>', "/srv/a/b/c"),
        ('openat(AT_FDCWD</>, "//etc//passwd", O_RDONLY) = 3</etc/passwd>', "/etc/passwd"),
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
    parsed = strace.parse(log(*rows))
    (child,) = [process for process in parsed.processes.values() if process.pid == 2]
    assert parsed.processes[child.parent].pid == 1
    assert child.commands == (PurePosixPath("/srv/tool"),)
    assert [str(e.path) for e in parsed.events if e.path.name in ("tool", "rel")] == ["/srv/tool", "/srv/rel"]


def test_a_child_keeps_where_it_went_before_its_fork_is_logged() -> None:
    rows = (BEGIN, '2 chdir("sub") = 0', '2 access("a", F_OK) = 0', FORK, '2 access("b", F_OK) = 0')
    assert paths(*rows)[-2:] == ["/srv/sub/a", "/srv/sub/b"]
    rows = (BEGIN, '2 chdir("/tmp") = 0', '2 access("a", F_OK) = 0', FORK, '2 access("b", F_OK) = 0')
    assert paths(*rows)[-2:] == ["/tmp/a", "/tmp/b"]


def test_a_pid_that_comes_back_is_another_process() -> None:
    parsed = strace.parse(
        log(
            '1 access("/x", F_OK) = 0',
            "1 fork() = 2",
            '2 execve("/bin/a", ["a"], 0x1 /* 0 vars */) = 0',
            "2 +++ exited with 0 +++",
            "1 fork() = 3",
            '3 access("/y", F_OK) = 0',
            '2 execve("/bin/b", ["b"], 0x1 /* 0 vars */) = 0',
            "3 fork() = 2",
        )
    )
    twos = [process for process in parsed.processes.values() if process.pid == 2]
    assert [(str(p.commands[0]), parsed.processes[p.parent].pid) for p in twos] == [
        ("/bin/a", 1),
        ("/bin/b", 3),
    ]


def test_a_failed_fork_makes_no_process() -> None:
    rows = ('1 access("/x", F_OK) = 0', "1 fork() = -1 EAGAIN (Resource temporarily unavailable)")
    assert [process.pid for process in strace.parse(log(*rows)).processes.values()] == [1]


def test_a_failed_exec_is_no_command() -> None:
    rows = (
        '1 execve("/usr/local/bin/x", ["x"], 0x1 /* 0 vars */) = -1 ENOENT (No such file or directory)',
        '1 execve("/usr/bin/x", ["x"], 0x1 /* 0 vars */) = 0',
    )
    (process,) = strace.parse(log(*rows)).processes.values()
    assert process.commands == (PurePosixPath("/usr/bin/x"),)


# ---------------------------------------------------------------- the unit


UNIT_LOG = (
    '1 execve("/sbin/init", ["init"], 0x1 /* 0 vars */) = 0',
    # PID 1 writes the group's file for others too.
    '1 openat(AT_FDCWD</>, "/sys/fs/cgroup/system.slice/a.service/cgroup.procs", O_WRONLY) = 3</x>',
    "1 clone(flags=SIGCHLD) = 10",
    '10 openat(AT_FDCWD</>, "/etc/systemds-own", O_RDONLY) = 3</etc/systemds-own>',
    '10 openat(AT_FDCWD</>, "/sys/fs/cgroup/system.slice/a.service/cgroup.procs", O_WRONLY|O_NOCTTY) = 3</x>',
    '10 openat(AT_FDCWD</>, "/etc/nsswitch.conf", O_RDONLY) = 3</etc/nsswitch.conf>',
    '10 execve("/usr/local/bin/sh", ["sh"], 0x1 /* 0 vars */) = -1 ENOENT (No such file or directory)',
    '10 execve("/bin/sh", ["sh"], 0x1 /* 0 vars */) = 0',
    '10 openat(AT_FDCWD</>, "/lib/libc.so.6", O_RDONLY|O_CLOEXEC) = 3</lib/libc.so.6>',
    "10 clone(flags=SIGCHLD) = 11",
    '11 openat(AT_FDCWD</>, "/etc/in-child", O_RDONLY) = 3</etc/in-child>',
    '12 openat(AT_FDCWD</>, "/etc/redirected", O_RDONLY) = 3</etc/redirected>',
    '12 execve("/bin/cat", ["cat"], 0x1 /* 0 vars */) = 0',
    '12 openat(AT_FDCWD</>, "/usr/lib/m.so", O_RDONLY|O_CLOEXEC) = -1 ENOENT (No such file or directory)',
    "11 clone(flags=SIGCHLD) = 12",
    "1 clone(flags=SIGCHLD) = 20",
    '20 openat(AT_FDCWD</>, "/sys/fs/cgroup/system.slice/b.service/cgroup.procs", O_WRONLY) = 3</x>',
    '20 execve("/bin/b", ["b"], 0x1 /* 0 vars */) = 0',
)


def unit_log() -> ParsedLog:
    return strace.parse(log(*UNIT_LOG))


def test_the_units_processes() -> None:
    processes = strace.unit_processes(unit_log(), "a.service")
    assert sorted(p.pid for p in processes.values() if p.in_unit) == [10, 11, 12]


def test_the_name_of_the_unit_has_to_be_whole() -> None:
    processes = strace.unit_processes(unit_log(), "service")
    assert not [p.pid for p in processes.values() if p.in_unit]


def test_a_reader_of_cgroup_procs_is_not_in_the_unit() -> None:
    parsed = strace.parse(
        log('5 openat(AT_FDCWD</>, "/sys/fs/cgroup/a.service/cgroup.procs", O_RDONLY) = 3</x>')
    )
    assert not [p.pid for p in strace.unit_processes(parsed, "a.service").values() if p.in_unit]


def test_the_units_events_begin_with_its_first_exec() -> None:
    parsed = unit_log()
    kept = strace.unit_events(parsed, strace.unit_processes(parsed, "a.service"))
    assert [str(event.path) for event in kept] == [
        "/bin/sh",
        "/lib/libc.so.6",
        "/etc/in-child",
        # What a subshell's child opens before its exec is the unit's, not systemd's.
        "/etc/redirected",
        "/bin/cat",
        "/usr/lib/m.so",
    ]


def test_loaded_files() -> None:
    assert [str(path) for path in strace.loaded_files(unit_log(), "a.service")] == [
        "/bin/cat",
        "/bin/sh",
        "/lib/libc.so.6",
    ]
    assert strace.loaded_files(unit_log(), "none.service") == ()
