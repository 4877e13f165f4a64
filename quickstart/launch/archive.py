"""Make the launch archive, a cpio archive with the launch agent and hooks. QuickStart appends the launch archive to the
initramfs when it starts a guest. The launch archive is never part of an artefact.

Three kinds of initramfs can use the launch archive. The init of our initramfs sources `/launch/hooks/*` when
the bus drivers are loaded. The init of initramfs-tools sources `/conf/param.conf` after each of its scripts. The file
param.conf sources the hooks once. In an initramfs of dracut, services of systemd source the scripts in
`/lib/dracut/hooks` (dracut.modules(7)).
"""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path, PurePosixPath

from quickstart.host.beneath import opened_regular
from quickstart.host.unchanged import copy_exactly
from quickstart.initramfs.newc import CpioEntry, directory, regular, write_archive
from quickstart.model import Readiness
from quickstart.model.words import ReadyKind
from quickstart.store.compiled import compiled
from quickstart.store.store import Store

PORT_NAME = "org.quickstart.agent"
# In place of the port's name: the agent writes its messages to the machine's console (docs/internals/agent.md).
CONSOLE = "console"
PROBE_INTERVAL_MS = 10
FLAGS = ("-std=c11", "-O2", "-static")

# /run exists once initramfs-tools has read the kernel's command line. The scripts in scripts/init-top are the first
# after that.
_PARAM_CONF = """\
if [ -d /run/initramfs ] && [ ! -e /launch/started ]; then
	: >/launch/started
	for hook in /launch/hooks/*; do . "$hook"; done
fi
"""

_DRACUT_HOOKS = "usr/lib/dracut/hooks"
# udev has loaded no driver yet.
_PRE_TRIGGER = """\
for hook in /launch/hooks/*; do . "$hook"; done
"""
# systemd executes an init in /run only if this init is there before /run has moved into the new root.
_PRE_PIVOT = """\
read -r words </proc/cmdline
case " $words" in *" init=/run/"*) mount --rbind /run "$NEWROOT/run" ;; esac
"""
# systemd ends all processes of a service of the initramfs with this service, so the agent leaves the service's control
# group.
_START_AGENT = """\
(
	[ ! -w /sys/fs/cgroup/cgroup.procs ] || echo 0 >/sys/fs/cgroup/cgroup.procs
	exec /launch/agent {words}
) </dev/null >/dev/null 2>&1 &
"""


def agent_binary(store: Store) -> Path:
    """The path of the launch agent, which is compiled as a static program."""
    return compiled(store, "agent", FLAGS, resources.files("quickstart.launch").joinpath("agent"))


def agent_words(ready: Readiness | None, port: str = PORT_NAME) -> tuple[str, ...]:
    """The arguments of the launch agent (docs/internals/agent.md). ``port`` is PORT_NAME or CONSOLE."""
    request: tuple[str, ...] = ("none",)
    where = ("loopback",) if ready is not None and ready.loopback else ()
    if ready is not None and ready.kind == ReadyKind.HTTP:
        request = (*where, "http", str(ready.port), str(ready.status), ready.path)
    elif ready is not None and ready.kind == ReadyKind.TCP:
        request = (*where, "tcp", str(ready.port))
    elif ready is not None and ready.kind == ReadyKind.MYSQL:
        request = (*where, "mysql", str(ready.port), ready.account)
    elif ready is not None:
        request = ("exec", ready.command)
    return (port, str(PROBE_INTERVAL_MS), *request)


def launch_cpio(
    agent: Path, ready: Readiness | None, extra: Mapping[str, bytes | Path], port: str = PORT_NAME
) -> bytes:
    """The launch archive with the launch agent, which sends its messages to ``port``, PORT_NAME or CONSOLE. ``extra`` has
    further files, such as hooks and programs, under their names below /launch. All files below /launch get mode 0755.
    """
    words = " ".join(shlex.quote(word) for word in agent_words(ready, port))
    files: dict[str, bytes | Path] = {
        "agent": agent,
        "hooks/10-agent": _START_AGENT.replace("{words}", words).encode(),
        **extra,
    }
    entries: list[CpioEntry] = [directory("conf"), regular("conf/param.conf", _PARAM_CONF.encode(), 0o644)]
    made: set[str] = set()
    for name in sorted({"launch", *(f"launch/{name}" for name in files)}):
        parent = ""
        for part in name.split("/")[:-1] if name != "launch" else ["launch"]:
            parent = f"{parent}/{part}".lstrip("/")
            if parent not in made:
                made.add(parent)
                entries.append(directory(parent))
        if name != "launch":
            entries.append(regular(name, files[name.removeprefix("launch/")], 0o755))
    entries += _of_dracut()
    stream = io.BytesIO()
    write_archive(stream, entries)
    return stream.getvalue()


def _of_dracut() -> Iterator[CpioEntry]:
    """The members for an initramfs of dracut. In this initramfs, /lib is a link to usr/lib."""
    place = PurePosixPath(_DRACUT_HOOKS)
    yield from (directory(str(path)) for path in (*reversed(place.parents[:-1]), place))
    for name, text in (("pre-trigger", _PRE_TRIGGER), ("pre-pivot", _PRE_PIVOT)):
        yield directory(f"{place}/{name}")
        yield regular(f"{place}/{name}/00-launch.sh", text.encode(), 0o755)


def join_initrd(
    parts: tuple[Path, ...], launch_archive: bytes, target: Path, sizes: Mapping[Path, int]
) -> None:
    """Write the initramfs files ``parts`` and then the launch archive into ``target``. Each file and the launch archive
    begin at a multiple of 512 bytes in ``target``. The kernel finds an uncompressed cpio archive only at a multiple of
    4 bytes (Documentation/driver-api/early-userspace/buffer-format.rst), and each multiple of 512 is a multiple of 4.

    Raises BadInputError when the size of a file differs from the file's size in ``sizes``. Also raises BadInputError
    when another process writes to a file during the call.
    """
    with target.open("wb") as out:
        for part in parts:
            with opened_regular(part) as fd:
                copy_exactly(fd, out, part, sizes.get(part))
            out.write(bytes(-out.tell() % 512))
        out.write(launch_archive)
        out.write(bytes(-out.tell() % 512))
