"""What systemd itself started before the application, by its own account."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from quickstart.errors import TraceError
from quickstart.model import Op, Trace
from quickstart.model.started import Card, Loaded, LoadedUnit, RootMount, Route, Wired
from quickstart.trace.started import parse_units
from tests.unit.accounts import LOG, OWN, PACKAGES, booted, changed, refused
from tests.unit.imagebuilder import trace
from tests.unit.test_unit_sockets import put


def test_a_usual_boot(tmp_path: Path) -> None:
    assert refused(tmp_path, booted()) == ""


@pytest.mark.parametrize(
    ("name", "after"),
    [
        ("filter.service", {"network__pre_target": "filter.service", "filter_service": ""}),
        (
            "check.service",
            {"sysinit_target": "guard.target", "guard_target": "check.service", "check_service": ""},
        ),
        ("srv-data.mount", {"local__fs_target": "srv-data.mount", "srv__data_mount": ""}),
        ("home.automount", {"local__fs_target": "home.automount", "home_automount": ""}),
        ("run-app.mount", {"local__fs_target": "run-app.mount", "run__app_mount": ""}),
        # A filter that is before the network, and one that somebody wrote for this very application.
        ("late.service", {"network_target": "late.service", "late_service": ""}),
        ("fetch-certs.service", {"app_service": "fetch-certs.service", "fetch__certs_service": ""}),
        # Names that only begin like those of systemd and cloud-init.
        (
            "systemd-filter.service",
            {"network_target": "systemd-filter.service", "systemd__filter_service": ""},
        ),
        (
            "cloud-firewall.service",
            {"network_target": "cloud-firewall.service", "cloud__firewall_service": ""},
        ),
        (
            "systemd-sysext.service",
            {"sysinit_target": "systemd-sysext.service", "systemd__sysext_service": ""},
        ),
    ],
)
def test_what_prepares_the_machine_is_refused(tmp_path: Path, name: str, after: dict[str, str]) -> None:
    message = refused(tmp_path, booted(), booted(**after))
    assert message.startswith(
        f"app.service cannot be started early: the reference boot started {name} before it"
    )


@pytest.mark.parametrize(
    ("name", "is_harmless"),
    [
        (r"filter@eth0\x2d1.service", False),
        (r"srv-my\x2ddata.mount", False),
        (r"systemd-cryptsetup@data\x2dcrypt.service", False),
        (r"systemd-fsck@dev-disk-by\x2dlabel-BOOT.service", True),
        (r"run-quickstart\x2dtrace.mount", True),
    ],
)
def test_a_name_that_systemctl_writes_between_quotes(tmp_path: Path, name: str, is_harmless: bool) -> None:
    """Id= has the name as it is, and After= has it as a shell would want it."""
    quoted = '"' + name.replace("\\", "\\\\") + '"'
    file = "" if name.endswith(".mount") else f"{PACKAGES}/{name.partition('@')[0]}@.service"
    text = LOG.replace("basic.target -.mount", f"{quoted} basic.target -.mount").replace(
        "== end",
        f"\nId={name}\nAfter=\nInactiveExitTimestampMonotonic=1\nConditionTimestampMonotonic=1\n"
        f"FragmentPath={file}\nDropInPaths=\n== end",
    )
    base = booted()
    message = refused(tmp_path, replace(base, loaded=parse_units(text)))
    assert (
        message.startswith(f"app.service cannot be started early: the reference boot started {name} ")
        is not is_harmless
    )


@pytest.mark.parametrize("word", ['"a', 'a"b"', '"a"b', "a\\x2db", '"a\\nb"', '""'])
def test_a_word_in_another_form(word: str) -> None:
    with pytest.raises(TraceError):
        parse_units(LOG.replace("basic.target -.mount", f"basic.target {word}"))


def test_a_unit_of_the_stack_may_come_before(tmp_path: Path) -> None:
    filtered = booted(network__pre_target="filter.service", filter_service="")
    assert refused(tmp_path, filtered, units=("filter.service", "app.service")) == ""


def test_what_the_application_does_not_come_after(tmp_path: Path) -> None:
    """It has no After=network.target, so systemd starts it beside what waits for the network, too."""
    beside = booted(app_service="basic.target", network_target="late.service", late_service="")
    assert refused(tmp_path, beside) == ""


@pytest.mark.parametrize("goal", ["multi-user.target", "graphical.target"])
def test_what_comes_after_all_services(tmp_path: Path, goal: str) -> None:
    name = goal.replace("-", "__").replace(".", "_")
    late = booted(**{"app_service": goal, name: "fw.service", "fw_service": ""})
    assert f"app.service cannot be started early: it comes after {goal}" in refused(tmp_path, late)


def test_what_comes_after_all_services_by_way_of_another(tmp_path: Path) -> None:
    """bookworm's cloud-final.service comes after multi-user.target."""
    final = booted(
        app_service="cloud-final.service", cloud__final_service="multi-user.target", multi__user_target=""
    )
    assert "it comes after multi-user.target" in refused(tmp_path, final)


