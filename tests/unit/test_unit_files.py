"""Which text of an image's unit files counts, and how it is read: as systemd does both."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import parse_service, read_unit, unit_texts
from quickstart.inspect.unit.directives import KEPT_WHEN_EMPTY, KNOWN
from quickstart.inspect.unit.facts import deciding
from tests.unit.unitreader import put

UNITS = "/usr/lib/systemd/system"
TEXT = "[Service]\nExecStart=/usr/bin/app\n"


# What `systemd --test` of 252 makes of each.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\ufeff[Service]\nUMask=077", {"UMask": ("077",)}),
        ("[Service]\rNice=5\r#x\rUMask=077\r", {"Nice": ("5",), "UMask": ("077",)}),
        ("[Service]\r\nNice=5\r\n", {"Nice": ("5",)}),
        ("[Service]\n# a comment\rNice=5\n", {"Nice": ("5",)}),
        ("[Service]\n# a comment\0Nice=5\n", {"Nice": ("5",)}),
        ("[Service]\nEnvironment=A=b\\\\\nNice=5", {"Environment": ("A=b\\\\",), "Nice": ("5",)}),
        ("[Service]\nEnvironment=A=b\\\\\\\nNice=5", {"Environment": ("A=b\\\\ Nice=5",)}),
        ("[Service]\nEnvironment=A=b \\\n# not the end\nC=d", {"Environment": ("A=b  C=d",)}),
        ("[Service]\nEnvironment=A=b \\\n\nNice=5", {"Environment": ("A=b",), "Nice": ("5",)}),
        ("[Service]\nNice=5 \\", {"Nice": ("5",)}),
        ("# a\n\ufeff[Service]\nUMask=077", {"UMask": ("077",)}),
        ("\ufeff# a \\\n[Service]\nUMask=077", {}),
        ("\ufeff[Service]\n\ufeffUMask=077", {"\ufeffUMask": ("077",)}),
        ("[Service]\nEnvironment=A=b \\\n\0Nice=5", {"Environment": ("A=b  Nice=5",)}),
        # Where systemd stops reading.
        ("[Service]\nUMask=077\n[Install\n[Service]\nUMask=0", {"UMask": ("077",)}),
        ("[Service]\nUMask=077\n[Service] # a\nUMask=0", {"UMask": ("077",)}),
        ("[Service]\nUMask=077\n[Unit]\nDescription=\udce9\n[Service]\nUMask=0", {"UMask": ("077",)}),
        ("[Service]\nUMask=077\nNice=\ufffe\nUMask=0", {"UMask": ("077",)}),
        (f"[Service]\nUMask=077\n#{'a' * (1 << 20)}\nUMask=0", {"UMask": ("077",)}),
        (f"[Service]\nUMask=077\nA={'a' * (1 << 19)}\\\n{'a' * (1 << 19)}\nUMask=0", {"UMask": ("077",)}),
        ("[Service]\n# \udce9\nUMask=077", {"UMask": ("077",)}),
        # Blanks to others only: an unknown name, which is refused.
        ("[Service]\n\u00a0Nice=5", {"\u00a0Nice": ("5",)}),
    ],
)
def test_lines_are_systemds(text: str, expected: dict[str, tuple[str, ...]]) -> None:
    assert parse_service((text,)) == expected


@pytest.mark.parametrize("place", [UNITS, "/etc/systemd/system"])
def test_the_drop_ins_of_an_alias_are_the_units(tmp_path: Path, place: str) -> None:
    put(tmp_path, f"{UNITS}/app.service", TEXT)
    put(tmp_path, f"{UNITS}/other.service", TEXT)
    put(tmp_path, f"{place}/first/keep", "")
    (tmp_path / place[1:] / "old-name.service").symlink_to(f"{UNITS}/app.service")
    put(tmp_path, "/etc/systemd/system/old-name.service.d/a.conf", "of the alias")
    put(tmp_path, "/etc/systemd/system/old-.service.d/b.conf", "of its prefix")
    put(tmp_path, "/etc/systemd/system/other.service.d/c.conf", "of another")
    texts = unit_texts(ImageRoot(tmp_path), "app.service")
    assert texts == (TEXT, "of the alias", "of its prefix")


def test_a_masked_alias_has_no_drop_ins(tmp_path: Path) -> None:
    put(tmp_path, f"{UNITS}/app.service", TEXT)
    (tmp_path / UNITS[1:] / "old.service").symlink_to("app.service")
    put(tmp_path, "/etc/systemd/system/old.service.d/a.conf", "of the alias")
    (tmp_path / "etc/systemd/system/old.service").symlink_to("/dev/null")
    assert unit_texts(ImageRoot(tmp_path), "app.service") == (TEXT,)


def test_an_alias_of_a_template_has_the_instance(tmp_path: Path) -> None:
    put(tmp_path, f"{UNITS}/app@.service", TEXT)
    (tmp_path / UNITS[1:] / "old@.service").symlink_to("app@.service")
    put(tmp_path, "/etc/systemd/system/old@one.service.d/a.conf", "of the instance")
    put(tmp_path, "/etc/systemd/system/old@two.service.d/b.conf", "of another")
    put(tmp_path, "/etc/systemd/system/old@.service.d/c.conf", "of the template")
    texts = unit_texts(ImageRoot(tmp_path), "app@one.service")
    assert texts == (TEXT, "of the instance", "of the template")


def test_a_later_drop_in_of_an_alias_counts(tmp_path: Path) -> None:
    put(tmp_path, f"{UNITS}/app.service", TEXT)
    (tmp_path / UNITS[1:] / "old.service").symlink_to("app.service")
    put(tmp_path, "/etc/systemd/system/multi-user.target.wants/keep", "")
    (tmp_path / "etc/systemd/system/multi-user.target.wants/old.service").symlink_to(f"{UNITS}/app.service")
    found = deciding(ImageRoot(tmp_path), "app.service")
    places = set(map(str, found.places))
    for directory in ("/etc/systemd/system", "/etc/systemd/system.control", UNITS):
        assert {f"{directory}/old.service.d", f"{directory}/old.service.requires"} <= places
    assert "/etc/systemd/system/multi-user.target.wants/old.service" in set(map(str, found.files))


def test_the_directory_of_all_services_counts_least(tmp_path: Path) -> None:
    put(tmp_path, f"{UNITS}/app.service", TEXT)
    put(tmp_path, "/etc/systemd/system/service.d/a.conf", "of all services")
    put(tmp_path, f"{UNITS}/app.service.d/a.conf", "of this one")
    assert unit_texts(ImageRoot(tmp_path), "app.service") == (TEXT, "of this one")


def test_a_hidden_file_is_no_drop_in(tmp_path: Path) -> None:
    put(tmp_path, f"{UNITS}/app.service", TEXT)
    put(tmp_path, "/etc/systemd/system/app.service.d/.a.conf", "hidden")
    assert unit_texts(ImageRoot(tmp_path), "app.service") == (TEXT,)


@pytest.mark.parametrize("line", ["NoNewPrivileges=yes", "UMask=077", "LimitCORE=0", "ProtectSystem=strict"])
def test_an_empty_value_that_takes_nothing_back_is_refused(tmp_path: Path, line: str) -> None:
    name = line.partition("=")[0]
    put(tmp_path, f"{UNITS}/app.service", f"{TEXT}{name}=\n{line}\n")
    read_unit(ImageRoot(tmp_path), "app.service")
    put(tmp_path, "/etc/systemd/system/app.service.d/a.conf", f"[Service]\n{name}=\n")
    with pytest.raises(UnsupportedUnitError, match=f"an empty {name}= after a value"):
        read_unit(ImageRoot(tmp_path), "app.service")
    put(tmp_path, "/etc/systemd/system/app.service.d/b.conf", f"[Service]\n{line}\n")
    read_unit(ImageRoot(tmp_path), "app.service")


def test_an_empty_default_that_takes_nothing_back_is_refused(tmp_path: Path) -> None:
    put(tmp_path, f"{UNITS}/app.service", TEXT)
    put(tmp_path, "/etc/systemd/system.conf", "[Manager]\nDefaultLimitCORE=0\nDefaultLimitCORE=\n")
    with pytest.raises(UnsupportedUnitError, match="an empty DefaultLimitCORE= after a value"):
        read_unit(ImageRoot(tmp_path), "app.service")


def test_only_known_directives_are_kept() -> None:
    assert {name for name in KEPT_WHEN_EMPTY if not name.startswith("Default")} <= KNOWN


@pytest.mark.parametrize("directive", ["Requires", "Requisite", "BindsTo"])
def test_a_unit_that_needs_another_is_refused(tmp_path: Path, directive: str) -> None:
    """systemd starts it only when that one has been started; an empty value takes no dependency back."""
    text = f"[Unit]\n{directive}=network.target system.slice -.mount\n{TEXT}"
    put(tmp_path, f"{UNITS}/app.service", text)
    read_unit(ImageRoot(tmp_path), "app.service")
    put(
        tmp_path, "/etc/systemd/system/app.service.d/a.conf", f"[Unit]\n{directive}=basic.target data.mount\n"
    )
    put(tmp_path, "/etc/systemd/system/app.service.d/b.conf", f"[Unit]\n{directive}=\n")
    with pytest.raises(UnsupportedUnitError, match=rf"needs data\.mount.*{directive}="):
        read_unit(ImageRoot(tmp_path), "app.service")


def test_a_unit_that_a_link_gives_a_need_is_refused(tmp_path: Path) -> None:
    put(tmp_path, f"{UNITS}/app.service", TEXT)
    put(tmp_path, "/etc/systemd/system/app.service.requires/keys.service", "")
    with pytest.raises(UnsupportedUnitError, match=r"needs keys\.service"):
        read_unit(ImageRoot(tmp_path), "app.service")


@pytest.mark.parametrize("by_link", [False, True])
@pytest.mark.parametrize("needed", ["guard.target", "guard.socket", "sysinit.target"])
def test_a_unit_whose_target_needs_another_is_refused(tmp_path: Path, needed: str, by_link: bool) -> None:
    """Where check.service fails, its target fails and the unit is not started. sysinit.target is each service's own need."""
    unit = "" if needed == "sysinit.target" else f"[Unit]\nRequires={needed}\n"
    put(tmp_path, f"{UNITS}/app.service", f"{unit}{TEXT}")
    put(tmp_path, f"{UNITS}/{needed}", "[Unit]\nRequires=outer.target\n")
    put(tmp_path, f"{UNITS}/outer.target", f"[Unit]\nRequires={needed}\n")
    read_unit(ImageRoot(tmp_path), "app.service")
    if by_link:
        put(tmp_path, f"/etc/systemd/system/{needed}.requires/check.service", "")
    else:
        put(tmp_path, "/etc/systemd/system/outer.target.d/a.conf", "[Unit]\nRequisite=check.service\n")
    with pytest.raises(UnsupportedUnitError, match=r"needs check\.service"):
        read_unit(ImageRoot(tmp_path), "app.service")


