"""Texts of an image that are longer than any: each is refused by its name, however often it is named."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import QuickStartError, StartSetError, UnsupportedUnitError
from quickstart.inspect import ldconf
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.ldconf import library_directories
from quickstart.inspect.unit import hooks
from quickstart.inspect.unit.hooks import refuse_hooks
from quickstart.inspect.unit.mounted import refuse_mounts, tmp_options
from quickstart.inspect.unit.read import read_unit
from quickstart.inspect.unit.rundirectories import run_directories
from quickstart.model import Trace
from quickstart.model.started import Loaded
from quickstart.pack import earlier
from quickstart.pack.earlier import refuse_earlier
from tests.unit.accounts import booted
from tests.unit.hookscripts import UP, script
from tests.unit.hostile import bounded
from tests.unit.test_unit_sockets import UNITS, link, put

MIB = 1 << 20
USER = "user@1.service"


@pytest.fixture
def root(tmp_path: Path) -> ImageRoot:
    put(tmp_path, "/usr/bin/app", "")
    put(tmp_path, f"{UNITS}/app.service", "[Service]\nExecStart=/usr/bin/app\n")
    return ImageRoot(tmp_path)


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> list[PurePosixPath]:
    found: list[PurePosixPath] = []
    usual = ImageRoot.read_bytes

    def counted(self: ImageRoot, path: PurePosixPath, most_bytes: int = MIB) -> bytes:
        found.append(path)
        return usual(self, path, most_bytes)

    monkeypatch.setattr(ImageRoot, "read_bytes", counted)
    return found


def test_a_script_of_ifupdown_by_many_links(root: ImageRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    script(root.base, "/usr/lib/tool", "#!/bin/sh\n", is_packaged=True)
    for number in range(50):
        link(root.base, f"{UP}/l{number}", "/usr/lib/tool")
    found = counted_reads(monkeypatch)
    refuse_hooks(root, "app.service")
    # For its digest, and for the words of packet filters.
    assert found.count(PurePosixPath("/usr/lib/tool")) == 2
    monkeypatch.setattr(hooks, "_MOST_FILES", 1)
    put(root.base, "/etc/network/interfaces", "")
    put(root.base, "/etc/network/interfaces.d/more", "")
    with pytest.raises(UnsupportedUnitError, match="more than 1 scripts and files"):
        refuse_hooks(root, "app.service")


@pytest.mark.parametrize("text", ["up ip\n" * (MIB // 5), "up " + "ip;" * (MIB // 2), "\\\n" * MIB])
def test_long_files_of_interfaces(root: ImageRoot, text: str) -> None:
    put(root.base, "/etc/network/interfaces.d/a", text)
    with bounded(2), pytest.raises(UnsupportedUnitError, match=r"interfaces\.d/a is too long"):
        refuse_hooks(root, "app.service")
    put(root.base, "/etc/network/interfaces.d/a", text[: MIB // 16])
    for number in range(20):
        os.link(root.base / "etc/network/interfaces.d/a", root.base / f"etc/network/interfaces.d/b{number}")
    with (
        bounded(2),
        pytest.raises(UnsupportedUnitError, match=r"interfaces\.d/b2\d? is too long|/b\d+ is too long"),
    ):
        refuse_hooks(root, "app.service")


def test_a_long_line_of_interfaces(root: ImageRoot) -> None:
    put(root.base, "/etc/network/interfaces", "up " + "true;" * 180_000)
    with bounded(2, 128):
        refuse_hooks(root, "app.service")
    put(root.base, "/etc/network/interfaces", "up " + "true;" * 180_000 + "other")
    with bounded(2, 128), pytest.raises(UnsupportedUnitError, match="may set up a packet filter"):
        refuse_hooks(root, "app.service")


def test_many_mounts_and_many_needs(root: ImageRoot) -> None:
    needs = "".join(
        f"RequiresMountsFor={' '.join(f'/n{number}/{i}/a' for i in range(500))}\n" for number in range(40)
    )
    put(root.base, f"{UNITS}/app.service", f"[Unit]\n{needs}[Service]\nExecStart=/usr/bin/app\n")
    rows = "".join(f"x /a{number} y noauto\n" for number in range(9000))
    put(root.base, "/etc/fstab", rows)
    with bounded(4):
        refuse_mounts(root, "app.service")
    put(root.base, "/etc/fstab", f"{rows}x /n7/499 y noauto\n")
    with bounded(4), pytest.raises(UnsupportedUnitError, match="mounts /n7/499"):
        refuse_mounts(root, "app.service")
    put(root.base, "/etc/fstab", rows * 2)
    with pytest.raises(StartSetError, match=r"/etc/fstab has .* bytes; such a file is read up to 262144"):
        refuse_mounts(root, "app.service")


@pytest.mark.parametrize(
    ("place", "is_needed"), [("/a", True), ("/a/b", True), ("/a/b/c", False), ("/a/", True)]
)
def test_a_mount_that_is_needed(root: ImageRoot, place: str, is_needed: bool) -> None:
    put(root.base, f"{UNITS}/app.service", "[Unit]\nRequiresMountsFor=/a/b /a-b /a.b\n")
    put(root.base, "/etc/fstab", f"x {place} y noauto\n")
    if is_needed:
        with pytest.raises(UnsupportedUnitError, match="mounts /a"):
            refuse_mounts(root, "app.service")
    else:
        refuse_mounts(root, "app.service")


def test_a_tmp_with_options_for_systemd_alone(root: ImageRoot) -> None:
    """An empty list is that of an image which mounts no /tmp."""
    put(root.base, f"{UNITS}/tmp.mount", "[Mount]\nType=tmpfs\nOptions=x-foo\n")
    link(root.base, "/etc/systemd/system/multi-user.target.wants/tmp.mount", f"{UNITS}/tmp.mount")
    assert tmp_options(root) == ("rw",)


def test_links_to_one_long_ld_so_conf(root: ImageRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root.base, "/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
    put(root.base, "/etc/ld.so.conf.d/a.conf", "#\n" * 1000)
    for number in range(30):
        os.link(root.base / "etc/ld.so.conf.d/a.conf", root.base / f"etc/ld.so.conf.d/b{number}.conf")
    library_directories(root)
    monkeypatch.setattr(ldconf, "_MAX_CHARACTERS", 30_000)
    with pytest.raises(StartSetError, match=r"/etc/ld\.so\.conf names or has more than 30000 characters"):
        library_directories(root)


@pytest.mark.parametrize("file", ["/etc/passwd", "/etc/group"])
def test_a_long_table_of_users(root: ImageRoot, file: str) -> None:
    put(root.base, "/etc/passwd", "root:x:0:0\n")
    put(root.base, "/etc/group", "root:x:0:\n")
    put(root.base, f"{UNITS}/app.service", "[Service]\nExecStart=/usr/bin/app\nUser=root\nGroup=root\n")
    read_unit(root, "app.service")
    put(root.base, file, "\n" * (2 * MIB + 1))
    with pytest.raises(StartSetError, match=f"{file} has 2097153 bytes"):
        run_directories(root)
    with pytest.raises(StartSetError, match=f"{file} has 2097153 bytes"):
        read_unit(root, "app.service")


def with_drop_ins(*paths: str) -> Trace:
    made = booted(app_service=f"network.target {USER}", **{USER.replace(".", "_"): ""})
    units = tuple(
        replace(each, file="/usr/lib/systemd/system/user@.service", drop_ins=paths)
        if each.name == USER
        else each
        for each in made.loaded.units
    )
    return replace(made, loaded=Loaded(units, made.loaded.roots))


def why(root: ImageRoot, *paths: str) -> str:
    try:
        refuse_earlier([with_drop_ins(*paths)], ["app.service"], root)
    except QuickStartError as error:
        return error.message
    return ""


def test_one_drop_in_that_is_named_many_times(root: ImageRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root.base, "/etc/d.conf", "[Service]\nNice=1\n")
    found = counted_reads(monkeypatch)
    assert why(root, *["/etc/d.conf"] * 50) == ""
    assert found == [PurePosixPath("/etc/d.conf")]
    monkeypatch.setattr(earlier, "_MOST_CHARACTERS", 100)
    put(root.base, "/etc/e.conf", "#" * 99)
    assert "the drop-ins of what the boot started have more than 100" in why(
        root, "/etc/d.conf", "/etc/e.conf"
    )
    put(root.base, "/etc/e.conf", "#" * 101)
    assert "/etc/e.conf has 101 bytes" in why(root, "/etc/e.conf")


def test_a_drop_in_behind_the_generators_directory(root: ImageRoot) -> None:
    put(root.base, "/etc/d.conf", "[Service]\nExecStartPre=/bin/x\n")
    assert why(root, "/run/systemd/generator/../../../etc/d.conf").endswith("/etc/d.conf")
    # What a generator has said cannot be read in the image.
    assert why(root, "/run/systemd/generator/user@1.service.d/d.conf").endswith("d.conf")
    assert why(root, "/etc/a", "blank.conf").endswith("with the commands of /etc/a")
    assert why(root, "blank.conf").endswith("with the commands of blank.conf")
