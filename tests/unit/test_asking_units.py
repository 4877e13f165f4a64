"""Which links and files of other units decide whether a boot starts the application."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.facts import deciding
from tests.unit.test_unit_sockets import link as symlink
from tests.unit.unitreader import put


def test_where_a_link_may_be_masked(tmp_path: Path) -> None:
    """The link of a package is masked by one of the same name in a directory that counts more (load-dropin.c)."""
    put(tmp_path, "/usr/lib/systemd/system/app.service", "[Service]\nExecStart=/bin/x\n")
    symlink(tmp_path, "/usr/lib/systemd/system/multi-user.target.wants/app.service", "../app.service")
    files = {str(path) for path in deciding(ImageRoot(tmp_path), "app.service").files}
    for place in ("/etc/systemd/system", "/etc/systemd/system.control", "/usr/local/lib/systemd/system"):
        assert f"{place}/multi-user.target.wants/app.service" in files


def test_a_unit_that_is_asked_for_by_another_unit_only(tmp_path: Path) -> None:
    """Without a link, the other unit's file decides whether a boot starts it."""
    put(tmp_path, "/usr/lib/systemd/system/app.service", "[Service]\nExecStart=/bin/x\n")
    put(
        tmp_path,
        "/usr/lib/systemd/system/other.service",
        "[Unit]\nWants=app.service\n[Service]\nExecStart=/bin/x\n",
    )
    symlink(
        tmp_path,
        "/etc/systemd/system/multi-user.target.wants/other.service",
        "/usr/lib/systemd/system/other.service",
    )
    files = {str(path) for path in deciding(ImageRoot(tmp_path), "app.service").files}
    assert "/usr/lib/systemd/system/other.service" in files
    symlink(
        tmp_path,
        "/etc/systemd/system/multi-user.target.wants/app.service",
        "/usr/lib/systemd/system/app.service",
    )
    files = {str(path) for path in deciding(ImageRoot(tmp_path), "app.service").files}
    assert "/usr/lib/systemd/system/other.service" not in files


@pytest.mark.parametrize(
    ("files", "links", "fact"),
    [
        ({"bar.service.d/a.conf": "[Unit]\nWants=app.service\n"}, {}, "bar.service.d/a.conf"),
        (
            {"bar@.service": "[Unit]\nWants=%i.service\n"},
            {"multi-user.target.wants/bar@app.service": "../bar@.service"},
            "bar@.service",
        ),
        (
            {"foo.target": "", "bar.service.d/a.conf": "[Unit]\nWants=foo.target\n"},
            {"foo.target.wants/app.service": "../app.service"},
            "bar.service.d/a.conf",
        ),
        (
            {"bar.service.d/a.conf": "[Unit]\nWants=app.service\n"},
            {"rescue.target.wants/app.service": "../app.service"},
            "bar.service.d/a.conf",
        ),
    ],
)
def test_who_asks_for_the_application(
    tmp_path: Path, files: dict[str, str], links: dict[str, str], fact: str
) -> None:
    place = "/usr/lib/systemd/system"
    put(tmp_path, f"{place}/app.service", "[Service]\nExecStart=/bin/x\n")
    put(tmp_path, f"{place}/bar.service", "[Service]\nExecStart=/bin/x\n")
    for name, text in files.items():
        put(tmp_path, f"{place}/{name}", text)
    for name, target in {"multi-user.target.wants/bar.service": "../bar.service", **links}.items():
        symlink(tmp_path, f"{place}/{name}", target)
    assert f"{place}/{fact}" in {str(path) for path in deciding(ImageRoot(tmp_path), "app.service").files}
