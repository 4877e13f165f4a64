"""Conditions and Asserts of a unit, in the form in which the starter checks them during the boot."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.unit import conditions
from quickstart.inspect.unit.conditions import condition_records
from tests.unit.unitreader import SERVICE, put, read

Record = tuple[str, ...]

# glob.h
_GLOB_NOSORT, _GLOB_BRACE = 1 << 2, 1 << 10


def records(*lines: str, unit: str = "app.service") -> list[Record]:
    assigned = tuple((name, value) for name, _, value in (line.partition("=") for line in lines))
    return [record[1:] for record in condition_records(unit, assigned)]


def test_each_condition_of_a_path_is_looked_at() -> None:
    assert records(
        "Description=x",
        "ConditionPathExists=/etc/app.conf",
        "ConditionDirectoryNotEmpty=|!/srv",
        "AssertFileNotEmpty=/etc/%n",
    ) == [
        ("Condition", "PathExists", "no", "no", "/etc/app.conf"),
        ("Condition", "DirectoryNotEmpty", "yes", "yes", "/srv"),
        ("Assert", "FileNotEmpty", "no", "no", "/etc/app.service"),
    ]


def test_an_empty_one_clears_its_whole_list() -> None:
    assert records(
        "ConditionPathExists=/a", "AssertPathExists=/b", "ConditionHost=x", "ConditionFileNotEmpty="
    ) == [("Assert", "PathExists", "no", "no", "/b")]


def test_what_holds_in_every_machine_of_the_image_is_left_out() -> None:
    assert records("ConditionVirtualization=!container", "ConditionCapability=CAP_SYS_TIME") == []
    # It triggers the list, so no other trigger matters.
    assert records("ConditionUser=|root", "ConditionPathExists=|/a", "ConditionPathExists=/b") == [
        ("Condition", "PathExists", "no", "no", "/b")
    ]


def test_no_condition_is_compared_with_all_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit file of a stranger's may have a hundred thousand."""

    def never(*_: object) -> bool:
        raise AssertionError("compared")

    monkeypatch.setattr(conditions._Condition, "__eq__", never)
    assert records(*(f"ConditionCapability=c{number}" for number in range(10))) == []


@pytest.mark.parametrize(
    "line",
    [
        # Of this machine, its launch or this moment; of what systemd mounts and makes later.
        *("ConditionVirtualization=kvm", "ConditionHost=web1", "ConditionMemory=>=1G", "ConditionACPower=true"),
        *("ConditionKernelCommandLine=fast", "ConditionFirstBoot=yes", "AssertCPUs=4", "ConditionNeedsUpdate=/etc"),
        *("ConditionPathIsMountPoint=/srv", "ConditionPathExists=/run/app", "AssertPathExists=/var/run/app"),
        *("ConditionPathExistsGlob=/etc/{a", "ConditionPathExistsGlob={/run,/etc}/a"),
        *("ConditionPathExists=app.conf", "ConditionSomethingNew=x"),
    ],
)  # fmt: skip
def test_what_cannot_be_known_before_systemd_refuses_the_early_start(line: str) -> None:
    with pytest.raises(UnsupportedUnitError, match=line.partition("=")[0]):
        records(line)


def test_braces_of_a_pattern_are_expanded() -> None:
    assert records("ConditionPathExistsGlob=!/lib/main.{c[vl]d,inc}") == [
        (
            "Condition",
            "PathExistsGlob",
            "yes",
            "no",
            "/lib/main.{c[vl]d,inc}",
            "/lib/main.c[vl]d",
            "/lib/main.inc",
        )
    ]
    assert records("ConditionPathExistsGlob=/a*") == [("Condition", "PathExistsGlob", "no", "no", "/a*")]


@pytest.mark.parametrize(
    ("pattern", "expanded"),
    [
        ("/{a,b}/{c,d}", ("/a/c", "/a/d", "/b/c", "/b/d")),
        ("/{a,{b,c}d}", ("/a", "/bd", "/cd")),
        ("/{a,}x", ("/ax", "/x")),
        ("/{a}", ("/a",)),
        *((text, ()) for text in ("/a{", "/a}", "/{a,b", "/{}", "/\\{a,b}", "/}a,b{", "{a,b}" * 7)),
    ],
)
def test_what_a_pattern_with_braces_stands_for(pattern: str, expanded: tuple[str, ...]) -> None:
    assert sorted(conditions.braces_expanded(pattern)) == sorted(expanded)


