"""Command lines of systemd units: words, prefixes and specifiers, and the commands that need systemd."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import parse_commands
from quickstart.inspect.unit.model import UnitCommand
from tests.unit.unitreader import put

DIRECTORIES = ("/run", "/var/lib", "/var/cache", "/var/log", "/tmp", "/var/tmp", "/etc")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "/usr/sbin/nginx -g 'daemon on; master_process on;'",
            ("/usr/sbin/nginx", "-g", "daemon on; master_process on;"),
        ),
        ("/bin/sh -c \"a 'b' c\"", ("/bin/sh", "-c", "a 'b' c")),
        ("/bin/x  a\t b ", ("/bin/x", "a", "b")),
        ("/bin/x ''", ("/bin/x", "")),
        ('/bin/x a"b c"d', ("/bin/x", "ab cd")),
        (r"/bin/x a\sb\tc\\d\"e", ("/bin/x", 'a b\tc\\d"e')),
        (r"/bin/x \x41\102\u00e9", ("/bin/x", "ABé")),
        ("/bin/x 100%%", ("/bin/x", "100%")),
    ],
)
def test_words_of_a_command(line: str, words: tuple[str, ...]) -> None:
    assert parse_commands("app.service", line) == (UnitCommand(words[0], words),)
    assert parse_commands("app.service", f"-{line}") == (UnitCommand(words[0], words, "-"),)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("@/bin/x y z", UnitCommand("/bin/x", ("y", "z"))),
        ("+/bin/x", UnitCommand("/bin/x", ("/bin/x",), "+")),
        ("!/bin/x", UnitCommand("/bin/x", ("/bin/x",), "!")),
        (":/bin/x $A", UnitCommand("/bin/x", ("/bin/x", "$A"), ":")),
        ("-+@/bin/x y", UnitCommand("/bin/x", ("y",), "+-")),
        ("/bin/x --name=%n", UnitCommand("/bin/x", ("/bin/x", "--name=a-b@c\\x2dd-e.service"))),
        ("/bin/x %i %I %p %P", UnitCommand("/bin/x", ("/bin/x", "c\\x2dd-e", "c-d/e", "a-b", "a/b"))),
        ("/bin/x %N %j %f", UnitCommand("/bin/x", ("/bin/x", "a-b@c\\x2dd-e", "b", "/c-d/e"))),
        ("/bin/x %t %S %C %L %T %V %E", UnitCommand("/bin/x", ("/bin/x", *DIRECTORIES))),
        ("/bin/x %%%u", UnitCommand("/bin/x", ("/bin/x", "%root"))),
        ("/bin/x ';' \\; a;b", UnitCommand("/bin/x", ("/bin/x", ";", ";", "a;b"))),
    ],
)
def test_prefixes_and_specifiers(line: str, command: UnitCommand) -> None:
    assert parse_commands(r"a-b@c\x2dd-e.service", line) == (command,)


def test_a_semicolon_separates_commands() -> None:
    assert parse_commands("app.service", "/bin/x a ; -/bin/y ;") == (
        UnitCommand("/bin/x", ("/bin/x", "a")),
        UnitCommand("/bin/y", ("/bin/y",), "-"),
    )


def test_a_program_without_a_path_is_looked_for(tmp_path: Path) -> None:
    put(tmp_path, "/usr/bin/app", "")
    assert parse_commands("app.service", "app -x", ImageRoot(tmp_path)) == (
        UnitCommand("/usr/bin/app", ("app", "-x")),
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("!!/bin/x", "the prefix of"),
        ("|/bin/x", "the prefix of"),
        ("@/bin/x", "has the prefix @ but no name"),
        ("/bin/x %m", "`%m` in `%m` is known to the running machine only"),
        ("/bin/x a%", "`%` in `a%` is known"),
        ("x -y", "does not begin with an absolute path"),
        (r"/bin/x \q", "is not known"),
        (r"/bin/x \x00", "is not known"),
        ("/bin/x 'a", "has an open quote"),
    ],
)
def test_a_command_that_needs_systemd(line: str, message: str) -> None:
    with pytest.raises(UnsupportedUnitError, match=message) as caught:
        parse_commands("app.service", line)
    assert "app.service" in caught.value.message
