"""A kernel setting that the unit writes, and that the rest of a boot would write again after an early start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.sysctl import kernel_settings
from quickstart.model import Op, Trace
from quickstart.pack.undone import refuse_undone_settings
from tests.unit.imagebuilder import trace

FORWARD = "/proc/sys/net/ipv4/ip_forward"
WRITES = trace((Op.WRITE, FORWARD))
V4, V6 = "/proc/sys/net/ipv4", "/proc/sys/net/ipv6"
BLOCK = "/sys/devices/pci0000:00/0000:00:05.0/virtio2/block/vda/queue/scheduler"


def judge(base: Path, found: Trace, file: str = "", text: str = "") -> None:
    (base / "etc/sysctl.d").mkdir(parents=True, exist_ok=True)
    (base / "etc/tmpfiles.d").mkdir(parents=True, exist_ok=True)
    if file:
        (base / file).write_text(text)
    refuse_undone_settings((found,), "app.service", ImageRoot(base))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("etc/sysctl.d/a.conf", "net.ipv4.ip_forward = 0\n"),
        ("etc/sysctl.d/a.conf", "net/ipv4/*=0\n"),
        ("etc/tmpfiles.d/a.conf", f"w {FORWARD} - - - - 0\n"),
    ],
)
def test_a_setting_of_the_image_would_undo_the_unit_s(tmp_path: Path, file: str, text: str) -> None:
    with pytest.raises(UnsupportedUnitError, match="it sets /proc/sys/net/ipv4/ip_forward"):
        judge(tmp_path, WRITES, file, text)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (WRITES, ""),
        (WRITES, "net.ipv4.ip_default_ttl=60\nnet.ipv4.conf.*.rp_filter=2\n"),
        # A pattern leaves alone what is excepted from it.
        (WRITES, "net.ipv4.*=0\n-net.ipv4.ip_forward\n"),
        # It finds the value that it wants.
        (trace((Op.OPEN, FORWARD)), "net.ipv4.ip_forward=1\n"),
        (
            replace(WRITES, events=tuple(replace(each, error="EROFS") for each in WRITES.events)),
            "net.ipv4.ip_forward=0\n",
        ),
    ],
)
def test_other_settings_stay(tmp_path: Path, found: Trace, text: str) -> None:
    judge(tmp_path, found, "etc/sysctl.d/a.conf", text)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        # A second name of the switch, by itself and behind a pattern.
        (FORWARD, "net.ipv4.conf.all.forwarding = 0\n"),
        (FORWARD, "net/ipv4/conf/*/forwarding = 0\n"),
        (f"{V4}/conf/all/forwarding", "net.ipv4.ip_forward = 0\n"),
        # It sets that of each card and of cards to come, too.
        (FORWARD, "net.ipv4.conf.default.forwarding = 0\n"),
        (FORWARD, "net/ipv4/conf/br0.1/forwarding = 0\n"),
        (f"{V4}/conf/docker0/forwarding", "net.ipv4.ip_forward = 0\n"),
        # A pattern that spares one name has the other.
        (FORWARD, "net.ipv4.*=0\nnet.ipv4.conf.*.forwarding=0\n-net.ipv4.ip_forward\n"),
        (FORWARD, "net.ipv4.conf.all.accept_redirects = 1\n"),
        (f"{V6}/conf/docker0/disable_ipv6", "net.ipv6.conf.all.disable_ipv6 = 1\n"),
        (f"{V6}/conf/all/forwarding", "net.ipv6.conf.default.forwarding = 0\n"),
        ("/proc/sys/vm/dirty_ratio", "vm.dirty_bytes = 1048576\n"),
        ("/proc/sys/fs/inotify/max_user_watches", "user.max_inotify_watches = 10\n"),
        ("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "vm.nr_hugepages = 0\n"),
        ("/proc/sys/net/nf_conntrack_max", "net.netfilter.nf_conntrack_max = 10\n"),
    ],
)
def test_a_setting_that_changes_what_the_unit_has_set(tmp_path: Path, path: str, text: str) -> None:
    with pytest.raises(UnsupportedUnitError, match="cannot be started early: it sets /"):
        judge(tmp_path, trace((Op.WRITE, path)), "etc/sysctl.d/a.conf", text)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        # Usual hardening.
        (FORWARD, "net.ipv4.conf.all.accept_redirects = 0\nnet.ipv4.conf.*.accept_redirects=0\n"),
        (FORWARD, "net.ipv4.conf.default.rp_filter=2\nnet.ipv4.conf.*.rp_filter=2\nnet.ipv6.conf.all.forwarding=0\n"),
        (f"{V4}/conf/docker0/forwarding", "net.ipv4.conf.default.forwarding = 0\n"),
        (f"{V6}/conf/docker0/accept_ra", "net.ipv6.conf.all.accept_ra=0\nnet.ipv6.conf.default.accept_ra=0\n"),
    ],
)  # fmt: skip
def test_settings_that_leave_it_alone(tmp_path: Path, path: str, text: str) -> None:
    judge(tmp_path, trace((Op.WRITE, path)), "etc/sysctl.d/a.conf", text)


def test_a_file_that_is_not_world_readable_counts_and_is_not_packed(tmp_path: Path) -> None:
    judge(tmp_path, trace())
    (tmp_path / "etc/sysctl.conf").write_text("net.ipv4.ip_forward = 0\n")
    (tmp_path / "etc/sysctl.conf").chmod(0o440)
    (tmp_path / "etc/sysctl.d/99-sysctl.conf").symlink_to("../sysctl.conf")
    with pytest.raises(UnsupportedUnitError, match="net/ipv4/ip_forward"):
        judge(tmp_path, WRITES)
    assert [each.value for each in kernel_settings(ImageRoot(tmp_path))] == [""]


@pytest.mark.parametrize("is_masked", [True, False])
def test_a_masked_service_undoes_nothing(tmp_path: Path, is_masked: bool) -> None:
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    service = tmp_path / "etc/systemd/system/systemd-sysctl.service"
    if is_masked:
        service.symlink_to("/dev/null")
        return judge(tmp_path, WRITES, "etc/sysctl.d/a.conf", "net.ipv4.ip_forward=0\n")
    service.write_text("[Service]\nExecStart=/usr/lib/systemd/systemd-sysctl\n")
    with pytest.raises(UnsupportedUnitError):
        judge(tmp_path, WRITES, "etc/sysctl.d/a.conf", "net.ipv4.ip_forward=0\n")
    return None


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ("/sys/kernel/mm/transparent_hugepage/enabled", "w /sys/kernel/mm/transparent_hugepage/enabled - - - - never"),
        # A disk has several paths, a value a specifier, and a package's file another mode.
        (BLOCK, "w! /sys/block/vda/queue/scheduler - - - - none"),
        (BLOCK, "w /sys/class/block/*/queue/scheduler - - - - '%b'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_a_line_of_tmpfiles_for_sys(tmp_path: Path, written: str, line: str, mode: int) -> None:
    judge(tmp_path, trace((Op.WRITE, "/sys/kernel/mm/ksm/run")), "etc/tmpfiles.d/a.conf", line)
    (tmp_path / "etc/tmpfiles.d/a.conf").chmod(mode)
    with pytest.raises(UnsupportedUnitError, match="it sets /sys/"):
        judge(tmp_path, trace((Op.WRITE, written)))


@pytest.mark.parametrize(
    ("file", "text", "is_undone"),
    [
        ("networkd.conf", "[Network]\nIPv4Forwarding=no\n", True),
        ("networkd.conf.d/a.conf", "[Network]\nSpeedMeter=no\nIPv4Forwarding=no\n", True),
        ("networkd.conf", "[Network]\n#IPv4Forwarding=\nIPv6Forwarding=no\n", False),
        ("networkd.conf", "[DHCPv4]\nIPv4Forwarding=no\n", False),
        ("networkd.conf", "[Network]\nIPv4Forwarding=\n", False),
    ],
)
def test_networkd_sets_forwarding_when_it_starts(
    tmp_path: Path, file: str, text: str, is_undone: bool
) -> None:
    (tmp_path / "etc/systemd/networkd.conf.d").mkdir(parents=True)
    (tmp_path / "etc/systemd" / file).write_text(text)
    if is_undone:
        with pytest.raises(UnsupportedUnitError, match="by net/ipv4/conf/default/forwarding"):
            judge(tmp_path, WRITES)
    else:
        judge(tmp_path, WRITES)
