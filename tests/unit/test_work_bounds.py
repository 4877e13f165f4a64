"""How often the files of an image are read, and how much of them: an image may have thousands of lines that each ask
for the same table, and thousands of links to one large file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import ImageFileError, UnsupportedUnitError
from quickstart.initramfs.modules import queues
from quickstart.inspect import cloudinit, imageroot
from quickstart.inspect.imageroot import MAX_WHOLE_BYTES, ImageRoot
from quickstart.inspect.unit import order
from quickstart.inspect.unit.callgroups import library_of_groups
from quickstart.inspect.unit.instances import working_instances
from quickstart.inspect.unit.mounted import refuse_mounts
from quickstart.inspect.unit.pidone import raises_nr_open
from quickstart.inspect.unit.policies import refuse_policies
from quickstart.inspect.unit.sysctl import KernelSetting, kernel_settings
from quickstart.inspect.unit.tmpfiles import refuse_tmpfiles
from tests.unit.test_unit_sockets import link, put

UNIT = "app.service"
LINKS = 40
UNITS = "/usr/lib/systemd/system"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file of an image was read."""
    found: Counter[str] = Counter()
    read_bytes = ImageRoot.read_bytes

    def counted(self: ImageRoot, path: PurePosixPath, most_bytes: int = MAX_WHOLE_BYTES) -> bytes:
        found[str(path)] += 1
        return read_bytes(self, path, most_bytes)

    monkeypatch.setattr(ImageRoot, "read_bytes", counted)
    return found


def test_a_table_of_users_for_many_lines(tmp_path: Path, read: Counter[str]) -> None:
    put(tmp_path, "/etc/passwd", "root:x:0:0::/:/bin/sh\nu:x:0:0\nu:x:7:7\n")
    put(tmp_path, "/etc/group", "root:x:0:\ng:x:0:\n")
    (tmp_path / "srv").mkdir()
    put(tmp_path, "/etc/tmpfiles.d/x.conf", "d /srv - u g\n" * LINKS)
    refuse_tmpfiles(ImageRoot(tmp_path), UNIT)
    # For the directories that the starter makes, and for all lines.
    assert (read["/etc/passwd"], read["/etc/group"]) == (2, 2)
    # Whom the image does not have is another than the owner.
    put(tmp_path, "/etc/tmpfiles.d/x.conf", "d /srv - nobody g\n")
    with pytest.raises(UnsupportedUnitError):
        refuse_tmpfiles(ImageRoot(tmp_path), UNIT)


@pytest.mark.parametrize("place", ["/tmp tmpfs", "/dev/shm tmpfs", "/proc proc"])
def test_many_rows_of_an_fstab(tmp_path: Path, read: Counter[str], place: str) -> None:
    put(tmp_path, "/etc/systemd/system/app.service", "[Service]\nExecStart=/usr/bin/app\n")
    where, fs_type = place.split()[-2:]
    put(tmp_path, "/etc/fstab", f"a {where} {fs_type} noauto,noexec\n" * LINKS)
    refuse_mounts(ImageRoot(tmp_path), UNIT)
    assert read["/etc/fstab"] == 1


def test_many_links_to_a_library_of_systemd(tmp_path: Path, read: Counter[str]) -> None:
    place = "/usr/lib/x86_64-linux-gnu/systemd"
    for kind in ("core", "shared"):
        put(tmp_path, f"{place}/libsystemd-{kind}-a.so", "text")
        for number in range(LINKS):
            link(tmp_path, f"{place}/libsystemd-{kind}-{number}.so", f"libsystemd-{kind}-a.so")
    assert not raises_nr_open(ImageRoot(tmp_path))
    assert library_of_groups(ImageRoot(tmp_path)) is None
    assert read[f"{place}/libsystemd-core-a.so"] == read[f"{place}/libsystemd-shared-a.so"] == 1


def test_many_libraries_with_groups(tmp_path: Path, read: Counter[str]) -> None:
    for number in range(LINKS):
        put(tmp_path, f"/usr/lib/systemd/libsystemd-shared-{number}.so", "text")
    assert library_of_groups(ImageRoot(tmp_path)) is None
    assert read.total() == 4


def test_many_links_to_a_file_of_modprobe(tmp_path: Path, read: Counter[str]) -> None:
    put(tmp_path, "/etc/modprobe.d/a", "options x y=1\n")
    for number in range(LINKS):
        link(tmp_path, f"/etc/modprobe.d/{number}.conf", "a")
    refuse_policies(ImageRoot(tmp_path), UNIT)
    assert read["/etc/modprobe.d/a"] == 1


