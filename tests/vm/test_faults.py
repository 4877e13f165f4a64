"""Whatever fails on the fast path, the machine works in the end, and the console names the fallback.

A fault is on the disk, in OUT, or a hook (tests/vm/booting.py). Those of the volume are in test_faults_volume.py. The faults,
and the test of each:

| corrupt part A       | test_a_damaged_part_a_is_answered_by_the_stock_entry |
| corrupt part B       | test_a_flipped_byte_of_part_b_is_named_and_the_stock_system_comes |
| missing module       | test_without_a_driver_the_boot_loaders_way_back |
| no DHCP              | test_what_fails_in_init…[no lease], [no interface] |
| wrong root           | test_another_root_volume_is_booted_the_stock_way |
| dirty journal        | test_after_a_power_cut_the_journal_is_replayed |
| error flag           | test_a_volume_with_errors_is_checked_by_the_distribution |
| application exits    | test_a_program_that_ends_early_is_started_the_stock_way |
| hangs                | test_a_start_that_is_slow_goes_on_beside_the_distributions_boot |
| crashes after ready  | test_a_process_that_dies_before_the_hand_off…, test_a_process_that_dies_after_the_first_answer… |
| full root            | test_a_full_volume |
| no cgroup2           | test_what_fails_in_init…[no cgroup2] |
| stale stamp          | test_a_stamp_of_another_mount_is_not_believed |
| kernel upgraded      | test_a_newer_kernel_and_then_without_the_old_ones_modules |
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quickstart.initramfs.newc_reader import read_archive
from quickstart.store.store import Store
from tests.vm.booting import FAST, SETTLED, WHOLE, WORKING, boot
from tests.vm.conftest import STAY, quickstart
from tests.vm.test_stale import TOOL
from tests.vm.turns import turn_of

# Each of them has stock boots, so they take turns.
AT_REST = ("slow", "otherwise")

GUEST = Path(__file__).with_name("guest")


# What is broken in init's own files, and how the console names it.
HOOKS = {
    "no lease": (
        "start_dhcp() { ip link set lo up; ip link set $INTERFACE up; mkdir -p $Q/run; "
        "udhcpc -f -n -i lo -t 2 -T 1 -s /none & DHCP=$!; }",
        # By its own end or by the limit.
        "fallback 1: no DHCP lease on enp0s3",
    ),
    "no cgroup2": (
        "sed -i 's/^\t*cgroup2 /none-such /' $Q/second",
        "fallback 1: what the application needs is not mounted; the stock init takes over",
    ),
    "no interface": (
        "INTERFACE=ens9; name_interface() { return 1; }",
        "fallback 1: no network interface to be called ens9; the stock init takes over",
    ),
    "no drop-in": (
        "sed -i 's#^UNITS=.*#UNITS=/proc/none#' $Q/hand-off",
        "fallback 1: /run cannot be written to; the stock init takes over",
    ),
    "no room": (
        "sed -i 's#^\\tplace=.*tmpfiles.*#\\tplace=/proc/none#' $Q/hand-off",
        "fallback 1: /run cannot be written to; the stock init takes over",
    ),
    "no bind": (
        "bind_fast() { return 1; }",
        "fallback 1: /fast cannot be bound; the stock init takes over",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("name", HOOKS)
def test_what_fails_in_init_is_named_and_the_stock_system_comes(
    store: Store, artefact: Path, name: str
) -> None:
    hook, said = HOOKS[name]
    ended = boot(store, artefact, hook=hook)
    assert ended.said == WORKING
    assert len(ended.fallbacks) == 1
    assert ended.fallbacks[0].startswith(said)
    assert ended.fallbacks[0].endswith("; the stock init takes over")


@turn_of("slow", AT_REST)
def test_a_start_that_is_slow_goes_on_beside_the_distributions_boot(store: Store, artefact: Path) -> None:
    """Init looks for a port that nobody will listen on, as if the application were slow: its process is kept."""
    hook = (
        "sed -i 's/^READY_PORT=.*/READY_PORT=FFFF/' $Q/config; sed -i 's/^READY_LIMIT_S=.*/READY_LIMIT_S=2/' $Q/hand-off; "
        "READY_PORT=FFFF"
    )
    ended = boot(store, artefact, hook=hook)
    assert ended.said == FAST
    assert ended.fallbacks == []
    late = "hand-off: nginx.service is not ready after 2 s; it goes on beside the distribution's boot"
    assert late in ended.console


@turn_of("otherwise", AT_REST)
def test_a_server_that_answers_the_machine_itself_otherwise_is_handed_over_at_rest(
    store: Store, artefact: Path
) -> None:
    """As an access rule may have it. nginx has answered init's request, but init looks for another status."""
    hook = "sed -i 's/^READY_STATUS=.*/READY_STATUS=404/' $Q/config"
    ended = boot(
        store, artefact, hook=hook, command=f"{WHOLE}; grep quickstart-init /var/log/nginx/access.log"
    )
    assert ended.said[: len(FAST)] == FAST
    assert '"GET / HTTP/1.1" 200 ' in " ".join(ended.said[len(FAST) :])
    assert ended.fallbacks == [] and "is not ready after" not in ended.console


