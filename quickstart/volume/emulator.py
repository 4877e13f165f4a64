"""Serve a volume with the delays of a storage model (docs/users/storage.md). This module starts our NBD server
(emulator/*.c, compiled into the store), ends the server, and reads the server's log.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from quickstart.errors import BadInputError, HostLacksError, VolumeError
from quickstart.host import door
from quickstart.host.beneath import open_regular
from quickstart.host.identity import unprivileged
from quickstart.host.workspace import room_for_sockets, workspace
from quickstart.store.compiled import compiled
from quickstart.store.store import Store
from quickstart.volume.nbd import Command
from quickstart.volume.storage import StorageModel

FLAGS = ("-std=c11", "-O2", "-static")
_LOG_MAGIC = b"QSVOL  1"
# struct record of emulator/volume.c.
_RECORD = struct.Struct("=QqqqQIIIHHIHH")
_RECORD_FIELDS = (
    *("sequence", "arrival_ns", "due_ns", "done_ns", "offset", "length_bytes", "touched", "client"),
    *("in_flight", "instance", "error", "command", "flags"),
)
_LIMIT_S = 20.0
_POLL_S = 0.001
# A client may see the connection end a moment before we see the process end.
_DYING_S = 0.5
# The same as in store/protocol/protocol.h, which the emulator includes.
_INSTANCES_MAX = 64
_BACKLOG = 8


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request to the volume. Times are in ns on CLOCK_MONOTONIC.

    ``sequence`` is the number of the request, counted from 1. According to the storage model, the answer is due at
    ``due_ns``. At ``done_ns``, the answer was written to the socket. ``done_ns`` is 0 for a request that was never
    answered, and ``due_ns`` is 0 when the log ended before the model had served the request. ``offset`` is in bytes.
    ``error`` is the errno of the answer, or 0. ``touched`` is the number of granules (equally large pieces of the
    volume) that this request was the first to touch. ``client`` is the number of the request's connection. ``instance``
    is the number of the instance (one machine of a launch) that made the request, counted from 1, or 0 when the volume
    has a single socket. ``in_flight`` is the number of unanswered requests of all instances when this request arrived,
    including this request. ``command`` may be a number that the enum Command does not have.
    """

    sequence: int
    arrival_ns: int
    due_ns: int
    done_ns: int
    offset: int
    length_bytes: int
    touched: int
    client: int
    in_flight: int
    error: int
    command: int
    flags: int
    instance: int = 0

    @property
    def costs(self) -> bool:
        """Whether the request takes time in the storage model. A request takes time if it is a read or write that
        succeeded.
        """
        return self.error == 0 and self.command in (Command.READ, Command.WRITE, Command.WRITE_ZEROES)


def read_log(data: bytes) -> tuple[Request, ...]:
    """The requests in a log, in the order of their arrival. Raises VolumeError when ``data`` is not a log of our NBD
    server.
    """
    body = data[len(_LOG_MAGIC) :]
    if not data.startswith(_LOG_MAGIC) or len(body) % _RECORD.size:
        raise VolumeError(f"the volume's log of {len(data)} bytes is damaged")
    found = (_request(row) for row in _RECORD.iter_unpack(body))
    return tuple(sorted(found, key=lambda each: each.sequence))


def _request(row: tuple[int, ...]) -> Request:
    return Request(**dict(zip(_RECORD_FIELDS, row, strict=True)))


