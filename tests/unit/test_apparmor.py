"""Which AppArmor profiles attach to the unit's programs (apparmor.d(5))."""

from __future__ import annotations

from collections import ChainMap
from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.initramfs.facts import watched
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import apparmor, read_unit
from quickstart.inspect.unit.apparmor import attachments, confined_paths, profile_places, refuse_profiles
from quickstart.model import FileKind, StartSet
from tests.unit.layouts import start_file
from tests.unit.test_packed_facts import TEXT, UNIT, places_of
from tests.unit.unitreader import put

D = "/etc/apparmor.d"
ENABLED = "/etc/systemd/system/sysinit.target.wants/apparmor.service"
NGINX = PurePosixPath("/usr/sbin/nginx")


@pytest.fixture
def root(tmp_path: Path) -> ImageRoot:
    """With AppArmor as Debian installs it, and a unit."""
    put(tmp_path, "/usr/sbin/apparmor_parser", "")
    put(tmp_path, ENABLED, "")
    put(tmp_path, f"{D}/lsb_release", "profile lsb_release {\n  /usr/bin/lsb_release r,\n}\n")
    put(tmp_path, f"{D}/usr.sbin.mariadbd", "# This file is intentionally empty\n")
    put(tmp_path, f"{D}/tunables/global", "@{bin}=/{,usr/}{,s}bin\n@{lib} = /usr/lib /usr/libexec # two\n")
    put(tmp_path, UNIT, TEXT)
    return ImageRoot(tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/usr/sbin/nginx {\n}\n", ["/usr/sbin/nginx"]),
        ("profile nginx /usr/sbin/nginx flags=(complain) {\n", ["/usr/sbin/nginx"]),
        (
            "profile nginx /usr/{s,}bin/nginx (attach_disconnected, enforce) {  # x\n",
            ["/usr/{s,}bin/nginx"],
        ),
        ('profile "a b" "/usr/sbin/n x"\n{\n', ["/usr/sbin/n x"]),
        ("profile @{exec_path} xattrs=(user.a=b) {\n", ["@{exec_path}"]),
        ("\t/a/b\tflags=(complain)\t{\n", ["/a/b"]),
        # Seen to be taken by apparmor_parser 3.0.8.
        ("profile one\n  /usr/sbin/nginx\n  flags=(complain)\n{\n", ["/usr/sbin/nginx"]),
        ("profile two /usr/sbin/nginx # {\n{\n}\n", ["/usr/sbin/nginx"]),
        ("profile three /a/b flags=(complain,\n  attach_disconnected) {\n}\n", ["/a/b"]),
        (
            "/a/b\n# {\nflags = (complain)  # x\n{ } profile c /c/d { }\n/e/f {}/g/h {}\n",
            ["/a/b", "/c/d", "/e/f", "/g/h"],
        ),
        ('profile five "/a/b"{\n}\n/c/d xattrs=(user.a="b) {") {\n', ["/a/b", "/c/d"]),
        # No heads: a name, a child, rules, conditions.
        ("profile nginx {\n  ^hat {\n /usr/{s,}bin/x rix,\n  if defined @{X} {\n # /x {\n", []),
        ("@{X}=/a /b\nprofile nginx {\n  if not @{X} {\n  /a/b r,\n  ^hat\n {\n", []),
        ("  /etc/{a,b}/** r,\n  owner @{HOME}/{,**} rw,\n  dbus send bus=system peer=(name=/x),\n", []),
    ],
)
def test_what_a_profile_attaches_to(text: str, expected: list[str]) -> None:
    assert list(attachments(text)) == expected


@pytest.mark.parametrize(
    "head",
    [
        "/usr/sbin/nginx {",
        "profile web /usr/{,local/}sbin/nginx {",
        "/{,usr/}sbin/{nginx,httpd} {",
        "/usr/**/nginx {",
        "profile any /usr/sbin/n[fg]inx {",
        "@{bin}/nginx {",
        "@{unknown}/nginx {",
        "@{exec_path} {",
        "@{exec_path} {\n}\n@{exec_path} = /usr/sbin/nginx\n",
        "@{exec_path} =\\\n  /usr/sbin/nginx\nprofile web @{exec_path}\n  flags=(attach_disconnected) # x\n{",
        '"/usr/sbin/nginx" {',
    ],
)
def test_a_program_that_is_confined_is_not_started_early(root: ImageRoot, head: str) -> None:
    refuse_profiles(root, "app.service", [NGINX])
    put(root.base, f"{D}/web", f"{head}\n")
    with pytest.raises(UnsupportedUnitError, match=f"profile {D}/web confines /usr/sbin/nginx"):
        refuse_profiles(root, "app.service", [NGINX])


@pytest.mark.parametrize(
    "head",
    [
        "/usr/bin/nginx {",
        "/usr/sbin/nginx-debug {",
        "/usr/lib/** {",
        "@{lib}/nginx {",
        "profile nginx {",
        "@{exec_path} {\n}\n@{exec_path} = /usr/bin/man\n",
    ],
)
def test_a_profile_of_another_program(root: ImageRoot, head: str) -> None:
    put(root.base, f"{D}/web", f"{head}\n")
    refuse_profiles(root, "app.service", [NGINX])


