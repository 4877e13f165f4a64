"""Name services that may put a unit's user into groups of which the starter knows nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.facts import deciding
from tests.unit.unitreader import SERVICE, put, read

PLACES = ("/etc/userdb", "/usr/lib/userdb", "/usr/local/lib/userdb")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    put(tmp_path, "/etc/passwd", "mysql:x:106:112::/:\n")
    put(tmp_path, "/etc/group", "mysql:x:112:\n")
    return tmp_path


@pytest.mark.parametrize("text", ["User=mysql", "Group=mysql", "SupplementaryGroups=mysql"])
@pytest.mark.parametrize(
    ("switch", "other"),
    [
        ("passwd: files systemd\ngroup: files [SUCCESS=merge] systemd # extrausers\nhosts: files dns\n", ""),
        ("passwd: compat\ngroup: compat\n", ""),
        # Whether a daemon answers a unit that does not come after it, no stock boot says.
        ("passwd: files sss\ngroup: files sss\n", ""),
        ("passwd: files extrausers\ngroup: files\n", "extrausers"),
        ("group: files extrausers\n", "extrausers"),
        ("initgroups: files db\n", "db"),
    ],
)
def test_other_name_services(base: Path, text: str, switch: str, other: str) -> None:
    put(base, "/etc/nsswitch.conf", switch)
    read(base, SERVICE)
    if not other:
        read(base, f"{SERVICE}{text}\n")
        return
    with pytest.raises(UnsupportedUnitError, match=f"nsswitch.conf also names {other}, which may know"):
        read(base, f"{SERVICE}{text}\n")


def test_lines_that_ask_another_name_service(base: Path) -> None:
    put(base, "/etc/nsswitch.conf", "group: compat\n")
    put(base, "/etc/group", "mysql:x:112:\n+ssl:::mysql\n")
    with pytest.raises(UnsupportedUnitError, match="also names compat"):
        read(base, f"{SERVICE}User=mysql\n")


@pytest.mark.parametrize("place", PLACES)
def test_members_by_systemds_records(base: Path, place: str) -> None:
    put(base, f"{place}/postgres:ssl-cert.membership", "")
    put(base, f"{place}/mysql:ssl-cert.membership", "")
    text = f"{SERVICE}User=mysql\n"
    # Nobody asks systemd's name service.
    read(base, text)
    put(base, "/etc/nsswitch.conf", "group: files systemd\n")
    for user in ("mysql", "106"):
        with pytest.raises(UnsupportedUnitError, match=f"gets groups from {place}/.*:ssl-cert"):
            read(base, text.replace("mysql", user))
    (base / place[1:] / "mysql:ssl-cert.membership").unlink()
    read(base, text)


@pytest.mark.parametrize("text", ["User=mysql", "Group=mysql", "SupplementaryGroups=mysql", ""])
def test_a_later_name_service_is_noticed(base: Path, text: str) -> None:
    read(base, f"{SERVICE}{text}\n")
    found = deciding(ImageRoot(base), "app.service")
    assert ("/etc/nsswitch.conf" in map(str, found.files)) is bool(text)
    assert ({*PLACES} <= {*map(str, found.places)}) is bool(text)
