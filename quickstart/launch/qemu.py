"""Guests in QEMU: a PC with virtio disk, network and, for the agent, a virtio-serial port; the root's reads are counted by QEMU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

from quickstart.errors import GuestEndedError, GuestError
from quickstart.host import door
from quickstart.host.workspace import room_for_sockets, workspace
from quickstart.launch import payload
from quickstart.launch.accel import Accelerator
from quickstart.launch.channel import Channel, Message
from quickstart.launch.monitor import Monitor, reach
from quickstart.model import Beacon, Counters, Machine, Readied, Readiness, ReadyStamp, RootIo

_ROOT = "root"
_MONITOR_LIMIT_S = 30.0
_LAST_MOMENTS_S = 30.0
_POWER_OFF_WORD_S = 15.0
_POWER_OFF_AGAIN_S = 1.0
# systemd takes seven within two seconds for a restart on the spot.
_KEYS_AGAIN_S = 5.0
# A socket may be seen to close a moment before the process is seen to have ended.
_DYING_S = 0.5


def machine_arguments(machine: Machine, accelerator: Accelerator, initrd: str) -> tuple[str, ...]:
    """QEMU's arguments for ``machine`` without any channel to the host but network and disk (pure).

    Fixed PCI addresses keep the interface's predictable name (systemd.net-naming-scheme(7)) the same in every boot.
    """
    forward = (
        f",hostfwd=tcp:127.0.0.1:{machine.forward_port}-:{machine.guest_port}" if machine.forward_port else ""
    )
    return (
        *("-name", machine.name, "-M", "q35", *accelerator.qemu),
        *("-smp", str(machine.vcpus), "-m", str(machine.memory_mib)),
        *(("-uuid", machine.uuid) if machine.uuid else ()),
        *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
        *("-kernel", str(machine.kernel), "-initrd", initrd, "-append", machine.cmdline),
        *_disk_arguments(machine),
        *("-netdev", f"user,id=net{forward}"),
        *("-device", f"virtio-net-pci,netdev=net,mac={machine.mac},addr=3,romfile="),
    )


def _disk_arguments(machine: Machine) -> tuple[str, ...]:
    if machine.disk is None:
        return ()
    drive = f"file={_escape(str(machine.disk))},format={machine.disk_format},if=none,id={_ROOT}"
    snapshot = ",snapshot=on" if machine.snapshot else ""
    # A request of the guest is one to the volume: QEMU would join neighbours.
    device = f"virtio-blk-pci,drive={_ROOT},addr=4,request-merging=off"
    return ("-drive", drive + snapshot, "-device", device)


def _escape(value: str) -> str:
    return value.replace(",", ",,")


@dataclass(frozen=True)
class QemuLauncher:
    """Starts guests in QEMU; ``keep`` keeps each guest's workspace (console.log, qemu.log)."""

    accelerator: Accelerator
    agent: Path
    keep: bool = False

    def launch(
        self, machine: Machine, extra_cpios: Iterable[bytes] = (), ready: Readiness | None = None
    ) -> QemuGuest:
        """A guest that starts when its context is entered; ``extra_cpios`` are joined behind the initramfs."""
        cpios = tuple(extra_cpios) or (payload.launch_cpio(self.agent, ready),)
        return QemuGuest(machine, self.accelerator, cpios, self.keep)


