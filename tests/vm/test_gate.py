"""The regression gate on our own code (regression-gate.md): today's series against the committed one, and
three regressions made here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from quickstart.bench.runner import QemuRunner
from quickstart.bench.series import Bench, run_matrix
from quickstart.host.progress import Quiet
from quickstart.image import kerneloptions
from quickstart.measure.matrix import load_matrix
from quickstart.measure.results import Planned, Results
from quickstart.model.words import KernelOptions
from quickstart.profile import known_profiles
from quickstart.report import document
from quickstart.store.store import Store, default_root
from tests.vm.conftest import BUILD_S, Called, quickstart

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
GATE = ROOT / "bench/gate.toml"
REFERENCE = ROOT / "bench/results/gate/results.json"
PROFILE = ROOT / "profiles/nginx/profile.toml"
LIBRARY = "/usr/lib/x86_64-linux-gnu/libweight.so.1"
LIBRARY_BYTES = 20 * 1024 * 1024
READY = '\n[bench.ready]\nkind = "http"\nport = 80\npath = "/"\nstatus = 200\ntimeout_s = 600\n'
SLOW = """\
[Unit]
Before=nginx.service
[Service]
Type=oneshot
ExecStart=/bin/sleep 0.5
[Install]
WantedBy=multi-user.target
"""


@pytest.fixture(scope="module")
def now(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The gate's matrix, measured with the code as it is."""
    out = tmp_path_factory.mktemp("gate") / "now"
    called = quickstart("bench", GATE, "-o", out, "--json", timeout_s=2 * BUILD_S)
    assert called.status == 0, called.err
    return document.load(out / "results.json")


def compared(tmp_path: Path, before: Results, after: Results, *words: str) -> Called:
    for name, results in (("a", before), ("b", after)):
        document.save(results, tmp_path / f"{name}.json")
    return quickstart("bench", "compare", tmp_path / "a.json", tmp_path / "b.json", "--json", *words)


def cut(results: Results, wanted: Sequence[Planned]) -> Results:
    """Of the results what ``wanted`` asks for of nginx."""
    cells = [dataclasses.replace(each.cell, profile="nginx") for each in wanted]
    return dataclasses.replace(
        results,
        plan=tuple(each for each in results.plan if each.cell in cells),
        samples=tuple(each for each in results.samples if each.cell in cells),
    )


def measured(directory: Path, profile: str, configuration: str, storage: str, line: str) -> Results:
    """As many runs of a cell as the gate has; in this process, so that a test may have changed the code."""
    runs = {"quickstart": 3, "standard": 5}[configuration]
    directory.mkdir(exist_ok=True)
    matrix = directory / "m.toml"
    matrix.write_text(
        f'schema = 1\nname = "m"\n[[block]]\nprofiles = ["{profile}"]\nconfigurations = ["{configuration}"]\n'
        f'command_lines = ["{line}"]\nstorages = ["{storage}"]\nclocks = ["virtual"]\nruns = {runs}\ntimeout_s = 900\n'
    )
    asked = Bench(
        load_matrix(matrix, known_profiles()), directory / "out", ("pytest",), "2026-01-02T03:04:05Z"
    )
    with Store(default_root()) as store:
        return run_matrix(asked, QemuRunner(matrix=asked.matrix, store=store, progress=Quiet()), Quiet())


def named(called: Called, kind: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The one cell, which is a regression, and its causes of a kind."""
    assert called.status == 1, f"{called.out}\n{called.err}"
    (cell,) = called.result["cells"]
    assert cell["regression"]
    found: list[dict[str, Any]] = [each for each in cell["causes"] if each["kind"] == kind]
    return cell, found


def phase(cell: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [each for each in cell["phases"] if each["name"] == name]
    return dict(found)


def profile_with(directory: Path, bench: str, *edits: tuple[str, str]) -> Path:
    text = PROFILE.read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    (directory / "nginx").mkdir(parents=True)
    (directory / "nginx/profile.toml").write_text(f"{text}\n[bench]\n{bench}{READY}")
    return directory / "nginx"


def test_the_code_of_now_is_no_later_than_the_committed_reference(tmp_path: Path, now: Results) -> None:
    """Debian's newer packages are no fault of ours: then the reference is to be made again, and the comparison is of both."""
    reference = document.load(REFERENCE)
    called = compared(tmp_path, reference, now)
    if called.status == 2:
        assert "--across-versions" in called.error["hint"], called.error
        called = compared(tmp_path, reference, now, "--across-versions")
    assert called.status == 0, called.out
    assert called.result["valid"]


def test_a_library_of_20_mb_in_the_start_set_is_named(tmp_path: Path, now: Results) -> None:
    profile = profile_with(
        tmp_path,
        f'commands = ["yes library | head -c {LIBRARY_BYTES} >{LIBRARY}"]\n',
        ('data = ["/var/www/**"]', f'data = ["/var/www/**"]\ninclude = ["{LIBRARY}"]'),
        ("budget_mib = 24", "budget_mib = 64"),
    )
    after = measured(tmp_path / "b", str(profile), "quickstart", "ebs-cold", "ours")
    cell, files = named(compared(tmp_path, cut(now, after.plan), after), "initramfs")
    assert files[0]["name"] == f"fast{LIBRARY}"
    assert (files[0]["change"], files[0]["a"], files[0]["b"]) == ("new", None, LIBRARY_BYTES)
    fetch = phase(cell, "fetch")
    assert fetch["difference_ns"] > 0
    assert {cell["causes"][at]["kind"] for at in fetch["causes"]} == {"initramfs"}


def test_a_unit_that_sleeps_half_a_second_before_nginx_is_named(tmp_path: Path, now: Results) -> None:
    profile = profile_with(
        tmp_path,
        'commands = ["systemctl enable slow.service"]\n'
        f"[bench.files]\n\"/etc/systemd/system/slow.service\" = '''\n{SLOW}'''\n",
    )
    after = measured(tmp_path / "b", str(profile), "standard", "local", "stock")
    cell, units = named(compared(tmp_path, cut(now, after.plan), after), "unit")
    assert (units[0]["name"], units[0]["change"]) == ("slow.service", "new")
    assert units[0]["b"] >= 500_000_000
    systemd = phase(cell, "systemd")
    assert "slow.service" in {cell["causes"][at]["name"] for at in systemd["causes"]}


def test_a_kernel_option_that_got_lost_is_named(
    tmp_path: Path, now: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = "cryptomgr.notests"
    ours = KernelOptions.OURS
    left = tuple(each for each in kerneloptions.words_of(ours) if each != lost)
    monkeypatch.setattr(kerneloptions, "WORDS", {**kerneloptions.WORDS, ours: left})
    after = measured(tmp_path / "b", "nginx", "quickstart", "local", "ours")
    cell, options = named(compared(tmp_path, cut(now, after.plan), after), "command_line")
    assert [each["text"] for each in options] == [f"option {lost} is lost"]
    kernel = phase(cell, "kernel")
    assert kernel["difference_ns"] > 0
    assert lost in {cell["causes"][at]["name"] for at in kernel["causes"]}
