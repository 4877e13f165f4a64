"""Our C programs get malicious input under AddressSanitizer and UndefinedBehaviorSanitizer.

An invalid access, an overflow or undefined behaviour ends such a program at once. So the tests demand that
the program continues to serve, or ends as it should. `make fuzz-c` gives the same targets to libFuzzer.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from quickstart.host import door
from tests.contract.volumebox import MIB
from tests.cprograms import PROGRAMS
from tests.sanitize.build import COMPLAINTS, TARGETS, Target, replayer, trapping
from tests.sanitize.seeds import seeds, write_seeds

# How many inputs each target is given beside its seeds: some seconds' worth of all four together.
ROUNDS = {"volume": 3000, "agent": 6000, "unit": 10_000, "parts": 30_000}
REPLAY_S = 300


def test_the_sanitizers_are_awake(tmp_path: Path) -> None:
    """Without this a build that lost its flags would pass all the rest."""
    source = tmp_path / "wrong.c"
    source.write_text(
        "#include <stdlib.h>\nint main(int n, char **w) { return ((char *)malloc(1))[n] + (n << 31 << n) + !w; }"
    )
    words: list[str | Path] = [
        "gcc",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "-o",
        tmp_path / "wrong",
        source,
    ]
    subprocess.run(words, check=True, timeout=60)
    done = subprocess.run([tmp_path / "wrong"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert any(each in done.stderr for each in COMPLAINTS)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_fuzz_target_holds(target: Target, tmp_path: Path) -> None:
    words: list[str | Path] = [
        replayer(target, tmp_path),
        str(ROUNDS[target.name]),
        *write_seeds(target.name, tmp_path),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=REPLAY_S, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == ROUNDS[target.name] + len(seeds(target.name))


# ---------------------------------------------------------------- the programs without a C library


@pytest.mark.parametrize("build", ["sanitized", "trapping"])
def test_the_checker_takes_any_list(sanitized: Callable[[str], Path], tmp_path: Path, build: str) -> None:
    checker = sanitized("checker") if build == "sanitized" else trapping("checker", tmp_path)
    (tmp_path / "root").mkdir()
    whole = seeds("parts")[0][2:]
    lists = [whole[:length] for length in range(1, len(whole), 3)]
    lists += [whole[:at] + b"\xff\xff\xff\xff" + whole[at + 4 :] for at in range(8, len(whole) - 4, 4)]
    for data in lists:
        (tmp_path / "list").write_bytes(data)
        words = [checker, tmp_path / "root", tmp_path / "list", tmp_path / "damage"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1, done.stderr


@pytest.mark.parametrize("build", ["sanitized", "trapping"])
def test_the_prefetcher_takes_any_ranges_and_names(
    sanitized: Callable[[str], Path], tmp_path: Path, build: str
) -> None:
    prefetcher = sanitized("prefetcher") if build == "sanitized" else trapping("prefetcher", tmp_path)
    (tmp_path / "device").write_bytes(bytes(MIB))
    for ranges, names, parts in (
        (b"0 4096\n" * 10_000, b"x\0" * 10_000, b"0 4096 x\0" * 10_000),
        (b"999999999999999999 999999999999999999\n0 ", b"\0" * 4096, b"0 99999999999999999 device\0"),
        (
            b"99999999999999999999 1\n0 99999999999999999999\n",
            b"x\0",
            b"1 2 device\0999999999999999999999 \0",
        ),
        (b"-1 5\n", b"a" * 8191 + b"\0", b"1 2 \0\0"),
        (b"\xff" * 4096, b"../../../etc/passwd\0/etc/shadow\0", b"0 1 ../../../etc/passwd\x001 1\0"),
    ):
        lists = {"ranges": ranges, "names": names, "parts": parts}
        for name, data in lists.items():
            (tmp_path / name).write_bytes(data)
        words: list[str | Path] = [
            prefetcher,
            tmp_path / "device",
            tmp_path,
            *(tmp_path / name for name in lists),
            "128",
        ]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("build", ["sanitized", "trapping"])
def test_the_mounter_takes_any_table(sanitized: Callable[[str], Path], tmp_path: Path, build: str) -> None:
    """In namespaces of its own; nothing of it can be mounted."""
    mounter = sanitized("mounter") if build == "sanitized" else trapping("mounter", tmp_path)
    assert shutil.which("unshare")
    for table, status in (
        (b"a" * 4096, 2),
        (b"tmpfs none /does/not/exist " + b"x," * 1500 + b"\n", 1),
        (b"\n" * 4095, 0),
        (b"\0 \0 \0 \0", 1),
        (b" \t \n", 1),
    ):
        words: list[str | Path] = ["unshare", "--user", "--map-root-user", "--mount", mounter]
        done = subprocess.run(words, input=table, capture_output=True, timeout=60, check=False)
        assert done.returncode == status, done.stderr
        assert done.returncode != -signal.SIGILL


@pytest.mark.parametrize("build", ["sanitized", "trapping"])
def test_the_modloader_takes_any_table_and_alias(
    sanitized: Callable[[str], Path], tmp_path: Path, build: str
) -> None:
    modloader = sanitized("modloader") if build == "sanitized" else trapping("modloader", tmp_path)
    for name, alias in (("a", b"virtio:d1v2\n"), ("b", b"*" * 4095 + b"\n"), ("c", b""), ("d" * 255, b"[\n")):
        device = tmp_path / "sys/bus/virtio/devices" / name
        device.mkdir(parents=True)
        (device / "modalias").write_bytes(alias)
    (tmp_path / "modules.d").mkdir()
    for table in (
        b"bus virtio\nmodule m\nalias virtio:d* m\n",
        b"bus virtio\nmodule m\nalias " + b"[" * 5000 + b" m\nchild virtio\n",
        b"bus "
        + b"x" * 5000
        + b"\ndevice "
        + b"../" * 2000
        + b"\nmodule "
        + b"y" * 5000
        + b"\nroot "
        + b"y" * 5000,
        b"alias\nbeside\nlate\nmodule\nroot\nimage\nbus\nchild\ndevice\n",
        b"bus virtio\nalias * \0\xff m m m" * 100,
        b"\n" * 4096,
        b" ",
    ):
        (tmp_path / "table").write_bytes(table)
        for what in ("disks", "present", "late", "again", "image", "all"):
            words = [modloader, tmp_path / "modules.d", tmp_path / "table", tmp_path / "sys", what]
            done = subprocess.run(words, capture_output=True, timeout=60, check=False)
            assert done.returncode == 0, (table[:40], what, done.stderr)
            assert not any(each.encode() in done.stderr for each in COMPLAINTS)


# ---------------------------------------------------------------- the confiner


@pytest.fixture
def image_root(tmp_path: Path) -> Path:
    assert os.geteuid() == 0, "a root of its own needs root: run the tests with sudo"
    for name in ("bin", "dev", "proc", "sys", "etc", "tmp"):
        (tmp_path / "image" / name).mkdir(parents=True)
    shutil.copy(door.tool_path("busybox"), tmp_path / "image/bin/sh")
    return tmp_path / "image"


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (("/bin/sh", "-c", "exit 7"), 7),
        (("--network", "/bin/sh", "-c", "kill -9 $$"), 137),
        (("/bin/sh", "-c", ":", *["x" * 1000] * 100), 0),
        (("/bin/nothing",), 127),
        (("/etc",), 126),
    ],
    ids=["status", "signal", "arguments", "not there", "no program"],
)
def test_the_sanitized_confiner_runs_programs(
    sanitized: Callable[[str], Path], image_root: Path, argv: tuple[str, ...], status: int
) -> None:
    options, command = (
        [each for each in argv if each == "--network"],
        [each for each in argv if each != "--network"],
    )
    words: list[str | Path] = [sanitized("confiner"), *options, image_root, *command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert not any(each in done.stderr for each in COMPLAINTS), done.stderr
    assert done.returncode == status, done.stderr


# ---------------------------------------------------------------- all of them

# How each ends without arguments, and with nothing to read.
UNUSED = {"confiner": 125, "mounter": 0, "resident": 0}
# A library of strace's process is no program; tests/contract/test_tracers.py runs it with strace.
STARTABLE = [name for name, program in PROGRAMS.items() if "-shared" not in program.flags]


@pytest.mark.parametrize("name", STARTABLE)
def test_every_program_has_a_sanitized_build(sanitized: Callable[[str], Path], name: str) -> None:
    done = subprocess.run(
        [sanitized(name)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, "Sanitizer" in done.stderr) == (UNUSED.get(name, 2), False), done.stderr