class QemuGuest:
    """One running QEMU (guest.Guest)."""

    def __init__(
        self, machine: Machine, accelerator: Accelerator, cpios: tuple[bytes, ...], keep: bool
    ) -> None:
        self.machine = machine
        self.url_port = machine.forward_port
        self.launch_ns = 0
        self._accelerator = accelerator
        self._cpios = cpios
        self._keep = keep
        self._stack = ExitStack()
        self._process: door.Process | None = None
        self._monitor: Monitor | None = None
        self._channel: Channel | None = None
        self._workspace = Path()
        self._sockets = Path()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._workspace = stack.enter_context(workspace("quickstart-guest-", keep=self._keep))
            self._sockets = stack.enter_context(room_for_sockets(self._workspace))
            initrd = self._workspace / "initrd"
            payload.join_initrd(self.machine.initrds, self._cpios, initrd)
            argv = ("qemu-system-x86_64", *machine_arguments(self.machine, self._accelerator, str(initrd)))
            self.launch_ns = time.monotonic_ns()
            self._process = stack.enter_context(
                door.background((*argv, *self._channel_arguments()), log=self._workspace / "qemu.log")
            )
            self._connect(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _channel_arguments(self) -> tuple[str, ...]:
        at, console_log = _escape(str(self._sockets)), _escape(str(self.console_log))
        return (
            # Whoever attaches to the socket speaks with the guest's first serial line; the log has it all, attached or not.
            *("-chardev", f"socket,id=console,path={at}/console,server=on,wait=off,logfile={console_log}"),
            *("-serial", "chardev:console"),
            *("-qmp", f"unix:{at}/qmp,server=on,wait=off"),
            *("-chardev", f"socket,id=agent,path={at}/agent,server=on,wait=off"),
            *("-device", "virtio-serial-pci,addr=5"),
            *("-device", f"virtserialport,chardev=agent,name={payload.PORT_NAME}"),
        )

    def _connect(self, stack: ExitStack) -> None:
        deadline_ns = time.monotonic_ns() + int(_MONITOR_LIMIT_S * 1e9)
        try:
            self._channel = Channel(reach(self._sockets / "agent", deadline_ns, self._alive))
            stack.callback(self._channel.close)
            monitor = reach(self._sockets / "qmp", deadline_ns, self._alive)
            self._monitor = Monitor(monitor, _MONITOR_LIMIT_S)
            stack.callback(self._monitor.close)
        except (OSError, GuestError) as error:
            raise self._qemu_failed() from error

    def _qemu_failed(self) -> GuestError:
        ended = self.wait(_DYING_S)
        text = door.log_tail(self._workspace / "qemu.log").strip()
        if 'Failed to get "write" lock' in text:
            return GuestError(
                f"{self.machine.disk} is in use by another guest", hint="end that one, or use --snapshot"
            )
        silent = self._end_of_qemu() or (
            "no message" if ended else f"its sockets said nothing for {_MONITOR_LIMIT_S:g} s"
        )
        return GuestError(f"QEMU did not start: {text or silent}")

    def _end_of_qemu(self) -> str:
        return door.bad_end(self._process) if self._process else ""

    def _alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _open_channel(self) -> Channel:
        if self._channel is None:
            raise GuestError("the guest was not launched")
        return self._channel

    def _open_monitor(self) -> Monitor:
        if self._monitor is None:
            raise GuestError("the guest was not launched")
        return self._monitor

    def wait_ready(self, timeout_s: float, has_volume: Callable[[], bool] = lambda: True) -> Readied:
        """As guest.Guest has it; a guest whose root volume is gone, as ``has_volume`` says, is not waited for."""
        deadline_ns = self.launch_ns + int(timeout_s * 1e9)
        beacon: Beacon | None = None
        ready: tuple[ReadyStamp, RootIo] | None = None
        for message in self._open_channel().messages(deadline_ns, lambda: self._alive() and has_volume()):
            if isinstance(message, Beacon):
                beacon = message
            elif isinstance(message, ReadyStamp):
                ready = message, self.root_io()
            elif isinstance(message, Counters) and beacon is not None and ready is not None:
                return Readied(self.launch_ns, beacon, *ready, message)
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
        """What QEMU's block layer counted for the root volume since the launch (QMP query-blockstats); 0 without one."""
        if self.machine.disk is None:
            return RootIo(0, 0, 0, 0)
        for device in cast(list[dict[str, object]], self._open_monitor().command("query-blockstats")):
            if device.get("device") == _ROOT:
                stats = cast(dict[str, int], device["stats"])
                return RootIo(
                    reads=stats["rd_operations"],
                    read_bytes=stats["rd_bytes"],
                    writes=stats["wr_operations"],
                    write_bytes=stats["wr_bytes"],
                )
        raise GuestError("QEMU has no counters for the root volume")

    def execute(self, command: str, stdout: BinaryIO, stderr: BinaryIO, timeout_s: float) -> int:
        status = self._open_channel().execute(command, stdout, stderr, timeout_s, self._alive)
        if status is None:
            # A guest that shuts down ends the agent before it ends itself.
            ended = self.wait(_LAST_MOMENTS_S)
            how = "was cut off: the guest ended" if ended else f"did not end in {timeout_s:g} s"
            raise GuestError(f"`{command}` {how}", console_tail=self.console_tail())
        return status

    def start(self, command: str) -> None:
        """Run ``command`` as `execute` does, without waiting for its end; `messages` has its output and end."""
        self._open_channel().start(command)

    def messages(self, timeout_s: float) -> Iterator[Message]:
        """What the agent says in this time; ends early with the guest."""
        deadline_ns = time.monotonic_ns() + int(timeout_s * 1e9)
        return self._open_channel().messages(deadline_ns, self._alive)

    def power_off(self, timeout_s: float) -> bool:
        """By the guest's own `poweroff`, as a user would; when that finds no ear (a command runs), by Ctrl-Alt-Del.

        Both inits shut down in order on it, and QEMU ends where a PC would start again (-no-reboot). While one hands over to the
        other neither listens: the word is said again.
        """
        deadline_s = time.monotonic() + timeout_s
        # The agent ends with the guest, in the middle of its answer.
        with suppress(OSError):
            while not self._open_channel().busy and time.monotonic() < deadline_s:
                sink = cast(BinaryIO, _Sink())
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
        return self._alive()

    def wait(self, timeout_s: float) -> bool:
        return self._process is None or door.has_ended(self._process, timeout_s)

    @property
    def console_socket(self) -> Path:
        """A UNIX socket that is the guest's first serial line; one client at a time."""
        return self._sockets / "console"

    @property
    def console_log(self) -> Path:
        """Where the console's output goes as it comes."""
        return self._workspace / "console.log"

    def console_tail(self, lines: int = 20) -> str:
        path = self.console_log
        text = path.read_bytes()[-16384:].decode(errors="replace") if path.exists() else ""
        printable = (("".join(c for c in line if c.isprintable())) for line in text.splitlines())
        return "\n".join([line for line in printable if line.strip()][-lines:])


class _Sink:
    """Takes output that nobody reads."""

    def write(self, data: bytes) -> int:
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""
