"""A stack: companions start before the unit that answers, and systemd adopts all of them (docs/users/stacks.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vm.parity_adopted import SETTLED
from tests.vm.parity_stack import PLACE, booted
from tests.vm.turns import in_turn

GUEST = Path(__file__).with_name("guest")
UNIT = "parity-db.service"
# Not below /fast, which goes with fallback 1.
OWN = "/usr/local/lib/parity"
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
INSTALL = f"""mkdir -p {OWN}; cp {PLACE}/*.pl {OWN}/
cd /etc/systemd/system
mkdir -p multi-user.target.wants sockets.target.wants
for unit in {PLACE}/units/*; do
	name=${{unit##*/}}
	cp "$unit" .
	case $name in
	*.socket) ln -s "../$name" sockets.target.wants/ ;;
	*) ln -s "../$name" multi-user.target.wants/ ;;
	esac
done
"""
EARLY = "{ echo $MAINPID; pidof nginx || echo 'no nginx'; } >/run/early 2>&1\n"
ABOUT = """exec 2>/dev/null
about() {
	systemctl show -P MainPID "$1"
	systemctl show -P ActiveState "$1"
	echo "$(systemctl show -P DropInPaths "$1")"
	sed 's/^0:://' "/proc/$(systemctl show -P MainPID "$1")/cgroup"
}
inodes() { for fd in 3 4 5; do readlink /proc/$(systemctl show -P MainPID "$1")/fd/$fd | grep -F socket: || echo none; done; }
"""


def started(
    artefact: Path, base: Path, command: str, kind: str, start: str, falls_back: bool = False
) -> list[str]:
    """One boot of nginx with a companion; the lines that ``command`` prints."""
    units = {UNIT: SERVICE.format(type=kind, start=start)}
    files = {"pre": INSTALL, "post": EARLY}
    return booted(artefact, base, f"{SETTLED}{ABOUT}{command}", units, files, falls_back=falls_back)


def with_sockets(
    artefact: Path, base: Path, command: str, change: str = "", falls_back: bool = False
) -> list[str]:
    """One boot of nginx with two companions, each with sockets. ``change`` is shell that changes files before systemd sees them."""
    serve = SERVICE.format(type="exec", start=f"/usr/bin/perl {OWN}/serve-sockets.pl")
    units = {
        UNIT: f"{serve}[Unit]\nRequires=parity-db.socket\n",
        "parity-db.socket": "[Socket]\nListenStream=/run/parity-db/sock\nListenStream=2947\n",
        "parity-php.service": serve,
        "parity-php.socket": "[Socket]\nListenStream=/run/parity-php.sock\nListenStream=@parity-php\n",
    }
    scripts = {name: (GUEST / name).read_text() for name in ("serve-sockets.pl", "ask-socket.pl")}
    files = {"pre": INSTALL + change, "post": EARLY, **scripts}
    return booted(artefact, base, f"{SETTLED}{ABOUT}{command}", units, files, falls_back=falls_back)


ASK = f"""for place in /run/parity-db/sock 2947 /run/parity-php.sock; do
	perl {OWN}/ask-socket.pl $place | cut -d ' ' -f 2-6
