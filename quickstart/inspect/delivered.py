"""Find out whether files of an image still have the content that their packages delivered (deb-md5sums(5))."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from quickstart.inspect.dpkg import owners
from quickstart.inspect.imageroot import MAX_TABLE_BYTES, ImageRoot

_INFO = PurePosixPath("/var/lib/dpkg/info")


def changed(root: ImageRoot, paths: Iterable[PurePosixPath]) -> frozenset[PurePosixPath]:
    """The paths in ``paths`` whose files do not have the content that a package delivered. All paths are canonical
    paths in the image. A path is in the result in these three cases.

    - No package has the file.
    - The package's list of MD5 sums does not name the file.
    - The sum in the package's list differs from the sum of the file's content.

    A package's configuration files count as changed, because the package's list does not name them.
    """
    wanted = frozenset(paths)
    by_list: defaultdict[PurePosixPath, set[PurePosixPath]] = defaultdict(set)
    for path, owner in owners(root, wanted).items():
        names = (f"{owner.package}.md5sums", f"{owner.package}:{owner.architecture}.md5sums")
        for name in names:
            if (found := root.resolve(_INFO / name).canonical) is not None:
                by_list[found].add(path)
    unchanged = {path for listed, paths in by_list.items() for path in _as_listed(root, listed, paths)}
    return wanted - unchanged


def _as_listed(
    root: ImageRoot, listed: PurePosixPath, paths: Iterable[PurePosixPath]
) -> Iterable[PurePosixPath]:
    digests: Mapping[str, str] = {
        name.strip(): digest
        for digest, _, name in (
            line.partition("  ") for line in root.read_text(listed, MAX_TABLE_BYTES).splitlines()
        )
    }
    for path in paths:
        # A package's list may spell a file by a link of the merged /usr (lib for usr/lib).
        spelled = {str(path)[1:], str(path)[1:].removeprefix("usr/")}
        content = hashlib.md5(root.read_bytes(path), usedforsecurity=False).hexdigest()
        if any(digests.get(name) == content for name in spelled):
            yield path