def test_a_process_that_dies_after_the_first_answer_is_started_again(store: Store, artefact: Path) -> None:
    """Before systemd has adopted it: adopt finds it dead. The unit is then the image's own, and it has not failed."""
    kill = "kill -9 $(cat /sys/fs/cgroup/system.slice/nginx.service/cgroup.procs); "
    tell = (
        "units=/run/systemd/system; mkdir -p $units/nginx.service.d; "
        "printf '[Unit]\\nOnFailure=tell.service\\n[Service]\\nKillSignal=SIGQUIT\\n' >$units/nginx.service.d/tell.conf; "
        "printf '[Service]\\nExecStart=touch /run/told\\n' >$units/tell.service; "
    )
    told = "ls /run/told 2>/dev/null; systemctl show -p OnFailure --value nginx"
    ended = boot(
        store,
        artefact,
        command=f"{tell} {kill} until systemctl is-active -q nginx; do sleep 1; done; {told}; {WHOLE}",
    )
    assert ended.said == ["tell.service", *WORKING]
    assert len(ended.fallbacks) == 1
    assert ended.fallbacks[0].startswith("fallback 1: nginx.service has ended; ")


@pytest.mark.full
def test_the_application_starts_with_the_kernel_settings_of_the_image(store: Store, artefact: Path) -> None:
    """What sysctl.d says of listen(2) holds for the socket of the application itself: nginx asks for 511."""
    hook = "echo 'setting net/core/somaxconn 123' >>$Q/settings"
    listening = boot(store, artefact, hook=hook, command="ss -Hltn 'sport = :80'", append="quickstart=stay")
    assert listening.said[:3] == ["LISTEN", "0", "123"]


def test_what_a_boot_gives_is_there_before_the_application(store: Store, artefact: Path) -> None:
    """For an application that reads the machine-id and name servers, on a machine without a name. systemd keeps all of it."""
    hook = (
        "sed -i 's/^READS_\\([A-Z_]*\\)=.*/READS_\\1=yes/' $Q/config; rm /newroot/etc/hostname; : >/newroot/etc/resolv.conf\n"
        # QEMU's server names none to a machine that is to reach nobody.
        "sed -i '4i dns=10.0.2.3' $Q/udhcpc\n"
        # The starter comes after all that; it keeps what it finds.
        "mv $Q/bin/starter $Q/bin/starter.real; ln -sf starter.real $Q/bin/caretaker\n"
        "printf '%s\\n' '#!/fast/quickstart/busybox sh' 'cd /run; cp /etc/machine-id id; cp /etc/resolv.conf names' "
        "'hostname >name' 'ls -l /dev/fd /dev/stdin >links' 'exec /fast/quickstart/bin/starter.real \"$@\"' >$Q/bin/starter\n"
        "chmod 755 $Q/bin/starter"
    )
    ask = (
        "cmp /run/id /etc/machine-id && wc -c </run/id; grep -c ^nameserver /run/names; cat /run/name\n"
        f"grep -c /proc/self/fd /run/links; grep -c ' /sys/kernel/security ' /proc/mounts; {WHOLE}"
    )
    ended = boot(store, artefact, hook=hook, command=f"{SETTLED}\nwait_settled; {ask}")
    assert ended.said == ["33", "1", "localhost", "2", "1", *FAST]
    assert ended.fallbacks == []


@pytest.mark.full
def test_an_upgrade_before_settle_leaves_a_unit_that_can_be_restarted(store: Store, artefact: Path) -> None:
    """What dpkg's trigger finds then: /fast stays until settle, which takes it away. Settle is held up here until it was found."""
    hook = "sed -i '5i until [ -e /run/found ]; do sleep 0.1; done' $Q/settle"
    command = (
        'until [ "$(cat /proc/1/comm)" = systemd ]; do sleep 0.1; done\n'
        "cp /usr/sbin/nginx /root/newer; mount --bind /root/newer /usr/sbin/nginx\n"
        "quickstart check >/dev/null || echo differs; umount /usr/sbin/nginx; ls /run/quickstart/take-away; touch /run/found\n"
        f"{SETTLED}\nwait_settled; find /fast -type f | wc -l; readlink /fast/usr/sbin/nginx\n"
        "systemctl restart nginx; systemctl is-active nginx; readlink /proc/$(cat /run/nginx.pid)/exe"
    )
    ended = boot(store, artefact, hook=hook, command=command)
    assert ended.said == [
        "differs",
        "/run/quickstart/take-away",
        "0",
        "/usr/sbin/nginx",
        "active",
        "/usr/sbin/nginx",
    ]
    assert ended.fallbacks == []


@pytest.mark.full
def test_a_process_that_dies_before_the_hand_off_is_started_the_stock_way(
    store: Store, artefact: Path
) -> None:
    """It has answered; init is still PID 1, and held up here until it is dead."""
    hook = r"sed -i 's#^\twait_ready$#&; until [ -e /run/dead ]; do usleep 10000; done#' $Q/hand-off"
    kill = "cat /proc/1/comm; kill -9 $(cat /run/quickstart/main.pid); touch /run/dead; "
    ended = boot(store, artefact, hook=hook, command=f"{kill} {WHOLE}")
    assert ended.said == ["busybox", *WORKING]
    assert ended.fallbacks == ["fallback 1: nginx.service has ended; the stock init takes over"]