def test_many_links_to_a_file_of_cloud_init(
    tmp_path: Path, read: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloudinit, "has_cloud_init", lambda _: True)
    put(tmp_path, "/etc/cloud/a", "locale: C\n")
    for number in range(LINKS):
        link(tmp_path, f"/etc/cloud/cloud.cfg.d/{number}.cfg", "../a")
    cloudinit.refuse_bootcmd(ImageRoot(tmp_path), UNIT)
    assert read["/etc/cloud/a"] == 1
    put(tmp_path, "/etc/cloud/a", "bootcmd: [a]\n")
    with pytest.raises(UnsupportedUnitError, match=r"cloud\.cfg\.d/0\.cfg has bootcmd"):
        cloudinit.refuse_bootcmd(ImageRoot(tmp_path), UNIT)


def test_many_clusters_of_postgresql(tmp_path: Path, read: Counter[str]) -> None:
    put(tmp_path, "/usr/lib/systemd/system-generators/postgresql-generator", "")
    text = "[Service]\nType=oneshot\nExecStart=/bin/true\n"
    put(tmp_path, "/usr/lib/systemd/system/postgresql.service", text)
    for number in range(300):
        put(tmp_path, f"/etc/postgresql/15/{number}/postgresql.conf", "")
        put(tmp_path, f"/etc/postgresql/15/{number}/start.conf", "manual\n")
    with pytest.raises(UnsupportedUnitError, match="300 clusters"):
        working_instances(ImageRoot(tmp_path), "postgresql.service")
    assert read.total() < 8


def test_drop_ins_of_a_type_look_for_its_units_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(LINKS):
        put(tmp_path, f"{UNITS}/u{number}.service", "[Service]\nExecStart=/bin/true\n")
        put(tmp_path, f"{UNITS}/service.d/{number}.conf", "")
        put(tmp_path, f"{UNITS}/u{number}.socket.d/a.conf", "")
    put(tmp_path, f"{UNITS}/a-b.service", "")
    put(tmp_path, f"{UNITS}/a-.service.d/a.conf", "")
    looked: Counter[str] = Counter()
    others = order._others

    def counted(owner: str, by_type: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
        looked[owner] += 1
        return others(owner, by_type)

    monkeypatch.setattr(order, "_others", counted)
    found = {str(path): names for path, names, _ in order.owned_texts(ImageRoot(tmp_path))}
    assert found[f"{UNITS}/a-.service.d/a.conf"] == ("a-.service", "a-b.service")
    assert found[f"{UNITS}/u7.socket.d/a.conf"] == ("u7.socket",)
    assert found[f"{UNITS}/service.d/3.conf"][:2] == ("service", "a-b.service")
    assert len(found[f"{UNITS}/service.d/3.conf"]) == 1 + LINKS + 1
    assert looked["service"] == 1


def test_a_budget_for_the_units_of_drop_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "_MAX_OWNERS", 1000)
    for number in range(LINKS):
        put(tmp_path, f"{UNITS}/u{number}.service", "")
        put(tmp_path, f"{UNITS}/service.d/{number}.conf", "")
    with pytest.raises(UnsupportedUnitError, match="belong to more than 1000 units altogether"):
        list(order.owned_texts(ImageRoot(tmp_path)))


def test_a_budget_for_the_bytes_of_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hard links to one large file are files of their own."""
    monkeypatch.setattr(imageroot, "_MOST_BYTES", 1000)
    put(tmp_path, "/etc/a", "text" * 100)
    (tmp_path / "etc/b").hardlink_to(tmp_path / "etc/a")
    root = ImageRoot(tmp_path)
    for name in ("a", "b"):
        root.read_text(PurePosixPath("/etc") / name)
    with pytest.raises(ImageFileError, match="more than 1000 bytes"):
        root.read_text(PurePosixPath("/etc/a"))


def test_patterns_that_leave_many_keys_alone(tmp_path: Path) -> None:
    """Init reads these keys behind each pattern."""
    keys = "".join(f"{'k' * 100}{number} = 1\n" for number in range(100))
    put(tmp_path, "/etc/sysctl.d/a.conf", keys + "".join(f"k{'*' * number} = 2\n" for number in range(1, 4)))
    found = {each.key: each for each in kernel_settings(ImageRoot(tmp_path))}
    assert len(found["k*"].spared) == 100
    put(tmp_path, "/etc/sysctl.d/b.conf", "".join(f"k{'*' * number} = 2\n" for number in range(4, 12)))
    with pytest.raises(UnsupportedUnitError, match=r"patterns that match keys of more than 65536 characters"):
        kernel_settings(ImageRoot(tmp_path))


def test_many_default_queueing_disciplines() -> None:
    settings = (KernelSetting("net/core/default_qdisc", f"q{number}", False) for number in range(LINKS))
    assert queues(settings) == ("sch_q36", "sch_q37", "sch_q38", "sch_q39")
