"""matplotlib with its own defaults: no configuration file has an effect on a report."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from quickstart.host.workspace import workspace

_NAMES = ("MATPLOTLIBRC", "MPLCONFIGDIR", "MPLBACKEND")


@contextmanager
def unconfigured() -> Iterator[None]:
    """While the context lasts, matplotlib can be imported for the first time and finds an empty
    configuration, in a directory of ours.

    matplotlib looks for a matplotlibrc in the current directory before all other places
    (matplotlib.matplotlib_fname). Somebody else may own that file, and it can make LaTeX run on text of its
    author's (text.usetex). `styled` resets what was read otherwise.
    """
    before = {name: os.environ.pop(name) for name in _NAMES if name in os.environ}
    here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with workspace("quickstart-figures-") as place:
            os.environ["MPLCONFIGDIR"] = str(place)
            os.chdir(place)
            try:
                yield
            finally:
                os.fchdir(here)
    finally:
        os.close(here)
        os.environ.pop("MPLCONFIGDIR", None)
        os.environ.update(before)


@contextmanager
def styled(settings: dict[Any, Any]) -> Iterator[None]:
    """While the context lasts, matplotlib has its default settings and these, whatever was read when it was
    imported.
    """
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(settings)
        yield
