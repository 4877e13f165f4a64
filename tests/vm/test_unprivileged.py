"""An ordinary user can do everything. A user without subordinate ids can look inside an artefact of his own, and run it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from quickstart.store.store import Store, default_root, source_digest
from tests.contract.ordinary import UID, User, is_host_root, ordinary_user
from tests.vm.conftest import BOOT_S, BUILD_S, COMMAND, Called

NOBODY = "65534"


def as_nobody(home: Path, *words: str | Path, temporary: Path | None = None) -> Called:
    """Run the command as another user. Of root's power it keeps reading, so that it finds itself wherever the checkout is."""
    capabilities = "-all,+dac_read_search"
    done = subprocess.run(
        [
            *("setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"),
            *("--inh-caps", capabilities, "--ambient-caps", capabilities, "--bounding-set", capabilities),
            *(str(COMMAND), *(str(word) for word in words)),
        ],
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "TMPDIR": str(temporary or home)},
        capture_output=True,
        timeout=BOOT_S,
        check=False,
    )
    return Called(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory of nobody's own, outside pytest's, which nobody else may enter."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(["chown", f"{NOBODY}:{NOBODY}", place], check=True)
        yield Path(place)


def test_ones_own_artefact(artefact: Path, home: Path) -> None:
    mine = home / "nginx"
    subprocess.run(["cp", "-a", "--sparse=always", artefact, mine], check=True)
    subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", mine], check=True)
    assert "fast/usr/sbin/nginx" in as_nobody(home, "ls", mine).out
    assert as_nobody(home, "cat", mine, "/fast/quickstart/config").out
    # Nobody opens it below /fast, so the volume's file is the only one.
    stays = as_nobody(home, "cat", mine, "/etc/nginx/nginx.conf", "--json")
    assert (stays.status, stays.error["kind"]) == (2, "BadInputError")
    assert "stays on the root volume" in stays.error["message"]
    assert "trace: exec by nginx" in as_nobody(home, "why", mine, "/usr/sbin/nginx").out
    assert as_nobody(home, "audit", mine).out.endswith(": clean\n")
    # A directory whose name is too long for a socket, and that QEMU would take for an option's end.
    deep = home / ("temporary, and long" * 6)
    deep.mkdir()
    # As /tmp is: in one without the sticky bit anybody could swap what lies there.
    deep.chmod(0o1777)
    ran = as_nobody(home, "run", mine, "--exec", "readlink /proc/$(cat /run/nginx.pid)/exe", temporary=deep)
    assert ran.out == "/fast/usr/sbin/nginx\n", ran.err
    assert list(deep.iterdir()) == []


def test_a_build_says_at_once_what_it_needs(home: Path) -> None:
    for verb in (("build", "--profile", "nginx", "-o", home / "out"), ("trace", "--profile", "nginx")):
        called = as_nobody(home, *verb, "--json")
        assert (called.status, called.error["kind"]) == (3, "NeedsRootError")
        assert "usermod" in called.error["hint"]
    # Nothing was begun: no store, no OUT.
    assert list(home.iterdir()) == []


# As root of the user namespace: what comes home belongs to the user's subordinate ids.
UNPACK = """
import os, sys
from quickstart.host.userns import become_root
become_root()
os.makedirs(sys.argv[1] + "/base", mode=0o700)
os.chmod(sys.argv[1], 0o755)
os.execvp("tar", ["tar", "-x", "-p", "--numeric-owner", "--xattrs", "--xattrs-include=*", "-C", sys.argv[1]])
"""


@pytest.fixture
def builder() -> Iterator[User]:
    """An ordinary user with subordinate ids and an empty home, outside pytest's directories, which nobody else may enter."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        with ordinary_user(place) as user:
            yield user


def seeded(user: User) -> Path:
    """The user's store with the base image of root's, which a debootstrap of his own makes just so (test_debootstrap_too)."""
    recipe = source_digest("quickstart.reference")
    bases = (path for path, inputs in Store(default_root()).marks("base") if inputs["recipe"] == recipe)
    store = user.home / ".cache/quickstart"
    base = next(bases).relative_to(default_root())
    argv = [
        "tar",
        "-C",
        str(default_root()),
        "-c",
        "--numeric-owner",
        "--xattrs",
        "--xattrs-include=*",
        str(base),
    ]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as packing:
        done = user.run(sys.executable, "-c", UNPACK, store, stdin=packing.stdout, timeout_s=300)
    assert (done.returncode, packing.returncode) == (0, 0), done.stderr
    return store


def called(user: User, *words: str | Path, timeout_s: float = BOOT_S) -> Called:
    done = user.run(COMMAND, *words, timeout_s=timeout_s)
    return Called(done.returncode, done.stdout.decode(), done.stderr.decode())


def disk_of(store: Path, image_hash: str) -> str:
    """The SHA-256 of the reference image's root disk as this QuickStart makes it. It is read as root, of whomever it is."""
    entries = ((path, json.loads(path.read_text())["inputs"]) for path in store.glob("disk/*/entry.json"))
    made_here = {"image": image_hash, "recipe": source_digest("quickstart.image")}
    (disk,) = (path.with_name("root.raw") for path, inputs in entries if made_here.items() <= inputs.items())
    with disk.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def same_as_roots(user: User, artefact: Path, store: Path) -> None:
    """What root builds, and the user: the same image, the same bytes on disk."""
    ours, theirs = (json.loads((out / "manifest.json").read_text()) for out in (artefact, user.home / "out"))
    assert theirs["image_hash"] == ours["image_hash"]
    assert disk_of(store, theirs["image_hash"]) == disk_of(default_root(), ours["image_hash"])


def test_the_main_job_as_an_ordinary_user(artefact: Path, builder: User) -> None:
    """Build, run, look, and clean up, without root; the package's scripts and the traced boot are the user's own."""
    store = seeded(builder)
    out = builder.home / "out"
    built = called(builder, "build", "--profile", "nginx", "-o", out, "--json", timeout_s=BUILD_S)
    assert built.status == 0, built.err
    assert "made again" not in built.err
    if is_host_root():
        assert {path.lstat().st_uid for path in (out, *out.iterdir())} == {UID}
    same_as_roots(builder, artefact, store)
    ran = called(builder, "run", out, "--check", "--snapshot", "--json")
    assert ran.status == 0, ran.err
    # Made in the namespace, used outside of it.
    assert "made again" not in ran.err
    assert called(builder, "audit", out).out.endswith(": clean\n")
    assert called(builder, "build", "--profile", "nginx", "-o", out, "--json").result["made"] is False
    # Files of subordinate ids too.
    assert called(builder, "cache", "gc", "--days", "0").status == 0
    assert list(store.glob("*/*")) == []


@pytest.mark.full
def test_debootstrap_too(artefact: Path, builder: User) -> None:
    out = builder.home / "out"
    built = called(builder, "build", "--profile", "nginx", "-o", out, "--json", timeout_s=BUILD_S)
    assert built.status == 0, built.err
    same_as_roots(builder, artefact, builder.home / ".cache/quickstart")
