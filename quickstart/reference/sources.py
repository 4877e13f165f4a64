"""Where packages come from: the host's own apt configuration, else debootstrap's default."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace

from quickstart.host import door

_FORMAT = "$(REPO_URI) $(CODENAME) $(COMPONENT)"


@dataclass(frozen=True)
class Sources:
    """``mirror`` is empty where debootstrap's default serves; ``lines`` are sources.list(5) lines for the image.

    ``proxy`` is the host's apt proxy, or empty; it serves while the image is made and does not go into it.
    """

    mirror: str
    lines: tuple[str, ...]
    proxy: str = ""

    @property
    def environment(self) -> Mapping[str, str]:
        """For debootstrap and apt."""
        return {"http_proxy": self.proxy} if self.proxy else {}


def host_sources(suite: str) -> Sources:
    """The archive that the host's apt uses for ``suite``, its -updates and -security, as far as it knows them."""
    shown = door.run(
        ["apt-get", "indextargets", "--format", _FORMAT, "Created-By: Packages"], timeout_s=60, check=False
    )
    sources = parse_targets(shown.stdout.decode(errors="replace"), suite)
    shown = door.run(["apt-config", "shell", "PROXY", "Acquire::http::Proxy"], timeout_s=60, check=False)
    return replace(sources, proxy=parse_proxy(shown.stdout.decode(errors="replace")))


def parse_proxy(text: str) -> str:
    """The proxy in the output of apt-config shell (PROXY='…'); empty for none and for DIRECT."""
    for word in shlex.split(text):
        name, _, value = word.partition("=")
        if name == "PROXY" and value != "DIRECT":
            return value
    return ""


def _plain(uri: str) -> bool:
    return uri.startswith("http://") and "@" not in uri


def parse_targets(text: str, suite: str) -> Sources:
    """Sources from the output of apt-get indextargets: lines of URI, codename, component.

    Only what a minimal Debian can fetch from counts: plain http (https wants certificates, mirror+file and the
    like the host's own files), and no URI with a password, which would stay in the image.
    """
    wanted = (suite, f"{suite}-updates", f"{suite}-security")
    rows = [line.split() for line in text.splitlines()]
    found = {
        (row[1], row[0])
        for row in rows
        if len(row) == 3 and row[1] in wanted and row[2] == "main" and _plain(row[0])
    }
    mirrors = sorted(uri for codename, uri in found if codename == suite)
    if not mirrors:
        return Sources("", ())
    order = sorted(found, key=lambda pair: (wanted.index(pair[0]), pair[1]))
    return Sources(mirrors[0], tuple(f"deb {uri} {codename} main" for codename, uri in order))
