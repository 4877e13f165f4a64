"""Each path of the image by which `build` decides is looked at later, or the pages say that it is not (noticed.py)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from quickstart.initramfs.facts import watched
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import read_unit
from quickstart.inspect.unit.facts import VOLATILE
from quickstart.model import StartSet
from tests.unit.noticed import NOTICED, Compared, Covered, Init, Stated
from tests.unit.unitreader import put

TOP = Path(__file__).parents[2]
# A path on the root volume, or the beginning of one. What the kernel and init keep in memory is never the image's.
_PATH = re.compile(
    rf"/(?!(?:{'|'.join(VOLATILE)}|tmp|fast)(?:/|$))(?:etc|usr|var|lib|boot|system-|s?bin|force|fastboot)\S*"
)
_MORE_WORDS = re.compile(r"[(){}|\\]")
# By their own words, these units need all that any unit needs.
UNITS = {
    "app.service": (
        "[Service]\nExecStart=/usr/bin/dockerd\nDynamicUser=yes\nAppArmorProfile=-app\nSystemCallFilter=@basic-io\n"
    ),
    "openvpn@home.service": "[Service]\nExecStart=/usr/sbin/openvpn\n",
    "postgresql@15-main.service": "[Service]\nExecStart=/usr/bin/postgres\n",
    "ssh.service": "[Service]\nExecStart=/usr/sbin/sshd -D\n",
}


def said(module: Path) -> Iterator[str]:
    """The paths in the strings of a module that are no docstrings."""
    tree = ast.parse(module.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = {
        id(first.value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and isinstance(first := node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in docs:
            continue
        # Regular expressions are no paths; of braces, only glob(7)'s are.
        is_expression = _MORE_WORDS.search(node.value) and "{," not in node.value
        if _PATH.fullmatch(node.value) and not is_expression:
            yield node.value


def readers() -> list[Path]:
    """Of the modules by which `build` decides. `inspect DISK` looks at a disk before a build, and decides nothing for it."""
    disk = TOP / "quickstart/inspect/disk"
    paths = (
        path for room in ("inspect", "pack") for path in sorted((TOP / "quickstart" / room).rglob("*.py"))
    )
    return [path for path in paths if disk not in path.parents]


def test_each_path_of_a_reader_has_an_entry() -> None:
    """A new one: say in noticed.py how a later change of the file is noticed."""
    found = {path: module.name for module in readers() for path in said(module)}
    assert {path: name for path, name in found.items() if path not in NOTICED} == {}
    assert sorted(NOTICED.keys() - found.keys()) == []


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What init compares for these units."""
    base = tmp_path_factory.mktemp("image")
    for name, text in UNITS.items():
        put(base, f"/usr/lib/systemd/system/{name}", text)
    put(base, "/usr/sbin/apparmor_parser", "")
    put(base, "/usr/lib/systemd/system-generators/sshd-socket-generator", "")
    put(base, "/usr/lib/systemd/system/ssh.socket", "[Socket]\nListenStream=22\n")
    (base / "etc/systemd/system/sockets.target.wants").mkdir(parents=True)
    link = base / "etc/systemd/system/sockets.target.wants/ssh.socket"
    link.symlink_to("/usr/lib/systemd/system/ssh.socket")
    found = watched(ImageRoot(base), tuple(UNITS), StartSet((), ()), ())
    return {str(path) for path in (*found.names, *found.places)}


@pytest.mark.parametrize("path", [path for path, noticed in NOTICED.items() if isinstance(noticed, Compared)])
def test_what_is_compared_is_in_the_lists(compared: set[str], path: str) -> None:
    """The path itself, or what is below it: of a beginning, any path with this beginning."""
    place = str(PurePosixPath(path).parent) if "*" in path else path
    beginning = place if place.endswith(("/", "-")) else f"{place}/"
    assert any(each == place or each.startswith(beginning) for each in compared)


@pytest.mark.parametrize("path", [path for path, noticed in NOTICED.items() if isinstance(noticed, Init)])
def test_what_is_read_in_each_boot_is_named_there(path: str) -> None:
    noticed = NOTICED[path]
    assert isinstance(noticed, Init)
    assert noticed.words in (TOP / noticed.file).read_text()


@pytest.mark.parametrize("path", [path for path, noticed in NOTICED.items() if isinstance(noticed, Stated)])
def test_what_nobody_looks_at_is_stated(path: str) -> None:
    noticed = NOTICED[path]
    assert isinstance(noticed, Stated)
    assert noticed.words in " ".join((TOP / noticed.page).read_text().split())


def test_what_is_covered_by_another_path_is_covered() -> None:
    covered = [noticed for noticed in NOTICED.values() if isinstance(noticed, Covered)]
    assert all(not isinstance(NOTICED[each.by], Covered) for each in covered)


def test_a_unit_s_reader_looks_at_no_other_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also at none whose path is made of parts."""
    put(tmp_path, "/usr/lib/systemd/system/app.service", "[Service]\nExecStart=/usr/bin/app\n")
    image, seen = ImageRoot(tmp_path), set[PurePosixPath]()
    resolve, glob = ImageRoot.resolve, ImageRoot.glob

    def watched_resolve(root: ImageRoot, path: PurePosixPath) -> object:
        seen.add(path)
        return resolve(root, path)

    def watched_glob(root: ImageRoot, pattern: PurePosixPath) -> object:
        seen.add(pattern)
        return glob(root, pattern)

    monkeypatch.setattr(ImageRoot, "resolve", watched_resolve)
    monkeypatch.setattr(ImageRoot, "glob", watched_glob)
    read_unit(image, "app.service")
    monkeypatch.undo()
    found = watched(image, ("app.service",), StartSet((), ()), ())
    lists = {*found.names, *found.places}
    known = {path.rstrip("/-") for path in NOTICED}

    def is_known(path: PurePosixPath) -> bool:
        ways = (path, *path.parents)
        return any(each in lists or str(each) in known for each in ways)

    assert (
        sorted(
            str(path)
            for path in seen
            if not is_known(path) and path.parts[1:2] and path.parts[1] not in VOLATILE
        )
        == []
    )
