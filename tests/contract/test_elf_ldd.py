"""Our library closure of the host's own programs equals what the host's ldd(1) prints."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

import pytest

from quickstart.inspect.elf import closure
from quickstart.inspect.elf_file import read_elf
from quickstart.inspect.imageroot import ImageRoot

ROOT = ImageRoot(Path("/"))
LIBRARY = re.compile(r"^\t(?:\S+ => )?(/\S+) \(0x", re.MULTILINE)

cached_read = functools.cache(read_elf)


def programs() -> list[PurePosixPath]:
    found = set()
    for path in Path("/usr/bin").glob("[a-g]*"):
        canonical = ROOT.resolve(PurePosixPath(path)).canonical
        facts = cached_read(ROOT.host(canonical)) if canonical else None
        if canonical and facts and facts.interpreter and facts.is_dynamic:
            found.add(canonical)
    return sorted(found)


def by_ldd(program: PurePosixPath) -> set[PurePosixPath]:
    tool = shutil.which("ldd")
    if tool is None:
        pytest.fail("ldd is not installed: apt-get install libc-bin")
    # What the environment adds is no part of the image.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
    done = subprocess.run(
        [tool, str(program)],
        env={**environment, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert "not found" not in done.stdout, done.stdout
    canonical = {ROOT.resolve(PurePosixPath(path)).canonical for path in LIBRARY.findall(done.stdout)}
    return {path for path in canonical if path is not None}


def by_us(program: PurePosixPath) -> set[PurePosixPath]:
    """What is mapped at the start: the interpreter, which ldd lists too, and all that is needed from there.

    What a dlopen note adds, and what that needs, is not on ldd's list.
    """
    mapped = {program}
    for found in closure(ROOT, [program], cached_read):
        if found.kind != "dlopen" and found.needed_by in mapped:
            mapped.add(found.path)
    return mapped - {program}


def test_closure_is_what_ldd_prints() -> None:
    chosen = programs()
    assert len(chosen) > 20, "too few dynamic programs in /usr/bin to say anything"
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        printed = list(pool.map(by_ldd, chosen))
    different = {}
    for program, theirs in zip(chosen, printed, strict=True):
        ours = by_us(program)
        # Of the variants for other CPUs ldd shows at most the one that this CPU gets.
        variants = {path for path in ours - theirs if "glibc-hwcaps" in path.parts}
        if ours - variants != theirs:
            different[str(program)] = sorted(map(str, (ours - variants) ^ theirs))
    assert different == {}
