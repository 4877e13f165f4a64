"""Which actions of processes belong to the unit, and which files the boot made before them."""

from __future__ import annotations

import pytest

from quickstart.trace.collect import UnitLog, collect, loaded_files
from tests.unit.stracelog import log, paths

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
    "10 mmap(0x7f63, 1400832, PROT_READ|PROT_EXEC, MAP_PRIVATE|MAP_FIXED, 3</lib/libc.so.6>, 0x26000) = 0x7f63",
    '10 openat(AT_FDCWD</>, "/usr/lib/plain.so", O_RDONLY) = 3</usr/lib/plain.so>',
    "10 mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, 3</usr/lib/plain.so>, 0) = 0x7f64",
    "10 mmap(NULL, 8192, PROT_READ|PROT_WRITE|PROT_EXEC, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f65",
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


def unit_log(*more: str, unit: str = "a.service") -> UnitLog:
    return collect(log(*UNIT_LOG, *more), unit)


def test_the_units_events_begin_with_its_first_exec() -> None:
    found = unit_log()
    assert [(event.pid, event.program, str(event.path)) for event in found.events] == [
        (10, "sh", "/bin/sh"),
        (10, "sh", "/lib/libc.so.6"),
        (10, "sh", "/lib/libc.so.6"),
        (10, "sh", "/usr/lib/plain.so"),
        (11, "sh", "/etc/in-child"),
        # What a subshell's child opens before its exec is the unit's, not systemd's.
        (12, "sh", "/etc/redirected"),
        (12, "cat", "/bin/cat"),
        (12, "cat", "/usr/lib/m.so"),
    ]
    assert found.processes == 3


def test_the_name_of_the_unit_has_to_be_whole() -> None:
    assert unit_log(unit="service").events == ()


def test_a_reader_of_cgroup_procs_is_not_in_the_unit() -> None:
    rows = (
        '5 openat(AT_FDCWD</>, "/sys/fs/cgroup/a.service/cgroup.procs", O_RDONLY) = 3</x>',
        '5 execve("/bin/x", ["x"], 0x1 /* 0 vars */) = 0',
    )
    assert collect(log(*rows), "a.service").processes == 0


@pytest.mark.parametrize("group", ["37", "37</sys/fs/cgroup/system.slice/a.service>"])
def test_a_child_that_is_born_in_the_group(group: str) -> None:
    """systemd 254 and later: clone3 with CLONE_INTO_CGROUP, and an executor between it and the unit's command."""
    opened = 'openat(AT_FDCWD</>, "/sys/fs/cgroup/system.slice/a.service", O_PATH) = 37'
    rows = (
        '1 execve("/sbin/init", ["init"], 0x1 /* 0 vars */) = 0',
        f"1 {opened}</sys/fs/cgroup/system.slice/a.service>",
        "1 clone3({flags=CLONE_VM|CLONE_VFORK|CLONE_INTO_CGROUP, exit_signal=SIGCHLD, stack=0x7f, stack_size=0x9000, "
        f"cgroup={group}}}, 88 <unfinished ...>",
        '10 execve("/usr/lib/systemd/systemd-executor", ["x"], 0x1 /* 0 vars */) = 0',
        '10 openat(AT_FDCWD</>, "/lib/executors-own.so", O_RDONLY|O_CLOEXEC) = 3</lib/executors-own.so>',
        "1 <... clone3 resumed>) = 10",
        '10 execve("/usr/sbin/app", ["app"], 0x1 /* 0 vars */) = 0',
        '10 openat(AT_FDCWD</>, "/etc/app.conf", O_RDONLY) = 3</etc/app.conf>',
    )
    found = collect(log(*rows), "a.service")
    assert [str(event.path) for event in found.events] == ["/usr/sbin/app", "/etc/app.conf"]


