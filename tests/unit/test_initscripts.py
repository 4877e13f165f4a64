"""Init scripts without a unit file: what systemd makes of them, and what is compared at boot."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import read_unit, unit_texts
from quickstart.inspect.unit.enabled import enabled_text
from quickstart.inspect.unit.facts import deciding
from quickstart.inspect.unit.files import names_of, parse_service
from quickstart.inspect.unit.initscripts import read_script, script_of
from tests.unit.unitreader import put

SLAPD = """\
#!/bin/sh
### BEGIN INIT INFO
# Provides:          slapd
# Required-Start:    $remote_fs $network $syslog
# Required-Stop:     $remote_fs $network $syslog
# Default-Start:     2 3 4 5
# Default-Stop:      0 1 6
# Short-Description: OpenLDAP standalone server (Lightweight Directory Access Protocol)
### END INIT INFO
# pidfile: relative
exec /usr/bin/app "$@"
"""


def image(base: Path, text: str = SLAPD, *, links: bool = True, mode: int = 0o755) -> ImageRoot:
    put(base, "/etc/init.d/slapd", text)
    (base / "etc/init.d/slapd").chmod(mode)
    put(base, "/usr/bin/app", "")
    (base / "usr/bin/app").chmod(0o755)
    for level in (2, 3, 4, 5) if links else ():
        put(base, f"/etc/rc{level}.d/README", "")
        (base / f"etc/rc{level}.d/S01slapd").symlink_to("../init.d/slapd")
    return ImageRoot(base)


def test_a_script_becomes_a_unit(tmp_path: Path) -> None:
    start = read_unit(image(tmp_path), "slapd.service")
    assert (start.type, start.pid_file, start.timeout_ms) == ("forking", None, 300_000)
    assert start.start.words == ("/etc/init.d/slapd", "start")
    assert ("main-process", "any") in start.settings


def test_a_pid_file_is_the_main_process(tmp_path: Path) -> None:
    start = read_unit(image(tmp_path, SLAPD.replace("relative", "/run/slapd.pid")), "slapd.service")
    assert start.pid_file == PurePosixPath("/run/slapd.pid")
    assert ("main-process", "any") not in start.settings


def test_a_unit_file_hides_the_script(tmp_path: Path) -> None:
    root = image(tmp_path)
    put(tmp_path, "/usr/lib/systemd/system/slapd.service", "[Service]\nExecStart=/usr/bin/app\n")
    assert parse_service(unit_texts(root, "slapd.service")) == {"ExecStart": ("/usr/bin/app",)}


def test_a_mask_hides_the_script(tmp_path: Path) -> None:
    root = image(tmp_path)
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "etc/systemd/system/slapd.service").symlink_to("/dev/null")
    with pytest.raises(UnsupportedUnitError, match="masked"):
        unit_texts(root, "slapd.service")


def test_a_unit_that_is_a_link_to_a_script_is_refused(tmp_path: Path) -> None:
    root = image(tmp_path)
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "etc/systemd/system/slapd.service").symlink_to("/etc/init.d/slapd")
    with pytest.raises(UnsupportedUnitError, match=r"is a link to /etc/init\.d/slapd"):
        unit_texts(root, "slapd.service")


@pytest.mark.parametrize(
    "unit", ["slapd.socket", "other.service", "../init.d/slapd.service", "sl apd.service"]
)
def test_what_is_no_script(tmp_path: Path, unit: str) -> None:
    assert script_of(image(tmp_path), unit) is None


def test_a_script_that_cannot_be_executed_is_none(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedUnitError, match="has no unit slapd"):
        unit_texts(image(tmp_path, mode=0o644), "slapd.service")


def test_drop_ins_are_the_units_and_those_of_what_it_provides(tmp_path: Path) -> None:
    root = image(tmp_path, SLAPD.replace("slapd\n", "slapd ldap.sh $ldap-server\n", 1))
    put(tmp_path, "/etc/systemd/system/slapd.service.d/a.conf", "[Service]\nUMask=077\n")
    put(tmp_path, "/etc/systemd/system/ldap.service.d/b.conf", "[Service]\nNice=5\n")
    assert names_of(root, "slapd.service") == ("slapd.service", "ldap.service")
    found = parse_service(unit_texts(root, "slapd.service"))
    assert (found["UMask"], found["Nice"]) == (("077",), ("5",))
    assert "ldap-server.target" in read_script(root, "slapd.service").before


def test_its_place_in_the_boot(tmp_path: Path) -> None:
    text = SLAPD.replace("$syslog\n", "$syslog $named bind9\n# X-Start-Before: mail\n", 1)
    script = read_script(image(tmp_path, text), "slapd.service")
    assert script.after == ("remote-fs.target", "network-online.target", "nss-lookup.target", "bind9.service")
    assert script.before == ("mail.service", "multi-user.target", "graphical.target")
    assert script.wants == ("network-online.target",)
    assert b"before bind9.service\n" in enabled_text(image(tmp_path / "b", text), "slapd.service")


def test_without_a_header_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedUnitError, match="without an LSB header"):
        read_unit(image(tmp_path, "#!/bin/sh\n"), "slapd.service")


@pytest.mark.parametrize("word", ["a/b", "'a'", "a%i", "caf\u00e9", "$$x"])
def test_a_name_that_systemd_would_escape_is_refused(tmp_path: Path, word: str) -> None:
    with pytest.raises(UnsupportedUnitError, match="is no plain name"):
        read_unit(image(tmp_path, SLAPD.replace("slapd\n", f"slapd {word}\n", 1)), "slapd.service")


def test_others_whose_scripts_have_no_header_do_not_refuse_it(tmp_path: Path) -> None:
    root = image(tmp_path, SLAPD.replace("$syslog\n", "$syslog other\n", 1))
    put(tmp_path, "/etc/init.d/other", "#!/bin/sh\n")
    (tmp_path / "etc/init.d/other").chmod(0o755)
    assert b"before other.service\n" in enabled_text(root, "slapd.service")


def test_what_is_compared_at_boot(tmp_path: Path) -> None:
    files = {str(each) for each in deciding(image(tmp_path), "slapd.service").files}
    levels = {f"/etc/rc{level}.d/S01slapd" for level in (2, 3, 4, 5)}
    # A unit file that is put there later hides the script.
    later = {"/etc/systemd/system/slapd.service", "/usr/lib/systemd/system/slapd.service"}
    assert files >= {"/etc/init.d/slapd", "/etc/systemd/system/multi-user.target"} | levels | later
