"""Programs of an image, run on this host: as root of the image, and of nothing else (``confiner/``, docs/users/security.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path, PurePosixPath

from quickstart.host import relay
from quickstart.store.compiled import compiled
from quickstart.store.store import Store

# With glibc it would be 0.8 MB larger. musl-gcc knows nothing of the kernel's headers, which are glibc's neighbours.
COMPILER = "musl-gcc"
FLAGS = (
    *("-std=gnu11", "-Os", "-static", "-s"),
    *("-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu"),
)
_LIMIT_S = 1800
# confiner/confiner.h: where the image is for a program of the host's, and the status when nothing was started.
TARGET = PurePosixPath("/target")
NOT_CONFINED = 125


def confiner(store: Store) -> Path:
    """The program that confines, out of the store; raises MissingToolError without its compiler."""
    folder = resources.files("quickstart.reference").joinpath("confiner")
    return compiled(store, "confiner", FLAGS, folder, compiler=COMPILER)


def run_in(
    root: Path,
    argv: Sequence[str],
    program: Path,
    log: Path,
    env: Mapping[str, str],
    *,
    network: bool = False,
    host_tools: bool = False,
) -> None:
    """Run a program of the image ``root`` by ``program``, the confiner, to its end; what it says goes to the end of ``log``.

    It has the host's network only with ``network``, and then no UNIX sockets. Only then does it learn the host's proxies, which may
    contain a password. With ``host_tools`` it is a program of the host's, to which the image is `TARGET`; ``root`` must have a
    directory ``dev``. Raises CommandError as ``relay.logged`` does.
    """
    options = (*(("--network",) if network else ()), *(("--host-tools",) if host_tools else ()))
    words = [program, *options, root, *argv]
    relay.logged(words, timeout_s=_LIMIT_S, log=log, env=env, proxies=network)
