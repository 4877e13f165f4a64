"""Run guests in QEMU. A guest is a PC with a virtio disk, a network interface and a virtio-serial port for the launch
agent. QEMU counts how often the guest reads from the root volume.
"""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from quickstart.errors import GuestEndedError, GuestError
from quickstart.guest import CountsInstructions, Executes, HasConsole, HasTerminal, Message, Powered
from quickstart.host import door
from quickstart.host.files import full_disk_named, temporary_directory
from quickstart.host.workspace import room_for_sockets, workspace
from quickstart.launch import archive, jail
from quickstart.launch.accel import Accelerator
from quickstart.launch.arguments import (
    ROOT,
    Channels,
    Files,
    channel_arguments,
    machine_arguments,
    named_as_the_host_does,
)
from quickstart.launch.channel import Channel
from quickstart.launch.counters import instructions_of, root_io_of
from quickstart.launch.drain import BoundedLog, Drained, drained, hand_over
from quickstart.launch.forward import demand_port
from quickstart.launch.lent import lent_disk, lent_pair
from quickstart.launch.monitor import Monitor
from quickstart.model import Beacon, Counters, Readied, Readiness, ReadyStamp, RootIo
from quickstart.model.machine import Machine
from quickstart.model.words import Firmware

_MONITOR_LIMIT_S = 30.0
_LAST_MOMENTS_S = 30.0
_POWER_OFF_WORD_S = 15.0
_POWER_OFF_AGAIN_S = 1.0
# systemd takes seven within two seconds for a restart on the spot.
_KEYS_AGAIN_S = 5.0
# The end of a socket may be visible a moment before the end of its process.
_DYING_S = 0.5
_LOOK_AGAIN_S = 2.0
_LAST_WORDS_BYTES = 4096
_LAST_WORDS_LINES = 15
_TAIL_BYTES = 16384
_FALLBACK = re.compile(rb"quickstart: (fallback [^\r\n]*)")
# QEMU's words for a disk that another process works on (block/file-posix.c).
_NO_FILES: Mapping[str, bytes | Path] = {}
_LOCKED = re.compile(r'Failed to get (?:shared )?"\w[\w ]*" lock')


@dataclass(frozen=True)
class QemuLauncher:
    """Starts guests in QEMU, and implements the protocol Launcher of guest.py. Each guest has a temporary directory,
    its workspace, with the logs console.log and qemu.log. With ``keep``, the workspace is not removed, and ``keep``
    is called with the path of the workspace.
    """

    accelerator: Accelerator
    agent: Path
    keep: Callable[[Path], None] | None = None

    @property
    def name(self) -> str:
        return self.accelerator.name

    def launch(
        self, machine: Machine, ready: Readiness | None, files: Mapping[str, bytes | Path] = _NO_FILES
    ) -> QemuGuest:
        """Return a guest that starts when its context begins. The launch agent is added to the guest's initramfs."""
        launch_archive = archive.launch_cpio(self.agent, ready, files)
        return QemuGuest(machine, self.accelerator, launch_archive, self.keep)


