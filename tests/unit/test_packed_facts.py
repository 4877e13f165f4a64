"""What init compares with the volume: packed files, files that would be found before them, and files that
decide how the unit starts.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.initramfs.facts import Watched, packed_facts, watched, way_facts
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.facts import deciding
from quickstart.model import IMAGE_TIME_S, FileKind, StartSet
from tests.unit.layouts import P, directory, link, start_file
from tests.unit.unitreader import put

UNIT = "/usr/lib/systemd/system/app.service"
TEXT = "[Service]\nExecStart=/usr/bin/app\n"
WANTS = "/etc/systemd/system/multi-user.target.wants"


@pytest.fixture
def root(tmp_path: Path) -> ImageRoot:
    put(tmp_path, UNIT, TEXT)
    (tmp_path / WANTS[1:]).mkdir(parents=True)
    (tmp_path / WANTS[1:] / "app.service").symlink_to(UNIT)
    return ImageRoot(tmp_path)


def files_of(root: ImageRoot, unit: str = "app.service") -> set[str]:
    return set(map(str, deciding(root, unit).files))


def places_of(root: ImageRoot, unit: str = "app.service") -> set[str]:
    return set(map(str, deciding(root, unit).places))


def test_packed_files() -> None:
    odd = os.fsdecode(b"/bin/caf\xe9 \n")
    program = start_file(odd, FileKind.FILE, 0o100755, size=12)
    files = StartSet((directory("/bin"), program, link("/lib/a.so", "a.so.1")), ())
    names, rows, places = packed_facts(files, (), Watched())
    assert names == b"bin/caf\xe9 \n\0lib/a.so\0"
    assert rows == b"81ed 12 1500000000 1600000000 bin/caf\xe9 \n\na1ff 6 1500000000 1600000000 lib/a.so\n"
    assert places == b""


def test_packed_files_say_what_stat_says(root: ImageRoot) -> None:
    """The row of a link is that of the link itself, as lstat(2) gives it."""
    (root.base / "usr/lib64").mkdir()
    (root.base / "usr/lib64/a.so").symlink_to("liba.so.1")
    status = (root.base / "usr/lib64/a.so").lstat()
    times = (int(status.st_mtime), int(status.st_ctime))
    plain = link("/usr/lib64/a.so", "liba.so.1")
    file = replace(plain, size_bytes=status.st_size, mtime_s=times[0], ctime_s=times[1])
    _, rows, _ = packed_facts(StartSet((file,), ()), (), Watched())
    assert rows == b"%x %d %d %d usr/lib64/a.so\n" % (status.st_mode, 9, *times)


def test_the_unit_its_links_and_where_it_would_be_masked(root: ImageRoot) -> None:
    assert {
        UNIT,
        f"{WANTS}/app.service",
        # Not there: `systemctl mask`, `edit --full`, set-default, a socket, the target's own mask.
        "/etc/systemd/system/app.service",
        "/etc/systemd/system.control/app.service",
        "/usr/local/lib/systemd/system/app.service",
        "/etc/systemd/system/default.target",
        "/etc/systemd/system/multi-user.target",
        "/etc/systemd/system/sockets.target.wants/app.socket",
        "/etc/systemd/system.conf",
    } <= files_of(root)


def test_every_directory_of_drop_ins(root: ImageRoot) -> None:
    put(root.base, "/usr/lib/systemd/system/a-b@.service", TEXT)
    for directory_ in ("/etc/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system"):
        names = ("a-b@x.service.d", "a-b@.service.d", "a-.service.d", "service.d")
        assert {f"{directory_}/{name}" for name in names} <= places_of(root, "a-b@x.service")
    assert "/usr/lib/systemd/system/a-b@.service" in files_of(root, "a-b@x.service")
    assert {"/etc/systemd/system.conf.d", "/etc/tmpfiles.d"} <= places_of(root)


def test_a_drop_in_by_a_link_is_known_by_both_ends(root: ImageRoot) -> None:
    put(root.base, "/opt/hard.conf", "[Service]\nNoNewPrivileges=yes\n")
    put(root.base, "/etc/systemd/system/app.service.d/a.conf", "")
    (root.base / "etc/systemd/system/app.service.d/b.conf").symlink_to("/opt/hard.conf")
    (root.base / "etc/systemd/system/app.service.d/c.conf").symlink_to("/dev/null")
    found = watched(root, ("app.service",), StartSet((), ()), ())
    assert P("/opt/hard.conf") in found.names
    assert not [name for name in found.names if str(name).startswith("/dev")]
    entries = {str(file.path) for file in found.files}
    assert {f"/etc/systemd/system/app.service.d/{name}.conf" for name in "abc"} | {
        "/opt/hard.conf"
    } <= entries


def test_a_directory_that_is_a_link_is_looked_into(root: ImageRoot) -> None:
    put(root.base, "/opt/drop/a.conf", "")
    (root.base / "etc/systemd/system/app.service.d").symlink_to("/opt/drop")
    found = watched(root, ("app.service",), StartSet((), ()), ())
    assert P("/etc/systemd/system/app.service.d") in found.names
    assert P("/opt/drop") in found.places
    assert P("/opt/drop/a.conf") in {file.path for file in found.files}


def test_what_must_not_be_there(root: ImageRoot) -> None:
    conditions = "[Unit]\nConditionPathExists=!/etc/not\nAssertPathIsDirectory=|!/opt/a b\nConditionPathExists=/etc/yes\n"
    put(root.base, UNIT, f"{conditions}ConditionUser=!/x\nConditionPathExistsGlob=!/y/*\n{TEXT}")
    found = files_of(root)
    assert {"/etc/not", "/opt/a b"} <= found
    assert not {"/etc/yes", "/x", "/y/*"} & found


@pytest.mark.parametrize(
    ("text", "slices"),
    [
        (TEXT, ("-.slice", "system.slice")),
        (f"{TEXT}Slice=web-front.slice\n", ("-.slice", "web.slice", "web-front.slice")),
    ],
)
def test_what_holds_for_the_slices_of_the_unit(root: ImageRoot, text: str, slices: tuple[str, ...]) -> None:
    """`systemctl set-property system.slice IPAddressDeny=any` confines every service that it has."""
    put(root.base, UNIT, text)
    units = ("/etc/systemd/system.control", "/etc/systemd/system", "/usr/lib/systemd/system")
    assert {f"{place}/{name}" for place in units for name in slices} <= files_of(root)
    assert {f"{place}/{name}.d" for place in units for name in (*slices, "slice")} <= places_of(root)
    # `systemctl add-requires web.slice guard.service`
    assert {f"{place}/{name}.requires" for place in units[1:] for name in (*slices, "slice")} <= places_of(
        root
    )


def test_what_is_pulled_in_before_the_unit_and_who_may_mask_it(root: ImageRoot) -> None:
    """`systemctl add-requires app.service guard.service`; a generator of the administrator's."""
    assert {
        *(f"/etc/systemd/system/app.service.{kind}" for kind in ("wants", "requires", "upholds")),
        "/etc/systemd/system-generators",
        "/etc/systemd/system-environment-generators",
        "/usr/local/lib/systemd/system-generators",
    } <= places_of(root)
    put(root.base, "/usr/lib/systemd/system/a@.service", TEXT)
    assert {f"/etc/systemd/system/{name}.requires" for name in ("a@.service", "a@x.service")} <= places_of(
        root, "a@x.service"
    )