done
"""


def test_systemd_adopts_all_of_them_with_their_own_sockets(artefact: Path, tmp_path: Path) -> None:
    question = f"""wait_settled
    systemctl is-system-running
    cat /run/early
    about {UNIT}
    about nginx
    readlink /proc/$(systemctl show -P MainPID nginx)/exe
    systemctl show -P MainPID parity-php
    inodes {UNIT}; inodes parity-php
    for inode in $(inodes {UNIT}; inodes parity-php); do
        readlink /proc/1/fd/* | grep -cxF "$inode"
    done | sort | uniq -c | tr -s ' '
    {ASK}
    systemctl restart {UNIT}
    about {UNIT}
    inodes {UNIT}
    ls -d /run/quickstart* /run/systemd/system/*.d 2>/dev/null
    """
    running, main, before, *rest = with_sockets(artefact, tmp_path, question)
    assert (running, before) == ("running", "no nginx")
    companion, nginx, rest = rest[:4], rest[4:9], rest[9:]
    assert companion == [main, "active", "", f"/system.slice/{UNIT}"]
    assert nginx[1:] == ["active", "", "/system.slice/nginx.service", "/fast/usr/sbin/nginx"]
    php, *rest = rest
    own, others, rest = rest[:3], rest[3:6], rest[6:]
    # Two each, none of them the other's.
    assert own[2] == others[2] == "none"
    assert len({*own, *others}) == 5
    # PID 1 has each of them; `none` is twice nobody's.
    assert rest[:2] == [" 2 0", " 4 1"]
    assert rest[2:5] == [
        f"{main} descriptor 3 of parity-db.socket:parity-db.socket",
        f"{main} descriptor 4 of parity-db.socket:parity-db.socket",
        f"{php} descriptor 3 of parity-php.socket:parity-php.socket",
    ]
    # Nothing is left of the hand-off, and the restart is systemd's own, with the same sockets.
    restarted, *left = rest[5:]
    assert restarted != main
    assert left == ["active", "", f"/system.slice/{UNIT}", *own]


@pytest.mark.full
def test_one_companion_whose_sockets_systemd_does_not_take_over(artefact: Path, tmp_path: Path) -> None:
    """It starts anew with its socket unit, and the others keep their processes."""
    question = f"""wait_settled
    systemctl is-system-running --wait
    cat /run/early
    systemctl show -P MainPID {UNIT}
    readlink /proc/$(systemctl show -P MainPID nginx)/exe
    systemctl show -P ActiveState parity-php parity-php.socket | grep .
    perl {OWN}/ask-socket.pl /run/parity-other | cut -d ' ' -f 3-6
    {ASK}
    """
    change = "sed -i 's#parity-php.sock#parity-other#' /etc/systemd/system/parity-php.socket\n"
    running, early, _, main, nginx, *rest = with_sockets(
        artefact, tmp_path, question, change, falls_back=True
    )
    assert (running, main, nginx) == ("running", early, "/fast/usr/sbin/nginx")
    assert rest[:3] == ["active", "active", "descriptor 3 of parity-php.socket:parity-php.socket"]
    # Nobody listens on the old one any more.
    assert [line.split()[0] for line in rest[3:]] == [main, main]


# How a companion comes to its end: its type, its command, and the state that systemd leaves it in.
ENDS = {
    # It ends before nginx answers; systemd starts it once more, and it ends again.
    "ends": ("exec", "/bin/sleep 0.1", "inactive"),
    "fails": ("forking", "/bin/false", "failed"),
}


@pytest.mark.parametrize("name", in_turn(ENDS, tuple(ENDS)))
def test_without_a_companion_all_of_the_stack_starts_the_stock_way(
    artefact: Path, tmp_path: Path, name: str
) -> None:
    kind, start, state = ENDS[name]
    question = f"""until [ -S /run/systemd/private ]; do sleep 0.2; done
    systemctl is-system-running --wait >/dev/null
    systemctl show -P ActiveState {UNIT}
    systemctl show -P ActiveState nginx
    readlink /proc/$(systemctl show -P MainPID nginx)/exe
    ls -d /run/quickstart* /run/systemd/system/*.d 2>/dev/null
    """
    said = started(artefact, tmp_path, question, kind, start, falls_back=True)
    assert said == [state, "active", "/usr/sbin/nginx"]


BUS = ("dbus.service", "dbus.socket")
ON_BUS = SERVICE.replace("Type={type}", "Type=dbus\nBusName=org.example.Parity").format(
    start=f"/usr/bin/perl {OWN}/own-name.pl org.example.Parity{{more}}"
)
# What the bus asks systemd for, and who may do so.
ACTIVATED = f"""printf '[D-BUS Service]\\nName=org.example.Late\\nExec=/bin/false\\nUser=root\\nSystemdService=late.service\\n' \\
	>/usr/share/dbus-1/system-services/org.example.Late.service
printf '[Service]\\nType=exec\\nExecStart=/bin/sh -c "echo started >>/run/late; exec sleep 100000"\\n' \\
	>/etc/systemd/system/late.service
cp {PLACE}/policy /etc/dbus-1/system.d/parity.conf
"""
POLICY = """<busconfig><policy user="root"><allow own="org.example.Parity"/></policy>
<policy context="default"><allow send_destination="org.example.Late"/><allow send_destination="org.example.Parity"/></policy>
</busconfig>
"""


def on_bus(
    artefact: Path, base: Path, command: str, more: str = "", change: str = "", falls_back: bool = False
) -> list[str]:
    """One boot of nginx behind the message bus and a unit with Type=dbus, whose program has the words ``more``."""
    units = {"parity-bus.service": ON_BUS.replace("{more}", more)}
    files = {
        "pre": INSTALL + ACTIVATED + change,
        "post": EARLY,
        "policy": POLICY,
        "own-name.pl": (GUEST / "own-name.pl").read_text(),
    }
    # Without its private socket, systemctl would ask systemd on the bus, where nobody may wait for it.
    whole = f"until [ -S /run/systemd/private ]; do sleep 0.2; done\n{SETTLED}{ABOUT}{command}"
    return booted(artefact, base, whole, units, files, BUS, falls_back=falls_back)


def test_the_message_bus_and_a_unit_that_has_its_name_there(artefact: Path, tmp_path: Path) -> None:
    """docs/internals/bus.md: its connection outlives the hand-off."""
    owner = "busctl status org.example.Parity | sed -n 's/^PID=//p'"
    question = f"""wait_settled
    systemctl is-system-running --wait
    {{ head -n 1 /run/early; head -n 1 /run/own-name; }} | xargs
    for unit in dbus parity-bus; do systemctl show -P MainPID $unit; done | xargs
    for unit in dbus.service dbus.socket parity-bus nginx; do systemctl is-active $unit; done | xargs
    for unit in dbus parity-bus; do systemctl show -P Type -P DropInPaths $unit; done | xargs
    {owner}
    systemctl restart parity-bus; systemctl is-active parity-bus
    systemctl show -P MainPID parity-bus; {owner}
    systemctl stop parity-bus; systemctl is-active parity-bus; {owner}
    hostnamectl hostname
    """
    said = on_bus(artefact, tmp_path, question)
    running, early, adopted, active, types, owned, again, main, owned_again, stopped, name = said
    assert (running, active) == ("running", "active active active active")
    assert early == adopted
    assert owned == early.split()[1]
    assert types == "notify dbus"
    assert (again, owned_again) == ("active", main)
    assert main != owned
    assert stopped == "inactive"
    assert name


@pytest.mark.full
def test_a_unit_that_has_asked_long_before_systemd_comes(artefact: Path, tmp_path: Path) -> None:
    """What it has asked for starts once, as soon as systemd is on the bus. It may have given up by then, so it starts anew."""
    slow = """{
        printf '[Unit]\\nDefaultDependencies=no\\nBefore=basic.target\\n'
        printf '[Service]\\nType=oneshot\\nExecStart=/bin/sleep 20\\n'
    } >slow.service
    mkdir -p basic.target.wants
    ln -s ../slow.service basic.target.wants/
    """
    question = """wait_settled
    systemctl is-system-running --wait
    head -n 1 /run/early
    systemctl show -P MainPID dbus
    systemctl is-active parity-bus nginx
    uniq -c /run/late | tr -s ' '
    readlink /proc/$(systemctl show -P MainPID nginx)/exe
    """
    said = on_bus(artefact, tmp_path, question, " org.example.Late", slow, falls_back=True)
    running, early, bus, *rest = said
    assert (running, bus) == ("running", early)
    assert rest == ["active", "active", " 1 started", "/usr/sbin/nginx"]


@pytest.mark.full
def test_a_unit_that_waits_for_what_systemd_starts(artefact: Path, tmp_path: Path) -> None:
    """Early, nobody would answer it: it starts the stock way, where systemd does."""
    question = """until [ -S /run/systemd/private ]; do sleep 0.2; done
    systemctl is-system-running --wait
    systemctl is-active parity-bus
    cat /run/late
    readlink /proc/$(systemctl show -P MainPID nginx)/exe
    """
    said = on_bus(artefact, tmp_path, question, " org.example.Late wait", falls_back=True)
    assert said == ["running", "active", "started", "/usr/sbin/nginx"]
