"""A machine with packed files at /fast and the guest package's tools, in a root of its own (as root: it mounts)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path

import pytest

from quickstart.host.namespaces import own_namespaces
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.enabled import enabled_text

BUILD = "0123456789abcdef0123456789abcdef"
ODD = ("opt/app/a b", 'opt/app/it\'s "x"', "opt/app/two\nlines", "opt/app/\\back", "opt/app/b\xe9")
Machine = Callable[[str], str]
# PID 1 of its namespace, with /fast as init leaves it: a directory of another file system, bound.
BEGIN = """\
set -eu
# Its root is a mount of its own, over that of the namespace, and shared, as systemd makes it.
mount --bind "$1" "$1"
cd "$1"
for name in usr; do mount --bind "/$name" "$name"; done
mount -t proc proc proc
mount -t tmpfs -o mode=755 dev dev
for name in null zero urandom; do : >"dev/$name"; mount --bind "/dev/$name" "dev/$name"; done
: >dev/kmsg
ln -s /proc/self/fd dev/fd
mkdir -p initramfs
mount -t tmpfs initramfs initramfs
cp -a packed initramfs/fast
mount --bind initramfs/fast fast
mount --move . /
mount --make-shared .
exec chroot . /usr/bin/env -i PATH=/tool:/usr/sbin:/usr/bin:/sbin:/bin sh -eu -c "$2"
"""
CHANGE = "printf X | dd of=/opt/app/program bs=1 conv=notrunc 2>/dev/null"
FAILS = "&& exit 9 || :"
DIRECTORIES = (
    *("usr", "proc", "dev", "etc", "tmp", "fast", "var/lib", "opt/app", "tool"),
    *("opt/place", "packed/quickstart/bin"),
)


@pytest.fixture
def machine(tmp_path: Path, caretaker: Path) -> Machine:
    """Runs a script in a root whose packed files are below /opt/app; it has to succeed."""
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they mount")
    root = tmp_path / "root"
    _make_root(root)
    shutil.copy(caretaker, root / "packed/quickstart/bin/caretaker")
    _pack(root)

    def run(script: str) -> str:
        done = subprocess.run(
            [*own_namespaces(), "sh", "-c", BEGIN, "sh", str(root), script],
            capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr).decode(errors="replace")
        return done.stdout.decode(errors="replace")

    return run


def _make_root(root: Path) -> None:
    """The directories of the volume, with the guest package's scripts in /tool."""
    for name in DIRECTORIES:
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "etc/machine-id").write_text(f"{'0' * 31}1\n")
    for each in resources.files("quickstart.reference.guestpkg").joinpath("scripts").iterdir():
        target = root / "tool" / each.name
        target.write_bytes(each.read_bytes())
        target.chmod(0o755)


def _pack(root: Path) -> None:
    """Files of the volume, and the lists by which init compares them."""
    packed = root / "packed/quickstart"
    names = ["opt/app/program", "opt/app/link", *ODD]
    (root / "opt/app/link").symlink_to("program")
    for name in names[:1] + names[2:]:
        (root / name).write_text("packed")
    (root / "opt/place/entry").write_text("there")
    (packed / "part-b").write_text(f"{BUILD}\n")
    (packed / "packed.names").write_bytes(_list((*names, "opt/app/absent")))
    (packed / "packed.places").write_bytes(_list(("opt/place", "opt/no place")))
    ways = (".", "opt", "opt/app")
    (packed / "packed.ways").write_bytes(_list(ways))
    rows = _facts(root, "%f %s %Y %Z %n", (*names, "opt/place/entry")) + _facts(root, "%f %u %g 0 %n", ways)
    (packed / "packed.stat").write_bytes(rows)
    # The machine has the host's own units.
    (packed / "packed.units").write_bytes(enabled_text(ImageRoot(Path("/")), "none.service"))
    for name in ("early-units", "settings-files"):
        script = resources.files("quickstart.initramfs").joinpath("init", name)
        (packed / name).write_bytes(script.read_bytes())


def _list(names: Iterable[str]) -> bytes:
    return b"".join(os.fsencode(name) + b"\0" for name in names)


def _facts(root: Path, form: str, names: Iterable[str]) -> bytes:
    return subprocess.run(
        ["stat", "-c", form, "--", *names], cwd=root, capture_output=True, check=True, timeout=60
    ).stdout
