"""Any Debian service, traced to its own readiness: its start set is complete, every file has a reason, and
its libraries are those of ldd.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from quickstart.host.progress import Quiet
from quickstart.inspect.elf import closure
from quickstart.inspect.elf_file import read_elf
from quickstart.inspect.imageroot import ImageRoot
from quickstart.profile import load_profile
from quickstart.reference.debootstrap import make_reference
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root
from tests.vm.conftest import BUILD_S, quickstart
from tests.vm.turns import in_turn

SERVICES = Path(__file__).parent.parent / "services"
# Each with a program that has to be among what it has mapped, so that an empty answer is no success.
PROGRAMS = {
    "nginx": "/usr/sbin/nginx",
    "apache2": "/usr/sbin/apache2",
    "mariadb": "/usr/sbin/mariadbd",
    "ssh": "/usr/sbin/sshd",
    "cron": "/usr/sbin/cron",
}
# One is traced twice, so that traces are merged.
TRACES = {"cron": 2}
LIBRARY = re.compile(r"^\t(?:\S+ => )?(/\S+) \(0x", re.MULTILINE)


@dataclass(frozen=True)
class Service:
    """A traced service: what `trace --json` said, its start-set.json, and its image."""

    name: str
    directory: Path
    said: dict[str, Any]
    start_set: dict[str, Any]
    root: ImageRoot

    def files(self) -> Iterator[PurePosixPath]:
        return (PurePosixPath(file["path"]) for file in self.start_set["files"] if file["kind"] == "file")


def profile_of(name: str) -> str:
    return str(SERVICES / name) if (SERVICES / name).is_dir() else name


# The image and the trace of nginx are those of other tests.
@pytest.fixture(
    scope="module",
    params=in_turn(PROGRAMS, [name for name in PROGRAMS if name != "nginx"], always=["nginx"]),
)
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Service:
    name: str = request.param
    out = tmp_path_factory.mktemp("traced") / name
    called = quickstart(
        *("trace", "--profile", profile_of(name), "-o", out, "--json"),
        *("--traces", str(TRACES.get(name, 1))),
        timeout_s=BUILD_S,
    )
    assert called.status == 0, called.err
    start_set = json.loads((out / "start-set.json").read_text())
    reference = make_reference(load_profile(profile_of(name)), Context(Store(default_root()), Quiet()))
    return Service(name, out, called.result, start_set, ImageRoot(reference.tree))


def test_what_is_mapped_at_ready_is_in_the_set_or_kept_out_by_a_rule(service: Service) -> None:
    traces = service.said["traces"]
    assert len(traces) == TRACES.get(service.name, 1)
    names = {PurePosixPath(path) for trace in traces for path in trace["mapped"]}
    canonical = {service.root.resolve(path).canonical for path in names}
    mapped = {str(path) for path in canonical if path is not None}
    assert PROGRAMS[service.name] in mapped
    rules = {each["path"]: each["rule"] for each in service.start_set["excluded"]}
    assert mapped - {str(path) for path in service.files()} - set(rules) == set()
    assert all(rules.values())


def test_every_file_is_explained(service: Service) -> None:
    unexplained = [file["path"] for file in service.start_set["files"] if not file["reasons"]]
    assert unexplained == []
    (program,) = [f for f in service.start_set["files"] if f["path"] == PROGRAMS[service.name]]
    assert program["seen_in"] == service.start_set["traces"] == TRACES.get(service.name, 1)
    called = quickstart("why", service.directory, PROGRAMS[service.name])
    assert (called.status, "trace: exec by" in called.out) == (0, True), called.err


def by_ldd(root: ImageRoot, path: PurePosixPath) -> set[PurePosixPath]:
    """What the image's own ldd(1) says, in the image."""
    done = subprocess.run(
        ["chroot", str(root.base), "/usr/bin/ldd", str(path)],
        env={"PATH": "/usr/sbin:/usr/bin:/bin", "LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "not found" not in done.stdout, done.stdout
    found = {root.resolve(PurePosixPath(name)).canonical for name in LIBRARY.findall(done.stdout)}
    return {each for each in found if each is not None}


def by_us(root: ImageRoot, path: PurePosixPath) -> set[PurePosixPath]:
    """The same without what a dlopen note adds and without variants for other CPUs, which ldd does not list."""
    mapped = {path}
    for found in closure(root, [path]):
        if found.kind != "dlopen" and found.needed_by in mapped and "glibc-hwcaps" not in found.path.parts:
            mapped.add(found.path)
    return mapped - {path}


def test_the_libraries_of_every_elf_file_are_those_of_ldd(service: Service) -> None:
    elf = {path: facts for path in service.files() if (facts := read_elf(service.root.host(path)))}
    assert len(elf) > 3
    different = {}
    for path, facts in elf.items():
        # ldd of the interpreter says that it is one; a library's is named even if nothing needs it by itself.
        loader = {each for each in by_ldd(service.root, path) if each.name.startswith("ld-linux")}
        theirs = by_ldd(service.root, path) - (set() if facts.interpreter else loader)
        ours = by_us(service.root, path) - (set() if facts.interpreter else loader)
        if ours != theirs:
            different[str(path)] = sorted(map(str, ours ^ theirs))
    assert different == {}
