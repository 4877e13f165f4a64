"""/usr/sbin/quickstart compares what is packed with the volume, in a root of its own with the host's coreutils, mounts and
namespaces (as root).
"""

from __future__ import annotations

import json

import pytest

from tests.contract.guestbox import BUILD, CHANGE, FAILS, Machine, machine

__all__ = ["machine"]

# It mounts what only root of the host may.
pytestmark = pytest.mark.host_root


def test_nothing_differs_before_and_after_it_is_recorded(machine: Machine) -> None:
    said = machine(
        "quickstart check; quickstart record /fast/quickstart; quickstart check; readlink /var/lib/quickstart/current; "
        "tr '\\0' '|' </var/lib/quickstart/current/names; ls /var/lib/quickstart; test -s /var/lib/quickstart/current/kernel"
    )
    assert said.startswith(f"{BUILD}\nopt/app/program|opt/app/link|")
    assert said.endswith(f"|{BUILD}\ncurrent\n")


def test_only_root_reads_what_is_recorded(machine: Machine) -> None:
    """It names files in directories that not everybody may enter, with their sizes."""
    said = machine("quickstart record; cd /var/lib/quickstart/current; stat -c %a * | sort -u")
    assert said == "600\n"
    # As an ordinary user's id(1) says it.
    refused = f"id() {{ echo 1000; }}; set -- check; (. $(command -v quickstart)) 2>/tmp/said {FAILS}"
    assert "check has to run as root" in machine(f"{refused}; cat /tmp/said")


def test_what_is_recorded_stays(machine: Machine) -> None:
    """A second record of the same build takes no notice of what the volume has by now; one of another build does."""
    machine(
        f"quickstart record; stat -c %y /var/lib/quickstart/current/facts >/tmp/1; sleep 1.1; {CHANGE}; quickstart record; "
        "stat -c %y /var/lib/quickstart/current/facts | cmp - /tmp/1; "
        f"echo {BUILD[::-1]} >/fast/quickstart/part-b; quickstart record 2>/tmp/2 {FAILS}; "
        "grep -q 'nothing was recorded' /tmp/2; [ $(readlink /var/lib/quickstart/current) = " + BUILD + " ]"
    )


def test_a_new_build_takes_the_old_ones_place(machine: Machine) -> None:
    said = machine(
        f"quickstart record; echo {BUILD[::-1]} >/fast/quickstart/part-b; quickstart record; ls /var/lib/quickstart"
    )
    assert said.split() == sorted((BUILD[::-1], "current"))


def test_a_unit_that_comes_before_the_application(machine: Machine) -> None:
    """As init judges it, by init's own script, which the record keeps."""
    place = "/etc/systemd/system/multi-user.target.wants"
    out = machine(
        f"""mkdir -p {place}
ln -s /x {place}/daemon.service
quickstart check; quickstart record; quickstart check
printf '[Unit]\\nBefore=network.target\\n' >/etc/systemd/system/wall.service
quickstart check
ln -s /x {place}/wall.service
quickstart check {FAILS}
quickstart status --json"""
    )
    assert f"{place}/wall.service is not as it was packed" in out
    said = json.loads(out.splitlines()[-1])["result"]
    assert said["differing"] == [f"{place}/wall.service"]


@pytest.mark.parametrize("recorded", ["quickstart record", ":"])
def test_kernel_settings_of_packages_count_by_their_content(machine: Machine, recorded: str) -> None:
    """As init has it: an upgrade writes a file anew."""
    out = machine(
        f"""echo 1 >/opt/settings.conf
echo 'x  opt/settings.conf' >/tmp/sums
sh /fast/quickstart/settings-files / /tmp/sums >/fast/quickstart/packed.settings
{recorded}
cp /opt/settings.conf /opt/new; mv /opt/new /opt/settings.conf; touch -d 2001-01-01 /opt/settings.conf
quickstart check
echo 2 >/opt/settings.conf
quickstart check {FAILS}"""
    )
    assert out.startswith(
        "quickstart: /opt/settings.conf is not as it was packed; the next boot is a stock one."
    )
    assert out.count("\n") == 1


@pytest.mark.parametrize("recorded", ["quickstart record", ":"])
def test_a_hardware_clock_that_gets_the_local_time(machine: Machine, recorded: str) -> None:
    """The word counts, and not the rest of the file, which hwclock(8) writes at any time."""
    out = machine(
        f"""sh /fast/quickstart/settings-files / /dev/null >/fast/quickstart/packed.settings
{recorded}
printf '0.0 0 0.0\\n0\\nUTC\\n' >/etc/adjtime
quickstart check
printf '0.0 0 0.0\\n0\\nLOCAL\\n' >/etc/adjtime
quickstart status --json
quickstart check {FAILS}"""
    )
    status, said = out.splitlines()
    assert json.loads(status)["result"]["differing"] == ["/etc/adjtime"]
    assert said.startswith("quickstart: /etc/adjtime is not as it was packed; the next boot is a stock one.")


