"""Parse the command-line options for a new profile (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from quickstart.errors import BadInputError
from quickstart.model import Profile
from quickstart.profile import profile_of

_FORMS = "http:PORT/PATH, tcp:PORT or exec:COMMAND"
# systemd.unit(5); php8.2-fpm has a dot, too.
_TYPE = re.compile(r"\.(service|socket|timer|target|mount|automount|path|slice|scope|device|swap)$")
_SOURCE = "of the options"
# The placeholder for the readiness request if the user gives none, until a boot shows the real request.
UNKNOWN_READY: Mapping[str, object] = {"kind": "tcp", "port": 1}


def wanted_ready(text: str | None, status: int | None) -> Mapping[str, object] | None:
    """The profile's table [ready] for the options --ready and --status. The result is None without --ready. Raises
    BadInputError for invalid values, and for --status without --ready.
    """
    if text is None and status is None:
        return None
    return parse_ready(text or "", status)


def parse_ready(text: str, status: int | None = None) -> Mapping[str, object]:
    """The profile's table [ready] for a ``text`` of the form ``http:PORT[/PATH]``, ``tcp:PORT`` or ``exec:COMMAND``.
    Raises BadInputError for any other text.

    ``status`` is the expected HTTP status, and is only allowed with `http`. The default is 200.
    """
    kind, _, rest = text.partition(":")
    port = re.fullmatch(r"(\d{1,9})(/.*)?", rest, re.DOTALL)
    if status is not None and kind != "http":
        raise BadInputError("--status is for --ready http:… only")
    if kind == "exec" and rest.strip():
        return {"kind": "exec", "command": rest}
    if kind == "tcp" and port and port[2] is None:
        return {"kind": "tcp", "port": int(port[1])}
    if kind == "http" and port:
        return {"kind": "http", "port": int(port[1]), "path": port[2] or "/", "status": status or 200}
    raise BadInputError(f"--ready {text!r} is none of {_FORMS}", hint="for example --ready http:80/")


def unit_name(given: str) -> str:
    """The full name of a unit that the user has given with or without its type, such as `nginx`."""
    return given if _TYPE.search(given) else f"{given}.service"


def first_draft(
    name: str,
    packages: Sequence[str],
    unit: str,
    ready: Mapping[str, object],
    suite: str,
    timeout_s: int,
    companions: Sequence[str] = (),
) -> Profile:
    """A profile with the values that the options give, and with defaults for all other keys. Raises ProfileError
    with every invalid option.
    """
    units = [unit_name(each) for each in (*companions, unit)]
    raw: dict[str, object] = {
        "schema": 1,
        "name": name,
        "suite": suite,
        "packages": list(packages),
        **({"units": units} if companions else {"unit": units[0]}),
        "ready": {**ready, "timeout_s": timeout_s},
    }
    return profile_of(raw, _SOURCE)
