"""Record the reference boot. The image boots in a VM, in which strace follows PID 1 from its first exec until ready.
Ready is the moment when the application answers the readiness request. Then the logs are copied to the host.

While strace writes its log, the log stays in the guest's memory. So the writing affects neither the disk nor the trace.
At the end, the launch agent sends the log to the host. The recording fails unless the log is complete. The log is
complete if strace has ended and the log has the same SHA-256 in the guest and on the host.
"""

from __future__ import annotations

import hashlib
import io
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from quickstart.errors import TraceError
from quickstart.guest import Executes, Launcher, executing, last_lines
from quickstart.host import door
from quickstart.host.assets import assets
from quickstart.host.progress import Progress
from quickstart.inspect.elf import closure
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import MIB
from quickstart.model.machine import Machine, machine
from quickstart.model.subject import Subject
from quickstart.store.compiled import compiled
from quickstart.store.store import Store
from quickstart.trace.collect import UnitLog, collect_file, loaded_files
from quickstart.trace.firstreads import TRACE_WORDS
from quickstart.trace.load import refuse_absent
from quickstart.trace.resident import large_files

TRACE_MAC = "52:54:00:71:73:01"
_GUEST = "/run/quickstart-trace"
_TRANSFER_S = 600.0
# The limit for the output of our scripts in the guest.
_SAID_BYTES = 64 * MIB
# Under strace, a process stops twice for each recorded call.
_SLOWDOWN = 4
# The tracer's own programs: their names and how they are compiled.
FLAGS = {
    "resident": ("-std=c11", "-O2", "-static", "-s"),
    "strace-filter": ("-std=c11", "-O2", "-shared", "-fPIC", "-s"),
}


def tracer_programs(store: Store) -> Mapping[str, Path]:
    """A map from the names of our two C programs for the trace to the paths of the compiled programs. ``resident`` is a
    static program, and ``strace-filter`` is a shared library for strace.
    """
    return {name: compiled(store, name, flags, assets("tracers") / name) for name, flags in FLAGS.items()}


