"""Matrices: the product of their words, every fault at once, and rounds that spread drift."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.errors import BadInputError, MatrixError
from quickstart.measure.matrix import load_matrix, matrix_of_options, order, parse_matrix
from quickstart.measure.results import FETCHES, SIZES, Cell, Planned
from quickstart.measure.run import FETCHING
from quickstart.profile import known_profiles, profile_file
from tests.unit.benchdata import CELL

BENCH = Path(__file__).parents[2] / "bench"
PROFILES = ("apache", "nginx")
GOOD = """\
schema = 1
name = "m"
[[block]]
profiles = ["nginx", "apache"]
configurations = ["standard", "quickstart"]
storages = ["ebs-cold"]
clocks = ["virtual"]
"""


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(MatrixError) as caught:
        parse_matrix(text, "m.toml", PROFILES)
    assert "m.toml" in caught.value.message
    assert caught.value.exit_code == 2
    return caught.value.problems


@pytest.mark.parametrize("file", sorted(BENCH.glob("*.toml")), ids=lambda file: file.name)
def test_our_own_matrices_hold_and_say_how_many_runs_they_are(file: Path) -> None:
    matrix = load_matrix(file, known_profiles())
    assert matrix.name == file.stem
    said = " ".join(line.lstrip("# ") for line in file.read_text().partition("schema = ")[0].splitlines())
    assert f" {len(order(matrix.plan))} runs" in said


def test_the_papers_tables_have_their_matrices() -> None:
    plans = {
        name: {each.cell for each in load_matrix(BENCH / f"{name}.toml", known_profiles()).plan}
        for name in ("paper-figure1", "paper-table2", "paper-io")
    }
    figure = {(cell.profile, cell.configuration, cell.size) for cell in plans["paper-figure1"]}
    applications = ("nginx", "apache", "mysql")
    assert figure == set(
        itertools.product(applications, ("standard", "minimal", "ramboot", "quickstart"), SIZES)
    )
    sizes = {cell.profile for cell in plans["paper-table2"] if cell.configuration == "quickstart"}
    reads = {(cell.profile, cell.configuration) for cell in plans["paper-io"]}
    assert sizes == set(applications)
    assert reads >= set(itertools.product(applications, ("minimal", "quickstart")))


def test_smoke_is_four_runs() -> None:
    smoke = load_matrix(BENCH / "smoke.toml", known_profiles())
    assert [(cell.configuration, number) for cell, number in order(smoke.plan)] == [
        *(("standard", 1), ("quickstart", 1), ("quickstart", 2), ("standard", 2)),
    ]


def test_a_block_is_a_product_with_defaults() -> None:
    plan = parse_matrix(GOOD, "m", PROFILES).plan
    assert plan[0] == Planned(
        Cell(
            profile="nginx",
            configuration="standard",
            command_line="stock",
            storage="ebs-cold",
            clock="virtual",
            size="small",
        ),
        5,
        600,
    )
    assert plan[1] == Planned(
        Cell(
            profile="nginx",
            configuration="quickstart",
            command_line="boot",
            storage="ebs-cold",
            clock="virtual",
            size="small",
        ),
        5,
        600,
    )
    assert [(each.cell.profile, each.cell.configuration) for each in plan] == [
        *(("nginx", "standard"), ("nginx", "quickstart"), ("apache", "standard"), ("apache", "quickstart")),
    ]


def test_without_command_lines_a_profile_has_what_it_is_built_with(tmp_path: Path) -> None:
    text = profile_file("nginx").read_text()
    (tmp_path / "profile.toml").write_text(f'kernel_options = "stock"\n{text}')
    matrix = GOOD.replace('"apache"', f'"{tmp_path}"')
    asked = {(each.cell.profile, each.cell.command_line) for each in parse_matrix(matrix, "m", PROFILES).plan}
    assert asked == {("nginx", "stock"), ("nginx", "boot"), (str(tmp_path), "stock")}
    # What is asked for is the same for all, and the profile is not read for it.
    said = f'{matrix}command_lines = ["ours"]\n'
    (tmp_path / "profile.toml").unlink()
    assert {each.cell.command_line for each in parse_matrix(said, "m", PROFILES).plan} == {"ours"}
    with pytest.raises(BadInputError, match="cannot be read"):
        parse_matrix(matrix, "m", PROFILES)


def test_the_same_cell_asked_for_by_its_word_is_there_twice() -> None:
    again = GOOD.partition("\n[[block]]")[2]
    text = f'{GOOD}[[block]]{again}command_lines = ["boot"]\n'
    assert any("of its cells are in an earlier block" in each for each in problems(text))


def test_a_matrix_has_no_more_runs_than_can_be_put_in_order() -> None:
    """A thousand runs of few cells are as many as one run of many."""
    head, _, block = GOOD.partition("[[block]]")
    many = head + f"[[block]]{block}runs = 1000\n" * 26
    assert problems(many) == ("block: 104000 runs, and a matrix has at most 100000",)


def test_a_matrix_has_no_more_figures_than_its_report_can_draw() -> None:
    block = """[[block]]
