"""The digest of our own source code, by which the store tells results of different versions apart."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable


def source_digest(*packages: str) -> str:
    """The SHA-256 of the source files of our ``packages``, which are dotted names of packages or modules.

    The digest is an input of stages, so that a changed QuickStart never uses results of an earlier version.
    """
    digest = hashlib.sha256()
    for name in packages:
        parent, _, last = name.rpartition(".")
        module = resources.files(parent).joinpath(f"{last}.py") if parent else None
        roots = [module] if module is not None and module.is_file() else [resources.files(name)]
        for path, file in sorted(_walk(roots[0], name)):
            digest.update(path.encode() + b"\0" + hashlib.sha256(file).digest())
    return digest.hexdigest()


def _walk(node: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    if node.is_file():
        yield name, node.read_bytes()
        return
    for child in node.iterdir():
        if child.name != "__pycache__":
            yield from _walk(child, f"{name}/{child.name}")
