"""What a unit hides in memory, and systemd makes only after an early start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import read_unit
from quickstart.inspect.unit.enabled import enabled_text
from quickstart.inspect.unit.hidden import hidden_paths
from quickstart.model.started import Changed
from quickstart.pack.others import refuse_made_before
from tests.unit.imagebuilder import trace
from tests.unit.unitreader import SERVICE, put, read

PLACE = "/usr/lib/systemd/system"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    put(tmp_path, "/etc/passwd", "app:x:100:100:::\n")
    put(tmp_path, "/etc/group", "app:x:100:\n")
    socket(tmp_path, "dbus", "ListenStream=/run/dbus/system_bus_socket")
    socket(tmp_path, "docker", "ListenStream=/var/run/docker.sock\nDirectoryMode=0700")
    socket(tmp_path, "pipe", "ListenFIFO=/run/pipe/own/fifo\nDirectoryMode=0700")
    put(tmp_path, f"{PLACE}/off.socket", "[Socket]\nListenStream=/run/off.sock\n")
    return tmp_path


def socket(base: Path, name: str, text: str) -> None:
    put(base, f"{PLACE}/{name}.socket", f"[Socket]\n{text}\n")
    link = base / PLACE[1:] / "sockets.target.wants" / f"{name}.socket"
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(f"../{name}.socket")


def made(base: Path, text: str) -> list[tuple[str, ...]]:
    return [
        record[1:] for record in read(base, f"{SERVICE}{text}\n").settings if record[0] == "run-directory"
    ]


@pytest.mark.parametrize("name", ["InaccessiblePaths", "ReadOnlyPaths", "NoExecPaths"])
@pytest.mark.parametrize(
    ("path", "mode"),
    [
        ("/run/dbus", "0755"),
        ("/var/run/dbus/", "0755"),
        ("/run/pipe", "0700"),
        ("/run/pipe/own", "0700"),
        ("/run/systemd/seats", "0755"),
        ("/run/udev", "0755"),
    ],
)
def test_a_directory_is_made_so_that_it_can_be_hidden(base: Path, name: str, path: str, mode: str) -> None:
    own = str(PurePosixPath(path.replace("/var/run", "/run")))
    assert made(base, f"{name}=-{path}") == [(mode, "root", "root", own)]
    assert made(base, f"{name}={path}") == [(mode, "root", "root", own)]


@pytest.mark.parametrize("name", ["InaccessiblePaths", "ReadOnlyPaths", "NoExecPaths"])
@pytest.mark.parametrize(
    "path",
    [
        *("/run/dbus/system_bus_socket", "/run/docker.sock", "/var/run/docker.sock", "/run/pipe/own/fifo"),
        *("/run/systemd/private", "/run/systemd/notify"),
    ],
)
def test_what_cannot_be_hidden_before_it_is_there_is_refused(base: Path, name: str, path: str) -> None:
    for prefix in ("", "-"):
        with pytest.raises(
            UnsupportedUnitError, match=f"hides or restricts {path.replace('/var', '')}, which systemd"
        ):
            made(base, f"{name}={prefix}{path}")


PULLED = {
    "by a service": {"other.service": "[Unit]\nRequires=off.socket\n[Service]\nExecStart=/usr/bin/other"},
    "by Sockets=": {"other.service": "[Service]\nExecStart=/usr/bin/other\nSockets=off.socket"},
    "by a drop-in": {"sockets.target.d/more.conf": "[Unit]\nWants=off.socket"},
    "by upholds": {"multi-user.target.upholds/off.socket": "../off.socket"},
    "an instance": {
        "off@.socket": "[Socket]\nListenStream=/run/%i.sock",
        "sockets.target.wants/off@off.socket": "../off@.socket",
    },
    "by its name": {
        "off.socket.d/own.conf": "[Socket]\nListenStream=\nListenStream=/run/%p.sock",
        "sockets.target.wants/off.socket": "../off.socket",
    },
}


@pytest.mark.parametrize("how", PULLED)
def test_a_socket_that_another_unit_pulls_in_is_bound_as_well(base: Path, how: str) -> None:
    for name, text in PULLED[how].items():
        file = base / PLACE[1:] / name
        file.parent.mkdir(exist_ok=True)
        if text.startswith("../"):
            file.symlink_to(text)
        else:
            put(base, f"{PLACE}/{name}", f"{text}\n")
    put(base, f"{PLACE}/basic.target", "[Unit]\nWants=sockets.target\n")
    put(base, f"{PLACE}/multi-user.target", "[Unit]\nRequires=basic.target\n")
    wants = base / PLACE[1:] / "multi-user.target.wants"
    wants.mkdir()
    (wants / "other.service").symlink_to("../other.service")
    with pytest.raises(UnsupportedUnitError, match=r"hides or restricts /run/off\.sock, which systemd"):
        made(base, "InaccessiblePaths=-/run/off.sock")


def test_a_socket_whose_path_is_not_known_is_refused(base: Path) -> None:
    socket(base, "late", "ListenStream=/run/%b.sock")
    assert made(base, "InaccessiblePaths=-/home") == []
    with pytest.raises(UnsupportedUnitError, match=r"late\.socket listens on /run/%b\.sock, which only"):
        made(base, "InaccessiblePaths=-/run/other.sock")


def test_a_unit_that_names_nothing_of_the_kind_is_as_before(base: Path) -> None:
    for path in (
        "/run/off.sock",
        "/run/other",
        "/run/systemd",
        "/run/credentials/x",
        "/dev/kmsg",
        "/home",
        "/run/user",
    ):
        assert made(base, f"InaccessiblePaths=-{path}") == []
    assert made(base, "ReadWritePaths=-/run/docker.sock") == []
    assert (
        made(base, "ProtectSystem=strict\nProtectHome=yes\nProtectKernelTunables=yes\nPrivateDevices=yes")
        == []
    )
    # What is below a closed directory is closed with it.
    assert made(
        base, "InaccessiblePaths=-/run/dbus -/run/dbus/system_bus_socket -/run/systemd -/run/systemd/private"
    ) == [("0755", "root", "root", "/run/dbus")]
    # Read-only is not closed.
    with pytest.raises(UnsupportedUnitError):
        made(base, "ReadOnlyPaths=-/run/dbus\nInaccessiblePaths=-/run/dbus/system_bus_socket")


def test_pid_ones_own_socket_is_for_root_alone(base: Path) -> None:
    """systemd binds it with mode 0700."""
    hiding = "InaccessiblePaths=-/run/systemd/private"
    assert made(base, f"{hiding}\nUser=app") == []
    for more in (
        "User=root",
        "User=app\nExecStartPre=!/usr/bin/app",
        "User=app\nAmbientCapabilities=CAP_DAC_OVERRIDE",
    ):
        with pytest.raises(UnsupportedUnitError):
            made(base, f"{hiding}\n{more}")
    # The others are for all.
    with pytest.raises(UnsupportedUnitError):
        made(base, "InaccessiblePaths=-/run/systemd/notify\nUser=app")


def test_sockets_that_init_binds_are_there(base: Path) -> None:
    socket(base, "app", "ListenStream=/run/app.sock")
    assert made(base, "InaccessiblePaths=-/run/app.sock") == []
    # Of another unit of the stack.
    put(base, f"{PLACE}/docker.service", SERVICE)
    put(base, f"{PLACE}/app.service", f"{SERVICE}InaccessiblePaths=/run/docker.sock\n")
    read_unit(ImageRoot(base), "app.service", stack=("docker.service",))


def test_what_the_reference_boot_has_made_before_is_refused(base: Path) -> None:
    """For who only looks for it, it may come later."""
    changed = Changed((), tuple(map(PurePosixPath, ("/run/systemd", "/run/dbus", "/run/utmp", "/run/user"))))
    found = [replace(trace(), changed=changed)]
    for hidden in ("/run/dbus", "/run/user", "/run/systemd", "/run/never"):
        unit = read(base, f"{SERVICE}InaccessiblePaths=-{hidden}\nReadWritePaths=-/run/utmp\n")
        refuse_made_before(found, unit, ImageRoot(base))
    unit = read(base, f"{SERVICE}InaccessiblePaths=-/run/utmp\n")
    with pytest.raises(UnsupportedUnitError, match="changed /run/utmp before"):
        refuse_made_before(found, unit, ImageRoot(base))


def test_init_knows_what_is_hidden(base: Path) -> None:
    unit = read(base, f"{SERVICE}InaccessiblePaths=-/var/run/off.sock /srv\nReadOnlyPaths=/run/z /run/a\n")
    assert hidden_paths(unit, ImageRoot(base)) == ("/run/a", "/run/off.sock", "/run/z")
    text = enabled_text(ImageRoot(base), "app.service", hidden=hidden_paths(unit, ImageRoot(base)))
    assert b"\nhides /run/off.sock\n" in text


@pytest.mark.parametrize("name", ["BindPaths", "BindReadOnlyPaths"])
@pytest.mark.parametrize(
    "words", ["/dev/null:/run/docker.sock", "-/dev/null:/var/run/x", "/etc/app.conf:/dev/shm/app", "/none:/run/x:norbind"]
)  # fmt: skip
def test_a_file_over_a_path_in_memory_is_refused(base: Path, name: str, words: str) -> None:
    """systemd or a daemon makes the path anew, and the cover disappears with the old file."""
    put(base, "/etc/app.conf", "")
    with pytest.raises(UnsupportedUnitError, match="which may be made anew"):
        read(base, f"{SERVICE}{name}={words}\n")


@pytest.mark.parametrize(
    "words", ["/etc:/run/x", "/run/x.sock", "/var/run/x.sock:/run/x.sock", "/etc/app.conf:/srv/app.conf"]
)
def test_other_binds_are_no_covers(base: Path, words: str) -> None:
    put(base, "/etc/app.conf", "")
    assert read(base, f"{SERVICE}BindPaths=-{words}\n").settings


@pytest.mark.parametrize(
    "text", ["ListenStream=%t/x.sock", "ListenStream=/run/y\nSymlinks=/run/z /run/x.sock"]
)
def test_other_names_of_a_socket(base: Path, text: str) -> None:
    socket(base, "other", text)
    with pytest.raises(UnsupportedUnitError, match="hides or restricts /run/x"):
        made(base, "InaccessiblePaths=-/run/x.sock")


@pytest.mark.parametrize(
    "text",
    ["User=toor", "User=app\nAmbientCapabilities=CAP_SETUID", "User=app\nAmbientCapabilities=CAP_CHOWN"],
)
def test_who_may_become_root_may_use_roots_socket(base: Path, text: str) -> None:
    put(base, "/etc/passwd", "app:x:100:100:::\ntoor:x:0:0:::\n")
    with pytest.raises(UnsupportedUnitError, match="/run/systemd/private"):
        made(base, f"{text}\nInaccessiblePaths=/run/systemd/private")


@pytest.mark.parametrize(
    "path",
    ["//run/x.sock", "/run//x.sock", "/run/./x.sock", "//var/run/x.sock", "/srv/link", "/srv/way/x.sock"],
)
def test_other_spellings_of_a_hidden_path(base: Path, path: str) -> None:
    """systemd makes them plain, and follows links of the image to places that exist only in the machine."""
    socket(base, "other", "ListenStream=/run/x.sock")
    (base / "srv").mkdir(exist_ok=True)
    (base / "srv/link").symlink_to("/run/x.sock")
    (base / "srv/way").symlink_to("../run")
    with pytest.raises(UnsupportedUnitError, match="hides or restricts /run/x"):
        made(base, f"InaccessiblePaths=-{path}")
    with pytest.raises(UnsupportedUnitError, match="which may be made anew"):
        read(base, f"{SERVICE}BindReadOnlyPaths=/dev/null:{path}\n")
    unit = read(base, f"{SERVICE}InaccessiblePaths=-{path.replace('x.sock', 'y').replace('link', 'other')}\n")
    assert hidden_paths(unit, ImageRoot(base)) == (() if path == "/srv/link" else ("/run/y",))


@pytest.mark.parametrize(
    "text", ["ListenStream=//run/x.sock", "ListenStream=/run/./x.sock", "ListenFIFO=/srv/way/x.sock"]
)
def test_other_spellings_of_a_socket(base: Path, text: str) -> None:
    (base / "srv").mkdir(exist_ok=True)
    (base / "srv/way").symlink_to("/run")
    socket(base, "other", text)
    with pytest.raises(UnsupportedUnitError, match="hides or restricts /run/x"):
        made(base, "InaccessiblePaths=-/run/x.sock")


@pytest.mark.parametrize("link", ["/run/x.sock", "../run/x.sock", "../run/../run/x.sock"])
@pytest.mark.parametrize("is_left_over", [False, True])
def test_a_link_to_a_hidden_path(base: Path, link: str, is_left_over: bool) -> None:
    """An image that was made in a chroot may have files in /run."""
    socket(base, "other", "ListenStream=/run/x.sock")
    (base / "srv").mkdir(exist_ok=True)
    (base / "srv/link").symlink_to(link)
    if is_left_over:
        put(base, "/run/x.sock", "")
    with pytest.raises(UnsupportedUnitError, match="hides or restricts /run/x"):
        made(base, "InaccessiblePaths=-/srv/link")
    with pytest.raises(UnsupportedUnitError, match="which may be made anew"):
        read(base, f"{SERVICE}BindReadOnlyPaths=/dev/null:/srv/link\n")
