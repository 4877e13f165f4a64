"""Which program of the image manages the network after the hand-off."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.initramfs.takeover import network_service
from quickstart.inspect.imageroot import ImageRoot


def image(base: Path, *units: str) -> ImageRoot:
    for name in units:
        link = base / "etc/systemd/system/multi-user.target.wants" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"/usr/lib/systemd/system/{name}")
        unit = base / "usr/lib/systemd/system" / name
        unit.parent.mkdir(parents=True, exist_ok=True)
        unit.write_text("[Unit]\n")
    return ImageRoot(base)


@pytest.mark.parametrize(
    ("units", "word"),
    [
        (("networking.service", "ssh.service"), "ifupdown"),
        (("systemd-networkd.service",), "networkd"),
        (("systemd-networkd.service", "networking.service"), "networkd"),
    ],
)
def test_who_takes_over(tmp_path: Path, units: tuple[str, ...], word: str) -> None:
    assert network_service(image(tmp_path, *units)) == word


@pytest.mark.parametrize("units", [("NetworkManager.service", "networking.service"), ("ssh.service",)])
def test_others_are_refused(tmp_path: Path, units: tuple[str, ...]) -> None:
    with pytest.raises(UnsupportedUnitError) as raised:
        network_service(image(tmp_path, *units))
    assert raised.value.hint is not None and "--no-hand-off" in raised.value.hint
    if units[0] == "NetworkManager.service":
        assert "NetworkManager.service" in raised.value.message
