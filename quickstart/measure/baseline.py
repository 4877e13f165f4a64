"""Record what a distribution's boot (the configurations `standard` and `standard-tuned`) consists of, for example its
packages and enabled units. The booted machine itself reports these parts.

The records are JSON documents in the repository (bench/baseline). The records describe the boots with which the bench
compares the application's early start.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any

from quickstart.errors import GuestError
from quickstart.guest import Guest, executing
from quickstart.measure.configuration import Boot
from quickstart.model import Profile, Readied

SCHEMA = 1
# A line with its name precedes each answer. The questions are asked when the boot is complete. `state` says whether
# something failed.
_QUESTIONS = {
    "settled": "systemctl is-system-running --wait >/dev/null",
    "state": "systemctl is-system-running",
    "kernel": "uname -r",
    "cmdline": "cat /proc/cmdline",
    "packages": "dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\\n'",
    # With --root, systemctl reads the files itself. Under emulation, systemd may take longer for an answer than its
    # clients wait.
    "enabled_units": "systemctl --root=/ list-unit-files --state=enabled --no-legend --no-pager",
    "default_target": "systemctl get-default",
    "startup": "systemd-analyze time",
    "critical_chain": "systemd-analyze critical-chain --no-pager",
    "critical_chain_of_unit": 'systemd-analyze critical-chain --no-pager "$UNIT"',
    "dhcp": (
        # dhclient says everything twice, once on the stderr of what has called it.
        "journalctl -b -o short-monotonic --no-pager | grep -E 'DHCP|bound to|Gained carrier' | grep -v ' sh\\['"
    ),
}
_SAID_BYTES = 1 << 20
_LIMIT_S = 900.0
_MONOTONIC = re.compile(r"\[ *(\d+\.\d+)\] \S+ (.*)")


def questions(unit: str) -> str:
    """The shell commands that print what a boot consists of. ``parse`` reads their output."""
    asked = "\n".join(f"echo; echo '== {name}'\n{command}" for name, command in _QUESTIONS.items())
    return f"export LC_ALL=C SYSTEMD_COLORS=0; UNIT='{unit}'\n{asked}\necho; echo '== end'\n"


def parse(text: str) -> Mapping[str, Any]:
    """What a boot consists of, as JSON values. ``text`` is the output of the commands of `questions`. Raises GuestError
    when the output is not complete.
    """
    parts = re.split(r"^== (\w+)\n", text, flags=re.MULTILINE)
    answers = dict(zip(parts[1::2], (part.strip() for part in parts[2::2]), strict=True))
    if "end" not in answers:
        raise GuestError("the guest did not answer what it consists of", console_tail=text[-2000:])
    if silent := [name for name, answer in answers.items() if not answer and name not in ("settled", "end")]:
        raise GuestError(f"the guest has no answer to {', '.join(silent)}", hint="try again")
    packages = (line.split() for line in answers["packages"].splitlines())
    # /proc/cmdline has the volume's UUID, which says nothing of the composition.
    return {
        "state": answers["state"],
        "kernel": answers["kernel"],
        "cmdline": re.sub(r"root=UUID=\S+", "root=UUID=…", answers["cmdline"]),
        "default_target": answers["default_target"],
        "enabled_units": sorted(line.split()[0] for line in answers["enabled_units"].splitlines() if line),
        "packages": {words[1]: words[2] for words in packages if words[:1] == ["installed"]},
        "startup": [line.strip() for line in answers["startup"].splitlines()],
        "critical_chain": _chain(answers["critical_chain"]),
        "critical_chain_of_unit": _chain(answers["critical_chain_of_unit"]),
        "dhcp": [
            {"uptime_s": float(match[1]), "message": match[2]}
            for line in answers["dhcp"].splitlines()
            if (match := _MONOTONIC.match(line))
        ],
    }


def _chain(text: str) -> list[str]:
    """The lines of the last paragraph in the output of systemd-analyze. The paragraphs before it explain the
    notation.
    """
    return text.rpartition("\n\n")[2].splitlines()


def record(
    guest: Guest, profile: Profile, boot: Boot, readied: Readied, accelerator: str
) -> Mapping[str, Any]:
    """The document about the boot of ``guest``, which is ready. The document says what the boot consists of, and has
    the times of this single boot on the host's clock.
    """
    out, err = io.BytesIO(), io.BytesIO()
    executing(guest).execute(questions(profile.unit), out, err, _LIMIT_S, _SAID_BYTES)
    return {
        "schema": SCHEMA,
        "profile": profile.name,
        "configuration": boot.configuration,
        "command_line": boot.command_line,
        "accelerator": accelerator,
        "ready_uptime_ns": readied.ready.uptime_ns,
        "root_reads": readied.root_io.reads,
        "root_read_bytes": readied.root_io.read_bytes,
        "initramfs_bytes": sum(path.stat().st_size for path in boot.initrds),
        **parse(out.getvalue().decode(errors="replace")),
    }
