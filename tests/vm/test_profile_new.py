"""`profile new` for services that none of our profiles covers: its output builds, starts early and is handed over, unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.store.store import Store
from tests.vm.booting import console_until
from tests.vm.conftest import ADOPTED, BUILD_S, EARLY, Called, quickstart

SETTLED = (Path(__file__).with_name("guest") / "settled.sh").read_text()
# perl-base has both; the socket is there a moment before somebody answers.
_HAPROXY_ANSWERS = (
    "test -S /run/haproxy/admin.sock && perl -MIO::Socket::UNIX -e "
    '\'$s = IO::Socket::UNIX->new("/run/haproxy/admin.sock") or exit 1;'
    ' print $s "show info\\n"; exit(<$s> =~ /^Name: HAProxy/ ? 0 : 1)\''
)
SERVICES = {
    "lighttpd": ("--package", "lighttpd", "--unit", "lighttpd.service", "--ready", "http:80/"),
    "memcached": ("--package", "memcached", "--unit", "memcached", "--ready", "tcp:11211"),
    "haproxy": ("--package", "haproxy", "--unit", "haproxy.service", "--ready", f"exec:{_HAPROXY_ANSWERS}"),
    # The most confined unit of them all; redis.service is an alias.
    "redis-server": ("--package", "redis-server", "--unit", "redis", "--ready", "tcp:6379"),
    # systemd passes a socket to it; `profile new` finds its readiness.
    "cups": ("--package", "cups-daemon", "--unit", "cups"),
}
# What is to be seen of each in the whole machine, of its early process.
WORKS = {
    "lighttpd": "grep -c 'lighttpd' /proc/$early/comm",
    "memcached": "bash -c 'exec 3<>/dev/tcp/127.0.0.1/11211; echo version >&3; read -r word _ <&3; "
    'test "$word" = VERSION && echo 1\'',
    "redis-server": "grep -c '^Seccomp_filters:.*2' /proc/$early/status",
    "cups": 'perl -MIO::Socket::UNIX -e \'$s = IO::Socket::UNIX->new("/run/cups/cups.sock") or exit 1;'
    ' print $s "GET / HTTP/1.0\\r\\n\\r\\n"; exit(<$s> =~ /^HTTP/ ? 0 : 1)\' && echo 1',
    # Where its workers log to, in the namespace of their own.
    "haproxy": "nsenter --mount=/proc/$early/ns/mnt test -S /var/lib/haproxy/dev/log && echo 1",
}
_BOUND = """
# What is bound into the namespace of a process: root, place, options (proc(5), mountinfo).
bound() { grep ' /var/lib/haproxy/dev/log ' /proc/$1/mountinfo | cut -d ' ' -f 4-6; }
"""
ASK = (
    _BOUND
    + ADOPTED
    + """\
WORKS
before=$(bound $early)
systemctl restart UNIT
systemctl is-active UNIT
[ "$(bound $(systemctl show -P MainPID UNIT))" = "$before" ] && echo alike
[ "$(systemctl show -P MainPID UNIT)" != "$early" ] && echo another
systemctl --failed --no-legend --plain | wc -l
"""
)


def new(name: str, out: Path, *more: str) -> Called:
    return quickstart("profile", "new", name, *SERVICES[name], *more, "-o", out, "--json", timeout_s=BUILD_S)


@pytest.mark.full
@pytest.mark.parametrize("name", SERVICES)
def test_what_is_written_builds_and_is_handed_over(name: str, tmp_path: Path) -> None:
    profile, out = tmp_path / "profile", tmp_path / "out"
    written = new(name, profile)
    assert written.status == 0, written.err
    assert sorted(path.name for path in profile.iterdir()) == ["README.md", "profile.toml"]
    assert f"## {name}.service" in (profile / "README.md").read_text()
    checked = quickstart("profile", "check", profile, "--json")
    assert checked.status == 0, checked.err
    assert all(stage["stored"] for stage in checked.result["stages"])
    # Packing leaves some of them on the volume (pack/leave.py).
    assert checked.result["start_set_files"] >= written.result["start_set_files"] > 0

    built = quickstart("build", "--no-trial", "--profile", profile, "-o", out, "--json", timeout_s=BUILD_S)
    assert built.status == 0, built.err
    assert built.result["initramfs_bytes"] == written.result["initramfs_bytes"]

    verified = quickstart("verify", out, "--json", timeout_s=BUILD_S)
    assert verified.status == 0, (verified.err, verified.out[-2000:])
    assert verified.result["fallback"] == ""
    assert verified.result["budget"] == written.result["root_budget"]
    assert 0 < verified.result["requests"] <= verified.result["budget"]["requests"]

    ask = SETTLED + ASK.replace("WORKS", WORKS[name]).replace("UNIT", f"{name}.service")
    called = quickstart("run", out, "--snapshot", "--json", *EARLY, "--exec", ask, timeout_s=900)
    assert called.status == 0, called.err
    assert called.result["fallback"] is None
    said = called.result["exec_stdout"].split()
    assert said == ["running", "same", "active", "1", "active", "alike", "another", "0"]


@pytest.mark.full
def test_an_init_script_without_a_unit_file_is_handed_over(store: Store, tmp_path: Path) -> None:
    """systemd-sysv-generator makes the unit, which has no main process: the early one goes on in the unit's control group."""
    profile, out = tmp_path / "profile", tmp_path / "out"
    words = ("--package", "slapd", "--unit", "slapd", "--ready", "tcp:389")
    written = quickstart("profile", "new", "slapd", *words, "-o", profile, "--json", timeout_s=BUILD_S)
    assert written.status == 0, written.err
    built = quickstart("build", "--no-trial", "--profile", profile, "-o", out, "--json", timeout_s=BUILD_S)
    assert built.status == 0, built.err
    verified = quickstart("verify", out, "--json", timeout_s=BUILD_S)
    assert (verified.status, verified.result["fallback"]) == (0, ""), verified.err
    ask = f"""{SETTLED}
for _ in $(seq 3000); do [ ! -s /run/quickstart/main.pid ] || break; sleep 0.1; done
early=$(cat /run/quickstart/main.pid)
wait_settled
systemctl is-system-running --wait
systemctl show -P FragmentPath slapd
grep -c '/system.slice/slapd.service$' /proc/$early/cgroup
readlink /proc/$early/exe
systemctl is-active slapd
systemctl restart slapd
systemctl is-active slapd
[ -e /proc/$early ] || echo another
"""
    called = quickstart("run", out, "--snapshot", "--json", *EARLY, "--exec", ask, timeout_s=900)
    assert called.status == 0, called.err
    assert called.result["fallback"] is None
    assert called.result["exec_stdout"].split() == [
        # The script starts its program by an absolute path, so it comes from the root volume.
        *("running", "/run/systemd/generator.late/slapd.service", "1", "/usr/sbin/slapd"),
        *("active", "active", "another"),
    ]
    # A link that no longer starts it, and the machine is the stock one.
    disabled = quickstart(
        *("run", out, "--json", "--exec", "update-rc.d slapd disable", "--when", "settled"), timeout_s=900
    )
    assert disabled.status == 0, disabled.err
    console_until(store, out, "S01slapd is not as it was packed; the stock init takes over")