def test_what_only_waits_for_the_network_may_wait_for_another_interface(tmp_path: Path) -> None:
    name = "systemd-networkd-wait-online.service"
    waiting = booted(network_target=name, systemd__networkd__wait__online_service="")
    drop_in = "/run/systemd/system/systemd-networkd-wait-online.service.d/10-netplan.conf"
    assert refused(tmp_path, changed(waiting, name, drop_ins=(drop_in,))) == ""
    put(tmp_path, f"{OWN}/{name}.d/a.conf", "[Service]\nExecStartPost=/usr/sbin/nft -f /etc/rules\n")
    assert "a.conf" in refused(tmp_path, changed(waiting, name, drop_ins=(drop_in, f"{OWN}/{name}.d/a.conf")))


@pytest.mark.parametrize("name", ["unbound", "nslcd", "systemd-timesyncd", "open-iscsi"])
def test_what_is_asked_for_by_name_is_not_overtaken(tmp_path: Path, name: str) -> None:
    """nginx comes after nss-lookup.target, and a name server before that; it looks up no names."""
    word = name.replace("-", "__")
    by_target = {"nss__lookup_target": f"{name}.service", f"{word}_service": ""}
    assert refused(tmp_path, booted(app_service="network.target nss-lookup.target", **by_target)) == ""
    named = booted(app_service=f"network.target {name}.service", **by_target)
    assert f"started {name}.service before it, because the unit itself comes after it" in refused(
        tmp_path, named
    )


def looking_up(base: Trace, *events: tuple[Op, str]) -> Trace:
    return replace(base, events=trace(*events).events)


READS_NAMES = (Op.OPEN, "/etc/resolv.conf")


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("unbound", READS_NAMES),
        ("dnsmasq", READS_NAMES),
        ("named", READS_NAMES),
        # nscd asks it for the application.
        ("unbound", (Op.LOOKUP, "/run/nscd/socket")),
        ("avahi-daemon", (Op.OPEN, "/lib/x86_64-linux-gnu/libnss_mdns4_minimal.so.2")),
        ("nslcd", (Op.OPEN, "/lib/x86_64-linux-gnu/libnss_ldap.so.2")),
    ],
)
def test_what_answers_the_application_is_not_overtaken(
    tmp_path: Path, name: str, event: tuple[Op, str]
) -> None:
    """Apache leaves out a virtual host, and its access rules, when its name does not resolve."""
    word = name.replace("-", "__")
    boot = booted(
        app_service="network.target nss-lookup.target",
        nss__lookup_target=f"{name}.service",
        **{f"{word}_service": ""},
    )
    assert refused(tmp_path, boot) == ""
    assert refused(tmp_path, looking_up(boot, (Op.LOOKUP, "/etc/resolv.conf"), (Op.OPEN, "/etc/hosts"))) == ""
    message = refused(tmp_path, boot, looking_up(boot, event))
    assert f"started {name}.service before it, and the unit looks up what that service knows" in message


