"""`quickstart rebuild`: a machine whose library was upgraded starts from memory again, with the new one, on the same disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
