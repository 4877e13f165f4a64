"""Make manual pages (man(7)) from QuickStart's commands. `python -m quickstart.cli.manpages DIRECTORY` writes the pages
to DIRECTORY.

`make man` calls this module. The pages have no date, so that the same commands always give the same bytes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from quickstart import __version__
from quickstart.cli.main import group

PROGRAM = "quickstart"
_EXIT = (
    ("0", "Success."),
    ("1", "The verb failed."),
    ("2", "The input is wrong: the command line, a profile or an artefact."),
    ("3", "Something is missing on the host."),
    ("130", "Interrupted. The verb leaves no running process and no incomplete file."),
)
_EXIT_OF = {
    "quickstart": (("4", "A measurement is not valid (bench, bench compare, verify)."),),
    "quickstart-audit": (("1", "Some findings are errors, or the verb failed."),),
    "quickstart-bench": (
        (
            "4",
            "The measurement is not valid: no run of a cell became ready, or the guest and the volume counted different reads.",
        ),
    ),
    "quickstart-bench-compare": (
        ("1", "A cell of B is later by more than the threshold, or the verb failed."),
        (
            "2",
            "The input is wrong: the command line, a results.json, or two results that cannot be compared.",
        ),
        (
            "4",
            "One of the two results is not valid: a cell has no median, or the guest and the volume counted different reads.",
        ),
    ),
    "quickstart-diff": (("1", "The archives differ, or the verb failed."),),
    "quickstart-doctor": (("3", "Something is missing."),),
    "quickstart-run": (("STATUS", "With --exec: the status of the command."),),
    "quickstart-verify": (
        ("1", "The reads are above the budget, the fast start did not happen, or the verb failed."),
        ("4", "QEMU and the volume counted different reads."),
    ),
    "quickstart-shell": (("STATUS", "The status of the shell, if nothing else fails."),),
}
_ENVIRONMENT = (
    (
        "QUICKSTART_CACHE",
        "The directory of the store. The default is $XDG_CACHE_HOME/quickstart, or else ~/.cache/quickstart.",
    ),
    (
        "http_proxy, https_proxy, no_proxy",
        "Proxies, which are passed on to the programs that fetch packages.",
    ),
    ("TMPDIR", "The directory in which the workspaces of guests are made. The default is /tmp."),
)
_FILES = (
    ("OUT/manifest.json", "The facts about the artefact: versions, hashes, the kernel's command line."),
    (
        "OUT/start-set.json",
        "Every file of the start set with its reasons, and every excluded file with the rule that excludes it.",
    ),
    ("OUT/run.sh", "A script that starts the machine and needs only QEMU."),
    ("~/.cache/quickstart", "The store, in which stages keep their results."),
)


def pages() -> Mapping[str, str]:
    """The text of every manual page, under the page's file name. There is one page for the program, one for each verb,
    and one for each sub-verb.
    """
    context = click.Context(group, info_name=PROGRAM, **group.context_settings)
    return {f"{name}.1": _page(name, each) for name, each in _commands(PROGRAM, context)}


def _commands(name: str, context: click.Context) -> Iterator[tuple[str, click.Context]]:
    yield name, context
    if isinstance(context.command, click.Group):
        for verb in context.command.list_commands(context):
            command = context.command.get_command(context, verb)
            if command is not None and not command.hidden:
                below = click.Context(command, info_name=verb, parent=context)
                yield from _commands(f"{name}-{verb}", below)


def _page(name: str, context: click.Context) -> str:
    command = context.command
    paragraphs = [" ".join(each.split()) for each in re.split(r"\n\s*\n", command.help or "")]
    summary = _summary(command)
    lines = [
        f'.TH "{name.upper()}" "1" "" "quickstart {__version__}" "QuickStart"',
        ".SH NAME",
        rf"{_text(name)} \- {_text(summary[:1].lower() + summary[1:])}",
        ".SH SYNOPSIS",
        f".B {_text(_called(context))}",
        _text(" ".join(_usage(command))),
        ".SH DESCRIPTION",
    ]
    for paragraph in paragraphs:
        lines += [".PP", _text(paragraph)]
    lines += _verbs(name, context)
    lines += [".SH OPTIONS"]
    lines += [line for row in _options(context) for line in (".TP", f".B {_text(row[0])}", _text(row[1]))]
    lines += _table("EXIT STATUS", _exit_of(name))
    lines += [*_table("ENVIRONMENT", _ENVIRONMENT), *_table("FILES", _FILES)]
    lines += [".SH SEE ALSO", ",\n".join(f".BR {_text(other)} (1)" for other in _others(name, context))]
    return "\n".join(lines) + "\n"


def _called(context: click.Context) -> str:
    """The words that call the command, such as `quickstart bench compare`. The words do not include arguments of the
    parent commands, because a call of a subcommand has no such arguments.
    """
    above = _called(context.parent) if context.parent is not None else ""
    return f"{above} {context.info_name}".strip()


def _summary(command: click.Command) -> str:
    """The first clause of the command's description, up to the period or semicolon that ends it."""
    first = " ".join((command.help or "").split("\n\n")[0].split())
    return re.split(r"[;.](?:\s|$)", first)[0]


