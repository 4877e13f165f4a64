"""What is enabled after the build and may come before the application, by the host's BusyBox and by its sh."""

from __future__ import annotations

import subprocess
from importlib import resources
from pathlib import Path

import pytest

from quickstart.host import door
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.enabled import enabled_text

OWN, PACKAGES = "etc/systemd/system", "usr/lib/systemd/system"
GOAL = f"{OWN}/multi-user.target.wants"
NOTHING: tuple[str, ...] = ()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An image as it is built: an application, and what is enabled beside it."""
    put(tmp_path, f"{PACKAGES}/app.service", "[Unit]\nAfter=network-online.target store.service tmp.mount\n")
    put(tmp_path, f"{PACKAGES}/network-online.target", "[Unit]\nAfter=network.target\n")
    put(tmp_path, f"{PACKAGES}/early.service", "[Unit]\nDefaultDependencies=no\nBefore=sysinit.target\n")
    put(tmp_path, f"{PACKAGES}/dbus.socket", "[Unit]\nBefore=sockets.target\n")
    link(tmp_path, f"{GOAL}/app.service")
    link(tmp_path, f"{PACKAGES}/sysinit.target.wants/early.service")
    put(tmp_path, "etc/machine-id", "")
    (tmp_path / "known").write_bytes(enabled_text(ImageRoot(tmp_path), "app.service"))
    return tmp_path


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def link(root: Path, path: str, target: str = "") -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).symlink_to(target or f"/{PACKAGES}/{Path(path).name}")


def script(root: Path, name: str, mode: int = 0o755) -> None:
    put(root, f"etc/init.d/{name}", "#!/bin/sh\n")
    (root / f"etc/init.d/{name}").chmod(mode)


def early(root: Path) -> tuple[str, ...]:
    """The paths that are named, the same by both shells."""
    script = resources.files("quickstart.initramfs").joinpath("init", "early-units")
    said: list[bytes] = []
    for shell in ((str(door.tool_path("busybox")), "sh"), ("sh",)):
        argv = [*shell, str(script), ".", "known"]
        done = subprocess.run(argv, cwd=root, capture_output=True, timeout=60, check=True)
        assert done.stderr == b""
        said.append(done.stdout)
    assert said[0] == said[1]
    return tuple(path.decode() for path in said[0].split(b"\0")[:-1])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (None, ("etc",)),
        ("uninitialized\n", ("etc/machine-id",)),
        ("uninitialized", ("etc/machine-id",)),
        ("0123456789abcdef0123456789abcdef\n", NOTHING),
        ("", NOTHING),
    ],
)
def test_a_first_boot(root: Path, text: str | None, named: tuple[str, ...]) -> None:
    """machine-id(5), "First Boot Semantics": systemd enables what its presets say, a packet filter for one."""
    (root / "etc/machine-id").unlink()
    if text is not None:
        put(root, "etc/machine-id", text)
    assert early(root) == named


def test_an_init_script_without_a_unit_file(root: Path) -> None:
    """systemd makes a unit of it (systemd-sysv-generator(8)), which its header may order before the network."""
    script(root, "old")
    link(root, "etc/rc2.d/S01old", "../init.d/old")
    link(root, "etc/rc2.d/S02later", "../init.d/later")
    (root / "known").write_bytes(enabled_text(ImageRoot(root), "app.service"))
    assert early(root) == NOTHING
    for name in ("filter", "app", "early.sh"):
        script(root, name)
        link(root, f"etc/rc3.d/S02{name}", f"../init.d/{name}")
    link(root, "etc/rc3.d/K01stopped", "../init.d/stopped")
    link(root, "etc/rc0.d/S01halt", "../init.d/halt")
    assert early(root) == ("etc/rc3.d/S02filter",)
    # The link was there, and now there is what it starts: as soon as that is executable.
    script(root, "later", 0o644)
    assert early(root) == ("etc/rc3.d/S02filter",)
    (root / "etc/init.d/later").unlink()
    link(root, "etc/init.d/later", "/opt/later")
    script(root, "../../opt/later")
    assert early(root) == ("etc/rc2.d/S02later", "etc/rc3.d/S02filter")


def test_a_directory_that_is_an_extension(root: Path) -> None:
    """systemd-sysext(8) takes directories as well as images."""
    (root / "var/lib/extensions/old").mkdir(parents=True)
    (root / "known").write_bytes(enabled_text(ImageRoot(root), "app.service"))
    assert early(root) == NOTHING
    (root / "var/lib/extensions/new/usr").mkdir(parents=True)
    (root / "etc/confexts").mkdir()
    (root / "var/lib/extensions/linked").symlink_to("old")
    assert early(root) == ("var/lib/extensions/new",)
    # A drop-in for what netplan's generator makes.
    (root / "etc/systemd/network/10-netplan-ens3.network.d").mkdir(parents=True)
    assert early(root) == ("etc/systemd/network/10-netplan-ens3.network.d", "var/lib/extensions/new")


def test_what_the_build_has_seen_is_not_named(root: Path) -> None:
    assert early(root) == NOTHING
    (root / "known").write_bytes(b"")
    assert early(root) == (f"{PACKAGES}/sysinit.target.wants/early.service",)


def test_what_is_not_enabled_is_not_named(root: Path) -> None:
    put(root, f"{PACKAGES}/wall.service", "[Unit]\nBefore=network-pre.target\n")
    assert early(root) == NOTHING


@pytest.mark.parametrize(
    "text",
    [
        "Before=network-pre.target",
        "Before=app.service",
        "Before = shutdown.target  network.target",
        "Before=shutdown.target \\\n# a comment\nnetwork.target",
        "Before=shutdown.target\nBefore=app.service",
        "Description=a \\\nb\n  Before=app.service\n",
        'Before="network.target"',
        "Before=%p.target",
        "# \\\nBefore=app.service",
        "Description=a\rBefore=app.service",
        "DefaultDependencies=no",
        "DefaultDependencies=F",
        # By what it pulls in.
        "Wants=rules.service",
        "Description=a\nBindsTo=plain.service rules.service",
        "Requires=rules@a.service",
        "Wants=chain.target",
        'Wants="rules.service"',
        "Wants=%p.service",
        "Wants=opt-app.mount",
    ],
)
@pytest.mark.parametrize("place", ["unit", "drop-in", "link", "prefix"])
def test_a_filter_by_any_name(root: Path, text: str, place: str) -> None:
    for name in ("rules", "rules@"):
        put(root, f"{PACKAGES}/{name}.service", "[Unit]\nBefore=network.target\n")
    put(root, f"{PACKAGES}/plain.service", "[Unit]\nAfter=network.target\n")
    put(root, f"{PACKAGES}/chain.target", "[Unit]\nWants=rules.service\n")
    whole = f"[Unit]\n{text}\n[Service]\nExecStart=/bin/nft\n"
    plain = "[Service]\nExecStart=/bin/nft"
    if place == "unit":
        put(root, f"{PACKAGES}/a-wall.service", whole)
    elif place == "link":
        put(root, "opt/wall", whole)
        link(root, f"{PACKAGES}/a-wall.service", "/opt/wall")
    else:
        put(root, f"{PACKAGES}/a-wall.service", plain)
        directory = "a-.service.d" if place == "prefix" else "a-wall.service.d"
        drop_in = f"{OWN}/{directory}/x.conf"
        put(root, drop_in, whole)
        # A new drop-in is named itself, whoever pulls its unit in.
        assert set(early(root)) <= {drop_in}
        (root / "known").write_bytes((root / "known").read_bytes() + f"{directory}/x.conf\n".encode())
    assert early(root) == NOTHING
    link(root, f"{GOAL}/a-wall.service")
    assert early(root) == (f"{GOAL}/a-wall.service",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "After=network.target\nBefore=shutdown.target multi-user.target\n",
        "Before=getty.target rescue.service",
        "DefaultDependencies=yes\n",
        # Enabled at the build, a socket, or nobody's.
        "Wants=early.service dbus.socket network-online.target gone.service\n",
        "#Before=network.target\n;Before=network.target\n# Before=network.target",
    ],
)
def test_one_that_waits_for_its_turn(root: Path, text: str) -> None:
    put(root, f"{PACKAGES}/daemon@.service", f"[Unit]\n{text}\n[Service]\nExecStart=/bin/daemon")
    put(root, f"{OWN}/daemon@.service.d/a.conf", "[Service]\nNice=1")
    link(root, f"{OWN}/daemon@.service.d/b.conf", "/dev/null")
    link(root, f"{GOAL}/daemon@x.service")
    link(root, f"{OWN}/timers.target.wants/daemon.timer")
    link(root, f"{OWN}/sockets.target.wants/daemon.socket")
    assert early(root) == NOTHING


@pytest.mark.parametrize(
    "path",
    [
        # By a target that the application comes after, or may come after.
        f"{OWN}/network.target.wants/wall.service",
        f"{PACKAGES}/sysinit.target.requires/wall.service",
        "usr/local/lib/systemd/system/network-online.target.upholds/wall.service",
        # A mount, which is before local-fs.target.
        f"{GOAL}/opt-app.mount",
        # The application's own After= names it.
        f"{GOAL}/store.service",
        f"{GOAL}/tmp.mount",
    ],
)
def test_who_comes_before_without_a_word(root: Path, path: str) -> None:
    name = Path(path).name
    put(root, f"{PACKAGES}/{name}", "[Unit]\nDescription=a\n")
    link(root, path)
    # Each boot asks for /tmp.
    others = (f"{PACKAGES}/{name}",) if name == "tmp.mount" else ()
    assert early(root) == (path, *others)


def test_a_mask_and_a_link_without_a_unit_start_nothing(root: Path) -> None:
    put(root, f"{PACKAGES}/wall.service", "[Unit]\nBefore=network.target\n")
    link(root, f"{OWN}/wall.service", "/dev/null")
    link(root, f"{GOAL}/wall.service")
    link(root, f"{GOAL}/gone.service")
    assert early(root) == NOTHING


def test_what_cannot_be_followed_is_named(root: Path) -> None:
    link(root, f"{PACKAGES}/loop.service", "loop.service")
    link(root, f"{GOAL}/loop.service")
    put(root, f"{PACKAGES}/a.service", "[Service]\n")
    link(root, f"{OWN}/a.service.d", "/opt/a")
    link(root, f"{GOAL}/a.service")
    link(root, f"{PACKAGES}/other.target.wants", "/opt/wants")
    assert early(root) == (
        f"{GOAL}/a.service",
        f"{GOAL}/loop.service",
        f"{PACKAGES}/other.target.wants",
        f"{OWN}/a.service.d",
    )
    (root / f"{PACKAGES}/other.target.wants").unlink()
    (root / "known").write_bytes(enabled_text(ImageRoot(root), "app.service"))
    assert early(root) == NOTHING


def test_a_directory_of_packages_that_is_as_built_is_not_read(root: Path) -> None:
    """And one that has changed is."""
    place = root / f"{PACKAGES}/network.target.wants"
    link(root, f"{PACKAGES}/network.target.wants/wall.service")
    status = place.stat()
    line = f"as-built {int(status.st_mtime)} {int(status.st_ctime)} {place.name}\n"
    before = (root / "known").read_text()
    (root / "known").write_text(before + line)
    assert early(root) == NOTHING
    (root / "known").write_text(before + line.replace("as-built ", "as-built 1"))
    assert early(root) == (f"{PACKAGES}/network.target.wants/wall.service",)
    # The administrator's are read in any case.
    link(root, f"{OWN}/network.target.wants/own.service")
    (root / "known").write_text(before + line)
    assert early(root) == (f"{OWN}/network.target.wants/own.service",)


@pytest.mark.parametrize("kind", ["path", "timer"])
@pytest.mark.parametrize("text", ["", "Unit=filter.service", "Unit=other.target"])
def test_what_a_path_or_timer_triggers(root: Path, kind: str, text: str) -> None:
    """`PathExists=/etc/rules`, `OnBootSec=0`: what it triggers may be started as early as itself."""
    name = f"{'wall' if text else 'filter'}.{kind}"
    enabling = f"{OWN}/{kind}s.target.wants/{name}"
    section = kind.capitalize()
    put(root, f"{PACKAGES}/{name}", f"[{section}]\n{text}\nOnBootSec=0\n[Install]\nWantedBy={kind}s.target\n")
    put(root, f"{PACKAGES}/filter.service", "[Unit]\nAfter=network.target\n")
    put(root, f"{PACKAGES}/other.target", "[Unit]\nWants=filter.service\n")
    link(root, enabling)
    assert early(root) == NOTHING
    put(root, f"{PACKAGES}/filter.service", "[Unit]\nDefaultDependencies=no\nBefore=network-pre.target\n")
    assert early(root) == (enabling,)


def test_a_drop_in_of_a_package(root: Path) -> None:
    """networking.service.d/filter.conf with ExecStartPre=, which comes with a package and is enabled by nothing."""
    put(root, f"{PACKAGES}/daemon.service", "[Unit]\nAfter=network.target\n")
    put(root, f"{PACKAGES}/early.service.d/known.conf", "[Service]\nNice=1\n")
    link(root, f"{PACKAGES}/linked.service.d", "/opt/linked")
    (root / "known").write_bytes(enabled_text(ImageRoot(root), "app.service"))
    put(root, f"{PACKAGES}/daemon.service.d/a.conf", "[Service]\nExecStartPre=/bin/a\n")
    put(root, f"{PACKAGES}/user.slice.d/a.conf", "[Unit]\nBefore=a.target\n")
    assert early(root) == NOTHING
    put(root, f"{PACKAGES}/early.service.d/a.conf", "[Service]\nExecStartPre=/sbin/nft -f /etc/rules\n")
    put(root, f"{PACKAGES}/target.d/a.conf", "[Unit]\nRequires=guard.service\n")
    put(root, f"{PACKAGES}/daemon.service.d/b.conf", "[Unit]\nBefore=app.service\n")
    named = [f"{PACKAGES}/{name}" for name in ("daemon.service.d/a.conf", "daemon.service.d/b.conf")]
    named += [f"{PACKAGES}/{name}" for name in ("early.service.d/a.conf", "target.d/a.conf")]
    assert early(root) == tuple(named)
    # A directory with the times of the build has the entries of the build.
    status = (root / f"{PACKAGES}/early.service.d").stat()
    with (root / "known").open("a") as known:
        known.write(f"as-built {int(status.st_mtime)} {int(status.st_ctime)} early.service.d\n")
    assert f"{PACKAGES}/early.service.d/a.conf" not in early(root)


def test_one_that_the_application_waits_for_by_an_alias(root: Path) -> None:
    put(root, f"{PACKAGES}/shop.service", "[Unit]\nDescription=a\n")
    link(root, f"{GOAL}/shop.service")
    assert early(root) == NOTHING
    link(root, f"{PACKAGES}/store.service", "shop.service")
    assert early(root) == (f"{GOAL}/shop.service",)


def test_one_that_was_enabled_and_comes_only_now(root: Path) -> None:
    link(root, f"{GOAL}/wall.service")
    link(root, f"{PACKAGES}/sysinit.target.wants/gone.service")
    (root / "known").write_bytes(enabled_text(ImageRoot(root), "app.service"))
    assert early(root) == NOTHING
    put(root, f"{PACKAGES}/gone.service", "[Unit]\nDescription=a\n")
    put(root, f"{PACKAGES}/wall.service", "[Unit]\nBefore=network.target\n")
    assert early(root) == (f"{GOAL}/wall.service", f"{PACKAGES}/sysinit.target.wants/gone.service")


def test_a_drop_in_of_a_unit_that_goes_early(root: Path) -> None:
    put(root, f"{PACKAGES}/daemon.service", "[Unit]\nAfter=network.target\n")
    put(root, f"{OWN}/early.service.d/known.conf", "")
    (root / "known").write_bytes(enabled_text(ImageRoot(root), "app.service"))
    put(root, f"{OWN}/daemon.service.d/a.conf", "[Service]\nExecStartPre=/bin/a\n")
    put(root, f"{OWN}/user.slice.d/a.conf", "[Unit]\nBefore=a.target\n")
    assert early(root) == NOTHING
    put(root, f"{OWN}/early.service.d/a.conf", "[Service]\nExecStartPre=/sbin/nft -f /etc/rules\n")
    put(root, f"{OWN}/daemon.service.d/b.conf", "[Unit]\nBefore=app.service\n")
    assert early(root) == (
        f"{OWN}/daemon.service.d/a.conf",
        f"{OWN}/daemon.service.d/b.conf",
        f"{OWN}/early.service.d/a.conf",
    )
