"""The package that owns a file: names under a merged /usr, diversions, alternatives, and a damaged database."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quickstart.inspect.dpkg import installed, owners
from quickstart.inspect.imageroot import ImageRoot

STATUS = """\
Package: coreutils
Status: install ok installed
Architecture: amd64
Version: 9.1-1
Description: tools
 Package: not-a-field

Package: libc6
Status: install ok installed
Architecture: amd64
Multi-Arch: same
Version: 2.36-9

Package: mawk
Status: install ok installed
Architecture: amd64
Version: 1.3.4-3

Package: dash
Status: install ok installed
Architecture: amd64
Version: 0.5.12-2
"""
ALTERNATIVE = """\
auto
/usr/bin/awk
awk.1.gz
/usr/share/man/man1/awk.1.gz
nawk
/usr/bin/nawk

/usr/bin/mawk
5
/usr/share/man/man1/mawk.1.gz
/usr/bin/mawk

"""
DATABASE = {
    "status": STATUS,
    "diversions": "/bin/sh\n/bin/sh.distrib\ndash\n",
    "info/coreutils.list": "/.\n/bin\n/bin/ls\n/bin/sh\n/usr\n/usr/bin\n/usr/bin/odd \n",
    "info/coreutils.md5sums": "/usr/bin/awk\n",
    "info/dash.list": "/bin\n/bin/sh\n/bin/dash\n",
    "info/libc6:amd64.list": "/lib\n/lib/x\n/lib/x/libc.so.6\n/usr/bin/caf\udce9\n",
    "info/mawk.list": "/usr/bin/mawk\n",
    "info/gone.list": "/usr/bin/gone\n",
    "alternatives/awk": ALTERNATIVE,
}
PATHS = (
    *("bin/ls", "bin/sh", "bin/sh.distrib", "bin/odd ", "bin/mawk", "bin/gone", "bin/own"),
    *("bin/caf\udce9", "lib/x/libc.so.6"),
)


@pytest.fixture
def root(tmp_path: Path) -> ImageRoot:
    for name in ("bin", "lib"):
        (tmp_path / "usr" / name).mkdir(parents=True)
        (tmp_path / name).symlink_to(f"usr/{name}")
    (tmp_path / "usr/lib/x").mkdir()
    for path in PATHS:
        (tmp_path / "usr" / path).touch()
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    for link, target in (
        ("etc/alternatives/awk", "/bin/mawk"),
        ("etc/alternatives/nawk", "/usr/bin/own"),
        ("etc/alternatives/hand-made", "/usr/bin/mawk"),
        ("usr/bin/awk", "/etc/alternatives/awk"),
        ("usr/bin/nawk", "/etc/alternatives/nawk"),
        ("usr/bin/hand-made", "/etc/alternatives/hand-made"),
    ):
        (tmp_path / link).symlink_to(target)
    for name, text in DATABASE.items():
        write(tmp_path, name, text)
    return ImageRoot(tmp_path)


def write(base: Path, name: str, content: str | bytes) -> None:
    path = base / "var/lib/dpkg" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else os.fsencode(content))


def texts(root: ImageRoot) -> dict[str, str]:
    """The owners of every file and link of the image below /usr, /etc and /."""
    paths = [*root.below(PurePosixPath("/")), PurePosixPath("/usr/bin")]
    return {str(path): str(owner) for path, owner in owners(root, paths).items()}


EXPECTED = {
    "/usr/bin/ls": "coreutils 9.1-1",
    "/usr/bin/sh.distrib": "coreutils 9.1-1",
    "/usr/bin/odd ": "coreutils 9.1-1",
    "/usr/bin/sh": "dash 0.5.12-2",
    "/usr/bin/mawk": "mawk 1.3.4-3",
    "/usr/bin/caf\udce9": "libc6 2.36-9",
    "/usr/lib/x/libc.so.6": "libc6 2.36-9",
    "/usr/bin/awk": "alternative awk of mawk 1.3.4-3's /usr/bin/mawk",
    "/etc/alternatives/awk": "alternative awk of mawk 1.3.4-3's /usr/bin/mawk",
    "/usr/bin/nawk": "alternative nawk of no package's /usr/bin/own",
    "/etc/alternatives/nawk": "alternative nawk of no package's /usr/bin/own",
}


def test_every_owner(root: ImageRoot) -> None:
    found = texts(root)
    # A directory has as many owners as packages; nobody asks.
    assert found.pop("/usr/bin", "coreutils 9.1-1") == "coreutils 9.1-1"
    assert found == EXPECTED
    owner = owners(root, [PurePosixPath("/usr/bin/ls")])[PurePosixPath("/usr/bin/ls")]
    assert (owner.package, owner.version, owner.architecture) == ("coreutils", "9.1-1", "amd64")


def test_what_is_installed(root: ImageRoot) -> None:
    assert installed(root) == {"coreutils": "9.1-1", "dash": "0.5.12-2", "libc6": "2.36-9", "mawk": "1.3.4-3"}


def test_a_packages_directory_that_is_a_link_in_the_image_has_no_owner(root: ImageRoot) -> None:
    assert owners(root, [PurePosixPath("/lib"), PurePosixPath("/bin")]) == {}


def test_a_local_diversion_diverts_the_file_of_every_package(root: ImageRoot) -> None:
    write(root.base, "diversions", "/bin/ls\n/bin/own\n:\n")
    found = texts(root)
    assert "/usr/bin/ls" not in found
    assert found["/usr/bin/own"] == "coreutils 9.1-1"


def test_an_image_without_dpkg(tmp_path: Path) -> None:
    assert installed(ImageRoot(tmp_path)) == {}
    (tmp_path / "x").touch()
    assert owners(ImageRoot(tmp_path), [PurePosixPath("/x")]) == {}


NAMED = {path for path, text in EXPECTED.items() if "no package" not in text}
AWK = {"/usr/bin/awk", "/etc/alternatives/awk"}


@pytest.mark.parametrize(
    ("name", "content", "lost"),
    [
        ("status", "", NAMED),
        ("status", STATUS[:-2], {"/usr/bin/sh"}),
        ("status", STATUS.replace("2.36-9", "2\x1b[31m"), {"/usr/bin/caf\udce9", "/usr/lib/x/libc.so.6"}),
        (
            "status",
            STATUS.replace("Version: 9.1-1\n", ""),
            {f"/usr/bin/{name}" for name in ("ls", "sh.distrib", "odd ")},
        ),
        ("info/mawk.list", "/usr/bin/mawk", {"/usr/bin/mawk", *AWK}),
        ("info/mawk.list", b"\xff\0\n//\n/..\nusr/bin/mawk\n/loop/a/mawk\n", {"/usr/bin/mawk", *AWK}),
        ("diversions", "/bin/sh\n/bin/sh.distrib\n", NAMED),
        ("alternatives/awk", ALTERNATIVE[:30], AWK),
    ],
)
def test_damage_takes_owners_away_and_does_no_more(
    root: ImageRoot, name: str, content: str | bytes, lost: set[str]
) -> None:
    (root.base / "loop").symlink_to("loop")
    write(root.base, name, content)
    found = {path: text for path, text in texts(root).items() if path != "/usr/bin"}
    assert {path for path, text in found.items() if "no package" not in text} == NAMED - lost
    assert not found.keys() - EXPECTED.keys()


@pytest.mark.parametrize("name", [name for name in DATABASE if not name.endswith("md5sums")])
@pytest.mark.parametrize("kind", ["fifo", "directory", "loop", "missing"])
def test_a_database_file_that_is_no_file(root: ImageRoot, name: str, kind: str) -> None:
    path = root.base / "var/lib/dpkg" / name
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    assert set(texts(root).values()) <= {*EXPECTED.values(), *NO_PACKAGE, "coreutils 9.1-1"}


# What is said of an alternative whose file has lost its owner.
NO_PACKAGE = ("alternative awk of no package's /usr/bin/mawk",)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60)
@given(st.sampled_from(sorted(DATABASE)), st.binary(max_size=60))
def test_garbage_in_the_database_stops_nothing(root: ImageRoot, name: str, content: bytes) -> None:
    before = (root.base / "var/lib/dpkg" / name).read_bytes()
    write(root.base, name, content)
    try:
        texts(root)
    finally:
        write(root.base, name, before)
