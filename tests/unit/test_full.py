"""`make test-full`: which tests run, which are left for the next time, and the line at its end."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import full
from tests.conftest import begin_order
from tests.full import Shard, closing_line, in_shard, parse_shard, to_run, tree_hash
from tests.resuming import Outcomes, Test, append_record, read_list, read_records, write_list

FILES = [f"tests/{room}/test_{name}.py" for room in ("unit", "contract", "vm") for name in "abcdef"]
TESTS = st.lists(
    st.builds(
        lambda file, name, is_full: Test(f"{file}::test_{name}", is_full),
        st.sampled_from(FILES),
        st.integers(0, 9),
        st.booleans(),
    ),
    unique_by=lambda test: test.id,
    max_size=60,
)


@given(TESTS, st.integers(1, 5))
def test_shards_have_every_test_once(tests: list[Test], count: int) -> None:
    parts = [in_shard(tests, Shard(index, count)) for index in range(1, count + 1)]
    assert sorted(test.id for part in parts for test in part) == sorted(test.id for test in tests)
    for part in parts:
        # In the order of the whole, and a file's tests in one shard.
        assert [*part] == [test for test in tests if test in part]
    for one, other in pairwise(parts):
        files = [{test.id.partition("::")[0] for test in part} for part in (one, other)]
        assert not files[0] & files[1]


def test_shards_are_of_a_weight() -> None:
    tests = [Test(f"tests/vm/test_{number}.py::test", True) for number in range(9)]
    assert [len(in_shard(tests, Shard(index, 3))) for index in (1, 2, 3)] == [3, 3, 3]
    # A file with many short ones is as heavy as several with a long one.
    both = [*tests[:4], *(Test(f"tests/vm/test_s.py::test[{number}]", False) for number in range(20))]
    assert [len(in_shard(both, Shard(index, 2))) for index in (1, 2)] == [20, 4]
    beside = [*tests[:3], *(Test(f"tests/unit/test_a.py::test[{number}]", False) for number in range(500))]
    assert [len(in_shard(beside, Shard(index, 4))) for index in (1, 2, 3, 4)] == [1, 1, 1, 500]


def test_the_word_for_a_shard() -> None:
    assert parse_shard("2/3") == Shard(2, 3)


@pytest.mark.parametrize("word", ["", "1", "0/3", "4/3", "1/0", "a/b", "1/", "/3", "-1/3", "1/3/5"])
def test_no_shard(word: str) -> None:
    with pytest.raises(ValueError, match="is no shard"):
        parse_shard(word)


def test_what_failed_or_was_not_run_is_run() -> None:
    tests = [Test(name, False) for name in ("passed", "skipped", "failed", "new")]
    records = {"passed": "passed", "skipped": "skipped", "failed": "failed"}
    assert [test.id for test in to_run(tests, records)] == ["failed", "new"]
    assert closing_line(tests, records, 2, Shard()) == (
        "test-full: 4 tests: 1 passed, 1 failed, 1 skipped, 1 not run; 2 of them in an earlier run"
    )
    assert closing_line(tests[:1], records, 0, Shard(2, 3)) == (
        "test-full, shard 2/3: 1 tests: 1 passed, 0 failed, 0 skipped, 0 not run"
    )


@pytest.mark.parametrize(
    ("phases", "outcome"),
    [
        (("passed", "passed", "passed"), "passed"),
        (("skipped", "passed"), "skipped"),
        (("passed", "failed", "passed"), "failed"),
        (("failed", "passed"), "failed"),
        (("passed", "passed", "failed"), "failed"),
        (("passed", "skipped", "failed"), "failed"),
    ],
)
def test_the_worst_phase_is_the_tests_outcome(phases: tuple[str, ...], outcome: str) -> None:
    outcomes, names = Outcomes(), ("setup", "call", "teardown")
    told = [
        outcomes.add("a", when, each)
        for when, each in zip([*names[: len(phases) - 1], names[-1]], phases, strict=True)
    ]
    assert told == [*([None] * (len(phases) - 1)), outcome]


def test_records_outlast_what_was_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "records"
    assert read_records(file) == {}
    for test, outcome in (("a", "failed"), ("b[\n\u0661]", "skipped"), ("a", "passed")):
        append_record(file, test, outcome)
    with file.open("ab") as end:
        end.write(b'["c", "pas')
    assert read_records(file) == {"a": "passed", "b[\n\u0661]": "skipped"}


def test_a_list_is_read_as_it_was_written(tmp_path: Path) -> None:
    tests = (Test("a::b[\n]", True), Test("c", False))
    write_list(tmp_path / "list", tests)
    assert read_list(tmp_path / "list") == tests


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / ".gitignore").write_text("# what is ignored\n__pycache__/\n*.tmp\n/dist/\n.full/\n")
    (tmp_path / "code/dist").mkdir(parents=True)
    (tmp_path / "code/a.py").write_text("a")
    (tmp_path / "code/dist/b.py").write_text("b")
    (tmp_path / "link").symlink_to("code/a.py")
    return tmp_path


def _nothing(tree: Path) -> None:
    (tree / "dist").mkdir()
    (tree / "dist/x").write_text("x")
    (tree / "code/__pycache__").mkdir()
    (tree / "code/__pycache__/a.pyc").write_text("x")
    (tree / "code/x.tmp").write_text("x")


def test_what_git_ignores_is_not_of_the_tree(tree: Path) -> None:
    before = tree_hash(tree)
    _nothing(tree)
    assert tree_hash(tree) == before


def _relink(tree: Path) -> None:
    (tree / "link").unlink()
    (tree / "link").symlink_to("code/dist/b.py")


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: (tree / "code/a.py").write_text("A"),
        lambda tree: (tree / "code/a.py").chmod(0o755),
        lambda tree: (tree / "code/c.py").write_text(""),
        lambda tree: (tree / "code/dist/b.py").unlink(),
        lambda tree: (tree / "code/a.py").rename(tree / "code/b.py"),
        _relink,
    ],
)
def test_a_changed_tree_is_another(tree: Path, change: Callable[[Path], object]) -> None:
    before = tree_hash(tree)
    change(tree)
    assert tree_hash(tree) != before


def test_records_are_of_this_tree_alone(tree: Path) -> None:
    first = full.records_of(tree)
    append_record(first, "a", "passed")
    assert full.records_of(tree) == first
    assert read_records(first) == {"a": "passed"}
    (tree / "code/a.py").write_text("A")
    assert full.records_of(tree) != first
    assert not first.exists()


def test_the_order_in_which_files_begin() -> None:
    lines = [line.split() for line in (full.ROOT / "tests/slowest.txt").read_text().splitlines()[2:]]
    first, second = [name for _, name in lines][3:5]
    unit = ["tests/unit/test_a.py", "tests/unit/test_b.py"]
    others = ["tests/contract/test_a.py", "tests/vm/test_a.py"]
    places = begin_order([*others, *reversed(unit), second, first])
    assert sorted(places, key=lambda name: places[name]) == [first, *unit, second, *others]


def test_the_slowest_files_are_there_and_in_order() -> None:
    """A file that was renamed would begin last."""
    lines = [line.split() for line in (full.ROOT / "tests/slowest.txt").read_text().splitlines()[2:]]
    assert [name for _, name in lines if not (full.ROOT / name).is_file()] == []
    seconds = [int(word) for word, _ in lines]
    assert seconds == sorted(seconds, reverse=True)
