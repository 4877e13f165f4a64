"""Names and words of others in our messages: none is a command that a user pastes, a line of ours, or a page long."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from quickstart.artefact import inside
from quickstart.cli.output import run_verb
from quickstart.errors import BadInputError, GuestError, UnsupportedUnitError
from quickstart.initramfs.newc import symlink
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import read_unit
from quickstart.inspect.unit.apparmor import refuse_profiles
from quickstart.inspect.unit.hooks import refuse_hooks
from quickstart.inspect.unit.mounted import refuse_mounts, tmp_options
from quickstart.parse.printable import brief, command
from tests.unit.imagebuilder import P
from tests.unit.test_inside import PART_B, artefact
from tests.unit.test_unit import put


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


def test_the_commands_for_an_image_are_quoted(tmp_path: Path) -> None:
    put(tmp_path, "/usr/lib/systemd/system/app.service", "[Service]\nExecStart=/usr/bin/app\n")
    put(tmp_path, "/etc/systemd/system/app.service.d/a;touch P;#.conf", "[Service]\nNice=1\n")
    (tmp_path / "etc/systemd/system/app.service.d/a;touch P;#.conf").chmod(0o600)
    with pytest.raises(UnsupportedUnitError, match="not for all to read") as refused:
        read_unit(ImageRoot(tmp_path), "app.service")
    assert "chmod a+r '/etc/systemd/system/app.service.d/a;touch P;#.conf'," in (refused.value.hint or "")


def test_the_command_against_a_profile_is_quoted(tmp_path: Path) -> None:
    put(tmp_path, "/usr/sbin/apparmor_parser", "")
    put(tmp_path, "/etc/apparmor.d/a;b", "/usr/bin/app {\n}\n")
    put(tmp_path, "/etc/systemd/system/sysinit.target.wants/apparmor.service", "")
    with pytest.raises(UnsupportedUnitError, match="AppArmor's profile") as refused:
        refuse_profiles(ImageRoot(tmp_path), "app.service", [P("/usr/bin/app")])
    assert "`ln -s '/etc/apparmor.d/a;b' /etc/apparmor.d/disable/`" in (refused.value.hint or "")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_message_has_no_line_of_a_foreign_word(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    def fail(_: object) -> int:
        raise BadInputError(
            "x\nquickstart x: all is well" + "y" * 100_000, hint="z\nquickstart x: " + "w" * 100_000
        )

    assert run_verb("x", as_json, fail) == 2
    done = capsys.readouterr()
    ours = [line for line in done.err.splitlines() if line.startswith("quickstart")]
    assert ours == ["quickstart x: x"]
    assert len(done.err) < 20_000
    if as_json:
        assert len(json.loads(done.out)["error"]["message"]) < 10_000


def test_a_console_keeps_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: object) -> int:
        raise GuestError("it died", console_tail="one\ntwo\n")

    assert run_verb("x", False, fail) == 1
    assert capsys.readouterr().err == "quickstart x: it died\n  last console lines:\n  | one\n  | two\n"


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
