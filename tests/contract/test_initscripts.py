"""What we make of an init script, beside what systemd-sysv-generator(8) makes of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import assignments, unit_texts
from quickstart.inspect.unit.initscripts import read_script

GENERATOR = "/usr/lib/systemd/system-generators/systemd-sysv-generator"
# A name that no unit of this host has: the generator leaves scripts with native units out.
NAME = "quickstart-example"
SCRIPTS = {
    "slapd": """\
# Provides:          quickstart-example
# Required-Start:    $remote_fs $network $syslog
# Short-Description: OpenLDAP standalone server
### END INIT INFO
""",
    "a PID file and what it provides": """\
# Provides:          quickstart-example other-name third.sh $mail-transport-agent
# Required-Start:    $local_fs $named $portmap $time
# Should-Start:      mysql $custom quickstart-example
# X-Start-Before:    kdm gdm3
# X-Start-After:     one.sh
# Description:       A long one
#                    that goes on.
### END INIT INFO
# pidfile: /run/example.pid
""",
    "the network": "# Provides: $network\n### END INIT INFO\n# pidfile: none\n",
    "odd spaces and capitals": """\
 #	provides:quickstart-example	x
#REQUIRED-START:\t$network
# Short-Description:
  ### END INIT INFO
#  PIDFILE:   /run/a b.pid
""",
    "fields outside of the header": """\
### END INIT INFO
# Required-Start: late
# Provides: late
### BEGIN INIT INFO
# Required-Start: again
### END INIT INFO
""",
    "a header that does not end": "# Required-Start: one\n# pidfile: /run/x\nexit 0\n# Should-Start: two\n",
}
BEGIN = "#!/bin/sh\n### BEGIN INIT INFO\n"


def sorted_unit(text: str) -> dict[str, list[tuple[str, str]]]:
    """Assignments by section; their order and number say nothing here."""
    return {name: sorted(set(assignments((text,), name))) for name in ("[Unit]", "[Service]")}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_generator_makes_the_same_unit(tmp_path: Path, name: str) -> None:
    assert Path(GENERATOR).exists(), "apt-get install systemd"
    scripts, out = tmp_path / "etc/init.d", tmp_path / "out"
    scripts.mkdir(parents=True)
    (scripts / NAME).write_text(f"{BEGIN}{SCRIPTS[name]}")
    (scripts / NAME).chmod(0o755)
    for level, link in ((2, "S01"), (3, "S20"), (4, "K01"), (5, "S02")):
        (tmp_path / f"etc/rc{level}.d").mkdir()
        (tmp_path / f"etc/rc{level}.d/{link}{NAME}").symlink_to(f"../init.d/{NAME}")
    out.mkdir()
    places = {"SYSTEMD_SYSVINIT_PATH": str(scripts), "SYSTEMD_SYSVRCND_PATH": str(tmp_path / "etc")}
    subprocess.run([GENERATOR, out, out, out], env={**os.environ, **places}, timeout=60, check=True)
    root = ImageRoot(tmp_path)
    (ours,) = unit_texts(root, f"{NAME}.service")
    # It names the script where it really is.
    theirs = (out / f"{NAME}.service").read_text().replace(str(scripts), "/etc/init.d")
    assert sorted_unit(ours) == sorted_unit(theirs)
    links = {each.name for each in out.glob("*.service") if each.is_symlink()}
    assert links == {*read_script(root, f"{NAME}.service").aliases}
