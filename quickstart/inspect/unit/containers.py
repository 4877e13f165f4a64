"""Find out whether dockerd can start early with the configuration that the image has.

Before dockerd is ready, it restarts containers and plugins as their restart policies say. To get a control group for
such a container, runc asks systemd, which does not run before the hand-off. So in an early start, the containers would
fail, and dockerd would not start them again. Therefore, a machine that has such a container boots the stock way. The
starter, which starts units before systemd runs, looks for such containers in the directories of dockerd. The source
code of Docker 20.10 and 26.1 shows what dockerd reads in these directories: restore in daemon/daemon.go,
plugin/manager.go, daemon/cluster, and RestartPolicy in api/types/container.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import MAX_TABLE_BYTES, ImageRoot
from quickstart.inspect.unit.conditions import braces_expanded
from quickstart.inspect.unit.model import UnitCommand, UnitStart
from quickstart.inspect.unit.source import Source
from quickstart.inspect.unit.values import BadValueError
from quickstart.parse.printable import brief

Record = tuple[str, ...]

DOCKER = "dockerd"
_CONFIGURATION = PurePosixPath("/etc/docker/daemon.json")
# With userns-remap, dockerd keeps everything one directory deeper, in UID.GID.
_ROOTS = "/var/lib/docker{,/*.*}"
_STARTED = f"{_ROOTS}/{{plugins/*/config.json,swarm/docker-state.json}}"
_CONTAINERS = f"{_ROOTS}/containers/*/hostconfig.json"
# The text that dockerd writes there for a container that it does not start by itself. Strings in the file have no
# plain quotes.
_STAYS = '"RestartPolicy":{"Name":"no"'
# Options and keys that name another place or another configuration file. In JSON, a letter may be written as an escape.
_ELSEWHERE = re.compile(
    r"""--(?:data-root|graph|config-file)\b|(?:^|[\s"'=])-[A-Za-z]*g|"(?:data-root|graph)"|\\u"""
)
_CONDITIONS: tuple[Record, ...] = (
    (*("unit-condition", "Condition", "PathExistsGlob", "yes", "no", _STARTED), *braces_expanded(_STARTED)),
    ("each-file-has", _STAYS, *braces_expanded(_CONTAINERS)),
)
# dockerd executes a program for each CPU that it knows, to find out whether the kernel can execute it (binfmt.d(5)).
EMULATORS = ("/etc/binfmt.d", "/usr/local/lib/binfmt.d", "/usr/lib/binfmt.d")
_EMULATOR = re.compile(r"^[^#;\n].*\\x7f(?:ELF|\\x45\\x4c\\x46)", re.MULTILINE | re.IGNORECASE)
_PATTERN = re.compile(r"[*?\[]")
_COMMENT = re.compile(r"^[ \t]*[#;].*$", re.MULTILINE)


def container_records(root: ImageRoot, source: Source, start: UnitCommand) -> Iterator[Record]:
    """If the command ``start`` starts dockerd, yield records with conditions for the starter. Otherwise, yield nothing.
    The conditions are true when dockerd has no plugin, no swarm and no container that it starts by itself. Raises
    UnsupportedUnitError if dockerd keeps its data in another place than /var/lib/docker, or if the image has a plugin,
    a swarm or a container that dockerd starts by itself.
    """
    if not is_docker(start):
        return
    for path in _environment_files(source):
        if _PATTERN.search(str(path)):
            why = BadValueError("is a pattern, and any file of it may say where dockerd keeps its containers")
            raise source.refusal("EnvironmentFile", str(path), why)
    for where, text in _configured(root, source, start):
        if found := _ELSEWHERE.search(text):
            raise UnsupportedUnitError(
                f"{source.unit} cannot be started early: {where} has {brief(found[0].strip())}, and early starts look for"
                " containers in /var/lib/docker only",
                hint="mount or link the other place at /var/lib/docker in the image, and remove the option",
            )
    if kept := next(_kept(root), None):
        raise UnsupportedUnitError(
            f"{source.unit} cannot be started early: dockerd would start what {brief(str(kept))} stands for by way of systemd",
            hint='early = "never" in the profile\'s [start] makes every boot a stock boot',
        )
    for place in EMULATORS:
        for file in root.glob(PurePosixPath(place) / "*.conf"):
            found_at = root.resolve(file).canonical
            if found_at is not None and _EMULATOR.search(root.read_text(found_at)):
                raise UnsupportedUnitError(
                    f"{source.unit} cannot be started early: dockerd looks at its start for the emulator of {brief(str(file))},"
                    " which comes with systemd",
                    hint="remove the emulator of other CPUs (qemu-user) from the image",
                )
    yield from _CONDITIONS


def _kept(root: ImageRoot) -> Iterator[PurePosixPath]:
    """The files in the image that belong to the plugins, the swarm and the containers that dockerd starts by itself."""
    for pattern in braces_expanded(_STARTED):
        yield from root.glob(PurePosixPath(pattern))
    for pattern in braces_expanded(_CONTAINERS):
        yield from (path for path in root.glob(PurePosixPath(pattern)) if _STAYS not in root.read_text(path))


def before_companions(unit: UnitStart, companions: Sequence[UnitStart]) -> tuple[UnitStart, ...]:
    """Return ``companions``, the units that start before ``unit``. If ``unit`` has conditions on containers, the first
    companion in the result has these conditions, too. Without these conditions, every boot of a machine with containers
    would start the companions and end them again.
    """
    if not companions or not set(_CONDITIONS) & set(unit.settings):
        return tuple(companions)
    first, *others = companions
    return (replace(first, settings=(*_CONDITIONS, *first.settings)), *others)


def is_docker(start: UnitCommand) -> bool:
    return PurePosixPath(start.program).name == DOCKER


def container_files(source: Source) -> Iterator[PurePosixPath]:
    """The files, existing or not, that say where dockerd keeps its containers. When such a file changes, the machine
    boots the stock way.
    """
    yield _CONFIGURATION
    yield from _environment_files(source)


def _configured(root: ImageRoot, source: Source, start: UnitCommand) -> Iterator[tuple[str, str]]:
    """The texts that may have an option of dockerd, each with a name of its source for error messages."""
    yield "its command", "\n".join(start.words)
    yield "Environment=", "\n".join(source.every("Environment"))
    for path in (_CONFIGURATION, *_environment_files(source)):
        file = root.resolve(path).canonical
        if file is not None:
            text = root.read_text(file, MAX_TABLE_BYTES)
            yield str(path), text if path == _CONFIGURATION else _COMMENT.sub("", text)


def _environment_files(source: Source) -> Iterable[PurePosixPath]:
    return tuple(
        PurePosixPath(source.plain_path("EnvironmentFile", value.removeprefix("-")))
        for value in source.all("EnvironmentFile")
    )
