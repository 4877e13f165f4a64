"""Whose /etc/resolv.conf is: init writes it where the distribution's DHCP client would, and nowhere else."""

from __future__ import annotations

import re
import shlex
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from quickstart.host.namespaces import own_namespaces

MINE, SERVERS = "nameserver 127.0.0.1\n", "nameserver 6.6.6.6\n"


@pytest.mark.parametrize(("network", "expected"), [("networkd", MINE), ("ifupdown", SERVERS), ("", SERVERS)])
def test_a_server_does_not_write_what_networkd_would_not(tmp_path: Path, network: str, expected: str) -> None:
    """`second` has the function; it is run with a directory of ours as /etc."""
    text = resources.files("quickstart.initramfs").joinpath("init", "second").read_text()
    found = re.search(r"^take_resolver\(\) \{.*?^\}", text, re.MULTILINE | re.DOTALL)
    assert found
    (tmp_path / "run").mkdir()
    (tmp_path / "run/resolv.conf").write_text(SERVERS)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/resolv.conf").write_text(MINE)
    place = shlex.quote(str(tmp_path))
    script = f"set -e\nmount --bind {place}/etc /etc\nQ={place} NETWORK={network}\n{found[0]}\ntake_resolver"
    done = subprocess.run([*own_namespaces(), "dash", "-c", script], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "etc/resolv.conf").read_text() == expected
