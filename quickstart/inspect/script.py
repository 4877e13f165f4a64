"""Find the interpreter of a script in the same way as the kernel (execve(2), fs/binfmt_script.c)."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import PurePosixPath

from quickstart.inspect.imageroot import ImageRoot

# The kernel reads only this much of a script, and does not run an interpreter whose name is cut off by this limit.
_BYTES = 256
_LINE = re.compile(rb"#![ \t]*([^ \t\n\0]+)(?:[ \t]+([^\n\0]*))?(?:[\n\0]|$)")


@dataclass(frozen=True)
class Interpreter:
    """The program after ``#!``, as the script spells it, and the program's argument. The argument is one text, which
    may contain spaces. The text is empty when there is no argument.
    """

    program: PurePosixPath
    argument: str


def interpreter_of(root: ImageRoot, script: PurePosixPath) -> Interpreter | None:
    """The interpreter that the kernel starts for ``script``, a canonical path. The result is None for a file that is
    not a script, for an interpreter without an absolute path, and for an interpreter whose name is too long for the
    kernel.
    """
    host = root.host(script)
    if not stat.S_ISREG(host.lstat().st_mode):
        return None
    with host.open("rb") as file:
        head = file.read(_BYTES)
    match = _LINE.match(head)
    if match is None or not match[1].startswith(b"/") or match.end(1) == _BYTES:
        return None
    return Interpreter(PurePosixPath(os.fsdecode(match[1])), os.fsdecode((match[2] or b"").strip()))
