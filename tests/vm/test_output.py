"""What a unit says before systemd is there is in the journal, as the unit's, and goes on to it (docs/internals/output.md)."""

from __future__ import annotations

import json
from pathlib import Path

from tests.vm.parity import described, small_root
from tests.vm.parity_adopted import SETTLED, boot

UNIT = "parity-says.service"
OWN = "/usr/local/lib/parity"
# It says a line when it starts, and one for each signal.
SAYS = """#!/usr/bin/perl
$| = 1;
print "<4>early\\n";
print STDERR "and an error\\n";
# As syslog(3) does.
socket(my $log, 1, 2, 0) or die $!;
connect($log, pack("Sa*", 1, "/dev/log\\0")) or die $!;
send($log, "<12>says: by syslog $_", 0) or die $! for 1 .. 100;
$SIG{USR1} = sub { print "again\\n" or die; print "x" x 65536, "\\n" or die };
sleep 1 while 1;
"""
SERVICE = f"""[Service]
Type=exec
User=nobody
SyslogIdentifier=says
ExecStart={OWN}/says
[Install]
WantedBy=multi-user.target
"""
INSTALL = f"""mkdir -p {OWN}; cp /fast/quickstart/parity/says {OWN}/; chmod 755 {OWN}/says
cp /fast/quickstart/parity/service /etc/systemd/system/{UNIT}
mkdir -p /etc/systemd/system/multi-user.target.wants
ln -s ../{UNIT} /etc/systemd/system/multi-user.target.wants/
"""
# The volume is full when it speaks again: journald makes room, and the process goes on.
QUESTIONS = f"""wait_settled
main=$(systemctl show -P MainPID {UNIT})
dd if=/dev/zero of=/full bs=1M 2>/dev/null
kill -USR1 $main; sleep 1; kill -USR1 $main; sleep 2; rm /full
[ "$main" = "$(systemctl show -P MainPID {UNIT})" ] && systemctl -q is-active {UNIT} && echo lives
ls /var/log/quickstart.log 2>&1
journalctl -u {UNIT} _COMM=says -o json | cut -c1-4000
"""


def test_the_journal_has_what_was_said_before_systemd(artefact: Path, tmp_path: Path) -> None:
    root = small_root(artefact, tmp_path)
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    (units / UNIT).write_text(SERVICE)
    files = {
        "service": SERVICE,
        "says": SAYS,
        "pre": INSTALL,
        "description": described(root, UNIT) + "command pre + /bin/sh sh /fast/quickstart/parity/pre\n",
    }
    values = {"UNIT": UNIT, "UNIT_TYPE": "exec", "UNIT_GROUP": f"system.slice/{UNIT}"}
    values |= dict.fromkeys(("PID_FILE", "READY_PORT", "READY_PATH"), "")
    edits = " ".join(f"-e 's#^{key}=.*#{key}={value}#'" for key, value in values.items())
    hook = f"cp $Q/parity/description $Q/unit; sed -i {edits} $Q/config; . $Q/config"
    lives, *lines = boot(artefact, f"{SETTLED}{QUESTIONS}", files, hook).splitlines()
    assert lives == "lives"
    said = [json.loads(line) for line in lines if line.startswith("{")]
    labels = [(each["MESSAGE"], each["PRIORITY"]) for each in said if each["_TRANSPORT"] == "stdout"]
    assert labels[:2] == [("early", "4"), ("and an error", "6")]
    # journalctl prints null for a long line.
    texts = [each["MESSAGE"] or "" for each in said]
    assert "again" in texts
    assert [text for text in texts if "syslog" in text] == [f"by syslog {number}" for number in range(1, 101)]
    for each in said:
        assert (each["_SYSTEMD_UNIT"], each["SYSLOG_IDENTIFIER"], each["_UID"]) == (UNIT, "says", "65534")
    assert "ls: cannot access '/var/log/quickstart.log': No such file or directory" in lines
