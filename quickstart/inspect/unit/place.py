"""Find where a path of the image leads in the running machine."""

from __future__ import annotations

import posixpath
from pathlib import PurePosixPath

from quickstart.inspect.imageroot import MAX_LINKS, ImageRoot
from quickstart.parse.guestpaths import in_run


def place_of(root: ImageRoot, path: str) -> PurePosixPath:
    """Where the guest path ``path`` leads in the running machine. systemd follows the links of the image, even to
    places that exist only in the machine. So the result is a path in memory if a link of the image leads there.
    """
    place = PurePosixPath(in_run(path))
    for _ in range(MAX_LINKS):
        found = root.look_up(place)
        place = PurePosixPath(found.existing, *found.missing)
        target = root.link_target(found.existing / found.missing[0]) if found.missing else None
        if target is None:
            break
        # The link dangles in the image. Behind an absolute target, the directories before it do not count.
        place = PurePosixPath(found.existing, target, *found.missing[1:])
    return PurePosixPath(in_run(posixpath.normpath(place)))
