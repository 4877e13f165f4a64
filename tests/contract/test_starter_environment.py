"""Words and environment of the process that the starter starts: files of variables, the language, and variables in words."""

from __future__ import annotations

import pytest

from tests.contract.starterbox import SLEEP, Units

# Units have cgroups.
pytestmark = pytest.mark.host_root


def test_words_stay_words(units: Units) -> None:
    words = ("-n", "", "$(touch pwned)", ";", "a\nb", "'", '"', "\\", "*", "café", "x" * 5000, "\x01\x7f")
    found = units.start(
        ("type", "exec"),
        ("command", "pre", ":", "/bin/sh", "sh", "-c", "printf '%s|' \"$@\" >/run/words", "sh", *words),
        SLEEP,
        words="cat /run/words",
    )
    assert (found.status, found.answers["words"]) == (0, "".join(f"{word}|" for word in words))


FILE = """\
# a comment \\
  of two lines
; another
A=plain  \n
B = 'it is'" all one"
 C="say \\"hi\\" \\x $A"
D=a\\ b\\
c
E=
1BAD=x
F=a'b
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("LANG=de_DE.UTF-8\nLC_TIME=C\nOTHER=1\n", ["LANG=de_DE.UTF-8", "LC_TIME=C"]),
        # systemd takes neither, so it has its default.
        ("LC_ALL=de_DE.UTF-8\nLANG=\n", ["LANG=C.UTF-8"]),
        ("LANGUAGE=de:en\nLC_FOO=C\nLANGX=C\n", ["LANGUAGE=de:en"]),
    ],
)
def test_the_language_is_what_systemd_takes(units: Units, text: str, expected: list[str]) -> None:
    (units.work / "locale").write_text(text)
    found = units.start(
        ("type", "exec"),
        SLEEP,
        before="mount -t tmpfs x /etc/default; cp /run/box/locale /etc/default/locale\n",
        environment="tr '\\0' '\\n' </proc/$MAIN/environ | grep -E '^(LANG|LC_)' | sort",
    )
    assert found.answers["environment"].splitlines() == expected, found.log


def test_the_environment(units: Units) -> None:
    (units.work / "file").write_text(FILE)
    found = units.start(
        ("type", "exec"),
        ("user", "nobody"),
        ("own-environment", "PIDFILE=/run/x.pid"),
        ("pass-environment", "FROM_PID_1"),
        ("pass-environment", "NOT_THERE"),
        ("environment", "G=from Environment"),
        ("environment", "A=overwritten"),
        ("environment", "H=1"),
        ("environment", "I=1"),
        ("environment-file", "required", "/run/box/file"),
        ("environment-file", "optional", "/no/such"),
        ("unset-environment", "H"),
        ("unset-environment", "I=2"),
        ("become-user",),
        SLEEP,
        environment="tr '\\0' '\\n' </proc/$MAIN/environ",
    )
    assert (found.status, found.reason) == (0, ""), found.log
    variables = dict(line.split("=", 1) for line in found.answers["environment"].splitlines())
    invocation = variables.pop("INVOCATION_ID")
    assert len(invocation) == 32
    assert int(invocation, 16)
    # To systemd nobody has none.
    assert "HOME" not in variables
    expected = {
        "LANG": "C.UTF-8",
        "PATH": "/usr/bin:/bin",
        "LOGNAME": "nobody",
        "USER": "nobody",
        "SYSTEMD_EXEC_PID": found.main_pid,
        "PIDFILE": "/run/x.pid",
        "FROM_PID_1": "passed on",
        "A": "plain",
        "B": "it is all one",
        "C": 'say "hi" \\x $A',
        "D": "a bc",
        "E": "",
        "F": "a'b",
        "G": "from Environment",
        "I": "1",
    }
    assert variables == expected


@pytest.mark.parametrize(
    ("records", "text", "expected"),
    [
        ((), "# --log \\\nA=1\nB=2\n", "B=2"),
        ((("comments", "one-line"),), "# --log \\\nA=1\nB=2\n", "A=1 B=2"),
        ((("comments", "one-line"),), "; x \\\\ \\x\nA=1\n#\\", "A=1"),
        # To systemd, a carriage return ends a line as well, and a backslash at the end stands for nothing.
        ((), "# x\rA=1\n", "A=1"),
        ((), "A=1\rB=2\r\nC\rB=3", "A=1 B=3"),
        ((), "A=1\\\r\nB=2\\", "A=1 B=2"),
        ((), 'A="1\r"\nB="2\\', "A=1\r B=2"),
    ],
)
def test_a_comment_with_a_backslash(
    units: Units, records: tuple[tuple[str, ...], ...], text: str, expected: str
) -> None:
    """Since systemd 254, it does not swallow the next line (env-file.c)."""
    (units.work / "file").write_bytes(text.encode())
    found = units.start(
        ("type", "exec"),
        *records,
        ("environment-file", "required", "/run/box/file"),
        SLEEP,
        environment="tr '\\0' '\\n' </proc/$MAIN/environ | grep '^[AB]=' | sort | tr '\\n' ' '",
    )
    assert found.answers["environment"].strip() == expected, found.log


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A=Grüße\n# Grüße\nB=\U0001f600 \u20ac\n".encode(), ""),
        ("# Grüße\nA=1\n".encode("latin-1"), ""),
        ("A=Grüße\n".encode("latin-1"), "has a variable that is not UTF-8"),
        (b"A=\xc0\xaf\n", "has a variable that is not UTF-8"),
        (b"A=\xed\xa0\x80\n", "has a variable that is not UTF-8"),
        (b"A=\xf4\x90\x80\x80\n", "has a variable that is not UTF-8"),
        (b"A=\xef\xbf\xbf\n", "has a variable that is not UTF-8"),
        (b"A=\xe2\x82", "has a variable that is not UTF-8"),
        (b"\xfe=1\n", "has a variable that is not UTF-8"),
        (b"A=1\n\0", "has a NUL"),
    ],
)
def test_a_file_that_systemd_rejects(units: Units, text: bytes, reason: str) -> None:
    """systemd takes no variable of such a file, so it does not start the unit, or with `-` starts it without them."""
    (units.work / "file").write_bytes(text)
    found = units.start(("type", "exec"), ("environment-file", "optional", "/run/box/file"), SLEEP)
    assert found.reason == (f"Exec main: /run/box/file {reason}" if reason else "")


def test_files_of_variables_by_a_pattern(units: Units) -> None:
    """glob(7), as with systemd: in the order of the names."""
    for name, text in {"b.env": "A=b\nB=b\n", "a.env": "A=a\nC=a\n", "c.other": "A=other\n"}.items():
        (units.work / name).write_text(text)
    found = units.start(
        ("type", "exec"),
        ("environment-file", "required", "/run/box/*.env"),
        ("environment-file", "optional", "/run/box/*.none"),
        SLEEP,
        environment="tr '\\0' '\\n' </proc/$MAIN/environ | grep '^[ABC]=' | sort",
    )
    assert found.answers["environment"].split() == ["A=b", "B=b", "C=a"], found.reason


def test_a_pattern_of_files_that_has_to_match(units: Units) -> None:
    found = units.start(("type", "exec"), ("environment-file", "required", "/run/box/*.env"), SLEEP)
    assert found.reason == "Exec main: /run/box/*.env cannot be read: there is no such file"


def test_variables_in_words(units: Units) -> None:
    words = ("$MANY", "${MANY}", "x${ONE}y$ONE", "$$ONE", "$NONE", "${NONE}", "$QUOTED", "a$", "${open")
    found = units.start(
        ("type", "exec"),
        ("environment", "MANY=a  b\tc"),
        ("environment", "ONE=1"),
        ("environment", "QUOTED='d e' f\\ g"),
        ("command", "pre", "", "/bin/sh", "sh", "-c", "printf '%s|' \"$$@\" >/run/words", "sh", *words),
        ("command", "pre", ":", "/bin/sh", "sh", "-c", "printf '%s|' \"$@\" >/run/plain", "sh", *words),
        SLEEP,
        words="cat /run/words",
        plain="cat /run/plain",
    )
    assert (found.status, found.reason) == (0, ""), found.log
    expected = ("a", "b", "c", "a  b\tc", "x1y$ONE", "$ONE", "", "d e", "f g", "a$", "${open")
    assert found.answers["words"] == "".join(f"{word}|" for word in expected)
    assert found.answers["plain"] == "".join(f"{word}|" for word in words)


def test_what_a_shell_is_to_expand(units: Units) -> None:
    """A colon is not systemd's (replace_env_n)."""
    script = 'echo "${UNSET:-one} ${SET:+two} ${SET} ${UNSET}" >/run/said'
    found = units.start(
        ("type", "exec"),
        ("environment", "SET=set"),
        ("command", "pre", "-", "/bin/sh", "sh", "-c", script),
        SLEEP,
        said="cat /run/said",
    )
    assert (found.status, found.answers["said"].split()) == (0, ["one", "two", "set"])
