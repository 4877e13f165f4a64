"""Programs of this host that unpack an image, as debootstrap does, see and change the image alone."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from quickstart.reference import confine
from tests.contract.confinebox import AS_ROOT, KEPT, Box, furnish, opened
from tests.contract.ordinary import ordinary_user


class Unpacking:
    """Runs programs of the host that have an image as their target."""

    def __init__(self, box: Box) -> None:
        self._box = box

    def shell(self, script: str) -> list[str]:
        self._box.log.unlink(missing_ok=True)
        words = ("sh", "-c", script)
        confine.run_in(
            self._box.tree, words, self._box.program, self._box.log, {}, network=True, host_tools=True
        )
        return self._box.log.read_text().splitlines()


@pytest.fixture
def unpacking(box: Box) -> Unpacking:
    return Unpacking(box)


def test_a_program_of_the_host_sees_programs_and_the_image_alone(unpacking: Unpacking, tree: Path) -> None:
    """As debootstrap, which unpacks packages of an archive that somebody else may have signed."""
    roots = {
        "bin",
        "dev",
        "etc",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "proc",
        "root",
        "sbin",
        "sys",
        "target",
        "tmp",
        "usr",
    }
    assert set(unpacking.shell("ls -A /")) <= roots
    allowed = {
        "alternatives",
        "apt",
        "gai.conf",
        "group",
        "host.conf",
        "hosts",
        "ld.so.cache",
        "nsswitch.conf",
        "passwd",
        "resolv.conf",
    }
    assert set(unpacking.shell("ls -A /etc")) <= {*allowed, "wgetrc"}
    assert set(unpacking.shell("ls -A /root /sys /tmp; ls /target")) >= {path.name for path in tree.iterdir()}


def test_a_program_of_the_host_writes_to_the_image_alone(unpacking: Unpacking, tree: Path) -> None:
    said = unpacking.shell(
        """
        for place in / /usr /usr/bin /etc /etc/alternatives /root /sys /proc/sys/kernel; do
            touch "$place/quickstart-test" 2>/dev/null && echo "$place"
        done
        for file in /etc/hosts /etc/resolv.conf /usr/bin/env /dev/null; do
            chmod --reference="$file" "$file" 2>/dev/null && echo "$file"
        done
        mkdir /target/made && touch /target/made/file && chown 33:34 /target/made/file && chmod 4755 /target/made/file
        mknod /target/made/disk b 7 0 2>/dev/null && echo mknod
        mount -t tmpfs none /tmp 2>/dev/null && echo mount
        grep -E '^(CapEff|Seccomp):' /proc/self/status
        """
    )
    assert [line.split() for line in said] == [["CapEff:", f"{KEPT:016x}"], ["Seccomp:", "2"]]
    status = (tree / "made/file").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (33, 34, 0o4755)


def test_the_nodes_for_debootstrap_do_not_stay(unpacking: Unpacking, tree: Path) -> None:
    assert {"console", "null", "ptmx"} <= set(unpacking.shell("ls /target/dev"))
    assert not list((tree / "dev").iterdir())


@pytest.mark.parametrize("name", ["usr", "bin", "etc"])
def test_links_of_the_image_lead_a_program_of_the_host_nowhere(
    unpacking: Unpacking, tree: Path, tmp_path: Path, name: str
) -> None:
    """A package has a link where another has a directory: tar(1) refuses most of that; this is where none is refused."""
    (outside := tmp_path / "outside").mkdir()
    shutil.rmtree(tree / name, ignore_errors=True)
    (tree / name).symlink_to(outside)
    assert unpacking.shell(f"touch /target/{name}/x 2>/dev/null && echo written; :") == []
    assert not list(outside.iterdir())


def test_an_ordinary_user_unpacks_as_well(probe: Path) -> None:
    with tempfile.TemporaryDirectory() as name, ordinary_user(opened(Path(name))) as user:
        furnish(user.home / "image", probe)
        shutil.chown(user.home / "image", *[user.home.stat().st_uid] * 2)
        log = user.home / "log"
        script = "touch /target/made && ls /target/dev/null && command -v debootstrap"
        as_root = AS_ROOT.replace("log, {})", "log, {}, network=True, host_tools=True)")
        words = (
            sys.executable,
            "-c",
            as_root,
            user.home / "image",
            log,
            user.home / "store",
            "sh",
            "-c",
            script,
        )
        done = user.run(*words, timeout_s=120)
        assert done.returncode == 0, done.stderr.decode()
        assert log.read_text().splitlines() == ["/target/dev/null", "/usr/sbin/debootstrap"]
        assert (user.home / "image/made").stat().st_uid == user.home.stat().st_uid
