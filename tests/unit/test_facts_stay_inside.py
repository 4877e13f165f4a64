"""What is compared of an image is the image's own, wherever its links lead on this host."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from quickstart.initramfs.facts import watched
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import StartSet
from tests.unit.test_unit import put


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
