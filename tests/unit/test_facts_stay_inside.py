"""What is compared of an image is the image's own, wherever its links lead on this host."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import StartSetError
from quickstart.initramfs.build import root_mount
from quickstart.initramfs.facts import watched
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import StartSet
from tests.unit.unitreader import put


def test_a_link_to_a_directory_of_the_host(tmp_path: Path) -> None:
    """Names, sizes and times of the host's files would come into the archive, which anybody may read."""
    outside, image = tmp_path / "outside", tmp_path / "image"
    (outside / "x86-64-v2").mkdir(parents=True)
    (outside / "x86-64-v2/secret").write_text("secret")
    put(image, "/usr/lib/systemd/system/app.service", "[Service]\nExecStart=/bin/a\n")
    (image / "usr/lib/glibc-hwcaps").symlink_to(outside)
    found = watched(ImageRoot(image), ("app.service",), StartSet((), ()), ())
    assert not [each.path for each in found.files if each.path.name == "secret"]
    # The link itself counts, and what it leads to in the image.
    assert PurePosixPath("/usr/lib/glibc-hwcaps") in [each.path for each in found.files]


@pytest.mark.parametrize("is_there", [True, False])
def test_the_options_of_the_root_volume_are_the_images(tmp_path: Path, is_there: bool) -> None:
    outside, root = tmp_path / "outside", ImageRoot(tmp_path / "image")
    put(outside, "/fstab", "UUID=1 / ext4 the-hosts 0 1\n")
    root.base.mkdir()
    (root.base / "etc").symlink_to(outside)
    if is_there:
        put(root.base, f"{outside}/fstab", "UUID=1 / ext4 the-images 0 1\n")
        assert root_mount(root) == ("ext4", "the-images")
    else:
        with pytest.raises(StartSetError, match="no root volume"):
            root_mount(root)


@pytest.mark.parametrize(
    ("options", "own"),
    [
        ("rw,discard,x-systemd.growfs,errors=remount-ro", "rw,discard,errors=remount-ro"),
        ("x-a", "defaults"),
        ("auto,noatime,nouser", "noatime"),
    ],
)
def test_options_for_programs_are_not_the_kernels(tmp_path: Path, options: str, own: str) -> None:
    put(tmp_path, "/etc/fstab", f"UUID=1 / ext4 {options} 0 1\n")
    assert root_mount(ImageRoot(tmp_path)) == ("ext4", own)