@pytest.mark.parametrize(
    "name", ["nscd", "unscd", "systemd-resolved", "systemd-timesyncd", "avahi-daemon", "nslcd"]
)
def test_what_does_not_answer_names_may_be_overtaken(tmp_path: Path, name: str) -> None:
    """nscd only keeps answers; systemd-resolved has none without the network (test_others.py)."""
    by_target = {"nss__lookup_target": f"{name}.service", f"{name.replace('-', '__')}_service": ""}
    boot = booted(app_service="network.target nss-lookup.target", **by_target)
    assert refused(tmp_path, looking_up(boot, READS_NAMES)) == ""
    without = booted(app_service="network.target nss-lookup.target", nss__lookup_target="")
    assert refused(tmp_path, looking_up(without, READS_NAMES)) == ""


def test_users_that_another_machine_knows(tmp_path: Path) -> None:
    """cron passes by the table of a user that it does not find."""
    by_target = {"nss__user__lookup_target": "nslcd.service", "nslcd_service": ""}
    asks = booted(app_service="nss-user-lookup.target", **by_target)
    assert "started nslcd.service before it, and the unit looks up" in refused(tmp_path, asks)
    login = {"login_target": "nss-user-lookup.target", **by_target}
    assert refused(tmp_path, booted(app_service="login.target", **login)) == ""


@pytest.mark.parametrize(
    "name", ["cloud-init", "cloud-init-local", "cloud-final", "open-vm-tools", "systemd-homed"]
)
def test_what_prepares_the_machine_is_asked_for(tmp_path: Path, name: str) -> None:
    """/run/cloud-init/instance-data.json, /etc/hosts, further users."""
    word = name.replace("-", "__")
    service = {f"{word}_service": ""}
    by_target = booted(network_target=f"networking.service {name}.service", **service)
    assert refused(tmp_path, by_target) == ""
    named = booted(app_service=f"network.target {name}.service", **service)
    assert f"started {name}.service before it, because the unit itself comes after it" in refused(
        tmp_path, named
    )


def test_cloud_init_that_comes_before_the_unit_by_itself(tmp_path: Path) -> None:
    """cloud-init.service has Before=sshd.service."""
    named = booted(app_service="network.target cloud-init.service", cloud__init_service="")
    put(tmp_path, f"{PACKAGES}/app.service", "[Unit]\nAfter=network.target\n")
    assert refused(tmp_path, named) == ""
    put(tmp_path, f"{PACKAGES}/app.service", "[Unit]\nAfter=network.target cloud-init.service\n")
    assert "because the unit itself comes after it" in refused(tmp_path, named)


def test_a_generator_s_drop_in(tmp_path: Path) -> None:
    """What it says cannot be read from the image."""
    drop_in = "/run/systemd/generator/networking.service.d/a.conf"
    assert drop_in in refused(tmp_path, changed(booted(), "networking.service", drop_ins=(drop_in,)))


def test_what_was_not_started(tmp_path: Path) -> None:
    filtered = booted(network__pre_target="filter.service", filter_service="")
    assert refused(tmp_path, changed(filtered, "filter.service", started_us=0)) == ""
    # Its condition may hold on another machine.
    examined = changed(filtered, "filter.service", started_us=0, examined_us=1)
    assert "started filter.service before it" in refused(tmp_path, examined)


def test_extensions_that_had_nothing_to_do(tmp_path: Path) -> None:
    """What they look for is compared (inspect/unit/before.py)."""
    extended = booted(sysinit_target="systemd-sysext.service", systemd__sysext_service="")
    assert refused(tmp_path, changed(extended, "systemd-sysext.service", started_us=0, examined_us=1)) == ""


