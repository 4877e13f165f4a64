"""The output of a verb. Progress and messages go to stderr. The result goes to stdout, as text or as JSON."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.cells import chop_cells
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

from quickstart.artefact import output
from quickstart.errors import QuickStartError
from quickstart.host import door, userns
from quickstart.host.files import settle_temporary_directory
from quickstart.parse.printable import brief, in_full, shown
from quickstart.store.kept import check_place
from quickstart.store.store import default_root

_LOG = logging.getLogger(__name__)
SCHEMA = 1
_IN_MEMORY_BYTES = 1 << 20
_INTERRUPTED = 130
# The exit code and the hint for an error about a file. For a file in an image or an OUT, the code that
# reads it raises its own error.
_NO_PLACE = (2, "give another path")
_IN_THE_WAY = (2, "move what is there out of the way, or give another path")
_FULL = (3, "free some space there")
_NOT_OURS = (3, "it is another user's, or on a read-only file system")
_OTHER = (3, "look at it, at the way to it, and at its file system")
_OF_FILES = {
    **dict.fromkeys((errno.ELOOP, errno.ENAMETOOLONG), _NO_PLACE),
    **dict.fromkeys((errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY), _IN_THE_WAY),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _FULL),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _NOT_OURS),
    errno.EFBIG: (3, "set TMPDIR to a file system that has files as large as the disk"),
}
# What a file system may say of a file that is open already. Then Python does not know the file's name.
_OF_FILE_SYSTEMS = frozenset(
    (
        *(errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EFBIG),
        *(
            errno.EIO,
            errno.ESTALE,
            errno.EUCLEAN,
            errno.ENODEV,
            errno.ENXIO,
            errno.ETIMEDOUT,
            errno.EREMOTEIO,
        ),
    )
)
# Limits for an error, because its message may have words from an image, a guest or an artefact.
_MOST_LINE_CHARACTERS = 4096
_MOST_DETAILS = 200
# The beginning of each row that may have the words of another program, and the least room behind it.
_MARK = "  | "
_LEAST_CELLS = 20


class Plain(Console):
    """A console that prints untrusted strings, also in tables. This console does not interpret markup, emoji names or
    control sequences.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(shown(text), **options)


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print ``text`` on one line, even if the terminal is narrower than the text. ``text`` may contain any file names,
    because the function `shown` escapes ``text``, and no markup is interpreted.
    """
    console.print(shown(text), style=style, highlight=False, markup=False, emoji=False, soft_wrap=True)


class Display:
    """The progress display on stderr. This class implements the protocol Progress of host/progress.py. On a terminal,
    the display shows the name of the running step and the time since the beginning of the step. When a step that took
    0.1 s or more is complete, a line is printed.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        silent = not self._console.is_terminal
        with Bar(*columns, console=self._console, transient=True, disable=silent) as bar:
            bar.add_task(shown(name), total=None)
            yield
        elapsed_s = time.monotonic() - began
        if elapsed_s >= 0.1:
            self._console.print(
                Text.assemble(f"  {shown(name)}  ", (f"{elapsed_s:.1f} s", "dim")), soft_wrap=True
            )

    @contextmanager
    def counted(self, name: str, total: int) -> Iterator[Callable[[], None]]:
        """A step with a bar. Without a terminal, a line is printed after each tenth of the pieces."""
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
        )
        silent = not self._console.is_terminal
        began, lock, pieces = time.monotonic(), threading.Lock(), 0
        with Bar(*columns, console=self._console, transient=True, disable=silent) as bar:
            task = bar.add_task(shown(name), total=total)

            def advance() -> None:
                nonlocal pieces
                with lock:
                    pieces += 1
                    is_tenth = pieces * 10 // total > (pieces - 1) * 10 // total
                    bar.advance(task)
                    if silent and is_tenth and pieces < total:
                        self.note(f"{name}  {pieces} of {total}")

            yield advance
        self.note(f"{name}  {total} in {time.monotonic() - began:.1f} s")

    def note(self, text: str) -> None:
        say(self._console, f"  {text}")


class _Shown(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


@dataclass(frozen=True)
class Verb:
    """The settings of one call of a verb, such as `build`. ``json`` says that the result is printed as JSON.

    ``out`` is the path of OUT, the directory that the verb writes. Links in this path are resolved. ``out`` is None
    when the verb writes no OUT.
    """

    name: str
    json: bool
    console: Console
    out: Path | None = None

    @property
    def place(self) -> Path:
        """The path ``out``. Only verbs that always write an OUT use this property, because ``out`` must not be None."""
        if self.out is None:
            raise AssertionError(f"{self.name} was called without a place")
        return self.out

    def display(self) -> Display:
        return Display(self.console)

    def result(self, result: Mapping[str, object], text: Callable[[Console], None]) -> None:
        """Print the result on stdout. With ``json``, print ``result`` as JSON. Otherwise, call ``text`` with a
        console for stdout. ``text`` then prints the result as text.
        """
        if self.json:
            document = {"schema": SCHEMA, "verb": self.name, "ok": True, "result": result}
            # One text of all of it would be copied several times. If the limit of CPU time ends this, stdout gets only an error.
            with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES, "w+") as text_of_it:
                json.dump(document, text_of_it, indent=1)
                text_of_it.write("\n")
                text_of_it.seek(0)
                shutil.copyfileobj(text_of_it, sys.stdout)
        else:
            text(Plain())


