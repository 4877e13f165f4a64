"""Refuse generators whose results the build cannot know. Generators are programs that make or change units at each boot
(systemd.generator(7), systemd.environment-generator(7)).

In the reference boot, systemd reports which units it has loaded, and from which files. pack/account.py and
pack/earlier.py use this report. So the build sees what the packages' generators have made. A generator that the
administrator has added may make other units on a later machine than in the reference boot. An environment generator may
give each service a variable that the service lacks in an early start.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.dpkg import owners
from quickstart.inspect.imageroot import ImageRoot
from quickstart.parse.printable import brief

_PACKAGES = PurePosixPath("/usr/lib/systemd")
_ADMINISTRATORS = (PurePosixPath("/etc/systemd"), PurePosixPath("/usr/local/lib/systemd"))
_UNITS, _ENVIRONMENT = "system-generators", "system-environment-generators"
# The directories of which each entry is compared at boot. An upgrade of a package may replace its unit generator.
GENERATORS = (
    *(directory / kind for directory in _ADMINISTRATORS for kind in (_UNITS, _ENVIRONMENT)),
    _PACKAGES / _ENVIRONMENT,
)


def refuse_generators(root: ImageRoot, unit: str) -> None:
    """Raise UnsupportedUnitError for a generator of units that belongs to no package, and for any generator of
    environment variables. The function allows a masked generator, because systemd does not run it.
    """
    of_units, of_environment = _used(root, _UNITS), _used(root, _ENVIRONMENT)
    of_packages = [path for path in of_units if path.parent == _PACKAGES / _UNITS]
    packaged = owners(root, of_packages) if of_packages else {}
    for path in (*(path for path in of_units if path not in packaged), *of_environment):
        raise UnsupportedUnitError(
            f"{unit} cannot be started early: the generator {brief(str(path))} may change it at each boot",
            hint=f"remove the generator from the image, or mask it by a link of its name in /etc/systemd/{path.parent.name}"
            " to /dev/null",
        )


def _used(root: ImageRoot, kind: str) -> tuple[PurePosixPath, ...]:
    """The generators that systemd would run, sorted by name. ``kind`` is the name of their directories. Of
    several generators with the same name, systemd uses only the one in the first directory of the search order.
    """
    found: dict[str, PurePosixPath] = {}
    for place in (*(directory / kind for directory in _ADMINISTRATORS), _PACKAGES / kind):
        directory = root.resolve(place).canonical
        if directory is not None and root.host(directory).is_dir():
            for name in root.names(directory):
                found.setdefault(name, directory / name)
    return tuple(found[name] for name in sorted(found) if _is_program(root, found[name]))


def _is_program(root: ImageRoot, path: PurePosixPath) -> bool:
    program = root.resolve(path).canonical
    return (
        program is not None
        and root.host(program).is_file()
        and bool(root.host(program).stat().st_mode & 0o111)
    )
