"""A machine with EC2's instance metadata service, version 2. test_datasource.py runs this module as a program, in a
network namespace of its own.

python imdsbox.py MODE ROOT SCRIPT: serves 169.254.169.254 on the loopback, runs SCRIPT by BusyBox in ROOT, and prints
what it printed. The service is as strict as EC2's (EC2 User Guide, "Use the Instance Metadata Service"): it gives a
token only for a PUT with a lifetime, and everything else only for a token.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ADDRESS = "169.254.169.254"
TOKEN = "AQAEAPFyX1xo_ksL-9Ogg7Eq7V6tVY0g8yM=="  # noqa: S105 - of nobody
NAME = "ip-10-0-2-15.eu-west-1.compute.internal"
NAMES = {"odd name": "a;b.internal", "address": "10.0.2.15", "long name": "a" * 64}
USER_DATA = b"#cloud-config\nruncmd: [[touch, /srv/x]]\n\x00binary, and no line break at the end"
# The service, and whether it answers so.
MODES = (
    *("none", "data", "slow", "no token", "version 1", "cut", "chunked", "kept open", "odd token", "broken"),
    "long token",
    *("large", "leading zero", "no service"),
    *("no name", "odd name", "address", "long name", "name broken"),
)


class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    mode = "none"

    def do_PUT(self) -> None:
        lifetime = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if self.mode == "slow":
            time.sleep(4)
        if self.mode in ("no token", "version 1"):
            self.answer(403 if self.mode == "no token" else 404, b"")
        elif self.path != "/latest/api/token" or "X-Forwarded-For" in self.headers:
            self.answer(403, b"")
        elif not lifetime.isdecimal() or not 1 <= int(lifetime) <= 21600:
            self.answer(400, b"")
        else:
            # As long as nothing but a pipe to the server would hold it.
            odd = {"odd token": b"a b;c", "long token": b"A" * 65_400}
            self.answer(200, odd.get(self.mode, TOKEN.encode()))

    def do_GET(self) -> None:
        if self.mode != "version 1" and self.headers.get("X-aws-ec2-metadata-token") != TOKEN:
            self.answer(401, b"")
        elif self.path == "/latest/meta-data/local-hostname" and self.mode != "no name":
            self.answer(500 if self.mode == "name broken" else 200, NAMES.get(self.mode, NAME).encode())
        elif self.path != "/latest/user-data" or self.mode in ("none", "no name", "name broken", *NAMES):
            self.answer(404, b"<html>404 - Not Found</html>")
        elif self.mode == "broken":
            self.answer(500, b"")
        elif self.mode == "large":
            self.answer(200, b"x" * 200_000)
        else:
            self.answer(200, USER_DATA)

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        if self.mode == "chunked" and status == 200 and body == USER_DATA:
            self.send_header("Transfer-Encoding", "chunked")
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        elif self.mode == "leading zero":
            # In octal, there is no 8.
            body = body.ljust(88)
            self.send_header("Content-Length", f"0{len(body)}")
        else:
            self.send_header("Content-Length", str(len(body) + (5 if self.mode == "cut" else 0)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = self.mode != "kept open"

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    Service.mode, root, script = sys.argv[1:]
    for words in (("link", "set", "lo", "up"), ("addr", "add", f"{ADDRESS}/32", "dev", "lo")):
        subprocess.run(["ip", *words], check=True, timeout=60)
    if Service.mode != "no service":
        server = ThreadingHTTPServer((ADDRESS, 80), Service)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
    done = subprocess.run(
        ["chroot", root, "/busybox", "sh", "-c", script],
        capture_output=True,
        env={"PATH": "/bin:/usr/sbin:/usr/bin"},
        timeout=60,
        check=True,
    )
    sys.stdout.buffer.write(done.stdout + done.stderr)


if __name__ == "__main__":
    main()
