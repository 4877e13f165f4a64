"""Write the description of a unit, which the starter reads in the guest (docs/internals/starter.md). Apart
from reading the image, the functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from quickstart.errors import StartSetError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.script import interpreter_of
from quickstart.inspect.unit.model import UnitCommand, UnitStart
from quickstart.inspect.unit.words import HOST_NAME, SHORT_HOST_NAME
from quickstart.model import StartSet

FIRST_LINE = "quickstart-unit 1"
_MACHINE = {HOST_NAME: r"\H", SHORT_HOST_NAME: r"\l"}

Record = tuple[str, ...]


def description_text(
    unit: UnitStart,
    start_set: StartSet,
    root: ImageRoot,
    environment: Iterable[str],
    from_fast: bool,
    bound: Iterable[PurePosixPath],
) -> str:
    """The text of the whole description. ``environment`` has the variables that we set (PATH …).

    With ``from_fast``, packed programs start from /fast, but their argv[0] is the ordinary path. The files
    ``bound`` are bound over the volume's files in the unit's mount namespace. Raises StartSetError when the
    unit's main program must start from /fast but is not packed.
    """
    records: list[Record] = [("unit", unit.unit), ("group", unit.group), ("type", unit.type)]
    records += [("pid-file", str(unit.pid_file))] if unit.pid_file else []
    records += [("start-timeout-ms", str(unit.timeout_ms))]
    records += [("base-environment", each) for each in environment]
    records += [("mount", "bind-read-only", "optional", str(path), f"/fast{path}") for path in bound]
    records += unit.settings
    records += (record for socket in unit.sockets for record in socket.records)
    packed = frozenset(file.path for file in start_set.files) if from_fast else frozenset()
    for when, commands in (
        ("condition", unit.conditions),
        ("pre", unit.start_pre),
        ("main", (unit.start,)),
        ("post", unit.start_post),
    ):
        records += [("command", when, *_placed(each, packed, root)) for each in commands]
    if from_fast and root.resolve(PurePosixPath(unit.start.program)).canonical not in packed:
        raise StartSetError(
            f"{unit.start.program} of {unit.unit} is not in the start set", hint="does a rule exclude it?"
        )
    return "".join(f"{line}\n" for line in (FIRST_LINE, *_lines(records)))


def _lines(records: Iterable[Record]) -> Iterator[str]:
    for record in records:
        yield " ".join(encode_word(word) for word in record)


def encode_word(word: str) -> str:
    r"""A word of the description. Bytes outside printable ASCII, the space and the backslash become \xHH.

    In the result, \H stands for the machine's host name, and \l for the part of the host name before the
    first dot.
    """
    return "".join(
        _MACHINE.get(char) or "".join(_encoded(byte) for byte in char.encode("utf-8", "surrogateescape"))
        for char in word
    )


def _encoded(byte: int) -> str:
    return chr(byte) if 0x20 < byte < 0x7F and byte != 0x5C else f"\\x{byte:02x}"


def _placed(command: UnitCommand, packed: frozenset[PurePosixPath], root: ImageRoot) -> Record:
    """The words for a command: its flags, program and argv. For a packed script, the program is the packed
    interpreter, because the kernel would use the interpreter on the volume.
    """
    flags, program = command.flags, root.resolve(PurePosixPath(command.program)).canonical
    if program is None or program not in packed:
        return flags, command.program, *command.words
    script = interpreter_of(root, program)
    interpreter = root.resolve(script.program).canonical if script else None
    if script is None or interpreter is None or interpreter not in packed:
        return flags, f"/fast{program}", *command.words
    given = (script.argument,) if script.argument else ()
    return flags, f"/fast{interpreter}", str(script.program), *given, f"/fast{program}", *command.words[1:]
