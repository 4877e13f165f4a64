"""C and Python use the same protocol: the constants of protocol.h, and the words of the tables in C."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from quickstart.guest import Exit, Hello, Message, Output
from quickstart.initramfs import description, digests, guestconfig, layout
from quickstart.initramfs.modules import Module, ModuleSet, modloader_table
from quickstart.launch import archive, channel, spoken
from quickstart.launch.channel import Decoder
from quickstart.model import Beacon, Counters, ReadyStamp
from quickstart.volume import emulator, nbd
from quickstart.volume.storage import load_model
from tests.cprograms import OURS, PARTS, PROTOCOL

HEADER = (PROTOCOL / "protocol.h").read_text()
STARTER = PARTS / "starter"


def _value(word: str) -> str | int:
    return word[1:-1] if word.startswith('"') else int(word, 0)


CONSTANTS = {name: _value(word) for name, word in re.findall(r"^#define (\w+) (.+)$", HEADER, re.MULTILINE)}
PYTHON = {
    "AGENT_VERSION": channel.PROTOCOL,
    "AGENT_CONSOLE": archive.CONSOLE,
    "AGENT_SPEAKS": spoken.BEGIN,
    "VOLUME_LOG_MAGIC": emulator._LOG_MAGIC.decode(),
    "VOLUME_LOG_MAGIC_BYTES": len(emulator._LOG_MAGIC),
    "VOLUME_RECORD_BYTES": emulator._RECORD.size,
    "VOLUME_INSTANCES_MAX": emulator._INSTANCES_MAX,
    "NBD_LENGTH_MAX": nbd.LENGTH_MAX,
    "NBD_MAGIC": nbd._MAGIC,
    "NBD_OPTION_MAGIC": nbd._OPTION_MAGIC,
    "NBD_OPTION_REPLY_MAGIC": nbd._OPTION_REPLY_MAGIC,
    "NBD_REQUEST_MAGIC": nbd._REQUEST_MAGIC,
    "NBD_REPLY_MAGIC": nbd._REPLY_MAGIC,
    "NBD_FIXED_NEWSTYLE": nbd._FIXED_NEWSTYLE,
    "NBD_NO_ZEROES": nbd._NO_ZEROES,
    "NBD_OPT_GO": nbd._OPT_GO,
    "NBD_REP_ACK": nbd._REP_ACK,
    "NBD_REP_INFO": nbd._REP_INFO,
    "NBD_INFO_EXPORT": nbd._INFO_EXPORT,
    **{f"NBD_CMD_{command.name}": command.value for command in nbd.Command},
    "UNIT_FIRST_LINE": description.FIRST_LINE,
    "DIGESTS_MAGIC": digests._MAGIC.decode(),
    "DIGESTS_MAGIC_BYTES": len(digests._MAGIC),
    "DIGESTS_HEAD_BYTES": digests._HEAD.size,
    "DIGESTS_RECORD_BYTES": digests._RECORD.size,
    "FAST": guestconfig.Served.FAST.value,
    "FAST_OURS": f"/{layout.OURS}",
}
# The rest of a message behind the word of its constant, and what Python makes of it.
MESSAGES: dict[str, tuple[str, Message]] = {
    "AGENT_HELLO": (f" {CONSTANTS['AGENT_VERSION']}\n", Hello(channel.PROTOCOL)),
    "AGENT_BEACON": (" 5 eth0 192.0.2.1\n", Beacon(5, "eth0", "192.0.2.1", 7)),
    "AGENT_READY": (" 5 HTTP/1.1 200 OK\n", ReadyStamp(5, "HTTP/1.1 200 OK", 7)),
    "AGENT_COUNTERS": (" 5 6 3\nabc", Counters(5, 6, "abc")),
    "AGENT_OUT": (" 3\nabc", Output("out", b"abc")),
    "AGENT_ERR": (" 3\nabc", Output("err", b"abc")),
    "AGENT_EXIT": (" 3\n", Exit(3)),
}


@pytest.mark.parametrize("name", PYTHON)
def test_a_constant_is_the_same_on_both_sides(name: str) -> None:
    assert CONSTANTS[name] == PYTHON[name]


@pytest.mark.parametrize("name", MESSAGES)
def test_the_agents_messages_are_understood(name: str) -> None:
    rest, message = MESSAGES[name]
    assert list(Decoder().feed(f"{CONSTANTS[name]}{rest}".encode(), 7)) == [message]


def test_a_request_begins_with_the_word_that_the_agent_knows() -> None:
    class Port:
        said = b""

        def settimeout(self, limit_s: float | None) -> None:
            """Nobody waits here."""

        def sendall(self, data: bytes) -> None:
            self.said += data

    port = Port()
    channel.Channel(port).start("true")  # type: ignore[arg-type]
    assert port.said == f"{CONSTANTS['AGENT_EXEC']} 4\ntrue".encode()


def test_every_constant_is_compared() -> None:
    apart = {"AGENT_EXEC", "AGENT_MESSAGE_MAX"}
    assert CONSTANTS.keys() == PYTHON.keys() | MESSAGES.keys() | apart
    assert int(CONSTANTS["AGENT_MESSAGE_MAX"]) <= channel._MAX_BODY_BYTES


def test_no_constant_is_written_out_again_in_c() -> None:
    """Strings and magic numbers; a small number may be any."""
    telling = {
        f'"{value}"' if isinstance(value, str) else f"{value:#x}"
        for name, value in CONSTANTS.items()
        if ("MAGIC" in name and not name.endswith("_BYTES"))
        or name in ("UNIT_FIRST_LINE", "FAST", "FAST_OURS")
    }
    found = [
        (path.name, word)
        for path in OURS.rglob("*.[ch]")
        if path.name != "protocol.h"
        for word in telling
        if word in path.read_text().lower() or word in path.read_text()
    ]
    assert found == []


def _table(path: Path, begin: str) -> list[str]:
    """The words that begin the rows of the table after ``begin``."""
    text = path.read_text().split(begin, 1)[1].split("};", 1)[0]
    return re.findall(r'\{\s*"([^"]+)"', text)


def _words(path: Path, begin: str) -> list[str]:
    """All words of the list after ``begin``."""
    return re.findall(r'"([^"]+)"', path.read_text().split(begin, 1)[1].split("};", 1)[0])


def _python_words(*folders: Path) -> set[str]:
    """Every text that is written in the modules of the folders."""
    trees = (ast.parse(path.read_text()) for folder in folders for path in sorted(folder.glob("*.py")))
    return {
        node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


STEPS = _table(STARTER / "steps.c", "STEPS[]")
FACTS = _words(STARTER / "steps.c", "FACTS[]")


def test_the_volume_takes_the_figures_that_it_is_given() -> None:
    given = [word.partition("=")[0] for word in emulator._words(load_model("local"), None, 1)]
    assert sorted(given) == sorted(_table(OURS / "volume/emulator/volume.c", "figures[]"))


def test_the_builder_knows_each_key_and_mount_of_a_description() -> None:
    known = _python_words(OURS / "inspect/unit", PARTS, OURS / "engines", OURS / "pack")
    mounts = _table(STARTER / "mounts.c", "KINDS[]")
    assert len(STEPS) > 20 and len(FACTS) > 20 and len(mounts) > 10
    # Without this key the starter has a limit of its own; the tests shorten it.
    assert {*STEPS, *FACTS, *mounts} - known == {"longest-start-ms"}


def _keys_read() -> Iterator[tuple[str, str]]:
    for path in (*STARTER.glob("*.c"), *(PARTS / "caretaker").glob("*.c")):
        for pattern in (r'\bfact\("([^"]+)"', r'\bnext_record\(\w+, "([^"]+)"\)'):
            yield from ((path.name, key) for key in re.findall(pattern, path.read_text()))


def test_the_starter_reads_only_keys_that_it_lets_pass() -> None:
    read = list(_keys_read())
    assert len(read) > 20
    assert [each for each in read if each[1] not in {*STEPS, *FACTS}] == []


def test_the_modloader_takes_each_kind_of_line() -> None:
    names = ("virtio_blk", "ext4", "squashfs", "virtio_net", "ahci")
    modules = ModuleSet(
        tuple(Module(name, Path(f"/{name}.ko"), ()) for name in names),  # type: ignore[arg-type]
        tuple((f"alias:{name}", name) for name in names),
    )
    written = {line.split(" ", 1)[0] for line in modloader_table(modules).splitlines()}
    code = "".join(path.read_text() for path in (PARTS / "modloader").glob("*.c"))
    assert {"module", "alias", "device", "bus", "root"} <= written
    assert [kind for kind in sorted(written) if f'"{kind}"' not in code] == []