def test_apparmor_counts_only_for_who_would_be_confined(root: ImageRoot) -> None:
    assert "/usr/sbin/apparmor_parser" not in files_of(root)
    put(root.base, UNIT, f"{TEXT}AppArmorProfile=-app\n")
    assert "/usr/sbin/apparmor_parser" in files_of(root)


def test_rows_are_those_of_what_is_there_the_entries_of_places_last(root: ImageRoot) -> None:
    put(root.base, "/etc/systemd/system/app.service.d/z.conf", "four")
    (root.base / "etc/systemd/system/app.service.d/directory").mkdir()
    found = watched(root, ("app.service",), StartSet((), ()), ())
    names, rows, places = packed_facts(StartSet((), ()), (), found)
    assert b"etc/systemd/system/app.service\0" in names
    assert b"etc/systemd/system/app.service.d\0" in places
    rows_by_name = [row.split(b" ", 4) for row in rows.splitlines()]
    assert [row[4] for row in rows_by_name] == [
        b"etc/systemd/system/multi-user.target.wants/app.service",
        b"usr/lib/systemd/system/app.service",
        b"etc/systemd/system/app.service.d/z.conf",
    ]
    assert rows_by_name[2][1] == b"4"
    assert {row[3] for row in rows_by_name} == {str(IMAGE_TIME_S).encode()}


def test_no_directory_passes_for_an_option_of_find(root: ImageRoot) -> None:
    put(root.base, "/etc/ld.so.conf", "/-delete\n/!\n/usr/local/lib\n")
    places = {str(path) for path in watched(root, ("app.service",), StartSet((), ()), ()).places}
    assert "/usr/local/lib/glibc-hwcaps/x86-64-v3" in places
    assert not [path for path in places if path.startswith(("/-", "/!"))]


MACHINE = ("/etc/fstab", "/etc/network/interfaces", "/etc/dhcp/dhclient.conf")


