"""Use matplotlib with its built-in default settings, so that no configuration file affects a report."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from quickstart.host import door
from quickstart.host.workspace import workspace

# A PNG's dots per inch, matplotlib's limit for a side in pixels, and the most pixels of a picture, with 4 bytes each.
_DPI, _SIDE_MAX, _PIXELS_MAX = 150, 65_000, 32 << 20
# Variables of matplotlib, and of fontconfig's program fc-list, by which matplotlib finds the fonts.
_NAMES = (
    *("MATPLOTLIBRC", "MPLCONFIGDIR", "MPLBACKEND", "PATH", "HOME"),
    *("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"),
    *("FONTCONFIG_FILE", "FONTCONFIG_PATH", "FONTCONFIG_SYSROOT"),
)


@contextmanager
def unconfigured() -> Iterator[None]:
    """A context in which matplotlib may be imported for the first time. In this context, matplotlib finds an empty
    configuration, in a directory of ours.

    matplotlib first looks for a matplotlibrc in the current directory (matplotlib.matplotlib_fname). Another user may
    own that file, and could use it to make matplotlib run LaTeX on a text of that user's choice (text.usetex).
    matplotlib also reads settings from other files. The function `styled` resets these settings.

    matplotlib also looks for fonts, in HOME and by the program fc-list. Another user may own HOME or a directory in
    PATH. So in this context, HOME is the directory with the empty configuration, and PATH is the fixed PATH that every
    other program gets (host.door).
    """
    before = {name: os.environ.pop(name) for name in _NAMES if name in os.environ}
    here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with workspace("quickstart-figures-") as place:
            ours = {"MPLCONFIGDIR": str(place), "HOME": str(place), "PATH": door.environment()["PATH"]}
            os.environ.update(ours)
            os.chdir(place)
            try:
                yield
            finally:
                os.fchdir(here)
    finally:
        os.close(here)
        for name in _NAMES:
            os.environ.pop(name, None)
        os.environ.update(before)


@contextmanager
def styled(settings: dict[Any, Any]) -> Iterator[None]:
    """A context in which matplotlib has its default settings with the changes in ``settings``. The configuration that
    matplotlib read when it was imported has no effect.
    """
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(settings)
        yield


def dots_per_inch(width_in: float, height_in: float) -> float:
    """The resolution of a PNG of this size in dots per inch. The function reduces the resolution when the picture would
    otherwise have too many dots.
    """
    return min(_DPI, _SIDE_MAX // max(width_in, height_in), math.sqrt(_PIXELS_MAX / (width_in * height_in)))
