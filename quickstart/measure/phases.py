"""Compute the phases of a boot until ready, from time stamps of the kernel, of init and of systemd
(docs/internals/guest.md). A script collects the time stamps in the guest. The functions parse the output of this
script, and are pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

from quickstart.measure.results import Phase, Sample
from quickstart.parse.bounded import natural

_KMSG = re.compile(r"<\d+>\[\s*(\d+)\.(\d{6})\] (.*)")
_NOW = re.compile(r"now at (\d+) nsecs")
_NETWORK_UNITS = ("networking.service", "systemd-networkd.service")
# A shorter phase is that of a service that only forks, and does not explain a difference. Results keep a line for
# each longer phase.
_SHORTEST_NS = 1_000_000
# The numbers and names come from a guest: no run takes as long, and no machine has as many services, or a name as long
# (UNIT_NAME_MAX of systemd). A hundred names of usual services have 3 KB.
_MOST_S, _MOST_UNITS, _MOST_NAMES_BYTES = 1_000_000, 200, 16 << 10
_UNIT_NAME = re.compile(r"[A-Za-z0-9:_.\\@-]{1,255}")
_S_NS, _US_NS = 10**9, 1000
_OURS = ("modules", "network", "root", "integrity", "checked", "application")


def script(unit: str) -> str:
    """The text of the script that runs in the guest once the guest is ready. `phases` parses the script's output.

    The kernel's log has a clock of its own (sched_clock). To relate this clock to the uptime, the script writes one
    line into the log. Right after that, without a fork in between, the script prints the uptime.
    """
    stamps = ("InactiveExit", "ActiveEnter", "InactiveEnter")
    properties = " ".join(("-p Id", *(f"-p {each}TimestampMonotonic" for each in stamps)))
    return (
        'echo "<7>quickstart: stamp now" >/dev/kmsg\n'
        'while read -r line; do case $line in now*) echo "$line"; break;; esac; done </proc/timer_list\n'
        "dmesg -r | grep -e 'quickstart: stamp' -e '] Run /'\n"
        # After an early start by our init, systemd has only begun at ready, so the script does not ask systemd. Without
        # --all, a pattern does not match inactive units, such as a oneshot service that has run.
        "dmesg -r | grep -q 'quickstart: stamp application' || { systemctl show -p UserspaceTimestampMonotonic\n"
        f"systemctl show --all {properties} {shlex.join((unit, *_NETWORK_UNITS, '*.service'))}; }}\n"
    )


def phases(
    said: str,
    unit: str,
    before_kernel_ns: int,
    beacon_ns: int,
    ready_ns: int,
    first: str = "before kernel",
) -> tuple[Phase, ...]:
    """The phases from the machine's start to ready. The result does not have a phase whose time stamps are missing.

    ``first`` is the name of the phase before the kernel's clock begins, whose length is ``before_kernel_ns``.
    ``said`` is the output of the script that the function `script` returns. The phase ``network`` overlaps other
    phases. All other phases follow each other.
    """
    # The time may be below 0, because the uptime runs ahead at first (docs/users/times.md). But a phase has no length
    # below 0.
    found = [Phase(first, -max(0, before_kernel_ns), 0)]
    stamps = _kernel_stamps(said)
    units = dict(_units(said))
    if "init" in stamps:
        found.append(Phase("kernel", 0, stamps["init"]))
        if "application" in stamps:
            found += _ours(stamps, beacon_ns, ready_ns)
        elif units:
            found += _systemds(said, units, unit, stamps["init"], beacon_ns, ready_ns)
    return tuple(each for each in (_until(each, ready_ns) for each in found) if each is not None)


def units(said: str, ready_ns: int) -> tuple[Phase, ...]:
    """The services that systemd had begun to start before ready, in the order of their starts. Each service is a phase,
    which ends at ready at the latest. The result does not have services with a phase of less than 1 ms.

    ``said`` is the output of the script that the function `script` returns. After a fast start, the result is empty,
    because the script does not ask systemd in this case. A service's phase ends when the service is active. The phase
    of a oneshot service that is no longer active ends when the service has run. The phase of a service that was still
    starting ends at ready.
    """
    found = []
    for name, properties in dict(_units(said)).items():
        begin_ns = _instant(properties, "InactiveExitTimestampMonotonic")
        ends = (
            _instant(properties, f"{each}TimestampMonotonic") for each in ("ActiveEnter", "InactiveEnter")
        )
        end_ns = min((each for each in ends if each >= begin_ns), default=ready_ns)
        if begin_ns and (phase := _until(Phase(name, begin_ns, end_ns), ready_ns)) is not None:
            found.append(phase)
    long = (each for each in found if each.end_ns - each.begin_ns >= _SHORTEST_NS)
    named, left_bytes = [], _MOST_NAMES_BYTES
    for each in sorted(long, key=lambda each: (each.begin_ns, each.name))[:_MOST_UNITS]:
        left_bytes -= len(each.name)
        if left_bytes >= 0:
            named.append(each)
    return tuple(named)


def all_phases(sample: Sample) -> tuple[Phase, ...]:
    """The phases of a run from the launch on. The first phase is the fetch, and the recorded phases follow. Before the
    fetch, the firmware of a machine looks for a boot loader.
    """
    end_ns = min((phase.begin_ns for phase in sample.phases), default=0)
    begin_ns = end_ns - sample.fetch_ns
    firmware = (Phase("firmware", begin_ns - sample.firmware_ns, begin_ns),) if sample.firmware_ns else ()
    return (*firmware, Phase("fetch", begin_ns, end_ns), *sample.phases)


def _until(phase: Phase, ready_ns: int) -> Phase | None:
    """The part of the phase before ready. The result is None when the phase begins after ready. For example, an
    application may answer before its unit is active.
    """
    if phase.begin_ns >= ready_ns:
        return None
    return Phase(phase.name, phase.begin_ns, min(phase.end_ns, ready_ns))


def _ours(stamps: Mapping[str, int], beacon_ns: int, ready_ns: int) -> Iterator[Phase]:
    if not all(stamp in stamps for stamp in _OURS):
        return
    # An ExecStartPost may still be at work when the application has long answered.
    started = stamps.get("started", ready_ns)
    yield Phase("init", stamps["init"], stamps["modules"])
    yield Phase("modules", stamps["modules"], stamps["root"])
    yield Phase("network", stamps["network"], beacon_ns)
    yield Phase("root mount", stamps["root"], stamps["integrity"])
    yield Phase("integrity", stamps["integrity"], stamps["checked"])
    yield Phase("enter root", stamps["checked"], stamps["application"])
    yield Phase("application start", stamps["application"], started)
    yield Phase("ready", started, ready_ns)


def _systemds(
    said: str, units: Mapping[str, Mapping[str, str]], unit: str, init_ns: int, beacon_ns: int, ready_ns: int
) -> Iterator[Phase]:
    begun = re.search(r"^UserspaceTimestampMonotonic=(\d+)$", said, re.MULTILINE)
    started = _instant(units.get(unit, {}), "InactiveExitTimestampMonotonic")
    active = _instant(units.get(unit, {}), "ActiveEnterTimestampMonotonic") or ready_ns
    if begun is None or not started:
        return
    systemd_ns = _ns(begun[1], _US_NS)
    yield Phase("initramfs", init_ns, systemd_ns)
    yield Phase("systemd", systemd_ns, started)
    network = [_instant(units.get(name, {}), "InactiveExitTimestampMonotonic") for name in _NETWORK_UNITS]
    if any(network):
        yield Phase("network", min(each for each in network if each), beacon_ns)
    yield Phase("application start", started, active)
    yield Phase("ready", active, ready_ns)


def _kernel_stamps(said: str) -> dict[str, int]:
    """The uptimes in ns of the stamps in the kernel's log, by the names of the stamps. The stamp ``init`` is the time
    at which the kernel executed init.
    """
    found: dict[str, int] = {}
    for line in said.splitlines():
        if entry := _KMSG.match(line):
            at_ns = _ns(entry[1], _S_NS) + _ns(entry[2], _US_NS)
            if entry[3].startswith("quickstart: stamp "):
                found[entry[3].removeprefix("quickstart: stamp ")] = at_ns
            elif entry[3].startswith("Run /"):
                found.setdefault("init", at_ns)
    now = _NOW.search(said)
    if now is None or "now" not in found:
        return {}
    ahead_ns = _ns(now[1]) - found["now"]
    return {name: at_ns + ahead_ns for name, at_ns in found.items()}


def _units(said: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The name and the properties of each unit in the output of `systemctl show`."""
    for block in said.split("\n\n"):
        rows = dict(line.partition("=")[::2] for line in block.splitlines() if "=" in line)
        if _UNIT_NAME.fullmatch(rows.get("Id", "")):
            yield rows["Id"], rows


def _instant(properties: Mapping[str, str], name: str) -> int:
    """A monotonic time stamp of systemd in ns. 0 when the event of this time stamp has not happened."""
    value = properties.get(name, "")
    return _ns(value, _US_NS)


def _ns(digits: str, unit_ns: int = 1) -> int:
    """A guest's number of times ``unit_ns``, in ns. 0 for what is no number, or a time that no uptime can have."""
    found = natural(digits)
    return found * unit_ns if found is not None and found * unit_ns <= _MOST_S * _S_NS else 0
