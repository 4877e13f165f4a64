"""Names of the application, and units that each boot asks for, when they come only after the build."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.enabled import enabled_text
from tests.contract.test_early_units import NOTHING, OWN, PACKAGES, early, link, put, root, script
from tests.contract.test_early_units_reach import build

__all__ = ["root"]


@pytest.mark.parametrize("to", ["app.service", f"/{PACKAGES}/app.service", "other.service"])
@pytest.mark.parametrize("has_drop_ins", [False, True])
def test_a_new_name_of_the_application(root: Path, to: str, has_drop_ins: bool) -> None:
    """A package may come with a link and with drop-ins for this name, which then are the application's. The drop-ins may have
    been there at the build.
    """
    put(root, f"{PACKAGES}/plain.service", "[Service]\nExecStart=/bin/x\n")
    if has_drop_ins:
        put(root, f"{PACKAGES}/name.service.d/hard.conf", "[Service]\nProtectSystem=strict\n")
    build(root)
    assert early(root) == NOTHING
    link(root, f"{PACKAGES}/name.service", to)
    if to == "other.service":
        assert early(root) == NOTHING
        link(root, f"{PACKAGES}/other.service", "app.service")
        # The order is the one of the directory.
        assert sorted(early(root)) == [f"{PACKAGES}/name.service", f"{PACKAGES}/other.service"]
    else:
        assert early(root) == (f"{PACKAGES}/name.service",)


def test_a_new_name_of_a_template(root: Path) -> None:
    put(root, f"{PACKAGES}/app@.service", "[Service]\nExecStart=/bin/x\n")
    link(root, f"{PACKAGES}/old@.service", "app@.service")
    (root / "known").write_bytes(enabled_text(ImageRoot(root), "app@one.service"))
    assert early(root) == NOTHING
    link(root, f"{PACKAGES}/name@.service", "app@.service")
    link(root, f"{PACKAGES}/plain.service", "/dev/null")
    assert early(root) == (f"{PACKAGES}/name@.service",)


def test_an_alias_that_was_there_at_the_build(root: Path) -> None:
    """The unit's own file is in /etc, where the alias does not lead to. A package then touches the directory."""
    put(root, f"{OWN}/app.service", (root / PACKAGES / "app.service").read_text())
    link(root, f"{PACKAGES}/alias.service", "app.service")
    build(root)
    put(root, f"{PACKAGES}/another.service", "[Service]\nExecStart=/bin/x\n")
    assert early(root) == NOTHING


@pytest.mark.parametrize("name", ["filter.service", "var-tmp.mount"])
def test_a_unit_that_each_boot_asks_for_and_that_comes_only_now(root: Path, name: str) -> None:
    put(root, f"{PACKAGES}/basic.target", "[Unit]\nWants=filter.service\nRequiresMountsFor=/var /var/tmp\n")
    build(root)
    assert early(root) == NOTHING
    text = "[Unit]\nBefore=network-pre.target\n" if name.endswith("service") else "[Mount]\nWhere=/var/tmp\n"
    put(root, f"{PACKAGES}/{name}", text)
    assert early(root) == (f"{PACKAGES}/{name}",)


def test_a_unit_that_each_boot_asks_for_and_that_waits(root: Path) -> None:
    put(root, f"{PACKAGES}/default.target", "[Unit]\nWants=late.service\n")
    build(root)
    put(root, f"{PACKAGES}/late.service", "[Unit]\nAfter=network.target\n")
    assert early(root) == NOTHING


def test_a_template_that_each_boot_asks_for_an_instance_of(root: Path) -> None:
    put(root, f"{PACKAGES}/basic.target", "[Unit]\nWants=fw@eth0.service\n")
    build(root)
    assert early(root) == NOTHING
    put(root, f"{PACKAGES}/fw@.service", "[Unit]\nBefore=network-pre.target\n")
    assert early(root) == (f"{PACKAGES}/fw@.service",)


def test_a_link_that_leads_nowhere_stays_as_it_is(root: Path) -> None:
    """gdm was removed, and not purged: its alias is still there, and graphical.target asks for it."""
    put(root, f"{PACKAGES}/default.target", "[Unit]\nWants=display-manager.service\n")
    link(root, f"{OWN}/display-manager.service", "/lib/systemd/system/gdm.service")
    build(root)
    assert early(root) == NOTHING


def test_an_init_script_that_each_boot_asks_for(root: Path) -> None:
    put(root, f"{PACKAGES}/basic.target", "[Unit]\nWants=later.service\n")
    build(root)
    assert early(root) == NOTHING
    script(root, "later")
    assert early(root) == ("etc/init.d/later",)


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        ("[Unit]\nRequiresMountsFor=/srv/my-app\n", "srv-my\\x2dapp.mount"),
        ("[Unit]\nRequiresMountsFor=/srv/my-app\n", "srv.mount"),
        ("[Unit]\nWantsMountsFor=/srv\n", "srv.mount"),
        ("[Service]\nStateDirectory=foo\n", "var-lib-foo.mount"),
        ("[Service]\nWorkingDirectory=/srv/app\n", "srv.mount"),
        ("[Service]\nPrivateTmp=yes\n", "var-tmp.mount"),
    ],
)
def test_a_mount_of_what_the_application_needs(root: Path, text: str, mount: str) -> None:
    put(root, f"{PACKAGES}/app.service", text)
    build(root)
    assert early(root) == NOTHING
    put(root, f"{PACKAGES}/{mount}", "[Mount]\nWhat=/dev/vdb\n")
    assert early(root) == (f"{PACKAGES}/{mount}",)
