"""quickstart-guest and dpkg-deb(1), dpkg(1): it is a valid package, and our installation leaves the same files as dpkg's."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from quickstart.reference.guest import place
from quickstart.reference.guestpkg.package import NAME, deb, guest_package

OTHERS = "Package: {}\nStatus: install ok installed\nMaintainer: x\nArchitecture: all\nVersion: 1\nDescription: x\n\n"
# What dpkg makes for itself, and writes the same again.
ITS_OWN = {"available", "lock", "lock-frontend", "status-old", "triggers/Lock", "triggers/Unincorp"}


def run(*words: str | Path) -> str:
    if shutil.which(str(words[0])) is None:
        pytest.fail(f"{words[0]} is not installed: apt-get install dpkg")
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=60, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def package(tmp_path: Path) -> Path:
    path = tmp_path / "package.deb"
    path.write_bytes(deb(guest_package()))
    return path


def root_of(tmp_path: Path, name: str) -> Path:
    """A root with dpkg's database of two other packages, one before ours by name and one behind it."""
    tree = tmp_path / name
    for each in ("info", "updates", "triggers"):
        (tree / "var/lib/dpkg" / each).mkdir(parents=True)
    (tree / "var/lib/dpkg/info/format").write_text("1\n")
    (tree / "var/lib/dpkg/available").touch()
    (tree / "var/lib/dpkg/status").write_text(OTHERS.format("aaa") + OTHERS.format("zzz"))
    for each in ("aaa", "zzz"):
        (tree / f"var/lib/dpkg/info/{each}.list").write_text("/.\n")
        (tree / f"var/lib/dpkg/info/{each}.md5sums").touch()
    return tree


def files(tree: Path) -> Mapping[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(tree)): (path.stat().st_mode, path.read_bytes())
        for path in sorted(tree.rglob("*"))
        if path.is_file() and str(path.relative_to(tree)).removeprefix("var/lib/dpkg/") not in ITS_OWN
    }


def dpkg(tree: Path, *words: str | Path) -> str:
    return run("dpkg", f"--root={tree}", "--force-script-chrootless", "--log=/dev/null", *words)


def test_dpkg_deb_reads_it(package: Path) -> None:
    assert run("dpkg-deb", "-f", package, "Package", "Architecture", "Depends").splitlines() == [
        f"Package: {NAME}",
        "Architecture: all",
    ]
    listing = run("dpkg-deb", "-c", package)
    for name in ("./usr/sbin/quickstart", "./usr/lib/systemd/system-shutdown/quickstart"):
        assert f"{name}\n" in listing
    assert "interest-noawait /usr/lib\n" in run("dpkg-deb", "-I", package, "triggers")


def test_placed_is_as_installed(package: Path, tmp_path: Path) -> None:
    """Every file of the root and of dpkg's database, byte for byte, with its mode."""
    installed, placed = root_of(tmp_path, "installed"), root_of(tmp_path, "placed")
    dpkg(installed, "--install", package)
    assert place(placed)
    found, expected = files(placed), files(installed)
    assert found.keys() == expected.keys()
    assert {name for name in found if found[name] != expected[name]} == set()
    assert f"etc/kernel/postinst.d/zz-{NAME.removesuffix('-guest')}" in found


def test_dpkg_finds_what_was_placed_whole_and_takes_it_away(package: Path, tmp_path: Path) -> None:
    tree = root_of(tmp_path, "tree")
    assert place(tree)
    assert dpkg(tree, "--verify", NAME) == ""
    assert dpkg(tree, "--audit") == ""
    # Over a placed one, as an upgrade would come.
    dpkg(tree, "--install", package)
    assert dpkg(tree, "--verify", NAME) == ""
    dpkg(tree, "--purge", NAME)
    assert [name for name in files(tree) if "quickstart" in name] == []
    assert not (tree / "var/lib/dpkg/triggers/File").exists()
