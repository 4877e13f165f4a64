"""Use matplotlib with its built-in defaults, so that no configuration file affects a report."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from quickstart.host.workspace import workspace

_NAMES = ("MATPLOTLIBRC", "MPLCONFIGDIR", "MPLBACKEND")


@contextmanager
def unconfigured() -> Iterator[None]:
    """A context in which matplotlib may be imported for the first time. In this context, matplotlib finds an
    empty configuration, in a directory of ours.

    matplotlib first looks for a matplotlibrc in the current directory (matplotlib.matplotlib_fname). Another
    user may own that file, and could use it to make matplotlib run LaTeX on a text of that user's choice
    (text.usetex). `styled` resets the settings that matplotlib reads from other files.
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
    """A context in which matplotlib has its default settings with the changes in ``settings``, whatever
    configuration it read when it was imported.
    """
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(settings)
        yield
