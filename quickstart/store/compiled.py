"""Compile our own C programs, once for each combination of source text, compiler and flags."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from quickstart.host import door
from quickstart.host.files import remove_tree
from quickstart.store.store import Store

# For every C program of ours, the tests' too. The tests add -Werror; here a newer compiler's warning must not stop a build.
WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-Wconversion")


def compiled(
    store: Store, name: str, flags: tuple[str, ...], *folders: Traversable, compiler: str = "cc"
) -> Path:
    """The path of the program ``name``, which is compiled from all C files in ``folders`` unless the store already
    has it. The store keeps the program in the stage ``name``.

    The compiler gets the options WARNINGS for every program, and after them ``flags``. Every program can include
    store/protocol/protocol.h. The compiler's temporary files are in the unfinished entry of the store, where no other
    user may write. Raises MissingToolError when the compiler is not installed, and CommandError when the compiler
    reports an error.
    """
    sources = {
        each.name: each.read_bytes()
        for folder in (resources.files("quickstart.store").joinpath("protocol"), *folders)
        for each in folder.iterdir()
        if each.name.endswith((".c", ".h"))
    }
    version = door.run([compiler, "--version"], timeout_s=30).stdout.decode(errors="replace").splitlines()[0]

    def make(target: Path) -> None:
        for each, text in sources.items():
            (target / each).write_bytes(text)
        units = sorted(target / each for each in sources if each.endswith(".c"))
        (between := target / "tmp").mkdir(mode=0o700)
        argv: list[str | Path] = [compiler, *WARNINGS, *flags, "-o", target / name, *units]
        door.run(argv, timeout_s=120, env={"TMPDIR": str(between)})
        remove_tree(between)

    texts = {each: text.decode() for each, text in sources.items()}
    inputs = {"sources": texts, "compiler": [compiler, version], "flags": [*WARNINGS, *flags]}
    return store.get_or_make(name, inputs, make).path / name
