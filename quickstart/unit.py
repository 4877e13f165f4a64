"""How a systemd unit starts its main process, read from the image (systemd.syntax(7), systemd.service(5)).

Without the starter of the hand-off this reads what a start needs and refuses, by name, every [Service] directive
that would change how the process runs and that we cannot repeat.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.imageroot import ImageRoot
from quickstart.model import UnitStart

# systemd.unit(5), "Unit File Load Path": the first that has the unit wins; drop-ins of all are read.
_UNIT_PATHS = ("/etc/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system")

_START = frozenset({"Type", "PIDFile", "ExecStartPre", "ExecStart"})
# Directives that act at reload, stop or after a crash: they do not change the process that starts.
_INERT = frozenset(
    {
        "ExecReload",
        "ExecStop",
        "ExecStopPost",
        "KillMode",
        "KillSignal",
        "Restart",
        "RestartSec",
        "SendSIGKILL",
        "SuccessExitStatus",
        "TimeoutSec",
        "TimeoutStartSec",
        "TimeoutStopSec",
        "GuessMainPID",
    }
)
_NO_TEXT = re.compile(r"[\0-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_TYPES = ("simple", "exec", "forking")
_ESCAPES = {"n": "\n", "t": "\t", "s": " ", "\\": "\\", '"': '"', "'": "'"}

Directives = Mapping[str, tuple[str, ...]]


def parse_service(texts: tuple[str, ...]) -> Directives:
    """The [Service] directives of a unit and its drop-ins, in order; an empty assignment clears what came before."""
    found: dict[str, list[str]] = {}
    for text in texts:
        section = ""
        # Comments go first: they neither continue nor end a line that is continued.
        plain = "\n".join(line for line in text.split("\n") if line.lstrip()[:1] not in ("#", ";"))
        for line in plain.replace("\\\n", " ").split("\n"):
            line = line.strip()
            if line.startswith("["):
                section = line
            elif section == "[Service]" and "=" in line:
                name, _, value = (part.strip() for part in line.partition("="))
                if value:
                    found.setdefault(name, []).append(value)
                else:
                    found[name] = []
    return {name: tuple(values) for name, values in found.items() if values}


def split_command(unit: str, line: str) -> tuple[tuple[str, ...], bool]:
    """The argv of an Exec line, and whether its failure is ignored (systemd.service(5), "Command Lines").

    Raises UnsupportedUnitError for prefixes and specifiers that need systemd.
    """
    ignored = line.startswith("-")
    text = line.removeprefix("-")
    if text[:1] in "@:+!|":
        raise UnsupportedUnitError(f"{unit}: the prefix of `{line}` cannot be repeated without systemd")
    words = _split_words(unit, text)
    for word in words:
        if "$" in word or "%" in word.replace("%%", ""):
            raise UnsupportedUnitError(
                f"{unit}: `{word}` in `{line}` has a variable or specifier that only systemd expands"
            )
    if not words or not words[0].startswith("/"):
        raise UnsupportedUnitError(f"{unit}: `{line}` does not begin with an absolute path")
    return tuple(word.replace("%%", "%") for word in words), ignored


def _split_words(unit: str, text: str) -> list[str]:
    words: list[str] = []
    current: list[str] | None = None
    quote = ""
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char == "\\" and position < len(text):
            if text[position] not in _ESCAPES:
                raise UnsupportedUnitError(f"{unit}: the escape \\{text[position]} in `{text}` is not known")
            current = current or []
            current.append(_ESCAPES[text[position]])
            position += 1
        elif quote:
            if char == quote:
                quote = ""
            else:
                current = current or []
                current.append(char)
        elif char in "\"'":
            quote, current = char, current or []
        elif char in " \t\n\r":
            if current is not None:
                words.append("".join(current))
            current = None
        else:
            current = current or []
            current.append(char)
    if quote:
        raise UnsupportedUnitError(f"{unit}: `{text}` has an open quote")
    return words if current is None else [*words, "".join(current)]


def _drop_in_names(unit: str) -> tuple[str, ...]:
    """The directories that drop-ins of ``unit`` lie in, the most specific first (systemd.unit(5), "Description")."""
    stem = unit.removesuffix(".service")
    dashes = [index for index, char in enumerate(stem) if char == "-"]
    return (f"{unit}.d", *(f"{stem[: index + 1]}.service.d" for index in reversed(dashes)), "service.d")


def _template(unit: str) -> str:
    """NAME@.service of an instance NAME@INSTANCE.service; empty for other units."""
    stem, at, instance = unit.removesuffix(".service").partition("@")
    return f"{stem}@.service" if at and instance else ""


def unit_texts(root: ImageRoot, unit: str) -> tuple[str, ...]:
    """The unit file's text, then its drop-ins' in the order of their names; raises UnsupportedUnitError without a unit."""
    drop_ins: dict[str, PurePosixPath] = {}
    main: PurePosixPath | None = None
    template = _template(unit)
    for directory in _UNIT_PATHS:
        found_here = root.resolve(PurePosixPath(directory) / unit)
        if main is None and found_here.canonical is None and found_here.links:
            raise UnsupportedUnitError(f"{unit} is masked in the image by {found_here.links[-1]}")
        main = main or found_here.canonical
        for name in (*_drop_in_names(unit), *(_drop_in_names(template) if template else ())):
            below = root.resolve(PurePosixPath(directory) / name).canonical
            for file in sorted(root.host(below).glob("*.conf")) if below is not None else ():
                drop_ins.setdefault(file.name, PurePosixPath(directory) / name / file.name)
    if main is None and template:
        places = (root.resolve(PurePosixPath(directory) / template).canonical for directory in _UNIT_PATHS)
        main = next((place for place in places if place is not None), None)
    if main is None or not root.host(main).is_file():
        raise UnsupportedUnitError(
            f"the image has no unit {unit}", hint="`unit` and `packages` in the profile must fit"
        )
    # A drop-in may be a link, to /dev/null when it is switched off.
    found = (root.resolve(drop_ins[name]).canonical for name in sorted(drop_ins))
    files = [main, *(file for file in found if file is not None and root.host(file).is_file())]
    return tuple(root.read_text(file) for file in files)


def read_unit(root: ImageRoot, unit: str) -> UnitStart:
    """How ``unit`` of the image starts; raises UnsupportedUnitError naming what an early start could not repeat."""
    service = parse_service(unit_texts(root, unit))
    for name, values in service.items():
        # systemd ignores a line that is not UTF-8; whoever wrote it meant something else.
        if any(_NO_TEXT.search(each) for each in (name, *values)):
            raise UnsupportedUnitError(f"{unit}: {name!r} has bytes that are no UTF-8 text: {values!r}")
    unknown = sorted(set(service) - _START - _INERT)
    if unknown:
        raise UnsupportedUnitError(
            f"{unit} cannot be started early yet: it has {', '.join(unknown)}",
            hint="these directives would be lost; see docs/limits.md",
        )
    kind = service.get("Type", ("simple",))[-1]
    if kind not in _TYPES:
        raise UnsupportedUnitError(
            f"{unit} cannot be started early yet: Type={kind}", hint=f"known: {', '.join(_TYPES)}"
        )
    commands = service.get("ExecStart", ())
    if len(commands) != 1:
        raise UnsupportedUnitError(
            f"{unit} has {len(commands)} ExecStart lines; exactly one can be started early"
        )
    pid_file = service.get("PIDFile", ("",))[-1]
    if kind == "forking" and not pid_file:
        raise UnsupportedUnitError(f"{unit} is Type=forking without PIDFile: its main process is not known")
    pre = [split_command(unit, line) for line in service.get("ExecStartPre", ())]
    if any(ignored for _, ignored in pre):
        raise UnsupportedUnitError(f"{unit}: an ExecStartPre whose failure is ignored cannot be repeated yet")
    return UnitStart(
        unit=unit,
        type=kind,
        pid_file=(PurePosixPath("/run") / pid_file) if pid_file else None,
        start_pre=tuple(words for words, _ in pre),
        start=split_command(unit, commands[0])[0],
    )