def test_a_clock_with_the_local_time_is_not_recorded(machine: Machine) -> None:
    out = machine(
        "printf '0.0 0 0.0\\n0\\nLOCAL\\n' >/etc/adjtime; : >/fast/quickstart/packed.settings; "
        f"quickstart record 2>&1 {FAILS}"
    )
    assert out.endswith("nothing was recorded\n")


def test_other_kernel_settings_than_the_packed_are_not_recorded(machine: Machine) -> None:
    out = machine(
        f"echo 'x  opt/settings.conf' >/fast/quickstart/packed.settings; quickstart record 2>&1 {FAILS}"
    )
    assert out.endswith("nothing was recorded\n")


@pytest.mark.parametrize("recorded", ["quickstart record", ":"])
@pytest.mark.parametrize(
    ("change", "named"),
    [
        (CHANGE, "/opt/app/program"),
        ("cp -p /opt/app/program /opt/new; mv /opt/new /opt/app/program", "/opt/app/program"),
        ("rm /opt/app/program", "/opt/app/program"),
        ("ln -sfn other /opt/app/link", "/opt/app/link"),
        ("chmod 600 '/opt/app/a b'", "/opt/app/a b"),
        ('rm "/opt/app/it\'s \\"x\\""', '/opt/app/it\'s "x"'),
        # What was not there: a name (a mask, an earlier library), an entry of a directory, a whole such directory.
        ("ln -s /dev/null /opt/app/absent", "/opt/app/absent"),
        ("touch /opt/place/drop-in.conf", "/opt/place/drop-in.conf"),
        ("echo other >/opt/place/entry", "/opt/place/entry"),
        ("rm /opt/place/entry", "/opt/place/entry"),
        ("mkdir '/opt/no place'; touch '/opt/no place/x'", "/opt/no place/x"),
        # Who may come to what is packed: a directory above it is closed, or given away.
        ("chmod 700 /opt", "/opt"),
        ("chgrp 1 /opt/app", "/opt/app"),
        ("chmod 750 /", "/."),
        ("mv /opt/place /opt/placed; ln -s placed /opt/place", "/opt/place"),
    ],
)
def test_a_change_is_named_and_fast_is_taken_away(
    machine: Machine, recorded: str, change: str, named: str
) -> None:
    # A second later, as for whoever only sees seconds.
    said = machine(
        f"{recorded}; ln -s 1:{BUILD}:1:1 /.quickstart; sleep 1.1; {change}; quickstart check {FAILS}; "
        "ls -A /fast; ls -A / | grep -c '^.quickstart$' || :"
    )
    assert said.splitlines()[0] == (
        f"quickstart: {named} is not as it was packed; the next boot is a stock one. "
        "`quickstart rebuild OUT` on the host packs anew."
    )
    assert said.splitlines()[1:] == ["0"]


def test_a_record_of_before_has_no_ways(machine: Machine) -> None:
    """quickstart-guest is upgraded, the record stays as an earlier one has written it."""
    machine(
        "quickstart record; cd /var/lib/quickstart/current; head -n -3 facts >f; mv f facts; rm ways; "
        "chmod 700 /opt; quickstart check"
    )


def test_the_modules_of_the_fast_starts_kernel_belong_to_it(machine: Machine) -> None:
    said = machine(
        "quickstart record; mkdir /opt/modules; echo /opt/modules >/var/lib/quickstart/current/modules; quickstart check; "
        f"echo as packed; rmdir /opt/modules; quickstart check {FAILS}; quickstart status --json | grep -o '\"differing.*'"
    )
    as_packed, gone, status = said.splitlines()
    assert as_packed == "as packed"
    assert gone.startswith("quickstart: /opt/modules is not as it was packed; the next boot is a stock one.")
    assert status.startswith('"differing": ["/opt/modules"], "next_boot": "stock: /opt/modules is not')


def test_times_are_compared_in_nanoseconds(machine: Machine) -> None:
    """What the build has is in seconds; a change in that very second is seen by the record."""
    machine(
        'quickstart record; at=$(stat -c %.9Y /opt/app/program); touch -d "@${at%.*}.000000001" /opt/app/program; '
        f"quickstart check {FAILS}"
    )


def test_an_empty_record_agrees_with_nothing(machine: Machine) -> None:
    """As a crash may leave one: init's own facts count then, and without them nothing is stamped."""
    machine(
        "quickstart record; : >/var/lib/quickstart/current/names; : >/var/lib/quickstart/current/facts; "
        f"sleep 1.1; {CHANGE}; "
        f"quickstart check {FAILS}; umount -l /fast 2>/dev/null || :; quickstart stamp; [ ! -e /.quickstart ]"
    )
