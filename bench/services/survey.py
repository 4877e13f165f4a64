"""Try the daemons of random.txt, from `profile new` to a settled machine without a failed unit.

sudo .venv/bin/python -m bench.services.survey WORK [PACKAGE...]

For each daemon, the script gives package and unit to `profile new`, which finds the readiness by itself. Then
it builds, with the trial at the end of the build, and boots the artefact once until the machine has settled.
WORK gets the profiles, artefacts and messages. The results go to random.json beside this file after each
daemon, and the table of docs/users/services.md is made from them. A daemon with a result is not tried again,
so a run continues where another was interrupted; with PACKAGE, only these are tried, and tried again.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from bench.services.coverage import PAGE, with_part
from bench.services.draw import LIST, described
from quickstart import __version__
from quickstart.host import door
from quickstart.store.store import source_digest

RESULTS = Path(__file__).with_name("random.json")
MARK = "bench/services/survey.py"
# In the messages of `profile new` (newprofile/survey.py), of its first boot, which is a stock boot.
_NOT_RUNNING = ("fails by itself", "does not run once the machine has booted")
_PROFILE_S, _BUILD_S, _RUN_S = 3600, 3600, 1200
_NS_PER_S = 1e9
_SHOWN_CHARACTERS = 200


class Outcome(StrEnum):
    """How far a daemon came."""

    FAST = "fast"
    STOCK = "stock"
    IDLE = "idle"
    REFUSED = "refused"
    FAILED = "failed"


_MEANING = {
    Outcome.FAST: "it starts early, and the machine settles without a failed unit",
    Outcome.STOCK: "the trial of `build` chose the stock boot",
    Outcome.IDLE: "as the package is installed, the daemon does not run after a stock boot either",
    Outcome.REFUSED: "`profile new` writes no profile, or `build` refuses an early start; the machine boots the stock way",
    Outcome.FAILED: "the early start or the settled machine has a fault",
}


@dataclass(frozen=True, kw_only=True)
class Tried:
    """The outcome for one daemon, and the reason, if it is not ``FAST``. The times are those of the trial, in s."""

    unit: str
    outcome: Outcome
    why: str = ""
    ready: str = ""
    early_s: float = 0.0
    stock_s: float = 0.0


def drawn(text: str) -> tuple[tuple[str, str], ...]:
    """The packages of random.txt, each with its unit."""
    lines = (line.split() for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return tuple((package, unit) for package, unit in lines)


def called(*words: str | Path, timeout_s: float) -> Mapping[str, Any]:
    """The document that a verb prints with --json."""
    argv = [Path(sys.executable).with_name("quickstart"), *words, "--json"]
    done = door.run(argv, timeout_s=timeout_s, check=False)
    found: Mapping[str, Any] = json.loads(done.stdout)
    return found


def attempt(package: str, unit: str, work: Path) -> Tried:
    """Run the three verbs for one daemon. Its artefact is removed at the end."""
    place = work / package
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    words = ("profile", "new", package, "--package", package, "--unit", unit, "-o", place / "profile")
    new = called(*words, timeout_s=_PROFILE_S)
    if not new["ok"]:
        return of_error(unit, new["error"])
    out = place / "out"
    built = called("build", "--profile", place / "profile", "-o", out, timeout_s=_BUILD_S)
    try:
        if not built["ok"]:
            return of_error(unit, built["error"])
        run = called("run", out, "--snapshot", "--exec", "true", timeout_s=_RUN_S)
        return judged(unit, new["result"], built["result"], run)
    finally:
        shutil.rmtree(out, ignore_errors=True)


def of_error(unit: str, error: Mapping[str, Any]) -> Tried:
    """The outcome for a verb that ended with ``error``."""
    why = "\n".join((error["message"], *error.get("details", ())))
    refusals = ("UnsupportedUnitError", "NoProfileError", "StartSetError")
    is_idle = error["kind"] == "NoProfileError" and any(words in why for words in _NOT_RUNNING)
    outcome = Outcome.REFUSED if error["kind"] in refusals else Outcome.FAILED
    outcome = Outcome.IDLE if is_idle else outcome
    return Tried(unit=unit, outcome=outcome, why=why)


def judged(unit: str, new: Mapping[str, Any], built: Mapping[str, Any], run: Mapping[str, Any]) -> Tried:
    """The outcome for the documents of the three verbs."""
    trial = built["trial"] or {"early_ns": 0, "stock_ns": 0, "fallback": ""}
    found = Tried(
        unit=unit,
        outcome=Outcome.FAST,
        ready=new["ready"],
        early_s=round(trial["early_ns"] / _NS_PER_S, 2),
        stock_s=round(trial["stock_ns"] / _NS_PER_S, 2),
    )
    outcome, why = _fault(built, trial, run)
    return found if not why else Tried(**{**asdict(found), "outcome": outcome, "why": why})


def _fault(built: Mapping[str, Any], trial: Mapping[str, Any], run: Mapping[str, Any]) -> tuple[Outcome, str]:
    if trial["fallback"]:
        return Outcome.STOCK, f"the early start did not happen: {trial['fallback']}"
    if built["early"] == "never":
        return Outcome.STOCK, "the early start was not ready sooner"
    if not run["ok"]:
        return Outcome.FAILED, run["error"]["message"]
    result = run["result"]
    if result["fallback"]:
        return Outcome.FAILED, result["fallback"]
    if result["settled"] != "running" or result["failed_units"]:
        return Outcome.FAILED, f"the machine is {result['settled']}: {', '.join(result['failed_units'])}"
    return Outcome.FAST, ""


def document(found: Mapping[str, Tried]) -> str:
    """The text of random.json."""
    content = {
        "schema": 1,
        "quickstart": f"{__version__}, source {source_digest('quickstart')[:16]}",
        "daemons": {name: asdict(each) for name, each in sorted(found.items())},
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def read_document(text: str) -> dict[str, Tried]:
    """The daemons of a text that ``document`` returned."""
    return {
        name: Tried(**{**each, "outcome": Outcome(each["outcome"])})
        for name, each in json.loads(text)["daemons"].items()
    }


def page_part(names: Sequence[tuple[str, str]], found: Mapping[str, Tried]) -> str:
    """The figures of the page: how many daemons had each outcome, and a row for each daemon."""
    counts = Counter(each.outcome for each in found.values())
    rows = [_row(package, unit, found.get(package)) for package, unit in names]
    return "\n".join(
        (
            f"Of {len(names)} daemons, {len(found)} were tried:",
            "",
            "| outcome | daemons | meaning |",
            "|---|---|---|",
            *(f"| {outcome} | {counts[outcome]} | {meaning} |" for outcome, meaning in _MEANING.items()),
            "",
            "| package | unit | outcome | readiness request | early start and stock boot, s | why |",
            "|---|---|---|---|---|---|",
            *rows,
        )
    )


def shortened(text: str) -> str:
    """``text`` for a cell of the table; random.json has the whole text."""
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _row(package: str, unit: str, tried: Tried | None) -> str:
    if tried is None:
        return f"| {package} | {unit} | not tried | | | |"
    times = f"{tried.early_s:.1f}, {tried.stock_s:.1f}" if tried.stock_s else ""
    # A bar would end the cell.
    why = shortened(" ".join(tried.why.replace("|", "/").split()))
    return f"| {package} | {unit} | {tried.outcome} | {tried.ready} | {times} | {why} |"


def main(words: Sequence[str]) -> None:
    parser = described(__doc__)
    parser.add_argument("work", metavar="WORK", type=Path)
    parser.add_argument("packages", metavar="PACKAGE", nargs="*")
    asked = parser.parse_args(words)
    work, packages = asked.work, asked.packages
    names = drawn(LIST.read_text(encoding="utf-8"))
    found = read_document(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    page = Path(__file__).parents[2] / PAGE
    for package, unit in names:
        if package not in (packages or set(dict(names)) - set(found)):
            continue
        found[package] = attempt(package, unit, work)
        print(f"{package}: {found[package].outcome} {found[package].why}", flush=True)
        RESULTS.write_text(document(found), encoding="utf-8")
        text = page.read_text(encoding="utf-8")
        page.write_text(with_part(text, page_part(names, found), MARK), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
