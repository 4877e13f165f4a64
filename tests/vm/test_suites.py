"""Another Debian release: its own systemd, kernel and packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.assets import assets
from tests.vm.conftest import BUILD_S, quickstart


@pytest.mark.full
def test_trixie(tmp_path: Path) -> None:
    text = (assets("profiles") / "nginx/profile.toml").read_text()
    assert 'suite = "bookworm"' in text
    (tmp_path / "profile.toml").write_text(text.replace('suite = "bookworm"', 'suite = "trixie"'))
    out = tmp_path / "out"
    called = quickstart("build", "--profile", tmp_path, "-o", out, timeout_s=BUILD_S)
    assert called.status == 0, called.err
    ran = quickstart(
        "run", out, "--exec", "cat /etc/debian_version; readlink /proc/$(cat /run/nginx.pid)/exe"
    )
    version, program = ran.out.splitlines()
    assert (version.partition(".")[0], program) == ("13", "/fast/usr/sbin/nginx")
    assert quickstart("run", out, "--stock", "--snapshot", "--check").status == 0
    assert quickstart("audit", out).status == 0
    called = quickstart("why", out, "/usr/sbin/nginx")
    assert "trace: exec by nginx" in called.out
    assert "package: nginx " in called.out
