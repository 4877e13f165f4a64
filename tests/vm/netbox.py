"""A host for a guest that tries to leave its network. Its listeners tell whether the guest reached them.

usage: netbox.py OUT closed|open, under unshare(1) with a network and mounts of its own. The loopback has an
additional address, and a name server that answers every query. Prints what the guest got from each place.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path

from tests.vm.conftest import BOOT_S, STAY, quickstart

PORT = 5599
LAN = "198.51.100.7"
# By name: where the guest tries to connect to. 10.0.2.2 and fec0::2 are the host's loopback in QEMU's user network.
PLACES = {"loopback": "10.0.2.2", "loopback6": "fec0::2", "lan": LAN}
TRY = "timeout 5 bash -c 'exec 3<>/dev/tcp/%s/5599 && cat <&3' 2>/dev/null; echo"
ASK = "timeout 5 bash -c 'exec 3<>/dev/udp/10.0.2.3/53; echo ask >&3; head -n 1 <&3' 2>/dev/null; echo"


def serve(family: socket.AddressFamily, address: str) -> None:
    """Say ``reached`` to whoever connects."""
    server = socket.create_server((address, PORT), family=family)

    def accept() -> None:
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"reached\n")

    threading.Thread(target=accept, daemon=True).start()


def serve_names() -> None:
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((LAN, 53))

    def answer() -> None:
        while True:
            _, who = server.recvfrom(1000)
            server.sendto(b"reached\n", who)

    threading.Thread(target=answer, daemon=True).start()


def main(out: str, network: str) -> int:
    for command in ("link set lo up", f"address add {LAN}/32 dev lo"):
        subprocess.run(["ip", *command.split()], timeout=60, check=True)
    resolv = Path(out).parent / "resolv.conf"
    resolv.write_text(f"nameserver {LAN}\n")
    subprocess.run(["mount", "--bind", resolv, Path("/etc/resolv.conf").resolve()], timeout=60, check=True)
    serve(socket.AF_INET, "127.0.0.1")
    serve(socket.AF_INET6, "::1")
    serve(socket.AF_INET, LAN)
    serve_names()
    # A guest that means harm makes itself the route that its lease did not give it.
    lines = ["ip route replace default via 10.0.2.2", "sleep 3"]
    lines += [f"echo {name} $({TRY % where})" for name, where in PLACES.items()]
    lines += [f"echo names $({ASK})", "echo address $(ip -4 -o addr show scope global)"]
    words = ("--snapshot", "--network", network, "--exec", "\n".join(lines), "--json")
    called = quickstart("run", out, *STAY, *words, timeout_s=BOOT_S)
    sys.stdout.write(called.out)
    sys.stderr.write(called.err)
    return called.status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