profiles = ["nginx"]
configurations = ["quickstart"]
storages = ["local"]
clocks = ["wall"]
patterns = ["staggered"]
instances = [2]
stagger_ms = {}
"""
    text = GOOD.partition("[[block]]")[0] + "".join(block.format(number) for number in range(1, 18))
    assert problems(text) == (
        "block: 17 ways to launch one application's machines, and at most 16 are shown together",
    )


def test_blocks_differ_in_runs() -> None:
    more = GOOD.partition("\n[[block]]")[2].replace('"virtual"', '"wall"')
    plan = parse_matrix(f"{GOOD}[[block]]{more}runs = 50\n", "m", PROFILES).plan
    assert {each.cell.clock: each.runs for each in plan} == {"virtual": 5, "wall": 50}


def test_options_are_a_block() -> None:
    options: dict[str, Sequence[str] | int] = {
        "profiles": ("nginx",),
        "configurations": ("standard", "quickstart"),
        "command_lines": (),
        "storages": ("ebs-cold",),
        "clocks": ("virtual",),
        "sizes": (),
        "runs": 2,
        "timeout_s": 0,
    }
    plan = matrix_of_options(options, PROFILES).plan
    assert [(each.cell.configuration, each.runs, each.timeout_s) for each in plan] == [
        ("standard", 2, 600),
        ("quickstart", 2, 600),
    ]
    with pytest.raises(MatrixError, match=r"block\[0\]\.storages: missing"):
        matrix_of_options({**options, "storages": ()}, PROFILES)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("schema = 1", "schema = 2", "schema: "),
        ('name = "m"', "", "name: missing"),
        ("[[block]]", "[block]", "block: "),
        ("storages", "storage", "block[0].storage: no such key; did you mean 'storages'?"),
        ("ebs-cold", "ebs-cool", "block[0].storages[0]: no storage 'ebs-cool'; did you mean 'ebs-cold'?"),
        ('["virtual"]', '["sundial"]', "block[0].clocks[0]: no clock 'sundial'; known: virtual, kvm, wall"),
        (
            "quickstart",
            "quikstart",
            "block[0].configurations[1]: no configuration 'quikstart'; did you mean 'quickstart'?",
        ),
        ('"nginx", ', '"ngnix", ', "block[0].profiles[0]: no profile 'ngnix'; did you mean 'nginx'?"),
        ('"nginx", ', '"apache", ', "block[0].profiles[1]: 'apache' again"),
        ('["virtual"]', "[]", "block[0].clocks: "),
        ('["virtual"]', '"virtual"', "block[0].clocks: "),
        ('["virtual"]', '["virtual"]\nruns = 0', "block[0].runs: "),
        ('["virtual"]', '["virtual"]\nruns = "5"', "block[0].runs: "),
        ('name = "m"', 'name = "m', "not TOML"),
    ],
)
def test_a_fault_is_named_with_its_place(old: str, new: str, said: str) -> None:
    assert any(each.startswith(said) for each in problems(GOOD.replace(old, new, 1)))


def test_every_fault_at_once() -> None:
    text = GOOD.replace("ebs-cold", "ebs").replace('"virtual"', '"kvn"').replace("schema = 1", "")
    assert len(problems(text)) == 3


def test_a_cell_in_two_blocks() -> None:
    assert problems(GOOD + "[[block]]" + GOOD.partition("[[block]]")[2]) == (
        "block[1]: 4 of its cells are in an earlier block; the first is nginx standard stock ebs-cold virtual small",
    )


def test_a_profile_may_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "profile.toml").write_text(profile_file("nginx").read_text())
    plan = parse_matrix(GOOD.replace('"nginx"', f'"{tmp_path}"'), "m", PROFILES).plan
    assert plan[0].cell.profile == str(tmp_path)


@pytest.mark.parametrize("path", ["./none", "/" + "x" * 5000, "a/\\u0000", "/dev/null/x"])
def test_a_profile_that_no_file_can_be(path: str) -> None:
    with pytest.raises(BadInputError, match="no profile"):
        parse_matrix(GOOD.replace("nginx", path), "m", PROFILES)


def test_a_matrix_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="cannot be read") as caught:
        load_matrix(tmp_path / "m.toml", PROFILES)
    assert "is its path right?" in (caught.value.hint or "")


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_rounds_have_each_cell_once(runs: list[int]) -> None:
    plan = [Planned(replace(CELL, profile=f"p{index}"), n, 60) for index, n in enumerate(runs)]
    found = order(plan)
    assert Counter(found) == Counter({(each.cell, n): 1 for each in plan for n in range(1, each.runs + 1)})
    assert [number for _, number in found] == sorted(number for _, number in found)


def test_a_steady_drift_falls_on_all_alike() -> None:
    plan = [Planned(replace(CELL, profile=name), 4, 60) for name in "abc"]
    places = {cell.profile: 0 for cell, _ in order(plan)}
    for place, (cell, _) in enumerate(order(plan)):
        places[cell.profile] += place
    assert len(set(places.values())) == 1


def test_how_kernel_and_initramfs_are_fetched_is_said_once_for_all() -> None:
    assert parse_matrix(GOOD, "m", PROFILES).fetch == "boot-loader"
    ahead = GOOD.replace("schema = 1", 'schema = 1\nfetch = "read-ahead"')
    assert parse_matrix(ahead, "m", PROFILES).fetch == "read-ahead"
    options: dict[str, Sequence[str] | int] = {"profiles": ("nginx",), "configurations": ("minimal",)}
    one = matrix_of_options(
        {**options, "storages": ("local",), "clocks": ("virtual",), "fetch": "read-ahead"}, PROFILES
    )
    assert (one.fetch, len(one.plan)) == ("read-ahead", 1)
    assert set(FETCHES) == set(FETCHING)


def test_payloads_are_quickstarts_alone() -> None:
    plan = parse_matrix(f'{GOOD}payloads = ["cpio", "lz4"]\n', "m", PROFILES).plan
    found = {(each.cell.configuration, each.cell.payload) for each in plan}
    assert found == {("standard", ""), ("quickstart", "cpio"), ("quickstart", "lz4")}
    assert {each.cell.payload for each in parse_matrix(GOOD, "m", PROFILES).plan} == {""}
    assert {replace(each.cell, payload="") for each in plan} == {
        each.cell for each in parse_matrix(GOOD, "m", PROFILES).plan
    }


def test_payloads_of_nothing() -> None:
    text = GOOD.replace(', "quickstart"', "") + 'payloads = ["lz5"]\n'
    assert problems(text) == (
        "block[0].payloads[0]: no payload 'lz5'; did you mean 'lz4'?",
        "block[0].payloads: only quickstart has one, which is not among the configurations",
    )


def test_deliveries_are_quickstarts_alone_and_asked_for_everywhere_or_nowhere() -> None:
    plan = parse_matrix(f'{GOOD}deliveries = ["overlay", "fast"]\n', "m", PROFILES).plan
    assert {(each.cell.configuration, each.cell.delivery) for each in plan} == {
        ("standard", ""),
        ("quickstart", "overlay"),
        ("quickstart", "fast"),
    }
    block = GOOD.partition("[[block]]")[2].replace('"standard", ', "")
    said = problems(f'{GOOD}\n[[block]]{block}deliveries = ["fast"]\n')
    assert any("quickstart boot ebs-cold virtual small fast is there without a word" in each for each in said)
    assert problems(f'{GOOD}deliveries = ["slow"]\n')[0].startswith(
        "block[0].deliveries[0]: no delivery 'slow'"
    )


DISK = """\
schema = 1
name = "d"
[[block]]
disks = ["web", "./other"]
firmwares = ["uefi"]
configurations = ["standard", "quickstart"]
storages = ["ebs-cold"]
clocks = ["virtual"]
"""


def test_a_disk_is_measured_by_its_own_entries() -> None:
    """The stock entry has the system's own kernel options, and ours those of a build."""
    plan = [each.cell for each in parse_matrix(DISK, "d", PROFILES).plan]
    assert [(cell.profile, cell.firmware, cell.configuration, cell.command_line) for cell in plan] == [
        ("web", "uefi", "standard", "stock"),
        ("web", "uefi", "quickstart", "boot"),
        ("./other", "uefi", "standard", "stock"),
        ("./other", "uefi", "quickstart", "boot"),
    ]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('firmwares = ["uefi"]\n', "", "firmwares: missing"),
        ('firmwares = ["uefi"]', 'firmwares = ["uefy"]', "firmwares[0]: no firmware 'uefy'"),
        ('disks = ["web", "./other"]\n', "", "profiles: missing"),
        ('disks = ["web", "./other"]', 'profiles = ["nginx"]', "disks: missing; firmwares belong to"),
        ('disks = ["web", "./other"]', 'disks = ["web", "web"]', "disks[1]: 'web' again"),
        ("schema = 1\n", "schema = 1\n", ""),
        (
            'disks = ["web"',
            'profiles = ["nginx"]\ndisks = ["web"',
            "disks: a block has either profiles or disks",
        ),
        (
            '"standard", "quickstart"]',
            '"ramboot"]',
            "configurations[0]: a disk has standard and quickstart, not ramboot",
        ),
        ("storages", 'payloads = ["lz4"]\nstorages', "payloads: a disk is measured as it is"),
        (
            "storages",
            'patterns = ["burst"]\ninstances = [2]\nstorages',
            "patterns: a disk is measured as it is",
        ),
        (
            'storages = ["ebs-cold"]\nclocks = ["virtual"]',
            'storages = ["nfs-100m"]\nclocks = ["wall"]',
            "storages[0]: on a real clock, nfs-100m keeps no log",
        ),
    ],
)
def test_a_disk_has_rules_of_its_own(before: str, after: str, said: str) -> None:
    text = DISK.replace(before, after)
    if not said:
        parse_matrix(text, "m.toml", PROFILES)
        return
    assert any(said in each for each in problems(text)), problems(text)
