"""`profile new` without guests: its request, its decisions, and the places of its files."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.errors import (
    BadInputError,
    NoProfileError,
    OutputExistsError,
    UnsupportedUnitError,
)
from quickstart.inspect.globs import matches
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.directives import KNOWN
from quickstart.model import (
    Event,
    Op,
    ReferenceImage,
)
from quickstart.model.words import Payload
from quickstart.newprofile.findings import (
    budget_mib,
    data_rules,
    disk_mib,
    fate,
    memory_mib,
    only_checks,
    payload,
    written_files,
)
from quickstart.newprofile.look import parse_look
from quickstart.newprofile.make import (
    Place,
    check_place,
    describe,
    examine,
    fitting_payload,
)
from quickstart.newprofile.size import tree_bytes
from quickstart.newprofile.toml import profile_text
from quickstart.newprofile.units import own_name
from quickstart.profile import parse_profile
from tests.unit.drafts import DRAFT, command
from tests.unit.imagebuilder import Image, P, trace

# ---------------------------------------------------------------- decisions


@pytest.mark.parametrize(
    ("pre", "start", "checks"),
    [
        (["/usr/sbin/lighttpd -tt -f /etc/l.conf"], "/usr/sbin/lighttpd -D -f /etc/l.conf", True),
        (["/usr/sbin/haproxy -Ws -f /x -c -q"], "/usr/sbin/haproxy -Ws -f /x", True),
        (["/usr/sbin/named-checkconf"], "/usr/sbin/named -f", True),
        (["/usr/share/dnsmasq/systemd-helper checkconfig"], "/usr/sbin/dnsmasq", True),
        (["/usr/sbin/knotc conf-check"], "/usr/sbin/knotd", True),
        (["/usr/sbin/x --precheck-config=no"], "/usr/bin/y", False),
        (["/usr/sbin/squid --foreground -z"], "/usr/sbin/squid --foreground", False),
        (["/bin/mkdir -p /run/x"], "/usr/sbin/x", False),
        (["/usr/sbin/x -t", "/bin/mkdir /run/x"], "/usr/sbin/x", False),
        (["/usr/bin/x -c /etc/x.conf"], "/usr/bin/x -c /etc/x.conf", False),
        ([], "/usr/sbin/x", False),
    ],
)
def test_what_only_checks(pre: list[str], start: str, checks: bool) -> None:
    assert only_checks([command(each) for each in pre], command(start)) is checks


def test_every_known_directive_has_its_fate() -> None:
    assert [name for name in KNOWN if fate(name) == "not known"] == []
    assert fate("ExecStart") == "the start itself"
    assert fate("NoSuchThing") == "not known"


def test_files_that_are_written_outside_of_the_places_of_data(image: Image) -> None:
    for path in ("/opt/app/db", "/var/lib/app/db", "/etc/app/state", "/usr/lib/app/log"):
        image.file(path)
    events = [
        Event(line=1, pid=7, program="app", op=Op.WRITE, path=P(path), error=error)
        for path, error in (
            ("/opt/app/db", None),
            ("/opt/app/new", None),
            ("/var/lib/app/db", None),
            ("/lib/app/log", None),
            ("/etc/app/state", "EACCES"),
            ("/run/app.pid", None),
            ("/opt/app", None),
        )
    ]
    found = written_files([trace(*events)], ImageRoot(image.base))
    assert found == (P("/opt/app/db"), P("/usr/lib/app/log"))


def test_data_rules() -> None:
    many = [P(f"/opt/app/{name}") for name in "abc"]
    assert data_rules([*many, P("/etc/one"), P("/x")]) == ("/etc/one", "/opt/app/**", "/x")


@given(
    st.text(st.sampled_from("a*?[]b"), min_size=1, max_size=8).filter(lambda name: name not in (".", ".."))
)
def test_a_data_rule_means_its_file_alone(name: str) -> None:
    (rule,) = data_rules([P(f"/opt/{name}")])
    assert matches(P(f"/opt/{name}"), rule)
    assert not matches(P(f"/opt/{name}x"), rule)
    if "*" in name or "?" in name:
        assert not matches(P(f"/opt/{name.replace('*', 'z').replace('?', 'z')}"), rule)


@given(st.integers(1, 10**9))
def test_numbers_leave_room(size: int) -> None:
    assert budget_mib(size) * 1024 * 1024 > size * 5 // 4
    assert budget_mib(size) % 8 == 0
    assert disk_mib(size) * 1024 * 1024 > size + 512 * 1024 * 1024
    assert memory_mib(size // 10**6) >= 1024


@pytest.mark.parametrize(
    ("size", "form"), [(0, Payload.CPIO), ((24 << 20) - 1, Payload.CPIO), (24 << 20, Payload.LZ4)]
)
def test_a_large_initramfs_is_compressed_and_the_profile_says_so(size: int, form: Payload) -> None:
    assert payload(size) is form
    profile = replace(DRAFT, payload=form)
    written = profile_text(profile, {"payload": ["It is large."]})
    assert parse_profile(written, "x") == profile
    assert ('# It is large.\npayload = "lz4"\n' in written) is (form is Payload.LZ4)


@pytest.mark.parametrize(
    ("config", "form"),
    [
        ("CONFIG_RD_LZ4=y\n", Payload.LZ4),
        ("# CONFIG_RD_LZ4 is not set\n", Payload.CPIO),
        (None, Payload.CPIO),
    ],
)
def test_a_kernel_that_takes_no_lz4_gets_none(tmp_path: Path, config: str | None, form: Payload) -> None:
    (tmp_path / "boot").mkdir()
    if config is not None:
        (tmp_path / "boot/config-6.1").write_text(config)
    reference = ReferenceImage(
        tree=tmp_path,
        image_hash="0",
        kernel=tmp_path / "boot/vmlinuz-6.1",
        initrd=tmp_path / "boot/initrd.img-6.1",
        kernel_version="6.1",
        volume_uuid="0",
        volume_label="root",
        origin=("directory", "0"),
    )
    assert fitting_payload(24 << 20, reference) is form
    assert fitting_payload(1 << 20, reference) is Payload.CPIO


def test_a_budget_is_one_that_a_profile_may_have() -> None:
    assert budget_mib(4 << 30) == 4096
    assert (budget_mib(15 << 20), memory_mib(10), memory_mib(600), disk_mib(0)) == (24, 1024, 1280, 2048)


# ---------------------------------------------------------------- the unit in the image

NETWORK = "/etc/systemd/system/multi-user.target.wants/networking.service"
UNIT = """\
[Unit]
Description=An application
[Service]
ExecStartPre=/usr/sbin/app -t
ExecStart=/usr/sbin/app
"""


@pytest.fixture
def served(image: Image) -> Image:
    image.file("/usr/lib/systemd/system/app.service", UNIT)
    image.file("/usr/lib/systemd/system/networking.service", "")
    image.file("/etc/fstab", "UUID=1 / ext4 errors=remount-ro 0 1\n")
    image.file(NETWORK)
    return image


def test_a_check_is_left_out(served: Image) -> None:
    unit, pre, run = examine(ImageRoot(served.base), DRAFT)
    assert (unit.start_pre, pre, run) == ((), ("/usr/sbin/app -t",), False)
    assert describe(ImageRoot(served.base), "app.service") == "An application"


def test_what_is_no_check_runs(served: Image) -> None:
    served.file("/usr/lib/systemd/system/app.service", UNIT.replace("app -t", "app -z"))
    unit, pre, run = examine(ImageRoot(served.base), DRAFT)
    assert (len(unit.start_pre), pre, run) == (1, ("/usr/sbin/app -z",), True)


def test_all_that_stands_in_the_way_is_named_at_once(served: Image) -> None:
    served.file("/usr/lib/systemd/system/app.service", UNIT + "PrivateIPC=yes\nRootDirectory=/x\n")
    served.file("/etc/fstab", "UUID=1 / f2fs defaults 0 1\n")
    (served.base / NETWORK.lstrip("/")).unlink()
    with pytest.raises(NoProfileError) as caught:
        examine(ImageRoot(served.base), DRAFT)
    unit, network, root = caught.value.problems
    assert "it has PrivateIPC, RootDirectory" in unit
    assert "takes the network over" in network
    assert "the root volume is f2fs" in root
    assert caught.value.exit_code == 1


def test_a_unit_that_is_not_there(served: Image) -> None:
    with pytest.raises(UnsupportedUnitError, match=r"the image has no unit other\.service"):
        examine(ImageRoot(served.base), replace(DRAFT, unit="other.service"))


def test_an_alias_is_called_by_the_units_own_name(served: Image) -> None:
    root = ImageRoot(served.base)
    served.link("/etc/systemd/system/other.service", "/lib/systemd/system/app.service")
    served.link("/etc/systemd/system/off.service", "/dev/null")
    served.file("/usr/lib/systemd/system/many@.service", UNIT)
    served.link("/etc/systemd/system/many@one.service", "/lib/systemd/system/many@.service")
    for unit, name in (
        ("other", "app"),
        ("app", "app"),
        ("off", "off"),
        ("none", "none"),
        ("many@one", "many@one"),
    ):
        assert own_name(root, f"{unit}.service") == f"{name}.service"


def test_the_units_that_may_have_been_meant(served: Image) -> None:
    status = "Package: app-server\nStatus: install ok installed\nVersion: 1\nArchitecture: all\n"
    served.file("/var/lib/dpkg/status", status)
    served.file("/var/lib/dpkg/info/app-server.list", "/lib/systemd/system/app.service\n")
    for unit, hint in (
        ("apq.service", "did you mean 'app'?"),
        ("x.service", "services of app-server: app.service"),
    ):
        with pytest.raises(UnsupportedUnitError) as caught:
            examine(ImageRoot(served.base), replace(DRAFT, unit=unit))
        assert caught.value.hint == hint


# ---------------------------------------------------------------- images and guests of strangers


def test_a_path_that_is_no_utf_8_is_a_rule_all_the_same() -> None:
    path = P("/opt/\udcff[x]")
    (rule,) = data_rules([path])
    assert rule.encode() and matches(path, rule) and not matches(P("/opt/ab[x]"), rule)


def test_a_guest_does_not_choose_the_memory_of_the_next_one() -> None:
    for total, left in ((10**14, 1), (1, 10**14), (3 << 20, 0)):
        look = parse_look(f"== memory\nMemTotal: {total} kB\nMemAvailable: {left} kB\n")
        assert 1024 <= memory_mib(look.used_mib) <= 4096


def test_a_file_of_many_names_counts_once(image: Image) -> None:
    before = tree_bytes(ImageRoot(image.base))
    image.file("/data/a", "x")
    os.truncate(image.base / "data/a", 1 << 30)
    for number in range(50):
        os.link(image.base / "data/a", image.base / f"data/{number}")
    assert tree_bytes(ImageRoot(image.base)) == before + (1 << 30)


def test_an_image_too_large_for_any_profile() -> None:
    with pytest.raises(BadInputError, match="at most 1048576 MiB"):
        disk_mib(1 << 40)


# ---------------------------------------------------------------- where it goes


def test_a_place(tmp_path: Path) -> None:
    out = tmp_path / "app"
    check_place(Place(out, 1))
    out.mkdir()
    check_place(Place(out, 1))
    (out / "profile.toml").write_text("")
    with pytest.raises(OutputExistsError, match="has a profile"):
        check_place(Place(out, 1))
    check_place(Place(out, 1, force=True))
    (out / "mine").write_text("")
    with pytest.raises(OutputExistsError, match="is no profile's directory"):
        check_place(Place(out, 1, force=True))


def test_files_whose_names_are_too_long_for_a_path(tmp_path: Path) -> None:
    root = ImageRoot(tmp_path)
    (tmp_path / "file").write_text("x")
    at = os.open(root.base, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(24):
        os.mkdir("d" * 200, dir_fd=at)
        os.close(os.open("f" * 200, os.O_WRONLY | os.O_CREAT, dir_fd=at))
        below = os.open("d" * 200, os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    assert tree_bytes(root) == 4096
    assert root.hard_links() == {}
