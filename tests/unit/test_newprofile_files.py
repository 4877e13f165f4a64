"""The two files that `profile new` writes, of ordinary guests and of strangers' ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.errors import (
    ProfileError,
)
from quickstart.model import (
    Exclusion,
    FileRules,
    Readiness,
    RootBudget,
    StartSet,
)
from quickstart.model.words import Early, ImageSource, ReadyKind
from quickstart.newprofile.findings import (
    by_package,
    early,
)
from quickstart.newprofile.make import (
    checked_text,
)
from quickstart.newprofile.readme import notes, readme_text, request
from quickstart.newprofile.reads import Reads, root_budget
from quickstart.newprofile.toml import profile_text
from quickstart.profile import DATA, parse_bench, parse_profile
from tests.unit.drafts import DRAFT, findings, start_file
from tests.unit.imagebuilder import P


def test_the_wrapper_that_was_asked_for_is_named() -> None:
    found = findings(DRAFT, wrapper="web.service")
    text = profile_text(found.profile, notes(found))
    assert (
        '# app.service does the work of web.service, which starts nothing itself.\nunit = "app.service"\n'
        in text
    )
    assert "It does the work of `web.service`, which starts nothing itself." in readme_text(found)
    without = findings(DRAFT)
    assert "does the work" not in profile_text(DRAFT, notes(without)) + readme_text(without)


def test_a_unit_that_another_one_needs_is_named() -> None:
    draft = replace(DRAFT, companions=("db.service",))
    found = findings(draft, needed=("db.service",))
    text = profile_text(found.profile, notes(found))
    note = "# db.service is here because another of these units needs it.\n"
    assert f'{note}units = ["db.service", "app.service"]\n' in text


def test_what_verify_lets_pass_is_more_than_was_read() -> None:
    reads = Reads(requests=47, bytes=841_216, direct_requests=3, files=(), ready_uptime_ns=5_000_000_000)
    assert root_budget(reads, beside_the_boot=False) == RootBudget(80, 1_750_000)
    assert root_budget(reads, beside_the_boot=True) == RootBudget(110, 2_000_000)


@pytest.mark.parametrize(
    ("stock_ns", "early_ns", "found"),
    [(9, 8, Early.SEEN), (9, 9, Early.NEVER), (8, 9, Early.NEVER), (0, 9, Early.SEEN)],
)
def test_an_early_start_that_brings_nothing(stock_ns: int, early_ns: int, found: Early) -> None:
    assert early(Early.SEEN, stock_ns, early_ns) is found


def test_a_profile_whose_boots_are_stock_boots_says_why() -> None:
    found = findings(replace(DRAFT, early=Early.NEVER))
    text = profile_text(found.profile, notes(found))
    note = "# The stock boot was ready after 0.0 s, an early start on trial after 5.0 s, so every boot is a stock boot."
    assert f'{note} Without this line, the unit starts early.\nearly = "never"\n' in text
    assert parse_profile(text, "x").early is Early.NEVER
    assert "early =" not in profile_text(DRAFT, notes(findings(DRAFT)))


def test_what_is_still_read_of_the_volume_is_said() -> None:
    found = findings(DRAFT)
    text = readme_text(found)
    assert "47 requests, 0.8 MB before ready, of a budget of 80 and 4.0 MB" in text
    assert "| `/etc/app.conf` | `prefetcher` | 4 |" in text
    assert "past the page cache" not in text
    assert "3 more are the service's own" in readme_text(
        replace(
            found,
            reads=Reads(requests=1, bytes=1, direct_requests=3, files=(), ready_uptime_ns=5_000_000_000),
        )
    )
    blind = replace(found.reads, files=(), unattributed="its kernel cannot tell")
    text = readme_text(replace(found, reads=blind))
    assert (
        "Who asked for what is unknown, so `quickstart verify OUT` only counts: its kernel cannot tell."
        in text
    )
    written = profile_text(replace(DRAFT, root_budget=RootBudget(90, 1_750_000)), notes(found))
    assert "47 requests, 0.8 MB" in written
    assert parse_profile(written, "x").root_budget == RootBudget(90, 1_750_000)


def test_the_files_of_a_plain_service() -> None:
    found = findings(replace(DRAFT, run_start_pre=False), pre=("/usr/sbin/app -t",))
    text = profile_text(found.profile, notes(found))
    assert parse_profile(text, "x") == found.profile
    assert (
        "# ExecStartPre only checks what the start itself checks again: /usr/sbin/app -t\npre = false\n"
        in text
    )
    assert "# The initramfs has 15.0 MiB, not compressed.\n" in text
    readme = readme_text(found)
    for line in (
        "Ready is the first `200` to `GET /` on port 80 of the external address.",
        "Type=simple; `/usr/sbin/app -D`.",
        "ExecStartPre `/usr/sbin/app -t` is left out: it only checks.",
        "| User | repeated |",
        "| app-server | 1 | 2.00 |",
        "- `/etc/app.conf`",
        "- Nothing was found that needs a decision.",
    ):
        assert line in readme
    assert profile_text(found.profile, notes(found)) == text
    for source, where in ((ImageSource.ROOTFS, "in a root of one's own"), (ImageSource.DISK, "on a disk")):
        given = readme_text(replace(found, source=source))
        assert "unchanged" in readme and "unchanged" not in given
        assert f"{where}: `quickstart build` needs it too (`{source.value}`)." in given


def test_the_files_of_one_to_be_looked_at() -> None:
    ready = replace(DRAFT.ready, kind=ReadyKind.TCP, loopback=True, path="/", status=200)
    rules = replace(DRAFT.files, data=(*DATA, "/opt/app/db"))
    found = findings(
        replace(DRAFT, ready=ready, files=rules), written=(P("/opt/app/db"),), pre=("/bin/mkdir /x",)
    )
    text = profile_text(found.profile, notes(found))
    assert parse_profile(text, "x") == found.profile
    assert '# The service listens on 127.0.0.1 only.\naddress = "loopback"\n' in text
    assert '# The service writes to them.\ndata = ["/opt/app/db"]\n' in text
    readme = readme_text(found)
    assert "nobody reaches it from outside" in readme
    assert "- `/opt/app/db` is written to by the service and so is data." in readme
    assert "`pre = false` leaves it out" in readme


def test_one_that_is_asked_for_its_databases() -> None:
    ready = Readiness(
        kind=ReadyKind.MYSQL, port=3306, path="/", status=200, command="", timeout_s=60, account="asker"
    )
    profile = replace(DRAFT, ready=ready)
    assert parse_profile(profile_text(profile, {}), "x") == profile
    assert "`show databases` that port 3306 of the external address answers to asker" in request(ready)


def test_served_from_memory_by_package() -> None:
    files = (
        start_file("/usr/sbin/app"),
        start_file("/usr/lib/x.so", 0o644, "libx 2"),
        start_file("/etc/x", 0o644),
    )
    assert by_package(StartSet(files, ()), ()) == {"app-server": (1, 2 << 20), "libx": (1, 2 << 20)}


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
LINE = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30)
GLOBS = st.lists(TEXT.map(lambda text: f"/{text}"), max_size=3).map(tuple)


@given(TEXT, LINE, GLOBS, GLOBS, st.booleans())
def test_any_profile_reads_as_it_was_written(
    description: str, said: str, include: tuple[str, ...], data: tuple[str, ...], pre: bool
) -> None:
    ready = Readiness(kind=ReadyKind.EXEC, port=0, path="/", status=200, command=said, timeout_s=77)
    rules = FileRules(include=include, exclude=data, data=(*DATA, *data), secrets=include)
    profile = replace(DRAFT, description=description, ready=ready, files=rules, run_start_pre=pre)
    assert parse_profile(profile_text(profile, {}), "x") == profile


EVIL = "x\n[bench]\ncommands = ['true']\nready = {kind = 'tcp', port = 1}\n#\x1b]0;\a"


def test_no_comment_goes_on_as_toml() -> None:
    found = findings(DRAFT, wrapper=f"{EVIL}.service", pre=(EVIL,))
    text = checked_text(found.profile, notes(found))
    assert parse_profile(text, "x") == found.profile
    assert parse_bench(text, "x") is None


def test_what_no_profile_can_say_is_not_written() -> None:
    with pytest.raises(ProfileError, match="unit"):
        checked_text(replace(DRAFT, unit=f"{EVIL}.service"), {})
    with pytest.raises(ProfileError, match="machine_mib"):
        checked_text(replace(DRAFT, memory_mib=1 << 20), {})


def test_no_name_begins_a_line_of_the_readme() -> None:
    file = start_file("/etc/app.conf", 0o644, f"{EVIL} 1")
    found = findings(
        DRAFT,
        wrapper=EVIL,
        unit=replace(findings(DRAFT).unit, unit=EVIL, pid_file=P(f"/run/{EVIL}")),
        start_set=StartSet(
            (file, start_file(f"/usr/{EVIL}", 0o755, EVIL)), (Exclusion(P(f"/{EVIL}"), "secret: mode 0600"),)
        ),
    )
    text = readme_text(found)
    assert not [char for char in text if not char.isprintable() and char != "\n"]
    assert not [line for line in text.splitlines() if line.startswith(("[bench]", "commands"))]
    assert text.count("[bench]") >= 4


def test_a_name_of_the_image_is_no_markup_in_the_readme() -> None:
    found = findings(DRAFT)
    start = replace(found.unit.start, words=("/bin/x", "`", "<img src=http://198.51.100.1/t.png>", "|"))
    text = readme_text(replace(found, unit=replace(found.unit, start=start)))
    assert "`/bin/x \N{PRIME} <img src=http://198.51.100.1/t.png> \N{BROKEN BAR}`" in text.replace(
        found.unit.start.program + " ", "/bin/x ", 1
    )
