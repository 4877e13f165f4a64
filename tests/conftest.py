"""Settings of all tests: no test fails because it is slow, and an ordinary user's tests run as root of a user namespace."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from quickstart.errors import NeedsRootError
from quickstart.host import userns
from tests.contract.ordinary import is_host_root

settings.register_profile("any host", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any host")

# An ordinary user's PATH on Debian lacks the directories of mke2fs and chroot.
os.environ["PATH"] = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))

# linux/sched.h
_CLONE_NEWNS = 0x20000
# Now, while this process has one thread; pytest-xdist's workers are its children, and root as it is. Unit tests need none of it.
try:
    ORDINARY = os.geteuid() != 0
    userns.become_root()
    NO_ROOT = ""
    if ORDINARY and ctypes.CDLL(None).unshare(_CLONE_NEWNS) != 0:
        NO_ROOT = "no mount namespace, in which tests mount"
except NeedsRootError as error:
    NO_ROOT = f"{error.message}: {error.hint}"


_UNIT = "tests/unit/"
_SLOWEST = Path(__file__).with_name("slowest.txt")


def begin_order(names: Iterable[str]) -> dict[str, int]:
    """The place of each test file in the order in which the files begin. The slowest files begin first, so that no worker
    waits for one of them at the end. But while the first one makes the base image, a second one could only wait for it,
    so the unit tests come between them.
    """
    lines = (line.split() for line in _SLOWEST.read_text().splitlines() if line and not line.startswith("#"))
    every = sorted(names)
    slow = [name for _, name in lines if name in every]
    unit = [name for name in every if name.startswith(_UNIT)]
    return {name: number for number, name in enumerate(dict.fromkeys((*slow[:1], *unit, *slow, *every)))}


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files in order, when it is known which tests are left out by their marks. An ordinary user's run leaves
    out, and counts as deselected, what only the host's root may do.
    """
    places = begin_order({_file(item) for item in items})
    items.sort(key=lambda item: places[_file(item)])
    if is_host_root():
        return
    left_out = [item for item in items if item.get_closest_marker("host_root")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
