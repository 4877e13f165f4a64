"""Draw daemons at random from Debian's archive, for bench/services/survey.py: the list is made before the first
of them is tried.

.venv/bin/python bench/services/draw.py

The script writes random.txt beside this file. It needs a Debian machine of the suite with fresh package lists
(apt-get update).

The pool are the packages that debtags calls daemons (interface::daemon), and those that depend on
init-system-helpers, as packages with a service do. A seed shuffles them. From the shuffled list, the first
packages are taken that have a daemon: a unit file that is enabled by an [Install] section and is neither a
template nor of Type=oneshot, or an init script without a unit file. The package is downloaded to see that.
Nothing is installed, and nothing else about a package counts.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from quickstart.host import door
from quickstart.inspect.unit.files import assignments, parse_service

SUITE, SEED, COUNT = "bookworm", 20261125, 40
LIST = Path(__file__).with_name("random.txt")
_TAGS = re.compile(r"^Tag:.*\binterface::daemon\b", re.MULTILINE)
_HELPERS = re.compile(r"^(?:Pre-)?Depends:.*\binit-system-helpers\b", re.MULTILINE)
_NAME = re.compile(r"^Package: (\S+)$", re.MULTILINE)
_FETCH_S = 600


def described(text: str | None) -> argparse.ArgumentParser:
    """A parser of a script's words whose `--help` is the script's docstring ``text``."""
    return argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )


def pool_of(available: str) -> tuple[str, ...]:
    """The names of the packages that may have a daemon, sorted. ``available`` is the output of `apt-cache dumpavail`."""
    found = set()
    # The values of some fields go on over several lines.
    for record in re.sub(r"\n[ \t]+", " ", available).split("\n\n"):
        name = _NAME.search(record)
        if name and (_TAGS.search(record) or _HELPERS.search(record)):
            found.add(name[1])
    return tuple(sorted(found))


def shuffled(pool: Iterable[str], seed: int) -> tuple[str, ...]:
    """``pool`` in the order in which it is drawn."""
    names = sorted(pool)
    random.Random(seed).shuffle(names)  # noqa: S311 - to be repeated, not to be secret
    return tuple(names)


def daemon_of(package: str, units: Mapping[str, str], scripts: Iterable[str]) -> str:
    """The daemon's unit: the one that is named as the package, or else the first by name. Empty without a daemon.

    ``units`` has the text of each unit file, by its name; ``scripts`` are the names of the package's init scripts.
    """
    daemons = {name for name, text in units.items() if _is_daemon(name, text)}
    daemons |= {f"{name}.service" for name in scripts if f"{name}.service" not in units}
    own = f"{package}.service"
    return own if own in daemons else min(daemons, default="")


def _is_daemon(name: str, text: str) -> bool:
    is_enabled = any(
        key in ("WantedBy", "RequiredBy", "Also") for key, _ in assignments((text,), "[Install]")
    )
    kind = parse_service((text,)).get("Type", ("",))[-1]
    return is_enabled and "@" not in name and kind != "oneshot"


def fetched_daemon(package: str) -> str:
    """``daemon_of`` for the package as the archive has it."""
    with tempfile.TemporaryDirectory(prefix="quickstart-draw-") as name:
        place = Path(name)
        environment = door.environment()
        door.run(["apt-get", "download", "-q", package], cwd=place, env=environment, timeout_s=_FETCH_S)
        (archive,) = place.glob("*.deb")
        tree = place / "tree"
        door.run(["dpkg-deb", "-x", str(archive), str(tree)], cwd=place, env=environment, timeout_s=_FETCH_S)
        files = [*tree.glob("lib/systemd/system/*.service"), *tree.glob("usr/lib/systemd/system/*.service")]
        units = {path.name: path.read_text(errors="replace") for path in files if not path.is_symlink()}
        return daemon_of(package, units, [path.name for path in tree.glob("etc/init.d/*")])


def main(words: Sequence[str]) -> None:
    described(__doc__).parse_args(words)
    available = door.run(["apt-cache", "dumpavail"], timeout_s=_FETCH_S).stdout.decode(errors="replace")
    pool = pool_of(available)
    drawn: list[str] = []
    looked_at = 0
    for package in shuffled(pool, SEED):
        looked_at += 1
        if unit := fetched_daemon(package):
            drawn.append(f"{package} {unit}")
            print(f"{len(drawn)} {drawn[-1]}", flush=True)
        if len(drawn) == COUNT:
            break
    head = (
        f"# {COUNT} daemons of Debian {SUITE}, drawn by bench/services/draw.py with the seed {SEED}: package and unit.\n"
        f"# The pool had {len(pool)} packages; the first {looked_at} of the shuffled pool were looked at.\n"
        "# The list was committed before any of them was tried.\n\n"
    )
    LIST.write_text(head + "".join(f"{line}\n" for line in drawn), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
