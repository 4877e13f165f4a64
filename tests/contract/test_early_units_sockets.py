"""Sockets that are enabled after the build: systemd binds them before it starts a service."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.enabled import enabled_text
from tests.contract.test_early_units import NOTHING, OWN, PACKAGES, early, link, put, root

__all__ = ["root"]


@pytest.mark.parametrize(
    ("listens", "named"),
    [
        ("/run/x.sock", False),
        ("/run/hidden.sock", True),
        ("/var/run/hidden.sock", True),
        ("%t/hidden.sock", True),
        *(("/run//hidden.sock", True), ("/run/./hidden.sock", True), ("/var//run/././hidden.sock", True)),
        *(
            ("//run/x.sock", False),
            ("/run/./x.sock", False),
            ("/run//x.sock\nSymlinks=/run/y /run/hidden.sock", True),
        ),
        # With its directory, which is not there before, either.
        ("/run/hidden/x.sock", True),
        ("/run/hidden.sock.x", False),
        ("%S/x", True),
        ("/run/%n", True),
        ("80", False),
        ("[::]:1023", False),
        ("127.0.0.1:1024", True),
        ("4369", True),
        ("04369", True),
        ("@abstract", True),
        ("@name:22", True),
        ("/run/../tmp/x", True),
        *(
            ("/tmp/x", True),
            ("/var/tmp/x", True),
            ("/dev/shm/x", True),
            ("%t/lock/x", True),
            ("/var/lock/x", True),
        ),
        ("vsock::80", False),
        ("vsock:2:x", True),
    ],
)
def test_a_socket_that_is_to_be_bound_before_a_service(root: Path, listens: str, named: bool) -> None:
    """systemd binds it before it starts a service: nobody else has its port then, and who hides its path does not see it."""
    hidden = ("/run/hidden", "/run/hidden.sock")
    (root / "known").write_bytes(enabled_text(ImageRoot(root), "app.service", hidden=hidden))
    put(root, f"{PACKAGES}/new.socket", f"[Socket]\nListenStream=\nListenStream={listens}\n")
    put(root, f"{PACKAGES}/new.service", "[Service]\nExecStart=/bin/new\n")
    link(root, f"{OWN}/sockets.target.wants/new.socket")
    assert early(root) == ((f"{OWN}/sockets.target.wants/new.socket",) if named else NOTHING)


@pytest.mark.parametrize(
    "place",
    ["etc/sysctl.conf", "etc/sysctl.d/x.conf", "usr/local/lib/sysctl.d/x.conf", "usr/lib/sysctl.d/x.conf"],
)
def test_a_port_that_any_user_may_bind_by_a_setting(root: Path, place: str) -> None:
    (root / "known").write_bytes(enabled_text(ImageRoot(root), "app.service"))
    put(root, f"{PACKAGES}/new.socket", "[Socket]\nListenStream=443\n")
    put(root, f"{PACKAGES}/new.service", "[Service]\nExecStart=/bin/new\n")
    link(root, f"{OWN}/sockets.target.wants/new.socket")
    assert early(root) == NOTHING
    put(root, place, "net.ipv4.ip_unprivileged_port_start = 80\n")
    assert early(root) == (f"{OWN}/sockets.target.wants/new.socket",)


def test_a_socket_behind_a_link_of_the_volume(root: Path) -> None:
    """The link may lead to what the application's unit hides."""
    put(root, f"{PACKAGES}/new.socket", "[Socket]\nListenStream=/var/lib/way/x.sock\n")
    put(root, f"{PACKAGES}/new.service", "[Service]\nExecStart=/bin/new\n")
    texts = [enabled_text(ImageRoot(root), "app.service", hidden=hidden) for hidden in ((), ("/run/x",))]
    link(root, f"{OWN}/sockets.target.wants/new.socket")
    for known, is_link, named in ((texts[0], True, False), (texts[1], False, False), (texts[1], True, True)):
        (root / "known").write_bytes(known)
        way = root / "var/lib/way"
        way.parent.mkdir(parents=True, exist_ok=True)
        way.unlink(missing_ok=True)
        if is_link:
            way.symlink_to("/run")
        assert early(root) == ((f"{OWN}/sockets.target.wants/new.socket",) if named else NOTHING)


def test_sockets_of_other_kinds(root: Path) -> None:
    put(root, f"{PACKAGES}/new.socket", "[Socket]\nListenNetlink=kobject-uevent 1\nListenSpecial=/dev/x\n")
    link(root, f"{OWN}/sockets.target.wants/new.socket")
    assert early(root) == NOTHING
    put(root, f"{PACKAGES}/new.socket", "[Socket]\nListenFIFO=/run/x y\n")
    assert early(root) == (f"{OWN}/sockets.target.wants/new.socket",)
