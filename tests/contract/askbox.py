"""A server for one connection, and `caretaker ask` against it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

RIGHT, NONE, WRONG_CALL, OTHER = 0, 1, 2, 3
# More than the program takes for one request.
SECONDS = 60.0
Serve = Callable[[socket.socket], None]


def sends(*parts: bytes) -> Serve:
    """Sends the parts one by one, and closes."""

    def serve(connection: socket.socket) -> None:
        for part in parts:
            connection.sendall(part)
            time.sleep(0.02)

    return serve


def answers_the_request(connection: socket.socket) -> None:
    """200 for exactly the request that was to be sent, 400 for any other."""
    host = connection.getsockname()[0]
    asked = b""
    while not asked.endswith(b"\r\n\r\n"):
        asked += connection.recv(4096)
    expected = "GET /a?b=%20 HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nUser-Agent: quickstart-init\r\n\r\n"
    status = "200 OK" if asked.decode() == expected.format(host) else "400 Bad Request"
    connection.sendall(f"HTTP/1.1 {status}\r\n\r\n".encode())


# What a server does, and the exit status.
SERVERS: dict[str, tuple[Serve, int]] = {
    "the request": (answers_the_request, RIGHT),
    "the status": (sends(b"HTTP/1.0 200 OK\r\n\r\n", b"a page"), RIGHT),
    "a status without a reason": (sends(b"HTTP/1.1 200\n"), RIGHT),
    "in pieces": (sends(*(bytes([each]) for each in b"HTTP/1.1 200 OK\r\n")), RIGHT),
    "another status": (sends(b"HTTP/1.1 503 Service Unavailable\r\n\r\n"), OTHER),
    "four digits": (sends(b"HTTP/1.1 2000 OK\r\n\r\n"), NONE),
    "letters": (sends(b"HTTP/1.1 20x OK\r\n\r\n"), NONE),
    "another protocol": (sends(b"SSH-2.0-OpenSSH_9.2p1\r\n"), NONE),
    "NULs": (sends(b"\0" * 600 + b"\n"), NONE),
    "a NUL in the status": (sends(b"HTTP/1.1 20\x000\n"), NONE),
    "no line": (sends(b"HTTP/1.1 200 OK"), NONE),
    "a line without end": (sends(b"HTTP/1.1 200 " + b"x" * 1_000_000), NONE),
    "nothing": (sends(), NONE),
}


@contextlib.contextmanager
def serving(serve: Serve) -> Iterator[int]:
    """A server for one connection; its port on 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            # The listener is closed when nobody came, and who asks need not read all.
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    serve(connection)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(4096):
                        pass

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(SECONDS)
            assert not thread.is_alive()


def ask(caretaker: Path, port: object, status: str = "200", path: str = "/a?b=%20") -> tuple[int, bytes]:
    words: list[str | Path] = [caretaker, "ask", "127.0.0.1", str(port), status, path]
    done = subprocess.run(words, capture_output=True, timeout=SECONDS, check=False)
    return done.returncode, done.stderr
