"""The options of `quickstart profile new`: valid and invalid ones."""

from __future__ import annotations

from typing import Any

import pytest

from quickstart.errors import (
    BadInputError,
    ProfileError,
)
from quickstart.newprofile.request import first_draft, parse_ready


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("http:80/", {"kind": "http", "port": 80, "path": "/", "status": 200}),
        ("http:8080", {"kind": "http", "port": 8080, "path": "/", "status": 200}),
        ("http:80/a?b=c:d", {"kind": "http", "port": 80, "path": "/a?b=c:d", "status": 200}),
        ("tcp:11211", {"kind": "tcp", "port": 11211}),
        ("exec:test -S /run/x:y", {"kind": "exec", "command": "test -S /run/x:y"}),
    ],
)
def test_ready(text: str, table: dict[str, Any]) -> None:
    assert parse_ready(text) == table
    assert first_draft("a", ["bb"], "a", table, "bookworm", 5).ready.kind == table["kind"]


@pytest.mark.parametrize(
    "text", ["", "http", "http:", "http:x/", "http:80x", "tcp:80/", "tcp:", "exec:", "exec: ", "udp:1", "80"]
)
def test_no_ready(text: str) -> None:
    with pytest.raises(BadInputError, match="is none of http:PORT/PATH, tcp:PORT or exec:COMMAND"):
        parse_ready(text)


def test_a_status_is_for_http() -> None:
    assert parse_ready("http:80/", 404)["status"] == 404
    with pytest.raises(BadInputError, match="--status"):
        parse_ready("tcp:80", 200)


def test_all_faults_of_the_options_at_once() -> None:
    with pytest.raises(ProfileError) as caught:
        first_draft("App", ["A B"], "x.socket", parse_ready("tcp:70000"), "bookworm", 600)
    assert sorted(each.split(":")[0] for each in caught.value.problems) == [
        "name",
        "packages[0]",
        "ready.port",
        "unit",
    ]


@pytest.mark.parametrize(
    ("given_name", "unit"),
    [("nginx", "nginx.service"), ("php8.2-fpm", "php8.2-fpm.service"), ("a@b.service", "a@b.service")],
)
def test_a_unit_without_its_type(given_name: str, unit: str) -> None:
    assert first_draft("a", ["bb"], given_name, parse_ready("tcp:1"), "bookworm", 600).unit == unit