@dataclass(frozen=True, kw_only=True)
class Volume:
    """A volume that the NBD server ``process`` serves on ``socket`` until the context of `served` ends. ``instance`` is
    the number of the instance (one machine of a launch) that uses ``socket``, or 0 when the volume has a single socket.
    """

    process: door.Process
    socket: Path
    log_file: Path
    output_file: Path
    instance: int = 0

    def of(self, instance: int) -> Volume:
        """The volume as one instance uses it. An instance is one machine of a launch, and ``instance`` is its number,
        counted from 1. Each instance has its own socket and its own overlay for writes.
        """
        return replace(self, socket=_numbered(self.socket, instance), instance=instance)

    @property
    def uri(self) -> str:
        """The volume's address for QEMU."""
        return f"nbd+unix:///?socket={quote(str(self.socket))}"

    def is_running(self) -> bool:
        return not door.has_ended(self.process, 0)

    def log(self, limit_s: float = _LIMIT_S) -> tuple[Request, ...]:
        """The requests of this instance (of all instances if ``instance`` is 0), in the order of their
        arrival. The log has every answered request, and all requests of clients that have disconnected.

        Raises VolumeError when the server does not write the log within ``limit_s`` seconds.
        """
        if self.is_running():
            flushes = self._flushes()
            self.process.send_signal(signal.SIGUSR1)
            _wait(self.process, lambda: self._flushes() > flushes, limit_s)
        data = self.log_file.read_bytes()
        # The last record may be incomplete: the server may just be writing it for another instance.
        whole = len(data) - (len(data) - len(_LOG_MAGIC)) % _RECORD.size if self.is_running() else len(data)
        return tuple(each for each in read_log(data[:whole]) if self.instance in (0, each.instance))

    def _flushes(self) -> int:
        return self.output_file.read_bytes().count(b"flushed ")

    @property
    def last_words(self) -> str:
        """The server's messages, except `ready` and messages about the server's log. When there are no messages, the
        text says how the server ended.
        """
        lines = door.log_tail(self.output_file).splitlines()
        said = "; ".join(line for line in lines if not line.startswith(("ready", "flushed ")))
        return said or door.bad_end(self.process)


def volume_binary(store: Store) -> Path:
    """The path of our NBD server. If the store does not have the server yet, the function compiles the server as a
    static program.
    """
    return compiled(store, "volume", FLAGS, resources.files("quickstart.volume").joinpath("emulator"))


def _words(model: StorageModel, fault: str | None, instances: int) -> list[str]:
    """The KEY=VALUE arguments of the NBD server, which describe the storage model."""
    figures = {
        "read_latency_ns": model.read_latency_ns,
        "write_latency_ns": model.write_latency_ns,
        "bandwidth_bytes_s": model.bandwidth_bytes_s or 0,
        "queue_depth": model.queue_depth,
        "granule_bytes": model.granule_bytes,
        "first_touch_ns": model.first_touch_ns,
        "seek_ns": model.seek_ns,
    }
    words = [f"{name}={value}" for name, value in figures.items()]
    words += [f"fault={fault}"] if fault else []
    return words + ([f"instances={instances}"] if instances else [])


@dataclass(frozen=True)
class _Given:
    """Open descriptors that the NBD server gets: its program, the image and its log. In addition, the server gets the
    listening socket and the overlay (the file for writes) of each instance.
    """

    program: int
    image: int
    log: int
    instances: tuple[tuple[int, int], ...]

    def argv(self) -> tuple[str, ...]:
        """The argv that executes the server's program by its descriptor, because the user as which the server runs may
        have no access to the program's path.
        """
        pairs = (f"{listener}:{overlay}" for listener, overlay in self.instances)
        return (f"/proc/self/fd/{self.program}", str(self.image), str(self.log), *pairs)

    def descriptors(self) -> tuple[int, ...]:
        return (self.program, self.image, self.log, *(each for pair in self.instances for each in pair))


def _opened(lent: ExitStack, path: Path, flags: int) -> int:
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    lent.callback(os.close, fd)
    return fd


def _opened_image(lent: ExitStack, image: Path) -> int:
    try:
        fd = open_regular(image)
    except (OSError, BadInputError) as error:
        raise VolumeError(f"the image cannot be opened: {image}") from error
    lent.callback(os.close, fd)
    if os.fstat(fd).st_size == 0:
        raise VolumeError(f"the image is no file, or empty: {image}")
    return fd


def _overlay(lent: ExitStack, path: Path | None, instance: int, place: Path) -> int:
    """A descriptor of the overlay of ``instance``, that is, of the file for its writes. The overlay is the file at
    ``path``. If this file is missing, the function makes the file. Without ``path``, the overlay is a temporary file
    without a name in ``place``.
    """
    if path is None:
        return lent.enter_context(tempfile.TemporaryFile(dir=place)).fileno()
    return _opened(lent, _numbered(path, instance), os.O_RDWR | os.O_CREAT)


def _listener(lent: ExitStack, path: Path) -> int:
    listener = lent.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    listener.bind(str(path))
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener.fileno()


def _numbered(path: Path, instance: int) -> Path:
    return Path(f"{path}.{instance}") if instance else path


