"""The launch agent's messages on a console."""

from __future__ import annotations

import pytest

from quickstart.errors import GuestError
from quickstart.launch.spoken import BEGIN, spoken
from quickstart.model import Beacon, Counters, ReadyStamp

BODY = "cpu  1 2 3\n 259 0 nvme0n1 10 0 80 0\n"
MESSAGES = (
    "beacon 5000 eth0 192.0.2.1\n",
    "beacon 6000 eth0 192.0.2.2\n",
    "ready 7000 HTTP/1.1 200 OK\n",
    f"counters 7100 99 {len(BODY)}\n{BODY}",
)


def on_console(*messages: str) -> str:
    return "".join(f"\r\n{BEGIN}{line}\r\n" for message in messages for line in message.splitlines())


def test_the_messages_among_other_lines() -> None:
    kernel = "[    4.123456] random: crng init done\r\n"
    text = f"{kernel}{on_console(*MESSAGES)}\r\nDebian GNU/Linux 12 web ttyS0\r\n\r\nweb login: "
    assert spoken(text) == (
        Beacon(6000, "eth0", "192.0.2.2", 0),
        ReadyStamp(7000, "HTTP/1.1 200 OK", 0),
        Counters(7100, 99, BODY),
    )


def test_a_line_of_the_kernel_in_the_middle_of_one() -> None:
    text = on_console(*MESSAGES)
    middle = text.index("HTTP/1.1") + 4
    torn = f"{text[:middle]}[    4.123456] random: crng init done\r\n{text[middle:]}"
    found = spoken(torn)
    assert found is not None
    assert found[1].answer == "HTTP/1.1 200 OK"


def test_not_everything_is_there_yet() -> None:
    text = on_console(*MESSAGES)
    assert spoken("") is None
    for end in range(0, len(text) - 2, 7):
        assert spoken(text[:end]) is None, text[:end]


@pytest.mark.parametrize(
    "text",
    [
        on_console("ready x\n"),
        on_console("ready 7000 HTTP/1.1 200 OK\n", "counters 1 2 999999\n"),
        on_console("ready 7000 x\n", "counters 7100 99 1\na\n"),
        on_console("rm -rf /\n"),
    ],
)
def test_what_is_not_the_agents(text: str) -> None:
    with pytest.raises(GuestError):
        spoken(text)


def test_a_console_without_end() -> None:
    """Whatever a machine writes, the work has an end."""
    assert spoken(on_console(MESSAGES[0]) * 20_000) is None