def test_a_harmless_name_is_the_package_s_unit_only(tmp_path: Path) -> None:
    own = changed(booted(), "networking.service", file=f"{OWN}/networking.service")
    assert f"started networking.service before it, by {OWN}/networking.service" in refused(tmp_path, own)


def test_the_administrator_s_tmp_mount(tmp_path: Path) -> None:
    """Init mounts /tmp by that file (inspect/unit/mounted.py). With noauto in fstab, only basic.target asks for the mount."""
    own = changed(
        booted(basic_target="tmp.mount", tmp_mount=""), "tmp.mount", file=f"{OWN}/tmp.mount", started_us=1
    )
    assert "the reference boot mounted /tmp, and init would not" in refused(tmp_path, own)
    put(tmp_path, "/etc/fstab", "tmpfs /tmp tmpfs noauto,noexec 0 0\n")
    assert "the reference boot mounted /tmp, and init would not" in refused(tmp_path, own)
    put(tmp_path, "/etc/fstab", "tmpfs /tmp tmpfs noexec 0 0\n")
    assert refused(tmp_path, own) == ""


def test_a_drop_in_of_a_harmless_unit_may_have_no_command(tmp_path: Path) -> None:
    drop_in = f"{OWN}/networking.service.d/a.conf"
    put(tmp_path, drop_in, "[Unit]\nAfter=x.target\n[Service]\nTimeoutStartSec=5\n")
    dropped = changed(booted(), "networking.service", drop_ins=(drop_in,))
    assert refused(tmp_path, dropped) == ""
    put(tmp_path, drop_in, "[Service]\nExecStartPre=/sbin/iptables-restore /etc/rules\n")
    assert f"started networking.service before it, with the commands of {drop_in}" in refused(
        tmp_path, dropped
    )


def test_a_socket_may_have_no_command(tmp_path: Path) -> None:
    """It is there before all services (systemd.special(7), sockets.target)."""
    file = f"{PACKAGES}/bell.socket"
    put(tmp_path, file, "[Socket]\nListenStream=80\n")
    socket = changed(
        booted(basic_target="bell.socket", bell_socket=""), "bell.socket", file=file, examined_us=1
    )
    assert refused(tmp_path, socket) == ""
    put(tmp_path, file, "[Socket]\nListenStream=80\nExecStartPre=/sbin/iptables-restore /etc/rules\n")
    assert f"started bell.socket before it, with the commands of {file}" in refused(tmp_path, socket)


def test_a_socket_of_systemd_s_own_generator(tmp_path: Path) -> None:
    """Its text is not in the image."""
    listening = booted(sysinit_target="sshd-unix-local.socket", **{"sshd-unix-local_socket": ""})
    made = "/run/systemd/generator/sshd-unix-local.socket"
    assert refused(tmp_path, changed(listening, "sshd-unix-local.socket", file=made)) == ""
    assert made.replace("unix-local", "x") in refused(
        tmp_path,
        changed(
            booted(sysinit_target="sshd-x.socket", **{"sshd-x_socket": ""}),
            "sshd-x.socket",
            file=made.replace("unix-local", "x"),
        ),
    )
    own = changed(listening, "sshd-unix-local.socket", file=made, drop_ins=(f"{OWN}/a.conf",))
    assert f"with the commands of {OWN}/a.conf" in refused(tmp_path, own)


def test_a_change_of_a_mount(tmp_path: Path) -> None:
    mounted = booted(local__fs_target="-.mount boot.mount", __mount="", boot_mount="")
    assert refused(tmp_path, mounted) == ""
    generated = changed(mounted, "boot.mount", file="/run/systemd/generator/boot.mount")
    assert refused(tmp_path, generated) == ""
    own = changed(mounted, "boot.mount", file=f"{OWN}/boot.mount")
    assert f"by {OWN}/boot.mount" in refused(tmp_path, own)
    assert "boot.mount.d/x.conf" in refused(
        tmp_path, changed(generated, "boot.mount", drop_ins=(f"{PACKAGES}/boot.mount.d/x.conf",))
    )