def _prefer(process: door.Process) -> None:
    """Raise the server's priority, because a real volume does not compete with the host's processes.

    The server sleeps most of the time, so it hardly disturbs other processes. When our process has no right to raise
    the priority, the server may answer late on a busy host.
    """
    with suppress(OSError):
        os.sched_setscheduler(
            process.pid, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(sched_priority=1)
        )


@contextmanager
def _started(
    binary: Path, image: Path, overlay: Path | None, instances: int, words: Sequence[str]
) -> Iterator[Volume]:
    """Start the server in its jail (emulator/jail.c). The server gets its files and sockets as descriptors,
    and runs without privileges, even when we are root.
    """
    if not 0 <= instances <= _INSTANCES_MAX:
        raise VolumeError(f"a volume has 1 to {_INSTANCES_MAX} instances, not {instances}")
    numbers = range(1, instances + 1) if instances else (0,)
    with ExitStack() as stack:
        place = stack.enter_context(workspace("quickstart-volume-"))
        path = stack.enter_context(room_for_sockets(place)) / "socket"
        log, output = place / "log", place / "output"
        with ExitStack() as lent:
            given = _Given(
                program=_opened(lent, binary, os.O_RDONLY),
                image=_opened_image(lent, image),
                log=_opened(lent, log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND),
                instances=tuple(
                    (_listener(lent, _numbered(path, each)), _overlay(lent, overlay, each, place))
                    for each in numbers
                ),
            )
            identity = stack.enter_context(unprivileged())
            started = door.background(
                (*given.argv(), *words), log=output, identity=identity, pass_fds=given.descriptors()
            )
            process = stack.enter_context(started)
        yield Volume(process=process, socket=path, log_file=log, output_file=output)


@contextmanager
def served(
    binary: Path,
    image: Path,
    model: StorageModel,
    *,
    fault: str | None = None,
    overlay: Path | None = None,
    instances: int = 0,
) -> Iterator[Volume]:
    """Serve ``image`` as a cold volume with the delays of the storage model ``model``. (In a cold volume, no block has
    been read before.) Writes go to the file ``overlay``, or by default to a temporary file.

    With ``instances``, each instance (one machine of a launch) has its own socket and its own overlay (`Volume.of`).
    The instances share the link, the storage's queue, and the state of the granules, which are equally large pieces of
    the volume. After one instance has touched a granule, the granule is warm (fast to read) for all instances.

    With ``fault``, the server fails on purpose from request number N on. ``fault`` has the form ``error:N[:COUNT]``,
    ``stall:N[:MS]`` or ``death:N`` (docs/users/storage.md). Raises VolumeError when the server does not start, or when
    the server dies before the context ends. With the fault ``death``, the server's death is not an error.
    """
    words = _words(model, fault, instances)
    with _started(binary, image, overlay, instances, words) as volume:
        process, may_die = volume.process, False
        try:
            _wait(process, lambda: b"ready\n" in volume.output_file.read_bytes())
            may_die = bool(fault and fault.startswith("death:"))
            _prefer(process)
            yield volume
        except HostLacksError:
            # The server maps its overlay. So if it died, the reason is the full disk.
            raise
        except Exception as error:
            if not may_die and door.has_ended(process, _DYING_S):
                raise VolumeError("the volume emulator died", last_words=volume.last_words) from error
            raise
        else:
            if not may_die and door.has_ended(process, 0):
                raise VolumeError("the volume emulator died", last_words=volume.last_words)
        finally:
            # The server gets time to write its log. `background` kills it if it still runs after that.
            if process.poll() is None:
                process.terminate()
                # A stopped process (SIGSTOP) would not receive SIGTERM before it continues.
                process.send_signal(signal.SIGCONT)
                door.has_ended(process, _LIMIT_S)


def _wait(process: door.Process, holds: Callable[[], bool], limit_s: float = _LIMIT_S) -> None:
    """Wait until ``holds`` returns True. Raises VolumeError when the server ends before that, and when ``limit_s``
    seconds have passed.
    """
    end_s = time.monotonic() + limit_s
    while not holds():
        if door.has_ended(process, 0):
            raise VolumeError("the volume emulator ended")
        if time.monotonic() > end_s:
            raise VolumeError(f"the volume emulator said nothing for {limit_s:.0f} s")
        time.sleep(_POLL_S)