# Seen with `systemd --test` of 252, each for itself.
@pytest.mark.parametrize(
    ("place", "counts"),
    [
        ("foo-bar@in-st.service", True),
        ("foo-bar@.service", True),
        ("foo-.service", True),
        ("foo-@in-st.service", True),
        ("foo-@.service", True),
        ("foo-bar@in-.service", False),
        ("foo-@in-.service", False),
    ],
)
def test_the_prefixes_of_an_instance_are_instances(tmp_path: Path, place: str, counts: bool) -> None:
    put(tmp_path, f"{UNITS}/foo-bar@.service", TEXT)
    put(tmp_path, f"/etc/systemd/system/{place}.d/a.conf", "of it")
    root = ImageRoot(tmp_path)
    assert unit_texts(root, "foo-bar@in-st.service")[1:] == (("of it",) if counts else ())
    places = set(map(str, deciding(root, "foo-bar@in-st.service").places))
    assert (f"/etc/systemd/system/{place}.d" in places) is counts


def test_a_link_to_a_file_elsewhere_is_no_alias(tmp_path: Path) -> None:
    put(tmp_path, "/opt/app.service", TEXT)
    put(tmp_path, f"{UNITS}/keep", "")
    for name, target in (
        ("app", "/opt/app.service"),
        ("linked", "/opt/app.service"),
        ("alias", "app.service"),
    ):
        (tmp_path / UNITS[1:] / f"{name}.service").symlink_to(target)
        put(tmp_path, f"{UNITS}/{name}.service.d/{name}.conf", name)
    assert unit_texts(ImageRoot(tmp_path), "app.service") == (TEXT, "alias", "app")


