"""Logs of a guest with more of something than any boot has: refused before there is an object for each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quickstart.errors import TraceError, UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.sysctl import kernel_settings
from quickstart.model import StartSet
from quickstart.model.residency import Resident
from quickstart.pack import prefetch
from quickstart.pack.prefetch import Foreseen, foresee, plan
from quickstart.trace import collect as collecting
from quickstart.trace.collect import collect
from quickstart.trace.load import parse_ldd
from quickstart.trace.resident import parse_resident
from quickstart.trace.started import parse_units
from tests.unit.accounts import LOG as UNITS
from tests.unit.hostile import bounded
from tests.unit.imagebuilder import Image, P, small_image, trace
from tests.unit.test_hostile_trace import unit
from tests.unit.test_unit_sockets import put

MIB = 1 << 20


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return small_image(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "== 1 /a\n" * 513,
        "== 1 /a\n" + "0 0\n" * ((1 << 16) + 1),
        ("== 1 /a\n" + "0 0\n" * (1 << 16)) * 2 + "0 0\n",
        "== 1 /a\n" * MIB,
        "== 1 /a\n" + "0 0\n" * (2 * MIB),
    ],
)
def test_many_parts_and_files_in_the_page_cache(text: str) -> None:
    with bounded(2, 128), pytest.raises(TraceError, match="the log of the page cache is damaged"):
        parse_resident(text + "== end\n")


def test_as_many_as_are_asked_for() -> None:
    assert len(parse_resident("== 1 /a\n" * 512 + "== end\n")) == 512
    assert len(parse_resident("== 1 /a\n" + "0 0\n" * (1 << 16) + "== end\n")[0].parts) == 1 << 16


@pytest.mark.parametrize(
    "text",
    [
        UNITS.replace("basic.target", "u.mount " * (1 << 18)),
        UNITS.replace("basic.target", " ".join(f"u{number}" for number in range(500_000))),
        UNITS.replace("== end\n", "\n\n".join("Id=a" for _ in range(9000)) + "\n== end\n"),
        UNITS.replace("Root=/ ext4\n", "Root=/ ext4\n" * 1025),
        UNITS.replace("DropInPaths=\n", f"DropInPaths={'/a ' * 65}\n"),
    ],
)
def test_many_words_of_units(text: str) -> None:
    with bounded(2, 64), pytest.raises(TraceError, match="the log of the units is damaged"):
        parse_units(text)


def test_as_many_words_as_a_machine_has() -> None:
    text = UNITS.replace("Root=/ ext4\n", "Root=/ ext4\n" * 512)
    found = parse_units(text.replace("DropInPaths=\n", f"DropInPaths={'/a ' * 64}\n"))
    assert (len(found.roots), len(found.units[1].drop_ins)) == (512, 64)


def test_many_lines_of_ldd() -> None:
    assert len(parse_ldd("== /a\n" * (1 << 17) + "== end\n")) == 1
    with bounded(2, 64), pytest.raises(TraceError, match="the log of ldd has more than 131072 lines"):
        parse_ldd("== /a\n" * ((1 << 17) + 1) + "== end\n")


@pytest.mark.parametrize(
    "line",
    [
        b'2 1.0 stat("/%d' + b"/a" * 100 + b'", 0x1) = 0\n',
        b'1 1.0 openat(AT_FDCWD</>, "/%d' + b"/a" * 100 + b'", O_WRONLY|O_CREAT|O_EXCL) = 3</x>\n',
    ],
)
def test_a_long_path_counts_by_its_length(monkeypatch: pytest.MonkeyPatch, line: bytes) -> None:
    monkeypatch.setattr(collecting, "_MOST_BYTES", 20_000)
    collect([*unit(), *(line % number for number in range(9))], "a.service")
    # The same again takes nothing more.
    collect([*unit(), *[line % 1] * 90], "a.service")
    with pytest.raises(TraceError, match="take more than 20000 bytes of memory"):
        collect([*unit(), *(line % number for number in range(30))], "a.service")


def foreseen(image: Image, *said: Resident) -> Foreseen:
    made = replace(trace(*(str(each.path) for each in said)), resident=said)
    return foresee([made], StartSet((), ()), ImageRoot(image.base))


def test_parts_behind_the_end_of_a_file_are_nobodys(image: Image) -> None:
    image.file("/srv/data", bytes(MIB + 1))
    path = P("/srv/data")
    far = ((0, 4096), (MIB, 3 * MIB), (8 * MIB, 4096))
    found = foreseen(image, Resident(path, 9 * MIB, far), Resident(P("/srv/none"), 9, far))
    assert found.parts == {path: Resident(path, MIB + 1, ((0, 4096), (MIB, 4096)))}


def test_the_size_of_a_file_is_that_in_the_image(image: Image) -> None:
    """A guest that says it is small does not have it read whole."""
    image.file("/srv/data", bytes(MIB + 1))
    assert foreseen(image, Resident(P("/srv/data"), 1, ((0, 4096),))).large == {P("/srv/data")}


def test_a_plan_has_few_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "_MOST_PARTS", 10)
    parts = tuple((number * MIB, 4096) for number in range(100))
    none = frozenset[Any]()
    seen = Foreseen(
        names=none,
        directories=none,
        files=none,
        large=none,
        parts={P("/a"): Resident(P("/a"), 100 * MIB, parts)},
        left=none,
        makes=False,
    )
    blocks = cast(Any, SimpleNamespace(runs=(), block_bytes=4096, inode_blocks=lambda names: ()))
    assert [each[1:] for each in plan(seen, blocks).parts] == list(parts[:10])


def test_sysctl_patterns_and_keys_of_many_components(tmp_path: Path) -> None:
    rows = "".join(f"{'a/' * 500}*{number}=1\n{'a/' * 500}b{number}=1\n" for number in range(50))
    put(tmp_path, "/usr/lib/sysctl.d/a.conf", rows)
    with bounded(2), pytest.raises(UnsupportedUnitError, match="50 patterns and 50 keys, too many"):
        kernel_settings(ImageRoot(tmp_path))
    put(tmp_path, "/usr/lib/sysctl.d/a.conf", rows[: len(rows) // 5])
    assert kernel_settings(ImageRoot(tmp_path))
