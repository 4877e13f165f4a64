"""What init judges units by that are enabled after the build: what is enabled, and what the application comes after."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.initramfs.facts import watched
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.enabled import enabled_text
from quickstart.model import IMAGE_TIME_S, StartSet
from tests.unit.unitreader import put

OWN, PACKAGES = "/etc/systemd/system", "/usr/lib/systemd/system"


def image(root: Path) -> ImageRoot:
    put(
        root,
        f"{PACKAGES}/app.service",
        '[Unit]\nAfter="online.target" store.service %p-log.service\n[Service]\nExecStart=/bin/a\n',
    )
    put(root, f"{PACKAGES}/online.target", "[Unit]\nAfter=net.target app.service\n")
    put(root, f"{PACKAGES}/basic.target", "[Unit]\nAfter=paths.target\n")
    for path in (f"{OWN}/a.target.wants", f"{PACKAGES}/a.target.requires", "/opt/wants"):
        (root / path[1:]).mkdir(parents=True)
    (root / f"{OWN[1:]}/a.target.wants/app.service").symlink_to("/usr/lib/systemd/system/app.service")
    put(root, f"{PACKAGES}/there.service", "")
    (root / f"{PACKAGES[1:]}/a.target.requires/there.service").symlink_to("/gone")
    (root / f"{PACKAGES[1:]}/d.target.requires").mkdir()
    (root / f"{PACKAGES[1:]}/d.target.requires/gone.service").symlink_to("/gone")
    put(root, f"{OWN}/away.service.d/a.conf", "")
    put(root, f"{PACKAGES}/there.service.d/a.conf", "")
    (root / f"{OWN[1:]}/linked.service.d").symlink_to("/opt/wants")
    put(root, f"{PACKAGES}/c.target.wants", "")
    put(root, "/etc/rc3.d/S01old", "")
    for name in ("old", "locked"):
        put(root, f"/etc/init.d/{name}", "")
    (root / "etc/init.d/old").chmod(0o755)
    # What comes later under these names has to be seen.
    put(root, "/etc/rc3.d/S02gone", "")
    put(root, "/etc/rc3.d/S02locked", "")
    put(root, "/etc/rc3.d/K01stopped", "")
    return ImageRoot(root)


def test_links_and_what_the_application_comes_after(tmp_path: Path) -> None:
    root = image(tmp_path)
    os.utime(tmp_path / f"{PACKAGES[1:]}/a.target.requires", (7, 1234))
    os.utime(tmp_path / f"{PACKAGES[1:]}/there.service.d", (7, 12345))
    os.utime(tmp_path / PACKAGES[1:], (7, 123456))
    assert enabled_text(root, "app.service").decode().splitlines() == [
        "a.target.requires/there.service",
        "a.target.wants/app.service",
        "absent d.target.requires/gone.service",
        "alias app.service",
        "application app.service",
        f"as-built 1234 {IMAGE_TIME_S} a.target.requires",
        f"as-built 12345 {IMAGE_TIME_S} there.service.d",
        f"as-built 123456 {IMAGE_TIME_S} .",
        "away.service.d/a.conf",
        "before app-log.service",
        "before basic.target",
        "before net.target",
        "before online.target",
        "before paths.target",
        "before store.service",
        "before sysinit.target",
        "linked.service.d",
        "script old",
        "there.service.d/a.conf",
        *(f"wanted {name}.mount" for name in ("tmp", "var-tmp", "var")),
    ]


def test_a_linked_directory_of_links_is_refused(tmp_path: Path) -> None:
    """What is put into it later, init would not see."""
    root = image(tmp_path)
    (tmp_path / f"{PACKAGES[1:]}/b.target.wants").symlink_to("/opt/wants")
    with pytest.raises(UnsupportedUnitError, match=r"b\.target\.wants is a link"):
        enabled_text(root, "app.service")


def before(root: ImageRoot) -> set[str]:
    lines = enabled_text(root, "app.service").decode().splitlines()
    return {line.removeprefix("before ") for line in lines if line.startswith("before ")}


@pytest.mark.parametrize("place", ["net.service", "net.service.d/a.conf", "ne-.service.d/a.conf"])
def test_what_an_enabled_unit_that_comes_before_comes_after(tmp_path: Path, place: str) -> None:
    """It comes before the application without a word of the application's."""
    root = image(tmp_path)
    name = "ne-t.service" if place.startswith("ne-") else "net.service"
    put(tmp_path, f"{PACKAGES}/{name}", "[Unit]\nAfter=wall.service\n")
    text = "[Unit]\nAfter=wall.service\nBefore=net.target\n"
    put(tmp_path, f"{PACKAGES}/{place}", text)
    # Nothing starts it, and when something does, init judges it by its Before=.
    assert not {name, "wall.service"} & before(root)
    put(tmp_path, f"{PACKAGES}/default.target", f"[Unit]\nWants={name}\n")
    assert {name, "wall.service"} <= before(root)


def test_what_a_script_that_comes_before_comes_after(tmp_path: Path) -> None:
    root = image(tmp_path)
    put(
        tmp_path,
        "/etc/init.d/net",
        "#!/bin/sh\n### BEGIN INIT INFO\n# Provides: net\n# Required-Start: wall\n# X-Start-Before: store\n### END INIT INFO\n",
    )
    (tmp_path / "etc/init.d/net").chmod(0o755)
    assert {"net.service", "wall.service"} <= before(root)


