"""Another Debian release: its own systemd, kernel and packages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quickstart.host.assets import assets
from tests.vm.booting import FAST, SETTLED, WHOLE
from tests.vm.conftest import BUILD_S, quickstart

TMP = "grep -c ' /tmp ' /proc/mounts; systemctl is-active tmp.mount"


@pytest.mark.full
def test_trixie(tmp_path: Path) -> None:
    text = (assets("profiles") / "nginx/profile.toml").read_text()
    assert 'suite = "bookworm"' in text
    (tmp_path / "profile.toml").write_text(text.replace('suite = "bookworm"', 'suite = "trixie"'))
    out = tmp_path / "out"
    called = quickstart("build", "--profile", tmp_path, "-o", out, timeout_s=BUILD_S)
    assert called.status == 0, called.err
    # As it was built, and then as it was stamped.
    for reason in ("as built", "as stamped"):
        ask = f"cut -d. -f1 /etc/debian_version; {SETTLED}wait_settled; {TMP}; {WHOLE}; quickstart status --json"
        ran = quickstart("run", out, "--json", "--exec", ask, timeout_s=1200)
        assert ran.status == 0, ran.err
        assert ran.result["fallback"] is None
        version, mounts, state, *said, status = ran.result["exec_stdout"].splitlines()
        # Init's mount is systemd's: what the application has made there is to be seen.
        assert (version, mounts, state, said) == ("13", "1", "active", FAST)
        assert json.loads(status)["result"]["reason"] == f"the root volume was {reason}"
    assert quickstart("run", out, "--stock", "--snapshot", "--check").status == 0
    assert quickstart("audit", out).status == 0
    called = quickstart("why", out, "/usr/sbin/nginx")
    assert "trace: exec by nginx" in called.out
    assert "package: nginx " in called.out