@pytest.mark.parametrize(
    "place",
    [f"{UNITS}/app.service.d/a.conf", "/etc/systemd/system.conf.d/a.conf", f"{UNITS}/system.slice.d/a.conf"],
)
def test_what_systemd_does_not_read_whole_is_refused(tmp_path: Path, place: str) -> None:
    put(tmp_path, f"{UNITS}/app.service", TEXT)
    put(tmp_path, place, "[Unit]\nDescription=a\n")
    read_unit(ImageRoot(tmp_path), "app.service")
    put(tmp_path, place, "[Unit\n[Service]\nNoNewPrivileges=no\n")
    with pytest.raises(UnsupportedUnitError, match="systemd stops reading there"):
        read_unit(ImageRoot(tmp_path), "app.service")


# What systemd 252 takes for another value, or passes by, as `systemd --test` shows.
@pytest.mark.parametrize(
    "line",
    [
        *("LimitNOFILE=01024", "LimitRTPRIO=010", "TasksMax=0100", "CPUWeight=0100", "AllowedCPUs=010"),
        *("Nice=-010", "OOMScoreAdjust=0100", "CPUAffinity=0-010", "IOWeight=0100", "CPUQuota=010%"),
        *(
            "LimitNICE=-999",
            "LimitNICE=41",
            "LimitNOFILE=1024 : 2048",
            "LimitFSIZE=10KB",
            "LimitRTTIME=5s 10",
        ),
        *("ReadWritePaths=+-/var", r"ReadWritePaths=/a\x20b", r"InaccessiblePaths=-/a\x20b"),
        *("WorkingDirectory=/a/../b", "EnvironmentFile=/a/../b", "StandardOutput=append:a"),
        *("Slice=foo--bar.slice", "Slice=foo-.slice"),
    ],
)
def test_a_value_that_systemd_takes_otherwise_is_refused(tmp_path: Path, line: str) -> None:
    put(tmp_path, f"{UNITS}/app.service", f"{TEXT}{line}\n")
    with pytest.raises(UnsupportedUnitError, match="cannot be started early: "):
        read_unit(ImageRoot(tmp_path), "app.service")


@pytest.mark.parametrize(
    "line",
    [
        *("LimitNOFILE=1024:2048", "LimitNICE=+19", "LimitNICE=40", "LimitFSIZE=010", "LimitRTTIME=5s"),
        *("ReadWritePaths=-+/var", "WorkingDirectory=/srv", "CPUQuota=10.05%", "CPUWeight=100", "Nice=0"),
        *(r'Environment="A=a\x20b"', "Slice=foo-bar.slice", "TimerSlackNSec=010"),
    ],
)
def test_a_value_that_systemd_takes_like_this(tmp_path: Path, line: str) -> None:
    put(tmp_path, f"{UNITS}/app.service", f"{TEXT}{line}\n")
    read_unit(ImageRoot(tmp_path), "app.service")
