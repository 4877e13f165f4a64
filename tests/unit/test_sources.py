"""Package sources from the configuration of the host's apt."""

from __future__ import annotations

import pytest

from quickstart.reference.sources import Sources, parse_proxy, parse_targets, side_by_side

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


def test_another_suite_of_the_same_archives() -> None:
    """Only where the archive carries it: one that has a single suite is left out."""
    asked = []

    def carries(uri: str, codename: str) -> bool:
        asked.append((uri, codename))
        return uri != "http://other.example/x"

    beside = side_by_side(TARGETS, "forky", carries)
    assert parse_targets(beside, "forky") == Sources(
        "http://deb.example/debian",
        (
            "deb http://deb.example/debian forky main",
            "deb http://deb.example/debian forky-updates main",
            "deb http://security.example/debian-security forky-security main",
        ),
    )
    assert sorted(asked) == [
        ("http://deb.example/debian", "forky"),
        ("http://deb.example/debian", "forky-updates"),
        ("http://other.example/x", "forky"),
        ("http://security.example/debian-security", "forky-security"),
    ]
    assert side_by_side(TARGETS, "forky", lambda uri, codename: False) == ""


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