class QemuGuest(Executes, HasConsole, HasTerminal, Powered, CountsInstructions):
    """A guest in QEMU. This class implements all protocols for guests that guest.py defines."""

    def __init__(
        self,
        machine: Machine,
        accelerator: Accelerator,
        launch_archive: bytes,
        keep: Callable[[Path], None] | None,
    ) -> None:
        self.machine = machine
        self.url_port = machine.forward_port
        self.launch_ns = 0
        self._accelerator = accelerator
        self._launch_archive = launch_archive
        self._keep = keep
        self._stack = ExitStack()
        self._process: door.Process | None = None
        self._monitor_end: socket.socket | None = None
        self._monitor: Monitor | None = None
        self._channel: Channel | None = None
        self._workspace = Path()
        self._sockets = Path()
        self._said: Drained | None = None
        self._look_again_s = 0.0

    def __enter__(self) -> Self:
        demand_port(self.machine.forward_port)
        with ExitStack() as stack:
            self._workspace = stack.enter_context(workspace("quickstart-guest-", keep=self._keep is not None))
            if self._keep:
                self._keep(self._workspace)
            self._sockets = stack.enter_context(room_for_sockets(self._workspace))
            self._said = stack.enter_context(
                drained(self._workspace / "console.log", self._workspace / "qemu.log")
            )
            self._start(stack, self._said)
            self._connect(stack)
            self._stack = stack.pop_all()
        return self

    def _start(self, stack: ExitStack, said: Drained) -> None:
        """Start QEMU in its jail. QEMU gets descriptors of the disk and of its channels. Our process closes its own
        copies of these descriptors as soon as QEMU has its copies.
        """
        cell = stack.enter_context(jail.made_jail(self._workspace, kvm=self._accelerator.name == "kvm"))
        with ExitStack() as lent:
            disk = lent_disk(self.machine, lent)
            files = Files(self._copied(cell), disk)
            channels = self._channels(stack, lent, said.writers[0])
            words = (
                *machine_arguments(self.machine, self._accelerator, files),
                *channel_arguments(channels),
            )
            fds = (*dataclasses.astuple(channels), *(() if disk is None else (disk,)))
            most_bytes = jail.largest_file(disk, self.machine.disk_format, read_only=self.machine.read_only)
            self.launch_ns = time.monotonic_ns()
            self._process = stack.enter_context(
                door.background(
                    jail.limited(words, most_bytes),
                    output=said.writers[1],
                    identity=cell.identity,
                    pass_fds=fds,
                    env=cell.environment,
                    cwd=cell.directory,
                )
            )
            hand_over(said)

    def _copied(self, cell: jail.Jail) -> tuple[Path, ...]:
        """Copy the files that the machine boots from into the jail. These are the kernel and the joined parts of the
        initramfs or, for a machine with UEFI, the files of the firmware. Return the names of the files in the jail.
        """
        if self.machine.firmware is not None:
            jail.demand_room((), self.machine.memory_mib)
            return jail.put_firmware(cell) if self.machine.firmware is Firmware.UEFI else ()
        jail.demand_room(self.machine.initrds, self.machine.memory_mib)
        initrd = cell.directory / "initrd"
        with full_disk_named(temporary_directory(), "the temporary directory", "free some space there"):
            kernel, sizes = self.machine.kernel, dict(self.machine.file_bytes)
            archive.join_initrd(self.machine.initrds, self._launch_archive, initrd, sizes)
            return jail.put_kernel(cell, kernel, sizes.get(kernel)), jail.given(cell, initrd)

    def _channels(self, stack: ExitStack, lent: ExitStack, console_log: int) -> Channels:
        """QEMU's ends of the channels between QEMU and us. Our process closes QEMU's ends as soon as QEMU has copies of
        them, and keeps our own ends open.
        """
        (monitor_end, monitor), (agent_end, agent) = lent_pair(stack, lent), lent_pair(stack, lent)
        self._monitor_end, self._channel = monitor_end, Channel(agent_end)
        console = lent.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        console.bind(str(self.console_socket))
        console.listen(1)
        return Channels(monitor.fileno(), agent.fileno(), console.fileno(), console_log)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _connect(self, stack: ExitStack) -> None:
        if self._monitor_end is None:
            raise GuestError("the guest was not launched")
        try:
            self._monitor = Monitor(self._monitor_end, _MONITOR_LIMIT_S)
        except GuestError as error:
            raise self._qemu_failed() from error
        stack.callback(self._monitor.close)

    def _qemu_failed(self) -> GuestError:
        ended = self.wait(_DYING_S)
        text = named_as_the_host_does(self._last_words(), self.machine)
        if _LOCKED.search(text):
            return GuestError(
                f"{self.machine.disk} is in use by another guest",
                hint="end that one" if self.machine.snapshot else "end that one, or use --snapshot",
            )
        silent = self._end_of_qemu() or (
            "no message" if ended else f"its monitor said nothing for {_MONITOR_LIMIT_S:g} s"
        )
        first, *others = text.splitlines() or [silent]
        return GuestError(f"QEMU did not start: {first}", details=others)

    def _last_words(self) -> str:
        """The last lines of QEMU's own output."""
        if self._said is None:
            return ""
        self._said.drain.catch_up()
        text = self._said.logs[1].tail(_LAST_WORDS_BYTES).decode(errors="replace")
        return "\n".join(text.splitlines()[-_LAST_WORDS_LINES:]).strip()

    def _end_of_qemu(self) -> str:
        return door.bad_end(self._process) if self._process else ""

    def _alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _goes_on(self) -> bool:
        """Whether QEMU is still running. Raises GuestError when QEMU has stopped the machine because the host had no
        space for a write.
        """
        if not self._alive():
            return False
        if time.monotonic() >= self._look_again_s:
            self._look_again_s = time.monotonic() + _LOOK_AGAIN_S
            self.demand_running()
        return True

    def demand_running(self) -> None:
        """Raise GuestError when QEMU has stopped the machine because the host had no space for a write (ENOSPC)."""
        if isinstance(self.machine.disk, Path) and self._is_stopped():
            place = "the temporary directory" if self.machine.snapshot else str(self.machine.disk)
            raise GuestError(
                f"the machine was stopped: there is no space left for what it writes to {place}",
                console_tail=self.console_tail(),
                hint="make room, then start it again; its journal mends the disk as after a loss of power",
            )

    def _is_stopped(self) -> bool:
        found = self._open_monitor().command("query-status")
        return isinstance(found, dict) and found.get("status") == "io-error"

    def _open_channel(self) -> Channel:
        if self._channel is None:
            raise GuestError("the guest was not launched")
        return self._channel

    def _open_monitor(self) -> Monitor:
        if self._monitor is None:
            raise GuestError("the guest was not launched")
        return self._monitor

    def wait_ready(self, timeout_s: float, has_volume: Callable[[], bool] = lambda: True) -> Readied:
        deadline_ns = self.launch_ns + int(timeout_s * 1e9)
        beacon: Beacon | None = None
        ready: tuple[ReadyStamp, RootIo] | None = None
        for message in self._open_channel().messages(deadline_ns, lambda: self._goes_on() and has_volume()):
            if isinstance(message, Beacon):
                beacon = message
            elif isinstance(message, ReadyStamp) and ready is None:
                ready = message, self.root_io()
            elif isinstance(message, Counters) and beacon is not None and ready is not None:
                return Readied(
                    launch_ns=self.launch_ns,
                    beacon=beacon,
                    ready=ready[0],
                    root_io=ready[1],
                    counters=message,
                )
        # The port is closed a moment before the process is gone.
        on_time = time.monotonic_ns() < deadline_ns
        if on_time and self._alive() and not has_volume():
            how = "lost its root volume before it was ready"
        elif self.wait(_LAST_MOMENTS_S) if on_time else not self._alive():
            how = "ended before it was ready"
        else:
            how = f"was not ready after {timeout_s:g} s"
        seen = "its network was up" if beacon else "its network never came up"
        end = f"; QEMU {said}" if (said := self._end_of_qemu()) else ""
        by_itself = self._process is not None and self._process.poll() == 0
        kind = GuestEndedError if by_itself else GuestError
        raise kind(f"the guest {how} ({seen}{end})", console_tail=self.console_tail())

    def root_io(self) -> RootIo:
        """QEMU's counts of the reads and writes of the root volume from the launch until now. The counts come from
        the QMP command query-blockstats. All counts are 0 for a guest without a root volume.
        """
        if self.machine.disk is None:
            return RootIo(0, 0, 0, 0)
        return root_io_of(self._open_monitor().command("query-blockstats"), ROOT)

    def instructions(self) -> int:
        """The number of instructions that the guest has executed, from the QMP command query-replay. Without QEMU's
        option -icount, the number is 0.
        """
        return instructions_of(self._open_monitor().command("query-replay"))

    def execute(
        self,
        command: str,
        stdout: BinaryIO,
        stderr: BinaryIO,
        timeout_s: float,
        limit_bytes: int | None = None,
    ) -> int:
        channel, deadline_s = self._open_channel(), time.monotonic() + timeout_s
        status = channel.execute(command, stdout, stderr, timeout_s, self._goes_on, limit_bytes)
        if status is None:
            # A guest that shuts down ends the agent before it ends itself.
            ended = self.wait(max(0.0, min(_LAST_MOMENTS_S, deadline_s - time.monotonic())))
            how = "was cut off: the guest ended" if ended else f"did not end in {timeout_s:g} s"
            raise GuestError(f"`{command}` {how}", console_tail=self.console_tail())
        return status

    def start(self, command: str) -> None:
        """Start ``command`` without waiting for its end. The method `messages` yields the command's output, and an Exit
        when the command ends.
        """
        try:
            self._open_channel().start(command)
        except OSError as error:
            raise GuestError(
                f"the guest takes no command: {error}", console_tail=self.console_tail()
            ) from error

    def messages(self, timeout_s: float) -> Iterator[Message]:
        """The agent's messages in the next ``timeout_s`` seconds. The iterator ends early when the guest ends."""
        deadline_ns = time.monotonic_ns() + int(timeout_s * 1e9)
        return self._open_channel().messages(deadline_ns, self._goes_on)

    def power_off(self, timeout_s: float) -> bool:
        """Run the guest's own `poweroff`, as a user would. When the agent is busy with a command, send
        Ctrl-Alt-Del instead.

        Our init and systemd react to Ctrl-Alt-Del with an orderly shutdown, and QEMU exits when the guest reboots
        (-no-reboot). During the hand-off from our init to systemd, neither init nor systemd reacts to the keys. So this
        method sends the keys repeatedly.
        """
        deadline_s = time.monotonic() + timeout_s
        # The agent ends with the guest, in the middle of its answer.
        with suppress(OSError), Path(os.devnull).open("wb") as sink:
            while not self._open_channel().busy and time.monotonic() < deadline_s:
                heard = self._open_channel().execute("poweroff", sink, sink, _POWER_OFF_WORD_S, self._alive)
                if heard is None:
                    break
                if self.wait(timeout_s if heard == 0 else _POWER_OFF_AGAIN_S):
                    return True
        monitor, ended = self._open_monitor(), self.wait(0)
        while not ended and time.monotonic() < deadline_s:
            with suppress(GuestError):
                keys = [{"type": "qcode", "data": key} for key in ("ctrl", "alt", "delete")]
                monitor.command("send-key", keys=keys)
            ended = self.wait(_KEYS_AGAIN_S)
        return ended

    def is_running(self) -> bool:
        """Whether the guest can still answer, because QEMU is running and has not stopped the machine."""
        with suppress(GuestError):
            return self._alive() and not self._is_stopped()
        return False

    def wait(self, timeout_s: float) -> bool:
        return self._process is None or door.has_ended(self._process, timeout_s)

    @property
    def console_socket(self) -> Path:
        """A UNIX socket that is connected to the guest's first serial line. The socket takes one client at a time."""
        return self._sockets / "console"

    @property
    def console(self) -> BoundedLog:
        """The console's log, with all output so far."""
        if self._said is None:
            raise GuestError("the guest was not launched")
        self._said.drain.catch_up()
        return self._said.logs[0]

    def fallback(self) -> str:
        """The reason why our init gave up the fast start and executed the distribution's init. docs/internals/guest.md
        calls this case fallback 1. The result is empty when there was no fallback until now.
        """
        match = next(self.console.lines(_FALLBACK), None)
        return match[1].decode(errors="replace") if match else ""

    def console_tail(self, lines: int = 20) -> str:
        text = self.console.tail(_TAIL_BYTES).decode(errors="replace") if self._said else ""
        printable = (("".join(c for c in line if c.isprintable())) for line in text.splitlines())
        return "\n".join([line for line in printable if line.strip()][-lines:])
