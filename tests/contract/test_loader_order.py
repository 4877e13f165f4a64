"""The real loader gives each program the library that it has in a stock boot (ld.so(8), LD_LIBRARY_PATH and DT_RUNPATH)."""

from __future__ import annotations

import shutil
import stat
import subprocess
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from quickstart.host.namespaces import own_namespaces
from quickstart.initramfs.layout import library_path, part_b
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.model import UnitCommand
from quickstart.model import FileKind, Op, StartSet
from quickstart.pack.leave import leave
from quickstart.pack.shadow import executed, searched, without_shadowing
from quickstart.pack.startset import compute
from tests.unit.elfbuilder import LD_SO, MULTIARCH
from tests.unit.imagebuilder import RULES, Image, trace
from tests.unit.layouts import CONFIG
from tests.unit.test_leave import UNIT

TOOL, NAME = "/usr/bin/tool", "libq.so.3"
SECONDS = 60
LIBRARY = 'const char *from(void) { return "%s"; }'
PROGRAM = "#include <stdio.h>\nconst char *from(void);\nint main(void) { return puts(from()) < 0; }"


def compiled(target: Path, text: str, *words: str | Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    argv = ["cc", "-x", "c", "-o", target, "-", "-x", "none", *words]
    subprocess.run(argv, input=text.encode(), check=True, timeout=SECONDS)
    target.chmod(0o755)


def with_programs(base: Path, place: str) -> Image:
    """An image with the host's loader and libc, a tool of the system, and a server in ``place`` that has a library
    of its own.
    """
    image = Image(base)
    for name in ("bin", "lib", "lib64"):
        image.link(name, f"usr/{name}")
    for host in (LD_SO, "/lib/x86_64-linux-gnu/libc.so.6"):
        canonical = base / MULTIARCH[1:] / Path(host).name
        canonical.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(host, canonical)
    image.link(f"/usr/lib64/{Path(LD_SO).name}", f"..{MULTIARCH[4:]}/{Path(LD_SO).name}")
    for where, said in ((MULTIARCH, "system"), (f"{place}/lib", "own")):
        compiled(base / where[1:] / NAME, LIBRARY % said, "-shared", "-fPIC", f"-Wl,-soname,{NAME}")
    compiled(base / TOOL[1:], PROGRAM, base / MULTIARCH[1:] / NAME)
    own = "-Wl,--enable-new-dtags,-rpath,$ORIGIN/../lib"
    compiled(base / f"{place}/bin/server"[1:], PROGRAM, base / f"{place}/lib"[1:] / NAME, own)
    return image


def unpacked(found: StartSet, root: ImageRoot) -> None:
    for entry in part_b(CONFIG, found, root):
        path = root.base / entry.name
        if stat.S_ISDIR(entry.mode):
            path.mkdir(exist_ok=True)
        elif stat.S_ISLNK(entry.mode):
            assert isinstance(entry.data, bytes)
            path.symlink_to(entry.data.decode())
        else:
            path.write_bytes(entry.data if isinstance(entry.data, bytes) else entry.data.read_bytes())
            path.chmod(stat.S_IMODE(entry.mode))


def said(base: Path, program: str, libraries: str = "") -> str:
    """What the program says that is executed in the image."""
    (base / "proc").mkdir(exist_ok=True)
    # The loader asks /proc/self/exe for $ORIGIN.
    script = 'mount -t proc proc "$1/proc" && LD_LIBRARY_PATH=$2 exec chroot "$1" "$3"'
    argv = [*own_namespaces(), "sh", "-c", script, "sh", str(base), libraries, program]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return str(done.stdout).strip()


@pytest.mark.parametrize("place", ["/opt/app", "/usr/lib/zapp", "/usr/lib/app"])
@pytest.mark.parametrize("more", ["", "/opt/app/conf/x"])
def test_each_program_gets_its_own_library(tmp_path: Path, place: str, more: str) -> None:
    tmp_path.chmod(0o755)
    server = f"{place}/bin/server"
    image = with_programs(tmp_path, place)
    used = [more] if more else []
    if more:
        # The server stays on the volume, with its library.
        image.file(more)
    root = ImageRoot(tmp_path)
    libraries = [(Op.MAP, f"{MULTIARCH}/{NAME}"), (Op.MAP, f"{place}/lib/{NAME}")]
    traces = [trace((Op.EXEC, TOOL), (Op.EXEC, server), *libraries, *used)]
    unit = replace(UNIT, start_pre=(UnitCommand(TOOL, ("tool",)),), start=UnitCommand(server, ("server",)))
    found = leave(compute(traces, root, RULES), traces, root, unit, overlay=False)
    found = without_shadowing(found, root, searched(found, executed(traces, root), root))
    unpacked(found, root)
    kinds = {file.path: file.kind for file in found.files}
    for program, expected in ((TOOL, "system"), (server, "own")):
        is_packed = kinds[PurePosixPath(program)] is FileKind.FILE
        assert said(tmp_path, program) == expected
        # As the starter starts it, and by its ordinary path, as any process may.
        assert said(tmp_path, f"/fast{program}" if is_packed else program, library_path(found)) == expected
        assert said(tmp_path, program, library_path(found)) == expected
