"""A disk with a million files is copied in bounded memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# The limit is for this process, and for the largest one below it, in KiB. getrusage(2) would count the tests' own memory
# for this process, because it is not reset when a program is executed.
MOST_KIB = 512 << 10
DIRECTORIES = FILES = 1000
COPY = """\
import resource, sys
from pathlib import Path
from quickstart.artefact.useddisk import examine_disk, reference_of_disk
from quickstart.host.progress import Quiet
from quickstart.store.context import Context
from quickstart.store.store import Store

with Store(Path(sys.argv[2])) as store:
    reference_of_disk(examine_disk(Path(sys.argv[1])), "root", 4 << 30, Context(store, Quiet()))
print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.full
def test_a_million_files(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they write files of other owners")
    tree, disk, store = (tmp_path / name for name in ("tree", "disk.raw", "store"))
    for directory in range(DIRECTORIES):
        place = tree / "srv" / str(directory)
        place.mkdir(parents=True)
        for file in range(FILES):
            os.close(os.open(place / str(file), os.O_CREAT | os.O_WRONLY, 0o644))
    (tree / "boot").mkdir()
    for name in ("vmlinuz", "initrd.img"):
        (tree / "boot" / f"{name}-6.1.0-1").write_text(name)
    words = ["mke2fs", "-q", "-t", "ext4", "-N", "1100000", "-d", str(tree), str(disk), "2G"]
    subprocess.run(words, timeout=1200, check=True)
    done = subprocess.run(
        [sys.executable, "-c", COPY, str(disk), str(store)], capture_output=True, timeout=2400, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    used_kib = list(map(int, done.stdout.split()))
    assert len(used_kib) == 2
    assert max(used_kib) < MOST_KIB
    home = next(store.glob("reference/*/root/srv"))
    assert sum(1 for _ in home.glob("*/*")) == DIRECTORIES * FILES
