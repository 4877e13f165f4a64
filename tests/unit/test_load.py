"""Recorded logs: ldd's, and traces that are refused because they are incomplete."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import TraceError
from quickstart.model import Mapped
from quickstart.trace.load import load_trace, parse_ldd, parse_maps

LDD = """\
== /usr/sbin/app
\tlinux-vdso.so.1 (0x00007ffd5c5f2000)
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f0f3c000000)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f0f3c400000)
== /usr/bin/static
\tstatically linked
== /usr/bin/script
\tnot a dynamic executable
== end
"""
STRACE = """\
10 1.5 openat(AT_FDCWD</>, "/sys/fs/cgroup/app.service/cgroup.procs", O_WRONLY) = 3</x>
10 1.6 execve("/usr/sbin/app", ["app"], 0x1 /* 0 vars */) = 0
"""
MAPS = """\
== 10 app
55dbc657c000-55dbc6bfe000 r--p 00000000 fe:00 5589                       /usr/sbin/app
55dbc6bfe000-55dbc752f000 r-xp 00682000 fe:00 5589                       /usr/sbin/app
55dbc8733000-55dbc8800000 rw-p 00000000 00:00 0                          [heap]
7f722c000000-7f722c021000 r-xp 00000000 fe:00 77                         /usr/lib/new\\012line.so
7f722c021000-7f722c022000 r-xp 00000000 fe:00 78                         /usr/lib/old.so (deleted)
7f722c022000-7f722c023000 r-xp 00000000 00:01 79                         /memfd:jit (deleted)
7f722c024000-7f722c025000 r-xp 00000000 00:00 0
7ffd61dd5000-7ffd61dd7000 r-xp 00000000 00:00 0                          [vdso]
== 11 (sd-pam)
55dbc6bfe000-55dbc752f000 r-xp 00682000 fe:00 5590                       /usr/lib/systemd/systemd
== end
"""
RESIDENT = "== 600000 /usr/sbin/app\n0 4096\n8192 8192\n== 700000 /usr/lib/a b\n== end\n"
UNITS = (
    "Root=/ ext4\n\nId=a.service\nAfter=b.target c.service\nInactiveExitTimestampMonotonic=5\n"
    "ConditionTimestampMonotonic=4\nFragmentPath=/usr/lib/systemd/system/a.service\nDropInPaths=\n== end\n"
)
FACTS = {"interface": "ens3", "mac": "52:54:00:00:00:01", "address": "10.0.2.15", "ready_uptime_ns": 5}


FIRST_READS = "0.000000 1 1\n0.000001 2048 8\n== end\n"


def logs(directory: Path, **changed: str) -> Path:
    texts = {"strace.log": STRACE, "maps.log": MAPS, "resident.log": RESIDENT, "ldd.log": LDD}
    texts["units.log"] = UNITS
    texts["facts.json"] = json.dumps(FACTS)
    texts |= {"modules.before": "ext4 1 2\n", "modules.after": "virtio 3 4\next4 1 2\n"}
    texts |= {name.replace("_", "."): text for name, text in changed.items()}
    for name, text in texts.items():
        (directory / name).write_text(text)
    return directory


def test_ldd() -> None:
    assert parse_ldd(LDD) == {
        PurePosixPath("/usr/sbin/app"): (
            PurePosixPath("/lib/x86_64-linux-gnu/libc.so.6"),
            PurePosixPath("/lib64/ld-linux-x86-64.so.2"),
        ),
        PurePosixPath("/usr/bin/static"): (),
        PurePosixPath("/usr/bin/script"): (),
    }
    assert parse_ldd("== end\n") == {}


@pytest.mark.parametrize("text", ["", LDD[:-1], LDD.removesuffix("== end\n")])
def test_a_cut_log_of_ldd(text: str) -> None:
    with pytest.raises(TraceError, match="ldd is cut"):
        parse_ldd(text)


def test_maps() -> None:
    assert parse_maps(MAPS) == (
        Mapped(10, "app", PurePosixPath("/usr/sbin/app")),
        Mapped(10, "app", PurePosixPath("/usr/lib/new\nline.so")),
    )


def test_a_process_that_ended_while_it_was_looked_at() -> None:
    """Only the begin of its line is left, and no line break behind it."""
    cut = MAPS.replace("== end\n", "== 554 == 558 == end\n")
    assert parse_maps(cut) == parse_maps(MAPS)


@pytest.mark.parametrize("text", ["", MAPS[:-2], MAPS.removesuffix("== end\n")])
def test_a_cut_log_of_maps(text: str) -> None:
    with pytest.raises(TraceError, match="the maps is cut"):
        parse_maps(text)


def test_what_ldd_does_not_find_is_for_the_closure_to_say() -> None:
    text = (
        "== /usr/lib/app/plugin.so\n\tlibpriv.so => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x7f)\n== end\n"
    )
    assert parse_ldd(text) == {PurePosixPath("/usr/lib/app/plugin.so"): (PurePosixPath("/lib/libc.so.6"),)}


def test_a_unit_that_runs_has_something_mapped(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"app\.service ran at ready, but nothing was found"):
        load_trace(logs(tmp_path, maps_log="== end\n"), "app.service")
    ended = STRACE + "10 1.7 +++ exited with 0 +++\n"
    assert load_trace(logs(tmp_path, maps_log="== end\n", strace_log=ended), "app.service").mapped == ()


def test_a_whole_trace(tmp_path: Path) -> None:
    trace = load_trace(logs(tmp_path), "app.service")
    assert [str(event.path) for event in trace.events] == ["/usr/sbin/app"]
    assert (trace.modules, trace.log_lines, trace.ready_uptime_ns) == (("ext4", "virtio"), 2, 5)
    assert trace.network.interface == "ens3"


def test_the_hash_is_that_of_the_logs(tmp_path: Path) -> None:
    first = load_trace(logs(tmp_path), "app.service").trace_hash
    assert load_trace(logs(tmp_path), "app.service").trace_hash == first
    assert load_trace(logs(tmp_path, modules_after="ext4 1\n"), "app.service").trace_hash != first


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"facts_json": '{"interface": "ens'}, "is damaged"),
        ({"facts_json": "{}"}, "is damaged"),
        ({"facts_json": "[]"}, "is damaged"),
        ({"strace_log": STRACE[:-3]}, "is cut in line 2"),
        ({"strace_log": ""}, "is empty"),
    ],
)
def test_a_damaged_trace(tmp_path: Path, changed: dict[str, str], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        load_trace(logs(tmp_path, **changed), "app.service")


def test_a_missing_log(tmp_path: Path) -> None:
    (logs(tmp_path) / "ldd.log").unlink()
    with pytest.raises(TraceError, match=r"cannot be read: .*ldd\.log"):
        load_trace(tmp_path, "app.service")


def test_a_unit_that_did_not_start(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no process of other\.service"):
        load_trace(logs(tmp_path), "other.service")


def test_a_trace_with_first_requests_has_their_reads(tmp_path: Path) -> None:
    without = load_trace(logs(tmp_path), "app.service")
    assert without.first_reads == ()
    found = load_trace(logs(tmp_path, reads_log=FIRST_READS), "app.service")
    assert found.first_reads == ((2048 * 512, 4096),)
    assert found.trace_hash != without.trace_hash
    with pytest.raises(TraceError, match="the volume's reads is cut"):
        load_trace(logs(tmp_path, reads_log="0.000001 2048 8\n"), "app.service")
