"""The root volume: written data are never lost, stale files are never served, and there is always a fallback."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from quickstart.launch.drain import whole_text
from quickstart.store.store import Store
from tests.vm.booting import console_until
from tests.vm.conftest import BOOT_S, COMMAND, STAY, guest_file, host, quickstart
from tests.vm.turns import in_turn, turn_of

# Each of them has stock boots, so they take turns.
FAULTS = ("ends", "fails")
WORDS = ("quickstart=off", "init=/lib/systemd/systemd")


def test_what_is_written_is_on_the_volume_after_power_off(used: Path) -> None:
    first = quickstart(
        "run",
        used,
        *STAY,
        "--json",
        "--exec",
        "echo kept >/var/www/html/new; wget -q -O- http://10.0.2.15/new || cat /var/www/html/new",
    )
    assert first.status == 0, first.err
    assert guest_file(used, "/var/www/html/new") == "kept\n"
    # The prober's and this host's requests, written by nginx itself.
    assert '"GET / HTTP/1.1" 200' in guest_file(used, "/var/log/nginx/access.log")
    assert "needs_recovery" not in host("dumpe2fs", "-h", used / "root.raw")
    second = quickstart(
        "run",
        used,
        *STAY,
        "--json",
        "--exec",
        "cat /var/www/html/new; readlink /proc/$(cat /run/nginx.pid)/exe",
    )
    assert second.result["exec_stdout"] == "kept\n/fast/usr/sbin/nginx\n"
    assert second.result["root_reads"] <= 100


def test_exec_hands_on_output_and_status(artefact: Path) -> None:
    called = quickstart(
        "run", artefact, *STAY, "--snapshot", "--exec", "echo to-stdout; echo to-stderr >&2; exit 7"
    )
    assert called.status == 7
    assert called.out == "to-stdout\n"
    assert "to-stderr" in called.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_command_does_not_lose_what_was_written(used: Path, number: signal.Signals) -> None:
    words = [
        # Whatever who starts the tests ignores.
        *("env", "--default-signal=HUP"),
        str(COMMAND),
        "run",
        str(used),
        *STAY,
        "--exec",
        "echo precious >/root/precious; echo written; sleep 300",
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == b"written\n"
            running.send_signal(number)
            assert running.wait(120) == 130
        finally:
            running.kill()
    assert guest_file(used, "/root/precious") == "precious\n"
    assert "needs_recovery" not in host("dumpe2fs", "-h", used / "root.raw")


def test_snapshot_leaves_the_disk_untouched(artefact: Path) -> None:
    before = host("sha256sum", artefact / "root.raw")
    assert quickstart("run", artefact, *STAY, "--snapshot", "--exec", "echo x >/etc/x; sync").status == 0
    assert host("sha256sum", artefact / "root.raw") == before


@pytest.mark.parametrize(
    ("command", "last_word"),
    [
        ("poweroff", "reboot: Power down"),
        ("kill -s USR2 1", "reboot: Power down"),
        ("reboot", "reboot: Restarting system"),
    ],
)
def test_the_guest_can_shut_itself_down(used: Path, command: str, last_word: str) -> None:
    called = quickstart(
        "run", used, *STAY, "--console", "--exec", f"echo gone >/root/marker; {command}; sleep 60"
    )
    assert called.status == 1
    assert "was cut off: the guest ended" in called.err
    assert last_word in called.console
    assert guest_file(used, "/root/marker") == "gone\n"


# Our init's processes by their command lines; none may be left in a stock system.
LEFT_OVER = "grep -a -l -e '^/fast/quickstart' -e '^udhcpc' /proc/[0-9]*/cmdline 2>/dev/null"
# systemd hands its own PATH on to what runs at the end of a shutdown.
OUR_PATH = "grep -a -o PATH=/fast /proc/1/environ"


def stock_boot_says(out: Path, *words: str) -> str:
    """Boot and demand that it ended in a working stock system; what init said on the console."""
    called = quickstart(
        "run", out, "--console", "--exec", "cat /proc/1/comm; readlink /proc/$(cat /run/nginx.pid)/exe; ls -A /fast; "
        "mount | grep -c ' on /fast '; systemctl is-active nginx; ls -d /run/quickstart* 2>/dev/null; "
        f"{LEFT_OVER}; {OUR_PATH}", *words
    )  # fmt: skip
    assert called.out.split() == ["systemd", "/usr/sbin/nginx", "0", "active"], called.err[-3000:]
    lines = re.findall(r"quickstart: (fallback 1: .*?); the stock init takes over", called.console)
    assert len(lines) == 1, called.console[-3000:]
    assert (
        f"the fast start did not happen, these are the times of the stock boot: {lines[0]}" in called.console
    )
    return str(lines[0])


@pytest.mark.parametrize("word", in_turn(WORDS, WORDS))
def test_the_kernel_command_line_asks_for_another_boot(artefact: Path, word: str) -> None:
    assert stock_boot_says(artefact, "--snapshot", "--append", word) == f"fallback 1: {word}"


def test_a_changed_file_is_never_served_stale(used: Path) -> None:
    library = "/usr/lib/x86_64-linux-gnu/libz.so.1.2.13"
    # One byte of the file, its size and time of modification as before.
    command = (
        f"cp -p {library} /tmp/old; printf x | dd of={library} bs=1 seek=4000 conv=notrunc 2>/dev/null; "
        f"touch -r /tmp/old {library}; cmp -s /tmp/old {library} || echo changed"
    )
    changed = quickstart("run", used, *STAY, "--exec", command)
    assert (changed.status, changed.out) == (0, "changed\n"), changed.err
    said = stock_boot_says(used, "--snapshot")
    assert said == "fallback 1: /usr/lib/x86_64-linux-gnu/libz.so.1.2.13 is not as it was packed"


def test_edited_configuration_takes_effect_and_the_start_stays_fast(used: Path) -> None:
    """It is opened from /etc on the volume; a new user and a rebuilt ld.so.cache do not matter either."""
    page = 'location = /edited { return 200 "from /etc\\n"; }'
    edit = (
        f"sed -i 's#server_name _;#server_name _; {page}#' /etc/nginx/sites-available/default; "
        "useradd newcomer; ldconfig; nginx -t"
    )
    assert quickstart("run", used, *STAY, "--exec", edit).status == 0
    ask = (
        "bash -c \"exec 3<>/dev/tcp/127.0.0.1/80; printf 'GET /edited HTTP/1.0\\r\\n\\r\\n' >&3; tail -n 1 <&3\"; "
        "readlink /proc/$(cat /run/nginx.pid)/exe"
    )
    called = quickstart("run", used, *STAY, "--snapshot", "--exec", ask)
    assert called.out == "from /etc\n/fast/usr/sbin/nginx\n", called.err


@turn_of("ends", FAULTS)
def test_an_application_that_ends_leaves_a_whole_stock_system(artefact: Path) -> None:
    called = quickstart(
        "run", artefact, *STAY, "--snapshot", "--console", "--exec",
        "kill $(cat /run/nginx.pid); "
        "for n in $(seq 200); do systemctl is-system-running 2>/dev/null | grep -q running && break; sleep 1; done; "
        "cat /proc/1/comm; systemctl is-system-running; systemctl is-active nginx ssh cron; ls -A /fast; "
        f"{LEFT_OVER}; {OUR_PATH}; grep -a -c DHCP= /proc/1/environ",
        timeout_s=400,
    )  # fmt: skip
    assert called.out.split() == ["systemd", "running", "active", "active", "active", "0"], called.err[-3000:]
    assert "fallback 1: nginx.service has ended" in called.console


@turn_of("fails", FAULTS)
def test_an_application_that_fails_to_start_falls_back(used: Path, store: Store) -> None:
    """The stock nginx refuses this configuration too, but the machine is up and can be mended."""
    broken = quickstart("run", used, "--exec", "echo 'bad_directive;' >/etc/nginx/conf.d/bad.conf")
    assert broken.status == 0, broken.err
    assert (
        "quickstart: fallback 1: nginx.service did not start: Exec main: /usr/sbin/nginx ended with status 1;"
        in console_until(store, used, "debian login:")
    )


def test_run_sh_needs_nothing_of_ours(used: Path) -> None:
    started_by_run_sh(used, 18099, "quickstart: hand-off: nginx.service was started from /fast")


def test_a_cut_initramfs_boots_the_stock_way(used: Path) -> None:
    """Part B without its end: what the kernel unpacked of it is not trusted."""
    whole = (used / "initramfs.img").read_bytes()
    (used / "initramfs.img").write_bytes(whole[: len(whole) * 3 // 4])
    mended(used)
    nowhere = "it is neither in the initramfs nor on the root volume; the stock init takes over"
    started_by_run_sh(used, 18098, f"fallback 1: part B of the initramfs is damaged: {nowhere}")
    (used / "initramfs.img").write_bytes(whole)


def test_part_b_may_be_a_file_of_the_volume(used: Path) -> None:
    """As on a disk that boots by itself, whose boot loader reads part A only (docs/adr/0029-late.md)."""
    whole = (used / "initramfs.img").read_bytes()
    part_a_bytes = json.loads((used / "manifest.json").read_text())["initramfs_part_a_bytes"]
    (used / "initramfs.img").write_bytes(whole[:part_a_bytes])
    (used / "start-set").write_bytes(whole[part_a_bytes:])
    mended(used)
    write = f"write {used / 'start-set'} .quickstart-start-set"
    assert "Allocated inode" in host("debugfs", "-w", "-R", write, used / "root.raw")
    started_by_run_sh(used, 18097, "quickstart: hand-off: nginx.service was started from /fast")


def mended(artefact: Path) -> None:
    """Replay the journal of a machine that was switched off."""
    done = subprocess.run(
        ["e2fsck", "-p", artefact / "root.raw"], capture_output=True, timeout=120, check=False
    )
    # 1: errors corrected (e2fsck(8)).
    assert done.returncode in (0, 1), done.stdout


def started_by_run_sh(artefact: Path, port: int, says: str) -> None:
    """Start OUT by its own script until it answers and its console has said that, which may be after the answer."""
    log = artefact / "console"
    environment = {"PATH": "/usr/bin:/bin", "PORT": str(port)}
    with (
        log.open("wb") as out,
        subprocess.Popen(
            ["sh", str(artefact / "run.sh")], stdin=subprocess.DEVNULL, stdout=out, env=environment
        ) as process,
    ):
        try:
            answered = answers(f"http://127.0.0.1:{port}/", process)
            # run.sh has become QEMU.
            assert "Seccomp:\t2" in Path(f"/proc/{process.pid}/status").read_text()
            deadline = time.monotonic() + BOOT_S
            while answered and says not in whole_text(log.read_bytes()) and time.monotonic() < deadline:
                time.sleep(0.1)
        finally:
            process.kill()
    console = whole_text(log.read_bytes())
    assert answered, console[-3000:]
    assert says in console, console[-3000:]


def answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    """Whether ``url`` answers 200 before the process ends or the time is up."""
    deadline = time.monotonic() + BOOT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310 - ours, http
                return bool(response.status == 200)
        except OSError:
            time.sleep(0.2)
    return False