@pytest.mark.full
def test_a_program_that_ends_early_is_started_the_stock_way(store: Store, used: Path) -> None:
    """Its log lies where only systemd makes a directory: the early start fails, the stock one does not."""
    edit = "sed -i 's#^error_log .*#error_log /run/udev/nginx.log;#' /etc/nginx/nginx.conf; cat /etc/nginx/nginx.conf"
    edited = quickstart("run", used, *STAY, "--exec", edit)
    assert "error_log /run/udev/nginx.log;" in edited.out
    ended = boot(store, used)
    assert ended.said == WORKING
    assert len(ended.fallbacks) == 1 and "nginx.service did not start: " in ended.fallbacks[0]


@pytest.mark.full
def test_a_newer_kernel_and_then_without_the_old_ones_modules(store: Store, used: Path) -> None:
    """OUT's kernel goes on beside a newer one; when its modules are gone, there is no fast start any more."""
    settle = f"{TOOL} record /fast/quickstart"
    installed = quickstart(
        "run", used, *STAY, "--exec", f"{settle}; uname -r; {(GUEST / 'kernel.sh').read_text()}"
    )
    kernel, told = installed.out.splitlines()
    assert told == (
        f"quickstart: the fast start goes on with kernel {kernel}; `quickstart rebuild OUT` on the host takes 9.9.9."
    )
    remove = f"mv /usr/lib/modules/{kernel} /root; {TOOL} check"
    ended = boot(store, used, command=f"{SETTLED}wait_settled; {WHOLE}; {remove}", keep=True)
    gone = f"/lib/modules/{kernel} is not as it was packed"
    assert ended.said[: len(FAST)] == FAST
    assert " ".join(ended.said[len(FAST) :]).startswith(f"quickstart: {gone}; the next boot is a stock one.")
    assert ended.fallbacks == []
    assert f"quickstart: not stamped: {gone}" in ended.console
    ended = boot(store, used)
    assert ended.said == WORKING
    assert ended.fallbacks == [f"fallback 1: {gone}; the stock init takes over"]


@pytest.mark.full
def test_without_a_driver_the_boot_loaders_way_back(used: Path) -> None:
    """Fallback 2 is a reboot, after which the boot loader, here `run`, takes the stock entry."""
    rename_in(used / "initramfs.img", b"/modules.d/virtio_blk.ko\0", b"/modules.d/virtio_bl_.ko\0")
    called = quickstart("run", used, "--snapshot", "--console", "--json", "--exec", WHOLE, timeout_s=1200)
    assert called.status == 0, called.err
    assert called.result["exec_stdout"].split() == WORKING
    assert called.result["fallback"].startswith("fallback 2: the guest ended before it was ready")
    assert "quickstart: module virtio_blk was not loaded" in called.console
    assert re.search(r"quickstart: fallback 2: no volume with UUID .*; rebooting", called.console)


def rename_in(archive: Path, old: bytes, new: bytes) -> None:
    """One name in an archive, by another of its length."""
    data = archive.read_bytes()
    assert data.count(old) == 1
    archive.write_bytes(data.replace(old, new))


def test_a_flipped_byte_of_part_b_is_named_and_the_stock_system_comes(store: Store, used: Path) -> None:
    with (used / "initramfs.img").open("r+b") as file:
        largest = max((each for each in read_archive(file) if each.archive == 1), key=lambda each: each.size)
        place = largest.offset + largest.size // 3
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 4]))
    ended = boot(store, used)
    assert ended.said == WORKING
    assert ended.fallbacks == [
        f"fallback 1: part B of the initramfs is damaged: /{largest.name} (content); the stock init takes over"
    ]


@pytest.mark.full
def test_a_check_that_does_not_come_to_its_end_is_damage(store: Store, artefact: Path) -> None:
    """Init waits for a process that crashes."""
    ended = boot(store, artefact, hook="$Q/busybox sh -c 'kill -SEGV $$' & CHECKER=$!")
    assert ended.said == WORKING
    assert ended.fallbacks == [
        "fallback 1: part B of the initramfs is damaged: the check did not end well; the stock init takes over"
    ]


@pytest.mark.full
def test_a_damaged_part_a_is_answered_by_the_stock_entry(used: Path) -> None:
    """The kernel finds no init and panics; the machine reboots after panic=10, and `run` boots the stock initramfs."""
    with (used / "initramfs.img").open("r+b") as file:
        file.seek(6)
        file.write(b"x" * 100)
    called = quickstart("run", used, "--snapshot", "--json", "--exec", WHOLE, timeout_s=1200)
    assert called.status == 0, called.err
    assert called.result["exec_stdout"].split() == WORKING
    assert called.result["fallback"].startswith("fallback 2: the guest ended before it was ready")
