"""Compares a process that the starter has started with one of systemd's: what is compared, and what may differ, with its reason."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from quickstart.initramfs.description import description_text
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import read_unit
from quickstart.inspect.unit.journal import JOURNAL_SOCKETS
from quickstart.inspect.unit.model import UnitStart
from quickstart.model import StartSet
from tests.vm.conftest import STAY, guest_file, quickstart

# Both start from the root volume, so that the same program is compared.
_ENVIRONMENT = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",)
FILES = ("status", "limits", "cgroup", "oom_score_adj", "mountinfo")
# Fields of /proc/PID/status that may differ, and why.
MAY_DIFFER = {
    **dict.fromkeys(
        ("Pid", "Tgid", "NStgid", "NSpid", "NSpgid", "NSsid"), "each machine numbers its own processes"
    ),
    **dict.fromkeys(("State", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"), "of the instant"),
    "SigQ": "counts the signals of all processes of the user",
    "FDSize": "a table that grew before the execve",
    "Seccomp_filters": "systemd loads one program for each directive and architecture, we one for all",
}
# Rows of /proc/PID/limits that hang on the memory left at boot, and the initramfs is larger than the stock one.
OF_THE_MACHINE = ("Max processes", "Max pending signals")
MEMORY = re.compile(r"^(Vm|Rss|Huge)")
PRIVATE_TMP = re.compile(r"systemd-private-[0-9a-f]{32}-(.*)-.{6}(/|$)")
# Mount points that only one of the two has, and why.
MAY_LACK = {
    "/run/credentials": "systemd makes it for its own services, and closes it to others, which have no credentials"
}


def quoted(path: str, text: str) -> str:
    return f"printf %s {shlex.quote(text)} >{path}\n"


def small_root(artefact: Path, base: Path) -> ImageRoot:
    """A new tree at ``base`` with what a unit's reader needs of the image of OUT: users, groups, and journald's socket units."""
    for path in ("etc/passwd", "etc/group", *(f"usr/lib/systemd/system/{name}" for name in JOURNAL_SOCKETS)):
        (base / path).parent.mkdir(parents=True, exist_ok=True)
        (base / path).write_text(guest_file(artefact, f"/{path}"))
    return ImageRoot(base)


def described(root: ImageRoot, unit: str) -> str:
    """The starter's description of a unit of the image."""
    return of_start(read_unit(root, unit), root)


def of_start(unit: UnitStart, root: ImageRoot) -> str:
    return description_text(unit, StartSet((), ()), root, _ENVIRONMENT, from_fast=False, bound=())


def ask(name: str) -> str:
    """Prints what is compared of the process $MAIN."""
    files = "".join(f"echo '== {name} {file}'; cat /proc/$MAIN/{file}; echo\n" for file in FILES)
    return f"{files}echo '== {name} pid'; echo $MAIN\n"


def fast_script(descriptions: dict[str, str]) -> str:
    parts = ["mkdir /run/parity-units\n", "MAIN=1\n", ask("PID-1")]
    for name, text in descriptions.items():
        parts += [
            quoted("/run/parity-units/unit", text),
            f"/fast/quickstart/bin/starter /run/parity-units/unit /run/parity-units/{name} || ",
            f"cat /run/parity-units/{name}/reason\n",
            f"MAIN=$(cat /run/parity-units/{name}/main.pid)\n",
            ask(name),
        ]
    return "".join(parts)


def answers(artefact: Path, script: str, *options: str) -> dict[str, dict[str, str]]:
    called = quickstart(
        "run", artefact, *STAY, "--snapshot", *options, "--exec", script, "--json", timeout_s=900
    )
    assert called.out, called.err
    text = called.result["exec_stdout"]
    parts = re.split(r"^== (\S+) (\S+)\n", text, flags=re.MULTILINE)
    found: dict[str, dict[str, str]] = {}
    for name, file, answer in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        found.setdefault(name, {})[file] = answer.strip()
    return found


