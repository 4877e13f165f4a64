"""Neither a user of the machine nor an application can take over the guest, and the administrator's settings are obeyed.

A local user's recipe attacks one machine, which is then told to mask its unit. Copies of its disk get other
settings.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from quickstart.artefact import directory as artefacts
from quickstart.cli.firmware import free_port
from quickstart.engines import boot as pipeline
from quickstart.launch.drain import whole_text
from quickstart.store.store import Store
from tests.guests import launched
from tests.vm.booting import SETTLED, boot
from tests.vm.conftest import BOOT_S, BUILD_S, host, quickstart

UNITS = "/etc/systemd/system"
MASK = f"{UNITS}/nginx.service"
WANTS = f"{UNITS}/multi-user.target.wants/nginx.service"
HARD = "[Service]\nNoNewPrivileges=yes\nPrivateTmp=yes\nLimitNOFILE=777\n"
# In his namespace every program that root might start is his; who of the machine's root has run it is seen by the file's owner.
ATTACK = r"""
printf '#!/usr/bin/perl\nopen F, ">>/home/here"; print F "$0\\n"; close F; chmod 0666, "/home/here"\n' >/home/evil
chmod 755 /home/evil; chmod 1777 /home
cat >/home/recipe <<'END'
for n in umount findmnt dash mount; do mount --bind /home/evil /usr/bin/$n; done; echo $$ >/home/pid; exec sleep 900
END
setpriv --reuid 65534 --regid 65534 --clear-groups unshare -Urm bash /home/recipe &
until [ -s /home/pid ]; do sleep 0.2; done
his=$(cat /home/pid)
grep -c ' /fast ' /proc/$his/mountinfo | sed 's/^/his-before: /'
# As an upgrade would leave it, but for that it is taken back.
cp /usr/sbin/nginx /home/newer; mount --bind /home/newer /usr/sbin/nginx
echo "check: $(timeout 60 /usr/sbin/quickstart check 2>&1 | tr '\n' ' ')"
umount /usr/sbin/nginx
echo "fast: $(find /fast -type f | wc -l)"
echo "here: $(cat /home/here 2>/dev/null | tr '\n' ' ')"
kill $his
mkdir /etc/systemd/system/nginx.service.d
printf '[Service]\nNoNewPrivileges=yes\n' >/etc/systemd/system/nginx.service.d/hard.conf
echo "drop-in: $(/usr/sbin/quickstart check 2>&1 | cut -d' ' -f2)"
rm -r /etc/systemd/system/nginx.service.d
echo "again: $(/usr/sbin/quickstart check 2>&1)"
systemctl mask nginx 2>/dev/null
echo "masked: $(/usr/sbin/quickstart check 2>&1 | cut -d' ' -f2)"
"""


@pytest.fixture(scope="module")
def attacked(artefact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, str]]:
    """A machine that changed hands, was attacked, and has its unit masked; what it said, and its console."""
    copy = tmp_path_factory.mktemp("attacked") / "nginx"
    host("cp", "-a", "--sparse=always", artefact, copy)
    called = quickstart(
        "run", copy, "--console", "--exec", f"{SETTLED}\nwait_settled\n{ATTACK}", timeout_s=600
    )
    assert called.status == 0, called.err[-3000:]
    yield copy, called.out, called.console
    host("rm", "-r", copy)


@pytest.fixture
def masked(attacked: tuple[Path, str, str], tmp_path: Path) -> Iterator[Path]:
    copy = tmp_path / "nginx"
    host("cp", "-a", "--sparse=always", attacked[0], copy)
    yield copy
    host("rm", "-r", copy)


def said(out: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z-]+): (.*)$", out, re.MULTILINE))


def told(out: Path, *commands: str, drop_in: str = "") -> None:
    """Change the disk of a machine that is off."""
    if drop_in:
        (out / "drop-in").write_text(drop_in)
    for command in commands:
        host("debugfs", "-w", "-R", command, out / "root.raw")


def init_says(store: Store, out: Path, append: str = "") -> str:
    """How init decides, and no more of that boot: a machine whose unit is masked never answers."""
    found = artefacts.load(out)
    machine = pipeline.machine_of(found, stock=False, snapshot=True, port=free_port(), extra_cmdline=append)
    with launched(machine, found.ready, store) as guest:
        until = time.monotonic() + BOOT_S
        while time.monotonic() < until:
            lines = re.findall(
                r"quickstart: (fallback 1: .*?; the stock init|hand-off: [^,]*)",
                whole_text(guest.console.path.read_bytes()),
            )
            if lines:
                return str(lines[0]).removesuffix("; the stock init")
            time.sleep(0.2)
    pytest.fail("init said nothing")


def test_nothing_of_a_local_user_runs_as_root_when_fast_is_taken_away(
    attacked: tuple[Path, str, str],
) -> None:
    answers = said(attacked[1])
    assert answers["his-before"] == "1"
    assert answers["check"].startswith("quickstart: /usr/sbin/nginx is not as it was packed")
    assert (answers["fast"], answers["here"]) == ("0", "")


def test_a_unit_that_was_masked_is_not_started(attacked: tuple[Path, str, str], store: Store) -> None:
    """The running machine sees it, its shutdown does not stamp, and the next boot says why it is a stock one."""
    out, answers, console = attacked
    assert said(answers)["drop-in"] == f"{UNITS}/nginx.service.d/hard.conf"
    assert (said(answers)["again"], said(answers)["masked"]) == ("", MASK)
    assert f"quickstart: not stamped: {MASK} is not as it was packed" in console
    assert init_says(store, out) == f"fallback 1: {MASK} is not as it was packed"


def test_a_unit_that_was_disabled_is_not_started(masked: Path, store: Store) -> None:
    told(masked, f"rm {MASK}", f"rm {WANTS}")
    assert init_says(store, masked) == f"fallback 1: {WANTS} is not as it was packed"


@pytest.mark.full
@pytest.mark.parametrize("word", ["systemd.mask=nginx.service", "systemd.mask=nginx"])
def test_a_unit_that_the_command_line_masks_is_not_started(artefact: Path, store: Store, word: str) -> None:
    assert init_says(store, artefact, word) == f"fallback 1: {word}"


@pytest.mark.full
@pytest.mark.parametrize(
    ("place", "directory"),
    [
        (f"{UNITS}/nginx.service.d", True),
        ("/etc/systemd/system.conf.d", True),
        ("/usr/local/bin", False),
        (f"{UNITS}/sysinit.target.wants", False),
        ("/etc/sysctl.d", False),
    ],
)
def test_what_was_not_there_at_the_build_counts(
    masked: Path, store: Store, place: str, directory: bool
) -> None:
    """Drop-ins, a program that would be found before the packed one, what comes before all services; written from outside."""
    name = "50-x.conf" if directory else "nginx"
    made = (f"mkdir {place}",) if directory else ()
    told(masked, f"rm {MASK}", *made, f"write {masked}/drop-in {place}/{name}", drop_in=HARD)
    assert init_says(store, masked) == f"fallback 1: {place}/{name} is not as it was packed"


@pytest.mark.full
def test_a_drop_in_hardens_the_very_next_boot(masked: Path) -> None:
    """What `systemctl edit` writes: the process has what systemd reports."""
    place = f"{UNITS}/nginx.service.d"
    written = f"write {masked}/drop-in {place}/hard.conf"
    told(masked, f"rm {MASK}", f"mkdir {place}", written, drop_in=HARD)
    ask = (
        "pid=$(cat /run/nginx.pid); grep NoNewPrivs /proc/$pid/status; grep 'Max open files' /proc/$pid/limits; "
        "grep -c ' /tmp ' /proc/$pid/mountinfo"
    )
    called = quickstart("run", masked, "--snapshot", "--json", "--exec", ask, timeout_s=1200)
    assert called.result["fallback"] == (
        f"fallback 1: {place}/hard.conf is not as it was packed; the stock init takes over"
    )
    answers = called.result["exec_stdout"].split()
    assert answers[:2] == ["NoNewPrivs:", "1"]
    assert answers[4:7] == ["files", "777", "777"]
    assert answers[-1] == "1"


@pytest.mark.full
def test_what_systemd_does_not_adopt_is_ended(store: Store, artefact: Path) -> None:
    """Masked in /run between init's comparison and systemd's start: settle ends the process and starts nothing."""
    hook = "mkdir -p /run/systemd/system; ln -s /dev/null /run/systemd/system/nginx.service"
    command = (
        f"{SETTLED}\nwait_settled; sleep 2; systemctl show -P LoadState nginx; pgrep -c nginx; "
        "cat /sys/fs/cgroup/system.slice/nginx.service/cgroup.procs 2>/dev/null | wc -l"
    )
    ended = boot(store, artefact, hook=hook, command=command)
    assert ended.said == ["masked", "0", "0"], ended.console[-3000:]
    assert "nginx.service is not wanted any more; what was started of it has been ended" in ended.console
    assert ended.fallbacks == []


@pytest.mark.full
def test_root_executes_nothing_of_a_directory_that_the_unit_binds(store: Store, artefact: Path) -> None:
    """`BindPaths=/var/lib/app/local:/usr/local`: systemd gives this mount to `adopt`, too, whose PATH begins there."""
    hook = (
        # /run is mounted noexec.
        "mkdir -p /run/own /run/systemd/system/nginx.service.d; mount -t tmpfs own /run/own; mkdir /run/own/sbin /run/own/bin; "
        "for name in sbin/sed sbin/grep bin/readlink bin/find bin/systemctl bin/systemd-notify; do "
        "printf '#!/usr/bin/dash\\necho $0 >>/run/own/taken\\nexec /usr/bin/${0##*/} \"$@\"\\n' >/run/own/$name; done; "
        "chmod 755 /run/own/*/*; chown -R 65534:65534 /run/own; "
        "printf '[Service]\\nBindPaths=/run/own:/usr/local\\n' >/run/systemd/system/nginx.service.d/own.conf"
    )
    command = (
        f"{SETTLED}\nwait_settled; cat /run/own/taken 2>/dev/null; stat -c %U /run/own/sbin/sed; "
        "systemctl show -P BindPaths nginx; systemctl is-active nginx"
    )
    ended = boot(store, artefact, hook=hook, command=command)
    assert ended.said == ["nobody", "/run/own:/usr/local:rbind", "active"], ended.console[-3000:]
    assert ended.fallbacks == []


@pytest.mark.full
def test_in_a_rescue_shell_the_application_does_not_run(store: Store, artefact: Path) -> None:
    """A mount fails, so systemd never comes to the unit: as on a stock boot nothing of it runs beside the emergency shell."""
    hook = (
        "cd /run; mkdir -p systemd/system/local-fs.target.requires; cd systemd/system; "
        "printf '[Unit]\\nDefaultDependencies=no\\n[Service]\\nType=oneshot\\nExecStart=/bin/false\\n' >lost.service; "
        "ln -s ../lost.service local-fs.target.requires/; cd /"
    )
    # A bounded wait for what has to come, and for no more than that.
    command = (
        "for _ in $(seq 240); do systemctl is-active -q emergency.service && ! pgrep -x nginx >/dev/null && break; sleep 1; done; "
        # It says so when its other work is done.
        "for _ in $(seq 240); do pgrep -f '[s]ettle rescue' >/dev/null || break; sleep 1; done; "
        "systemctl is-active emergency.service nginx.service; pgrep -c nginx"
    )
    ended = boot(store, artefact, hook=hook, command=command)
    assert ended.said == ["active", "inactive", "0"], ended.console[-3000:]
    assert "what was started of nginx.service has been ended" in ended.console
    assert ended.fallbacks == []


@pytest.mark.full
def test_an_image_in_place_of_the_files_is_taken_away_too(tmp_path: Path) -> None:
    """`--payload squashfs`: from the machine's own private namespaces as well."""
    out = tmp_path / "nginx"
    built = quickstart(
        "build", "--no-trial", "--profile", "nginx", "--payload", "squashfs", "-o", out, timeout_s=BUILD_S
    )
    assert built.status == 0, built.err
    command = (
        "systemd-run -q -u private -p PrivateMounts=yes -p MountFlags=slave sleep 900; sleep 2\n"
        "unshare --mount --propagation private sleep 900 & sleep 1\n"
        "seen() { cat /proc/[0-9]*/mountinfo | grep -c ' /fast[ /]' | sed \"s/^/$1: /\"; }\n"
        "quickstart status | sed -n 's#^/fast *#status: #p'; seen before\n"
        "cp /usr/sbin/nginx /tmp/n; mount --bind /tmp/n /usr/sbin/nginx; quickstart check >/dev/null; umount /usr/sbin/nginx\n"
        "quickstart status | sed -n 's#^/fast *#status-after: #p'; seen after; find /fast -type f | wc -l | sed 's/^/left: /'"
    )
    called = quickstart(
        "run", out, "--snapshot", "--exec", f"{SETTLED}\nwait_settled\n{command}", timeout_s=600
    )
    answers = said(called.out)
    assert answers["status"] == "mounted", called.err[-3000:]
    assert int(answers["before"]) > 2
    assert (answers["after"], answers["left"], answers["status-after"]) == ("0", "0", "not mounted")
