"""Find the package archives for an image. The archives come from the host's apt configuration. If this configuration
has no usable archive, debootstrap's default archive is used.
"""

from __future__ import annotations

import http.client
import shlex
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from quickstart.host import door

_PROBE_S = 30
_FORMAT = "$(REPO_URI) $(CODENAME) $(COMPONENT)"


@dataclass(frozen=True)
class Sources:
    """Package archives. ``mirror`` is the archive's URI for debootstrap, or empty for debootstrap's default.
    ``lines`` are the lines of the image's sources.list(5).

    ``proxy`` is the proxy in the host's apt configuration, or empty. The proxy is used while the image is made, and is
    not written into the image.
    """

    mirror: str
    lines: tuple[str, ...]
    proxy: str = ""

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment for debootstrap and apt."""
        return {"http_proxy": self.proxy} if self.proxy else {}


def host_sources(suite: str) -> Sources:
    """The archives that the host's apt uses for ``suite``, and for the suites SUITE-updates and SUITE-security.

    When the host's apt is not configured for ``suite``, the function finds out which of the archives in apt's
    configuration offer ``suite``. In this case, the result has the archives that offer ``suite``.
    """
    shown = door.run(
        ["apt-get", "indextargets", "--format", _FORMAT, "Created-By: Packages"], timeout_s=60, check=False
    )
    targets = shown.stdout.decode(errors="replace")
    shown = door.run(["apt-config", "shell", "PROXY", "Acquire::http::Proxy"], timeout_s=60, check=False)
    proxy = parse_proxy(shown.stdout.decode(errors="replace"))
    sources = parse_targets(targets, suite)
    if not sources.mirror:
        beside = side_by_side(targets, suite, lambda uri, codename: _carries(uri, codename, proxy))
        sources = parse_targets(beside, suite)
    return replace(sources, proxy=proxy)


def _carries(uri: str, codename: str, proxy: str) -> bool:
    """Whether the archive at ``uri`` has the suite ``codename``, that is, whether its Release file exists
    (DebianRepository/Format).
    """
    handlers = [urllib.request.ProxyHandler({"http": proxy})] if proxy else []
    request = urllib.request.Request(f"{uri.rstrip('/')}/dists/{codename}/Release", method="HEAD")  # noqa: S310 - http only
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=_PROBE_S) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def side_by_side(text: str, suite: str, carries: Callable[[str, str], bool]) -> str:
    """The lines that apt-get indextargets would print if the host's archives were configured for ``suite``.
    ``text`` has the lines that apt-get indextargets has printed on this host.

    ``carries`` gets a URI and a codename, and says whether the archive at this URI has the suite with this
    codename. Archives without the suite are left out.
    """
    rows = {tuple(line.split()) for line in text.splitlines()}
    wanted = {
        (row[0], f"{suite}{ending}")
        for row in rows
        if len(row) == 3 and row[2] == "main" and _plain(row[0])
        for ending in ("", "-updates", "-security")
        if row[1].endswith(ending)
        and (ending or not row[1].endswith(("-updates", "-security", "-backports")))
    }
    return "".join(f"{uri} {codename} main\n" for uri, codename in sorted(wanted) if carries(uri, codename))


def parse_proxy(text: str) -> str:
    """The proxy in the output of `apt-config shell` (PROXY='…'). The result is empty when no proxy is configured, or
    when the configuration says DIRECT.
    """
    for word in shlex.split(text):
        name, _, value = word.partition("=")
        if name == "PROXY" and value != "DIRECT":
            return value
    return ""


def _plain(uri: str) -> bool:
    return uri.startswith("http://") and "@" not in uri


def parse_targets(text: str, suite: str) -> Sources:
    """The package archives in ``text``, the output of apt-get indextargets. Each line has a URI, a codename
    and a component.

    Only archives with plain http are used, because a minimal Debian can fetch packages only by plain http. For https,
    the image would need certificates, and for methods such as mirror+file, it would need files of the host. A URI with
    a password is not used, because the password would stay in the image.
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
