"""Boots in which systemd adopts synthetic units that were started before it; then their processes are examined.

A hook in the launch archive (agent.md) adds the work to init's own files. Nothing is built for it, and OUT is
unchanged.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from quickstart.artefact import directory as artefacts
from quickstart.cli.firmware import free_port
from quickstart.engines import boot as pipeline
from quickstart.launch.drain import whole_text
from quickstart.store.store import Store, default_root
from tests.guests import launched
from tests.vm.conftest import BOOT_S, host
from tests.vm.parity import described, small_root

GUEST = Path(__file__).with_name("guest")
SETTLED = (GUEST / "settled.sh").read_text()
FACTS = (GUEST / "facts.sh").read_text()
_WORK_S = 1800.0
_HEADER = re.compile(r"^== (\S+) (\S+) (\S+) (\d+) (\S+)\n", re.MULTILINE)
# `+`: without what confines the application, as init starts its own.
_EARLY = "command post + /bin/sh sh /fast/quickstart/parity/early"
# The launch archive is in the initramfs, of which only /fast is still to be seen later.
_HOOK = "cp -r /launch/parity $Q/parity\n"


@dataclass(frozen=True)
class Process:
    """One process of a unit: ``main``, or its name and user; ``files`` of /proc/PID by name."""

    role: str
    pid: int
    files: dict[str, str]


@dataclass(frozen=True)
class Taken:
    """What a machine said of its units, by unit and moment (``adopted``, ``restarted``)."""

    processes: dict[tuple[str, str], list[Process]]

    def of(self, unit: str, when: str) -> list[Process]:
        """The unit's processes, the main one first, the others by role."""
        found = [each for each in self.processes[unit, when] if each.role not in ("unit", "first")]
        return sorted(found, key=lambda each: (each.role != "main", each.role, each.pid))

    def about(self, unit: str, when: str, role: str, file: str) -> str:
        """A fact that is not a process's own: ``unit`` ``show``, or ``first`` ``mountinfo`` (PID 1's)."""
        return next(each for each in self.processes[unit, when] if each.role == role).files[file]


def taken(text: str) -> Taken:
    """What facts.sh has printed."""
    parts = _HEADER.split(text)[1:]
    found: dict[tuple[str, str], dict[tuple[str, int], dict[str, str]]] = {}
    for unit, when, role, pid, file, answer in zip(*(parts[at::6] for at in range(6)), strict=True):
        found.setdefault((unit, when), {}).setdefault((role, int(pid)), {})[file] = answer.rstrip("\n")
    return Taken(
        {
            key: [Process(role, pid, files) for (role, pid), files in processes.items()]
            for key, processes in found.items()
        }
    )


def boot(out: Path, command: str, files: Mapping[str, str], hook: str, *, falls_back: bool = False) -> str:
    """Boot OUT with ``files`` below /fast/quickstart/parity; what ``command`` prints. What the machine writes is thrown away.

    ``hook`` is shell that init runs early in its first half, with $Q for /fast/quickstart. ``falls_back`` says
    whether the machine is to fall back to the stock start.
    """
    found = artefacts.load(out)
    machine = pipeline.machine_of(found, stock=False, snapshot=True, port=free_port(), extra_cmdline="")
    extra: dict[str, bytes | Path] = {f"parity/{name}": text.encode() for name, text in files.items()}
    extra["hooks/50-parity"] = f"{_HOOK}{hook}\n".encode()
    said = io.BytesIO()
    with Store(default_root(), print) as store, launched(machine, found.ready, store, extra) as guest:
        guest.wait_ready(BOOT_S)
        guest.execute(command, said, said, _WORK_S)
        console = whole_text(guest.console.path.read_bytes())
    assert ("fallback" in console) is falls_back, console
    return said.getvalue().decode(errors="replace")


def descriptions(artefact: Path, units: Mapping[str, str], base: Path) -> Iterator[tuple[str, str]]:
    """Name and description of each of the units, as a build would make it for the image; ``base`` is room for a tree."""
    root = small_root(artefact, base)
    # The groups of system calls are in a library of systemd's.
    library = base / "usr/lib/x86_64-linux-gnu"
    library.mkdir(parents=True)
    host("debugfs", "-R", f"rdump /{library.relative_to(base)}/systemd {library}", artefact / "root.raw")
    places = base / "etc/systemd/system"
    places.mkdir(parents=True)
    for name, text in units.items():
        (places / f"parity-{name}.service").write_text(text)
        yield name, described(root, f"parity-{name}.service")


