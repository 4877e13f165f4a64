"""The hand-off: nginx answers first, then the distribution's own system grows around it (docs/users/hand-off.md)."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from quickstart.host.progress import Quiet
from quickstart.image.kerneloptions import words_of
from quickstart.model.words import KernelOptions
from quickstart.profile import load_profile
from quickstart.reference.debootstrap import make_reference
from quickstart.reference.variant import TUNED
from quickstart.store.context import Context
from quickstart.store.store import Store
from tests.vm.booting import boot, reachable_for_qemu
from tests.vm.conftest import BUILD_S, EARLY, host, quickstart

GUEST = Path(__file__).with_name("guest")
SETTLED = (GUEST / "settled.sh").read_text()
FIRST_BOOT = SETTLED + (GUEST / "first-boot.sh").read_text()
UPGRADE = (GUEST / "upgrade.sh").read_text()
LEFT = (GUEST / "left.sh").read_text()
# What a machine has that changed hands and a stock one has not, and why; all else that either has it is to have, too.
OURS = {
    r"mounts: /fast rootfs /fast ro rw": "the application's files, without --release",
    r"units: fast\.mount loaded active mounted": "the same",
    r"units: systemd-(fsck-root|fsckd)\.(service|socket) .*": "the root volume came mounted read-write, from a clean journal",
    r"units: systemd-machine-id-commit\.service .*": "the root volume could be written to from the beginning",
    r"addresses: 1: lo +inet6 ::1/128 scope host *\\? *": "the kernel's own address: init brings lo up before systemd does",
    r"files: d 755 root root /var/lib/quickstart(/ID)?": "what is packed (docs/users/never-stale.md)",
    r"files: f 600 root root /var/lib/quickstart/ID/(facts|kernel|modules|names|places|settings|units|ways)": "the same",
    r"files: f 700 root root /var/lib/quickstart/ID/(early-units|settings-files)": "the same",
    r"files: l 777 root root /var/lib/quickstart/current": "the same",
    r"files: l 777 root root /var/lib/quickstart/client-id": "what dhclient has sent, for init's client (docs/users/hand-off.md)",
    r"files: f 640 root adm /var/log/quickstart\.log": "the application's output until its first restart",
}
# What a stock boot has beside: of its own initramfs, and of what is named above.
STOCK = {
    r"run: . \d+ root root /run/(initramfs|fsck)(/.*)?": "of the stock initramfs",
    r"run: f 444 root root /run/machine-id": "machine-id-commit, as above",
    r"run: l 777 root root /run/systemd/units/invocation:systemd-(fsck-root|fsckd|machine-id-commit)\.service": "as above",
    r"units: systemd-(fsck-root|fsckd|machine-id-commit)\..*": "as above",
    r"(processes|groups): .*systemd-fsckd\.service": "as above",
    r"addresses: 1: lo +inet6 ::1/128 scope host noprefixroute *\\? *": "as above",
}
# Of the instant: numbers of inodes and watches, what udev and agetty note on their way, and of the input devices, which a
# busy host finds late and in another order.
PASSING = (
    r"run: . \d+ root root /run/(systemd/journal/streams/.*|udev/(watch|links)/.*|agetty\.reload|blkid(/blkid\.tab)?"
    r"|udev/(tags/[\w-]+|data)/(\+(input:input|leds:input|serio:serio)\d+.*|c13:\d+))"
)
BREAK = (
    "printf '[Service]\\nType=oneshot\\nExecStart=false\\n[Install]\\nWantedBy=multi-user.target\\n' "
    ">/etc/systemd/system/breaks.service; systemctl -q enable breaks.service"
)
HOW = "readlink /proc/$(cat /run/nginx.pid)/exe; cat /opt/unrelated"


def answers(text: str) -> dict[str, str]:
    """``name: answer`` lines as a dictionary."""
    return {
        name: answer.strip()
        for name, colon, answer in (line.partition(":") for line in text.splitlines())
        if colon
    }


@pytest.fixture(scope="module")
def machine(artefact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the artefact that is booted again and again."""
    copy = tmp_path_factory.mktemp("hand-off") / "nginx"
    host("cp", "-a", "--sparse=always", artefact, copy)
    return copy