@dataclass(frozen=True)
class Machine:
    """What a boot said of PID 1 and of each unit's main process."""

    processes: dict[str, dict[str, str]]

    def file(self, unit: str, name: str) -> str:
        return self.processes[unit][name]


@dataclass(frozen=True)
class Mount:
    """A line of mountinfo (proc(5)): the device, what of it, where, and its options."""

    device: str
    root: str
    point: str
    options: frozenset[str]
    shared: frozenset[str]
    kind: str
    whole: frozenset[str]


def mounts(text: str) -> list[Mount]:
    found = []
    for line in text.splitlines():
        left, right = line.split(" - ")
        _, _, device, root, point, options, *tags = left.split()
        kind, _, whole = right.split(" ", 2)
        shared = frozenset(tag.partition(":")[0] for tag in tags)
        names = PRIVATE_TMP.sub(r"systemd-private-BOOT-\1-RANDOM\2", root)
        found.append(
            Mount(
                device, names, point, frozenset(options.split(",")), shared, kind, frozenset(whole.split(","))
            )
        )
    return found


def compared(process: str, first: str, left_out: set[str]) -> list[object]:
    """What the process's mounts are, relative to those of PID 1: file systems by where PID 1 has them, options by what differs.

    ``left_out`` are the mount points that PID 1 has on one of the two machines only.
    """
    of_first = mounts(first)
    by_device = {mount.device: mount for mount in reversed(of_first) if mount.root in ("/", "/fast")}
    lines: list[object] = []
    for mount in mounts(process):
        if mount.point in left_out or mount.point in MAY_LACK:
            continue
        base = by_device.get(mount.device)
        where = (mount.point, mount.root, sorted(mount.shared - {"propagate_from"}))
        if base is None:
            lines.append((*where, mount.kind, sorted(mount.options), sorted(mount.whole - {"inode64"})))
        else:
            changes = (sorted(mount.options - base.options), sorted(base.options - mount.options))
            lines.append((*where, f"of {base.point}", *changes))
    return sorted(lines, key=repr)


def fields(status: str) -> dict[str, str]:
    rows = (line.partition(":") for line in status.splitlines())
    return {
        name: value.strip() for name, _, value in rows if name not in MAY_DIFFER and not MEMORY.match(name)
    }


def rows(limits: str) -> dict[str, tuple[str, ...]]:
    return {line[:26].strip(): tuple(line[26:].split()) for line in limits.splitlines()}


def relative(machine: Machine, unit: str) -> dict[str, tuple[str, ...]]:
    """The limits; those that the kernel computes from the memory it has left at boot by whether they are PID 1's."""
    own, first = rows(machine.file(unit, "limits")), rows(machine.file("PID-1", "limits"))
    return {
        name: ("as PID 1",) if name in OF_THE_MACHINE and value == first[name] else value
        for name, value in own.items()
    }


def bound(machine: Machine, unit: str) -> set[str]:
    """What the delivery `overlay` has put in front of the volume's own files for the unit's process, each read-only."""
    found = [each for each in mounts(machine.file(unit, "mountinfo")) if each.root == f"/fast{each.point}"]
    assert all("ro" in each.options for each in found), found
    return {each.point for each in found}


def assert_same_mounts(machines: tuple[Machine, Machine], unit: str) -> None:
    """The mounts of the unit's process agree, as far as both machines have them, beside the fast one's own packed files."""
    first = [machine.file("PID-1", "mountinfo") for machine in machines]
    left_out = {mount.point for mount in mounts(first[0])} ^ {mount.point for mount in mounts(first[1])}
    assert not bound(machines[1], unit)
    left_out |= bound(machines[0], unit)
    fast, stock = (
        compared(machine.file(unit, "mountinfo"), text, left_out)
        for machine, text in zip(machines, first, strict=True)
    )
    assert fast == stock, (set(map(repr, fast)) ^ set(map(repr, stock)), unit)
