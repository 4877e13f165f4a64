"""Find the network service of the image. This service takes over the network after the hand-off, in which init
executes systemd (docs/users/hand-off.md).
"""

from __future__ import annotations

from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot

_ENABLED = PurePosixPath("/etc/systemd/system/*.wants")
# The enabled unit, and our word for it. Both units may be enabled at the same time.
_KNOWN = {"networking.service": "ifupdown", "systemd-networkd.service": "networkd"}
_UNKNOWN = ("NetworkManager.service", "connman.service", "dhcpcd.service", "wicked.service")


def network_service(root: ImageRoot) -> str:
    """The image's network service, ``ifupdown`` or ``networkd``, if it is enabled. When both are enabled, the result
    is ``networkd``.

    Raises UnsupportedUnitError when neither of the two services is enabled. Also raises UnsupportedUnitError when any
    other network service is enabled, because this service would remove the address that init has set.
    """
    enabled = {path.name for path in root.glob(_ENABLED / "*.service")}
    for name in _UNKNOWN:
        if name in enabled:
            raise _refused(f"the image's network is {name}'s, which would take the address away")
    found = [word for unit, word in _KNOWN.items() if unit in enabled]
    if not found:
        raise _refused("nothing that the image enables takes the network over")
    return found[-1]


def _refused(why: str) -> UnsupportedUnitError:
    return UnsupportedUnitError(
        why, hint="enable ifupdown or systemd-networkd in it, or build with --no-hand-off"
    )
