"""Policies and settings of a stock boot that apply before services: an early start would escape them."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.before import settling_files, settling_places
from tests.unit.test_before import enable
from tests.unit.unitreader import SERVICE, put, read


@pytest.mark.parametrize(
    "policy",
    [
        "/etc/ima/ima-policy",
        "/usr/sbin/tomoyo-init",
        "/etc/ipe/a.p7b",
        "/usr/local/lib/ipe/b.p7b",
        "/usr/lib/ipe/c.p7b",
    ],
)
def test_a_policy_of_the_kernel_s_is_not_escaped(tmp_path: Path, policy: str) -> None:
    """systemd, or the kernel at the stock init, loads it; a program that runs by then was neither measured nor confined."""
    read(tmp_path, SERVICE)
    assert policy in places_and_files(tmp_path)
    put(tmp_path, policy, "appraise func=BPRM_CHECK fowner=0\n")
    with pytest.raises(UnsupportedUnitError, match=f"{policy} is there"):
        read(tmp_path, SERVICE)


def places_and_files(root: Path) -> set[str]:
    """What is compared at each boot; of a directory in it, all entries."""
    image = ImageRoot(root)
    places = {str(each) for each in settling_places(image)}
    own = {f"{place}/{name}" for place in places for name in ("a.p7b", "b.p7b", "c.p7b")}
    return own | {str(each) for each in settling_files(image)}


def test_what_starts_before_the_one_that_checks_programs_is_not_checked(tmp_path: Path) -> None:
    """fapolicyd has no default dependencies, and is ordered before nothing."""
    put(tmp_path, "/usr/lib/systemd/system/fapolicyd.service", "[Unit]\nDefaultDependencies=no\n")
    read(tmp_path, SERVICE)
    enable(tmp_path, "fapolicyd.service", "multi-user.target")
    with pytest.raises(UnsupportedUnitError, match=r"fapolicyd\.service is enabled, and what starts before"):
        read(tmp_path, SERVICE)


@pytest.mark.parametrize("place", ["/etc/credstore", "/usr/lib/credstore", "/etc/credstore.encrypted"])
def test_credentials_that_are_settings_of_the_machine(tmp_path: Path, place: str) -> None:
    """systemd-sysctl and systemd-tmpfiles read them before services start (LoadCredential= of their units)."""
    put(tmp_path, f"{place}/app.token", "x")
    read(tmp_path, SERVICE)
    assert place in {str(each) for each in settling_places(ImageRoot(tmp_path))}
    put(tmp_path, f"{place}/sysctl.extra", "kernel.yama.ptrace_scope=3\n")
    with pytest.raises(UnsupportedUnitError, match=r"sysctl\.extra has settings"):
        read(tmp_path, SERVICE)


def test_a_name_of_a_policy_is_no_line_of_ours(tmp_path: Path) -> None:
    put(tmp_path, "/etc/ipe/a\nquickstart: run this.p7b", "")
    with pytest.raises(UnsupportedUnitError) as caught:
        read(tmp_path, SERVICE)
    assert "\n" not in f"{caught.value.message}{caught.value.hint}"