@pytest.mark.full
def test_it_says_the_same_again(tmp_path: Path) -> None:
    """The second time everything is in the store: no guest, the same bytes."""
    for place in ("one", "two"):
        called = new("lighttpd", tmp_path / place)
        assert called.status == 0, called.err
    assert "watch a boot" not in called.err
    assert "every request written down" not in called.err
    for file in ("profile.toml", "README.md"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


@pytest.mark.full
def test_memcached_listens_on_127_0_0_1_only_and_that_is_found_out(tmp_path: Path) -> None:
    called = new("memcached", tmp_path / "profile")
    assert called.status == 0, called.err
    assert 'address = "loopback"' in (tmp_path / "profile/profile.toml").read_text()
    assert "nobody reaches it from outside" in (tmp_path / "profile/README.md").read_text()


@pytest.mark.full
def test_an_answer_that_was_not_asked_for_is_named(tmp_path: Path) -> None:
    called = new("lighttpd", tmp_path / "profile", "--ready", "http:80/none")
    assert called.status == 1
    assert called.error["kind"] == "NoProfileError"
    assert "GET /none on port 80 is answered with 404, not with 200" in called.error_text
    assert list(tmp_path.iterdir()) == []


def test_a_unit_that_cannot_start_early_is_refused_by_name_before_anything_boots(tmp_path: Path) -> None:
    words = ("--package", "nginx", "--unit", "systemd-logind", "--ready", "tcp:22")
    called = quickstart("profile", "new", "x", *words, "-o", tmp_path / "x", "--json", timeout_s=BUILD_S)
    assert called.status == 1
    assert called.error["kind"] == "NoProfileError"
    assert "systemd-logind.service cannot be started early: it has " in called.error_text
    assert "IPAddressDeny" in called.error_text
    assert "watch a boot" not in called.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("package", "unit", "message"),
    [
        (
            "dbus-broker",
            "dbus-broker",
            "dbus-broker.service cannot be started early: it is dbus-broker",
        ),
        (
            "nfs-kernel-server",
            "nfs-server",
            "nfs-server.service cannot be started early: it needs proc-fs-nfsd.mount, which comes with systemd",
        ),
    ],
)
def test_services_that_are_refused(tmp_path: Path, package: str, unit: str, message: str) -> None:
    words = ("--package", package, "--unit", unit, "--ready", "tcp:1")
    called = quickstart("profile", "new", "x", *words, "-o", tmp_path / "x", "--json", timeout_s=BUILD_S)
    assert called.status != 0
    assert message in called.error_text
    assert called.error["hint"]
    assert "watch a boot" not in called.err
    assert list(tmp_path.iterdir()) == []


def test_a_unit_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    words = ("--package", "nginx", "--unit", "ngnix", "--ready", "http:80/")
    called = quickstart("profile", "new", "x", *words, "-o", tmp_path / "x", "--json", timeout_s=BUILD_S)
    assert called.status == 2
    assert called.error["message"] == "the image has no unit ngnix.service"
    assert called.error["hint"] == "did you mean 'nginx'?"
    assert list(tmp_path.iterdir()) == []
