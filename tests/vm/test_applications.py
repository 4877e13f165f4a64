"""Heavy runtimes, stacks and wrappers, each from `profile new` to a settled machine, and to a second early start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.vm.conftest import ADOPTED, BUILD_S, EARLY, quickstart

SETTLED = (Path(__file__).with_name("guest") / "settled.sh").read_text()
RUN_S = 1800.0


@dataclass(frozen=True)
class Application:
    """``words`` are those of `profile new`, ``unit`` is the unit that the profile then has, and ``works`` is a
    command that succeeds in the settled machine.
    """

    words: tuple[str, ...]
    unit: str
    works: str


APPLICATIONS = {
    "postgresql": Application(
        ("--package", "postgresql", "--unit", "postgresql", "--ready", "tcp:5432"),
        "postgresql@15-main.service",
        "runuser -u postgres -- psql -Atc 'select 1'",
    ),
    "php": Application(
        (
            "--package",
            "nginx",
            "--package",
            "php8.2-fpm",
            "--unit",
            "php8.2-fpm",
            "--unit",
            "nginx",
            "--ready",
            "http:80/",
        ),
        "nginx.service",
        "systemctl is-active php8.2-fpm",
    ),
    "rabbitmq": Application(
        ("--package", "rabbitmq-server", "--unit", "rabbitmq-server", "--ready", "tcp:5672"),
        "rabbitmq-server.service",
        "rabbitmq-diagnostics -q ping",
    ),
    "influxdb": Application(
        ("--package", "influxdb", "--unit", "influxdb", "--ready", "tcp:8086"),
        "influxdb.service",
        'bash -c \'exec 3<>/dev/tcp/127.0.0.1/8086; printf "GET /ping HTTP/1.0\\r\\n\\r\\n" >&3; read -r line <&3; '
        "[[ $line == *204* ]]'",
    ),
    "tomcat": Application(
        ("--package", "tomcat10", "--unit", "tomcat10", "--ready", "http:8080/"),
        "tomcat10.service",
        "systemctl is-active tomcat10",
    ),
}
ASK = (
    ADOPTED
    + """\
WORKS >/dev/null && echo works
systemctl --failed --no-legend --plain | wc -l
sync
"""
)


@pytest.mark.full
@pytest.mark.parametrize("name", APPLICATIONS)
def test_from_profile_new_to_a_second_early_start(name: str, tmp_path: Path) -> None:
    application = APPLICATIONS[name]
    profile, out = tmp_path / "profile", tmp_path / "out"
    written = quickstart(
        "profile", "new", name, *application.words, "-o", profile, "--json", timeout_s=2 * BUILD_S
    )
    assert written.status == 0, written.err
    built = quickstart(
        "build", "--no-trial", "--profile", profile, "-o", out, "--json", timeout_s=2 * BUILD_S
    )
    assert built.status == 0, built.err
    verified = quickstart("verify", out, "--json", timeout_s=BUILD_S)
    assert (verified.status, verified.result["fallback"]) == (0, ""), (verified.err, verified.out[-2000:])
    ask = SETTLED + ASK.replace("WORKS", application.works).replace("UNIT", application.unit)
    # The second time, the volume has been used: the stamp, or the comparison of all files, lets it start early again.
    for _ in range(2):
        called = quickstart("run", out, "--json", *EARLY, "--exec", ask, timeout_s=RUN_S)
        assert called.status == 0, called.err
        assert called.result["fallback"] is None
        assert called.result["exec_stdout"].split() == ["running", "same", "active", "works", "0"]