def unit_type(text: str) -> str:
    """The Type= of a unit's text as init's `config` has it."""
    found = re.search(r"^Type=(.*)$", text, re.MULTILINE)
    return found[1] if found else "simple"


def adopt_beside(artefact: Path, units: Mapping[str, str], base: Path) -> str:
    """One boot in which ``units`` are started and adopted beside the artefact's own; what facts.sh says of all of them."""
    files = {"early": (GUEST / "early-units.sh").read_text(), "facts": FACTS, "record": f"{_EARLY}\n"}
    for name, description in descriptions(artefact, units, base):
        files[f"units/{name}/unit"] = units[name] + "[Install]\nWantedBy=multi-user.target\n"
        files[f"units/{name}/description"] = description
        files[f"units/{name}/type"] = f"{unit_type(units[name])}\n"
    command = (
        f"{SETTLED}wait_settled\n. /fast/quickstart/parity/facts\n"
        "for place in /run/early-units/*/; do name=parity-$(basename $place).service\n"
        # What `settle` does for the application's unit.
        "rm /run/systemd/system/$name.d/zzzz-quickstart.conf; done; systemctl daemon-reload\n"
        "echo '== nginx.service early first 1 mountinfo'; cat /run/early-units/mountinfo\n"
        "echo '== nginx.service early first 1 tmp'; ls -d /tmp/*-file /var/tmp/*-file /tmp/*-old /var/tmp/*-old 2>/dev/null\n"
        "for place in /run/early-units/*/; do name=$(basename $place)\n"
        'echo "== parity-$name.service early main $(cat $place/main.pid) reason"; cat $place/reason 2>/dev/null\n'
        'echo "== parity-$name.service early main $(cat $place/main.pid) attributes"; cat $place/attributes\n'
        "adopted_and_restarted parity-$name.service; done\n"
        "adopted_and_restarted nginx.service 1\n"
    )
    # The application's own time is not for so many units, on a busy host.
    hook = "sed -i 's/^start-timeout-ms .*/start-timeout-ms 0/' $Q/unit; cat $Q/parity/record >>$Q/unit"
    return boot(artefact, command, files, hook)


def adopt_alone(artefact: Path, name: str, text: str, base: Path) -> str:
    """One boot with the unit in the application's place, all else of init, hand-off and settle as it is; what facts.sh says of it.

    The artefact's own application is started by systemd, as any other service.
    """
    unit = f"parity-{name}.service"
    ((_, description),) = descriptions(artefact, {name: text}, base)
    files = {
        "unit": text + "[Install]\nWantedBy=multi-user.target\n",
        "description": f"{description}{_EARLY}\n",
        "early": (
            f"cp /fast/quickstart/parity/unit /etc/systemd/system/{unit}\n"
            "mkdir -p /etc/systemd/system/multi-user.target.wants\n"
            f"ln -s ../{unit} /etc/systemd/system/multi-user.target.wants/\n"
            "echo $MAINPID >/run/early-pid\n"
        ),
        "facts": FACTS,
    }
    values = {
        "UNIT": unit,
        "UNIT_TYPE": unit_type(text),
        "UNIT_GROUP": f"system.slice/{unit}",
        "PID_FILE": "".join(re.findall(r"^PIDFile=(.*)$", text, re.MULTILINE)),
        "READY_PORT": "",
        "READY_PATH": "",
    }
    edits = " ".join(f"-e 's#^{key}=.*#{key}={value}#'" for key, value in values.items())
    command = (
        f"{SETTLED}wait_settled\n. /fast/quickstart/parity/facts\n"
        f"echo '== {unit} early main '$(cat /run/early-pid)' machine'; systemctl is-system-running\n"
        "systemctl list-jobs --no-legend --plain\n"
        "systemctl --failed --no-legend --plain; ls /run/systemd/system; ls -d /run/quickstart* 2>/dev/null\n"
        f"adopted_and_restarted {unit}\n"
    )
    return boot(artefact, command, files, f"cp $Q/parity/description $Q/unit; sed -i {edits} $Q/config")
