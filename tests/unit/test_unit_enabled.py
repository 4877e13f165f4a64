"""What init judges units by that are enabled after the build: what is enabled, and what the application comes after."""

from __future__ import annotations

import os
from pathlib import Path

from quickstart.initramfs.facts import watched
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.enabled import enabled_text
from quickstart.model import IMAGE_TIME_S, StartSet
from tests.unit.test_unit import put

OWN, PACKAGES = "/etc/systemd/system", "/usr/lib/systemd/system"


def image(root: Path) -> ImageRoot:
    put(
        root,
        f"{PACKAGES}/app.service",
        "[Unit]\nAfter=online.target store.service\n[Service]\nExecStart=/bin/a\n",
    )
    put(root, f"{PACKAGES}/online.target", "[Unit]\nAfter=net.target app.service\n")
    put(root, f"{PACKAGES}/basic.target", "[Unit]\nAfter=paths.target\n")
    for path in (f"{OWN}/a.target.wants", f"{PACKAGES}/a.target.requires", "/opt/wants"):
        (root / path[1:]).mkdir(parents=True)
    (root / f"{OWN[1:]}/a.target.wants/app.service").symlink_to("/usr/lib/systemd/system/app.service")
    (root / f"{PACKAGES[1:]}/a.target.requires/gone.service").symlink_to("/gone")
    (root / f"{PACKAGES[1:]}/b.target.wants").symlink_to("/opt/wants")
    put(root, f"{PACKAGES}/c.target.wants", "")
    return ImageRoot(root)


def test_links_and_what_the_application_comes_after(tmp_path: Path) -> None:
    root = image(tmp_path)
    os.utime(tmp_path / f"{PACKAGES[1:]}/a.target.requires", (7, 1234))
    assert enabled_text(root, "app.service").decode().splitlines() == [
        "a.target.requires/gone.service",
        "a.target.wants/app.service",
        f"as-built 1234 {IMAGE_TIME_S} a.target.requires",
        "b.target.wants",
        "before basic.target",
        "before net.target",
        "before online.target",
        "before paths.target",
        "before store.service",
        "before sysinit.target",
    ]


def test_they_go_into_the_archive(tmp_path: Path) -> None:
    root = image(tmp_path)
    assert watched(root, "app.service", StartSet((), ()), ()).enabled == enabled_text(root, "app.service")