def tracers_digest() -> str:
    """The SHA-256 of the names and contents of all files in the directory tracers/."""
    digest = hashlib.sha256()
    for path in sorted(path for path in assets("tracers").rglob("*") if path.is_file()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def tracer_files(programs: Mapping[str, Path]) -> dict[str, bytes | Path]:
    """The files that a traced boot needs. The keys are the names of these files in the launch archive. The files are
    the host's strace with all its libraries, our scripts, and our compiled C programs ``programs``.
    """
    program = door.tool_path("strace")
    host = ImageRoot(Path("/"))
    scripts = assets("tracers")
    files: dict[str, bytes | Path] = {
        "busybox": door.tool_path("busybox"),
        "hooks/20-trace": scripts / "hook",
        "trace/busybox": door.tool_path("busybox"),
        "trace/strace": program.resolve(),
        "trace/strace-init": scripts / "strace-init",
        "trace/strace-stop": scripts / "strace-stop",
        "trace/ldd-all": scripts / "ldd-all",
        "trace/maps-all": scripts / "maps-all",
        "trace/units-all": scripts / "units-all",
        "trace/units-started": scripts / "units-started",
        "trace/reads-all": scripts / "reads-all",
        **{f"trace/{name}": path for name, path in programs.items()},
    }
    for dependency in closure(host, [PurePosixPath(program.resolve())]):
        name = "ld.so" if dependency.kind == "interpreter" else f"lib/{dependency.name}"
        files[f"trace/{name}"] = host.host(dependency.path)
    return files


def record(
    subject: Subject, launcher: Launcher, programs: Mapping[str, Path], directory: Path, progress: Progress
) -> None:
    """Boot the root disk of ``subject`` under the tracers (strace and our scripts), and write the raw logs to
    ``directory``.

    The function writes the files strace.log, maps.log, units.log, resident.log, ldd.log, modules.before, modules.after
    and facts.json. If the profile has first requests, the function also writes reads.log. ``programs`` is the result of
    ``tracer_programs``. Raises GuestError when the guest does not become ready, and TraceError when a log is not
    complete.
    """
    profile = subject.profile
    first_requests = profile.data_prefetch.first_requests
    traced = _traced_machine(subject)
    with launcher.launch(traced, profile.ready, tracer_files(programs)) as launched:
        guest = executing(launched)
        with progress.step("trace: reference boot under strace"):
            readied = guest.wait_ready(profile.ready.timeout_s * _SLOWDOWN)
            _await_companions(guest, profile.units)
        with progress.step("trace: bring the logs home"):
            # This happens while the tracer still runs, because the tracer's log must have all files that are mapped
            # now.
            _save(directory / "maps.log", _output(guest, f"{_GUEST}/maps-all {shlex.join(profile.units)}"))
            _stop_tracer(guest)
            # This happens after the end of strace, because systemd reads many files for this log, and strace would
            # stop systemd at each of them.
            _save(directory / "units.log", _output(guest, f"{_GUEST}/units-all"))
            # The log was in the guest's memory.
            _fetch(guest, "strace.log", directory, traced.memory_mib * MIB)
            _fetch(guest, "modules.before", directory, _SAID_BYTES)
            _save(directory / "modules.after", _output(guest, "cat /proc/modules"))
            found = _collected(directory, profile.units)
            # This happens before ldd, which reads all libraries.
            _record_resident(guest, directory, found, ImageRoot(subject.reference.tree))
        with progress.step("trace: ldd in the guest"):
            _record_ldd(guest, directory, found)
        if first_requests:
            with progress.step("trace: the first requests"):
                _record_first_reads(guest, directory, first_requests)
    facts = {
        "interface": readied.beacon.interface,
        "address": readied.beacon.address,
        "mac": TRACE_MAC,
        "ready_uptime_ns": readied.ready.uptime_ns,
        "answer": readied.ready.answer,
    }
    _save(directory / "facts.json", (json.dumps(facts, indent=1) + "\n").encode())


def _traced_machine(subject: Subject) -> Machine:
    """The machine of a reference boot. The machine has more memory than the profile defines, because strace's log needs
    memory, too.
    """
    profile, disk = subject.profile, subject.disk
    words = (*disk.options, *(TRACE_WORDS if profile.data_prefetch.first_requests else ()))
    return machine(
        f"trace-{profile.name}",
        memory_mib=max(profile.memory_mib, 1024) + 512,
        kernel=subject.reference.kernel,
        initrds=(subject.reference.initrd,),
        cmdline=" ".join(
            (f"console=ttyS0 panic=-1 root=UUID={disk.superblock.uuid} ro init={_GUEST}/strace-init", *words)
        ),
        disk=disk.attached,
        mac=TRACE_MAC,
    )


def _record_first_reads(guest: Executes, directory: Path, first_requests: str) -> None:
    """Send the profile's first requests in the guest. Save the log of the reads from the root volume, which covers the
    time of these requests.
    """
    err = io.BytesIO()
    status = guest.execute(first_requests, io.BytesIO(), err, _TRANSFER_S, _SAID_BYTES)
    if status != 0:
        raise TraceError(
            f"the profile's prefetch.first_requests ended with {status}",
            hint="mend this shell line, or remove the table [prefetch]",
            details=last_lines(err),
        )
    try:
        _save(directory / "reads.log", _output(guest, f"{_GUEST}/reads-all"))
    except TraceError as error:
        hint = "without CONFIG_EVENT_TRACING in the image's kernel, remove the table [prefetch]"
        raise TraceError(error.message, hint=hint, details=error.details) from error


def _await_companions(guest: Executes, units: Sequence[str]) -> None:
    """Wait until systemd has started the companions, which are all ``units`` except the last unit. An early start runs
    the ExecStartPost= commands of the companions before the last unit. So the log must contain the actions of these
    commands.
    """
    if companions := units[:-1]:
        _output(guest, f"{_GUEST}/units-started {shlex.join(companions)}")


def _save(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _output(guest: Executes, command: str) -> bytes:
    out, err = io.BytesIO(), io.BytesIO()
    status = guest.execute(command, out, err, _TRANSFER_S, _SAID_BYTES)
    if status != 0:
        raise TraceError(f"`{command}` in the guest ended with {status}", details=last_lines(err))
    return out.getvalue()


def _stop_tracer(guest: Executes) -> None:
    status = guest.execute(f"{_GUEST}/strace-stop", io.BytesIO(), io.BytesIO(), _TRANSFER_S, _SAID_BYTES)
    if status != 0:
        what = {2: "strace was not running any more", 3: "strace did not end"}.get(status, f"status {status}")
        raise TraceError(f"the tracer could not be stopped: {what}", hint="the log would not be complete")


def _fetch(guest: Executes, name: str, directory: Path, most_bytes: int) -> None:
    path = f"{_GUEST}/{name}"
    # A guest may say anything, or nothing.
    expected = _output(guest, f"{_GUEST}/busybox sha256sum {path}")[:64].decode(errors="replace")
    with (directory / name).open("wb") as out:
        status = guest.execute(f"cat {path}", out, io.BytesIO(), _TRANSFER_S, most_bytes)
    with (directory / name).open("rb") as file:
        arrived = hashlib.file_digest(file, "sha256").hexdigest()
    if status != 0 or arrived != expected:
        raise TraceError(f"{name} did not come home whole: SHA-256 {arrived}, in the guest {expected!r}")


def _collected(directory: Path, units: Sequence[str]) -> UnitLog:
    with (directory / "strace.log").open("rb") as log:
        found = collect_file(log, *units)
    refuse_absent(found, units)
    return found


def _record_resident(guest: Executes, directory: Path, found: UnitLog, root: ImageRoot) -> None:
    words = shlex.join(str(file) for file in large_files(found, root))
    _save(directory / "resident.log", _output(guest, f"{_GUEST}/resident {words}"))


def _record_ldd(guest: Executes, directory: Path, found: UnitLog) -> None:
    words = shlex.join(str(file) for file in loaded_files(found))
    _save(directory / "ldd.log", _output(guest, f"{_GUEST}/ldd-all {words}"))
