"""Connect the ports of a machine's public address to the machine. The address is of the host's loopback interface, and
the machine is in a network namespace of its own.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from quickstart.ec2.emulator.catalogue import GROUPS
from quickstart.errors import GuestError

_CHUNK_BYTES = 1 << 16
_MOST_CONNECTIONS = 256
_CONNECT_S, _LOCAL_S = 10.0, 1.0
# Whoever asks a machine at a port that it has not opened must not get the answer of the host.
_KNOWN_PORTS = tuple(port for group in GROUPS.values() for port in group.ports)
# A connection on which nothing was sent for so long ends.
_SILENT_S = 600.0


@contextmanager
def listening(address: str, ports: Sequence[int]) -> Iterator[Mapping[int, socket.socket]]:
    """Listening sockets for ``ports`` of ``address``, in the network namespace of the calling thread. A port that this
    user may not use is left out.

    Raises GuestError when a program of the host would answer at ``address`` in place of the machine.
    """
    with ExitStack() as stack:
        listeners = {}
        for port in sorted({*ports, *_KNOWN_PORTS}):
            if _answers(address, port):
                raise GuestError(
                    f"a program of this host listens at port {port} of all addresses, also at the machine's"
                )
        for port in ports:
            listener = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(PermissionError):
                listener.bind((address, port))
                listener.listen()
                listeners[port] = listener
        yield listeners


def _answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), _LOCAL_S):
            return True
    except OSError:
        return False


@contextmanager
def relaying(listeners: Mapping[int, socket.socket], inner: Mapping[int, int]) -> Iterator[None]:
    """Connect each client of ``listeners`` to the port of 127.0.0.1 that ``inner`` names, in the network namespace of the
    calling thread. The keys of both are the same ports.
    """
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    relays = [(listener, inner[port]) for port, listener in listeners.items()]
    # A thread is in the network namespace of the thread that starts it.
    thread = threading.Thread(target=_run, args=(loop, relays, stop), name="relay", daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def _run(
    loop: asyncio.AbstractEventLoop, relays: Sequence[tuple[socket.socket, int]], stop: asyncio.Event
) -> None:
    loop.run_until_complete(_serve(relays, stop))


async def _serve(relays: Sequence[tuple[socket.socket, int]], stop: asyncio.Event) -> None:
    room = asyncio.Semaphore(_MOST_CONNECTIONS)
    running: set[asyncio.Task[None]] = set()
    for listener, port in relays:
        task = asyncio.create_task(_accept(listener, port, room, running))
        running.add(task)
    await stop.wait()
    for task in tuple(running):
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def _accept(
    listener: socket.socket, port: int, room: asyncio.Semaphore, running: set[asyncio.Task[None]]
) -> None:
    listener.setblocking(False)
    loop = asyncio.get_running_loop()
    while True:
        await room.acquire()
        try:
            client, _ = await loop.sock_accept(listener)
        except OSError:
            # The client has gone, or there is no descriptor left.
            room.release()
            await asyncio.sleep(0.1)
            continue
        task = asyncio.create_task(_relay(client, port))
        running.add(task)
        task.add_done_callback(partial(_over, running, room))


def _over(running: set[asyncio.Task[None]], room: asyncio.Semaphore, task: asyncio.Task[None]) -> None:
    running.discard(task)
    room.release()


async def _relay(client: socket.socket, port: int) -> None:
    """Copy in both directions until both have ended. An error of one side ends both."""
    with client, suppress(OSError, TimeoutError):
        reader, writer = await asyncio.open_connection(sock=client)
        there = asyncio.open_connection("127.0.0.1", port)
        inner_reader, inner_writer = await asyncio.wait_for(there, _CONNECT_S)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(reader, inner_writer))
                both.create_task(_copy(inner_reader, writer))
        except* (OSError, TimeoutError):
            pass
        finally:
            inner_writer.close()
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await asyncio.wait_for(reader.read(_CHUNK_BYTES), _SILENT_S):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
