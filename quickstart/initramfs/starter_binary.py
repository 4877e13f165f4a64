"""The starter (docs/starter.md): compiled once for each source text and compiler."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from quickstart.host import door
from quickstart.store import Store

_CFLAGS = (
    "-std=c11",
    "-Os",
    "-static",
    "-s",
    "-ffunction-sections",
    "-Wl,--gc-sections",
    "-Wall",
    "-Wextra",
    "-Werror",
)


def starter_binary(store: Store) -> Path:
    """The starter as a static program."""
    folder = resources.files("quickstart.initramfs").joinpath("starter")
    sources = {each.name: each.read_bytes() for each in folder.iterdir() if each.name.endswith((".c", ".h"))}
    compiler = door.run(["cc", "--version"], timeout_s=30).stdout.decode(errors="replace").splitlines()[0]

    def make(target: Path) -> None:
        for name, text in sources.items():
            (target / name).write_bytes(text)
        units = sorted(target / name for name in sources if name.endswith(".c"))
        door.run(["cc", *_CFLAGS, "-o", target / "starter", *units], timeout_s=120)

    texts = {name: text.decode() for name, text in sources.items()}
    inputs = {"sources": texts, "compiler": compiler, "flags": list(_CFLAGS)}
    return store.get_or_make("starter", inputs, make).path / "starter"
