"""The launch agent's stream: messages in pieces of any size, and bytes that are no message."""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quickstart.errors import GuestError
from quickstart.guest import Exit, Hello, Message, Output
from quickstart.launch import channel as channels
from quickstart.launch.channel import Channel, Decoder
from quickstart.model import Beacon, Counters, ReadyStamp

NUMBERS = st.integers(0, 10**15)
WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)
INTERFACES = st.from_regex(r"[a-z][a-z0-9._@-]{0,14}", fullmatch=True)
ADDRESSES = st.ip_addresses(v=4).map(str)


def decode(pieces: Iterable[bytes]) -> list[Message]:
    decoder = Decoder()
    return [message for piece in pieces for message in decoder.feed(piece, 7)]


def single_bytes(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def encode(message: Message) -> bytes:
    match message:
        case Hello(version):
            return b"hello %d\n" % version
        case Beacon():
            return f"beacon {message.uptime_ns} {message.interface} {message.address}\n".encode()
        case ReadyStamp():
            return f"ready {message.uptime_ns} {message.answer}\n".encode()
        case Counters(uptime_ns, tsc, text):
            return f"counters {uptime_ns} {tsc} {len(text)}\n{text}".encode()
        case Output(stream, data):
            return f"{stream} {len(data)}\n".encode() + data
        case Exit(status):
            return b"exit %d\n" % status


MESSAGES = st.one_of(
    st.just(Hello(2)),
    st.builds(Beacon, NUMBERS, INTERFACES, ADDRESSES, st.just(7)),
    st.builds(ReadyStamp, NUMBERS, st.lists(WORDS, max_size=4).map(" ".join), st.just(7)),
    st.builds(Counters, NUMBERS, NUMBERS, st.text("cpu vda0123\n", max_size=60)),
    st.builds(Output, st.sampled_from(["out", "err"]), st.binary(max_size=60)),
    st.builds(Exit, st.integers(0, 255)),
)


@settings(max_examples=100)
@given(st.lists(MESSAGES, max_size=8), st.data())
def test_the_cuts_do_not_count(messages: list[Message], data: st.DataObject) -> None:
    stream = b"".join(encode(message) for message in messages)
    cut = data.draw(st.integers(0, len(stream)))
    assert decode([stream]) == messages
    assert decode(single_bytes(stream)) == messages
    assert decode([stream[:cut], stream[cut:]]) == messages


def test_two_beacons() -> None:
    stream = b"beacon 5 eth0 10.0.2.15\nbeacon 9 ens3 10.0.2.16\n"
    assert decode([stream]) == [Beacon(5, "eth0", "10.0.2.15", 7), Beacon(9, "ens3", "10.0.2.16", 7)]


def test_an_answer_is_only_what_can_be_printed() -> None:
    stream = "ready 5 HTTP/1.1 200 \x1b]52;c;cm0=\x07 \u202eOK\n".encode()
    assert decode([stream]) == [ReadyStamp(5, "HTTP/1.1 200 ?]52;c;cm0=? ?OK", 7)]


def test_a_command_may_say_no_more_than_its_limit() -> None:
    ours, agent = socket.socketpair()
    channel, out = Channel(ours), io.BytesIO()
    with agent:
        agent.sendall(b"out 4\nabcdout 4\nefgherr 4\nijklexit 0\n")
        with pytest.raises(GuestError, match="more than 8 bytes"):
            channel.execute("yes", out, out, 10, lambda: True, 8)
        assert out.getvalue() == b"abcdefgh"
        agent.sendall(b"out 4\nabcderr 4\nefghexit 0\n")
        assert list(channel.messages(time.monotonic_ns() + 10**8, lambda: True))
    channel.close()


def test_a_guest_that_floods_fills_no_memory() -> None:
    """Messages without end, and one that never ends: what waits for its rest is never more than a message."""
    decoder = Decoder()
    for _ in range(2000):
        assert len(list(decoder.feed(b"out 16000\n" + bytes(16000), 7))) == 1
        assert len(decoder._pending) == 0
    assert list(decoder.feed(b"out 65536\n", 7)) == []
    for _ in range(65535):
        assert list(decoder.feed(b"x", 7)) == []
    assert len(decoder._pending) < 1 << 17
    assert len(list(decoder.feed(b"x", 7))) == 1


def test_output_may_look_like_messages() -> None:
    assert decode([b"out 7\nexit 1\nexit 2\n"]) == [Output("out", b"exit 1\n"), Exit(2)]
    assert decode([b"err 0\nout 3\n\n\n\nexit 0\n"]) == [
        Output("err", b""),
        Output("out", b"\n\n\n"),
        Exit(0),
    ]


def test_an_unfinished_message_waits() -> None:
    assert decode([b"exit 1"]) == []
    assert decode([b"out 5\nabcd"]) == []


def test_the_largest_message_of_the_agent() -> None:
    body = bytes(range(256)) * 64
    assert decode(single_bytes(b"out 16384\n" + body)) == [Output("out", body)]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "hello",
        "hello 1",
        "hello 2 1",
        "hello x",
        "HELLO 2",
        "beacon 1 eth0",
        "beacon x eth0 10.0.0.1",
        "beacon 1 eth0 10.0.0.1 more",
        "beacon 1 eth0 10.0.0",
        "beacon 1 eth0 ::1",
        "beacon 1 eth0 $(reboot)",
        "beacon 1 ../../x 10.0.0.1",
        "beacon 1 \x1b]0;title\x07 10.0.0.1",
        "beacon 1 a\tb 10.0.0.1",
        "beacon 1 abcdefghijklmnop 10.0.0.1",
        "beacon -1 eth0 10.0.0.1",
        "beacon nan eth0 10.0.0.1",
        "ready -5 x",
        "ready 1e9 x",
        "counters 1 -2 0",
        "counters " + "9" * 4000 + " 1 0",
        "ready",
        "ready x HTTP/1.1 200 OK",
        "exit",
        "exit -1",
        "exit 1_0",
        "exit +1",
        "exit ٣",
        "exit 1\r",
        "out",
        "out x",
        "out 0 5",
        "counters 1 2",
        "counters 1 2 -3",
        "counters 1 x 0",
        # A negative length must not send the decoder round and round.
        "out -7",
        "err -100",
        "out 99999999999",
        "exit " + "9" * 5000,
        "login: ",
        "\xff\xfe",
    ],
)
def test_what_is_no_message(line: str) -> None:
    for pieces in ([f"{line}\n".encode()], single_bytes(f"{line}\n".encode())):
        with pytest.raises(GuestError):
            decode(pieces)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_without_end(end: bytes) -> None:
    stream = b"ready 1 " + b"x" * 5000 + end
    for pieces in ([stream], single_bytes(stream)):
        with pytest.raises(GuestError, match="sends no lines"):
            decode(pieces)