def test_who_goes_by_the_hint_is_started_early(root: ImageRoot) -> None:
    put(root.base, f"{D}/web", "/usr/sbin/nginx {\n}\n")
    put(root.base, f"{D}/web.dpkg-old~", "/usr/sbin/nginx {\n}\n")
    put(root.base, f"{D}/disable/web", "")
    refuse_profiles(root, "app.service", [NGINX])


def test_where_nothing_loads_profiles(root: ImageRoot) -> None:
    put(root.base, f"{D}/web", "/usr/sbin/nginx {\n}\n")
    (root.base / ENABLED[1:]).unlink()
    refuse_profiles(root, "app.service", [NGINX])


def test_the_unit_and_every_program_that_is_packed(root: ImageRoot) -> None:
    put(root.base, f"{D}/helper", "/usr/bin/helper {\n}\n")
    helper = start_file("/usr/bin/helper", FileKind.FILE, 0o100755)
    assert read_unit(root, "app.service").start.program == "/usr/bin/app"
    with pytest.raises(UnsupportedUnitError, match="confines /usr/bin/helper"):
        watched(root, ("app.service",), StartSet((helper,), ()), ())
    put(root.base, f"{D}/app", "/usr/bin/app {\n}\n")
    with pytest.raises(UnsupportedUnitError, match="confines /usr/bin/app"):
        read_unit(root, "app.service")


def test_a_profile_that_comes_later_is_a_stock_boot(root: ImageRoot) -> None:
    """Without a parser it is its service's link that is seen."""
    assert {D, f"{D}/disable", "/etc/systemd/system/sysinit.target.wants"} <= places_of(root)
    (root.base / "usr/sbin/apparmor_parser").unlink()
    assert D not in places_of(root)
    assert "/etc/systemd/system/sysinit.target.wants" in places_of(root)


@pytest.mark.parametrize(
    "text",
    [
        "@{a}" * 100_000 + " {\n@{a}=@{a}@{a}\n",
        "/{a,b}" * 5_000 + " {\n",
        "/" + "{" * 200_000 + " {\n",
        "@{a} {\n" + "@{a}+=x\n" * 200_000,
        "profile " + " " * 500_000 + "x" * 500_000 + " {\n",
        "(" * 500_000 + ' {\n"' * 1000,
    ],
)
def test_a_profile_that_nobody_would_write(root: ImageRoot, text: str) -> None:
    """It ends soon, one way or the other; what cannot be understood attaches to all."""
    put(root.base, f"{D}/web", text)
    try:
        refuse_profiles(root, "app.service", [NGINX])
    except UnsupportedUnitError as error:
        assert "app.service" in str(error)


def test_too_many_profiles(root: ImageRoot) -> None:
    put(root.base, f"{D}/web", "/x {\n}\n" * 5000)
    with pytest.raises(UnsupportedUnitError, match="more than 4096 profiles"):
        refuse_profiles(root, "app.service", [NGINX])


@pytest.mark.parametrize(
    "line", ["include <sub/x>", "#include <sub/x>", f'include if exists "{D}/sub/x"', "include <sub>"]
)
def test_a_profile_of_an_included_file_counts(root: ImageRoot, line: str) -> None:
    """apparmor_parser loads what a file of /etc/apparmor.d includes, wherever it lies."""
    put(root.base, f"{D}/nginx", f"include <tunables/global>\n{line}\n")
    refuse_profiles(root, "nginx.service", [NGINX])
    put(root.base, f"{D}/sub/x", "include <nginx>\n/usr/sbin/nginx {\n}\n")
    with pytest.raises(UnsupportedUnitError, match="confines /usr/sbin/nginx"):
        refuse_profiles(root, "nginx.service", [NGINX])
    places = list(profile_places(root))
    assert PurePosixPath(D, "sub") in places
    assert PurePosixPath(D, "tunables") not in places


def test_a_program_that_is_executed_and_not_packed_counts(root: ImageRoot) -> None:
    """A child with file capabilities, setuid, of mode 0711, or that a rule excludes is not in the start set."""
    put(root.base, f"{D}/helper", "/opt/app/helper {\n}\n")
    watched(root, ("app.service",), StartSet((), ()), ())
    with pytest.raises(UnsupportedUnitError, match="confines /opt/app/helper"):
        watched(
            root,
            ("app.service",),
            StartSet((), ()),
            (),
            executed=frozenset({PurePosixPath("/opt/app/helper")}),
        )