def run_verb(
    name: str,
    as_json: bool,
    work: Callable[[Verb], int],
    verbose: bool = False,
    *,
    as_root: bool | Callable[[], bool] = False,
    out: Callable[[], Path | None] = lambda: None,
    into: Callable[[], Path] | None = None,
) -> int:
    """Call ``work``, and return the exit code. The exit code is the code that ``work`` returns, or the code of the
    error that ``work`` raises.

    ``as_root`` is a boolean, or a function that returns a boolean. The value True means that the verb sets file owners
    or runs programs in images. If an ordinary user calls such a verb, this function makes the user root of a user
    namespace before it calls ``work``. Before it makes the user root, the function checks whether another user could
    replace the store, OUT or the directory that ``into`` returns. This check must come first, because inside the
    namespace, a directory of the host's root looks like a directory of another user. For every verb, the function also
    checks the temporary directory.

    The function ``out`` returns the path of OUT, which the verb makes or replaces. ``work`` must use the path
    `Verb.out`, in which links are resolved, because somebody may change a link in the original path later. ``into``
    returns a directory into which the verb writes single files. The verb does not replace this directory.

    With ``verbose``, QuickStart prints the name of every subprocess on stderr when the subprocess starts.
    """
    verb = Verb(name, as_json, Plain(stderr=True))
    if verbose:
        _log_subprocesses()
    try:
        settle_temporary_directory()
        # The door judges HOME once.
        door.environment()
        rooted = as_root() if callable(as_root) else as_root
        if rooted:
            check_place(default_root())
        if (named := out()) is not None:
            verb = replace(verb, out=output.check_place(named))
        if rooted:
            if into is not None:
                output.check_into(into())
            userns.become_root()
        status = work(verb)
        # What stdout cannot take is this verb's error, and not one of the interpreter's end.
        sys.stdout.flush()
        return status
    except QuickStartError as error:
        kind = type(error).__name__
        return _failed(verb, error.message, error.hint, kind, error.exit_code, error.details)
    except KeyboardInterrupt:
        return _failed(verb, "interrupted", None, "KeyboardInterrupt", _INTERRUPTED)
    except OSError as error:
        return _failed_on_a_file(verb, error)
    finally:
        _give_up_stdout()


def _give_up_stdout() -> None:
    """Keep the interpreter's end from writing to a stdout that takes nothing."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)


def _log_subprocesses() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Shown("+ %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _failed_on_a_file(verb: Verb, error: OSError) -> int:
    """Print ``error`` and return its exit code. The file that ``error`` is about may come from somebody else, and so may
    its file system. So an error about this file ends the verb with a message and not with a traceback. Raise an error
    that no file system gives again, because it comes from a mistake in QuickStart's code.
    """
    # When a rename fails because something is in the way, this is at the second of the two names.
    path = error.filename2 or error.filename
    # A descriptor is no name.
    named = isinstance(path, str | bytes) and path and error.strerror
    if not named and error.errno == errno.ENOENT:
        # getcwd(2) fails in a directory that was removed, for example in an OUT that a build has replaced.
        return _failed(verb, "the current directory was removed", "cd to another one", "OSError", 3)
    code, hint = _OF_FILES.get(error.errno or 0, _OTHER)
    if not named and error.errno not in _OF_FILE_SYSTEMS:
        raise error
    # If the error is a fault of QuickStart after all, --verbose shows where.
    _LOG.info("%s", error, exc_info=error)
    shown_path = brief(os.fsdecode(path)) if named else "a file"
    return _failed(verb, f"{shown_path}: {error.strerror}", hint, "OSError", code)


def _line(text: str) -> str:
    """``text`` as one line. A text of more than _MOST_LINE_CHARACTERS characters is cut off and ends with an ellipsis.
    Line breaks and other control characters come from untrusted names. So these characters are replaced by escape
    sequences, and so are blanks behind a blank: with them, a terminal that wraps the line could show its end as a line
    of its own. Escape sequences that are already in ``text`` stay the same.
    """
    most = _MOST_LINE_CHARACTERS
    return in_full(text if len(text) <= most else f"{text[:most]}…")


def _details(details: Sequence[str]) -> list[str]:
    """The first _MOST_DETAILS of ``details`` as lines. If there are more details, a last line has their number."""
    # What a program has printed may have tabs.
    lines = [shown(each.expandtabs()[:_MOST_LINE_CHARACTERS]) for each in details[:_MOST_DETAILS]]
    more = len(details) - len(lines)
    return [*lines, f"and {more} more"] if more else lines


def _rows(line: str, console: Console) -> list[str]:
    """``line`` in pieces that each fit into a row of the terminal, behind the mark. If ``console`` is no terminal, the
    whole line is the only piece.
    """
    if not console.is_terminal:
        return [line]
    return chop_cells(line, max(_LEAST_CELLS, console.width - len(_MARK))) or [line]


def _failed(
    verb: Verb, message: str, hint: str | None, kind: str, code: int, details: Sequence[str] = ()
) -> int:
    """Print an error. There is one line for its message, one line for each of the details, and one line for its hint.

    Only this function prints errors, so it escapes the untrusted text in all errors. Each detail begins with the mark
    ``|``. A detail may be a line that another program printed. Without the mark, a user could mistake this line for a
    hint of QuickStart, and follow the hint. On a terminal, each row of a long detail has the mark, for the same reason.
    """
    message, hint, lines = _line(message), _line(hint) if hint else hint, _details(details)
    if verb.json:
        error: dict[str, object] = {"kind": kind, "message": message, "hint": hint, "exit_code": code}
        if lines:
            error["details"] = lines
        document = {"schema": SCHEMA, "verb": verb.name, "ok": False, "error": error}
        # The error may be that stdout is full.
        with suppress(OSError):
            sys.stdout.write(json.dumps(document, indent=1) + "\n")
    say(verb.console, f"quickstart {verb.name}: {message}", style="red")
    for line in lines:
        for row in _rows(line, verb.console):
            say(verb.console, f"{_MARK}{row}", style="red")
    if hint:
        say(verb.console, f"  {hint}")
    return code