def test_messages_before_a_fault_arrive() -> None:
    decoder, found = Decoder(), []
    with pytest.raises(GuestError):
        for message in decoder.feed(b"hello 2\nexit 3\nnonsense\n", 7):
            found.append(message)
    assert found == [Hello(2), Exit(3)]


def test_a_channel_is_busy_until_the_command_has_ended() -> None:
    ours, agent = socket.socketpair()
    channel = Channel(ours)
    with agent:
        assert not channel.busy
        channel.start("sh")
        assert agent.recv(100) == b"exec 2\nsh"
        assert channel.busy
        agent.sendall(b"out 1\nxexit 3\n")
        messages = channel.messages(time.monotonic_ns() + 10**10, lambda: True)
        assert [next(messages), next(messages)] == [Output("out", b"x"), Exit(3)]
        assert not channel.busy
    channel.close()


def test_a_command_is_no_longer_than_the_agent_takes_it() -> None:
    """Some are made of what a guest has said."""
    ours, agent = socket.socketpair()
    channel = Channel(ours)
    with agent, pytest.raises(GuestError, match=r"70000 bytes.*at most 65536"):
        channel.start("x" * 70_000)
    assert not channel.busy
    channel.close()


def test_a_guest_that_is_gone_makes_no_other_error() -> None:
    """QEMU was killed: before a command of ours, and with one that it had not read."""
    sink = io.BytesIO()
    for unread in (False, True):
        ours, agent = socket.socketpair()
        channel = Channel(ours)
        if unread:
            channel.start("true")
        agent.close()
        assert list(channel.messages(time.monotonic_ns() + 10**10, lambda: True)) == []
        assert channel.execute("true", sink, sink, 10, lambda: True) is None
        channel.close()


def test_a_guest_that_reads_no_command_blocks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers before it was asked, again and again, until what was sent fills the connection."""
    monkeypatch.setattr(channels, "SEND_LIMIT_S", 0.1)
    ours, agent = socket.socketpair()
    channel, sink = Channel(ours), io.BytesIO()
    ended = threading.Event()

    def ask_on() -> None:
        status: int | None = 0
        while status is not None:
            agent.sendall(b"exit 0\n")
            status = channel.execute("x" * 65_536, sink, sink, 60, lambda: True)
        ended.set()

    asking = threading.Thread(target=ask_on, daemon=True)
    asking.start()
    try:
        assert ended.wait(60)
        assert channel.busy
    finally:
        agent.close()
        asking.join(60)
        channel.close()


def test_what_the_agent_said_is_shown_in_short() -> None:
    """With many blanks, a terminal would show the end on a line of its own."""
    said = f"x{' ' * 60}quickstart run: the image is signed{'y' * 1000}\n"
    with pytest.raises(GuestError, match=r"said x (\\x20)+quickstart run: the image is signedy*…$") as caught:
        decode([said.encode()])
    assert len(caught.value.message) < 500
