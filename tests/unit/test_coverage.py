"""bench/services/coverage.py on small image roots, and that the committed page says what the committed verdicts say."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.services import coverage
from bench.services.coverage import ACCEPTED, NO_DAEMON, Judged, Wanted
from quickstart.errors import BadInputError
from quickstart.inspect.imageroot import ImageRoot
from tests.unit.imagebuilder import small_image

CHECKOUT = Path(__file__).parents[2]
STATUS = "Package: app\nStatus: install ok installed\nVersion: 1.2-3\nArchitecture: amd64\n\n"
SIMPLE = "[Service]\nType=exec\nExecStart=/usr/bin/app\n[Install]\nWantedBy=multi-user.target\n"


def image(base: Path, *, scripts: tuple[str, ...] = (), **units: str) -> ImageRoot:
    """An image with the package app, which ships these units and init scripts."""
    made = small_image(base)
    made.file("/etc/os-release", "ID=debian\n")
    listed = ["/usr/bin/app"]
    for name, text in units.items():
        listed.append(f"/lib/systemd/system/{name}.service")
        made.file(f"/usr{listed[-1]}", text)
    for name in scripts:
        listed.append(f"/etc/init.d/{name}")
        made.file(listed[-1], "#!/bin/sh\n", 0o755)
    made.file("/var/lib/dpkg/status", STATUS)
    made.file("/var/lib/dpkg/info/app.list", "\n".join(listed) + "\n")
    return ImageRoot(base)


def test_the_list_has_images_of_packages() -> None:
    text = "# a comment\n\nnginx\npostfix postfix-pcre\n\n# another\nexim4\n"
    assert coverage.parse_list(text) == (
        (Wanted("nginx"), Wanted("postfix", ("postfix-pcre",))),
        (Wanted("exim4"),),
    )
    with pytest.raises(BadInputError, match="names twice: nginx"):
        coverage.parse_list("nginx\n\nnginx\n")


def test_a_script_counts_where_no_unit_stands_for_it(tmp_path: Path) -> None:
    root = image(tmp_path, scripts=("app", "old"), app=SIMPLE)
    assert coverage.units_of(root, ["app", "other"]) == {"app": ("app.service", "old.service"), "other": ()}


def test_an_alias_and_a_masked_script_do_not_count(tmp_path: Path) -> None:
    root = image(tmp_path, scripts=("masked",), app=SIMPLE)
    place = tmp_path / "usr/lib/systemd/system"
    (place / "alias.service").symlink_to("app.service")
    (place / "masked.service").symlink_to("/dev/null")
    assert coverage.units_of(root, ["app"]) == {"app": ("app.service",)}


def test_the_reader_judges(tmp_path: Path) -> None:
    root = image(
        tmp_path, scripts=("old",), app=SIMPLE, bus=SIMPLE.replace("exec", "dbus\nBusName=org.example")
    )
    units = coverage.units_of(root, ["app"])["app"]
    judged = coverage.judge(root, Wanted("app"), units)
    assert judged.version == "1.2-3"
    reasons = {unit: coverage.kind_of(said).why for unit, said in judged.units.items() if said != ACCEPTED}
    assert judged.units["app.service"] == ACCEPTED
    assert reasons == {
        "bus.service": "D-Bus: `Type=dbus`, `BusName=`",
        "old.service": "an init script without an LSB header",
    }
    with pytest.raises(BadInputError, match="app ships no unit"):
        coverage.judge(root, Wanted("app"), ())


def test_a_reason_that_no_row_has_is_a_row() -> None:
    verdicts = {"a.service": ACCEPTED, "b.service": "Color=blue is not known", "c.service": NO_DAEMON}
    part = coverage.page_part({"app": Judged("1", verdicts)})
    assert part.startswith("The 1 packages have 2 daemon units. The reader accepts 1 of them:\n\na.\n")
    assert "| `Color=blue is not known` | b |" in part
    assert part.endswith("Another 1 units have no daemon process (`Type=oneshot`): c.")


def test_a_wrapper_counts_by_its_instance(tmp_path: Path) -> None:
    oneshot = "[Service]\nType=oneshot\nExecStart=/bin/true\n"
    units = {
        "wrapper": f"[Unit]\nWants=wrapper@a.service\n{oneshot}",
        "wrapper@": f"[Unit]\nPartOf=wrapper.service\n{SIMPLE}",
        "job": oneshot.replace("/bin/true", "/usr/bin/app"),
    }
    root = image(tmp_path, **units)  # type: ignore[arg-type]
    assert coverage.verdict(root, "wrapper.service") == ACCEPTED
    assert coverage.verdict(root, "job.service") == NO_DAEMON


def test_the_document_is_read_as_it_was_written() -> None:
    found = {"app": Judged("1", {"a.service": ACCEPTED}), "b": Judged("2", {"c.service": "Type=oneshot"})}
    assert coverage.read_document(coverage.document(found)) == found


def test_the_page_gets_the_figures_between_its_marks() -> None:
    page = "before\n<!-- begin by bench/services/coverage.py -->\nold\n<!-- end by bench/services/coverage.py -->\nafter\n"
    made = coverage.with_part(page, "new")
    assert "\n\nnew\n\n" in made and "old" not in made
    assert coverage.with_part(made, "new") == made
    with pytest.raises(BadInputError, match="lacks the line"):
        coverage.with_part("no marks", "new")


def test_the_committed_figures_are_those_of_the_committed_verdicts() -> None:
    found = coverage.read_document((CHECKOUT / coverage.RESULTS).read_text(encoding="utf-8"))
    images = coverage.parse_list((CHECKOUT / coverage.LIST).read_text(encoding="utf-8"))
    assert set(found) == {wanted.package for each in images for wanted in each}
    page = (CHECKOUT / coverage.PAGE).read_text(encoding="utf-8")
    assert coverage.with_part(page, coverage.page_part(found)) == page
