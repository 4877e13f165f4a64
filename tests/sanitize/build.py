"""Our C programs and their fuzz targets under AddressSanitizer and UndefinedBehaviorSanitizer: gcc's, or clang's for libFuzzer."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.cprograms import OURS, PARTS, PROGRAMS, PROTOCOL

HERE = Path(__file__).parent
VOLUME, AGENT = OURS / "volume/emulator", OURS / "launch/agent"
STARTER, WALK = PARTS / "starter", PARTS / "walk"
FREESTANDING = PARTS / "freestanding"

# What a program says when one of them finds a fault.
COMPLAINTS = ("Sanitizer", "runtime error")

_FLAGS = ("-g", "-O1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", "-Wno-format-truncation")
_LIMIT_S = 300
_OPTIONS = HERE / "options.c"
# What the hosted build has instead of freestanding/system.c.
_SHIM = HERE / "hosted.c"
_HELD = tuple(f"-D{name}=held_{name}" for name in ("malloc", "calloc", "realloc", "free", "vasprintf"))


@dataclass(frozen=True)
class Target:
    """A fuzz target: its own file, and what of ours is compiled with it; ``renamed`` programs lose the name of their main."""

    name: str
    sources: tuple[Path, ...]
    include: tuple[Path, ...]
    flags: tuple[str, ...] = ()
    renamed: tuple[str, ...] = ()

    @property
    def driver(self) -> Path:
        return HERE / f"fuzz_{self.name}.c"


def _all_but(folder: Path, *names: str) -> tuple[Path, ...]:
    return tuple(path for path in sorted(folder.glob("*.c")) if path.name not in names)


TARGETS = (
    Target("volume", _all_but(VOLUME, "volume.c"), (VOLUME,)),
    Target("agent", _all_but(AGENT, "agent.c", "probe.c"), (AGENT,)),
    Target(
        "unit",
        (*(STARTER / name for name in ("bus.c", "environment.c", "text.c", "words.c")), *_all_but(WALK)),
        (STARTER, WALK),
        ("-Dstatic_assert=_Static_assert", *_HELD),
    ),
    Target(
        "parts",
        (FREESTANDING / "text.c",),
        (FREESTANDING,),
        renamed=("checker", "modloader", "mounter", "prefetcher"),
    ),
)


def program(name: str, directory: Path) -> Path:
    """The program ``name`` of ours with gcc's sanitizers; one without a C library has one here (hosted.c)."""
    wanted = PROGRAMS[name]
    sources = (*wanted.sources, _OPTIONS)
    if FREESTANDING in wanted.folders:
        sources = (*(each for each in sources if each != FREESTANDING / "system.c"), _SHIM)
    target = directory / name
    _compile(_compiler("gcc"), ("-fsanitize=address,undefined",), sources, wanted.folders, target)
    return target


def trapping(name: str, directory: Path) -> Path:
    """The program ``name``, one without a C library, as it is but for undefined behaviour, which ends it by SIGILL (gcc)."""
    flags = ("-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-fsanitize=undefined")
    wanted = PROGRAMS[name]
    target = directory / f"{name}-trapping"
    words = (*flags, "-fsanitize-undefined-trap-on-error")
    _compile(_compiler("gcc"), words, wanted.sources, wanted.folders, target)
    return target


def replayer(target: Target, directory: Path) -> Path:
    """The fuzz target with replay.c, by gcc."""
    compiler, sanitizers = _compiler("gcc"), "-fsanitize=address,undefined"
    # Apart: a target's flags may be about the memory of the program under test.
    replay = directory / "replay.o"
    _compile(compiler, (sanitizers, "-c"), (HERE / "replay.c",), (HERE,), replay)
    return _target(compiler, sanitizers, target, (replay,), directory)


def fuzzer(target: Target, directory: Path) -> Path:
    """The fuzz target with libFuzzer, by clang."""
    return _target(_compiler("clang"), "-fsanitize=fuzzer,address,undefined", target, (), directory)


def _target(compiler: str, sanitizers: str, target: Target, more: tuple[Path, ...], directory: Path) -> Path:
    include = (HERE, *target.include)
    objects = []
    for name in target.renamed:
        for source in _all_but(PARTS / name):
            made = directory / f"{name}-{source.stem}.o"
            # Each program's own names stay its own: they are joined, and only its main is left.
            words = (sanitizers, f"-Dmain={name}_main", "-c")
            _compile(compiler, words, (source,), (PARTS / name, *include), made)
            objects.append(made)
    joined = [_joined(name, objects, directory) for name in target.renamed]
    found = directory / f"fuzz-{target.name}"
    sources = (target.driver, _OPTIONS, *more, *target.sources, *joined)
    _compile(compiler, (sanitizers, *target.flags), sources, include, found)
    return found


def _joined(name: str, objects: list[Path], directory: Path) -> Path:
    made = directory / f"{name}.joined.o"
    mine = [each for each in objects if each.name.startswith(f"{name}-")]
    subprocess.run(["ld", "-r", "-o", made, *mine], check=True, timeout=_LIMIT_S)
    subprocess.run(["objcopy", f"--keep-global-symbol={name}_main", made], check=True, timeout=_LIMIT_S)
    return made


def _compiler(name: str) -> str:
    packages = {"gcc": "gcc libc6-dev", "clang": "clang libclang-rt-14-dev"}[name]
    found = shutil.which(name)
    assert found is not None, f"no {name}: apt-get install {packages}"
    return found


def _compile(
    compiler: str, words: tuple[str, ...], sources: tuple[Path, ...], include: tuple[Path, ...], target: Path
) -> None:
    # Warnings are for test_c_warnings.py: instrumented code hides from gcc which values a variable may have.
    command: list[str | Path] = [compiler, "-std=gnu11", *_FLAGS, *words, "-o", target]
    command += [word for folder in (PROTOCOL, *include) for word in ("-I", folder)]
    done = subprocess.run([*command, *sources], capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
