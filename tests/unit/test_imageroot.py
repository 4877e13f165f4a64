"""Guest paths inside a host directory."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import ImageFileError, StartSetError
from quickstart.inspect import imageroot
from quickstart.inspect.imageroot import ImageRoot


def P(*paths: str) -> tuple[PurePosixPath, ...]:  # noqa: N802
    return tuple(PurePosixPath(path) for path in paths)


@pytest.fixture
def root(tmp_path: Path) -> ImageRoot:
    base = tmp_path / "image"
    (base / "usr/lib/x").mkdir(parents=True)
    (base / "usr/lib/x/libc.so.6").write_text("libc")
    (base / "lib").symlink_to("usr/lib")
    (base / "lib64").symlink_to("/lib")
    (base / "usr/lib/libc.so").symlink_to("/lib/x/libc.so.6")
    (base / "up").symlink_to("../../../../usr")
    (base / "dangling").symlink_to("usr/none")
    (base / "through").symlink_to("usr/lib/x/libc.so.6/..")
    (base / "self").symlink_to("self")
    (base / "slash").symlink_to("/")
    (tmp_path / "secret").write_text("not in the image")
    return ImageRoot(base)


@pytest.mark.parametrize(
    ("path", "canonical", "links"),
    [
        ("/", "/", ()),
        ("/usr/lib", "/usr/lib", ()),
        ("//usr//lib/.", "/usr/lib", ()),
        ("/lib/x/libc.so.6", "/usr/lib/x/libc.so.6", ("/lib",)),
        ("/lib64/libc.so", "/usr/lib/x/libc.so.6", ("/lib64", "/lib", "/usr/lib/libc.so")),
        ("/lib/../lib/x", "/usr/lib/x", ("/lib",)),
        ("/up/lib", "/usr/lib", ("/up",)),
        ("/../../usr", "/usr", ()),
        ("/../secret", None, ()),
        ("/slash/../secret", None, ("/slash",)),
        ("/slash/slash/usr", "/usr", ("/slash",)),
        ("/dangling", None, ("/dangling",)),
        ("/none", None, ()),
        ("/usr/none/..", None, ()),
        ("/usr/lib/x/libc.so.6/more", None, ()),
        ("/usr/lib/x/libc.so.6/..", None, ()),
        ("/through", None, ("/through",)),
        ("/" + "x" * 300, None, ()),
        ("/nul\0", None, ()),
        ("/\ud800", None, ()),
    ],
)
def test_resolve(root: ImageRoot, path: str, canonical: str | None, links: tuple[str, ...]) -> None:
    expected = None if canonical is None else PurePosixPath(canonical)
    found = root.resolve(PurePosixPath(path))
    assert (found.canonical, found.links) == (expected, P(*links))


@pytest.mark.parametrize(
    ("path", "existing", "missing"),
    [
        ("/usr/lib", "/usr/lib", ""),
        ("/none", "/", "none"),
        ("/up/none/../b", "/usr", "none/../b"),
        ("/lib64/x/a/b", "/usr/lib/x", "a/b"),
        ("/dangling/a", "/", "dangling/a"),
        ("/usr/lib/x/libc.so.6/more/a", "/usr/lib/x/libc.so.6", "more/a"),
        ("/usr/lib/libc.so/more", "/usr/lib/x/libc.so.6", "more"),
        ("/slash/none", "/", "none"),
        ("/through/a", "/", "through/a"),
        ("/usr/../self/a", "/", "self/a"),
        ("/" + "x/" * 2000, "/", "x/" * 1999 + "x"),
        ("/" + "x/" * 3000, "/", "x/" * 2999 + "x"),
    ],
)
def test_how_far_a_path_exists(root: ImageRoot, path: str, existing: str, missing: str) -> None:
    found = root.look_up(PurePosixPath(path))
    assert (found.existing, "/".join(found.missing)) == (PurePosixPath(existing), missing)


def test_a_circle_of_links_is_looked_up_in_vain(root: ImageRoot) -> None:
    found = root.look_up(PurePosixPath("/self/x"))
    assert (found.canonical, found.links) == (None, P("/self"))


def test_loop_names_the_path(root: ImageRoot) -> None:
    with pytest.raises(StartSetError, match=r"/self/x meets more than 40 symbolic links, the last at /self"):
        root.resolve(PurePosixPath("/self/x"))


def test_forty_links_are_no_loop(root: ImageRoot) -> None:
    for number in range(41):
        (root.base / f"l{number}").symlink_to(f"l{number + 1}")
    (root.base / "l41").touch()
    assert len(root.resolve(PurePosixPath("/l1")).links) == 40
    with pytest.raises(StartSetError, match="/l0 meets more than 40"):
        root.resolve(PurePosixPath("/l0"))


def test_relative_paths_are_refused(root: ImageRoot) -> None:
    with pytest.raises(StartSetError, match="absolute"):
        root.resolve(PurePosixPath("usr"))


def test_lookup_that_fails(root: ImageRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, *, follow_symlinks: bool) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("quickstart.inspect.imageroot.os.stat", refuse)
    with pytest.raises(StartSetError, match=r"/usr/lib cannot be looked up: .*Permission denied"):
        root.resolve(PurePosixPath("/usr/lib"))


def test_host(root: ImageRoot) -> None:
    assert root.host(PurePosixPath("/usr/lib")) == root.base / "usr/lib"
    assert root.host(PurePosixPath("/")) == root.base
    for path in ("/../secret", "usr"):
        with pytest.raises(StartSetError, match="not a canonical guest path"):
            root.host(PurePosixPath(path))


def test_read_text(root: ImageRoot) -> None:
    (root.base / "latin").write_bytes(b"caf\xe9")
    assert os.fsencode(root.read_text(PurePosixPath("/latin"))) == b"caf\xe9"
    with pytest.raises(StartSetError, match="/usr is not a regular file"):
        root.read_text(PurePosixPath("/usr"))


def test_glob(root: ImageRoot) -> None:
    conf = root.base / "etc/conf.d"
    conf.mkdir(parents=True)
    for name in ("b.conf", "a.conf", "B.conf", ".hidden.conf", "c.txt"):
        (conf / name).touch()
    (conf / "gone.conf").symlink_to("nowhere")
    (root.base / "etc/link").symlink_to("/etc/conf.d")
    spelled = P("/etc/link/B.conf", "/etc/link/a.conf", "/etc/link/b.conf")
    assert root.glob(PurePosixPath("/etc/link/*.conf")) == spelled
    assert root.glob(PurePosixPath("/etc/c*/[ab].conf")) == P("/etc/conf.d/a.conf", "/etc/conf.d/b.conf")
    assert root.glob(PurePosixPath("/etc/conf.d/.h*")) == P("/etc/conf.d/.hidden.conf")
    assert root.glob(PurePosixPath("/etc/conf.d/c.txt")) == P("/etc/conf.d/c.txt")
    for nothing in ("/etc/none", "/none/*", "/etc/conf.d/c.txt/*"):
        assert root.glob(PurePosixPath(nothing)) == ()


@pytest.mark.parametrize("kind", ["pipe", "loop", "many bytes"])
def test_a_file_of_an_image_that_is_none_is_bad_input(tmp_path: Path, kind: str) -> None:
    """It is in what the user gave, and no build of ours mends it."""
    name = "a\n  b"
    if kind == "pipe":
        os.mkfifo(tmp_path / name)
    elif kind == "loop":
        (tmp_path / name).symlink_to(name)
    else:
        (tmp_path / name).write_bytes(b"12345")
    root, path = ImageRoot(tmp_path), PurePosixPath("/", name)
    with pytest.raises(ImageFileError) as caught:
        root.read_bytes(root.resolve(path).canonical or path, 4)
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.message
    assert "build the image again" not in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["_MOST_COMPONENTS", "_MOST_READS"])
def test_an_image_whose_files_ask_for_each_other(
    root: ImageRoot, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(imageroot, name, 100)
    file = PurePosixPath("/usr/lib/file")
    root.host(file).write_text("text")

    def ask() -> None:
        for _ in range(101):
            root.read_text(file) if name == "_MOST_READS" else root.resolve(file)

    with pytest.raises(ImageFileError, match="the image's files ask for more than") as caught:
        ask()
    assert caught.value.hint
    # Another object begins anew.
    assert ImageRoot(root.base).read_text(file) == "text"