# click's own texts are not used, because they differ between its versions and locales.
def _usage(command: click.Command) -> Iterator[str]:
    yield "[OPTIONS]"
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            word = parameter.metavar or (parameter.name or "").upper()
            yield word if parameter.required else f"[{word}]"
    if isinstance(command, click.Group):
        yield "COMMAND [ARGS]..."


def _options(context: click.Context) -> Iterator[tuple[str, str]]:
    for parameter in context.command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden and parameter.name != "version":
            names = ", ".join(sorted(parameter.opts, key=len))
            default = f" [{parameter.default}]" if parameter.show_default else ""
            yield (
                f"{names} {_value(parameter)}".rstrip(),
                f"{' '.join((parameter.help or '').split())}{default}",
            )
    if context.parent is None:
        yield "--version", "Print the version, and end."
    yield ", ".join(context.help_option_names), "Print a short help, and end."


def _value(option: click.Option) -> str:
    if option.is_flag:
        return ""
    if isinstance(option.type, click.Choice):
        return "|".join(str(choice) for choice in option.type.choices)
    return option.metavar or ("PATH" if isinstance(option.type, click.Path) else "N")


def _verbs(name: str, context: click.Context) -> list[str]:
    if not isinstance(context.command, click.Group):
        return []
    lines = [".SH COMMANDS"]
    for verb in context.command.list_commands(context):
        command = context.command.get_command(context, verb)
        if command is not None:
            lines += [
                ".TP",
                f".BR {_text(f'{name}-{verb}')} (1)",
                _text(f"{_summary(command)}."),
            ]
    return lines


def _exit_of(name: str) -> tuple[tuple[str, str], ...]:
    own = _EXIT_OF.get(name, ())
    replaced = {status for status, _ in own}
    return tuple(sorted((*own, *(row for row in _EXIT if row[0] not in replaced)), key=_by_status))


def _by_status(row: tuple[str, str]) -> int:
    return int(row[0]) if row[0].isdecimal() else 1000


def _others(name: str, context: click.Context) -> list[str]:
    """The names of related pages for the section SEE ALSO. These are the page of the parent command, and the pages of
    the parent's other subcommands. The page of the program `quickstart` already lists all verbs, so the related pages
    of this page are pages of other programs.
    """
    parent = context.parent
    if parent is None or not isinstance(parent.command, click.Group):
        return ["qemu-system-x86_64", "debootstrap", "strace"]
    above = name.rpartition("-")[0]
    siblings = [f"{above}-{verb}" for verb in parent.command.list_commands(parent)]
    return [above, *(each for each in siblings if each != name)]


def _table(title: str, rows: tuple[tuple[str, str], ...]) -> list[str]:
    lines = [f".SH {title}"]
    for word, meaning in rows:
        lines += [".TP", f".B {_text(word)}", _text(meaning)]
    return lines


def _text(text: str) -> str:
    """``text`` in the syntax of roff, the language of manual pages. Backslashes, hyphens and quotes are escaped, so
    that roff prints them unchanged. A leading period is escaped, too, so that roff does not take the text for a
    request.
    """
    plain = text.replace("\\", r"\e").replace("-", r"\-").replace("`", r"\(ga").replace("'", r"\(aq")
    plain = plain.replace("~", r"\(ti").replace("^", r"\(ha").replace("…", "...").replace("→", r"\(->")
    return rf"\&{plain}" if plain.startswith(".") else plain


def write(directory: Path) -> None:
    """Write the pages to ``directory``, and remove the pages of verbs that no longer exist."""
    directory.mkdir(parents=True, exist_ok=True)
    made = pages()
    for old in directory.glob("*.1"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