@pytest.fixture(scope="module")
def first_boot(machine: Path) -> dict[str, str]:
    called = quickstart("run", machine, *EARLY, "--exec", FIRST_BOOT, "--json", timeout_s=1200)
    assert called.status == 0, called.err + called.out
    assert called.result["fallback"] is None
    return answers(called.result["exec_stdout"])


def test_the_stock_system_has_grown_around_the_application(first_boot: dict[str, str]) -> None:
    assert first_boot["running"] == "running"
    assert first_boot["failed"] == ""
    assert first_boot["same-pid"] == "yes"
    assert first_boot["active"] == "active active active"


def test_nothing_of_ours_is_left_but_fast(first_boot: dict[str, str]) -> None:
    assert first_boot["unit"] == "forking"
    assert first_boot["ours"] == ""


def machine_lists(out: Path, command: str, *options: str) -> set[str]:
    """``WHAT: LINE`` for everything that left.sh lists, without what is random or of the instant."""
    called = quickstart(
        "run", out, "--snapshot", *options, "--exec", LEFT + command, "--json", timeout_s=1200
    )
    assert called.result["fallback"] is None
    text = called.result["exec_stdout"]
    assert text.endswith("== end\n")
    text = re.sub(r"[0-9a-f]{32}", "ID", text)
    text = re.sub(r"(systemd-private-ID-.*)-[A-Za-z0-9]{6}(/|$)", r"\1-RANDOM\2", text, flags=re.MULTILINE)
    text = re.sub(r"(size|nr_inodes|fd|pipe_ino)=\d+k?", r"\1=N", text)
    found, what = set(), ""
    for line in text.splitlines():
        if line.startswith("== "):
            what = line.removeprefix("== ")
        elif not re.fullmatch(PASSING, f"{what}: {line}"):
            found.add(f"{what}: {line}")
    return found


def unexplained(found: set[str], reasons: dict[str, str]) -> list[str]:
    return sorted(each for each in found if not any(re.fullmatch(pattern, each) for pattern in reasons))


def test_after_settle_the_machine_is_the_stock_one_but_for_what_is_named(artefact: Path) -> None:
    """All of /run, mounts, units, drop-ins, processes, control groups, addresses, and the root volume's files."""
    line = "echo '== kernel-line'; xargs -n 1 </proc/cmdline; "
    ours = machine_lists(artefact, f"{SETTLED}wait_settled; {line}left")
    stock = machine_lists(artefact, f"{line}left", "--stock")
    # The stock entry's line is a part of ours, and has nothing of its own.
    options = {f"kernel-line: {word}" for word in words_of(KernelOptions.BOOT)}
    assert {each for each in ours - stock if each.startswith("kernel-line: ")} == options
    assert {each for each in stock if each.startswith("kernel-line: ")} == {
        each for each in ours - options if each.startswith("kernel-line: ")
    }
    ours -= options
    for name in ("run", "mounts", "units", "processes", "groups", "addresses", "files"):
        assert sum(each.startswith(f"{name}: ") for each in stock) > 5, name
    assert unexplained(ours - stock, OURS) == []
    assert unexplained(stock - ours, STOCK) == []
    assert "mounts: /fast rootfs /fast ro rw" in ours


def test_the_distributions_client_has_the_address_and_its_lease(first_boot: dict[str, str]) -> None:
    assert first_boot["address"].startswith("inet 10.0.2.15/24") and first_boot["address"].endswith("limited")
    assert "dhclient.enp0s3.leases" in first_boot["leases"]


def test_identity_is_made_as_on_a_stock_first_boot(first_boot: dict[str, str]) -> None:
    assert first_boot["identity"] == "33 /etc/ssh/ssh_host_ed25519_key"


