"""A unit that gets its sockets from systemd: PID 1 binds them before the unit starts, and systemd keeps the same ones
(docs/internals/sockets.md).
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from quickstart.inspect.unit import read_unit
from tests.vm.parity import described, small_root
from tests.vm.parity_adopted import SETTLED, boot
from tests.vm.turns import turn_of

# Each of them has stock boots, so they take turns.
OTHERS = ("other", "unbound")

GUEST = Path(__file__).with_name("guest")
UNIT = "parity-sockets.service"
SOCKET = "parity-sockets.socket"
PLACE = "/fast/quickstart/parity"
# Not below /fast, which goes with fallback 1.
OWN = "/usr/local/lib/parity"
SERVICE = f"""[Service]
Type=exec
ExecStart=/usr/bin/perl {OWN}/serve.pl
[Install]
WantedBy=multi-user.target
"""
LISTENS = """[Socket]
ListenStream=/run/parity/app.sock
ListenStream={port}
ListenDatagram=@parity
KeepAlive=yes
SocketMode=0660
SocketGroup=adm
DirectoryMode=0710
[Install]
WantedBy=sockets.target
"""
# Init's root is the one of the machine by now: what is written here is there when systemd starts.
INSTALL = f"""mkdir -p {OWN}; cp {PLACE}/*.pl {OWN}/
cp {PLACE}/service /etc/systemd/system/{UNIT}
cp {PLACE}/socket /etc/systemd/system/{SOCKET}
cd /etc/systemd/system
mkdir -p multi-user.target.wants sockets.target.wants
ln -s ../{UNIT} multi-user.target.wants/
ln -s ../{SOCKET} sockets.target.wants/
"""
ASK = f"""ask() {{
	for address in /run/parity/app.sock 2947; do perl {OWN}/ask.pl $address; done
	perl {OWN}/ask.pl @parity "$1"
}}
inodes() {{ for fd in 3 4 5; do readlink /proc/$1/fd/$fd; done; }}
"""
EARLY = f"""{ASK}{{
	echo $MAINPID
	ask early
	inodes $MAINPID
	stat -c '%a %U %G' /run/parity/app.sock /run/parity
}} >/run/early 2>&1
"""
STATE = (
    f"systemctl is-system-running; systemctl show -P ActiveState {SOCKET}; systemctl show -P MainPID {UNIT}"
)
QUESTIONS = f"""wait_settled
echo '== early'; cat /run/early
echo '== adopted'; {STATE}; ask adopted; inodes $(systemctl show -P MainPID {UNIT})
echo '== held'; readlink /proc/1/fd/*
systemctl restart {UNIT}
echo '== restarted'; {STATE}; ask restarted; inodes $(systemctl show -P MainPID {UNIT})
systemctl stop {UNIT} {SOCKET}; systemctl start {SOCKET} {UNIT}
echo '== anew'; {STATE}; ask anew; stat -c '%a %U %G' /run/parity/app.sock /run/parity
echo '== datagrams'; cat /run/parity-datagrams
"""


def started(artefact: Path, base: Path, command: str, early: str, bound: int = 2947, **how: bool) -> str:
    """One boot with the unit in the application's place; what ``command`` prints when the machine has settled.

    Init binds port ``bound``, and the unit on the disk has port 2947.
    """
    root = small_root(artefact, base)
    units = base / "etc/systemd/system"
    (units / "sockets.target.wants").mkdir(parents=True)
    (units / UNIT).write_text(SERVICE)
    (units / SOCKET).write_text(
        LISTENS.format(port=f"0.0.0.0:{bound}" if how.pop("only_ipv4", False) else bound)
    )
    (units / "sockets.target.wants" / SOCKET).symlink_to(f"../{SOCKET}")
    sockets = read_unit(root, UNIT).sockets
    assert [socket.path for socket in sockets] == [PurePosixPath("/run/parity/app.sock"), None, None]
    # With `+`: as root, and without what confines the unit.
    added = "".join(f"command {when} + /bin/sh sh {PLACE}/{when}\n" for when in ("pre", "post"))
    files = {
        "service": SERVICE,
        "socket": LISTENS.format(port=2947),
        "description": described(root, UNIT) + added,
        "pre": INSTALL,
        "post": early,
        "serve.pl": (GUEST / "serve-sockets.pl").read_text(),
        "ask.pl": (GUEST / "ask-socket.pl").read_text(),
    }
    values = {
        "UNIT": UNIT,
        "UNIT_TYPE": "exec",
        "UNIT_GROUP": f"system.slice/{UNIT}",
        "PID_FILE": "",
        "READY_PORT": "",
        "READY_PATH": "",
        "SOCKETS": str(len(sockets)),
        "SOCKET_UNITS": SOCKET,
    }
    edits = " ".join(f"-e 's#^{key}=.*#{key}={value}#'" for key, value in values.items())
    # The first half has read its configuration before.
    hook = f"cp $Q/parity/description $Q/unit; sed -i {edits} $Q/config; . $Q/config"
    return boot(artefact, f"{SETTLED}{ASK}{command}", files, hook, **how)


def parts(text: str) -> dict[str, list[str]]:
    words = re.split(r"^== (\w+)\n", text, flags=re.MULTILINE)
    return {name: said.splitlines() for name, said in zip(words[1::2], words[2::2], strict=True)}


def answers(pid: str) -> list[str]:
    """What the service says on its two stream sockets."""
    names = ":".join([SOCKET] * 3)
    return [f"pid {pid} descriptor {fd} of {names} keepalive 1" for fd in (3, 4)]


def test_systemd_keeps_the_sockets_that_pid_1_has_bound(artefact: Path, tmp_path: Path) -> None:
    said = parts(started(artefact, tmp_path, QUESTIONS, EARLY))
    main, *early = said["early"]
    assert early[:2] == answers(main)
    sockets, file = early[2:5], early[5:]
    assert file == ["660 root adm", "710 root root"]
    assert said["adopted"] == ["running", "active", main, *answers(main), *sockets]
    # Whoever connects while the unit restarts waits in systemd's own.
    assert set(sockets) <= set(said["held"])
    running, active, other, *rest = said["restarted"]
    assert (running, active) == ("running", "active")
    assert other != main
    assert rest == [*answers(other), *sockets]
    # And so systemd itself would have made them.
    running, active, last, *rest = said["anew"]
    assert (running, active) == ("running", "active")
    assert rest == [*answers(last), *file]
    assert said["datagrams"] == [
        *(f"pid {main} got {message}" for message in ("early", "adopted")),
        f"pid {other} got restarted",
        f"pid {last} got anew",
    ]


@turn_of("other", OTHERS)
def test_where_systemd_has_others_the_unit_starts_anew(artefact: Path, tmp_path: Path) -> None:
    """Clients connect to systemd's sockets: with any others the service would never answer."""
    question = f"wait_settled; {STATE}; ask late\n"
    text = started(artefact, tmp_path, question, EARLY, 2948, falls_back=True)
    running, active, pid, *rest = text.splitlines()
    assert (running, active) == ("running", "active")
    assert rest[:2] == answers(pid)


@turn_of("unbound", OTHERS)
def test_a_socket_that_systemd_cannot_bind(artefact: Path, tmp_path: Path) -> None:
    """The process of the early start has the port, on IPv4 alone, and systemd wants it for both families."""
    question = f"wait_settled; {STATE}; ask late\n"
    text = started(artefact, tmp_path, question, EARLY, 2947, falls_back=True, only_ipv4=True)
    running, active, pid, *rest = text.splitlines()
    assert (running, active) == ("running", "active")
    assert rest[:2] == answers(pid)


def test_fallback_1_lets_go_of_the_sockets(artefact: Path, tmp_path: Path) -> None:
    """The unit's start fails, and systemd binds and starts all of it itself. The journal has what was said before."""
    journal = f"journalctl -u {UNIT} -o cat | grep -m 1 'cannot go on'"
    question = f"systemctl is-system-running --wait >/dev/null; {STATE}; ask late; {journal}\n"
    text = started(artefact, tmp_path, question, "echo 'cannot go on'; exit 3\n", falls_back=True)
    running, active, pid, *rest = text.splitlines()
    assert (running, active) == ("running", "active")
    assert rest[:2] == answers(pid)
    assert rest[-1] == "cannot go on"
