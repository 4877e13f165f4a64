"""Package sources from what the host's apt knows."""

from __future__ import annotations

import pytest

from quickstart.reference.sources import Sources, parse_proxy, parse_targets

TARGETS = """\
http://security.example/debian-security bookworm-security main
http://deb.example/debian bookworm main
http://deb.example/debian bookworm contrib
http://deb.example/debian bookworm-updates main
http://other.example/x trixie main
http://deb.example/debian bookworm main
"""


def test_the_suite_then_its_updates() -> None:
    found = parse_targets(TARGETS, "bookworm")
    assert found.mirror == "http://deb.example/debian"
    assert found.lines == (
        "deb http://deb.example/debian bookworm main",
        "deb http://deb.example/debian bookworm-updates main",
        "deb http://security.example/debian-security bookworm-security main",
    )


def test_a_suite_that_the_host_does_not_know() -> None:
    assert parse_targets(TARGETS, "sid") == Sources("", ())
    assert parse_targets("", "bookworm") == Sources("", ())
    assert parse_targets("E: something went wrong here\n", "bookworm") == Sources("", ())


@pytest.mark.parametrize(
    "uri",
    [
        "https://deb.example/debian",
        "mirror+file:/etc/apt/mirrors/debian.list",
        "http://me:secret@deb.example/d",
    ],
)
def test_what_a_minimal_debian_cannot_fetch_from_or_must_not_keep(uri: str) -> None:
    assert parse_targets(f"{uri} bookworm main\n", "bookworm") == Sources("", ())


def test_the_hosts_proxy() -> None:
    assert parse_proxy("PROXY='http://proxy.example:3142'\n") == "http://proxy.example:3142"
    assert parse_proxy("PROXY='DIRECT'\n") == ""
    assert parse_proxy("") == ""