def test_it_is_administered_as_ever(first_boot: dict[str, str]) -> None:
    assert first_boot["reload"] == "edited same"
    assert first_boot["restart"] == "active /usr/sbin/nginx"
    assert first_boot["ssh"].startswith("logged in 0::/user.slice/user-0.slice/session-")
    assert first_boot["install"] == "here"


def test_the_second_boot_is_fast_again_and_after_an_upgrade_stock(
    machine: Path, first_boot: dict[str, str]
) -> None:
    assert first_boot["running"] == "running"
    # Nothing says that it is to wait for the whole machine.
    ask = f"systemctl is-system-running; {HOW}\n{UPGRADE}\n{BREAK}"
    second = quickstart("run", machine, "--exec", ask, "--json", timeout_s=900)
    assert second.result["fallback"] is None
    assert second.result["exec_stdout"].split() == [
        *("running", "/fast/usr/sbin/nginx", "here", "1", "deleted")
    ]
    assert (second.result["settled"], second.result["failed_units"]) == ("running", [])
    assert second.result["settled_uptime_ns"] > second.result["ready_uptime_ns"]
    assert re.search(r"ready: nginx answers at http://127\.0\.0\.1:\d+/, ", second.err)
    assert "settled: running, " in second.err
    third = quickstart("run", machine, "--snapshot", "--exec", HOW, "--json", timeout_s=900)
    assert third.result["fallback"] == (
        "fallback 1: /usr/sbin/nginx is not as it was packed; the stock init takes over"
    )
    assert third.result["exec_stdout"].split() == ["/usr/sbin/nginx", "here"]
    # A machine with a unit that fails has settled all the same, and the unit is named.
    assert (third.result["settled"], third.result["failed_units"]) == ("degraded", ["breaks.service"])
    assert "; failed: breaks.service" in third.err


@pytest.mark.full
def test_released_memory_is_the_machines(artefact: Path, tmp_path: Path) -> None:
    """What /fast had goes but for what the application has mapped, which goes when it is restarted."""
    out = tmp_path / "released"
    built = quickstart("build", "--no-trial", "--profile", "nginx", "--release", "-o", out, timeout_s=BUILD_S)
    assert built.status == 0, built.err
    memory = "free -k | sed -n 's/^Mem: *[0-9]* *\\([0-9]*\\).*/\\1/p'"
    ask = f"systemctl restart nginx; sleep 2; sync; echo 3 >/proc/sys/vm/drop_caches; sleep 1; {memory}"
    ours = quickstart(
        "run", out, "--snapshot", "--json", "--exec",
        f"{SETTLED}wait_settled; find /fast -type f; grep -c /fast /proc/self/mountinfo; systemctl is-active nginx; {ask}",
        timeout_s=1200,
    )  # fmt: skip
    mounts, active, ours_kib = ours.result["exec_stdout"].split()
    assert (mounts, active) == ("0", "active")
    stock = quickstart(
        "run", out, "--snapshot", "--stock", "--json", "--exec", f"systemctl is-system-running --wait; {ask}",
        timeout_s=1200,
    )  # fmt: skip
    stock_kib = stock.result["exec_stdout"].split()[-1]
    assert int(ours_kib) <= int(stock_kib) + 5000


# Option 61 (hexadecimal), 12 and 60 of a packet (RFC 2132); empty where it has none.
Said = tuple[str, str, str]


def sent(wire: Path) -> tuple[set[Said], set[Said]]:
    """What DHCP clients have said of themselves: BusyBox's, which takes packets of up to 576 bytes (option 57), and others."""
    ours: set[Said] = set()
    others: set[Said] = set()
    data = wire.read_bytes()
    at = 24
    while at < len(data):
        (length,) = struct.unpack_from("=I", data, at + 8)
        frame = data[at + 16 : at + 16 + length]
        at += 16 + length
        # IPv4, UDP, to port 67; behind both headers BOOTP's 236 bytes and the cookie.
        udp = frame[14 + 4 * (frame[14] & 15) :]
        if frame[12:14] != b"\x08\x00" or frame[23] != 17 or udp[2:4] != b"\0C":
            continue
        options = dict(dhcp_options(udp[8 + 240 :]))
        who = ours if options.get(57) == b"\x02\x40" else others
        name, of_class = (options.get(number, b"").decode() for number in (12, 60))
        who.add((options.get(61, b"").hex(), name, of_class))
    return ours, others


