"""Check an image before it is booted. The checks find out whether the profile's units can start early, which means
before systemd runs, and whether the profile's rules match files of the image.
"""

from __future__ import annotations

from quickstart.host.cpulimit import cpu_limit
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import read_stack, refuse_bound_port
from quickstart.model import Profile
from quickstart.pack.startset import check_includes


def check_image(root: ImageRoot, profile: Profile) -> None:
    """Raise UnsupportedUnitError when a unit of ``profile`` cannot start early, StartSetError when an `include` rule of
    the profile matches no file, and BadInputError when the image takes too long to read.
    """
    with cpu_limit("the image"):
        refuse_bound_port(read_stack(root, profile.units, profile.run_start_pre), profile.ready)
        check_includes(root, profile.files)
