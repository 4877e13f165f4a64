"""results.json: written and read back, every fault with its place, complete at any moment, never a mixture of two measurements."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.errors import OtherResultsError, ResultsError
from quickstart.measure.matrix import order
from quickstart.measure.results import (
    CLOCKS,
    COMMAND_LINES,
    CONFIGURATIONS,
    DISK_CONFIGURATIONS,
    FIRMWARES,
    PAYLOADS,
    SIZES,
    STORAGES,
    Cell,
    Facts,
    Phase,
    Planned,
    Reads,
    Results,
    words_of,
)
from quickstart.report import document
from tests.unit.benchdata import CELL, censored, circumstances, realistic, results_of, sample
from tests.unit.hostile import little_memory

# Four bytes a character in memory, and as an escape even more.
LONG = "\U0001f600" + "\x7f" * 200_000
Edit = Callable[[dict[str, Any]], object]

COUNTS = st.integers(min_value=0, max_value=2**62)
CELLS = st.builds(
    Cell,
    profile=st.text(min_size=1, max_size=9),
    configuration=st.sampled_from(CONFIGURATIONS),
    command_line=st.sampled_from(COMMAND_LINES),
    storage=st.sampled_from(STORAGES),
    clock=st.sampled_from(CLOCKS),
    size=st.sampled_from(SIZES),
    payload=st.sampled_from(("", *PAYLOADS)),
    firmware=st.sampled_from(("", *FIRMWARES)),
).map(lambda cell: _allowed(cell))


def _allowed(cell: Cell) -> Cell:
    if cell.firmware and cell.configuration not in DISK_CONFIGURATIONS:
        cell = dataclasses.replace(cell, firmware="")
    return cell if cell.configuration == "quickstart" else cell.beside(cell.configuration)


PHASES = st.builds(
    lambda name, begin, length: Phase(name, begin, begin + length),
    st.text(min_size=1, max_size=9),
    st.integers(-(2**40), 2**40),
    st.integers(0, 2**62),
)


@st.composite
def whole_results(draw: st.DrawFn) -> Results:
    cells = draw(st.lists(CELLS, min_size=1, max_size=3, unique=True))
    samples = []
    for cell in cells:
        for number in draw(st.sets(st.integers(1, 3))):
            if why := draw(st.sampled_from(["", "not ready in 600 s"])):
                samples.append(censored(cell, number, why))
            else:
                samples.append(
                    sample(
                        cell,
                        number,
                        draw(st.integers(1, 2**60)),
                        before_kernel_ns=draw(st.integers(-(2**40), 2**40)),
                        overlap_ns=draw(COUNTS) if cell.clock == "virtual" else 0,
                        volume=Reads(draw(COUNTS), draw(COUNTS)),
                        guest=Reads(draw(COUNTS), draw(COUNTS)),
                        phases=tuple(draw(st.lists(PHASES, max_size=2))),
                        units=tuple(draw(st.lists(PHASES, max_size=2))),
                        took_ns=draw(COUNTS),
                        firmware_ns=draw(COUNTS) if cell.firmware else 0,
                        loader=Reads(draw(COUNTS), draw(COUNTS)) if cell.firmware else Reads(0, 0),
                    )
                )
    return results_of([Planned(cell, 3, 60) for cell in cells], samples)


@given(whole_results())
def test_what_is_written_is_read(results: Results) -> None:
    assert document.parse(document.text_of(results), "x") == results


def test_an_older_document_is_read_as_it_is() -> None:
    raw = json.loads(document.text_of(realistic()))
    raw["schema"] = 1
    for name in ("boots", "contents", "packages"):
        del raw[name]
    for run in raw["runs"]:
        for name in ("units", "firmware", "firmware_ns", "loader_reads", "loader_read_bytes"):
            del run[name]
    for planned in raw["plan"]:
        del planned["firmware"]
    found = document.parse(json.dumps(raw), "x")
    assert found.circumstances.facts == Facts()
    assert found.samples == realistic().samples


def test_a_run_is_a_line() -> None:
    results = realistic()
    lines = document.text_of(results).splitlines()
    assert sum(line.startswith('  {"profile"') for line in lines) == len(results.plan) + len(results.samples)


def broken(edit: Edit) -> tuple[str, ...]:
    """The problems of a good document after ``edit``."""
    results = results_of([Planned(CELL, 3, 600)], [sample(number=1), sample(number=2), censored(number=3)])
    raw = json.loads(document.text_of(results))
    edit(raw)
    with pytest.raises(ResultsError) as caught:
        document.parse(json.dumps(raw), "x.json")
    assert "x.json" in caught.value.message
    assert caught.value.exit_code == 2
    return caught.value.problems


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda raw: raw.update(schema=6), "schema: "),
        (lambda raw: raw.pop("began"), "began: missing"),
        (lambda raw: raw.update(began="yesterday"), "began: "),
        (lambda raw: raw.update(comand=[]), "comand: no such key; did you mean 'command'?"),
        (lambda raw: raw["host"].update(cores=2), "host.cores: "),
        (lambda raw: raw.update(poll_interval_ms="10"), "poll_interval_ms: "),
        (lambda raw: raw["plan"].append(raw["plan"][0]), "plan[1]: the cell of plan[0] again"),
        (
            lambda raw: raw["runs"][1].update(t_ap_ns=1),
            "runs[1].t_ap_ns: no such key; did you mean 't_app_ns'?",
        ),
        (lambda raw: raw["runs"][0].update(t_app_ns=2.5), "runs[0].t_app_ns: "),
        (lambda raw: raw["runs"][0].update(clock="sundial"), "runs[0].clock: "),
        (lambda raw: raw["runs"][0].update(root_reads=-1), "runs[0].root_reads: "),
        (lambda raw: raw["runs"][1].update(number=1), "runs[1]: run 1 of the cell of runs[0] again"),
        (
            lambda raw: raw["runs"][0].update(number=9),
            "runs[0].number: the plan has 3 runs of this cell (got 9)",
        ),
        (lambda raw: raw["runs"][0].update(size="medium"), "runs[0]: its cell is not in plan"),
        (
            lambda raw: raw["runs"][0].update(delivery=""),
            "runs[0].delivery: quickstart has 'fast' or 'overlay'",
        ),
        (
            lambda raw: raw["runs"][2].update(t_app_ns=5),
            "runs[2].t_app_ns: a censored run has no number (got 5)",
        ),
        (
            lambda raw: raw["runs"][2].update(phases=[{"name": "kernel", "begin_ns": 0, "end_ns": 1}]),
            "runs[2].phases: a censored run has none",
        ),
        (
            lambda raw: raw["runs"][2].update(units=[{"name": "a.service", "begin_ns": 0, "end_ns": 1}]),
            "runs[2].units: a censored run has none",
        ),
        (lambda raw: raw["boots"]["nginx/minimal"].pop("image"), "boots.nginx/minimal.image: missing"),
        (lambda raw: raw["contents"]["fast"].update(init="9"), "contents.fast.init: "),
        (
            lambda raw: raw["runs"][1].update(loader_reads=1),
            "runs[1].loader_reads: only a machine with a firmware has one (got 1)",
        ),
        (
            lambda raw: raw["plan"][0].update(firmware="uefi", configuration="ramboot"),
            "plan[0].configuration: a disk has standard and quickstart (got ramboot)",
        ),
        (lambda raw: raw["runs"][1].update(t_total_ns=1), "runs[1].t_total_ns: not t_pr_ns + t_app_ns"),
        (
            lambda raw: raw["runs"][1].update(t_pr_ns=0, t_app_ns=0, t_total_ns=0),
            "runs[1].t_total_ns: a run that is not censored takes time",
        ),
        (
            lambda raw: raw["runs"][0].update(phases=[{"name": "kernel", "begin_ns": 2, "end_ns": 1}]),
            "runs[0].phases[0].end_ns: before begin_ns",
        ),
    ],
)
def test_a_fault_is_named_with_its_place(edit: Edit, said: str) -> None:
    assert any(problem.startswith(said) for problem in broken(edit)), broken(edit)


def test_every_fault_at_once() -> None:
    def edit(raw: dict[str, Any]) -> None:
        raw["runs"][0]["number"] = 9
        raw["runs"][1]["t_total_ns"] = 1

    assert len(broken(edit)) == 2


def test_overlap_is_of_the_virtual_clock() -> None:
    cell = dataclasses.replace(CELL, clock="wall")
    text = document.text_of(results_of([Planned(cell, 1, 60)], [sample(cell, overlap_ns=1)]))
    with pytest.raises(ResultsError, match=r"runs\[0\]\.overlap_ns: 0 on the wall clock"):
        document.parse(text, "x")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"schema": 1}'])
def test_what_is_no_document(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "results.json"
    file.write_bytes(content)
    with pytest.raises(ResultsError, match=r"results\.json"):
        document.load(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="cannot be read"):
        document.load(tmp_path / "results.json")


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "results.json"
    document.save(realistic(), file)
    before = file.read_bytes()

    def fail(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "replace", fail)
        document.save(realistic(runs=1), file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_a_censored_run_is_not_measured_again() -> None:
    plan = [Planned(CELL, 3, 600)]
    results = results_of(plan, [sample(number=2), censored(number=1)])
    assert document.remaining(results, order(plan)) == ((CELL, 3),)


def test_the_same_again_is_no_difference() -> None:
    results = realistic()
    document.demand_same(results, tuple(reversed(results.plan)), circumstances(), "x")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"versions": {"quickstart": "0.2.0"}}, "version of quickstart: 0.1.0 there, 0.2.0 now"),
        ({"artefacts": {}}, f"artefact nginx/initramfs: {'1' * 64} there, nothing now"),
        ({"host": {"cpu": "another"}}, "host cpu: SYNTHETIC: nobody measured this there, another now"),
        ({"poll_interval_ms": 100}, "poll interval: 10 ms there, 100 ms now"),
    ],
)
def test_other_circumstances_are_named(changed: dict[str, Any], said: str) -> None:
    results = realistic()
    with pytest.raises(OtherResultsError) as caught:
        document.demand_same(results, results.plan, dataclasses.replace(circumstances(), **changed), "x.json")
    assert said in caught.value.differences
    assert "x.json was measured differently" in caught.value.message


def test_another_matrix_is_named() -> None:
    results = realistic(configurations=("standard", "quickstart"))
    other = [dataclasses.replace(results.plan[0], runs=9), realistic(configurations=("minimal",)).plan[0]]
    with pytest.raises(OtherResultsError) as caught:
        document.demand_same(results, other, circumstances(), "x")
    assert caught.value.differences == (
        "matrix: nginx quickstart stock ebs-warm virtual small is only there",
        "matrix: nginx minimal stock ebs-warm virtual small is only in the new one",
        "matrix: nginx standard stock ebs-warm virtual small: 3 runs of at most 600 s there, 9 of at most 600 s now",
    )


def test_results_of_before_have_no_payload() -> None:
    raw = json.loads(document.text_of(realistic()))
    for entry in (*raw["plan"], *raw["runs"]):
        del entry["payload"]
    assert document.parse(json.dumps(raw), "x.json") == realistic()


def test_a_payload_of_another_configuration() -> None:
    said = broken(lambda raw: raw["runs"][0].update(configuration="minimal", delivery="", payload="lz4"))
    assert "runs[0].payload: minimal has none (got 'lz4')" in said


def test_a_delivery_is_a_word_of_the_cell_where_the_plan_asks_for_it() -> None:
    asked = dataclasses.replace(CELL, delivery="fast")
    for cell in (asked, CELL):
        results = results_of([Planned(cell, 1, 600)], [sample(cell)])
        text = document.text_of(results)
        assert document.parse(text, "x") == results
        assert json.loads(text)["runs"][0]["delivery"] == "fast"
    both = results_of(
        [Planned(asked, 1, 600), Planned(dataclasses.replace(CELL, delivery="overlay"), 1, 600)],
        [sample(asked)],
    )
    assert document.parse(document.text_of(both), "x").samples[0].cell == asked
    assert words_of(asked) == "nginx quickstart stock ebs-warm virtual small fast"


def test_a_loss_of_power_finds_the_old_file_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The content is on the disk before the name, and the name (which is the directory's) before we go on."""
    done: list[str] = []
    synced, replaced = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        done.append("sync directory" if path == tmp_path else f"sync {len(path.read_bytes())} bytes")
        synced(descriptor)

    def replace(self: Path, target: Path) -> Path:
        done.append(f"rename to {target.name}")
        return replaced(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    file = tmp_path / "results.json"
    document.save(realistic(), file)
    assert done == [f"sync {file.stat().st_size} bytes", "rename to results.json", "sync directory"]
    assert file.stat().st_mode & 0o777 == 0o644


def test_a_plan_has_no_more_runs_than_can_be_put_in_order() -> None:
    """Each of them is an entry of a list when the report says what is missing."""
    cells = [
        dataclasses.replace(CELL, profile=f"p{number}", configuration=each)
        for number in range(64)
        for each in CONFIGURATIONS
    ]
    plan = [Planned(cell, 1000, 600) for cell in cells[:101]]
    document.parse(document.text_of(results_of(plan[:100], [])), "x")
    with pytest.raises(ResultsError, match="101000 runs, and at most 100000"):
        document.parse(document.text_of(results_of(plan, [])), "x")


def test_a_fault_has_no_copy_of_its_table() -> None:
    """Each missing key had one: 3 MB of results took 2 GiB."""
    lines = ",".join(f'"{number}": "x{number}"' for number in range(20_000))
    text = f'{{"boots": {{"a": {{"command_lines": {{{lines}}}}}}}}}'
    with little_memory(), pytest.raises(ResultsError, match="kernel: missing"):
        document.parse(text, "x")


@pytest.mark.parametrize("key", ["host", "boots", "contents"])
def test_a_map_of_many_keys_tells_no_faults_of_its_values(key: str) -> None:
    """Each empty object had six: 2.6 MB of results took 739 MiB."""
    keys = ",".join(f'"{number}": {{}}' for number in range(10_001))
    with pytest.raises(ResultsError, match=f"{key}: it has 10001 keys, at most 10000 are read") as error:
        document.parse(f'{{"{key}": {{{keys}}}}}', "x")
    assert f"{key}.0" not in str(error.value)


@pytest.mark.parametrize(
    "edit",
    [
        lambda raw: raw["host"].update(cpu=LONG),
        lambda raw: raw["versions"].update(qemu=LONG),
        lambda raw: raw["artefacts"].update(nginx=LONG),
        lambda raw: raw.update(packages={"a": {"b": LONG}}),
        lambda raw: raw["command"].append(LONG),
    ],
)
def test_a_long_text_is_refused(edit: Edit) -> None:
    """`bench compare` showed both texts in one line: 28 MB took 2.6 GiB. The fault itself has only the beginning of it."""
    with little_memory():
        problems = broken(edit)
    assert len(problems) == 1
    assert "at most 4096" in problems[0] and len(problems[0]) < 1000


@pytest.mark.parametrize("text", ['{"name": "\\ud800"}', '{"a": 1, "a": 1}', "[" * 100, "\ud800"])
def test_json_that_nobody_writes(text: str) -> None:
    with pytest.raises(ResultsError, match="the whole: "):
        document.parse(text, "x")


def test_a_number_that_is_too_long_has_its_place() -> None:
    with pytest.raises(ResultsError, match="poll_interval_ms: "):
        document.parse('{"poll_interval_ms": 1' + "0" * 5000 + "}", "x")
