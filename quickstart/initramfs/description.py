"""Write the description of a unit, a text file that says how to start the unit (docs/internals/starter.md). In the
guest, our program starter reads the description and starts the unit without systemd. Apart from reading the image, the
functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Self

from quickstart.errors import StartSetError
from quickstart.initramfs.serving import is_merged
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.script import interpreter_of
from quickstart.inspect.unit.model import UnitCommand, UnitStart
from quickstart.inspect.unit.words import HOST_NAME, SHORT_HOST_NAME
from quickstart.model import FileKind, StartFile, StartSet

FIRST_LINE = "quickstart-unit 1"
# sd_listen_fds(3): SD_LISTEN_FDS_START.
_FIRST_SOCKET = 3
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
    """The text of the whole description. ``environment`` has the environment variables that QuickStart sets, such as
    PATH.

    With ``from_fast``, the packed programs start from /fast, the directory in memory with the packed files. These
    programs get the same argv[0] as in a stock boot (the distribution's own boot). The files ``bound`` are
    bind-mounted over the volume's files in the unit's mount namespace. Raises StartSetError when ``from_fast`` is true
    and the unit's main program is not in the start set.
    """
    records: list[Record] = [("unit", unit.unit), ("group", unit.group), ("type", unit.type)]
    records += [("pid-file", str(unit.pid_file))] if unit.pid_file else []
    records += [("start-timeout-ms", str(unit.timeout_ms))]
    records += [("base-environment", each) for each in environment]
    records += [("mount", "bind-read-only", "optional", str(path), f"/fast{path}") for path in bound]
    records += unit.settings
    records += _socket_records(unit)
    known = _Set.of(start_set if from_fast else StartSet((), ()), root)
    for when, commands in (
        ("condition", unit.conditions),
        ("pre", unit.start_pre),
        ("main", (unit.start,)),
        ("post", unit.start_post),
    ):
        records += (record for each in commands for record in _command_records(when, each, known))
    # A program that stays on the volume is in the set. A program that a rule excludes is not.
    if from_fast and root.resolve(PurePosixPath(unit.start.program)).canonical not in known.files:
        raise StartSetError(
            f"{unit.start.program} of {unit.unit} is not in the start set", hint="does a rule exclude it?"
        )
    return "".join(f"{line}\n" for line in (FIRST_LINE, *_lines(records)))


def _socket_records(unit: UnitStart) -> Iterator[Record]:
    """The description's records for the sockets that the unit gets. The last unit of a stack (the services that start
    early) also has the records for the sockets of its companions, the other services of the stack. PID 1 binds the
    sockets of all services by the description of the last unit.
    """
    if unit.sockets and unit.sockets_before:
        yield "first-socket", str(_FIRST_SOCKET + unit.sockets_before)
    yield from (record for socket in unit.sockets for record in socket.records)
    for socket in (socket for each in unit.companions for socket in each.sockets):
        (_, *words), *options = socket.records
        yield from (("companion-socket", *words), *options)
    yield from (record for socket in unit.journal_sockets for record in socket.records)


def _lines(records: Iterable[Record]) -> Iterator[str]:
    for record in records:
        yield " ".join(encode_word(word) for word in record)


def encode_word(word: str) -> str:
    r"""``word`` in the encoding of a unit's description. A space, a backslash and every byte outside printable ASCII
    become \xHH, where HH is the byte in hexadecimal.

    ``word`` may have placeholders for specifiers of systemd. The placeholder for the machine's host name (specifier
    %H) becomes \H. The placeholder for the part of the host name before the first dot (specifier %l) becomes \l.
    """
    return "".join(
        _MACHINE.get(char) or "".join(_encoded(byte) for byte in char.encode("utf-8", "surrogateescape"))
        for char in word
    )


def _encoded(byte: int) -> str:
    return chr(byte) if 0x20 < byte < 0x7F and byte != 0x5C else f"\\x{byte:02x}"


@dataclass(frozen=True)
class _Set:
    """The files of a start set, by path. ``files`` are the regular files of the start set, both packed files and files
    that stay on the root volume. ``links`` are the paths of the start set's links.
    """

    files: Mapping[PurePosixPath, StartFile]
    links: frozenset[PurePosixPath]
    root: ImageRoot

    @classmethod
    def of(cls, start_set: StartSet, root: ImageRoot) -> Self:
        kinds = (FileKind.FILE, FileKind.LEFT)
        files = {file.path: file for file in start_set.files if file.kind in kinds and not file.target}
        return cls(files, frozenset(file.path for file in start_set.files if file.target), root)

    def at(self, program: PurePosixPath) -> StartFile | None:
        """The file to which ``program`` leads. The result is None if the file is not in the start set. The result is
        also None if a link on the way to the file is not in the start set, unless the link belongs to a merged /usr.
        Init does not compare a link outside the start set with the volume. So such a link may lead to one program at
        the build, and to another program when the machine boots.
        """
        found = self.root.resolve(program)
        for link in found.links:
            if link not in self.links and not is_merged(link, self.root.link_target(link) or ""):
                return None
        return self.files.get(found.canonical) if found.canonical is not None else None


def started_by_interpreter(unit: UnitStart, start_set: StartSet, root: ImageRoot) -> frozenset[PurePosixPath]:
    """The canonical paths of the scripts that the starter does not execute directly. The starter executes the packed
    interpreter of such a script, and the interpreter then opens the script on the volume. The scripts belong to the
    unit or to its companions.
    """
    known = _Set.of(start_set, root)
    programs = {PurePosixPath(command.program) for each in unit.all_units for command in each.commands}
    found = (known.at(program) for program in programs)
    return frozenset(file.path for file in found if file is not None and _interpreter(file, known))


def _command_records(when: str, command: UnitCommand, known: _Set) -> Iterator[Record]:
    """The records for one command of the unit. The `command` record may name another program than the unit does, for
    example the interpreter of a script. In this case, a `command-name` record with the name of the unit's program
    follows. journald labels the command's output with this name (SyslogIdentifier=).
    """
    placed = _placed(command, known)
    yield "command", when, *placed
    name = PurePosixPath(command.program).name
    if PurePosixPath(placed[1]).name != name:
        yield "command-name", name


def _placed(command: UnitCommand, known: _Set) -> Record:
    """The words that stand for a command in the unit's description. They are the command's flags, its program and its
    argv.

    A packed program starts from /fast. If the kernel started a script, it would run the interpreter on the volume. So
    the starter runs the packed interpreter, with the script's path as an argument. The argument is the path that the
    unit gives for the script, because the kernel would use this path, too. The path leads to the volume, because the
    script may look for other files in its own directory.
    """
    ordinary = command.flags, command.program, *command.words
    file = known.at(PurePosixPath(command.program))
    if file is None:
        return ordinary
    if found := _interpreter(file, known):
        packed, before = found
        return command.flags, f"/fast{packed}", *before, command.program, *command.words[1:]
    if file.kind is FileKind.LEFT or interpreter_of(known.root, file.path):
        return ordinary
    return command.flags, f"/fast{file.path}", *command.words


def _interpreter(file: StartFile, known: _Set) -> tuple[PurePosixPath, tuple[str, ...]] | None:
    """The packed interpreter of a script, and the words that come before the script's path in the interpreter's argv.
    The first of these words is the name after ``#!``. The second word, if there is one, is the argument after this
    name. The result is None if ``file`` is not a script. The result is also None if the starter must leave the start
    of the script to the kernel. There are three such cases: the interpreter is not packed, the interpreter is itself a
    script, or not every user may execute the script.
    """
    script = interpreter_of(known.root, file.path)
    interpreter = known.at(script.program) if script else None
    if script is None or interpreter is None or interpreter.kind is not FileKind.FILE:
        return None
    # Only the kernel checks whether the unit's user may execute the script. An interpreter that is a script
    # has an interpreter itself.
    if file.mode & 0o111 != 0o111 or interpreter_of(known.root, interpreter.path):
        return None
    return interpreter.path, (str(script.program), *((script.argument,) if script.argument else ()))
