"""A kernel setting that the unit writes, and that the rest of a boot would write again after an early start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import Op, Trace
from quickstart.pack.undone import refuse_undone_settings
from tests.unit.imagebuilder import trace

FORWARD = "/proc/sys/net/ipv4/ip_forward"
WRITES = trace((Op.WRITE, FORWARD))


def judge(base: Path, found: Trace, file: str = "", text: str = "") -> None:
    (base / "etc/sysctl.d").mkdir(parents=True, exist_ok=True)
    (base / "etc/tmpfiles.d").mkdir(parents=True, exist_ok=True)
    if file:
        (base / file).write_text(text)
    refuse_undone_settings((found,), "app.service", ImageRoot(base))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("etc/sysctl.d/a.conf", "net.ipv4.ip_forward = 0\n"),
        ("etc/sysctl.d/a.conf", "net/ipv4/*=0\n"),
        ("etc/tmpfiles.d/a.conf", f"w {FORWARD} - - - - 0\n"),
    ],
)
def test_a_setting_of_the_image_would_undo_the_unit_s(tmp_path: Path, file: str, text: str) -> None:
    with pytest.raises(UnsupportedUnitError, match="it sets /proc/sys/net/ipv4/ip_forward"):
        judge(tmp_path, WRITES, file, text)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (WRITES, ""),
        (WRITES, "net.ipv4.ip_default_ttl=60\nnet.ipv4.conf.*.rp_filter=2\n"),
        # A pattern leaves alone what is excepted from it.
        (WRITES, "net.ipv4.*=0\n-net.ipv4.ip_forward\n"),
        # It finds the value that it wants.
        (trace((Op.OPEN, FORWARD)), "net.ipv4.ip_forward=1\n"),
        (
            replace(WRITES, events=tuple(replace(each, error="EROFS") for each in WRITES.events)),
            "net.ipv4.ip_forward=0\n",
        ),
    ],
)
def test_other_settings_stay(tmp_path: Path, found: Trace, text: str) -> None:
    judge(tmp_path, found, "etc/sysctl.d/a.conf", text)
