"""A report of a stranger's results.json: whatever it contains, the page runs no script and the figures are complete."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import re
import shutil
import warnings
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from quickstart.bench.series import invalid
from quickstart.errors import BadInputError, IncomparableError, ResultsError
from quickstart.measure.results import Circumstances, Phase, Planned, Results
from quickstart.report import document
from quickstart.report.compare import compare
from quickstart.report.report import write_report
from tests.unit.benchdata import realistic

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "attribute": '" onload="alert(1)" x=\'',
    "end of a blob": "</script></style></svg></title>--><img src=x onerror=alert(1)>",
    "address": "javascript:alert(1)//<a href='javascript:alert(1)'>",
    "svg": "<svg onload=alert(1)><use href='data:image/svg+xml,x#x'/></svg>",
    "comment": "--><script>x</script><!-- --!> ]]>",
    "template": "{{ 7 * 7 }}{% include '/etc/passwd' %}${7*7}",
    "mathtext": r"$\frac{1$ and $\undefined{x}$",
    "replacement": r"\1 \g<0> \g<name> \d",
    "terminal": "\x1b]0;owned\x07\x1b[2J\x00\x9b31m\u202e\ufeff",
    "path": "../../../../etc/cron.d/x",
    "long": "x" * 4000,
    "lines": "a\nb\r\nc\td",
}
# What the page and its figures are made of (the figures' metadata have rdf: and cc: and dc:).
TAGS = re.compile(
    "html|head|meta|title|style|body|h[123]|p|ol|ul|li|em|strong|span|div|a|code|br|dl|dt|dd|table|caption|thead|tbody|tr|th|td|"
    "figure|figcaption|svg|desc|defs|g|path|use|clippath|rect|pattern|metadata|(rdf|cc|dc):[a-z]+"
)


def poisoned(text: str) -> Results:
    """Results in which every string that is not one of our words is ``text``, or begins with it."""
    base = realistic(configurations=("standard", "quickstart"), runs=3, holes=True)
    table = {text: text, f"{text}2": text}

    def cell_of(cell: Any) -> Any:
        return dataclasses.replace(cell, profile=text)

    samples = tuple(
        dataclasses.replace(
            each,
            cell=cell_of(each.cell),
            censored=text if each.censored else "",
            phases=()
            if each.censored
            else (Phase(text, 0, each.t_app_ns // 2), Phase("kernel", each.t_app_ns // 2, each.t_app_ns)),
            units=() if each.censored else (Phase(text, 0, 5),),
        )
        for each in base.samples
    )
    plan = tuple(Planned(cell_of(each.cell), each.runs + 1, each.timeout_s) for each in base.plan)
    circumstances = Circumstances(
        host=table, versions=table, artefacts=table, poll_interval_ms=10, facts=base.circumstances.facts
    )
    return dataclasses.replace(
        base, name=text, command=(text, text), plan=plan, samples=samples, circumstances=circumstances
    )


class Page(HTMLParser):
    """Demands of every tag that it is one of ours, and of every attribute that nothing is run or fetched by it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.policies: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attributes:
            assert not name.startswith("on"), (tag, name, value)
            assert name not in ("srcdoc", "formaction", "ping", "background"), (tag, name)
            if name in ("href", "xlink:href", "src", "action", "data"):
                assert (value or "").startswith("#"), (tag, value)
        found = dict(attributes)
        if tag == "meta" and found.get("http-equiv") == "Content-Security-Policy":
            self.policies.append(found["content"] or "")


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_page_runs_nothing(tmp_path: Path, kind: str) -> None:
    results = document.parse(document.text_of(poisoned(HOSTILE[kind])), "results.json")
    with warnings.catch_warnings():
        # A glyph that the font has not is a box.
        warnings.filterwarnings("ignore", message="Glyph")
        write_report(results, (HOSTILE[kind], *invalid(results)), tmp_path / "out")
    text = (tmp_path / "out/report.html").read_text()
    page = Page(text)
    assert [tag for tag in page.tags if not TAGS.fullmatch(tag)] == []
    assert "49" not in re.findall(r"QuickStart bench: ([^<]*)", text)[0]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.parent in (tmp_path / "out", tmp_path / "out/figures") for path in files)
    assert not any(path.name.startswith((".", "-")) for path in files)
    for path in files:
        assert len(path.name) < 100
        if path.suffix == ".svg":
            ET.fromstring(path.read_text())  # noqa: S314 - it is the test
        if path.suffix == ".html":
            assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", text)


