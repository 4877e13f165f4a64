"""Each configuration gets ready once with our command line, and the guest confirms that it is what its name promises."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from quickstart.bench.prepare import prepare
from quickstart.host.progress import Quiet
from quickstart.image.kerneloptions import words_of
from quickstart.initramfs.newc import directory, symlink, write_archive
from quickstart.launch.qemu import QemuGuest
from quickstart.measure.configuration import Boot, machine_of, with_command_line
from quickstart.model import Readied
from quickstart.model.words import KernelOptions
from quickstart.profile import load_profile
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root
from tests.guests import launched
from tests.vm.booting import heard

PROFILE = load_profile("nginx")
# systemd takes a minute under emulation; the others seconds.
STANDARD = pytest.param("standard", marks=pytest.mark.full)
TUNED = pytest.param("standard-tuned", marks=pytest.mark.full)
MAIN = "MAIN=$(cat /run/nginx.pid); "


@dataclass(frozen=True)
class Booted:
    """A guest that is ready, what it was booted from, and what was counted until then."""

    guest: QemuGuest
    boot: Boot
    readied: Readied

    def says(self, command: str) -> str:
        out, err = io.BytesIO(), io.BytesIO()
        status = self.guest.execute(command, out, err, 300)
        assert status == 0, (status, out.getvalue(), err.getvalue())
        return out.getvalue().decode().strip()


def shell() -> bytes:
    """A cpio with what ramboot has no need of itself, a /bin/sh that can be asked."""
    stream = io.BytesIO()
    place = "fast/quickstart/bin"
    held = [directory(name) for name in ("fast", "fast/quickstart", place)]
    links = [symlink(f"{place}/{name}", "../busybox") for name in ("ls", "readlink", "sh")]
    write_archive(stream, [*held, *links, symlink("bin", place)])
    return stream.getvalue()


@pytest.fixture(scope="module")
def booted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    name: str = request.param
    with Store(default_root()) as store:
        boot = with_command_line(prepare(PROFILE, name, Context(store, Quiet())), "ours")
        described = machine_of(boot)
        if name == "ramboot":
            extra = tmp_path_factory.mktemp("ramboot") / "shell.cpio"
            extra.write_bytes(shell())
            described = dataclasses.replace(described, initrds=(*described.initrds, extra))
        with launched(described, PROFILE.ready, store) as guest:
            readied = guest.wait_ready(PROFILE.ready.timeout_s)
            assert readied.ready.answer == "HTTP/1.1 200 OK"
            yield Booted(guest, boot, readied)


@pytest.mark.parametrize("booted", ["quickstart", "minimal", "ramboot", STANDARD, TUNED], indirect=True)
def test_our_options_reach_the_kernel_and_the_console_stays(booted: Booted) -> None:
    assert set(words_of(KernelOptions.OURS)) <= set(booted.says("cat /proc/cmdline").split())
    booted.says("echo the-console-is-heard >/dev/ttyS0")
    assert heard(booted.guest, "the-console-is-heard")


@pytest.mark.parametrize("booted", ["quickstart"], indirect=True)
def test_quickstart_runs_from_fast_with_few_reads(booted: Booted) -> None:
    assert booted.says(MAIN + "readlink /proc/$MAIN/exe") == "/fast/usr/sbin/nginx"
    assert 0 < booted.readied.root_io.reads <= 100


@pytest.mark.parametrize("booted", ["minimal"], indirect=True)
def test_minimal_runs_from_the_root_volume_under_our_init(booted: Booted) -> None:
    assert booted.says(MAIN + "readlink /proc/$MAIN/exe") == "/usr/sbin/nginx"
    assert booted.says(MAIN + "grep -c /fast/ /proc/$MAIN/maps || true") == "0"
    assert booted.says("readlink /proc/1/exe").endswith("/fast/quickstart/busybox")
    assert booted.says("findmnt -n -o FSTYPE /") == "ext4"
    assert booted.readied.root_io.reads > 100


@pytest.mark.parametrize("booted", ["ramboot"], indirect=True)
def test_ramboot_has_no_block_device_and_runs_by_the_ordinary_paths(booted: Booted) -> None:
    assert not booted.boot.attached
    assert booted.says("ls /sys/class/block") == ""
    assert booted.says("cat /proc/diskstats") == ""
    assert booted.says(MAIN + "readlink /proc/$MAIN/exe") == "/usr/sbin/nginx"
    assert booted.says("cat /var/log/nginx/access.log").count('"GET / HTTP/1.1" 200') > 0
    assert booted.boot.initrds[0].stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("booted", [STANDARD], indirect=True)
def test_standard_is_systemd_with_ifupdown_and_rsyslog(booted: Booted) -> None:
    assert booted.says("cat /proc/1/comm") == "systemd"
    assert booted.says(MAIN + "readlink /proc/$MAIN/exe") == "/usr/sbin/nginx"
    assert booted.says("systemctl is-enabled networking.service rsyslog.service") == "enabled\nenabled"
    assert booted.readied.root_io.reads > 1000


@pytest.mark.parametrize("booted", [TUNED], indirect=True)
def test_standard_tuned_has_networkd_and_only_ssh_and_cron_beside_nginx(booted: Booted) -> None:
    assert booted.says("systemctl is-active systemd-networkd.service") == "active"
    assert "State: routable (configured)" in booted.says("networkctl status --no-pager enp0s3")
    assert booted.says("ls /sbin/ifup /usr/sbin/rsyslogd /sbin/dhclient 2>/dev/null || true") == ""
    listed = booted.says(
        "systemctl --root=/ list-unit-files --state=enabled --no-legend --no-pager --type=service,timer"
    )
    services = {line.split()[0] for line in listed.splitlines()}
    # The last is what systemd-networkd.service brings along; it acts on the kernel's command line only.
    own = {"systemd-networkd.service", "systemd-network-generator.service"}
    assert services == {"cron.service", "nginx.service", "ssh.service", *own}
    # MODULES=list: a fraction of what the ordinary initramfs has.
    assert booted.boot.initrds[0].stat().st_size < 8 << 20


@pytest.mark.parametrize("booted", ["quickstart"], indirect=True)
def test_the_keyboard_still_shuts_the_machine_down(booted: Booted) -> None:
    """Last of its machine. The agent is busy, so the way is Ctrl-Alt-Del, over the controller that i8042.* is about."""
    booted.guest.start("sleep 1000")
    assert booted.guest.power_off(120)