def test_an_account_without_the_unit(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"does not have other\.service"):
        refused(tmp_path, booted(), units=("app.service", "other.service"))


def test_the_log_of_the_units() -> None:
    app = LoadedUnit(
        name="app.service",
        after=frozenset({"basic.target", "-.mount"}),
        started_us=9_000_000,
        examined_us=8_000_000,
        file=f"{PACKAGES}/app.service",
        drop_ins=(f"{OWN}/app.service.d/a.conf", "/run/b.conf"),
    )
    other = LoadedUnit(name="other.service", after=frozenset(), started_us=0)
    wired = Wired(
        cards=(Card("ens3", "52:54:00:12:34:56"), Card("ens4", "52:54:00:12:34:57", is_enslaved=True)),
        routes=(
            Route("ens3", IPv4Network("0.0.0.0/0"), IPv4Address("10.0.2.2")),
            Route("ens3", IPv4Network("10.0.2.0/24")),
        ),
        addresses=(IPv4Address("127.0.0.1"), IPv4Address("10.0.2.15")),
    )
    assert parse_units(LOG) == Loaded((app, other), (RootMount("/", "ext4"),), wired)


@pytest.mark.parametrize(
    "text",
    [
        "",
        LOG[:-1],
        "== end\n",
        LOG.replace("Id=app.service\n", ""),
        LOG.replace("After=\n", ""),
        LOG.replace("DropInPaths=\n", ""),
        LOG.replace("Root=/ ext4\n", ""),
        LOG.replace("Root=/ ext4", "Root=/"),
        LOG.replace("Root=/ ext4", "Root=/ ext4\nOther=1"),
        LOG.replace(" free", ""),
        LOG.replace(" enslaved", " else"),
        LOG.replace("0202000A", "0202000"),
        LOG.replace("0202000A", "0202000g"),
        LOG.replace("00FFFFFF", "00FF00FF"),
        LOG.replace("Local=10.0.2.15", "Local=10.0.2"),
        LOG.replace("=9000000", "=-1"),
        LOG.replace("=9000000", "=" + "9" * 5000),
    ],
)
def test_a_log_that_is_none(text: str) -> None:
    with pytest.raises(TraceError, match=r"the log of the units is (cut|damaged)"):
        parse_units(text)


def test_a_mount_that_came_later(tmp_path: Path) -> None:
    """systemd orders each mount that it finds before local-fs.target, one of a container as well."""
    mounted = booted(local__fs_target="srv.mount", srv_mount="")
    assert "srv.mount" in refused(tmp_path, mounted)
    assert refused(tmp_path, changed(mounted, "srv.mount", started_us=2)) == ""


@pytest.mark.parametrize("name", ["cloud-final.service", "cloud-config.service"])
def test_a_late_stage_of_cloud_init(tmp_path: Path, name: str) -> None:
    unit = name.replace("-", "__").replace(".", "_")
    assert name in refused(tmp_path, booted(app_service=f"basic.target {name}", **{unit: ""}))
    assert refused(tmp_path, booted(app_service="basic.target a.target", a_target=name, **{unit: ""})) == ""


def test_a_target_of_cloud_init(tmp_path: Path) -> None:
    boot = booted(app_service="basic.target cloud-init.target", cloud__init_target="")
    assert "it comes after cloud-init.target" in refused(tmp_path, boot)


def test_a_service_of_netplan_s_generator(tmp_path: Path) -> None:
    boot = booted(network_target="netplan-ovs-cleanup.service", netplan__ovs__cleanup_service="")
    name = "netplan-ovs-cleanup.service"
    assert refused(tmp_path, changed(boot, name, file=f"/run/systemd/system/{name}")) == ""
    assert name in refused(tmp_path, changed(boot, name, file=f"{OWN}/{name}"))
