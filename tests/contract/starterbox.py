"""Runs the starter in mount and PID namespaces of this host, with a cgroup2 and with an empty /run, /tmp and /var/log."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from quickstart.initramfs.description import FIRST_LINE, encode_word
from quickstart.inspect.unit.seccomp import filter_records
from quickstart.inspect.unit.source import Source

PROGRAM = Path(__file__).parent / "starterbox.sh"


def describe(*records: tuple[str, ...]) -> str:
    """A description with these records, as the build writes them."""
    lines = [FIRST_LINE, *(" ".join(encode_word(word) for word in record) for record in records)]
    return "".join(f"{line}\n" for line in lines)


@dataclass(frozen=True)
class Started:
    """How the starter ended, what it left in RUNDIR, and what each question was answered."""

    status: int
    main_pid: str
    reason: str
    log: str
    answers: dict[str, str]


def run_starter(
    starter: Path, work: Path, text: str, questions: dict[str, str] | None = None, before: str = ""
) -> Started:
    """Start the unit of the description ``text``; ``questions`` are asked by a shell, with $MAIN, when it has started.

    ``before`` is run by that shell first; it may put files into /run and /tmp, which are empty.
    """
    assert os.geteuid() == 0, "namespaces and cgroups need root: run the tests with sudo"
    (work / "unit").write_text(text)
    asked = "".join(f"echo '== {name}'\n{each}\necho\n" for name, each in (questions or {}).items())
    (work / "before").write_text(before)
    (work / "questions").write_text(asked)
    words = [
        "unshare",
        "--mount",
        "--pid",
        "--net",
        "--fork",
        "--mount-proc",
        "--kill-child",
        "--propagation",
        "private",
    ]
    done = subprocess.run(
        [*words, "/bin/sh", PROGRAM, starter, work],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "FROM_PID_1": "passed on"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    said = done.stdout.decode(errors="surrogateescape")
    parts = re.split(r"^== (\S+)\n", said, flags=re.MULTILINE)
    answers = dict(zip(parts[1::2], (part.strip("\n") for part in parts[2::2]), strict=True))
    assert "box-status" in answers, (said, done.stderr)
    return Started(
        int(answers.pop("box-status")),
        answers.pop("box-main-pid"),
        answers.pop("box-reason"),
        answers.pop("box-log"),
        answers,
    )


Record = tuple[str, ...]
UNIT: tuple[Record, ...] = (
    ("unit", "app.service"),
    ("group", "x"),
    ("type", "exec"),
    ("base-environment", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"),
)
SLEEP = ("command", "main", "", "/bin/sleep", "sleep", "600")
STATUS = "cat /proc/$MAIN/status"


def command(when: str, script: str, flags: str = ":") -> Record:
    return "command", when, flags, "/bin/sh", "sh", "-c", script


def start(starter: Path, work: Path, *records: Record, before: str = "", **questions: str) -> Started:
    found = run_starter(starter, work, describe(*UNIT, *records), questions, before)
    assert (found.status, found.reason) == (0, ""), found.log
    return found


class Units:
    """Starts units of any type, whether they start or not."""

    def __init__(self, starter: Path, work: Path) -> None:
        self.starter = starter
        self.work = work

    def start(self, *records: Record, before: str = "", **questions: str) -> Started:
        own = (("unit", "app.service"), ("group", "x"), ("base-environment", "PATH=/usr/bin:/bin"))
        return run_starter(self.starter, self.work, describe(*own, *records), questions, before)


def field(found: Started, name: str) -> str:
    rows = dict(line.split(":\t", 1) for line in found.answers["status"].splitlines() if ":\t" in line)
    return rows[name]


def seccomp(*lines: str) -> Record:
    assigned = tuple((name, value) for name, _, value in (line.partition("=") for line in lines))
    (record,) = filter_records(Source("app.service", assigned, {}))
    return record
