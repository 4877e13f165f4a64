"""A volume of a storage model: our NBD server (volume/*.c, compiled into the store), its life and its log (storage.md)."""

from __future__ import annotations

import signal
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from quickstart.errors import HostLacksError, VolumeError
from quickstart.host import door
from quickstart.host.workspace import room_for_sockets, workspace
from quickstart.store.compiled import compiled
from quickstart.store.store import Store
from quickstart.volume.nbd import Command
from quickstart.volume.storage import StorageModel

_CFLAGS = ("-std=c11", "-O2", "-static", "-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wconversion")
_LOG_MAGIC = b"QSVOL  1"
# struct record of volume.c.
_RECORD = struct.Struct("=QqqqQIIIHHIHH")
_LIMIT_S = 20.0
_POLL_S = 0.001
# A client may see the end of the connection a moment before the process is seen to have ended.
_DYING_S = 0.5


@dataclass(frozen=True)
class Request:
    """One request as the volume saw it; instants are CLOCK_MONOTONIC ns.

    ``due_ns`` is when the model has it answered and ``done_ns`` when the answer was handed over: both 0 for one that never
    was, due_ns also for one that was still waiting. ``touched`` is how many granules it touched first, ``client`` the number
    of its connection, ``in_flight`` how many (of all instances) were unanswered when it came, itself included. ``instance`` is
    whose it is, from 1; 0 where the volume has a single socket. ``command`` may be no Command.
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
        """Whether the model is about it: a read or write that worked."""
        return self.error == 0 and self.command in (Command.READ, Command.WRITE, Command.WRITE_ZEROES)


def read_log(data: bytes) -> tuple[Request, ...]:
    """The requests of a log in the order of their arrival; raises VolumeError when it is none."""
    body = data[len(_LOG_MAGIC) :]
    if not data.startswith(_LOG_MAGIC) or len(body) % _RECORD.size:
        raise VolumeError(f"the volume's log of {len(data)} bytes is damaged")
    found = (_request(row) for row in _RECORD.iter_unpack(body))
    return tuple(sorted(found, key=lambda each: each.sequence))


def _request(row: tuple[int, ...]) -> Request:
    *head, instance, error, command, flags = row
    return Request(*(*head, error, command, flags, instance))


@dataclass(frozen=True)
class Volume:
    """A volume that runs while `served` lasts; ``instance`` is the one whose socket this is, 0 for the single socket."""

    process: door.Process
    socket: Path
    log_file: Path
    output_file: Path
    instance: int = 0

    def of(self, instance: int) -> Volume:
        """The same volume as one of its instances, from 1, has it: with a socket, and what is written, of its own."""
        return replace(self, socket=Path(f"{self.socket}.{instance}"), instance=instance)

    @property
    def uri(self) -> str:
        """Its place, for QEMU."""
        return f"nbd+unix:///?socket={quote(str(self.socket))}"

    def is_running(self) -> bool:
        return not door.has_ended(self.process, 0)

    def log(self, limit_s: float = _LIMIT_S) -> tuple[Request, ...]:
        """What was asked of it (by its instance, if it is one's) and answered so far (of clients that have gone: everything), in
        order of arrival.

        Raises VolumeError when it does not write it within ``limit_s``.
        """
        if self.is_running():
            flushes = self._flushes()
            self.process.send_signal(signal.SIGUSR1)
            _wait(self.process, lambda: self._flushes() > flushes, limit_s)
        data = self.log_file.read_bytes()
        # Of a record that another instance's requests make it write at this moment the rest is not there yet.
        whole = len(data) - (len(data) - len(_LOG_MAGIC)) % _RECORD.size if self.is_running() else len(data)
        return tuple(each for each in read_log(data[:whole]) if self.instance in (0, each.instance))

    def _flushes(self) -> int:
        return self.output_file.read_bytes().count(b"flushed ")

    @property
    def last_words(self) -> str:
        """What it said that is neither `ready` nor about its log; when that is nothing, how it ended."""
        lines = door.log_tail(self.output_file).splitlines()
        said = "; ".join(line for line in lines if not line.startswith(("ready", "flushed ")))
        return said or door.bad_end(self.process)


def volume_binary(store: Store) -> Path:
    """The server as a static program."""
    return compiled(store, "volume", _CFLAGS, resources.files("quickstart.volume").joinpath("emulator"))


def _words(model: StorageModel, fault: str | None, overlay: Path | None, instances: int) -> list[str]:
    """The server's KEY=VALUE arguments."""
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
    words += [f"instances={instances}"] if instances else []
    return words + ([f"overlay={overlay}"] if overlay else [])


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
    """``image`` as a cold volume of that ``model``; what is written goes to ``overlay``, by default a file that is thrown away.

    With ``instances`` it has a socket and an overlay for each of so many (`Volume.of`), who share all else: link, places, and
    granules that one of them has pulled. ``fault`` is ``error:N[:COUNT]``, ``stall:N[:MS]`` or ``death:N`` (docs/users/storage.md).
    Raises VolumeError when the server does not come up, or has died by itself when the context ends; a death that ``fault``
    asked for is none of these.
    """
    with workspace("quickstart-volume-") as place, room_for_sockets(place) as sockets:
        socket, log, output = sockets / "socket", place / "log", place / "output"
        argv: list[str | Path] = [binary, image, socket, log, *_words(model, fault, overlay, instances)]
        with door.background(argv, log=output) as process:
            volume = Volume(process, socket, log, output)
            may_die = False
            try:
                _wait(process, lambda: b"ready\n" in output.read_bytes())
                may_die = bool(fault and fault.startswith("death:"))
                yield volume
            except HostLacksError:
                # A full disk is why it died, if it did: its overlay is mapped.
                raise
            except Exception as error:
                if not may_die and door.has_ended(process, _DYING_S):
                    raise VolumeError("the volume emulator died", last_words=volume.last_words) from error
                raise
            else:
                if not may_die and door.has_ended(process, 0):
                    raise VolumeError("the volume emulator died", last_words=volume.last_words)
            finally:
                # It may take its time to write the log; `background` kills what is left.
                if process.poll() is None:
                    process.terminate()
                    # One that somebody has stopped would not hear that.
                    process.send_signal(signal.SIGCONT)
                    door.has_ended(process, _LIMIT_S)


def _wait(process: door.Process, holds: Callable[[], bool], limit_s: float = _LIMIT_S) -> None:
    """Until ``holds``; raises VolumeError when the server ends before that, or its time does."""
    end_s = time.monotonic() + limit_s
    while not holds():
        if door.has_ended(process, 0):
            raise VolumeError("the volume emulator ended")
        if time.monotonic() > end_s:
            raise VolumeError(f"the volume emulator said nothing for {limit_s:.0f} s")
        time.sleep(_POLL_S)
