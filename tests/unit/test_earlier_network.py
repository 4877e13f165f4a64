"""What systemd itself started before the network, by its own account."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.accounts import OWN, booted, changed, refused
from tests.unit.test_unit_sockets import put


@pytest.mark.parametrize(
    "after",
    [
        {"network__pre_target": "filter.service"},
        {"network__pre_target": "fw.target", "fw_target": "filter.service"},
        {"networking_service": "filter.service"},
        {"ifup@ens3_service": "filter.service"},
        {"systemd__networkd_service": "filter.service"},
    ],
)
def test_a_filter_before_the_network_of_who_does_not_wait_for_it(
    tmp_path: Path, after: dict[str, str]
) -> None:
    """In a stock boot, the application has no network until the filter is there. In an early start it has."""
    filtered = booted(app_service="basic.target", filter_service="", **after)
    assert "started filter.service before the network, and what it prepares is not known" in refused(
        tmp_path, filtered
    )
    assert refused(tmp_path, filtered, units=("filter.service", "app.service")) == ""


def test_the_service_of_the_network_may_be_a_filter_itself(tmp_path: Path) -> None:
    name = "networking.service"
    plain = booted(app_service="basic.target", networking_service="")
    assert refused(tmp_path, plain) == ""
    own = changed(plain, name, file=f"{OWN}/{name}")
    assert f"by {OWN}/{name} in place of the package's unit" in refused(tmp_path, own)
    put(tmp_path, f"{OWN}/{name}.d/a.conf", "[Service]\nExecStartPre=/usr/sbin/nft -f /etc/rules\n")
    edited = changed(plain, name, drop_ins=(f"{OWN}/{name}.d/a.conf",))
    assert "a.conf" in refused(tmp_path, edited)
