"""Generators, which make or change units at each boot (systemd.generator(7), systemd.environment-generator(7)).

systemd's account of the reference boot shows what the packages' generators have made (pack/account.py,
pack/earlier.py). A generator of the administrator's may do something else on another machine, and an environment
generator may give each service a variable that an early start lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    """Raise UnsupportedUnitError for a generator of units that no package has, and for any generator of
    environment variables.
    """
    by_hand = list(_programs(root, _PACKAGES / _UNITS))
    packaged = owners(root, by_hand) if by_hand else {}
    others = [path for path in by_hand if path not in packaged]
    others += [path for place in GENERATORS for path in _programs(root, place)]
    for path in others:
        raise UnsupportedUnitError(
            f"{unit} cannot be started early: the generator {brief(str(path))} may change it at each boot",
            hint="remove the generator from the image, or mask it by a link to /dev/null",
        )


def _programs(root: ImageRoot, place: PurePosixPath) -> Iterator[PurePosixPath]:
    """The entries of a directory, by their own names, that systemd would run: executable files, and links to such."""
    directory = root.resolve(place).canonical
    for name in (
        sorted(root.names(directory)) if directory is not None and root.host(directory).is_dir() else ()
    ):
        path = directory / name if directory is not None else place
        program = root.resolve(path).canonical
        if program is not None and root.host(program).is_file() and root.host(program).stat().st_mode & 0o111:
            yield path
