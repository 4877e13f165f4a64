"""A stack: a companion starts before the unit that answers, and systemd adopts both (docs/users/stacks.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.initramfs.guestconfig import unit_config_text
from quickstart.inspect.unit import read_unit
from tests.vm.parity import described, small_root
from tests.vm.parity_adopted import SETTLED, boot

UNIT = "parity-db.service"
PLACE = "/fast/quickstart/parity"
SERVICE = """[Unit]
Description=the companion
[Service]
Type={type}
ExecStart={start}
Restart=no
[Install]
WantedBy=multi-user.target
"""
# Init's root is the one of the machine by now: what is written here is there when systemd starts.
INSTALL = f"""cp {PLACE}/service /etc/systemd/system/{UNIT}
mkdir -p /etc/systemd/system/multi-user.target.wants
ln -s ../{UNIT} /etc/systemd/system/multi-user.target.wants/
"""
EARLY = "{ echo $MAINPID; pidof nginx || echo 'no nginx'; } >/run/early 2>&1\n"
ABOUT = """exec 2>/dev/null
about() {
	systemctl show -P MainPID "$1"
	systemctl show -P ActiveState "$1"
	echo "$(systemctl show -P DropInPaths "$1")"
	sed 's/^0:://' "/proc/$(systemctl show -P MainPID "$1")/cgroup"
}
"""


def started(artefact: Path, base: Path, command: str, kind: str, start: str, **how: bool) -> list[str]:
    """One boot of nginx with the companion; the lines that ``command`` prints."""
    root = small_root(artefact, base)
    places = base / "etc/systemd/system"
    places.mkdir(parents=True)
    service = SERVICE.format(type=kind, start=start)
    (places / UNIT).write_text(service)
    unit = read_unit(root, UNIT)
    # With `+`: as root, and without what confines the unit.
    added = "".join(f"command {when} + /bin/sh sh {PLACE}/{when}\n" for when in ("pre", "post"))
    files = {
        "service": service,
        "description": described(root, UNIT) + added,
        "config": unit_config_text(unit),
        "pre": INSTALL,
        "post": EARLY,
    }
    values = {
        "COMPANIONS": "1",
        "COMPANION_UNITS": UNIT,
        "GROUPS_OF_ALL": f'"{unit.group} system.slice/nginx.service"',
    }
    edits = " ".join(f"-e 's#^{key}=.*#{key}={value}#'" for key, value in values.items())
    # As initramfs/layout.py has it.
    hook = f"""companion=$Q/companions/1
    mkdir -p $companion
    cp $Q/parity/description $companion/unit
    cp $Q/parity/config $companion/config
    for name in bin busybox adopt; do ln -s ../../$name $companion/$name; done
    sed -i {edits} $Q/config
    . $Q/config"""
    return boot(artefact, f"{SETTLED}{ABOUT}{command}", files, hook, **how).splitlines()


def test_systemd_adopts_both(artefact: Path, tmp_path: Path) -> None:
    question = f"""wait_settled
    systemctl is-system-running
    cat /run/early
    about {UNIT}
    about nginx
    readlink /proc/$(systemctl show -P MainPID nginx)/exe
    ls -d /run/quickstart* /run/systemd/system/*.d 2>/dev/null
    systemctl restart {UNIT}
    about {UNIT}
    """
    running, main, before, *rest = started(artefact, tmp_path, question, "exec", "/bin/sleep 100000")
    assert (running, before) == ("running", "no nginx")
    companion, nginx, left = rest[:4], rest[4:9], rest[9:]
    assert companion == [main, "active", "", f"/system.slice/{UNIT}"]
    assert nginx[1:] == ["active", "", "/system.slice/nginx.service", "/fast/usr/sbin/nginx"]
    # Nothing is left of the hand-off, and the restart is systemd's own.
    restarted, *others = left
    assert restarted != main
    assert others == ["active", "", f"/system.slice/{UNIT}"]


@pytest.mark.parametrize(
    ("kind", "start", "state"),
    [
        # It ends before nginx answers; systemd starts it once more, and it ends again.
        ("exec", "/bin/sleep 0.1", "inactive"),
        ("forking", "/bin/false", "failed"),
    ],
    ids=["ends", "fails"],
)
def test_without_a_companion_all_of_the_stack_starts_the_stock_way(
    artefact: Path, tmp_path: Path, kind: str, start: str, state: str
) -> None:
    question = f"""until [ -S /run/systemd/private ]; do sleep 0.2; done
    systemctl is-system-running --wait >/dev/null
    systemctl show -P ActiveState {UNIT}
    systemctl show -P ActiveState nginx
    readlink /proc/$(systemctl show -P MainPID nginx)/exe
    ls -d /run/quickstart* /run/systemd/system/*.d 2>/dev/null
    """
    said = started(artefact, tmp_path, question, kind, start, falls_back=True)
    assert said == [state, "active", "/usr/sbin/nginx"]