def test_what_the_machine_is_before_a_service_counts(root: ImageRoot) -> None:
    """A mount over the service's data, a hardened kernel, a filter: a stock boot has them before it starts the service."""
    put(root.base, "/etc/fstab", "UUID=1 / ext4 defaults 0 1\n")
    put(root.base, "/etc/sysctl.d/local.conf", "kernel.unprivileged_userns_clone=0\n")
    assert {*MACHINE, "/etc/sysctl.conf"} <= files_of(root)
    assert {f"{WANTS}/ufw.service", "/etc/systemd/system/systemd-sysctl.service"} <= files_of(root)
    assert "/etc/systemd/system/systemd-sysctl.service.d" in places_of(root)
    early = {
        f"/etc/systemd/system/{name}.target.wants" for name in ("local-fs", "sysinit", "basic", "network-pre")
    }
    assert early <= places_of(root)
    assert {"/etc/sysctl.d", "/etc/network/interfaces.d", "/etc/systemd/network"} <= places_of(root)
    entries = {str(file.path) for file in watched(root, ("app.service",), StartSet((), ()), ()).files}
    assert {"/etc/fstab", "/etc/sysctl.d/local.conf"} <= entries


def test_what_the_administrator_puts_before_every_service_counts(root: ImageRoot) -> None:
    """`systemctl edit sysinit.target` with Wants=guard.service, a link that pulls in, a goal that conflicts with it."""
    assert {
        "/etc/systemd/system/sysinit.target.d",
        "/etc/systemd/system/target.d",
        "/etc/systemd/system/sysinit.target.upholds",
        "/etc/systemd/system.control/basic.target.d",
        "/usr/local/lib/systemd/system/sysinit.target.wants",
        "/etc/systemd/system/multi-user.target.d",
    } <= places_of(root)
    # A package with a service changes these.
    assert not {WANTS, "/usr/lib/systemd/system"} & places_of(root)


def test_a_unit_of_the_administrators_own_counts_whatever_pulls_it_in(root: ImageRoot) -> None:
    """`Before=network-pre.target` and `WantedBy=multi-user.target`: a packet filter by a name that nobody knows."""
    own = "/etc/systemd/system"
    assert {own, "/etc/systemd/system.control", "/usr/local/lib/systemd/system"} <= places_of(root)
    before = watched(root, ("app.service",), StartSet((), ()), ())
    put(
        root.base, f"{own}/wall.service", "[Unit]\nBefore=network-pre.target\n[Service]\nExecStart=/bin/nft\n"
    )
    after = watched(root, ("app.service",), StartSet((), ()), ())
    assert {file.path for file in after.files} - {file.path for file in before.files} == {
        P(f"{own}/wall.service")
    }


def test_a_filter_of_the_image_counts_before_it_is_enabled(root: ImageRoot) -> None:
    """`systemctl enable wall` makes only a link, in a place where each package with a service makes one."""
    own, packages = "/etc/systemd/system", "/usr/lib/systemd/system"
    text = "[Unit]\nBefore=network-pre.target\n[Service]\nExecStart=/bin/nft\n[Install]\n"
    put(root.base, f"{packages}/wall.service", f"{text}WantedBy=multi-user.target network.target\n")
    put(root.base, f"{own}/own.service", f"{text}RequiredBy=network.target\nUpheldBy=a.target\n")
    put(root.base, f"{packages}/plain.service", "[Install]\nWantedBy=multi-user.target\n")
    # One that leads nowhere is no reason to stop.
    (root.base / f"{own[1:]}/gone.service").symlink_to("/opt/gone.service")
    assert {
        f"{WANTS}/wall.service",
        f"{own}/network.target.wants/wall.service",
        f"{own}/network.target.requires/own.service",
        f"{own}/a.target.upholds/own.service",
    } <= files_of(root)
    assert f"{WANTS}/plain.service" not in files_of(root)


def test_a_policy_for_ima_counts(root: ImageRoot) -> None:
    assert "/etc/ima/ima-policy" in files_of(root)


def test_an_alias_counts_and_the_packages_unit_behind_it_does_not(root: ImageRoot) -> None:
    """An upgrade of openssh-server leaves the fast start of another service intact; a mask of sshd.service does not."""
    own, packages = "/etc/systemd/system", "/usr/lib/systemd/system"
    put(root.base, f"{packages}/ssh.service", TEXT)
    put(root.base, "/opt/wall.service", TEXT)
    for name, target in (("sshd", f"{packages}/ssh"), ("wall", "/opt/wall")):
        (root.base / f"{own[1:]}/{name}.service").symlink_to(f"{target}.service")
    entries = {str(file.path) for file in watched(root, ("app.service",), StartSet((), ()), ()).files}
    assert {f"{own}/sshd.service", f"{own}/wall.service", "/opt/wall.service"} <= entries
    assert f"{packages}/ssh.service" not in entries


