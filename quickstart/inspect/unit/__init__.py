"""Find how a systemd unit of the image starts its main process, and which of the unit's directives an early start
repeats. In an early start, our init starts the unit before systemd runs.
"""

from __future__ import annotations

from quickstart.inspect.unit.commands import parse_commands
from quickstart.inspect.unit.files import assignments, parse_service, unit_texts
from quickstart.inspect.unit.read import read_unit
from quickstart.inspect.unit.sockets import refuse_bound_port
from quickstart.inspect.unit.stack import read_stack

__all__ = [
    "assignments",
    "parse_commands",
    "parse_service",
    "read_stack",
    "read_unit",
    "refuse_bound_port",
    "unit_texts",
]