@pytest.mark.parametrize("other", ["", "y"])
def test_a_long_name_of_a_profile_becomes_a_short_name_of_a_file(tmp_path: Path, other: str) -> None:
    """Two profiles that are the same in the first 4000 characters have two figures."""
    profiles = ["x" * 4000, *(["x" * 4000 + other] if other else [])]
    results = realistic(profiles=profiles, configurations=("quickstart",), runs=1)
    write_report(results, (), tmp_path)
    names = [path.name for path in tmp_path.glob("figures/phases-xxx*.svg")]
    assert len(names) == len(profiles) and all(len(name) < 150 for name in names)


def test_the_page_forbids_scripts_before_anything_else_is_on_it(tmp_path: Path) -> None:
    write_report(realistic(), (), tmp_path)
    text = (tmp_path / "report.html").read_text()
    (policy,) = Page(text).policies
    assert policy.split("; ") == [
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    assert text.index("Content-Security-Policy") < text.index("<title>")


def entry(**changes: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(document.text_of(realistic(configurations=("quickstart",), runs=1)))
    found.update(changes)
    return found


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("runs.0.t_total_ns", 10**400),
        ("runs.0.t_pr_ns", -(10**30)),
        ("runs.0.volume_reads", 10**30),
        ("runs.0.fetch_ns", 2**63),
        ("runs.0.number", 10**12),
        ("plan.0.runs", 10**12),
        ("plan.0.timeout_s", 10**12),
        ("plan.0.stagger_ms", 10**12),
        ("poll_interval_ms", 10**400),
        ("runs.0.phases", [{"name": f"p{number}", "begin_ns": 0, "end_ns": 1} for number in range(100)]),
        ("command", ["x"] * 100_000),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_numbers_without_measure_are_refused(where: str, value: object) -> None:
    found = entry()
    *path, last = where.split(".")
    place: Any = found
    for word in path:
        place = place[int(word)] if word.isdigit() else place[word]
    place[last] = value
    with pytest.raises(ResultsError) as caught:
        document.parse(json.dumps(found), "results.json")
    assert where.split(".")[-1] in str(caught.value)


def test_applications_without_number_are_refused() -> None:
    found = entry()
    found["plan"] = [{**found["plan"][0], "profile": f"p{number}"} for number in range(100)]
    found["runs"] = []
    with pytest.raises(ResultsError, match="plan: 100 applications"):
        document.parse(json.dumps(found), "results.json")


@pytest.mark.parametrize("kind", ["figures", "panels"])
def test_a_report_that_would_draw_for_hours_is_refused(kind: str) -> None:
    found = entry()
    of = {**found["plan"][0], "clock": "wall"}
    if kind == "figures":
        plan = [
            {**of, "profile": f"p{number}", "storage": storage}
            for number in range(43)
            for storage in ("ebs-warm", "ebs-cold", "local")
        ]
    else:
        launch = {"pattern": "staggered", "instances": 2}
        plan = [{**of, **launch, "stagger_ms": number} for number in range(1, 18)]
    found["plan"], found["runs"] = plan, []
    said = "129 combinations" if kind == "figures" else "17 ways to launch"
    with pytest.raises(ResultsError, match=f"plan: {said}.* at most"):
        document.parse(json.dumps(found), "results.json")
    found["plan"] = plan[1:]
    document.parse(json.dumps(found), "results.json")


def test_a_name_without_end_is_refused() -> None:
    with pytest.raises(ResultsError, match="name"):
        document.parse(json.dumps(entry(name="x" * 5000)), "results.json")


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"a":' * 100_000, "NaN", '"\\ud800"', "1" * 5000], ids="abcde"
)
def test_json_without_measure_is_refused(text: str) -> None:
    with pytest.raises(ResultsError):
        document.parse(text, "results.json")


def test_a_results_json_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "link").symlink_to("/etc/passwd")
    for name, why in (
        ("pipe", "a pipe"),
        ("/dev/zero", "a device"),
        ("large", "at most"),
        ("link", "a symbolic link"),
        ("none", "No such"),
    ):
        with pytest.raises(BadInputError, match=why):
            document.load(tmp_path / name)


