"""debootstrap's two stages both run under the confiner, and none runs on the host directly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from quickstart.errors import BadInputError, CommandError, HostLacksError, ReferenceImageError
from quickstart.host import door
from quickstart.host.files import full_disk_named
from quickstart.model import MIB
from quickstart.reference import debootstrap
from quickstart.reference.sources import Sources


class Calls:
    """What is run of an image, and how; nothing is run."""

    def __init__(self) -> None:
        self.seen: list[tuple[tuple[str, ...], dict[str, object]]] = []

    def run_in(self, root: Path, argv: Sequence[str], *_: object, **how: object) -> None:
        self.seen.append((tuple(argv), how))


def test_both_stages_are_confined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()

    def refused(argv: Sequence[object], **_: object) -> None:
        raise AssertionError(f"run by the host itself: {argv}")

    monkeypatch.setattr(door, "run", refused)
    monkeypatch.setattr(debootstrap, "run_in", calls.run_in)
    image = debootstrap._Image(tmp_path / "root", tmp_path / "confiner", tmp_path / "log")
    debootstrap._debootstrap(image, "bookworm", Sources("http://mirror.example/debian", ()))
    first = (
        "debootstrap",
        "--foreign",
        "--variant=minbase",
        # Else it takes an unsigned archive on a host without a keyring.
        "--force-check-gpg",
        "bookworm",
        "/target",
        "http://mirror.example/debian",
    )
    assert calls.seen == [
        (first, {"network": True, "host_tools": True}),
        (("/debootstrap/debootstrap", "--second-stage"), {}),
    ]
    # The confiner mounts a /dev there.
    assert [oct(path.stat().st_mode & 0o777) for path in (image.root, image.root / "dev")] == ["0o755"] * 2


@pytest.mark.parametrize(
    ("status", "tail", "kind"),
    [
        (125, "confiner: root of the image could change the host's interpreter", HostLacksError),
        (1, "E: No such script: /usr/share/debootstrap/scripts/none", BadInputError),
    ],
)
def test_what_failed_is_named(status: int, tail: str, kind: type[Exception]) -> None:
    error = debootstrap._debootstrap_failed("none", CommandError(("debootstrap",), status, tail))
    assert isinstance(error, kind)
    if kind is HostLacksError:
        assert tail in str(error)


@pytest.mark.parametrize(("free_mib", "is_full"), [(20, True), (4000, False)])
def test_a_full_disk_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_mib: int, is_full: bool
) -> None:
    """Even when debootstrap has removed what did not fit, and says only that it could not download it."""
    monkeypatch.setattr(debootstrap, "free_bytes", lambda _: free_mib * MIB)
    tail = "E: Couldn't download dists/bookworm/main/binary-amd64/Packages"
    failed = CommandError(("debootstrap",), 1, tail)
    kind = HostLacksError if is_full else ReferenceImageError
    with pytest.raises(kind), full_disk_named(tmp_path, "the store", "free some space there"):
        raise debootstrap._debootstrap_failed("none", failed) from debootstrap._cause(tmp_path, failed)


@pytest.mark.parametrize(
    ("keyring", "hint"),
    [
        ("debian-archive-keyring.gpg", "apt-get install debian-archive-keyring"),
        ("ubuntu-archive-keyring.gpg", "apt-get install ubuntu-keyring"),
        ("of-somebody.gpg", "install the package that has this file"),
    ],
)
def test_without_a_keyring_no_archive_is_trusted(keyring: str, hint: str) -> None:
    tail = (
        f"W: Cannot check Release signature; keyring file not available /usr/share/keyrings/{keyring}\n"
        "E: Keyring-based check was requested; aborting accordingly\n"
    )
    error = debootstrap._debootstrap_failed("none", CommandError(("debootstrap",), 1, tail))
    assert isinstance(error, HostLacksError)
    assert f"/usr/share/keyrings/{keyring}" in error.message
    assert error.hint == hint