@pytest.mark.parametrize(("text", "comes"), [("", True), ("DefaultDependencies=no", False)])
def test_what_a_target_that_comes_before_pulls_in(tmp_path: Path, text: str, comes: bool) -> None:
    """A target waits for it, unless one of them has no default dependencies (systemd.target(5))."""
    root = image(tmp_path)
    put(tmp_path, f"{PACKAGES}/net.target", "[Unit]\nWants=named.service\n")
    for name in ("named.service", "linked.service"):
        put(tmp_path, f"{PACKAGES}/{name}", f"[Unit]\n{text}\n")
    (tmp_path / f"{PACKAGES[1:]}/net.target.wants").mkdir()
    (tmp_path / f"{PACKAGES[1:]}/net.target.wants/linked.service").symlink_to("../linked.service")
    assert ({"named.service", "linked.service"} <= before(root)) is comes


def test_the_other_names_of_what_comes_before(tmp_path: Path) -> None:
    root = image(tmp_path)
    put(tmp_path, f"{PACKAGES}/shop.service", "")
    (tmp_path / f"{PACKAGES[1:]}/store.service").symlink_to("shop.service")
    assert {"shop.service", "store.service"} <= before(root)


def test_a_masked_entry_enables_nothing(tmp_path: Path) -> None:
    """When the mask goes, it is enabled, in a directory of the packages' that nobody has touched."""
    root = image(tmp_path)
    (tmp_path / f"{OWN[1:]}/a.target.requires").mkdir()
    (tmp_path / f"{OWN[1:]}/a.target.requires/there.service").symlink_to("/dev/null")
    text = enabled_text(root, "app.service")
    assert b"there.service\n" not in text
    assert b"a.target.requires\n" not in text


def test_the_administrators_drop_ins_are_compared(tmp_path: Path) -> None:
    """Their names alone would say nothing of a change."""
    root = image(tmp_path)
    put(tmp_path, "/opt/kept.conf", "")
    (tmp_path / f"{OWN[1:]}/away.service.d/b.conf").symlink_to("/opt/kept.conf")
    names = set(map(str, watched(root, ("app.service",), StartSet((), ()), ()).names))
    assert {f"{OWN}/away.service.d/a.conf", f"{OWN}/away.service.d/b.conf", "/opt/kept.conf"} <= names


@pytest.mark.parametrize("place", ["/etc/systemd/system", "/usr/local/lib/systemd/system"])
def test_a_drop_in_that_would_replace_a_packages_is_looked_for(tmp_path: Path, place: str) -> None:
    """By systemd.unit(5), it counts in the place of that of the same name: its own name alone would be known already."""
    root = image(tmp_path)
    put(tmp_path, f"{PACKAGES}/rc-local.service.d/debian.conf", "[Unit]\nAfter=network-online.target\n")
    names = set(map(str, watched(root, ("app.service",), StartSet((), ()), ()).names))
    assert f"{place}/rc-local.service.d/debian.conf" in names


def test_they_go_into_the_archive(tmp_path: Path) -> None:
    root = image(tmp_path)
    assert watched(root, ("app.service",), StartSet((), ()), ()).enabled == enabled_text(root, "app.service")


def after(root: Path, words: str) -> None:
    put(root, f"{PACKAGES}/app.service", f"[Unit]\nAfter={words}\n[Service]\nExecStart=/bin/a\n")


@pytest.mark.parametrize("word", ["x", ".", "..", "/usr/x.service", "a/b.service"])
def test_a_word_that_is_no_units_name(tmp_path: Path, word: str) -> None:
    """There may be a file of that name all the same."""
    after(tmp_path, word)
    for path in ("/x", "/a/b.service"):
        put(tmp_path, f"{PACKAGES}{path}", "[Unit]\nAfter=far.target\n")
    put(tmp_path, "/usr/x.service", "[Unit]\nAfter=far.target\n")
    assert b"far.target" not in enabled_text(ImageRoot(tmp_path), "app.service")


def test_what_no_image_has_is_refused_and_not_read_for_hours(tmp_path: Path) -> None:
    names = [f"u{number}.service" for number in range(520)]
    after(tmp_path, " ".join(names))
    for name in names:
        put(tmp_path, f"{PACKAGES}/{name}", "")
    with pytest.raises(UnsupportedUnitError, match="comes after more than 512 units"):
        enabled_text(ImageRoot(tmp_path), "app.service")


def test_many_names_of_one_unit_that_comes_before_are_refused(tmp_path: Path) -> None:
    """Passed over in silence, what it comes after would be overtaken."""
    after(tmp_path, "n0.service")
    put(tmp_path, f"{PACKAGES}/n0.service", "")
    for number in range(1, 65):
        (tmp_path / f"{PACKAGES[1:]}/n{number}.service").symlink_to("n0.service")
    with pytest.raises(UnsupportedUnitError, match=r"n0\.service has 65 names"):
        enabled_text(ImageRoot(tmp_path), "app.service")
    put(tmp_path, f"{PACKAGES}/n0.service", "#" * (3 << 20))
    (tmp_path / f"{PACKAGES[1:]}/n64.service").unlink()
    with pytest.raises(UnsupportedUnitError, match="characters"):
        enabled_text(ImageRoot(tmp_path), "app.service")


def test_a_directory_of_more_units_than_any_image_has(tmp_path: Path) -> None:
    after(tmp_path, "")
    for number in range(4097):
        (tmp_path / f"{PACKAGES[1:]}/n{number}").touch()
    with pytest.raises(UnsupportedUnitError, match="has 4098 names, at most 4096"):
        enabled_text(ImageRoot(tmp_path), "app.service")
