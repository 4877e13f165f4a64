"""Find the services that are enabled by links (systemd.unit(5), "Install")."""

from __future__ import annotations

from pathlib import PurePosixPath

from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import UNIT_PATHS

# The directories of links that pull a unit in.
PULLING_DIRECTORIES = ("wants", "requires", "upholds")


def enabled_services(root: ImageRoot) -> set[str]:
    """The services that are enabled by links, and for which ``may_start`` is true."""
    return {
        link.name
        for place in UNIT_PATHS
        for kind in PULLING_DIRECTORIES
        for link in root.glob(PurePosixPath(place) / f"*.{kind}/*.service")
        if may_start(root, link.name)
    }


def may_start(root: ImageRoot, unit: str) -> bool:
    """Whether ``unit`` is a service, and the first entry with its name, or else with the name of its template, in the
    search path leads to a regular file. The result is false for a service that is masked by a link to /dev/null.
    """
    if not unit.endswith(".service") or "/" in unit:
        return False
    prefix, at, instance = unit.removesuffix(".service").partition("@")
    for name in (unit, f"{prefix}@.service") if at and instance else (unit,):
        for directory in map(PurePosixPath, UNIT_PATHS):
            if root.link_target(directory / name) == "/dev/null":
                return False
            canonical = root.resolve(directory / name).canonical
            if canonical is not None:
                return root.host(canonical).is_file()
    return False