def test_audit_and_forbidden_modules_count(root: ImageRoot) -> None:
    """`systemctl enable auditd`; `install squashfs /bin/false`, which init's own loading of modules would not see."""
    assert {f"{WANTS}/auditd.service", f"{WANTS}/audit-rules.service"} <= files_of(root)
    own = "/etc/systemd/system"
    assert f"{own}/sockets.target.wants/systemd-journald-audit.socket" in files_of(root)
    assert f"{own}/systemd-journald.service.wants/systemd-journald-audit.socket" in files_of(root)
    assert "/etc/modprobe.d" in places_of(root)


def test_what_cloud_init_writes_does_not_count_where_it_runs(root: ImageRoot) -> None:
    put(root.base, "/usr/lib/systemd/system/cloud-init.service", TEXT)
    wants = root.base / "etc/systemd/system/cloud-init.target.wants"
    wants.mkdir()
    (wants / "cloud-init.service").symlink_to("/usr/lib/systemd/system/cloud-init.service")
    assert set(MACHINE) & files_of(root) == {"/etc/dhcp/dhclient.conf"}
    assert not {"/etc/network/interfaces.d", "/etc/systemd/network"} & places_of(root)
    assert "/etc/sysctl.d" in places_of(root)


def test_directories_on_the_way_count_by_mode_and_owners(root: ImageRoot) -> None:
    """Who may not come to a file on the volume is not to have it from /fast."""
    put(root.base, "/opt/app/bin/app", "")
    (root.base / "opt/app").chmod(0o750)
    served = StartSet((start_file("/opt/app/bin/app", FileKind.FILE, 0o100755),), ())
    ways = watched(root, ("app.service",), served, ()).ways
    assert [str(each.path) for each in ways] == ["/", "/opt", "/opt/app", "/opt/app/bin"]
    names, rows = way_facts(ways)
    assert names == b".\0opt\0opt/app\0opt/app/bin\0"
    assert rows.splitlines()[1:] == [b"41ed 0 0 0 opt", b"41e8 0 0 0 opt/app", b"41ed 0 0 0 opt/app/bin"]


def test_the_directories_on_the_way_to_what_is_not_there(root: ImageRoot) -> None:
    for name in ("usr/local", "opt/lib"):
        (root.base / name).mkdir(parents=True)
    (root.base / "usr/local/lib").symlink_to("/opt/lib")
    found = set(map(str, watched(root, ("app.service",), StartSet((), ()), ()).parents))
    assert {"/etc", "/etc/systemd/system.control", "/usr/local", "/opt", "/opt/lib/systemd/system"} <= found
    assert not {"/", "/usr/local/lib"} & found


def test_a_file_that_must_stay_absent(root: ImageRoot) -> None:
    """Of Avahi, say, for which a program has asked D-Bus in vain."""
    path = P("/usr/share/dbus-1/system-services/org.freedesktop.Avahi.service")
    assert path not in watched(root, ("app.service",), StartSet((), ()), ()).names
    found = watched(root, ("app.service",), StartSet((), ()), (), absent=(path,))
    assert path in found.names
    assert path not in {file.path for file in found.files}


@pytest.mark.parametrize("has_generator", [True, False])
@pytest.mark.parametrize("has_socket", [True, False])
def test_the_ports_of_sshd_are_those_of_its_socket_on_ubuntu(
    root: ImageRoot, has_generator: bool, has_socket: bool
) -> None:
    """`Port 2222` in sshd_config changes the socket by a generator, which runs before each start."""
    put(root.base, "/usr/lib/systemd/system/ssh.service", "[Service]\nExecStart=/usr/sbin/sshd -D\n")
    if has_socket:
        put(root.base, "/usr/lib/systemd/system/ssh.socket", "[Socket]\nListenStream=22\n")
        (root.base / "etc/systemd/system/sockets.target.wants").mkdir()
        (root.base / "etc/systemd/system/sockets.target.wants/ssh.socket").symlink_to(
            "/usr/lib/systemd/system/ssh.socket"
        )
    if has_generator:
        put(root.base, "/usr/lib/systemd/system-generators/sshd-socket-generator", "")
    is_fact = has_generator and has_socket
    assert ("/etc/ssh/sshd_config" in files_of(root, "ssh.service")) == is_fact
    assert ("/etc/ssh/sshd_config.d" in places_of(root, "ssh.service")) == is_fact
    assert "/etc/ssh/sshd_config" not in files_of(root)