def listened(
    store: Store, out: Path, command: str, *, keep: bool
) -> tuple[list[str], tuple[set[Said], set[Said]]]:
    """What a boot's command says, and what was sent in that boot."""
    with reachable_for_qemu() as place:
        wire = place / "wire"
        wire.touch()
        wire.chmod(0o666)
        words = ("-object", f"filter-dump,id=wire,netdev=net,file={wire}")
        ended = boot(store, out, command=command, qemu=words, keep=keep)
        assert ended.fallbacks == []
        return ended.said, sent(wire)


def dhcp_options(data: bytes) -> Iterator[tuple[int, bytes]]:
    while data and data[0] != 255:
        if data[0] == 0:
            data = data[1:]
            continue
        yield data[0], data[2 : 2 + data[1]]
        data = data[2 + data[1] :]


@pytest.mark.full
def test_networkd_takes_the_network_over(store: Store, tmp_path: Path) -> None:
    """The image of `standard-tuned` as a user's own root: the address never goes, and in the end it is networkd's lease.

    From the second boot on our client sends networkd's identifier; before, nobody knows the machine's identity.
    """
    tuned = make_reference(load_profile("nginx"), Context(store, Quiet()), TUNED)
    out = tmp_path / "networkd"
    built = quickstart(
        "build", "--no-trial", "--profile", "nginx", "--rootfs", tuned.tree, "-o", out, timeout_s=BUILD_S
    )
    assert built.status == 0, built.err
    watch = (
        "rm -f /root/stop; (while [ ! -e /root/stop ]; do ip -4 -o addr show enp0s3 | grep -c 10.0.2.15; sleep 0.05; done "
        ">/root/seen) & "
    )
    ask = (
        f"{watch}{SETTLED}wait_settled; sleep 2; touch /root/stop; sleep 1; grep -c 1 /root/seen; grep -c 0 /root/seen; "
        "systemctl is-system-running; systemctl is-active nginx systemd-networkd; "
        "networkctl -n 0 status enp0s3 | grep -o 'DHCP4 via'; ls /run/systemd/network 2>/dev/null"
    )
    heard = []
    for keep in (True, False):
        (seen, gone, *rest), both = listened(store, out, ask, keep=keep)
        heard.append(both)
        assert int(seen) > 10 and gone == "0"
        assert rest == ["running", "active", "active", "DHCP4", "via"]
    (ours, its), again = heard
    assert ours == {("", "debian", "")}
    # RFC 4361: type 255, an IAID, and here a DUID-EN of systemd's (type 2, enterprise 43793).
    ((identifier, *rest),) = its
    assert rest == ["debian", ""]
    assert re.fullmatch(r"ff[0-9a-f]{8}00020000ab11[0-9a-f]{16}", identifier)
    assert again == (its, its)


@pytest.mark.full
def test_to_a_server_init_is_dhclient(store: Store, artefact: Path, tmp_path: Path) -> None:
    """Its name from the first boot on, and the identifier that it has made from the second on; never another class."""
    out = tmp_path / "nginx"
    host("cp", "-a", "--sparse=always", artefact, out)
    ask = f"{SETTLED}wait_settled; systemctl is-system-running"
    heard = []
    for keep in (True, False):
        running, both = listened(store, out, ask, keep=keep)
        heard.append(both)
        assert running == ["running"]
    (ours, its), again = heard
    assert ours == {("", "debian", "")}
    # RFC 4361: type 255, the end of the card's address, and a DUID of dhclient's.
    ((identifier, *rest),) = its
    assert rest == ["debian", ""]
    assert re.fullmatch(r"ff([0-9a-f]{8})0001.*\1", identifier)
    assert again == (its, its)