def test_a_report_does_not_leave_its_directory(tmp_path: Path) -> None:
    """A stranger's directory whose report.html and figures are links."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "victim").write_text("as it was")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/report.html").symlink_to(tmp_path / "victim")
    write_report(realistic(), (), tmp_path / "out")
    assert (tmp_path / "victim").read_text() == "as it was"
    assert not (tmp_path / "out/report.html").is_symlink()
    shutil.rmtree(tmp_path / "out/figures")
    (tmp_path / "out/figures").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInputError, match="is a link"):
        write_report(realistic(), (), tmp_path / "out")
    assert list((tmp_path / "elsewhere").iterdir()) == []


MOST = 2**63 - 1
ANY, COUNTS = (0, 1, -1, 5, 10**9, MOST, -MOST), (0, 1, 10**6, MOST)


def extreme(seed: int, clock: str) -> Results:
    """Results that hold, of numbers at the ends of what may be."""
    draw = random.Random(seed)
    found = json.loads(
        document.text_of(realistic(configurations=("standard", "quickstart"), runs=2, clocks=(clock,)))
    )
    for run in found["runs"]:
        t_app_ns = draw.choice([1, 5, 10**9, MOST])
        t_pr_ns = draw.choice([each for each in ANY if 0 < each + t_app_ns <= MOST])
        run.update(t_pr_ns=t_pr_ns, t_app_ns=t_app_ns, t_total_ns=t_pr_ns + t_app_ns)
        for name in ("uptime_ns", "ready_uptime_ns", "fetch_ns", "took_ns", "initramfs_bytes"):
            run[name] = draw.choice(COUNTS)
        for name in ("volume_reads", "volume_read_bytes", "root_reads", "root_read_bytes"):
            run[name] = draw.choice(COUNTS)
        run["before_kernel_ns"] = draw.choice(ANY)
        run["overlap_ns"] = draw.choice(COUNTS) if clock == "virtual" else 0
        names = draw.sample(["kernel", "network", "ready", "x"], draw.randint(0, 4))
        ends = [sorted((draw.choice(ANY), draw.choice(ANY))) for _ in names]
        run["phases"] = run["units"] = [
            {"name": name, "begin_ns": begin, "end_ns": end}
            for name, (begin, end) in zip(names, ends, strict=True)
        ]
    return document.parse(json.dumps(found), "results.json")


@pytest.mark.parametrize("clock", ["virtual", "wall"])
@pytest.mark.parametrize("seed", range(6))
def test_any_numbers_make_a_page_and_a_comparison_or_one_error(tmp_path: Path, seed: int, clock: str) -> None:
    first, second = extreme(2 * seed, clock), extreme(2 * seed + 1, clock)
    with warnings.catch_warnings():
        # All bars may begin and end at the same place.
        warnings.simplefilter("ignore", UserWarning)
        write_report(first, invalid(first), tmp_path)
    assert (tmp_path / "report.html").exists()
    with contextlib.suppress(IncomparableError):
        compare(first, second)


def test_a_run_that_takes_no_time_from_the_kernel_on_is_refused() -> None:
    found = entry()
    found["runs"][0].update(t_pr_ns=5, t_app_ns=0, t_total_ns=5)
    with pytest.raises(ResultsError, match="from the kernel's start to ready takes time"):
        document.parse(json.dumps(found), "results.json")
