"""`quickstart rebuild`: after a library's upgrade, the machine starts early again with the new library, on the same disk."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from tests.contract.hostile_disk import crc32c
from tests.vm.conftest import BUILD_S, STAY, host, quickstart
from tests.vm.test_stale import LIBRARY, TOOL, package, stock

pytestmark = pytest.mark.full


def test_an_upgraded_machine_starts_fast_again(used: Path) -> None:
    disk = used / "root.raw"
    # The library with some bytes more behind its end: another file that loads.
    longer = f"cp -p {LIBRARY} /tmp/z; echo newer >>/tmp/z; echo mine >/srv/mine"
    stock(used, f"{longer}; {package('newer', '/tmp/z', LIBRARY)}")
    before, inode = host("sha256sum", disk), disk.stat().st_ino
    rebuilt = quickstart("rebuild", used, "--json", timeout_s=BUILD_S)
    assert rebuilt.status == 0, rebuilt.err
    assert rebuilt.result["made"]
    assert (host("sha256sum", disk), disk.stat().st_ino) == (before, inode)
    assert sorted(path.name for path in used.parent.iterdir()) == [used.name]
    manifest = json.loads((used / "manifest.json").read_text())
    assert manifest["reference"]["kind"] == "disk"

    refused = quickstart("build", "--profile", "nginx", "-o", used, "--json")
    assert refused.status == 2
    assert "may have been used" in refused.error["message"]
    assert not quickstart("rebuild", used, "--json").result["made"]

    ask = (
        f"cmp /fast{LIBRARY} {LIBRARY} && tail -c 6 {LIBRARY}; cat /srv/mine; readlink /proc/$(cat /run/nginx.pid)/exe; "
        f"{TOOL} status --json"
    )
    called = quickstart("run", used, *STAY, "--exec", ask)
    library, mine, program, status = called.out.splitlines()
    assert (library, mine, program) == ("newer", "mine", "/fast/usr/sbin/nginx"), called.err
    assert json.loads(status)["result"]["reason"] == "the root volume was as built"
    # And when it was used: file by file, with ctimes that are no longer those of a fresh volume.
    again = quickstart("run", used, *STAY, "--snapshot", "--exec", f"{TOOL} status --json")
    assert json.loads(again.out)["result"]["reason"] == "the root volume was as packed, file by file"


def test_a_disabled_machine_stays_disabled(used: Path) -> None:
    """Although nobody has mounted the volume since the rebuild."""
    assert quickstart("run", used, *STAY, "--exec", f"{TOOL} disable").status == 0
    assert quickstart("rebuild", used, "--json", timeout_s=BUILD_S).result["made"]
    called = quickstart("run", used, "--snapshot", "--check", "--json", timeout_s=BUILD_S)
    disabled = "fallback 1: disabled by /usr/sbin/quickstart disable; the stock init takes over"
    assert called.result["fallback"] == disabled


def test_a_machine_that_was_cut_off_is_refused(used: Path) -> None:
    cut = quickstart(
        "run",
        used,
        *STAY,
        "--exec",
        "touch /srv/x; sync; echo 1 >/proc/sys/kernel/sysrq; echo o >/proc/sysrq-trigger; sleep 60",
    )
    assert cut.status == 1, cut.err
    names = sorted(path.name for path in used.iterdir())
    refused = quickstart("rebuild", used, "--json")
    assert refused.status == 2
    assert "not shut down in order" in refused.error["message"]
    assert sorted(path.name for path in used.iterdir()) == names


def lead_out(disk: Path, directory: str, name: bytes) -> bytes:
    """Rename an entry of ``directory`` in the raw bytes of the disk to one that leads out of any root, with a fitting checksum."""
    new = (b"../" * len(name))[: len(name) - len(b"ESCAPED")] + b"ESCAPED"
    block = int(host("debugfs", "-R", f"blocks {directory}", disk).split()[0])
    words = host("debugfs", "-R", f"stat {directory}", disk).split()
    inode, generation = (int(words[words.index(each) + 1]) for each in ("Inode:", "Generation:"))
    with disk.open("r+b") as file:
        file.seek(1024)
        superblock = file.read(1024)
        size_bytes = 1024 << struct.unpack_from("<I", superblock, 0x18)[0]
        file.seek(block * size_bytes)
        data = bytearray(file.read(size_bytes))
        at = data.index(name)
        data[at : at + len(name)] = new
        seed = crc32c(0xFFFFFFFF, superblock[0x68:0x78])
        own = crc32c(seed, struct.pack("<II", inode, generation))
        # dirent_tail: inode 0, length 12, name length 0, type 0xde, checksum (ext4, directory.rst).
        assert data[-5] == 0xDE
        struct.pack_into("<I", data, size_bytes - 4, crc32c(own, bytes(data[:-12])))
        file.seek(block * size_bytes)
        file.write(data)
    return new


def test_a_name_that_leads_out_of_the_root_writes_nothing_on_the_host(used: Path) -> None:
    """Root of a machine has its disk in his hands: what he makes of it is refused, and not copied to where it leads."""
    name = "A" * 64
    called = quickstart("run", used, *STAY, "--exec", f"mkdir /srv/x && echo evil >/srv/x/{name} && sync")
    assert called.status == 0, called.err
    new = lead_out(used / "root.raw", "/srv/x", name.encode())
    assert new.count(b"../") == 19
    assert "checksum" not in host("debugfs", "-R", "ls -l /srv/x", used / "root.raw")
    before = host("sha256sum", used / "root.raw"), sorted(path.name for path in used.parent.iterdir())
    refused = quickstart("rebuild", used, "--json", timeout_s=BUILD_S)
    assert refused.status == 2, refused.err
    assert "a name that no file can have" in refused.error["message"]
    assert "\n" not in refused.error["message"]
    after = host("sha256sum", used / "root.raw"), sorted(path.name for path in used.parent.iterdir())
    assert after == before
    assert not [each for each in (used, *used.parents) if (each / "ESCAPED").exists()]
    assert not Path("/ESCAPED").exists()
