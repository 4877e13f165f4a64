"""Check that a log from the guest is complete. The tracers, which write the logs, write `== end` as the last line."""

from __future__ import annotations

from quickstart.errors import TraceError

# This line is not always at the beginning of a line, because a process that ends meanwhile leaves only the beginning
# of its line.
_END = "== end\n"


def whole(what: str, text: str) -> str:
    """``text`` without its last line `== end`. Raises TraceError when this line is missing. ``what`` is the log's name
    in the error message.
    """
    if not text.endswith(_END):
        raise TraceError(f"the log of {what} is cut", hint="build again")
    return text.removesuffix(_END)
