"""Two results of the bench can be compared: what they must have in common, and what may differ."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from quickstart.errors import IncomparableError
from quickstart.measure.results import Circumstances, Facts, Results, Sample
from quickstart.report.compare import compare
from tests.unit.benchdata import realistic
from tests.unit.comparedata import (
    MS,
    bench,
    changed,
    longer,
    only,
)


def refused(first: Results, second: Results, *, across_versions: bool = False) -> tuple[str, ...]:
    with pytest.raises(IncomparableError) as caught:
        compare(first, second, across_versions=across_versions)
    assert caught.value.exit_code == 2
    return caught.value.obstacles


def with_circumstances(results: Results, **other: object) -> Results:
    circumstances: Circumstances = dataclasses.replace(results.circumstances, **other)  # type: ignore[arg-type]
    return dataclasses.replace(results, circumstances=circumstances)


def test_other_cells_are_refused_and_all_of_them_named() -> None:
    two = realistic(configurations=("standard", "quickstart"))
    other = realistic(configurations=("standard",), sizes=("small", "medium"))
    assert refused(two, other) == (
        "cells: nginx quickstart stock ebs-warm virtual small is only in A",
        "cells: nginx standard stock ebs-warm virtual medium is only in B",
    )
    assert refused(bench(), bench(clock="wall"), across_versions=True)


def test_another_number_of_runs_is_no_obstacle_and_few_are_said() -> None:
    found = compare(bench(runs=3), bench(runs=5))
    assert (found.regression, found.notes) == (False, ())
    (note,) = compare(bench(runs=3), bench(runs=1)).notes
    assert note.startswith("1 cells have fewer than 3 runs")


@pytest.mark.parametrize("path", ["./nginx", "/somewhere/else/nginx", "other/nginx/profile.toml"])
def test_a_profile_goes_by_its_name(path: str) -> None:
    before = bench()

    def moved(sample: Sample) -> Sample:
        return dataclasses.replace(sample, cell=dataclasses.replace(sample.cell, profile=path))

    boots = {key.replace("nginx", path): each for key, each in before.circumstances.facts.boots.items()}
    after = changed(before, longer("kernel", 500 * MS), moved, boots=boots)
    plan = tuple(
        dataclasses.replace(each, cell=dataclasses.replace(each.cell, profile=path)) for each in before.plan
    )
    found = compare(before, dataclasses.replace(after, plan=plan))
    assert found.regression and only(found).cell.profile == "nginx"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"poll_interval_ms": 20}, "poll interval: 10 ms in A, 20 ms in B"),
        ({"versions": {"fetch": "read-ahead"}}, "fetch: boot-loader in A, read-ahead in B"),
        ({"versions": {"machine virtual small": "-M pc"}}, "machine virtual small: -M q35 in A, -M pc in B"),
    ],
)
def test_what_makes_a_number_mean_something_else(other: dict[str, Any], said: str) -> None:
    known = {**bench().circumstances.versions, "fetch": "boot-loader", "machine virtual small": "-M q35"}
    versions = {**known, **other.get("versions", {})}
    first = with_circumstances(bench(), versions=known)
    assert refused(
        first, with_circumstances(first, **{**other, "versions": versions}), across_versions=True
    ) == (said,)


def test_versions_are_refused_and_compared_when_asked() -> None:
    before = bench()
    after = with_circumstances(
        changed(before, packages={"an-image": {"nginx": "1.22.1-9+deb12u1", "libc6": "2.36-9"}}),
        versions={**before.circumstances.versions, "qemu": "9.2.0"},
    )
    after = changed(after, packages={"an-image": {"nginx": "1.22.1-9+deb12u1", "libc6": "2.36-9"}})
    said = ("qemu: 7.2.0 in A, 9.2.0 in B", "package nginx: 1.22.1-9 in A, 1.22.1-9+deb12u1 in B")
    assert refused(before, after) == said
    assert compare(before, after, across_versions=True).notes[:2] == said


def test_another_form_of_the_initramfs_is_ours_and_another_compressor_is_not() -> None:
    known = bench().circumstances.versions
    before = with_circumstances(
        bench(),
        versions={**known, "payload nginx": "cpio where none is asked for", "compressors": "lz4 1.9.4"},
    )
    after = with_circumstances(
        bench(),
        versions={**known, "payload nginx": "lz4 where none is asked for", "compressors": "lz4 1.9.4"},
    )
    assert (
        "payload nginx: cpio where none is asked for in A, lz4 where none is asked for in B"
        in compare(before, after).notes
    )
    other = with_circumstances(after, versions={**after.circumstances.versions, "compressors": "lz4 2"})
    assert refused(after, other) == ("compressors: lz4 1.9.4 in A, lz4 2 in B",)


def test_older_results_have_the_form_and_the_compressors_in_one_word() -> None:
    known = bench().circumstances.versions
    old = with_circumstances(
        bench(), versions={**known, "payload": "cpio where none is asked for; zlib 1.2.13, lz4 1.9.4"}
    )
    own = {"payload nginx": "cpio where none is asked for"}
    same = with_circumstances(bench(), versions={**known, **own, "compressors": "zlib 1.2.13, lz4 1.9.4"})
    assert not compare(old, same).regression and not compare(same, old).regression
    other = with_circumstances(bench(), versions={**known, **own, "compressors": "zlib 1.2.13, lz4 2"})
    assert refused(old, other) == ("compressors: zlib 1.2.13, lz4 1.9.4 in A, zlib 1.2.13, lz4 2 in B",)


def test_another_host_is_a_note_on_the_virtual_clock_and_an_obstacle_on_another() -> None:
    host = {**bench().circumstances.host, "cpu": "another"}
    found = compare(bench(), with_circumstances(bench(), host=host))
    assert "host's cpu: SYNTHETIC: nobody measured this in A, another in B" in found.notes
    wall = bench(clock="wall", runs=5)
    assert refused(wall, with_circumstances(wall, host=host), across_versions=True)


def test_the_source_may_differ_and_older_results_have_no_causes() -> None:
    versions = {**bench().circumstances.versions, "quickstart": "0.1.0, source 1234"}
    old = with_circumstances(changed(bench(), longer("kernel", 500 * MS)), versions=versions, facts=Facts())
    found = compare(bench(), old)
    assert found.regression and only(found).causes == ()
    assert "B does not say what was booted (schema 1): no cause can be named" in found.notes
