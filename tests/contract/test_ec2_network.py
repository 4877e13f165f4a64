"""The network of a machine of the emulated EC2: a network namespace with its metadata service, and relays from the host."""

from __future__ import annotations

import http.client
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from quickstart.ec2.emulator import metadata, relay
from quickstart.ec2.emulator.metadata import ADDRESS, Metadata
from quickstart.host.namespaces import enter_own_network

PUBLIC = "127.31.15.77"
INNER = 20000
LIMIT_S = 20.0


def network() -> Path:
    """The network namespace of the calling thread."""
    return Path("/proc/thread-self/ns/net").readlink()


def in_a_thread(work: Callable[[], None]) -> None:
    """Run ``work`` in a thread of its own, whose errors are the test's."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


@contextmanager
def echo(port: int) -> Iterator[None]:
    """Answers each client what it sends, once the client has sent everything."""
    listener = socket.create_server(("127.0.0.1", port))

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                data = b""
                while piece := client.recv(65536):
                    data += piece
                client.sendall(data)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def exchanged(port: int, data: bytes) -> bytes:
    def send() -> None:
        # The other side may have gone already.
        with suppress(OSError):
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)

    with socket.create_connection((PUBLIC, port), LIMIT_S) as client:
        sender = threading.Thread(target=send)
        sender.start()
        found = b""
        while piece := client.recv(65536):
            found += piece
        sender.join()
    return found


def test_a_port_of_the_public_address_is_the_machines() -> None:
    with relay.listening(PUBLIC, (80, 8080)) as listeners:
        assert set(listeners) == {80, 8080}
        begun, over = threading.Event(), threading.Event()

        def machine() -> None:
            enter_own_network(ADDRESS)
            with echo(INNER), relay.relaying(listeners, {80: INNER, 8080: INNER + 1}):
                begun.set()
                over.wait(LIMIT_S)

        thread = threading.Thread(target=machine)
        thread.start()
        try:
            assert begun.wait(LIMIT_S)
            data = os.urandom(3 << 20)
            assert exchanged(80, data) == data
            assert exchanged(80, b"again") == b"again"
            # Nobody listens there in the machine.
            assert exchanged(8080, b"x") == b""
        finally:
            over.set()
            thread.join(LIMIT_S)
        assert not thread.is_alive()


def test_the_machine_has_its_metadata_and_nothing_else() -> None:
    outside = network()
    with socket.create_server(("127.0.0.1", 0)) as of_the_host:
        port = of_the_host.getsockname()[1]

        def machine() -> None:
            enter_own_network(ADDRESS)
            assert network() != outside
            assert socket.if_nameindex() == [(1, "lo")]
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), LIMIT_S)
            with pytest.raises(OSError, match="unreachable"):
                socket.create_connection(("192.0.2.1", 80), LIMIT_S)
            with metadata.serving(Metadata(items={"instance-id": "i-1"}, document={})):
                client = http.client.HTTPConnection(ADDRESS, 80, timeout=LIMIT_S)
                client.request(
                    "PUT", "/latest/api/token", headers={"X-aws-ec2-metadata-token-ttl-seconds": "9"}
                )
                token = client.getresponse().read().decode()
                client.request(
                    "GET", "/latest/meta-data/instance-id", headers={"X-aws-ec2-metadata-token": token}
                )
                assert client.getresponse().read() == b"i-1"

        in_a_thread(machine)
    assert network() == outside
