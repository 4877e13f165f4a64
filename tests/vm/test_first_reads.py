"""The data that the profile's first requests read is in memory soon after ready, and in no archive."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from quickstart.host.progress import Quiet
from quickstart.initramfs.newc_reader import read_archive
from quickstart.profile import load_profile, profile_file
from quickstart.reference.debootstrap import make_reference
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root
from tests.vm.booting import SETTLED, boot
from tests.vm.conftest import BUILD_S, host, quickstart

pytestmark = pytest.mark.full

PAGE = 4096
MIB = 1024 * 1024
# Two places of a table by the page cache, and one past it, as InnoDB reads.
REQUESTS = (
    "cd /srv/db && dd if=table bs=4096 skip=256 count=1 && dd if=table bs=4096 skip=1024 count=2 && "
    "dd if=direct bs=4096 skip=64 count=1 iflag=direct"
)
RESIDENT = f"{SETTLED}wait_settled\nfincore --bytes --noheadings --output RES,FILE /srv/db/table /srv/db/direct /srv/db/other\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("data")
    reference = make_reference(load_profile("nginx"), Context(Store(default_root()), Quiet()))
    root = place / "root"
    host("cp", "-a", "--reflink=auto", reference.tree, root)
    (root / "srv/db").mkdir(parents=True)
    for name in ("table", "direct", "other"):
        (root / "srv/db" / name).write_bytes(os.urandom(8 * MIB))
    profile = place / "profile"
    profile.mkdir()
    text = profile_file("nginx").read_text()
    more = f'\n[prefetch]\ndata = ["/srv/db/**"]\nfirst_requests = "{REQUESTS}"\n'
    (profile / "profile.toml").write_text(text + more)
    out = place / "out"
    called = quickstart(
        *("build", "--no-trial", "--profile", profile, "--rootfs", root, "-o", out), timeout_s=BUILD_S
    )
    assert called.status == 0, called.err + called.out
    yield out
    shutil.rmtree(place)


def test_the_first_requests_find_their_data_in_memory(built: Path) -> None:
    with Store(default_root(), print) as store:
        ended = boot(store, built, command=RESIDENT)
    assert ended.fallbacks == []
    words = ended.said[-6:]
    resident = {name: int(size) for size, name in zip(words[::2], words[1::2], strict=True)}
    # In the reference boot the kernel reads ahead by up to 16 KiB, and a part ends with a whole page of the gap rule.
    assert 3 * PAGE <= resident["/srv/db/table"] <= 16 * PAGE
    assert PAGE <= resident["/srv/db/direct"] <= 4 * PAGE
    assert resident["/srv/db/other"] == 0


def test_changed_data_is_read_as_it_is(built: Path, tmp_path: Path) -> None:
    """The prefetch of a file that has become shorter, or is gone, changes nothing for who reads it."""
    copy = tmp_path / "out"
    host("cp", "-a", "--sparse=always", built, copy)
    change = "echo new >/srv/db/table; rm /srv/db/direct; sync"
    with Store(default_root(), print) as store:
        boot(store, copy, command=f"{SETTLED}wait_settled\n{change}", keep=True)
        ended = boot(store, copy, command="cat /srv/db/table; ls /srv/db")
    assert ended.fallbacks == []
    assert ended.said == ["new", "other", "table"]


def test_no_content_is_in_the_archive(built: Path) -> None:
    with (built / "initramfs.img").open("rb") as file:
        names = [entry.name for entry in read_archive(file)]
    assert "fast/quickstart/prefetch.later-parts" in names
    assert not [name for name in names if "srv/db" in name]
