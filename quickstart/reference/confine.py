"""Run programs of an image on this host under the confiner, a C program in ``confiner/``. Under the confiner, these
programs have root's rights only over the image (docs/users/security.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path, PurePosixPath

from quickstart.host import relay
from quickstart.store.compiled import compiled
from quickstart.store.store import Store

# With glibc, the program would be 0.8 MB larger. musl-gcc does not find the kernel's headers, which are beside those of glibc.
COMPILER = "musl-gcc"
FLAGS = (
    *("-std=gnu11", "-Os", "-static", "-s"),
    *("-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu"),
)
_LIMIT_S = 1800
# As in confiner/confiner.h: the image's path for a program of the host, and the status when no program was started.
TARGET = PurePosixPath("/target")
NOT_CONFINED = 125


def confiner(store: Store) -> Path:
    """The path of the confiner, our C program that restricts a program of an image to this image. If the store does not
    have the confiner yet, the function compiles it into the store. Raises MissingToolError when the compiler is not
    installed.
    """
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
    """Run the command ``argv`` of the image ``root`` under the confiner ``program``, and wait for its end.
    The command's output is appended to ``log``.

    With ``network``, the command has the host's network, but no UNIX sockets. Without ``network``, the command has no
    network, and does not get the host's proxy settings, which may contain a password. With ``host_tools``, the command
    runs a program of the host. This program sees the image at the path `TARGET`. In this case, ``root`` must have a
    directory ``dev``. Raises CommandError when the command fails or runs out of time.
    """
    options = (*(("--network",) if network else ()), *(("--host-tools",) if host_tools else ()))
    words = [program, *options, root, *argv]
    relay.logged(words, timeout_s=_LIMIT_S, log=log, env=env, proxies=network)