@pytest.mark.parametrize("pattern", ["{a,b}/{c,d}", "{a,{b,c}d}", "{a,}x", "{a}", "[ab]{x,}", "{b,a*}"])
def test_glibc_expands_a_pattern_in_the_same_way(tmp_path: Path, pattern: str) -> None:
    for name in ("a/c", "a/d", "b/c", "e/c", "bd", "cd", "ax", "x", "bx", "dx"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    expanded = conditions.braces_expanded(f"{tmp_path}/{pattern}")
    ours = {str(each) for path in expanded for each in tmp_path.glob(path.removeprefix(f"{tmp_path}/"))}
    assert glibc_glob(f"{tmp_path}/{pattern}") == ours != set()


class Found(ctypes.Structure):
    """The first members of glob_t (glob.h)."""

    _fields_ = (
        ("count", ctypes.c_size_t),
        ("paths", ctypes.POINTER(ctypes.c_char_p)),
        ("rest", ctypes.c_char * 128),
    )


def glibc_glob(pattern: str) -> set[str]:
    """The paths that glob(3) of this host's C library finds, as systemd calls it."""
    found = Found()
    assert (
        ctypes.CDLL(None).glob(pattern.encode(), _GLOB_NOSORT | _GLOB_BRACE, None, ctypes.byref(found)) == 0
    )
    return {path.decode() for path in found.paths[: found.count] if path}


@pytest.mark.parametrize(
    "line",
    [
        "ConditionArchitecture=|arm64",
        "ConditionCapability=|CAP_SYS_ADMIN",
        "ConditionKernelVersion=|>=6",
        "ConditionPathExists=|/etc/a/../c",
        "ConditionPathExists=/etc/a/../c",
        "ConditionPathExists=!/run/off",
        "ConditionPathExists=!/dev/kvm",
        "ConditionPathIsDirectory=!/sys/module/x",
        "ConditionPathExistsGlob=/etc/app/.*",
    ],
)
def test_a_condition_of_which_the_reference_boot_says_nothing(line: str) -> None:
    """Beside another triggering condition, it may have been false in the reference boot."""
    with pytest.raises(UnsupportedUnitError):
        records(line, "ConditionPathExists=|/etc/enabled")


def test_a_triggering_condition_that_is_always_true() -> None:
    assert records("ConditionArchitecture=|x86-64", "ConditionPathExists=|/etc/enabled") == []


def test_another_blank_is_a_part_of_the_path() -> None:
    (found,) = records("ConditionPathExists=|/etc/a\u00a0")
    assert found[-1] == "/etc/a\u00a0"


@pytest.mark.parametrize(
    ("where", "assigned", "named"),
    [
        ("usr/lib/systemd/system/gate.target", "Requires=gate.target\nAfter=gate.target", "gate.target"),
        ("etc/systemd/system/gate.target.d/a.conf", "Requires=gate.target", "gate.target"),
        ("usr/lib/systemd/system/inner.socket", "Requires=gate.target", "inner.socket"),
        ("etc/systemd/system/sysinit.target.d/a.conf", "", "sysinit.target"),
        ("usr/lib/systemd/system/web.slice", "Description=x\n[Service]\nSlice=web.slice", "web.slice"),
        ("etc/systemd/system/-.slice.d/a.conf", "", "-.slice"),
    ],
)
def test_an_assertion_of_what_the_unit_needs_is_refused(
    tmp_path: Path, where: str, assigned: str, named: str
) -> None:
    """When it fails, systemd does not start the unit. A condition that does not hold skips the target, and the unit starts."""
    for name in ("gate.target", "sysinit.target"):
        put(tmp_path, f"usr/lib/systemd/system/{name}", "[Unit]\nRequires=inner.socket\n")
    put(
        tmp_path,
        "usr/lib/systemd/system/inner.socket",
        "[Socket]\nListenStream=/run/inner\nService=other.service\n",
    )
    unit = f"[Unit]\n{assigned}\n{SERVICE}"
    for line, is_refused in (
        ("ConditionPathExists=/etc/approved", False),
        ("AssertPathExists=", False),
        ("AssertPathExists=/etc/approved", True),
    ):
        put(
            tmp_path,
            where,
            f"[Unit]\n{line}\nRequires=inner.socket\n" if where.endswith("target") else f"[Unit]\n{line}\n",
        )
        if not is_refused:
            read(tmp_path, unit)
            continue
        with pytest.raises(UnsupportedUnitError, match=rf"{named}.*Assert"):
            read(tmp_path, unit)


def test_an_assertion_of_the_unit_s_own_socket_is_init_s_to_check(tmp_path: Path) -> None:
    put(
        tmp_path,
        "usr/lib/systemd/system/app.socket",
        "[Unit]\nAssertPathExists=/etc/x\n[Socket]\nListenStream=80\n",
    )
    link = tmp_path / "etc/systemd/system/sockets.target.wants/app.socket"
    link.parent.mkdir(parents=True)
    link.symlink_to("/usr/lib/systemd/system/app.socket")
    unit = read(tmp_path, f"[Unit]\nRequires=app.socket\n{SERVICE}")
    assert any("/etc/x" in record for record in unit.settings)


@pytest.mark.parametrize(
    "need", ["BindsTo", "Requires=gate.target\nBindsTo", "BindsTo=gate.target\nRequires"]
)
def test_a_condition_of_what_has_to_be_active_is_refused(tmp_path: Path, need: str) -> None:
    """A unit that was skipped is not active."""
    put(tmp_path, "usr/lib/systemd/system/gate.target", "[Unit]\nConditionPathExists=/etc/approved\n")
    with pytest.raises(
        UnsupportedUnitError, match=r"gate\.target, which starts only with ConditionPathExists"
    ):
        read(tmp_path, f"[Unit]\n{need}=gate.target\nAfter=gate.target\n{SERVICE}")


@pytest.mark.parametrize("name", ["gate.target", "gate.socket"])
@pytest.mark.parametrize("key", ["Requisite", "RequisiteOverridable"])
def test_what_has_to_be_active_already_is_refused(tmp_path: Path, key: str, name: str) -> None:
    """`systemctl disable` of that unit would keep this one from its start, and nothing notices it."""
    put(tmp_path, f"usr/lib/systemd/system/{name}", "[Unit]\n")
    with pytest.raises(
        UnsupportedUnitError, match=f"{key}={name} lets it start only if another unit is active"
    ):
        read(tmp_path, f"[Unit]\n{key}={name}\nAfter={name}\n{SERVICE}")


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("etc/systemd/system/web.slice.d/a.conf", "[Unit]\nRequiresMountsFor=/srv\n"),
        ("etc/systemd/system/web.slice.d/a.conf", "[Unit]\nBindTo=guard.service\n"),
        ("etc/systemd/system/web.slice.requires/guard.service", ""),
        ("etc/systemd/system/system.slice.requires/guard.service", ""),
        ("etc/systemd/system/slice.requires/guard.service", ""),
    ],
)
def test_what_a_slice_requires_is_refused(tmp_path: Path, where: str, text: str) -> None:
    read(tmp_path, f"{SERVICE}Slice=web.slice\n")
    put(tmp_path, where, text)
    own = "" if "system.slice" in where else "Slice=web.slice\n"
    with pytest.raises(UnsupportedUnitError, match=r"its slice (web|system|-)\.slice"):
        read(tmp_path, f"{SERVICE}{own}")


def test_a_slice_that_is_required_and_has_a_drop_in_only(tmp_path: Path) -> None:
    put(tmp_path, "etc/systemd/system/web.slice.d/a.conf", "[Unit]\nAssertPathExists=/etc/approved\n")
    with pytest.raises(UnsupportedUnitError, match=r"web\.slice, which starts only with Assert"):
        read(tmp_path, f"[Unit]\nRequires=web.slice\n{SERVICE}")
