"""Convert DevicePolicy= and DeviceAllow= into records of the starter's description, the text file by which the
starter starts the unit (systemd.resource-control(5)).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from quickstart.inspect.unit.source import Source
from quickstart.inspect.unit.values import BadValueError, choice

Record = tuple[str, ...]

_POLICIES = ("auto", "closed", "strict")
_PATTERN = re.compile(r"/dev/.+|(char|block)-.+")


def device_records(source: Source) -> Iterator[Record]:
    """The starter's records of the devices that the unit's processes may open. There is no record when all devices are
    allowed. Raises UnsupportedUnitError for an invalid value.
    """
    policy = source.value("DevicePolicy", lambda value: choice(value, _POLICIES)) or "auto"
    if policy == "auto" and source.flag("PrivateDevices"):
        policy = "closed"
    allowed = [_allowed(source, value) for value in source.all("DeviceAllow")]
    if policy == "auto" and not allowed:
        return
    if source.flag("ProtectClock"):
        allowed.append(("device", "r", "char-rtc"))
    yield "devices", "none" if policy == "strict" else "usual"
    yield from allowed


def _allowed(source: Source, value: str) -> Record:
    pattern, access = (*value.split(None, 1), "", "")[:2]
    pattern, access = source.names.expand(pattern), access.strip() or "rwm"
    # systemd ignores a path that is not normalized.
    is_path = pattern.startswith("/") and pattern != posixpath.normpath(pattern)
    if is_path or not _PATTERN.fullmatch(pattern) or not set(access) <= set("rwm"):
        raise source.refusal(
            "DeviceAllow", value, BadValueError("is no device with what of `rwm` is allowed")
        )
    return "device", access, pattern
