"""The texts of the archive that init and the starter read: they are correct with any values."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import pytest

from quickstart.errors import StartSetError
from quickstart.initramfs.guestconfig import (
    Given,
    config_text,
    unit_config_text,
)
from quickstart.initramfs.layout import relative, unit_text
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.model import ListeningSocket, UnitCommand, UnitStart
from quickstart.model import FileKind, Readiness, StartFile
from quickstart.model.words import ReadyKind
from tests.unit.layouts import CONFIG, READY, START_SET, UNIT, P, link, start_file


def unquote(text: str) -> str:
    """What a POSIX shell makes of one word."""
    (word,) = shlex.split(text)
    return word


def test_config() -> None:
    odd = replace(CONFIG, root_options="a'b $(x)", unit=replace(UNIT, unit=r"app\x2dx.service"))
    values = dict(line.split("=", 1) for line in config_text(odd).splitlines())
    plain = {name: unquote(value) for name, value in values.items()}
    assert plain["ROOT_OPTIONS"] == "a'b $(x)"
    assert plain["UNIT"] == r"app\x2dx.service"
    assert plain["EARLY"] == "always"
    assert plain["ROOT_UUID"] == "11111111-2222-3333-4444-555555555555"
    assert (plain["BUILD_MOUNTS"], plain["BUILD_WTIME"]) == ("0", "1400000000")
    assert (plain["PID_FILE"], plain["UNIT_GROUP"]) == ("/run/app.pid", "system.slice/app.service")
    assert (plain["SOCKETS"], plain["SOCKET_UNITS"], plain["JOURNAL_PATHS"]) == ("0", "", "")


def test_the_journals_sockets_come_behind_the_unit_s_own(root: ImageRoot) -> None:
    own, journals = (
        ListeningSocket(unit="a", kind="stream", path=None, port=1, records=((key, "stream", key),))
        for key in ("socket", "journal-socket")
    )
    unit = replace(UNIT, sockets=(own,), journal_sockets=(journals, journals))
    lines = unit_text(unit, CONFIG, START_SET, root).splitlines()
    bound = [line for line in lines if "socket" in line]
    assert bound == ["socket stream socket", *["journal-socket stream journal-socket"] * 2]
    assert "\nSOCKETS=1\nJOURNAL_SOCKETS=2\n" in config_text(replace(CONFIG, unit=unit))


def test_ec2_alone_in_config() -> None:
    assert "\nEC2_ALONE=''\n" in config_text(CONFIG)
    assert "\nEC2_ALONE=yes\n" in config_text(replace(CONFIG, ec2_alone=True))


def test_a_disabled_image_is_never_as_built() -> None:
    """Otherwise, a disk that `rebuild` has packed would start fast in spite of `quickstart disable`."""
    assert "\nBUILD_MOUNTS=0\n" in config_text(CONFIG)
    assert "\nBUILD_MOUNTS=''\n" in config_text(replace(CONFIG, is_disabled=True))


def test_udev_s_directory_in_config() -> None:
    assert "\nUDEV_DATA=''\n" in config_text(CONFIG)
    assert "\nUDEV_DATA=/run/udev/data\n" in config_text(replace(CONFIG, given=Given(udev=True)))


def test_the_sockets_in_config() -> None:
    def socket(unit: str, path: str) -> ListeningSocket:
        return ListeningSocket(
            unit=unit, kind="stream", path=PurePosixPath(path) if path else None, port=0, records=()
        )

    sockets = (socket("a.socket", "/run/a"), socket("a.socket", ""), socket("b.socket", "/run/b"))
    journals = tuple(socket("j.socket", path) for path in ("/run/systemd/journal/a", "", "/run/b"))
    text = config_text(replace(CONFIG, unit=replace(UNIT, sockets=sockets, journal_sockets=journals)))
    assert "SOCKETS=3\nJOURNAL_SOCKETS=3\nSOCKET_UNITS='a.socket b.socket'\n" in text
    # A fallback removes the paths of the others.
    assert "\nJOURNAL_PATHS='/run/systemd/journal/a /run/b'\n" in text


def test_the_sockets_of_a_stack(root: ImageRoot) -> None:
    def with_sockets(name: str, *paths: str) -> UnitStart:
        sockets = (
            ListeningSocket(
                unit=f"{name}.socket", kind="stream", path=PurePosixPath(path), port=0,
                records=(("socket", path), ("socket-option", name)),
            )
            for path in paths
        )  # fmt: skip
        return replace(UNIT, unit=f"{name}.service", sockets=tuple(sockets))

    companions = (
        replace(with_sockets("db", "/run/b", "/run/c"), sockets_before=1),
        replace(with_sockets("php"), sockets_before=3),
    )
    unit = replace(with_sockets("web", "/run/a"), companions=companions)
    config = replace(CONFIG, unit=unit)
    said = [
        [line for line in unit_text(each, config, START_SET, root).splitlines() if "socket" in line]
        for each in unit.all_units
    ]
    assert said == [
        ["first-socket 4", "socket /run/b", "socket-option db", "socket /run/c", "socket-option db"],
        [],
        [
            *("socket /run/a", "socket-option web"),
            *("companion-socket /run/b", "socket-option db", "companion-socket /run/c", "socket-option db"),
        ],
    ]
    values = dict(line.split("=", 1) for line in config_text(config).splitlines())
    assert (values["SOCKETS"], values["COMPANION_SOCKETS"]) == ("1", "'2 0'")
    assert "COMPANION_SOCKETS" not in config_text(replace(CONFIG, unit=replace(unit, companions=())))
    assert "SOCKETS=2" in unit_config_text(companions[0]).splitlines()


@pytest.mark.parametrize(
    ("ready", "words"),
    [
        (READY, ("0050", "/", "200", "external")),
        (replace(READY, path="/it's $(x)", status=301), ("0050", "/it's $(x)", "301", "external")),
        (replace(READY, loopback=True, port=8080), ("1F90", "/", "200", "loopback")),
        (replace(READY, kind=ReadyKind.TCP), ("0050", "", "200", "external")),
        (replace(READY, kind=ReadyKind.EXEC, port=0), ("", "", "200", "external")),
    ],
)
def test_what_init_waits_for(ready: Readiness, words: tuple[str, ...]) -> None:
    lines = config_text(replace(CONFIG, ready=ready)).splitlines()
    values = dict(line.split("=", 1) for line in lines)
    names = ("READY_PORT", "READY_PATH", "READY_STATUS", "READY_ADDRESS")
    assert tuple(unquote(values[name]) if values[name] != "''" else "" for name in names) == words


def described(root: ImageRoot, **changes: Any) -> str:
    return unit_text(replace(UNIT, **changes), CONFIG, START_SET, root)


def test_description(root: ImageRoot) -> None:
    stock = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    fast = ":".join(f"/fast{name}" for name in stock.split(":"))
    assert described(root) == (
        "quickstart-unit 1\n"
        "unit app.service\n"
        "group system.slice/app.service\n"
        "type forking\n"
        "pid-file /run/app.pid\n"
        "start-timeout-ms 90000\n"
        f"base-environment PATH={fast}:{stock}\n"
        "base-environment LD_LIBRARY_PATH=/fast/usr/lib64\n"
        "umask 022\n"
        "command pre - /fast/usr/bin/app /usr/bin/app -t\n"
        "command main  /fast/usr/bin/app /usr/bin/app -g daemon\\x20on;\\x20it's\\x20'on'\n"
    )


def test_a_program_by_a_link_starts_from_fast_under_its_stock_name(root: ImageRoot) -> None:
    (root.base / "bin").symlink_to("usr/bin")
    text = described(root, start=UnitCommand("/bin/app", ("/bin/app",)), start_pre=())
    assert text.endswith("umask 022\ncommand main  /fast/usr/bin/app /bin/app\n")


def test_only_a_helper_may_start_from_the_root_volume(root: ImageRoot) -> None:
    text = described(root, start_post=(UnitCommand("/opt/check", ("/opt/check", "")),))
    assert text.endswith("\ncommand post  /opt/check /opt/check \n")
    with pytest.raises(StartSetError, match=r"/opt/app of app\.service is not in the start set"):
        described(root, start=UnitCommand("/opt/app", ("/opt/app",)))


@pytest.mark.parametrize(
    ("first_line", "start"),
    [
        ("#!/usr/bin/app", "/fast/usr/bin/app /usr/bin/app /usr/bin/script a"),
        ("#! /usr/bin/app -e x ", "/fast/usr/bin/app /usr/bin/app -e\\x20x /usr/bin/script a"),
        ("#!/opt/interpreter", "/usr/bin/script /usr/bin/script a"),
        ("#!/usr/bin/other", "/usr/bin/script /usr/bin/script a"),
    ],
)
@pytest.mark.parametrize("kind", [FileKind.LEFT, FileKind.FILE])
def test_a_script_starts_by_its_packed_interpreter(
    root: ImageRoot, first_line: str, start: str, kind: FileKind
) -> None:
    """And by its ordinary path, because it may look for other files beside itself."""
    (root.base / "usr/bin/script").write_text(f"{first_line}\necho\n")
    (root.base / "usr/bin/other").write_text("#!/usr/bin/app\n")
    script = start_file("/usr/bin/script", kind, 0o100755)
    other = start_file("/usr/bin/other", FileKind.FILE, 0o100755)
    unit = replace(UNIT, start=UnitCommand("/usr/bin/script", ("/usr/bin/script", "a")))
    text = unit_text(unit, CONFIG, replace(START_SET, files=(*START_SET.files, other, script)), root)
    # The journal is to have the unit's own name of it.
    name = "command-name script\n" if start.startswith("/fast/") else ""
    assert text.endswith(f"\ncommand main  {start}\n{name}")


def scripted(root: ImageRoot, spelled: str, mode: int = 0o100755, *more: StartFile) -> str:
    """The main command of a unit that starts /opt/app-1/run.sh as ``spelled``, and all that follows it."""
    (root.base / "opt/app-1").mkdir(parents=True)
    (root.base / "opt/app").symlink_to("app-1")
    (root.base / "opt/app-1/run.sh").write_text("#!/usr/bin/app -e\n")
    unit = replace(UNIT, start=UnitCommand(spelled, ("run", "a")))
    files = (*START_SET.files, start_file("/opt/app-1/run.sh", FileKind.LEFT, mode), *more)
    return unit_text(unit, CONFIG, replace(START_SET, files=files), root).rpartition("\ncommand ")[2]


def test_a_script_gets_its_name_as_the_unit_spells_it(root: ImageRoot) -> None:
    """This is what execve(2) does: argv[0] is lost, and the path is that of the call."""
    said = scripted(root, "/opt/app/run.sh", 0o100755, link("/opt/app", "app-1"))
    assert said == "main  /fast/usr/bin/app /usr/bin/app -e /opt/app/run.sh a\ncommand-name run.sh\n"


def test_the_kernel_checks_who_may_execute_a_script(root: ImageRoot) -> None:
    said = scripted(root, "/opt/app-1/run.sh", 0o100744)
    assert said == "main  /opt/app-1/run.sh run a\n"


def test_a_program_by_a_link_that_no_boot_compares_starts_by_its_path(root: ImageRoot) -> None:
    assert scripted(root, "/opt/app/run.sh") == "main  /opt/app/run.sh run a\n"


def test_the_kernel_starts_a_script_whose_interpreter_stays_on_the_volume(root: ImageRoot) -> None:
    left = replace(START_SET.files[7], kind=FileKind.LEFT)
    assert left.path == P("/usr/bin/app")
    assert scripted(root, "/opt/app-1/run.sh", 0o100755, left) == "main  /opt/app-1/run.sh run a\n"


def test_a_program_that_stays_on_the_volume_starts_from_there(root: ImageRoot) -> None:
    files = tuple(
        replace(file, kind=FileKind.LEFT) if file.path == P("/usr/bin/app") else file
        for file in START_SET.files
    )
    text = unit_text(UNIT, CONFIG, replace(START_SET, files=files), root)
    assert "\ncommand main  /usr/bin/app /usr/bin/app -g " in text
    assert "LD_LIBRARY_PATH=/fast/usr/lib64\n" in text


def test_relative() -> None:
    assert relative(P("fast/a/b/link"), "fast/c") == "../../c"
    assert relative(P("fast/link"), "fast/c/d") == "c/d"
