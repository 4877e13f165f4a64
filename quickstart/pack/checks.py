"""Check an image before it is booted. The checks find out whether the profile's units can start early, which means
before systemd runs, and whether the profile's rules match files of the image.
"""

from __future__ import annotations

import stat
from pathlib import PurePosixPath

from quickstart.errors import BadInputError
from quickstart.host.cpulimit import cpu_limit
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import read_stack, refuse_bound_port
from quickstart.model import Profile
from quickstart.pack.startset import check_includes
from quickstart.parse.printable import brief

_FAST = PurePosixPath("/fast")


def check_image(root: ImageRoot, profile: Profile) -> None:
    """Raise UnsupportedUnitError when a unit of ``profile`` cannot start early, StartSetError when an `include` rule of
    the profile matches no file, and BadInputError when the image takes too long to read or has files in /fast.
    """
    with cpu_limit("the image"):
        _check_fast(root)
        refuse_bound_port(read_stack(root, profile.units, profile.run_start_pre), profile.ready)
        check_includes(root, profile.files)


def _check_fast(root: ImageRoot) -> None:
    """Raise BadInputError when the image has files of its own in /fast. A fast start would hide them. In a machine that
    has run, there may be links and empty directories of ours (initramfs/caretaker/names.c).
    """
    place = root.resolve(_FAST).canonical
    if place is None:
        return
    for path, status in root.statuses_below(place):
        if not stat.S_ISDIR(status.st_mode) and not stat.S_ISLNK(status.st_mode):
            raise BadInputError(
                f"the image has {brief(str(path))}, and a fast start would hide it, because it mounts the start set on /fast",
                hint="move it to another directory",
            )