@pytest.mark.parametrize("by", ["requires", "key"])
def test_whatever_pulls_the_service_in(root: ImageRoot, by: str) -> None:
    own, packages = "/etc/systemd/system", "/usr/lib/systemd/system"
    (root.base / ENABLED[1:]).unlink()
    put(root.base, f"{D}/web", "/usr/sbin/nginx {\n}\n")
    put(root.base, f"{packages}/apparmor.service", "[Unit]\nDefaultDependencies=no\n")
    put(root.base, f"{own}/hard.target", "")
    refuse_profiles(root, "app.service", [NGINX])
    if by == "requires":
        put(root.base, f"{own}/multi-user.target.requires/apparmor.service", "")
    else:
        put(root.base, f"{own}/hard.target", "[Unit]\nWants=apparmor.service\n")
        put(root.base, f"{own}/multi-user.target.wants/hard.target", "")
    with pytest.raises(UnsupportedUnitError, match="confines /usr/sbin/nginx"):
        refuse_profiles(root, "app.service", [NGINX])
    (root.base / f"{own}/apparmor.service"[1:]).symlink_to("/dev/null")
    refuse_profiles(root, "app.service", [NGINX])


def test_what_a_variable_means_is_compared_where_a_head_has_one(root: ImageRoot) -> None:
    """`@{SITES} += /usr/sbin/nginx` in tunables makes a profile attach that did not."""
    shared = {PurePosixPath(D, name) for name in ("tunables", "tunables/sites.d", "local")}
    put(root.base, f"{D}/tunables/sites.d/own", "@{SITES} += /opt/other\n")
    put(root.base, f"{D}/web", "include <tunables/global>\n/usr/bin/web {\n  @{SITES} r,\n}\n")
    assert not shared & set(profile_places(root))
    put(root.base, f"{D}/web", "include <tunables/global>\nprofile web @{SITES} {\n}\n")
    places = list(profile_places(root))
    assert shared <= set(places)
    assert len(places) == len(set(places))


def test_shared_variables_are_not_copied_for_each_profile(root: ImageRoot) -> None:
    put(root.base, f"{D}/tunables/many", "".join(f"@{{v{number}}}=/a\n" for number in range(1000)))
    put(root.base, f"{D}/one", "@{lib} += /opt\n@{mine}=/b\n@{lib}/x {\n}\n")
    put(root.base, f"{D}/two", "@{lib}/y {\n}\n")
    values = {name: each for name, _, each in apparmor._attachments(root, "app.service")}
    assert values["one"]["v7"] == ["/a"]
    assert values["one"]["lib"] == ["/usr/lib", "/usr/libexec", "/opt"]
    assert values["two"]["lib"] == ["/usr/lib", "/usr/libexec"]
    own = {name: len(each.maps[0]) for name, each in values.items() if isinstance(each, ChainMap)}
    assert own == {"one": 2, "two": 0}


def test_long_variables_are_kept_only_so_far(root: ImageRoot) -> None:
    put(
        root.base,
        f"{D}/tunables/long",
        f"@{{long}}={'a' * 10000}\n@{{many}}={'/b ' * 10000}\n@{{many}}+=/b\n",
    )
    put(root.base, f"{D}/one", "@{long} {\n}\n@{many} {\n}\n")
    for _, attachment, values in apparmor._attachments(root, "app.service"):
        assert sum(map(len, values[attachment[2:-1]])) < 1 << 13
        assert apparmor._meant(attachment, values) == ["**"]


def test_a_budget_for_what_one_attachment_means(monkeypatch: pytest.MonkeyPatch) -> None:
    several = "/{a,b}/{c,d}/{e,f}"
    assert len(apparmor._meant(several, {})) == 8
    monkeypatch.setattr(apparmor, "_MOST_MEANT_CHARACTERS", 100)
    assert apparmor._meant(several, {}) == ["**"]


def test_the_paths_that_init_looks_for(root: ImageRoot) -> None:
    """With another configuration, the application may start a program that the reference boot did not."""
    put(root.base, f"{D}/usr.bin.tcpdump", "profile tcpdump /usr/bin/tcpdump {\n}\n")
    put(root.base, f"{D}/many", "profile many /{,usr/}sbin/{a,b?}** {\n}\nprofile named {\n}\n")
    put(root.base, f"{D}/by-variable", "@{bin}/chronyd {\n}\n")
    put(root.base, f"{D}/off", "/usr/bin/off {\n}\n")
    put(root.base, f"{D}/disable/off", "")
    assert confined_paths(root).decode().splitlines() == [
        *("/bin/chronyd", "/sbin/a*", "/sbin/b*", "/sbin/chronyd", "/usr/bin/chronyd", "/usr/bin/tcpdump"),
        *("/usr/sbin/a*", "/usr/sbin/b*", "/usr/sbin/chronyd"),
    ]
    (root.base / ENABLED[1:]).unlink()
    assert confined_paths(root) == b""


def test_too_many_paths_for_init(root: ImageRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root.base, f"{D}/a", "/usr/bin/one {\n}\n/usr/bin/two {\n}\n")
    monkeypatch.setattr(apparmor, "_MAX_PACKED_CHARACTERS", 20)
    with pytest.raises(UnsupportedUnitError, match="confines more paths than 20 characters"):
        confined_paths(root)
