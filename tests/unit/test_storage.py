"""Storage models: ours, defaults, every fault at once, and the nearest known name."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from quickstart.errors import BadInputError, StorageModelError
from quickstart.host.assets import assets
from quickstart.measure.results import STORAGES
from quickstart.volume.storage import known_models, load_model, parse_model

FIGURES = {
    "read_latency_ns": 1,
    "write_latency_ns": 2,
    "bandwidth_bytes_s": 3,
    "queue_depth": 4,
    "granule_bytes": 5000,
    "first_touch_ns": 6,
}
SOURCES = "[sources]\n" + "".join(f'{name} = "source of {name}"\n' for name in FIGURES)
GOOD = 'schema = 1\nname = "slow"\n' + "".join(f"{name} = {value}\n" for name, value in FIGURES.items())


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(StorageModelError) as caught:
        parse_model(text, "x.toml")
    assert "storage model x.toml is not valid" in caught.value.message
    assert caught.value.exit_code == 2
    return caught.value.problems


def test_our_models_are_these() -> None:
    # A matrix may name what has a model, and nothing else.
    assert known_models() == tuple(sorted(STORAGES))
    warm, cold, local = (load_model(name) for name in ("ebs-warm", "ebs-cold", "local"))
    wire, cached = (load_model(name) for name in ("nfs-100m", "nfs-cached"))
    assert (warm.read_latency_ns, warm.bandwidth_bytes_s, warm.first_touch_ns) == (
        800_000,
        125 * 1024 * 1024,
        0,
    )
    assert (cold.read_latency_ns, cold.bandwidth_bytes_s) == (warm.read_latency_ns, warm.bandwidth_bytes_s)
    assert (cold.granule_bytes, cold.first_touch_ns) == (512 * 1024, 20_000_000)
    assert (local.read_latency_ns, local.write_latency_ns, local.bandwidth_bytes_s, local.first_touch_ns) == (
        0,
        0,
        None,
        0,
    )
    # A head, which nothing else has: half a revolution at 7200 a minute, and a short seek.
    assert [name for name in known_models() if load_model(name).seek_ns] == ["hdd"]
    assert load_model("hdd").seek_ns == 4_160_000 + 1_000_000
    # Of 12.5 MB/s what the headers leave; a cached image is a local one.
    assert wire.bandwidth_bytes_s is not None
    assert 11_000_000 < wire.bandwidth_bytes_s < 12_000_000
    assert {name: getattr(cached, name) for name in FIGURES} == {
        name: getattr(local, name) for name in FIGURES
    }
    assert [model.name for model in (warm, cold, local, wire, cached) if model.nfs_rate] == ["nfs-100m"]
    assert wire.nfs_rate == "100mbit"


def test_the_figures_of_nfs_are_those_that_were_measured() -> None:
    rows = json.loads((assets("bench") / "nfs/figures.json").read_text())["figures"]
    best = {(row["place"], row["reading"]): row for row in rows}
    wire = load_model("nfs-100m")
    latency_ns = (
        best["no wire", "4 KiB, one"]["best_median_ns"] - best["local", "4 KiB, one"]["best_median_ns"]
    )
    # Rounded to the microsecond, and to 10 kB/s.
    assert wire.read_latency_ns == round(latency_ns, -3)
    assert wire.bandwidth_bytes_s == round(best["wire", "1 MiB, eight"]["best_bytes_s"], -4)


@pytest.mark.parametrize("rate", ['"fast"', '"0mbit"', "100", '"100mbit; reboot"', '"100 mbit"'])
def test_a_rate_is_one_that_tc_takes(rate: str) -> None:
    (found,) = problems(f"nfs_rate = {rate}\n" + GOOD + SOURCES)
    assert found.startswith("nfs_rate: ")


def test_a_head_has_a_source_as_every_figure() -> None:
    text = "seek_ns = 7\n" + GOOD + SOURCES
    (found,) = problems(text)
    assert "seek_ns has no source" in found
    model = parse_model(text + 'seek_ns = "a disk\'s manual"\n', "x")
    assert (model.seek_ns, dict(model.sources)["seek_ns"]) == (7, "a disk's manual")


@pytest.mark.parametrize("name", known_models())
def test_every_figure_of_ours_has_its_source_and_says_when_it_is_an_assumption(name: str) -> None:
    model = load_model(name)
    assert model.name == name
    assert {figure for figure, _ in model.sources} - {"seek_ns"} == set(FIGURES)
    written = tomllib.loads((assets("bench") / "storage" / f"{name}.toml").read_text())["sources"]
    assert dict(model.sources) == written
    for source in written.values():
        assert any(
            word in source for word in ("assumption", "definition", "Amazon", "EBS", "emulator", "bench/nfs")
        )


def test_a_model_is_taken_as_it_is_written() -> None:
    model = parse_model(GOOD + SOURCES, "x")
    assert {name: getattr(model, name) for name in FIGURES} == FIGURES
    assert (model.name, model.description) == ("slow", "")
    assert model.sources[0] == ("read_latency_ns", "source of read_latency_ns")


def test_without_a_bandwidth_there_is_no_limit() -> None:
    text = GOOD.replace("bandwidth_bytes_s = 3\n", "")
    assert parse_model(text + SOURCES, "x").bandwidth_bytes_s is None


def test_all_faults_are_named_at_once_with_the_nearest_key() -> None:
    text = GOOD.replace("queue_depth = 4", 'queue_depht = 4\nread_latency = "1 ms"') + SOURCES
    found = problems(
        text.replace("read_latency_ns = 1\n", "").replace("granule_bytes = 5000", "granule_bytes = 5")
    )
    assert "queue_depht: no such key; did you mean 'queue_depth'?" in found
    assert "read_latency: no such key; did you mean 'read_latency_ns'?" in found
    assert "queue_depth: missing" in found
    assert "read_latency_ns: missing" in found
    assert [each for each in found if each.startswith("granule_bytes: ") and "4096" in each]


def test_a_figure_without_a_source_is_refused() -> None:
    found = problems(GOOD + SOURCES.replace('first_touch_ns = "source of first_touch_ns"\n', ""))
    assert found == ("sources.first_touch_ns: missing",)
    assert problems(GOOD) == ("sources: missing",)
    (empty,) = problems(GOOD + SOURCES.replace('"source of queue_depth"', '""'))
    assert empty.startswith("sources.queue_depth: ")


@pytest.mark.parametrize(
    "figure",
    ['read_latency_ns = "1"', "read_latency_ns = 1.5", "read_latency_ns = -1", "read_latency_ns = true"],
)
def test_a_figure_is_a_whole_number(figure: str) -> None:
    (found,) = problems(GOOD.replace("read_latency_ns = 1", figure) + SOURCES)
    assert found.startswith("read_latency_ns: ")


def test_what_is_not_toml_is_said_so() -> None:
    assert problems("name =")[0].startswith("not TOML")


def test_a_file_is_taken_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "slow.toml").write_text(GOOD + SOURCES)
    assert load_model(str(tmp_path / "slow.toml")).name == "slow"
    (tmp_path / "slow.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(StorageModelError, match="not UTF-8 at byte 5"):
        load_model(str(tmp_path / "slow.toml"))


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(BadInputError, match="there is no storage model 'ebs-wram'") as caught:
        load_model("ebs-wram")
    assert caught.value.hint == "did you mean 'ebs-warm'?"
    with pytest.raises(BadInputError) as caught:
        load_model("zzzz")
    assert caught.value.hint == f"known: {', '.join(known_models())}; or give a file"
