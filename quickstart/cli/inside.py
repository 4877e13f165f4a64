"""`quickstart ls|cat|why|diff`: show what is inside an artefact."""

from __future__ import annotations

import base64
import os
import stat
import sys
from pathlib import Path

import click
from rich.console import Console

from quickstart.artefact import difference, inside
from quickstart.artefact import directory as artefacts
from quickstart.artefact.manifest import MANIFEST
from quickstart.cli.completion import artefacts_here
from quickstart.cli.guarded import guarded
from quickstart.cli.options import JSON
from quickstart.cli.output import Verb, run_verb, say
from quickstart.errors import BadInputError
from quickstart.host.cpulimit import INSIDE_LIMIT_S, cpu_limit
from quickstart.parse.faults import first_ones
from quickstart.parse.printable import brief, in_full

# What of a file is in memory at once, some four times.
_JSON_BYTES = 32 << 20
_OUT = click.argument("out", type=click.Path(path_type=Path), shell_complete=artefacts_here)


@click.command("ls")
@_OUT
@click.argument("path", default="")
@JSON
def list_members(out: Path, path: str, as_json: bool) -> None:
    """List the files in the initramfs of OUT: all of them, or those below PATH."""

    @cpu_limit("OUT", INSIDE_LIMIT_S)
    def work(verb: Verb) -> int:
        prefix = path.strip("/")
        found = [
            each
            for each in inside.members(artefacts.load(out.absolute()))
            if not prefix or each.name == prefix or each.name.startswith(f"{prefix}/")
        ]
        if not found:
            raise BadInputError(f"{out} has nothing at {path}", hint="`quickstart ls OUT` lists all it has")
        rows = [
            {
                "name": m.name,
                "part": m.part,
                "mode": f"{m.mode:o}",
                "size_bytes": m.size_bytes,
                "target": m.target,
            }
            for m in found
        ]
        verb.result({"members": rows}, lambda console: _show(console, found))
        return 0

    sys.exit(run_verb("ls", as_json, work))


def _show(console: Console, found: list[inside.Member]) -> None:
    for each in found:
        arrow = f" -> {each.target}" if each.target else ""
        line = f"{each.part} {stat.filemode(each.mode)} {each.size_bytes:>9} /{in_full(each.name)}{in_full(arrow)}"
        say(console, line)


@click.command("cat")
@_OUT
@click.argument("path")
@JSON
def cat(out: Path, path: str, as_json: bool) -> None:
    """Write a file of the initramfs of OUT to stdout. PATH is the file's path in the guest (/fast/usr/...) or on
    the root volume (/usr/...).
    """

    @cpu_limit("OUT", INSIDE_LIMIT_S)
    def work(verb: Verb) -> int:
        artefact = artefacts.load(out.absolute())
        member = inside.find(artefact, path)
        if not stat.S_ISREG(member.mode):
            raise BadInputError(f"/{brief(member.name)} is not a regular file")
        if verb.json and member.size_bytes > _JSON_BYTES:
            raise BadInputError(
                f"/{brief(member.name)} has {member.size_bytes} bytes, too many for JSON",
                hint="leave --json out",
            )
        if verb.json:
            encoded = base64.b64encode(b"".join(inside.content(artefact, member))).decode()
            verb.result({"name": member.name, "size_bytes": member.size_bytes, "base64": encoded}, _nothing)
        else:
            # A stranger's file, which a terminal would obey.
            target = guarded(sys.stdout)
            for piece in inside.content(artefact, member):
                target.write(piece)
            target.flush()
        return 0

    sys.exit(run_verb("cat", as_json, work))


def _nothing(console: Console) -> None:
    """Print nothing. `Verb.result` needs a function that prints the result as text. A caller that only wants the result
    as JSON passes this function.
    """


@click.command("why")
@_OUT
@click.argument("path")
@JSON
def why(out: Path, path: str, as_json: bool) -> None:
    """Say which event of the trace or which rule put PATH into the start set of OUT, or which rule keeps PATH out.

    OUT is an artefact, or a directory that `quickstart trace -o` wrote.
    """

    @cpu_limit("OUT", INSIDE_LIMIT_S)
    def work(verb: Verb) -> int:
        directory = out.absolute()
        artefact = artefacts.load(directory) if os.path.lexists(directory / MANIFEST) else None
        found = inside.why(directory, path, artefact)
        result = {
            "path": str(found.path),
            "package": found.package or None,
            "reasons": list(found.reasons),
            "excluded": found.excluded or None,
        }

        def text(console: Console) -> None:
            say(console, str(found.path))
            if found.package:
                say(console, f"  package: {found.package}")
            for reason in first_ones(found.reasons):
                say(console, f"  {reason}")
            if found.excluded:
                say(console, f"  not packed: {found.excluded}")

        verb.result(result, text)
        return 0

    sys.exit(run_verb("why", as_json, work))


@click.command("diff")
@_OUT
@click.argument("other", type=click.Path(path_type=Path), shell_complete=artefacts_here)
@JSON
def diff(out: Path, other: Path, as_json: bool) -> None:
    """Say how the initramfs of OTHER differs from that of OUT; the exit status is 1 when they differ."""

    @cpu_limit("OUT", INSIDE_LIMIT_S)
    def work(verb: Verb) -> int:
        found = difference.diff(artefacts.load(out.absolute()), artefacts.load(other.absolute()))
        result = {"differences": [{"name": each.name, "what": each.what} for each in found]}

        def text(console: Console) -> None:
            for each in found:
                say(console, f"/{each.name}: {each.what}" if each.name else f"{out} and {other}: {each.what}")

        verb.result(result, text)
        return 1 if found else 0

    sys.exit(run_verb("diff", as_json, work))
