"""Images with scripts of ifupdown's and of DHCP clients', and why a build refuses them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.read import read_unit
from tests.unit.test_unit_sockets import UNITS, put

PRE_UP = "/etc/network/if-pre-up.d"
UP = "/etc/network/if-up.d"
ENTER, EXIT = (f"/etc/dhcp/dhclient-{kind}-hooks.d" for kind in ("enter", "exit"))
IFACE = "auto ens3\niface ens3 inet dhcp\n"


def refused(base: Path) -> str:
    put(base, "/usr/bin/app", "")
    put(base, f"{UNITS}/app.service", "[Service]\nExecStart=/usr/bin/app\n")
    try:
        read_unit(ImageRoot(base), "app.service")
    except UnsupportedUnitError as error:
        return error.message
    return ""


def script(base: Path, path: str, text: str, *, is_packaged: bool) -> None:
    put(base, path, text)
    (base / path[1:]).chmod(0o755)
    put(
        base,
        "/var/lib/dpkg/status",
        "Package: tool\nStatus: install ok installed\nVersion: 1\nArchitecture: all\n\n",
    )
    put(base, "/var/lib/dpkg/info/tool.list", f"/.\n{path}\n" if is_packaged else "/.\n")
    digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    put(base, "/var/lib/dpkg/info/tool.md5sums", f"{digest}  {path[1:]}\n" if is_packaged else "")
