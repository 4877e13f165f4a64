"""The composition of a booted machine, as a document."""

from __future__ import annotations

import pytest

from quickstart.errors import GuestError
from quickstart.measure.baseline import parse, questions

ANSWERS = {
    "settled": "",
    "state": "running",
    "kernel": "6.1.0-1-cloud-amd64",
    "cmdline": "console=ttyS0 root=UUID=11111111-2222-3333-4444-555555555555 ro panic=10",
    "packages": "installed cron 3.0pl1-162\nconfig-files rsyslog 8.2\ninstalled nginx 1.22.1-9",
    "enabled_units": "ssh.service enabled enabled\ncron.service enabled enabled",
    "default_target": "graphical.target",
    "startup": "Startup finished in 1s (kernel) + 2s (userspace) = 3s\ngraphical.target reached",
    "critical_chain": 'The time is printed after the "@" character.\n\ngraphical.target @2s\n└─nginx.service @1s +1s',
    "critical_chain_of_unit": "The time is printed.\n\nnginx.service +1s\n└─basic.target @1s",
    "dhcp": "[   17.250000] debian dhclient[412]: bound to 10.0.2.15 -- renewal in 42 seconds.\n-- not a line",
    "end": "",
}


def said(answers: dict[str, str]) -> str:
    return "".join(f"\n== {name}\n{text}\n" for name, text in answers.items())


def test_the_answers_become_values() -> None:
    found = parse(said(ANSWERS))
    assert found["state"] == "running"
    assert found["packages"] == {"cron": "3.0pl1-162", "nginx": "1.22.1-9"}
    assert found["enabled_units"] == ["cron.service", "ssh.service"]
    assert found["critical_chain"] == ["graphical.target @2s", "└─nginx.service @1s +1s"]
    assert found["critical_chain_of_unit"][0] == "nginx.service +1s"
    assert found["dhcp"] == [
        {"uptime_s": 17.25, "message": "dhclient[412]: bound to 10.0.2.15 -- renewal in 42 seconds."}
    ]
    assert found["cmdline"] == "console=ttyS0 root=UUID=… ro panic=10"


def test_answers_that_were_cut_off_are_no_document() -> None:
    cut = said({name: text for name, text in ANSWERS.items() if name != "end"})
    with pytest.raises(GuestError, match="did not answer"):
        parse(cut)


def test_an_answer_that_did_not_come_is_no_document() -> None:
    with pytest.raises(GuestError, match="no answer to enabled_units"):
        parse(said({**ANSWERS, "enabled_units": ""}))


def test_every_answer_is_asked_for() -> None:
    text = questions("nginx.service")
    assert [name for name in ANSWERS if f"echo '== {name}'" not in text] == []
    assert "UNIT='nginx.service'" in text