def test_a_program_is_executed_by_its_descriptor() -> None:
    """fexecve(3), as systemd 257 does with its executor."""
    rows = (
        '1 openat(AT_FDCWD</>, "/usr/bin/tool", O_RDONLY|O_PATH) = 16</usr/bin/tool>',
        "1 fork() = 2",
        '2 execve("/proc/self/fd/16", ["tool"], 0x1 /* 0 vars */) = 0',
        '2 openat(AT_FDCWD</>, "/proc/self/fd/99", O_RDONLY) = -1 ENOENT (No such file or directory)',
    )
    assert paths(*rows)[1:] == ["/usr/bin/tool", "/proc/self/fd/99"]


def test_an_event_counts_once_a_program() -> None:
    again = (
        '10 openat(AT_FDCWD</>, "/lib/libc.so.6", O_RDONLY|O_CLOEXEC) = 3</lib/libc.so.6>',
        '11 openat(AT_FDCWD</>, "/lib/libc.so.6", O_RDONLY|O_CLOEXEC) = 3</lib/libc.so.6>',
    )
    assert unit_log(*again).events == unit_log().events


def test_what_the_boot_made_before_is_marked() -> None:
    more = (
        '20 rename("/etc/new", "/etc/conf") = 0',
        '20 rename("/usr/share/a", "/usr/share/b") = 0',
        '20 openat(AT_FDCWD</>, "/run/x", O_WRONLY|O_CREAT|O_TRUNC, 0644) = 3</run/x>',
        '10 openat(AT_FDCWD</>, "/etc/conf", O_RDONLY) = 3</etc/conf>',
        '10 openat(AT_FDCWD</>, "/usr/share/b/c", O_RDONLY) = 3</usr/share/b/c>',
        '10 openat(AT_FDCWD</>, "/usr/share/bb", O_RDONLY) = 3</usr/share/bb>',
        '10 openat(AT_FDCWD</>, "/run/x", O_RDONLY) = 3</run/x>',
    )
    marked = {str(event.path): event.made for event in unit_log(*more).events[-4:]}
    assert marked == {"/etc/conf": True, "/usr/share/b/c": True, "/usr/share/bb": False, "/run/x": False}


def test_what_the_boot_made_is_known_by_the_kernels_name_too() -> None:
    more = (
        '20 openat(AT_FDCWD</>, "/lib/gen.so", O_WRONLY|O_TRUNC) = 3</usr/lib/gen.so>',
        '10 openat(AT_FDCWD</>, "/usr/lib/gen.so", O_RDONLY) = 3</usr/lib/gen.so>',
        '10 openat(AT_FDCWD</>, "/usr/lib64/gen.so", O_RDONLY) = 3</usr/lib/gen.so>',
        '10 openat(AT_FDCWD</>, "/dev/stdin", O_RDONLY) = 3<pipe:[77]>',
    )
    found = unit_log(*more).events[-3:]
    assert [(str(e.path), e.made, str(e.real)) for e in found] == [
        ("/usr/lib/gen.so", True, "None"),
        ("/usr/lib64/gen.so", True, "/usr/lib/gen.so"),
        ("/dev/stdin", False, "None"),
    ]


def test_how_many_of_the_units_processes_live_on() -> None:
    assert unit_log().alive == 3
    assert unit_log("12 +++ exited with 0 +++", "11 +++ killed by SIGKILL +++").alive == 1
    late = ('30 access("/x", F_OK) = 0', "30 +++ exited with 0 +++", "10 fork() = 30")
    assert (unit_log(*late).processes, unit_log(*late).alive) == (4, 3)


def test_loaded_files() -> None:
    assert [str(path) for path in loaded_files(unit_log())] == ["/bin/cat", "/bin/sh", "/lib/libc.so.6"]


def test_programs_with_an_io_uring() -> None:
    ring = "io_uring_setup(8, {flags=0, sq_entries=8}) = 4<anon_inode:[io_uring]>"
    assert unit_log(f"20 {ring}").blind == ()
    assert unit_log(f"12 {ring}", f"12 {ring}").blind == ("cat",)
