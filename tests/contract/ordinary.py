"""Runs a command as an ordinary user with subordinate ids; this host need not have such a user.

The command gets a mount namespace with an /etc/passwd of its own, and nothing of the host is changed. When an
ordinary user runs the tests, who is then root of a user namespace (tests/conftest.py), there is no other user
to become. The command then runs as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

UID = 4242
FIRST_ID = 300_000
NAME = "builder"
_ADDED = {
    "passwd": f"{NAME}:x:{UID}:{UID}::{{home}}:/bin/sh\n",
    "group": f"{NAME}:x:{UID}:\n",
    "subuid": f"{NAME}:{FIRST_ID}:65536\n",
    "subgid": f"{NAME}:{FIRST_ID}:65536\n",
}
_CHECKOUT = Path(__file__).parents[2]
# Binds each file of the directory $1 over its namesake in /etc and goes on as the user $2, without any right of root's. The
# checkout $4 may lie where only root gets ($3, else empty): the user finds it in an empty directory there.
_ENTER = """\
files=$1 uid=$2 closed=$3 checkout=$4
shift 4
if [ -n "$closed" ]; then
	held=$(mktemp -d) && mount --bind "$checkout" "$held" && here=$(pwd) &&
		mount -t tmpfs -o mode=0755 closed "$closed" && mkdir -p "$checkout" && mount --bind "$held" "$checkout" &&
		umount "$held" && rmdir "$held" && cd "$here" || exit
fi
for file in "$files"/*; do mount --bind "$file" "/etc/${file##*/}" || exit; done
exec setpriv --reuid "$uid" --regid "$uid" --clear-groups --inh-caps -all -- "$@"
"""


def is_host_root() -> bool:
    """Whether this is the host's root, not that of a user namespace."""
    whole = Path("/proc/self/uid_map").read_text().split() == ["0", "0", str(2**32 - 1)]
    return os.geteuid() == 0 and whole


@dataclass(frozen=True)
class User:
    """``home`` is the user's own; ``prefix`` is the beginning of an argv that runs as the user."""

    home: Path
    prefix: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(
        self,
        *words: str | Path,
        timeout_s: float = 60,
        more: Mapping[str, str] | None = None,
        stdin: IO[bytes] | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """The end of a command that began in ``home``, with ``more`` in its environment."""
        return subprocess.run(
            [*self.prefix, *(str(word) for word in words)],
            stdin=stdin or subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            cwd=self.home,
            env={**self.environment, **(more or {})},
            check=False,
        )


def _closed() -> str:
    """The first directory on the way to the checkout that an ordinary user cannot enter; empty when he can enter all."""
    for directory in reversed(_CHECKOUT.parents):
        if not directory.stat().st_mode & 0o001:
            return str(directory)
    return ""


@contextmanager
def ordinary_user(place: Path, *, ids: bool = True) -> Iterator[User]:
    """A user whose home is made in ``place``, which everybody may enter; without ``ids`` one who has no subordinate ones.

    What the user made there is removed afterwards, whoever of his ids it belongs to.
    """
    home = place / "home"
    home.mkdir()
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(home), "TERM": "dumb"}
    proxies = {name: value for name, value in os.environ.items() if name.endswith("_proxy")}
    try:
        if not is_host_root():
            yield User(home, (), {**environment, **proxies})
            return
        os.chown(home, UID, UID)
        (files := place / "etc").mkdir()
        for name, line in _ADDED.items():
            # Debian's passwd package makes all four.
            before = Path("/etc", name).read_text()
            wanted = ids or name in ("passwd", "group")
            (files / name).write_text(before + (line.format(home=home) if wanted else ""))
        enter = (
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            _ENTER,
            "sh",
            str(files),
            str(UID),
            _closed(),
            str(_CHECKOUT),
        )
        yield User(home, enter, {**environment, **proxies})
    finally:
        shutil.rmtree(home)
