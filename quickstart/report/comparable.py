"""Decide whether two results of a bench may be compared, and which cells of the two results correspond. The page
docs/users/compare.md describes the rules. This module has no side effects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from quickstart.errors import IncomparableError
from quickstart.measure.results import Booted, Cell, Results, words_of

_ACROSS = "measure the reference again with what is used now, or --across-versions"
# What is tested, and so may differ: the source, and the form of the initramfs that a profile has chosen.
_OURS = ("quickstart", "payload")
_MACHINE = "machine "
_NOT_RECORDED = "not recorded"


def plain(cell: Cell) -> Cell:
    """A copy of ``cell`` that has its profile's name. A cell may have the path of the profile's directory instead,
    which may differ on another host.
    """
    return replace(cell, profile=profile_name(cell.profile))


def profile_name(word: str) -> str:
    path = PurePosixPath(word)
    return path.parent.name if path.name == "profile.toml" else path.name


def paired(first: Results, second: Results) -> tuple[tuple[Cell, Cell], ...]:
    """The pairs of corresponding cells, as (cell of ``first``, cell of ``second``), in the order of
    ``first``.

    The function `demand_comparable` must have accepted the two results before.
    """
    others = {plain(each.cell): each.cell for each in second.plan}
    return tuple((each.cell, others[plain(each.cell)]) for each in first.plan)


def demand_comparable(first: Results, second: Results, *, across_versions: bool = False) -> tuple[str, ...]:
    """Raise IncomparableError when the two results cannot be compared. The error lists all reasons. Otherwise, return
    notes about the two results, which the comparison shows to its reader.

    With ``across_versions``, different versions of QEMU, guest kernel and packages do not prevent a comparison. This
    function then returns the different versions as notes.
    """
    obstacles = [*_other_cells(first, second), *_other_ways(first, second)]
    versions = list(_other_versions(first, second))
    if obstacles or (versions and not across_versions):
        only_versions = not obstacles
        raise IncomparableError(
            [*obstacles, *([] if across_versions else versions)], hint=_ACROSS if only_versions else None
        )
    return (*versions, *_notes(first, second))


def _other_cells(first: Results, second: Results) -> Iterator[str]:
    names: list[dict[Cell, Cell]] = []
    for word, results in (("A", first), ("B", second)):
        found: dict[Cell, Cell] = {}
        for planned in results.plan:
            cell = plain(planned.cell)
            if found.setdefault(cell, planned.cell) != planned.cell:
                yield f"cells: {word} has {words_of(cell)} of two profiles, {found[cell].profile} and {planned.cell.profile}"
        names.append(found)
    here, there = names
    yield from (f"cells: {words_of(cell)} is only in A" for cell in here if cell not in there)
    yield from (f"cells: {words_of(cell)} is only in B" for cell in there if cell not in here)


def _other_ways(first: Results, second: Results) -> Iterator[str]:
    """The differences in how the two results were measured. Because of such a difference, the numbers of the two
    results are not comparable.
    """
    before, after = first.circumstances, second.circumstances
    if before.poll_interval_ms != after.poll_interval_ms:
        yield f"poll interval: {before.poll_interval_ms} ms in A, {after.poll_interval_ms} ms in B"
    yield from _differing("", before.versions, after.versions, ("fetch",))
    machines = [key for key in before.versions if key.startswith(_MACHINE) and key in after.versions]
    yield from _differing("", before.versions, after.versions, machines)
    if any(planned.cell.clock != "virtual" for planned in first.plan):
        yield from _differing("host's ", before.host, after.host, {**before.host, **after.host})


def _other_versions(first: Results, second: Results) -> Iterator[str]:
    before, after = first.circumstances, second.circumstances
    old, new = _by_name(before.versions), _by_name(after.versions)
    # If both results name the machine, `_other_ways` compares it, and not this function. Older results do not name
    # the machine.
    elsewhere = {"fetch", *(key for key in old.keys() & new.keys() if key.startswith(_MACHINE))}
    known = [key for key in {**old, **new} if not _is_ours(key) and key not in elsewhere]
    yield from _differing("", old, new, known)
    yield from _other_packages(first, second)


def _is_ours(key: str) -> bool:
    return key.partition(" ")[0] in _OURS


def _by_name(versions: Mapping[str, str]) -> dict[str, str]:
    """``versions`` with changed keys, so that two results have the same key for the same program. The key of a kernel
    gets the profile's name in place of the profile's path. The compressors get the separate key ``compressors``.
    """
    found = {}
    for key, value in versions.items():
        word, _, name = key.partition(" ")
        if key == "payload":
            # Older results have a text such as "cpio where none is asked for; zlib 1.2.13, lz4 1.9.4".
            found["compressors"] = value.partition("; ")[2]
        else:
            found[f"kernel {profile_name(name)}" if word == "kernel" else key] = value
    return found


def _other_packages(first: Results, second: Results) -> Iterator[str]:
    """The packages whose versions differ between images of the same profile and configuration, without duplicates."""
    before, after = (_packages(each) for each in (first, second))
    found = {
        (name, before[key][name], after[key][name])
        for key in before
        for name in before[key]
        if key in after and name in after[key] and before[key][name] != after[key][name]
    }
    yield from (f"package {name}: {old} in A, {new} in B" for name, old, new in sorted(found))


def _packages(results: Results) -> dict[tuple[str, str], Mapping[str, str]]:
    """The packages of each image with their versions. The keys of the result are (profile, configuration)."""
    facts = results.circumstances.facts
    return {
        (profile_name(cell.profile), cell.configuration): facts.packages.get(found.image, {})
        for cell in (each.cell for each in results.plan)
        if (found := booted(results, cell)) is not None
    }


def booted(results: Results, cell: Cell) -> Booted | None:
    """The facts about the kernel, initramfs and image that ``cell`` boots, from ``results``. The result is None when
    ``results`` does not have these facts.
    """
    words = (cell.profile, cell.firmware, cell.configuration, cell.delivery, cell.payload)
    return results.circumstances.facts.boots.get("/".join(word for word in words if word))


def _notes(first: Results, second: Results) -> Iterator[str]:
    before, after = first.circumstances, second.circumstances
    ours = [key for key in {**before.versions, **after.versions} if _is_ours(key)]
    yield from _differing("", before.versions, after.versions, ours)
    if all(planned.cell.clock == "virtual" for planned in first.plan):
        yield from _differing("host's ", before.host, after.host, sorted({**before.host, **after.host}))
    for word, each in (("A", before), ("B", after)):
        if not each.facts.boots:
            yield f"{word} does not say what was booted (schema 1): no cause can be named"


def _differing(
    what: str, before: Mapping[str, str], after: Mapping[str, str], keys: Iterable[str]
) -> Iterator[str]:
    for key in keys:
        old, new = (each.get(key, _NOT_RECORDED) for each in (before, after))
        if old != new:
            yield f"{what}{key}: {old} in A, {new} in B"
